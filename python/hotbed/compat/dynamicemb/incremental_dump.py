"""The rows of a model whose score reached a threshold, and the scores to use as thresholds."""

from __future__ import annotations

import warnings
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import torch

from hotbed.compat.dynamicemb.batched_dynamicemb_tables import BatchedDynamicEmbeddingTablesV2
from hotbed.compat.dynamicemb.dump_load import find_sharded_modules, get_dynamic_emb_module

Scores = Dict[str, Dict[str, int]]
Rows = Dict[str, Dict[str, Tuple[torch.Tensor, torch.Tensor]]]


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


def incremental_dump(
    model: torch.nn.Module, score_threshold: Union[int, Scores], pg: Optional[Any] = None
) -> Optional[Tuple[Rows, Scores]]:
    """Return the rows of a model whose score is at least a threshold.

    Args:
        model: a model with hash tables.
        score_threshold: one threshold for all tables, or a dict by collection and table, which selects these tables.
        pg: process group whose ranks' rows are gathered.

    Returns:
        Keys and float32 rows on the CPU, and the thresholds for the next dump, by collection and table; None if the
        model has no tables.

    Raises:
        ValueError: ``score_threshold`` is neither an integer nor such a dict.
    """
    rows: Rows = {}
    thresholds: Scores = {}
    for path, module, scores in _selected(model, score_threshold, "incremental_dump"):
        got, following = module.incremental_dump(scores, pg)
        rows.setdefault(path, {}).update(got)
        thresholds.setdefault(path, {}).update(following)
    return (rows, thresholds) if rows else None
