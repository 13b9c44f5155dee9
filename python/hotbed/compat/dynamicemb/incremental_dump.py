"""The rows of a model whose score reached a threshold, the keys that left, and their replay into another model."""

from __future__ import annotations

import warnings
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

import torch

from hotbed.compat.dynamicemb.batched_dynamicemb_tables import BatchedDynamicEmbeddingTablesV2, gathered
from hotbed.compat.dynamicemb.dump_load import find_sharded_modules, get_dynamic_emb_module
from hotbed.compat.dynamicemb.dynamicemb_config import ReplayContent
from hotbed.compat.dynamicemb.types import DeltaDumpResult, ReplayStats

Scores = Dict[str, Dict[str, int]]
Keys = Dict[str, Dict[str, torch.Tensor]]


class Deltas(Dict[str, DeltaDumpResult]):
    """The results of an incremental dump by the path of their collection.

    Iterating gives two dicts by collection and table, keys with rows and the next thresholds, as
    ``rows, thresholds = incremental_dump(...)`` of dynamicemb before v26.10 expects; :meth:`items` gives the results.
    """

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the two dicts of the older form."""
        forms = {path: tuple(delta) for path, delta in self.items()}
        for i in range(2):
            yield {path: form[i] for path, form in forms.items()}


def _modules(model: torch.nn.Module, what: str) -> List[Tuple[str, str, List[BatchedDynamicEmbeddingTablesV2]]]:
    """Return path, name and modules of each collection; if no collection has tables, warn and return nothing."""
    found = [(path, name, get_dynamic_emb_module(module)) for path, name, module in find_sharded_modules(model)]
    if not any(modules for _, _, modules in found):
        warnings.warn(f"{what}: the model has no module of tables", stacklevel=3)
        return []
    return found


def _is_scores(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(path, str)
        and isinstance(inner, dict)
        and all(isinstance(name, str) and isinstance(score, int) for name, score in inner.items())
        for path, inner in value.items()
    )


def _selected(
    model: torch.nn.Module, scores: Union[int, Scores], what: str
) -> Iterator[Tuple[str, BatchedDynamicEmbeddingTablesV2, Dict[str, int]]]:
    """Return path, module and the tables' scores, for all modules that have scores."""
    if not isinstance(scores, int) and not _is_scores(scores):
        raise ValueError(f"{what}: {scores!r} is no integer and no dict of tables by collection")
    found = _modules(model, what)
    if isinstance(scores, dict):
        for path in set(scores) - {p for p, _, _ in found} - {n for _, n, _ in found}:
            warnings.warn(f"{what}: the model has no collection {path!r}", stacklevel=3)
    for path, name, modules in found:
        for module in modules:
            if isinstance(scores, int):
                yield path, module, dict.fromkeys(module.table_names, scores)
            else:
                given = scores.get(path, scores.get(name, {}))
                chosen = {table: score for table, score in given.items() if table in module.table_names}
                if chosen:
                    yield path, module, chosen


def set_score(model: torch.nn.Module, table_score: Union[int, Scores]) -> None:
    """Set the score that later batches give to keys of CUSTOMIZED tables.

    Args:
        model: a model with hash tables.
        table_score: one score for all tables, or a dict of scores by collection and table.

    Raises:
        ValueError: ``table_score`` is neither an integer nor such a dict, or a score is 0.
    """
    for _, module, scores in _selected(model, table_score, "set_score"):
        module.set_score(scores)


def get_score(model: torch.nn.Module) -> Optional[Scores]:
    """Return thresholds with which :func:`incremental_dump` returns the keys that are trained from now on.

    Returns:
        Score by collection and table, see :meth:`.BatchedDynamicEmbeddingTablesV2.get_score`; None if the model has no
        tables.
    """
    found = _modules(model, "get_score")
    if not found:
        return None
    scores: Scores = {}
    for path, _, modules in found:
        scores[path] = {}
        for module in modules:
            scores[path].update(module.get_score())
    return scores


def incremental_dump(model: torch.nn.Module, score_threshold: Union[int, Scores], pg: Optional[Any] = None) -> Deltas:
    """Return the rows of a model whose score is at least a threshold, and the keys that left its tables.

    Args:
        model: a model with hash tables.
        score_threshold: one threshold for all tables, or a dict by collection and table, which selects these tables.
        pg: process group whose ranks' rows are gathered.

    Returns:
        A :class:`.DeltaDumpResult` by collection, empty if the model has no tables; see
        :meth:`.BatchedDynamicEmbeddingTablesV2.incremental_dump`.

    Raises:
        ValueError: ``score_threshold`` is neither an integer nor such a dict.
    """
    deltas = Deltas()
    for path, module, scores in _selected(model, score_threshold, "incremental_dump"):
        deltas.setdefault(path, DeltaDumpResult()).add(module.incremental_dump(scores, pg))
    return deltas


def replay_increment(
    model: torch.nn.Module, deltas: Mapping[str, DeltaDumpResult], content: ReplayContent = ReplayContent.ALL
) -> Dict[str, Dict[str, ReplayStats]]:
    """Write incremental dumps into the tables of a model, in the order in which they were made.

    Args:
        model: a model with hash tables at the same paths.
        deltas: of :func:`incremental_dump`; with a group, each rank gets the same and takes the keys that it owns.
        content: whether states and scores are written too.

    Returns:
        What was done, by collection and table; see :meth:`.BatchedDynamicEmbeddingTablesV2.replay_increment`.

    Raises:
        ValueError: a table does not fit; other modules may have been written.
    """
    found = {path: modules for path, _, modules in _modules(model, "replay_increment")}
    done: Dict[str, Dict[str, ReplayStats]] = {}
    for path, delta in deltas.items():
        if path not in found:
            warnings.warn(f"replay_increment: the model has no collection {path!r}", stacklevel=2)
            continue
        done[path] = {}
        known = {name for module in found[path] for name in module.table_names}
        for name in set(delta.table_names) - known:
            warnings.warn(f"replay_increment: collection {path!r} has no table {name!r}", stacklevel=2)
        for module in found[path]:
            done[path].update(module.replay_increment(_part(delta, module.table_names), content))
    return done


def _part(delta: DeltaDumpResult, names: List[str]) -> DeltaDumpResult:
    """Return a delta of the named tables only."""
    chosen = [i for i, name in enumerate(delta.table_names) if name in names]
    return DeltaDumpResult(*([column[i] for i in chosen] for column in vars(delta).values()))


def pop_evicted_keys(
    model: torch.nn.Module, table_names: Optional[Dict[str, List[str]]] = None, pg: Optional[Any] = None
) -> Keys:
    """Return the keys that were evicted since the last call, of tables with ``evicted_item_mode`` RETAIN_KEY.

    Args:
        model: a model with hash tables.
        table_names: tables by the path of their collection; None: all.
        pg: process group whose ranks' keys are gathered; None: this rank's.

    Returns:
        Keys on the CPU, by collection and table.
    """
    return _popped(model, "pop_evicted_keys", table_names, pg)


def pop_erased_keys(
    model: torch.nn.Module, table_names: Optional[Dict[str, List[str]]] = None, pg: Optional[Any] = None
) -> Keys:
    """Return the keys that ``erase()`` was to retain since the last call; see :func:`pop_evicted_keys`."""
    return _popped(model, "pop_erased_keys", table_names, pg)


def _popped(model: torch.nn.Module, what: str, table_names: Optional[Dict[str, List[str]]], pg: Optional[Any]) -> Keys:
    keys: Keys = {}
    for path, _, modules in _modules(model, what):
        if table_names is not None and path not in table_names:
            continue
        for module in modules:
            for name, popped in getattr(module, what)(None if table_names is None else table_names[path]).items():
                keys.setdefault(path, {})[name] = gathered(popped, pg)
    return keys
