"""Views of a module's tables, for code that uses ``module.tables`` and ``module.cache``."""

from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from hotbed.compat.dynamicemb._dumps import Dump, read_meta, refuse_duplicates
from hotbed.compat.dynamicemb.dynamicemb_config import (
    BATCH_SIZE_PER_DUMP,
    DynamicEmbScoreStrategy,
    DynamicEmbTableOptions,
    EvictedItemMode,
    ReplayContent,
    score_strategy_has_timestamp_column,
)
from hotbed.compat.dynamicemb.optimizer import BaseDynamicEmbeddingOptimizer
from hotbed.compat.dynamicemb.types import Cache, CopyMode, ReplayStats, Storage
from hotbed.errors import UnsupportedError
from hotbed.torch._storage import optimizer_info

if TYPE_CHECKING:
    from hotbed.compat.dynamicemb._tables import Tables

#: A dump's TIMESTAMP scores are ages in nanoseconds; Hotbed's clock counts microseconds.
_CLOCK = 1000
#: Strategies whose scores are numbers of prefetches.
_STEPS = (DynamicEmbScoreStrategy.STEP, DynamicEmbScoreStrategy.NO_EVICTION)


class KeyIndexMap:
    """The number of a tier's keys, and of the keys for which memory is allocated."""

    def __init__(self, tables: Tables, tier: str) -> None:
        """See the class; ``tier`` is "all", "upper" or "lower"."""
        self._tables, self._tier = tables, tier

    def export(self, table: int, window: int) -> Iterator[Tuple[torch.Tensor, Dict[str, torch.Tensor]]]:
        """Iterate over the tier's rows of a table; see :meth:`.Tables.export`."""
        slots = int(self._tables.info(table).slots)  # the upper tier's slots come first
        if self._tier == "upper":
            return self._tables.export(table, window, end=slots)
        return self._tables.export(table, window, first=slots if self._tier == "lower" else 0)

    def size(self, table_id: Optional[int] = None) -> int:
        """Return the number of keys, of all tables unless one is named."""
        if table_id is None:
            return sum(self.size(t) for t in range(len(self._tables.tables)))
        if self._tier == "all":
            return self._tables.size(table_id)
        return sum(keys.shape[0] for keys, _ in self.export(table_id, BATCH_SIZE_PER_DUMP))

    def capacity(self, table_id: Optional[int] = None) -> int:
        """Return the number of keys for which memory is allocated, of all tables unless one is named."""
        if table_id is None:
            return sum(self.capacity(t) for t in range(len(self._tables.tables)))
        upper = int(self._tables.info(table_id).upper_capacity)
        if self._tier == "upper":
            return upper
        return max(1, self._tables.capacity(table_id) - (upper if self._tier == "lower" else 0))

    @property
    def keys_(self) -> torch.Tensor:
        """Return all keys by table, ascending; not by slot, because the order of threads decides a key's slot."""
        empty = torch.empty(0, dtype=torch.int64, device=self._tables.device)
        tables = range(len(self._tables.tables))
        each = [torch.cat([empty, *(k for k, _ in self.export(t, BATCH_SIZE_PER_DUMP))]) for t in tables]
        return torch.cat([torch.sort(keys).values for keys in each])


class DynamicEmbTableState:
    """One tier of a module's tables."""

    def __init__(self, tables: Tables, tier: str) -> None:
        """See the class; ``tier`` as in :class:`KeyIndexMap`."""
        self.hotbed = tables
        self.key_index_map = KeyIndexMap(tables, tier)
        self.num_tables = len(tables.tables)
        self.options_list = tables.options
        self.table_emb_dims_cpu = [t.dim for t in tables.tables]
        self.device = tables.device
        self.training = True


class _View:
    """Base of all views: dims, sizes, scores."""

    _tier = "all"

    def __init__(self, tables: Tables, optimizer: BaseDynamicEmbeddingOptimizer) -> None:
        self.hotbed = tables
        self._optimizer = optimizer
        self._state = DynamicEmbTableState(tables, self._tier)

    @property
    def key_index_map(self) -> KeyIndexMap:
        """Return the tier's keys."""
        return self._state.key_index_map

    @property
    def num_tables(self) -> int:
        """Return the number of tables."""
        return self._state.num_tables

    @property
    def training(self) -> bool:
        """Whether the last lookup was for training; has no effect."""
        return self._state.training

    @training.setter
    def training(self, value: bool) -> None:
        self._state.training = value

    def size(self) -> int:
        """Return the number of keys of all tables."""
        return self.key_index_map.size()

    def embedding_dtype(self) -> torch.dtype:
        """Return the dtype of rows."""
        return self.hotbed.tables[0].dtype

    def embedding_dim(self, table_id: int) -> int:
        """Return the number of elements in a row."""
        return self.hotbed.tables[table_id].dim

    def value_dim(self, table_id: int) -> int:
        """Return the number of elements in a row and its states."""
        dim = self.embedding_dim(table_id)
        return dim + self._optimizer.get_state_dim(dim)

    def max_embedding_dim(self) -> int:
        """Return the largest dim."""
        return max(t.dim for t in self.hotbed.tables)

    def max_value_dim(self) -> int:
        """Return the largest number of elements in a row and its states."""
        return max(self.value_dim(t) for t in range(self.num_tables))

    def embedding_dims(self, on_device: bool = False) -> torch.Tensor:
        """Return the dims of all tables, int64."""
        return torch.tensor(
            [t.dim for t in self.hotbed.tables], device=self.hotbed.device if on_device else torch.device("cpu")
        )

    def all_dims_vec4(self) -> bool:
        """Whether all dims are multiples of 4."""
        dims = range(self.num_tables)
        return all(self.embedding_dim(t) % 4 == 0 and self.value_dim(t) % 4 == 0 for t in dims)

    def init_optimizer_state(self) -> float:
        """Return the initial value of states."""
        return self._optimizer.get_initial_optim_states()

    def set_score(self, score: int) -> None:
        """Do nothing: scores are set on the module."""


class DynamicEmbCache(_View, Cache):
    """The upper tier of tables in mode CACHE."""

    _tier = "upper"

    def __init__(self, tables: Tables, optimizer: BaseDynamicEmbeddingOptimizer) -> None:
        super().__init__(tables, optimizer)
        self._metrics: Optional[torch.Tensor] = None

    def reset(self) -> None:
        """Write changed rows of the upper tier back, and empty it."""
        self.hotbed.reset()

    @property
    def cache_metrics(self) -> Optional[torch.Tensor]:
        """Return the number of distinct keys in the last prefetch, and of these in the upper tier, ``[2]`` int64."""
        return self._metrics

    def set_record_cache_metrics(self, record: bool) -> None:
        """Count the hits of each prefetch, which then waits for the device."""
        self._metrics = torch.zeros(2, dtype=torch.int64, device="cpu") if record else None

    def counts(self) -> Tuple[int, int]:
        """Return the numbers of distinct keys that were looked up, and found in the upper tier, so far."""
        stats = [self.hotbed.stats(t) for t in range(self.num_tables)]
        hits = sum(s["hits"] - s["fetches"] - s["in_place"] for s in stats)
        return sum(s["uniques"] for s in stats), hits


class _Rows(_View, Storage[DynamicEmbTableOptions, BaseDynamicEmbeddingOptimizer]):
    """Rows of all tiers by key."""

    # --- rows -----------------------------------------------------------------------------------

    def _states(self, table_id: int, parts: Dict[str, torch.Tensor]) -> Optional[torch.Tensor]:
        """Return states ``[n, state dim]`` in dynamicemb's order, None without states."""
        names = self.hotbed.state_names()
        if not names:
            return None
        states = torch.cat([parts[name] for name in names], dim=1)
        missing = self._optimizer.get_state_dim(self.embedding_dim(table_id)) - states.shape[1]
        if missing <= 0:
            return states
        fill = states.new_full((states.shape[0], missing), self.init_optimizer_state())
        return torch.cat([states, fill], dim=1)

    def _given(self, table_id: int, states: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Split states ``[n, columns]`` into parts; more columns than a dump has are allowed."""
        given, at = {}, 0
        for name, width in zip(self.hotbed.state_names(), self.hotbed.state_dims(table_id)):
            given[name] = states[:, at : at + width]
            at += width
        return given

    def find(
        self,
        unique_keys: torch.Tensor,
        table_ids: torch.Tensor,
        copy_mode: CopyMode,
        lfu_accumulated_frequency: Optional[torch.Tensor] = None,
    ) -> Tuple[Any, ...]:
        """Look up keys without side effects; see :meth:`.Storage.find`."""
        n, device = unique_keys.shape[0], self.hotbed.device
        widest = self.max_embedding_dim()
        width = widest if copy_mode == CopyMode.EMBEDDING else self.max_value_dim()
        values = torch.zeros(n, width, dtype=self.embedding_dtype(), device=device)
        found = torch.zeros(n, dtype=torch.bool, device=device)
        scores = torch.zeros(n, dtype=torch.int64, device=device)
        for t in range(self.num_tables):
            at = (table_ids.to(device) == t).nonzero().squeeze(1)
            if at.shape[0] == 0:
                continue
            keys = unique_keys.to(device)[at]
            parts = self.hotbed.rows(t, keys, self.hotbed.parts(t))
            found[at] = self.hotbed.found(t, keys)
            scores[at] = parts["scores"]
            values[at, : self.embedding_dim(t)] = parts["weight"]
            states = self._states(t, parts)
            if copy_mode == CopyMode.VALUE and states is not None:
                values[at, widest : widest + states.shape[1]] = states.to(values.dtype)
        missing = (~found).nonzero().squeeze(1)
        return (
            int(missing.shape[0]),
            unique_keys.to(device)[missing],
            missing,
            table_ids.to(device)[missing],
            None if lfu_accumulated_frequency is None else lfu_accumulated_frequency.to(device)[missing],
            found,
            scores,
            values,
        )

    def insert(
        self,
        keys: torch.Tensor,
        table_ids: torch.Tensor,
        values: torch.Tensor,
        scores: Optional[torch.Tensor] = None,
        preserve_existing: bool = False,
    ) -> None:
        """Insert or overwrite rows ``[n, largest value dim]``, in the layout of ``CopyMode.VALUE``.

        Raises:
            ValueError: a key of a table occurs twice.  Nothing is inserted.
        """
        for t in range(self.num_tables):
            name = self.hotbed.tables[t].name
            refuse_duplicates(keys[table_ids.to(keys.device) == t], f"insert: table {name!r}")
        widest = self.max_embedding_dim()
        for t in range(self.num_tables):
            at = (table_ids.to(keys.device) == t).nonzero().squeeze(1)
            chosen = keys[at]
            if preserve_existing and at.shape[0] > 0:
                at = at[~self.hotbed.found(t, chosen).to(at.device)]
                chosen = keys[at]
            if at.shape[0] == 0:
                continue
            rows = values.to(keys.device)[at]
            given = {"weight": rows[:, : self.embedding_dim(t)]}
            if rows.shape[1] > widest and self.hotbed.state_names():
                states = rows[:, widest : widest + self._optimizer.get_state_dim(self.embedding_dim(t))]
                given.update(self._given(t, states.float()))
            if scores is not None:
                given["scores"] = scores.to(keys.device)[at]
            self.hotbed.set_rows(t, chosen, given)

    def export_keys_values(
        self, device: torch.device, batch_size: int = 65536, table_id: int = 0
    ) -> Iterator[Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor], torch.Tensor]]:
        """Iterate over a table: keys, float32 embeddings, optimizer states or None, scores."""
        for keys, parts in self.hotbed.export(table_id, batch_size):
            states = self._states(table_id, parts)
            yield (
                keys.to(device),
                parts["weight"].float().to(device),
                None if states is None else states.to(device),
                parts["scores"].to(device),
            )

    def incremental_dump(self, table_id: int, threshold: int, pg: Optional[Any]) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return the keys whose score (or time, if keys have one) is at least ``threshold``, and their float32 rows.

        With a process group of several ranks, each rank gets the rows of all ranks.
        """
        keys, values, _, _ = self.delta(table_id, threshold, pg, 0)
        return keys, values

    def delta(
        self, table_id: int, threshold: int, pg: Optional[Any], now: int
    ) -> Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor], torch.Tensor]:
        """Return an incremental dump's keys, rows, states and scores on the CPU, as :class:`.DeltaDumpResult` has them.

        Args:
            table_id: number of the table.
            threshold: lowest score, or time if keys have one.
            pg: process group whose ranks' rows are gathered.
            now: the time from which ages count.
        """
        strategy, dim = _strategy(self.hotbed.options[table_id]), self.embedding_dim(table_id)
        by_time = {"min_time": threshold} if isinstance(strategy, tuple) else {"min_score": threshold}
        width = self._optimizer.get_ckpt_state_dim(dim)
        cpu: Dict[str, Any] = {"device": "cpu"}
        words = (0, len(strategy)) if isinstance(strategy, tuple) else (0,)
        columns: List[List[torch.Tensor]] = [
            [torch.empty(0, dtype=torch.int64, **cpu)],
            [torch.empty(0, dim, **cpu)],
            [torch.empty(0, width, **cpu)],
            [torch.empty(words, dtype=torch.int64, **cpu)],
        ]
        for keys, parts in self.hotbed.export(table_id, BATCH_SIZE_PER_DUMP, **by_time):
            states = self._states(table_id, parts)
            scores = _scores_to_file(strategy, parts, now, 1, True)
            empty = columns[2][0].new_empty(keys.shape[0], 0) if states is None else states[:, :width]
            for column, part in zip(columns, (keys, parts["weight"].float(), empty, scores)):
                column.append(part.cpu())
        mine = [torch.cat(column) for column in columns]
        if pg is not None and dist.is_initialized() and dist.get_world_size(group=pg) > 1:
            everyone: List[Any] = [None] * dist.get_world_size(group=pg)
            dist.all_gather_object(everyone, mine, group=pg)
            mine = [torch.cat(column) for column in zip(*everyone)]
        keys, values, states, scores = mine
        return keys, values, states if width > 0 else None, scores.view(keys.shape[0], _words(strategy))

    def erase_keys(self, table_id: int, keys: torch.Tensor, mode: EvictedItemMode = EvictedItemMode.DISCARD) -> int:
        """Remove keys of a table; see :meth:`.BatchedDynamicEmbeddingTablesV2.erase`."""
        return self.hotbed.erase_rows(table_id, keys, EvictedItemMode.RETAIN_KEY in mode)

    erase = erase_keys

    def pop_evicted_keys(self, table_id: int) -> torch.Tensor:
        """Return the keys that were evicted since the last call; see :meth:`.Tables.pop_evicted`."""
        return self.hotbed.pop_evicted(table_id)

    def pop_erased_keys(self, table_id: int) -> torch.Tensor:
        """Return the erased keys that were to be retained since the last call."""
        return self.hotbed.pop_erased(table_id)

    def check_delta(
        self,
        table_id: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        optimizer_states: Optional[torch.Tensor],
        scores: Optional[torch.Tensor],
        content: ReplayContent,
    ) -> None:
        """Check the columns of :meth:`replay_increment`.

        Raises:
            ValueError: a column has the wrong shape or is missing, or a key occurs twice.
        """
        name, dim = self.hotbed.tables[table_id].name, self.embedding_dim(table_id)
        strategy = _strategy(self.hotbed.options[table_id])
        n, width = keys.numel(), self._optimizer.get_ckpt_state_dim(dim)
        wanted: List[Tuple[str, Optional[torch.Tensor], int]] = [("values", values, dim)]
        if ReplayContent.OPTIMIZER_STATE in content and width > 0:
            wanted.append(("optimizer_states", optimizer_states, width))
        if ReplayContent.SCORE in content:
            wanted.append(("scores", scores, _words(strategy)))
        for what, column, columns in wanted:
            if column is None or column.shape[:1] != (n,) or column.numel() != n * columns:
                shape = None if column is None else tuple(column.shape)
                raise ValueError(f"replay_increment: table {name!r}: {what} have the shape {shape}, not {(n, columns)}")
        refuse_duplicates(keys, f"replay_increment: table {name!r}")

    def replay_increment(
        self,
        table_id: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        optimizer_states: Optional[torch.Tensor] = None,
        scores: Optional[torch.Tensor] = None,
        slot_index: Optional[torch.Tensor] = None,
        insert_score: int = 1,
        content: ReplayContent = ReplayContent.ALL,
        timestamp: Optional[int] = None,
    ) -> ReplayStats:
        """Insert or overwrite rows of an incremental dump by key.

        Args:
            table_id: number of the table.
            keys: as in :class:`.DeltaDumpResult`.
            values: likewise.
            optimizer_states: likewise.
            scores: likewise.
            slot_index: ignored: rows are found by key.
            insert_score: score of the rows of a CUSTOMIZED table without ``ReplayContent.SCORE``.
            content: which of states and scores are written.  A row keeps its states otherwise, and a new one gets the
                initial states; scores are those of a key that was just inserted.
            timestamp: the time from which ages count, in microseconds; None: the table's own.

        Raises:
            ValueError: as :meth:`check_delta`.
        """
        self.check_delta(table_id, keys, values, optimizer_states, scores, content)
        strategy = _strategy(self.hotbed.options[table_id])
        timed = score_strategy_has_timestamp_column(strategy)
        now = self.hotbed.now(table_id) if timed or strategy in _STEPS else 0
        with_scores = ReplayContent.SCORE in content and scores is not None
        if with_scores and timed and scores is not None:  # no age is 0: they count from the next time
            columns = strategy if isinstance(strategy, tuple) else (strategy,)
            ages = scores.view(-1, len(columns))[:, columns.index(DynamicEmbScoreStrategy.TIMESTAMP)]
            now = max(now + 1, 0 if timestamp is None else timestamp, int(ages.max()) + 1 if ages.numel() > 0 else 0)
            self.hotbed.set_time(now - 1)
        with_states = ReplayContent.OPTIMIZER_STATE in content and optimizer_states is not None
        for begin in range(0, keys.numel(), BATCH_SIZE_PER_DUMP):
            cut = slice(begin, begin + BATCH_SIZE_PER_DUMP)
            given: Dict[str, torch.Tensor] = {"weight": values[cut]}
            if with_states and self.hotbed.state_names() and optimizer_states is not None:
                given.update(self._given(table_id, optimizer_states[cut].float()))
            if with_scores and scores is not None:
                block = scores[cut].view(-1, _words(strategy))
                given.update(
                    _scores_from_file(strategy, strategy if isinstance(strategy, tuple) else (), block, now, 1, True)
                )
            else:
                given.update(_fresh_scores(strategy, values[cut].shape[0], now, insert_score))
            self.hotbed.set_rows(table_id, keys[cut], given, fill=True)
        return ReplayStats(upserted=keys.numel())

    def fill_tables(self, load_factor: float = 0.95, tolerance: float = 1e-5) -> None:
        """Insert random keys until each table has ``load_factor`` of its capacity, at most 0.95."""
        for t in range(self.num_tables):
            target = int(min(load_factor, 0.95) * self.hotbed.capacity(t))
            for _ in range(4):  # a table that evicts may not keep every key
                missing = target - self.hotbed.size(t)
                if missing <= tolerance * target:
                    break
                for n in [1 << 20] * (missing >> 20) + [missing & ((1 << 20) - 1)]:
                    keys = torch.randint(0, 2**63 - 1, (n,), dtype=torch.int64, device="cpu")
                    self.hotbed.offer(t, torch.unique(keys))

    # --- files ----------------------------------------------------------------------------------

    def dump(
        self,
        table_id: int,
        meta_json_file_path: str,
        emb_key_path: str,
        embedding_file_path: str,
        score_file_path: Optional[str],
        opt_file_path: Optional[str],
        include_optim: bool = True,
        include_meta: bool = True,
        current_score: Optional[int] = None,
        timestamp: int = 0,
        now: int = 0,
    ) -> None:
        """Write a table to dynamicemb's files: int64 keys, float32 rows and states, int64 scores.

        A TIMESTAMP score is written as the key's age in nanoseconds, since clocks differ between runs; ``now`` is the
        time from which ages count, in microseconds, the same for all ranks.  The JSON file has it as ``hotbed_time``.
        """
        options = self.hotbed.options[table_id]
        strategy = _strategy(options)
        timed = score_strategy_has_timestamp_column(strategy)
        now = max(now, self.hotbed.now(table_id)) if timed else 0
        if include_meta:
            meta = {
                **self._optimizer.get_opt_args(),
                "evict_strategy": str(options.evict_strategy.value),
                "dist_type": options.dist_type,
            }
            if current_score is not None:
                meta["step_score"] = current_score
            if timed:
                meta["hotbed_time"] = now
            if isinstance(strategy, tuple):
                meta["score_strategy"] = ",".join(part.name for part in strategy)
            with open(meta_json_file_path, "w") as file:
                json.dump(meta, file)
        width = self._optimizer.get_ckpt_state_dim(self.embedding_dim(table_id))
        files = [open(p, "wb") if p else None for p in (emb_key_path, embedding_file_path, score_file_path)]
        files.append(open(opt_file_path, "wb") if include_optim and opt_file_path else None)
        try:
            for keys, parts in self.hotbed.export(table_id, BATCH_SIZE_PER_DUMP):
                states = self._states(table_id, parts)
                columns = (
                    keys,
                    parts["weight"].float(),
                    _scores_to_file(strategy, parts, now),
                    None if states is None else states[:, :width],
                )
                for to, column in zip(files, columns):
                    if to is not None and column is not None:
                        to.write(column.contiguous().cpu().numpy().tobytes())
        finally:
            for to in files:
                if to is not None:
                    to.close()

    def load(
        self,
        table_id: int,
        meta_json_file_path: str,
        emb_key_path: str,
        embedding_file_path: str,
        score_file_path: Optional[str],
        opt_file_path: Optional[str],
        include_optim: bool = True,
        timestamp: int = 0,
        keep: Optional[Any] = None,
    ) -> Optional[int]:
        """Read a table from dynamicemb's files; rows of other keys stay; see :meth:`dump`.

        Args:
            table_id: number of the table.
            meta_json_file_path: path of the JSON file, which says what the other files contain.
            emb_key_path: path of the file of keys.
            embedding_file_path: path of the file of rows.
            score_file_path: path of the file of scores; None: the rows get the current score.
            opt_file_path: path of the file of states; None: the rows get the initial state.
            include_optim: read the states, if the dump's optimizer is the tables' optimizer.
            timestamp: ignored.
            keep: function that maps keys to a mask of the keys that this rank owns; None: all.

        Returns:
            The dump's step, or None.

        Raises:
            FileError: the file of keys or of rows does not exist.
            ValueError: the dump has another order of eviction, ``dist_type`` or dim, or a type that Hotbed does not
                have; it has states, and the JSON file does not name their optimizer or lacks one of its parameters;
                its files' lengths do not match; or a key occurs twice.  Nothing is loaded.
        """
        meta = read_meta(meta_json_file_path)
        paths = (emb_key_path, embedding_file_path, score_file_path, opt_file_path)
        dumps = [self.open_dump(table_id, meta, paths, include_optim)]
        self.check_dumps(table_id, dumps, keep)
        return self.load_dumps(table_id, meta, dumps, keep, include_optim)

    def open_dump(
        self, table_id: int, meta: Dict[str, Any], paths: Sequence[Optional[str]], include_optim: bool
    ) -> Dump:
        """Open and check a rank's files of a table, keys, rows, scores and states; see :meth:`load`."""
        options, dim = self.hotbed.options[table_id], self.embedding_dim(table_id)
        self._check_meta(meta, options)
        width = self._optimizer.get_ckpt_state_dim(dim)
        words = _words(options.score_strategy)
        row_wise = self.hotbed.state_dims(table_id) == [1]
        keys, values, scores, states = paths
        given = include_optim and width > 0 and states is not None and os.path.exists(states)
        if given and "opt_type" not in meta:
            raise ValueError(
                f"{states}: the table's JSON file has no 'opt_type', so the states' optimizer is unknown; "
                "add it, or load with optim=False"
            )
        wanted = given and self._has_its_states(meta)
        if wanted:
            self._optimizer.check_opt_args(meta)
        return Dump(meta, str(keys), str(values), scores, states if wanted else None, dim, words, width, row_wise)

    def _has_its_states(self, meta: Dict[str, Any]) -> bool:
        return bool(meta.get("opt_type") == self._optimizer.get_opt_args()["opt_type"])

    def load_dumps(
        self, table_id: int, meta: Dict[str, Any], dumps: List[Dump], keep: Optional[Any], include_optim: bool
    ) -> Optional[int]:
        """Load a table from the files of one rank or of several; see :meth:`load`."""
        strategy, table = _strategy(self.hotbed.options[table_id]), self.hotbed.tables[table_id]
        base = self._base(table_id, meta, dumps)
        order = _pair(meta, strategy)
        inexact = 0
        for dump in dumps:
            for keys, values, scores, states in dump.batches(BATCH_SIZE_PER_DUMP):
                rounded = values.to(table.dtype)
                inexact += int(((rounded.float() != values.float()) & ~values.isnan()).sum())
                given = {"weight": rounded}
                if scores is not None:
                    given.update(_scores_from_file(strategy, order, scores, base))
                if states is not None:
                    given.update(self._given(table_id, states))
                mask = None if keep is None else keep(keys)
                if mask is not None:
                    keys, given = keys[mask], {name: part[mask] for name, part in given.items()}
                self.hotbed.set_rows(table_id, keys, given, fill=True)
        if inexact > 0:
            warnings.warn(f"table {table.name!r}: {inexact} elements are rounded to {table.dtype}", stacklevel=3)
        if score_strategy_has_timestamp_column(strategy):
            self.hotbed.set_time(base)
        if any(dump.has_states for dump in dumps):
            self._optimizer.set_opt_args(meta)
            self._set_steps(int(meta.get("iters", 0)))
        elif include_optim and self._optimizer.get_ckpt_state_dim(table.dim) > 0:
            other = "opt_type" in meta and not self._has_its_states(meta)
            of = f"; the dump's states are of {meta['opt_type']}" if other else ""
            name = self._optimizer.kind.value
            warnings.warn(f"{dumps[0].path}: no optimizer states of {name} are loaded{of}", stacklevel=3)
        step = meta.get("step_score")
        return None if step is None else int(step)

    def check_dumps(self, table_id: int, dumps: List[Dump], keep: Optional[Any]) -> None:
        """Check the files of a table together, before any is loaded.

        Raises:
            ValueError: a key occurs twice, or an optional file exists for some ranks only.
            CorruptError: a score is negative.
        """
        for dump in dumps:
            dump.refuse_negative_scores(self.hotbed.tables[table_id].name)
        for what in ("has_scores", "has_states"):
            if len({getattr(dump, what) for dump in dumps if len(dump) > 0}) > 1:
                raise ValueError(f"{dumps[0].path}: {what[4:]} exist for some ranks only")
        keys = torch.cat([dump.keys() for dump in dumps])
        name = self.hotbed.tables[table_id].name
        refuse_duplicates(keys if keep is None else keys[keep(keys)], f"{dumps[0].path}: table {name!r}")

    def _check_meta(self, meta: Dict[str, Any], options: DynamicEmbTableOptions) -> None:
        order = str(options.evict_strategy.value)
        if meta.get("evict_strategy") not in (None, order):
            raise ValueError(f"Evict strategy mismatch: the dump has {meta['evict_strategy']}, the table {order}")
        if meta.get("dist_type", "roundrobin") != options.dist_type:
            raise ValueError(
                f"Input dist_type mismatch: the dump has {meta.get('dist_type', 'roundrobin')!r}, the table "
                f"{options.dist_type!r}; load it into tables with its dist_type"
            )

    def _base(self, table_id: int, meta: Dict[str, Any], dumps: List[Dump]) -> int:
        """Return the time from which a dump's ages are subtracted: not before the dump's own, nor the table's.

        So thresholds of the dump's process select what is trained from now on, as they would have done there.
        """
        strategy = _strategy(self.hotbed.options[table_id])
        if not score_strategy_has_timestamp_column(strategy):
            return 0
        base = max(self.hotbed.now(table_id), int(meta.get("hotbed_time", 0)))
        if isinstance(strategy, tuple):
            return base
        return max(base, *(dump.oldest() // _CLOCK + 1 for dump in dumps))

    def advance_steps(self, steps: int) -> None:
        """Set the number of steps to one of replayed states, unless these tables have had more."""
        self._set_steps(max(steps, int(self.hotbed.clock()["optimizer_steps"])))

    def _set_steps(self, steps: int) -> None:
        """Set the number of steps of an optimizer that counts them."""
        optimizer = self.hotbed.optimizer
        if optimizer is not None and optimizer_info(optimizer).counts_steps:
            rate = self._optimizer.group["lr"]
            self.hotbed.set_clock({**self.hotbed.clock(), "optimizer_steps": steps, "learning_rate": rate})


def _strategy(options: DynamicEmbTableOptions) -> Any:
    assert options.score_strategy is not None
    return options.score_strategy


def _words(strategy: Any) -> int:
    """Return the number of scores of a key."""
    return len(strategy) if isinstance(strategy, tuple) else 1


def _scores_to_file(
    strategy: Any, parts: Dict[str, torch.Tensor], now: int, unit: int = _CLOCK, ages: bool = False
) -> torch.Tensor:
    """Return scores ``[n]``, or ``[n, 2]`` in the order of a pair of strategies.

    Args:
        strategy: the table's.
        parts: of the rows.
        now: the time from which ages count.
        unit: units of the result in a microsecond.
        ages: whether a pair's times are ages, as a single TIMESTAMP always is.
    """
    if strategy == DynamicEmbScoreStrategy.TIMESTAMP:
        return (now - parts["scores"]) * unit
    if isinstance(strategy, tuple):
        by = {
            DynamicEmbScoreStrategy.TIMESTAMP: (now - parts["times"] if ages else parts["times"]) * unit,
            DynamicEmbScoreStrategy.LFU: parts["scores"],
        }
        return torch.stack([by[s] for s in strategy], dim=1)
    return parts["scores"]


def _fresh_scores(strategy: Any, n: int, now: int, custom: int) -> Dict[str, torch.Tensor]:
    """Return the scores of rows that count as just inserted."""
    if isinstance(strategy, tuple):
        return {"scores": torch.ones(n, dtype=torch.int64), "times": torch.full((n,), now, dtype=torch.int64)}
    fresh = {DynamicEmbScoreStrategy.CUSTOMIZED: custom, DynamicEmbScoreStrategy.LFU: 1}.get(strategy, now)
    return {"scores": torch.full((n,), fresh, dtype=torch.int64)}


def _pair(meta: Dict[str, Any], strategy: Any) -> Tuple[DynamicEmbScoreStrategy, ...]:
    """Return the order of a dump's two scores: the JSON file's, or else the table's."""
    if not isinstance(strategy, tuple):
        return ()
    text = meta.get("score_strategy", ",".join(part.name for part in strategy))
    known = {part.name: part for part in strategy}
    if sorted(str(text).split(",")) != sorted(known):
        raise ValueError(f"the dump's score_strategy is {text!r}, not one of {','.join(known)} in either order")
    return tuple(known[name] for name in str(text).split(","))


def _scores_from_file(
    strategy: Any,
    order: Tuple[DynamicEmbScoreStrategy, ...],
    column: torch.Tensor,
    now: int,
    unit: int = _CLOCK,
    ages: bool = False,
) -> Dict[str, torch.Tensor]:
    """Return the parts of rows that :func:`_scores_to_file` has written; ``order``: of a pair."""

    def micro(times: torch.Tensor) -> torch.Tensor:
        return torch.div(times, unit, rounding_mode="floor")

    if strategy == DynamicEmbScoreStrategy.TIMESTAMP:
        return {"scores": now - micro(column.squeeze(1))}
    if isinstance(strategy, tuple):
        by = {s: column[:, i] for i, s in enumerate(order)}
        times = micro(by[DynamicEmbScoreStrategy.TIMESTAMP])
        return {"scores": by[DynamicEmbScoreStrategy.LFU], "times": now - times if ages else times}
    return {"scores": column.squeeze(1)}


class DynamicEmbStorage(_Rows):
    """Tables whose rows are in one tier, or the lower tier of tables with a cache."""


class HybridStorage(_Rows):
    """Tables with two tiers, where each row is in one of them."""

    @property
    def tables(self) -> List[DynamicEmbTableState]:
        """Return the tiers: device memory, host memory."""
        return [DynamicEmbTableState(self.hotbed, "upper"), DynamicEmbTableState(self.hotbed, "lower")]


def flush_cache(cache: DynamicEmbCache, storage: Any) -> None:
    """Write changed rows of the upper tier to the lower tier, or to the external storage."""
    cache.hotbed.flush()


def export_keys_values_iter(
    state: DynamicEmbTableState, device: torch.device, batch_size: int = 65536, table_id: int = 0
) -> Iterator[Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor], torch.Tensor]]:
    """Iterate over one tier of a table: keys, float32 embeddings, None, scores."""
    for keys, parts in state.key_index_map.export(table_id, batch_size):
        yield keys.to(device), parts["weight"].float().to(device), None, parts["scores"].to(device)


def _by_slot(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise.

    Raises:
        UnsupportedError: always; a ``NotImplementedError``.
    """
    raise UnsupportedError(
        "rows are not read by slot numbers of dynamicemb's buffers; read them by key, with find(), or with "
        "export_keys_values()"
    )


load_from_flat = load_from_flat_single_table = _flat_row_indices_from_slots_and_scores = _by_slot


__all__ = [
    "DynamicEmbCache",
    "DynamicEmbStorage",
    "DynamicEmbTableState",
    "HybridStorage",
    "Storage",
    "export_keys_values_iter",
    "flush_cache",
    "load_from_flat",
    "load_from_flat_single_table",
]
