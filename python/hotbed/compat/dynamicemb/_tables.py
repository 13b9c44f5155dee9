"""The C storage of a module: tables with dynamicemb's options."""

from __future__ import annotations

import collections
import warnings
from typing import Any, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from hotbed._c import ffi, lib, new
from hotbed.compat.dynamicemb._external import Bridge
from hotbed.compat.dynamicemb.dynamicemb_config import (
    DynamicEmbPoolingMode,
    DynamicEmbScoreStrategy,
    DynamicEmbTableOptions,
    EvictedItemMode,
    complete_initializer_args,
    get_eviction_score_strategy,
)
from hotbed.compat.dynamicemb.embedding_admission import FrequencyAdmissionStrategy, ProbabilisticAdmissionStrategy
from hotbed.compat.dynamicemb.optimizer import BaseDynamicEmbeddingOptimizer
from hotbed.compat.dynamicemb.types import DynamicEmbInitializerArgs, DynamicEmbInitializerMode
from hotbed.errors import ArgumentError, CorruptError, FileError, StateError, UnsupportedError, wrong
from hotbed.torch._storage import Batch, Storage, indices
from hotbed.torch.config import Evict, PoolingType, Table

POOLING = {
    DynamicEmbPoolingMode.SUM: PoolingType.SUM,
    DynamicEmbPoolingMode.MEAN: PoolingType.MEAN,
    DynamicEmbPoolingMode.NONE: PoolingType.NONE,
}
_INITIALIZERS = {
    DynamicEmbInitializerMode.NORMAL: lib.HOTBED_INIT_NORMAL,
    DynamicEmbInitializerMode.TRUNCATED_NORMAL: lib.HOTBED_INIT_TRUNCATED_NORMAL,
    DynamicEmbInitializerMode.UNIFORM: lib.HOTBED_INIT_UNIFORM,
    DynamicEmbInitializerMode.CONSTANT: lib.HOTBED_INIT_CONSTANT,
    DynamicEmbInitializerMode.DEBUG: lib.HOTBED_INIT_DEBUG,
}
_SCORES = {
    DynamicEmbScoreStrategy.TIMESTAMP: lib.HOTBED_SCORE_TIMESTAMP,
    DynamicEmbScoreStrategy.STEP: lib.HOTBED_SCORE_STEP,
    DynamicEmbScoreStrategy.CUSTOMIZED: lib.HOTBED_SCORE_CUSTOM,
    DynamicEmbScoreStrategy.LFU: lib.HOTBED_SCORE_LFU,
    DynamicEmbScoreStrategy.NO_EVICTION: lib.HOTBED_SCORE_STEP,
}
_CHECKS = ("error", "warn", "ignore")  # by DynamicEmbCheckMode
#: What to do, by the cause of an error.
_ADVICE = {
    "TABLE_FULL": "; use a larger max_capacity",
    "ALL_PINNED": "; use a max_capacity of twice the distinct keys of these batches, and call eval() for forwards "
    "without backward",
    "HELD": ": run their backwards",
}
#: Capacity limit of tables that never evict: above any memory size, so that only memory limits growth.
_NO_LIMIT = 2**35
#: Number of forwards and prefetches that may wait for their backward.
MAX_IN_FLIGHT = 16


def initializer(args: DynamicEmbInitializerArgs) -> Dict[str, Any]:
    """Return the fields of a ``hotbed_initializer``."""
    args = complete_initializer_args(args)
    fields: Dict[str, Any] = {"kind": _INITIALIZERS[args.mode]}
    if args.mode == DynamicEmbInitializerMode.CONSTANT:
        fields["value"] = args.value
    elif args.mode in (DynamicEmbInitializerMode.NORMAL, DynamicEmbInitializerMode.TRUNCATED_NORMAL):
        fields.update(mean=args.mean, std=args.std_dev)
    if args.mode in (DynamicEmbInitializerMode.UNIFORM, DynamicEmbInitializerMode.TRUNCATED_NORMAL):
        fields.update(lower=0.0 if args.lower is None else args.lower, upper=1.0 if args.upper is None else args.upper)
    return fields


def _admission(name: str, options: DynamicEmbTableOptions) -> Dict[str, Any]:
    strategy, counter = options.admit_strategy, options.get_counter()
    if strategy is None:
        return {}
    if not isinstance(strategy, (FrequencyAdmissionStrategy, ProbabilisticAdmissionStrategy)):
        raise UnsupportedError(
            f"table {name!r}: admit_strategy {type(strategy).__name__} is not FrequencyAdmissionStrategy or "
            "ProbabilisticAdmissionStrategy; Hotbed decides on the device and calls no Python",
            table=name,
            parameter="admit_strategy",
            value=strategy,
        )
    if strategy.initializer_args is not None:
        warnings.warn(
            f"table {name!r}: {type(strategy).__name__}.initializer_args has no effect; a key that is not admitted "
            "reads as the row that it would get if it were admitted, by the table's initializer_args",
            stacklevel=5,
        )
    if isinstance(strategy, ProbabilisticAdmissionStrategy):
        chance = strategy.probability
        return {"admission": lib.HOTBED_ADMIT_PROBABILISTIC, "admission_probability": chance} if chance < 1.0 else {}
    if strategy.threshold <= 1:
        return {}
    return {
        "admission": lib.HOTBED_ADMIT_FREQUENCY,
        "admission_threshold": strategy.threshold,
        "admission_capacity": 0 if counter is None else int(counter.capacity),
    }


def describe(
    name: str, options: DynamicEmbTableOptions, features: int, upper_capacity: int, stochastic_rounding: bool
) -> Table:
    """Describe a table as Hotbed's modules do.

    Raises:
        ArgumentError: ``dim`` or ``max_capacity`` is missing or invalid.
        UnsupportedError: Hotbed does not have the admission strategy.
    """
    if options.dim is None or options.max_capacity is None:
        raise ArgumentError(
            f"table {name!r}: dim {options.dim}, max_capacity {options.max_capacity}: both are needed",
            table=name,
            parameter="dim" if options.dim is None else "max_capacity",
        )
    most, strategy = int(options.max_capacity), options.score_strategy
    assert strategy is not None
    capacity = most if options.init_capacity is None else min(int(options.init_capacity), most)
    if not 1 <= int(options.dim) <= 4096 or capacity < 1:
        raise wrong("dim", options.dim, f"is not in [1, 4096], or {capacity} rows are below 1", table=name)
    evicts = get_eviction_score_strategy(strategy) != DynamicEmbScoreStrategy.NO_EVICTION
    if options.external_storage is not None and upper_capacity > 0:
        evicts, most = False, capacity  # the store keeps all keys
    grows = 0 if evicts and most == capacity else most if evicts else _NO_LIMIT
    extra: Dict[str, Any] = {
        "initializer": initializer(options.initializer_args),
        "eval_initializer": initializer(options.eval_initializer_args),
        "score": (
            lib.HOTBED_SCORE_TIMESTAMP_LFU
            if isinstance(strategy, tuple)
            else _SCORES[get_eviction_score_strategy(strategy)]
        ),
        "upper_capacity": upper_capacity,
        "rounding": lib.HOTBED_ROUND_STOCHASTIC if stochastic_rounding else lib.HOTBED_ROUND_NEAREST,
        **_admission(name, options),
    }
    return Table(
        options,
        name,
        capacity,
        int(options.dim),
        options.embedding_dtype or torch.float32,
        [f"{name}.{i}" for i in range(features)],
        PoolingType.NONE,
        True,
        evict=Evict.LOWEST if evicts else Evict.NEVER,
        most_rows=0 if options.external_storage is not None and upper_capacity > 0 else grows,
        extra=extra,
    )


def integers(name: str, given: Any) -> torch.Tensor:
    """Return keys or offsets as int64, contiguous: uint64 keys by their bits; errors as of ``indices()``."""
    is_unsigned = isinstance(given, torch.Tensor) and given.dtype == torch.uint64
    return indices(name, given.view(torch.int64) if is_unsigned else given)


class Retained:
    """The keys of a table that had a row since the last :meth:`pop`."""

    def __init__(self) -> None:
        self._had = torch.empty(0, dtype=torch.int64, device="cpu")
        self._more: List[torch.Tensor] = []

    def note(self, keys: torch.Tensor) -> None:
        """Note keys that have a row."""
        self._more.append(keys.cpu())
        if sum(m.shape[0] for m in self._more) > (1 << 20) + self._had.shape[0]:
            self._merge()

    def _merge(self) -> None:
        self._had, self._more = torch.unique(torch.cat([self._had, *self._more])), []

    def forget(self, keys: torch.Tensor) -> None:
        """Forget keys that were erased."""
        self._merge()
        self._had = self._had[~torch.isin(self._had, keys.cpu())]

    def pop(self, there: torch.Tensor) -> torch.Tensor:
        """Return the noted keys that have no row any more, given the keys that have one."""
        self._merge()
        gone: torch.Tensor = self._had[~torch.isin(self._had, there)]
        self._had = there
        return gone


class Tables(Storage):
    """A storage whose forwards use the prefetched batches in order.

    Args:
        tables: results of :func:`describe`.
        options: the tables' options.
        pooling: pooling of all tables.
        optimizer: optimizer of all tables.
        device: "cpu", or a CUDA device with an index.
        output_dtype: dtype of outputs and gradients.
        mode: fields of ``hotbed_storage_options`` that choose where rows are kept.
        bridge: plug-in for a storage that keeps all rows, or None.
    """

    advice = _ADVICE
    names: Mapping[str, str] = {}

    def __init__(
        self,
        tables: Sequence[Table],
        options: Sequence[DynamicEmbTableOptions],
        pooling: PoolingType,
        optimizer: BaseDynamicEmbeddingOptimizer,
        device: torch.device,
        output_dtype: torch.dtype,
        mode: Mapping[str, Any],
        bridge: Optional[Bridge],
    ) -> None:
        unsigned = options[0].index_type == torch.uint64
        fields = {**mode, "key_type": lib.HOTBED_KEY_U64 if unsigned else lib.HOTBED_KEY_I64}
        self._bridge = bridge
        checks = _CHECKS[min(int(o.safe_check_mode) for o in options)]  # the strictest
        super().__init__(tables, pooling, optimizer.hotbed(), device, 0, output_dtype, MAX_IN_FLIGHT, fields, checks)
        self.options = list(options)
        if bridge is not None:
            numbers = range(len(tables))
            bridge.lay_out([self.info(t) for t in numbers], [self.state_dims(t) for t in numbers])
        self.group = optimizer.group if optimizer.hotbed() is not None else None
        self.queue: Deque[int] = collections.deque()
        #: The keys of tables that evict and retain them.
        self._retained = {
            t: Retained()
            for t, o in enumerate(options)
            if EvictedItemMode.RETAIN_KEY in o.evicted_item_mode and tables[t].evict is Evict.LOWEST
        }
        self._erased: List[List[torch.Tensor]] = [[] for _ in tables]
        #: By slot of a prefetched batch: the caller's keys, from which other int64 keys were made, and their version.
        self._given: Dict[int, Tuple[torch.Tensor, int]] = {}

    def _complete(self, options: Any) -> None:
        if self._bridge is not None:
            options.external = self._bridge.open(options)
            self.after.append(self._bridge.closer())

    def check(self, status: int) -> None:
        """Raise the exception of a status; of a store that failed, with its reason, from the storage's exception."""
        try:
            super().check(status)
        except (FileError, CorruptError) as error:
            if self._bridge is None:
                raise
            raise self._bridge.raised(error)  # noqa: B904 - it has a cause

    def _batch_is_dropped(self) -> str:
        return (
            f"backward: the batch was dropped: only the last {len(self.slots)} forwards may wait for their backward; "
            "run each forward's backward before later forwards, and call eval() for forwards without backward; or it "
            "had its backward already, or reset_cache_states() has dropped it"
        )

    # --- batches --------------------------------------------------------------------------------

    def _faults(self, stream: Any, given: Optional[Batch] = None) -> None:
        if self._bridge is not None and self._bridge.failure is not None:
            self.check(lib.hotbed_stream_sync(stream))  # kernels report the failure later
            self._bridge.failure = None
        super()._faults(stream)  # features have no names here

    def _load(self, table: int) -> float:
        return self.options[table].max_load_factor if self.tables[table].evict is Evict.LOWEST else 1.0

    def prefetch(
        self,
        given: Batch,
        counts: Optional[torch.Tensor] = None,
        indices: Optional[torch.Tensor] = None,
    ) -> None:
        """Look a batch up ahead; forwards use batches in this order.

        Args:
            given: without weights.
            counts: ``[n]`` int32: number of occurrences that each key counts for.
            indices: the caller's keys, of which the batch's keys are made; for :meth:`converted`.

        Raises:
            StateError: too many batches wait for their forward.
        """
        with self.lock:
            if len(self.queue) >= len(self.slots) - 1:
                raise StateError(f"{len(self.queue)} prefetched batches wait for their forward", value=len(self.queue))
            stream = self.streams.current()
            self._grow(given.keys.shape[0], stream, lambda: self._keys_by_table(given))
            self.queue.append(self._prefetch(given, stream, counts))
            if indices is not None and indices.data_ptr() != given.keys.data_ptr() and not indices.is_inference():
                self._given[self.queue[-1]] = indices, indices._version
            if self._retained:
                self._note_batch(given)

    def converted(self, keys: torch.Tensor) -> Optional[torch.Tensor]:
        """Return the int64 keys that the oldest prefetch made of ``keys``; None: of other keys, or they have changed.

        So a forward has the same keys as its prefetch without a comparison, for which it would wait for a GPU.
        """
        with self.lock:
            given, version = self._given.get(self.queue[0], (None, 0)) if self.queue else (None, 0)
            if given is None or keys.is_inference() or keys._version != version:
                return None
            is_same = (
                keys.data_ptr() == given.data_ptr()
                and keys.dtype == given.dtype
                and keys.shape == given.shape
                and keys.stride() == given.stride()
            )
            return self.slots[self.queue[0]].tensors[0] if is_same else None

    def _prefetched(self, given: Batch) -> Optional[int]:
        if not self.queue:
            return None
        number = self.queue[0]
        slot, (keys, offsets, _, samples) = self.slots[number], given
        ahead, ends = slot.tensors[:2]
        assert ahead is not None and ends is not None
        if ahead.shape != keys.shape or slot.batch.batch_size != samples:
            raise StateError(
                f"the forward has {keys.shape[0]} keys of {samples} samples, not the oldest prefetch's "
                f"{ahead.shape[0]} of {slot.batch.batch_size}",
                value=keys.shape[0],
                limit=ahead.shape[0],
            )
        has_keys = ahead.data_ptr() == keys.data_ptr() or self._captures()
        # The offsets of a part of a KeyedJaggedTensor are computed at each use; on a GPU the keys' memory has to do.
        has_ends = self.streams.number >= 0 or ends.data_ptr() == offsets.data_ptr()
        if not (has_keys and has_ends) and not (torch.equal(ahead, keys) and torch.equal(ends, offsets)):
            raise StateError(
                f"the forward's {keys.shape[0]} keys or their offsets are not the oldest prefetch's; call forwards in "
                "the order of their prefetches, with the same tensors",
                value=keys.shape[0],
            )
        self.queue.popleft()
        self._given.pop(number, None)
        return number

    def cancel(self) -> None:
        """Drop all batches."""
        with self.lock:
            self.queue.clear()
            self._given.clear()
            super().cancel()

    # --- contents -------------------------------------------------------------------------------

    def capacity(self, table: int) -> int:
        """Return the number of keys for which memory is allocated."""
        return int(self.info(table).capacity)

    def now(self, table: int) -> int:
        """Return the latest score of a TIMESTAMP, (TIMESTAMP, LFU) or STEP table."""
        value = ffi.new("uint64_t *")
        self._call(lib.hotbed_storage_now, self._c, table, value)
        return int(value[0])

    def set_time(self, time: int) -> None:
        """Make later prefetches give times after ``time``, in microseconds; times never go back."""
        self.set_clock({**self.clock(), "time": time})

    def set_score(self, table: int, value: int) -> None:
        """Set the score of later prefetches of a CUSTOMIZED table."""
        self._call(lib.hotbed_storage_set_score, self._c, table, value)

    # --- keys that leave ------------------------------------------------------------------------

    def _note_batch(self, batch: Batch) -> None:
        """Note which keys of a batch have a row, of tables that retain evicted keys; waits for the device."""
        if self._captures():
            raise UnsupportedError(
                "evicted_item_mode RETAIN_KEY waits for the device, and cannot be captured in a graph"
            )
        ends = [0]
        for n in self._keys_by_table(batch):
            ends.append(ends[-1] + n)
        for t in self._retained:
            self._note(t, batch.keys[ends[t] : ends[t + 1]])

    def _note(self, table: int, keys: torch.Tensor) -> None:
        if table in self._retained and keys.numel() > 0:
            distinct = torch.unique(keys.to(self.device))
            self._retained[table].note(distinct[self.found(table, distinct)])

    def set_rows(self, table: int, keys: torch.Tensor, given: Mapping[str, torch.Tensor], fill: bool = False) -> None:
        """Insert or overwrite rows; see :meth:`.Storage.set_rows`."""
        super().set_rows(table, keys, given, fill)
        self._note(table, keys)

    def erase_rows(self, table: int, keys: torch.Tensor, retain: bool) -> int:
        """Remove keys and their rows.

        Args:
            table: number of the table.
            keys: int64.
            retain: keep the removed keys for :meth:`pop_erased`.

        Returns:
            The number of keys that were removed.

        Raises:
            StateError: batches that wait for their backward use some of the keys; all others are removed.
        """
        keys = torch.unique(integers("keys", keys).to(self.device))
        there = keys[self.found(table, keys)]
        try:
            return self.erase(table, there)
        finally:
            gone = there[~self.found(table, there)]
            if table in self._retained:
                self._retained[table].forget(gone)
            if retain:
                self._erased[table].append(gone.cpu())

    def pop_evicted(self, table: int) -> torch.Tensor:
        """Return the keys that were evicted since the last call, ascending; empty if the table retains none."""
        if table not in self._retained:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        return self._retained[table].pop(self.keys(table).view(torch.int64).cpu())

    def pop_erased(self, table: int) -> torch.Tensor:
        """Return the erased keys that were to be retained since the last call, ascending."""
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        erased: torch.Tensor = torch.unique(torch.cat([none, *self._erased[table]]))
        self._erased[table] = []
        return erased

    def flush(self) -> None:
        """Write changed rows of the upper tier back."""
        self._call(lib.hotbed_storage_flush, self._c, wait=True)

    def reset(self) -> None:
        """Flush and empty the upper tier, and drop all batches."""
        with self.lock:
            self.cancel()
            self._call(lib.hotbed_storage_reset, self._c, wait=True)

    def offer(self, table: int, keys: torch.Tensor) -> None:
        """Insert ``[n]`` distinct keys with initial rows; a table that evicts may keep only some of them."""
        keys = keys.to(device=self.device, dtype=torch.int64).contiguous()
        data = ffi.cast("void *", keys.data_ptr())
        self._call(lib.hotbed_storage_offer_rows, self._c, table, keys.shape[0], data, ffi.NULL, wait=True)
        self._note(table, keys)

    def found(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Return a mask ``[n]`` of the keys that have a row."""
        return self.has(table, keys.to(torch.int64)).to(self.device)

    def parts(self, table: int) -> List[str]:
        """Return the names of a row's parts."""
        timed = self.tables[table].extra["score"] == lib.HOTBED_SCORE_TIMESTAMP_LFU
        return ["weight", *self.state_names(), "scores", *(["times"] if timed else [])]

    def export(
        self, table: int, window: int, min_score: int = 0, min_time: int = 0, first: int = 0, end: Optional[int] = None
    ) -> Iterator[Tuple[torch.Tensor, Dict[str, torch.Tensor]]]:
        """Iterate over the rows of a table by windows of its slots.

        Args:
            table: number of the table.
            window: number of slots in a window.
            min_score: lowest score of the rows to return.
            min_time: lowest time, for a (TIMESTAMP, LFU) table.
            first: first slot.
            end: slot after the last one; None: all slots.

        Returns:
            Keys ``[n]`` int64 and the parts of their rows, on the tables' device; windows without keys are skipped.
        """
        last = ffi.new("uint64_t *")
        self._call(lib.hotbed_storage_export_end, self._c, table, last)
        stop = int(last[0]) if end is None else min(end, int(last[0]))
        for begin in range(first, stop, window):
            n = min(window, stop - begin)
            rows, parts = self._parts(table, n, self.parts(table))
            keys = torch.empty(n, dtype=torch.int64, device=self.device)
            count = torch.zeros(1, dtype=torch.int64, device=self.device)
            batch = new(
                "export",
                table=table,
                first=begin,
                slots=n,
                min_score=min_score,
                min_time=min_time,
                keys=ffi.cast("uint64_t *", keys.data_ptr()),
                count=ffi.cast("uint64_t *", count.data_ptr()),
                rows=rows[0],
            )
            self._call(lib.hotbed_storage_export, self._c, batch, wait=True)
            got = int(count.item())
            if got > 0:
                yield keys[:got], {name: part[:got] for name, part in parts.items()}

    def counts(self, table: int) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return the keys that admission counts, and how often each was seen, int64 on the CPU."""
        n = ffi.new("uint64_t *")
        with self.lock:
            stream = self.streams.ordered()
            lib.hotbed_storage_export_counts(self._c, table, 0, ffi.NULL, ffi.NULL, n, stream)
            keys, counts = (torch.empty(n[0], dtype=torch.int64, device="cpu") for _ in range(2))
            out = (ffi.cast("uint64_t *", t.data_ptr()) for t in (keys, counts))
            self.check(lib.hotbed_storage_export_counts(self._c, table, n[0], *out, n, stream))
        return keys, counts

    def set_counts(self, table: int, keys: torch.Tensor, counts: torch.Tensor) -> None:
        """Set the counts of keys that admission does not count yet."""
        keys = keys.to(device=self.device, dtype=torch.int64).contiguous()
        counts = counts.to(device=self.device, dtype=torch.int64).contiguous()
        data, given = ffi.cast("void *", keys.data_ptr()), ffi.cast("uint64_t *", counts.data_ptr())
        self._call(lib.hotbed_storage_import_counts, self._c, table, keys.shape[0], data, given, wait=True)
