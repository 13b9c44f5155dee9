"""One C sharded collection for a module: tables of one pooling and one routing rule, over the ranks of a communicator.

The C library creates a lookup, a storage of this rank's rows, for pooled tables of which sums travel, and one for each
type of rows that travel; a collection of sequences has one lookup.  Rows are handled as on a single rank, except that a
static table stores local row numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import threading
import warnings
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from hotbed._c import check, ffi, lib, new, numbers
from hotbed.comm import Comm, tag_of
from hotbed.errors import ArgumentError, CommError, HotbedError, KeyRangeError, StateError, UnsupportedError
from hotbed.torch._storage import (
    _ROW_TYPES,
    _SLOTS_MOST,
    ADVICE,
    Batch,
    Storage,
    _Slot,
    destroy,
    identity,
    indices,
    stack_level,
    stored_of,
)
from hotbed.torch.config import (
    Dedup,
    Optimizer,
    Overflow,
    Plan,
    PooledExchange,
    PoolingType,
    Route,
    ShardedOptions,
    Table,
    travel_dtype,
)

_ERROR_BYTES, _TEXT_LENGTH, _FIELD_LENGTH = 16384, 480, 256  # JSON has up to six bytes for a character
_MANY = 4096  #: distinct keys of a batch, from which on their distribution over ranks matters
_OVERFLOWS = 3  #: batches in a row that overflow before a warning
_SAMPLES = 8192  #: of a batch whose size is not known when PooledExchange.AUTO chooses
_LONG = 4.0  #: keys of a bag from which sums may be fewer bytes than rows, on two ranks
_BAGS = 1 << 30  #: the most of a lookup, over all ranks


def route_of(table: Table, sharded: ShardedOptions) -> Route:
    """Return the routing rule of a table."""
    return sharded.routes.get(table.name, Route.HASH_ROUND_ROBIN if table.is_hash else Route.CONTINUOUS)


def gather(comm: Comm, device: torch.device, stream: Any, mine: bytes) -> List[bytes]:
    """Return the bytes of every rank; ``mine`` has the same length on all ranks.  Waits for all ranks."""
    with comm.calls(0):
        return _gather(comm, device, stream, mine)


def _gather(comm: Comm, device: torch.device, stream: Any, mine: bytes) -> List[bytes]:
    send = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
    found = torch.empty(comm.size * len(mine), dtype=torch.uint8, device=device)
    data, out = ffi.cast("void *", send.data_ptr()), ffi.cast("void *", found.data_ptr())
    check(lib.hotbed_comm_all_gather(comm.pointer, len(mine), data, out, stream))
    check(lib.hotbed_stream_sync(stream))
    received = bytes(found.cpu().tolist())
    return [received[r : r + len(mine)] for r in range(0, len(received), len(mine))]


def agree(comm: Comm, device: torch.device, stream: Any, error: Optional[BaseException]) -> None:
    """Raise on all ranks if one rank has an error: the error itself there, elsewhere a CommError with its fields.

    ``rank`` of the CommError is the rank that has the error, unless the error names another one.
    """
    if not any(flag[0] for flag in gather(comm, device, stream, bytes([error is not None]))):
        return
    said = b"" if error is None else _packed(error)
    for rank, words in enumerate(gather(comm, device, stream, said.ljust(_ERROR_BYTES, b"\0"))):
        if error is None and words[0] != 0:
            text, fields = json.loads(words.rstrip(b"\0"))
            error = CommError(f"rank {rank}: {text}", **{"rank": rank, **fields})
    assert error is not None
    comm.agreed = error
    raise error


def _packed(error: BaseException) -> bytes:
    """Return an error's text and those of its fields that are numbers or short strings, for another rank."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, (str, int, float))}
    short = {name: value for name, value in fields.items() if len(str(value)) <= _FIELD_LENGTH}
    return json.dumps([f"{type(error).__name__}: {error}"[:_TEXT_LENGTH], short]).encode()


class ShardedStorage(Storage):
    """One rank's part of tables with one pooling and one routing rule.

    A slot's ticket is a ``hotbed_sharded_context``.  All ranks make the same calls in the same order, so they choose
    the same slot.

    Args:
        comm: the ranks.
        sharded: the exchange.
        is_weighted: batches have per-sample weights.

    The others are those of :class:`Storage`.
    """

    advice: Mapping[str, str] = {
        **ADVICE,
        "BATCH_TOO_LARGE": ": raise max_batch_size and max_keys of ShardedOptions on all ranks",
        "NO_WINDOWS": ", which Plan.ONE_SIDED needs: use Plan.FIXED",
    }

    def __init__(
        self,
        comm: Comm,
        sharded: ShardedOptions,
        is_weighted: bool,
        tables: Sequence[Table],
        pooling: PoolingType,
        optimizer: Optional[Optimizer],
        device: torch.device,
        seed: int,
        output_dtype: torch.dtype,
        max_in_flight: int,
        options: Mapping[str, Any],
        check_keys: str,
    ) -> None:
        self.comm, self.sharded, self._is_weighted = comm, sharded, is_weighted
        self._number = comm.next_storage([t.name for t in tables])
        self._last: Optional[_Slot] = None
        self._eval = _Slot()
        self._thread = 0  # of the last forward
        #: Samples, keys and the most keys for a rank of a batch that did not fit ahead: the same on all ranks.
        self._put_off: Optional[List[int]] = None
        self._has_warned = False  # of a rank that has most keys
        self._warn_at = _OVERFLOWS  # overflows in a row that cause the next warning
        sizes = (sharded.max_batch_size, sharded.max_keys, sharded.capacity)
        #: Whether sizes follow the batches: of TWO_PHASE's only those of a batch matter.
        self._follows = sharded.overflow is Overflow.REPLAY and 0 in sizes[: 2 if self._is_exact() else 3]
        self._sizes = tuple(size or 1 for size in sizes)
        self._is_small = self._follows  # whether sizes are to be measured: the same on all ranks
        #: Calls of ranks wait for each other on the threads that make them.
        self._runs_on_threads = device.type == "cuda" and comm.transport == "threads"
        super().__init__(tables, pooling, optimizer, device, seed, output_dtype, max_in_flight, options, check_keys)
        self.lock = comm.lock
        self._compare(
            {  # what the C library does not compare
                "features": [t.features for t in self.tables],
                "max_in_flight": max_in_flight,
                "sharded": sharded,
                "options": sorted(options.items()),
                "check_keys": check_keys,
            }
        )
        error: Optional[Exception] = None
        with comm.calls(tag_of(self._number, "creation")):  # creating a context is a collective call
            try:
                self._fill(self.slots[0])
            except UnsupportedError as raised:  # raised on all ranks alike
                error = raised
        agree(comm, device, self.streams.current(), error)

    def _compare(self, described: Dict[str, Any]) -> None:
        """Raise on all ranks if the collections of two ranks differ."""
        digests = [hashlib.sha256(repr(value).encode()).digest()[:8] for value in described.values()]
        every = gather(self.comm, self.device, self.streams.current(), b"".join(digests))
        for rank, theirs in enumerate(every):
            for i, name in enumerate(described):
                if theirs[8 * i : 8 * i + 8] != every[0][8 * i : 8 * i + 8]:
                    self.comm.agreed = ArgumentError(
                        f"ranks 0 and {rank} make collections that differ in {name}; here it is {described[name]!r}",
                        rank=rank,
                        parameter=name,
                        value=described[name],
                    )
                    raise self.comm.agreed

    def _create(self, options: Any) -> None:
        given = self.sharded
        routes = ffi.new("hotbed_route_kind[]", [route_of(t, given).value for t in self.tables])
        samples, keys, exchanges, factors = self._expected()
        forward, backward = travel_dtype(given.forward_precision), travel_dtype(given.backward_precision)
        sharded = new(
            "sharded_options",
            storage=options,
            routes=routes,
            plan=given.plan.value,
            overflow=(Overflow.REPORT if self._follows and not self._is_exact() else given.overflow).value,
            large_overflows=self._follows and not self._is_exact(),
            dedup=given.dedup.value,
            gradient_scale=given.gradient_scale / self.comm.size,
            max_batch_size=samples,
            max_keys=keys,
            capacity=given.capacity,
            exchanges=exchanges,
            pooling_factors=factors,
            forward_dtype=0 if forward is None else _ROW_TYPES[forward],
            backward_dtype=0 if backward is None else _ROW_TYPES[backward],
            weighted=self._is_weighted,
            growth_every=given.growth_every,
        )
        if given.gradient_scale != 0:  # C clamps before it scales
            options.optimizer.max_gradient *= self.comm.size / abs(given.gradient_scale)
        out = ffi.new("hotbed_sharded **")
        with self.comm.calls(tag_of(self._number, "creation")):  # a collective call
            try:
                self.check(lib.hotbed_sharded_create(sharded, self.comm.pointer, self.streams.current(), out))
            except CommError:
                raise
            except HotbedError as error:
                self.comm.agreed = error  # raised on all ranks
                raise
        self._sharded = out[0]
        self._pointers = [lib.hotbed_sharded_lookup(out[0], i) for i in range(lib.hotbed_sharded_num_lookups(out[0]))]
        self._c = self._pointers[0]
        slots, comm = [*self.slots, self._eval], self.comm  # which outlives the collection
        frees = (lib.hotbed_sharded_context_destroy, slots, lib.hotbed_sharded_destroy, out[0])
        weakref.finalize(self, destroy, *frees, self.streams.known, [lambda: comm])
        self._routes = ffi.new("hotbed_route[]", len(self.tables))
        self._places: List[Tuple[int, int]] = []  # of each table: its lookup, and its number there
        #: What ranks send each other for each table; AUTO: rows of keys, or nothing, on one rank.
        self.exchanges: List[PooledExchange] = []
        for t in range(len(self.tables)):
            info = new("sharded_table")
            self.check(lib.hotbed_sharded_table_read(self._sharded, t, info))
            self._routes[t] = info.route
            self._places.append((int(info.lookup), int(info.table)))
            self.exchanges.append(PooledExchange(info.exchange))
        if self._follows:  # the sizes of the rule were only expected
            self.check(lib.hotbed_sharded_resize(self._sharded, *self._sizes))

    def _expected(self) -> Tuple[int, int, Any, Any]:
        """Return the samples and keys of a large batch, and what PooledExchange.AUTO needs beside them.

        Sizes that follow the batches are not known yet.  Since rows cannot move from one lookup to another, the choice
        is made now: it is the same in every run, and when a checkpoint is loaded.
        """
        given, n = self.sharded, len(self.features)
        samples = given.max_batch_size or min(_SAMPLES, _BAGS // (n * self.comm.size))
        factors = [given.pooling_factors.get(name) for name in self.feature_names]
        keys = given.max_keys or math.ceil(sum(samples * (1.0 if f is None else f) for f in factors)) or 1
        if not self.is_pooled:
            return samples, keys, ffi.NULL, ffi.NULL
        none = all(factor is None for factor in factors)
        exchanges = given.exchanges
        chosen = [
            exchanges.get(self.tables[t].name, PooledExchange.AUTO) if isinstance(exchanges, Mapping) else exchanges
            for t, _ in self.features
        ]
        return (
            samples,
            keys,
            ffi.new("hotbed_pooled_exchange[]", [one.value for one in chosen]),
            ffi.NULL if none else ffi.new("float[]", [1.0 if f is None else f for f in factors]),
        )

    def _at(self, table: int) -> Tuple[Any, int]:
        """Return the lookup that has a table, and the table's number there."""
        lookup, number = self._places[table]
        return self._pointers[lookup], number

    def lookups(self) -> List[Tuple[str, Any, List[int]]]:
        """Return each lookup: its label, the ``hotbed_storage *``, and its tables, by their numbers here."""
        found: List[Tuple[str, Any, List[int]]] = []
        self.release_dropped()
        for lookup, pointer in enumerate(self._pointers):
            numbers = [t for t in range(len(self.tables)) if self._places[t][0] == lookup]
            sent, kind = self.exchanges[numbers[0]], str(self.tables[numbers[0]].dtype)[len("torch.") :]
            end = f"-{sent.name.lower()}" + (f"-{kind}" if sent is PooledExchange.ROWS else "")
            found.append((self.label + (end if len(self._pointers) > 1 else ""), pointer, numbers))
        return found

    @property
    def share(self) -> Tuple[int, int]:
        """Return this rank and the number of ranks that share the rows."""
        return self.comm.rank, self.comm.size

    def join(self, options: Any, keep: List[Any]) -> None:
        """Set the communicator and the share in the options of a checkpoint."""
        options.comm = self.comm.pointer
        options.share.rank, options.share.world = self.comm.rank, self.comm.size
        options.share.routes = self._routes
        keep.append(self._routes)

    # --- batches --------------------------------------------------------------------------------

    def _calls(self, stage: str, batch: int) -> Any:
        """Return the context manager of a stage's collective calls; ranks compare the stage and the batch's number."""
        return self.comm.calls(tag_of(self._number, stage, batch))

    def _turn_of(self, key: Tuple[int, ...]) -> int:
        """Return the number of a batch that begins its forward; a prefetched one has it already."""
        number = self.ahead.get(key)
        return self.turn + 1 if number is None else self.slots[number].order

    def _fill(self, slot: _Slot) -> None:
        if slot.ticket is not None:
            return
        out = ffi.new("hotbed_sharded_context **")
        collections = ffi.new("hotbed_sharded *[]", [self._sharded])
        self.check(lib.hotbed_sharded_create_context(1, collections, self.streams.current(), out))
        slot.ticket, slot.batch = out[0], new("kjt")

    def _take_slot(self, keys: int, samples: int, stream: Any) -> int:
        number = self._free_slot(stream)
        self._fill(self.slots[number])
        return number

    def _cancel(self, ticket: Any, stream: Any) -> int:
        return int(lib.hotbed_sharded_cancel(ticket, stream))

    def drop(self, token: int) -> None:
        """Do nothing: ranks return tickets together, but each frees its graphs when it likes."""

    def _start(self, slot: _Slot, given: Batch, stream: Any) -> None:
        kjt = self._batch(slot.batch, given)
        kjt.num_features = len(self.features)
        self.check(lib.hotbed_sharded_input_dist(slot.ticket, kjt, stream))
        self.check(lib.hotbed_sharded_wait_splits(slot.ticket, stream))
        self.check(lib.hotbed_sharded_wait_input(slot.ticket, stream))

    # --- sizes ----------------------------------------------------------------------------------

    def _is_exact(self) -> bool:
        return self.sharded.plan is Plan.TWO_PHASE

    def _for_ranks(self, given: Batch) -> Tuple[int, int, int, int]:
        """Count the keys of a batch by rank; waits for the stream.

        Returns:
            How many keys of a lookup it has for one rank at most, after dedup.  Of the tables whose rows are routed in
            blocks: distinct keys, how many belong to one rank at most, and to which.
        """
        counts = torch.zeros(len(self._pointers), self.comm.size, dtype=torch.int64)
        blocks = torch.zeros(self.comm.size, dtype=torch.int64)
        bounds = self._bounds(given)
        by_table: Dict[int, List[torch.Tensor]] = {}
        found = given.keys.cpu()
        for i, (t, _) in enumerate(self.features):
            by_table.setdefault(t, []).append(found[max(0, bounds[i]) : max(0, bounds[i + 1])])
        for t, parts in by_table.items():
            mine = torch.cat(parts)
            dedups = self.exchanges[t] is PooledExchange.ROWS if self.is_pooled else self.sharded.dedup is not Dedup.OFF
            in_blocks = self._routes[t].kind == Route.CONTINUOUS.value
            distinct = torch.unique(mine) if dedups or in_blocks else mine
            counts[self._places[t][0]] += self._by_rank(t, distinct if dedups else mine)
            if in_blocks:
                blocks += self._by_rank(t, distinct)
        return int(counts.max()), int(blocks.sum()), int(blocks.max()), int(blocks.argmax())

    def _by_rank(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Count keys of a table by rank: ``[ranks]``."""
        return torch.bincount(self._ranks(table, keys.contiguous()).to(torch.int64), minlength=self.comm.size)

    def _ranks(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Return the ranks to which contiguous int64 keys on the CPU belong, ``[n]`` int32 on the CPU."""
        ranks = torch.empty(keys.shape[0], dtype=torch.int32, device="cpu")
        data, out = ffi.cast("uint64_t *", keys.data_ptr()), ffi.cast("uint32_t *", ranks.data_ptr())
        lib.hotbed_route_ranks(self._route(table), keys.shape[0], data, out)
        return ranks

    def _fit(self, given: Batch, stream: Any, ahead: bool) -> bool:
        """Make the sizes fit a batch, if they are to be measured; all ranks call it together.

        Returns:
            False: a batch that is looked up ahead does not fit, and others that wait for their backward hold contexts.

        Raises:
            StateError: the same for a forward; or the stream records a graph.
        """
        if not self._follows:
            return True
        if self._captures():
            raise StateError(
                "a CUDA graph cannot follow the sizes of batches: give max_batch_size, max_keys and capacity of "
                "ShardedOptions, and overflow=Overflow.REPORT"
            )
        alone = self.comm.size == 1
        samples, keys = given.samples, given.keys.shape[0]
        small = samples > self._sizes[0] or keys > self._sizes[1]
        if not (self._is_small or self._is_exact() or (alone and small)):
            return True
        counted = (1, 0, 0, 0) if alone or self._is_exact() else self._for_ranks(given)
        mine = struct.pack("<6Q", samples, keys, *counted)
        every = [mine] if alone else _gather(self.comm, self.device, stream, mine)
        found = [struct.unpack("<6Q", one) for one in every]
        needs = [max(column) for column in list(zip(*found))[:3]]
        self._warn_of_busy_rank([counts[3:] for counts in found])
        wanted = needs if self._put_off is None else [max(pair) for pair in zip(needs, self._put_off)]
        if all(need <= size for need, size in zip(wanted, self._sizes)):
            self._is_small, self._put_off = False, None
            return True
        if any(s.held for s in self.slots):
            if ahead:
                self._put_off = wanted
                return False
            if all(need <= size for need, size in zip(needs, self._sizes)):
                return True
            self.comm.agreed = StateError(
                f"a batch of {needs[0]} samples and {needs[1]} keys needs larger messages while another forward waits "
                "for its backward; call its backward first, or give max_batch_size, max_keys and capacity of "
                "ShardedOptions",
                value=needs,
            )
            raise self.comm.agreed
        self._resize(wanted)
        return True

    def _resize(self, needs: Sequence[int]) -> None:
        if self._sizes[1] == 1:
            self._warn_of_long_bags(needs[1] / (needs[0] * len(self.features) or 1))
        spare = [needs[0] if self._sizes[0] == 1 else needs[0] + needs[0] // 4, *[n + n // 4 + 64 for n in needs[1:]]]
        given = (self.sharded.max_batch_size, self.sharded.max_keys)
        if any(fixed and need > fixed for fixed, need in zip(given, needs)):
            self.comm.agreed = ArgumentError(
                f"a rank's batch has {needs[0]} samples, one has {needs[1]} keys; ShardedOptions allow "
                f"max_batch_size={given[0]} and max_keys={given[1]} (0: any number)",
                parameter="max_batch_size" if needs[0] > given[0] > 0 else "max_keys",
                value=needs[0] if needs[0] > given[0] > 0 else needs[1],
                limit=given[0] if needs[0] > given[0] > 0 else given[1],
            )
            raise self.comm.agreed
        sizes = [fixed or max(size, now) for fixed, size, now in zip((*given, 0), spare, self._sizes)]
        for slot in [*self.slots, self._eval]:
            if slot.ticket is not None:
                lib.hotbed_sharded_context_destroy(slot.ticket)
                slot.ticket = None
        self._last = None
        self.check(lib.hotbed_sharded_resize(self._sharded, *sizes))
        self._sizes, self._is_small, self._put_off = tuple(sizes), False, None

    def _warn_of_busy_rank(self, found: Sequence[Sequence[int]]) -> None:
        """Warn once if a rank has 1.5 times its share of a batch's keys of tables in blocks, or more.

        Args:
            found: of each rank's batch: keys, how many belong to one rank at most, and to which; the same on all ranks.
        """
        busy = [one for one in found if one[0] >= _MANY and 2 * one[1] * self.comm.size >= 3 * one[0]]
        if self._has_warned or not busy:
            return
        self._has_warned, (total, most, rank) = True, busy[0]
        named = [t.name for i, t in enumerate(self.tables) if self._routes[i].kind == Route.CONTINUOUS.value]
        warnings.warn(
            f"tables {named}: of {total} distinct keys of a batch, {most} belong to rank {rank} of "
            f"{self.comm.size}, and the other ranks wait for it; if the frequent keys are small, give "
            f"routes={{name: Route.ROUND_ROBIN}} of ShardedOptions, which deals rows in turn",
            stacklevel=stack_level(),
        )

    def _warn_of_long_bags(self, keys: float) -> None:
        """Warn if bags of the first batch are longer than what PooledExchange.AUTO expected of them."""
        given = self.sharded
        ruled = [
            t.name
            for t, sent in zip(self.tables, self.exchanges)
            if sent is PooledExchange.ROWS
            and (given.exchanges.get(t.name) if isinstance(given.exchanges, Mapping) else given.exchanges)
            in (None, PooledExchange.AUTO)
        ]
        if ruled and keys > _LONG and not given.pooling_factors and not given.max_keys:
            warnings.warn(
                f"tables {ruled}: their rows travel, because bags of one key were expected, but bags of the first "
                f"batch have {keys:.1f} keys on average; give pooling_factors of ShardedOptions, the keys of a bag by "
                "feature, or exchanges",
                stacklevel=stack_level(),
            )

    def _begin(self, take: Callable[[], _Slot], given: Batch, stream: Any, ahead: bool) -> Optional[_Slot]:
        """Exchange the keys of a batch; None if it does not fit, and is looked up in its forward."""
        if not self._fit(given, stream, ahead):
            return None
        slot = take()
        self._start(slot, given, stream)
        return slot

    def _overflowed(self, slot: _Slot) -> bool:
        """Return whether a batch was empty everywhere, because it did not fit, and has to be sent again.

        On a GPU it waits for the keys of all ranks, so call it after everything else has been enqueued.
        """
        if not self._follows or self._is_exact() or self.comm.size == 1:
            return False
        out = ffi.new("bool *")
        self.check(lib.hotbed_sharded_overflowed(slot.ticket, out))
        self._is_small = self._is_small or bool(out[0])
        return bool(out[0])

    def _arriving(self, keys: int) -> int:
        # The keys of all ranks' batches are spread over the ranks, with some imbalance.
        return keys + keys // 4 + 64

    def _prefetch(
        self,
        given: Batch,
        stream: Any,
        counts: Optional[torch.Tensor] = None,
        output: Any = None,
        ahead: bool = False,
    ) -> int:
        assert output is None  # forward() reads the rows
        if counts is not None:
            raise UnsupportedError("a key of a collection of several ranks stands for one occurrence")
        self.check_batch(given)
        self._grow(given.keys.shape[0], stream, lambda: self._keys_by_table(given))

        def take() -> _Slot:
            return self.slots[self._take_slot(given.keys.shape[0], given.samples, stream)]

        slot = self._begin(take, given, stream, ahead)
        if slot is None:
            return -1
        self._hold(slot, (*given[:3], counts))
        slot.samples, slot.settled = given.samples, False
        if ahead:  # otherwise forward() reads the rows at once
            self._check_held(slot, lib.hotbed_sharded_prefetch(slot.ticket, 0, stream))
        self.turn += 1
        slot.order = self.turn
        return next(i for i, s in enumerate(self.slots) if s is slot)

    def _check_held(self, slot: _Slot, status: int) -> None:
        if status != 0:
            slot.held, slot.tensors = False, ()
            self.check(status)

    def _must_repeat(self, number: int, stream: Any) -> bool:
        """Cancel a batch that overflowed, and return whether it did."""
        if not self._overflowed(self.slots[number]):
            return False
        self._release(number, stream)
        self.turn -= 1
        return True

    def _settle(self, stream: Any, last: Optional[int] = None) -> None:
        """Send batches that were prefetched, and overflowed, again: before a later batch, so that the order stays.

        A batch is looked at when the next one is prefetched, or in its forward.  Its keys have arrived then, so that
        nothing waits.

        Args:
            stream: the Hotbed stream.
            last: ``order`` of the last batch to look at; None: all.
        """
        for number in sorted(self.ahead.values(), key=lambda i: self.slots[i].order):
            slot = self.slots[number]
            if last is not None and slot.order > last:
                break
            key, tensors, before, samples = slot.key, slot.tensors, slot.versions, slot.samples
            if slot.settled or not self._must_repeat(number, stream):
                slot.settled = True
                continue
            keys, offsets, weights, _ = tensors
            assert keys is not None and offsets is not None and key is not None
            while number >= 0:
                number = self._prefetch(Batch(keys, offsets, weights, samples), stream, ahead=True)
                if number < 0 or not self._must_repeat(number, stream):
                    break
            if number >= 0:  # otherwise its forward looks it up
                slot = self.slots[number]
                slot.key, slot.settled, slot.versions = key, True, before
                self.ahead[key] = number

    def check(self, status: int) -> None:
        """Raise the exception of a status; of a failed communicator, with the reason."""
        try:
            super().check(status)
        except CommError:
            failed = self.comm.error()
            if failed is None:
                raise
            raise failed from None

    def prefetch(self, given: Batch) -> None:
        """Look a batch up ahead of its forward, which must get the same tensors."""
        key = identity(*given[:3])
        with self.lock:
            number = self.ahead.get(key)
            if number is not None and self._is_unchanged(self.slots[number]):
                return
        with self.lock, self._calls("forward", self.turn + 1):
            stream = self.streams.current()
            if number is not None:
                self._release(number, stream)
            self._settle(stream)
            if self._put_off is not None:  # so that the order stays
                return
            number = self._prefetch(given, stream, ahead=True)
            if number < 0:
                return
            self.slots[number].key = key
            self.ahead[key] = number
            self._faults(stream, given)

    def forward(self, given: Batch, training: bool, out: torch.Tensor) -> int:
        """Fill ``out``, and return the batch's number for the backward; -1 without training."""
        target, stride = ffi.cast("void *", out.data_ptr()), self.columns
        key = identity(*given[:3])
        with self.lock, self._calls("forward" if training else "evaluation", self._turn_of(key) if training else 0):
            stream = self.streams.current()
            if not training:
                self._evaluate(given, target, stream)
                return -1
            self._thread = threading.get_ident()
            number = self.ahead.get(key)
            self._settle(stream, None if number is None else self.slots[number].order)
            number = self.ahead.pop(key, None)
            settled = number is not None
            if number is not None:
                try:
                    self._check_unchanged(self.slots[number], "forward of a prefetched batch")
                    self.slots[number].key = None
                    self.check(lib.hotbed_sharded_read(self.slots[number].ticket, 0, target, stride, stream))
                except BaseException:
                    self._release(number, stream)
                    raise
            while number is None or (not settled and self._must_repeat(number, stream)):
                number = self._prefetch(given, stream)
                assert number >= 0
                slot = self.slots[number]
                self._check_held(slot, lib.hotbed_sharded_read(slot.ticket, 0, target, stride, stream))
            slot = self.slots[number]
            slot.shape = out.shape
            self._last = slot
            self._faults(stream, given)
            self._warn_of_overflows(slot)
            return slot.generation * _SLOTS_MOST + number

    def _evaluate(self, given: Batch, target: Any, stream: Any) -> None:
        self.check_batch(given)

        def take() -> _Slot:
            free = [s for s in self.slots if not s.held]
            slot = free[0] if free else self._eval
            self._fill(slot)
            return slot

        try:
            self.check(lib.hotbed_sharded_set_training(self._sharded, False))
            slot = None
            while slot is None or self._overflowed(slot):
                slot = self._begin(take, given, stream, ahead=False)
                assert slot is not None
                self.check(lib.hotbed_sharded_read(slot.ticket, 0, target, self.columns, stream))
            slot.tensors = given[:3]
        finally:
            self.check(lib.hotbed_sharded_set_training(self._sharded, True))
        self._last = slot
        self._faults(stream, given)
        self._warn_of_overflows(slot)

    def _warn_of_overflows(self, slot: _Slot) -> None:
        """Warn if the last batches of a slot overflowed, and again after ten times as many."""
        out = ffi.new("uint32_t *")
        self.check(lib.hotbed_sharded_repeated_overflows(slot.ticket, out))
        if out[0] < self._warn_at:
            return
        self._warn_at *= 10
        effect = "sent again" if self.sharded.overflow is Overflow.REPLAY else "read as zeros and not trained"
        warnings.warn(
            f"tables {[t.name for t in self.tables]}: {out[0]} batches in a row had more keys for a rank than "
            f"a message holds, and were {effect}; raise capacity of ShardedOptions, or balance the keys over ranks "
            f"(exchange_stats() counts such batches)",
            stacklevel=2,
        )

    def describe(self) -> str:
        """Return the plan, routes, sizes and tables as text."""
        text = ffi.new("char[]", 65536)
        self.check(lib.hotbed_sharded_print(self._sharded, text, 65536, ffi.NULL))
        return str(ffi.string(text).decode())

    def exchange_stats(self) -> Dict[str, int]:
        """Return the counts of ``hotbed_exchange_stats`` by name; waits for the stream."""
        stats = new("exchange_stats")
        self._call(lib.hotbed_sharded_stats, self._sharded, stats)
        return numbers(stats)

    def _add_buffers(self, found: Dict[str, int]) -> None:
        held = [slot.ticket for slot in (*self.slots, self._eval) if slot.ticket is not None]
        found["exchange"] += sum(lib.hotbed_sharded_context_bytes(context) for context in held)

    def backward(self, token: int, gradient: torch.Tensor) -> None:
        """Apply a batch's gradient, ``[samples, columns]`` or ``[keys, dim]`` of ``output_dtype``.

        Raises:
            StateError: the batch has had its backward, or was dropped for a later batch; or ranks are threads on a GPU,
                and PyTorch runs the backward on its own thread.
        """
        if self._runs_on_threads and threading.get_ident() != self._thread:
            raise StateError(
                "backward: PyTorch runs the backwards of all threads on one thread of its own, where ranks that are "
                "threads would wait for each other for ever; call backward() under "
                "torch.autograd.set_multithreading_enabled(False)"
            )
        slot = self.slots[token % _SLOTS_MOST % len(self.slots)]
        with self.lock, self._calls("backward", slot.order):
            super().backward(token, gradient)

    def _backward(self, slot: _Slot, data: Any, stride: int, stream: Any) -> None:
        self.check(lib.hotbed_sharded_backward(slot.ticket, 0, data, stride, stream))

    def overflowed(self) -> bool:
        """Return whether the last forward's batch overflowed on some rank.

        Raises:
            StateError: there was no forward.
        """
        if self._last is None:
            raise StateError("overflowed: the collection has had no forward")
        out = ffi.new("bool *")
        self.check(lib.hotbed_sharded_overflowed(self._last.ticket, out))
        return bool(out[0])

    # --- rows -----------------------------------------------------------------------------------

    def num_rows(self, table: int) -> int:
        """Return the number of rows of a static table that this rank has."""
        return int(lib.hotbed_route_rows(self._route(table), self.comm.rank))

    def _route(self, table: int) -> Any:
        return ffi.addressof(self._routes, table)

    def keys(self, table: int) -> torch.Tensor:
        """Return the keys of this rank's rows, int64 on the CPU, ascending; a hash table waits for the stream."""
        if self.tables[table].is_hash:
            return super().keys(table)
        return self.global_keys(table, torch.arange(self.num_rows(table), device="cpu"))

    def is_dealt(self, table: int) -> bool:
        """Whether the rows of a static table belong to the ranks in turn, and not in blocks."""
        return not self.tables[table].is_hash and int(self._routes[table].kind) == Route.ROUND_ROBIN.value

    def global_keys(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Return the keys, on the CPU, that the lookup stores as these."""
        if self.tables[table].is_hash:
            return keys
        if self.is_dealt(table):
            return keys * self.comm.size + self.comm.rank
        return keys + self.comm.rank * int(self._routes[table].block)

    def owners(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Return the ranks to which keys belong, ``[n]`` int32 on the CPU."""
        keys = keys.to(device="cpu", dtype=torch.int64).contiguous()
        described = self.tables[table]
        if not described.is_hash and keys.numel() > 0 and not 0 <= int(keys.min()) <= int(keys.max()) < described.rows:
            raise KeyRangeError(
                f"table {described.name!r}: keys {int(keys.min())} to {int(keys.max())} are not in "
                f"[0, {described.rows})",
                table=described.name,
                limit=described.rows,
            )
        return self._ranks(table, keys)

    def _mine(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Return a mask ``[n]``, bool on the CPU, of the keys that belong to this rank."""
        return self.owners(table, keys) == self.comm.rank

    def _local(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Return the keys as the lookup stores them."""
        if self.tables[table].is_hash:
            return keys
        if self.is_dealt(table):
            return torch.div(keys, self.comm.size, rounding_mode="floor")
        return keys % int(self._routes[table].block)

    def rows(self, table: int, keys: torch.Tensor, wanted: Sequence[str]) -> Dict[str, torch.Tensor]:
        """Return the wanted parts of rows ("weight", names of states, "scores"); zeros for keys of other ranks."""
        keys = indices("keys", keys)
        mine = self._mine(table, keys)
        _, parts = self._parts(table, keys.shape[0], wanted)
        found = super().rows(table, self._local(table, keys.cpu()[mine]), wanted)
        for name, part in parts.items():
            part[mine.to(part.device)] = found[name]
        return parts

    def set_rows(self, table: int, keys: torch.Tensor, given: Mapping[str, torch.Tensor], fill: bool = False) -> None:
        """Insert or overwrite rows of this rank; keys of other ranks are skipped."""
        self.check_rows(table, keys, given)
        self.check_distinct(table, keys)  # the library would name a position among this rank's keys
        mine = self._mine(table, keys)
        parts = {name: part[mine.to(part.device)] for name, part in given.items()}
        super().set_rows(table, self._local(table, keys.cpu()[mine]), parts, fill)

    def has(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Return a mask ``[n]``, bool on the CPU, of the keys that have a row on this rank."""
        mine = self._mine(table, keys)
        mine[mine.clone()] = super().has(table, self._local(table, keys.cpu()[mine]))
        return mine

    def set_states(self, table: int, keys: torch.Tensor, given: Mapping[str, torch.Tensor]) -> None:
        """Set optimizer states of this rank's keys; keys of other ranks are skipped."""
        self.check_rows(table, keys, given)
        mine, keys = self._mine(table, indices("keys", keys)), indices("keys", keys).cpu()
        super().set_states(table, keys[mine], {name: part[mine.to(part.device)] for name, part in given.items()})

    def erase(self, table: int, keys: torch.Tensor) -> int:
        """Remove this rank's keys; keys of other ranks are skipped."""
        return super().erase(table, keys.cpu()[self._mine(table, indices("keys", keys))])

    def load_rows(self, table: int, keys: torch.Tensor, given: Mapping[str, torch.Tensor]) -> None:
        """Replace this rank's rows by the rows of a state dict; rows of other ranks are skipped."""
        if not self.is_direct(table) or self.tables[table].extra.get("track_changes"):
            super().load_rows(table, keys, given)
            return
        self.check_rows(table, keys, given)
        weight, view = given["weight"], self.view(table)
        with torch.no_grad():
            mine = weight[self._mine(table, keys).to(weight.device)]
            view.copy_(stored_of(self.tables[table], mine).reshape(view.shape))

    def _set_learning_rate(self, rate: float, stream: Any) -> None:
        self.learning_rate = None  # unknown, if Ctrl-C arrives before the end
        self.check(lib.hotbed_sharded_set_learning_rate(self._sharded, rate, stream))
        self.learning_rate = rate
