"""One C storage for a module: tables of one pooling, its tickets and streams."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import struct
import sys
import threading
import warnings
import weakref
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, get_args

import torch

import hotbed
from hotbed._c import check, failure, ffi, fields, lib, new, numbers, text
from hotbed.errors import ArgumentError, FullError, HotbedError, StateError, wrong, wrong_end
from hotbed.torch.config import ROW_TYPES, Evict, Optimizer, PoolingType, Score, Table
from hotbed.torch.sparse import check_shape, described


def _row_types() -> Dict[torch.dtype, int]:
    """Return C's number of each row type."""
    found: Dict[torch.dtype, int] = {}
    while (name := text(lib.hotbed_dtype_name(len(found) + 1))) != "unknown":
        found[ROW_TYPES[name][0]] = len(found) + 1
    return found


_ROW_TYPES = _row_types()
_TORCH_TYPES = {number: dtype for dtype, number in _ROW_TYPES.items()}
#: The types that outputs and gradients may have.  Rows of the other types are stored as bytes.
_DTYPES = {dtype: number for dtype, number in _ROW_TYPES.items() if lib.hotbed_dtype_bytes(number) != 0}
_POOLING = {
    PoolingType.NONE: lib.HOTBED_POOL_NONE,
    PoolingType.SUM: lib.HOTBED_POOL_SUM,
    PoolingType.MEAN: lib.HOTBED_POOL_MEAN,
}
_SCORES = {"STEP": lib.HOTBED_SCORE_STEP, "TIMESTAMP": lib.HOTBED_SCORE_TIMESTAMP, "LFU": lib.HOTBED_SCORE_LFU}
_CHECKS = {"error": lib.HOTBED_CHECK_ERROR, "warn": lib.HOTBED_CHECK_WARN, "ignore": lib.HOTBED_CHECK_IGNORE}
_SLOTS_MOST = 64
_INT64 = torch.int64
_VOID, _INT64S, _FLOATS = ffi.typeof("void *"), ffi.typeof("int64_t *"), ffi.typeof("float *")

#: The texts of errors by their cause, where the C library's has names of its own.
_TEXTS = {
    "TABLE_FULL": "table {table!r} is full: no slot for key {key}, the table has {limit} slots",
    "KEY_RANGE": "table {table!r}: key {key} is not in [0, {limit})",
    "KEY_TWICE": "table {table!r}: key {key} occurs twice, at positions {limit} and {value}; nothing is set; pass each "
    "key once",
    "GRADIENT": "table {table!r}: the gradient of key {key} is NaN or infinite; its row was not updated",
    "ALL_PINNED": "table {table!r}: no slot for key {key}, all rows it could replace are in use by forwards that wait "
    "for their backward, or were set by this call, which then needs fill=True",
    "HELD": "forwards without backward hold rows",
    "NOT_PREFETCHED": "the batch no longer holds its rows: a call that was interrupted, for example by Ctrl-C, has "
    "ended it; run its forward again",
}
#: What to do, by the cause of the error.
ADVICE = {
    "TABLE_FULL": "; use a larger num_embeddings or max_embeddings, or evict=Evict.LOWEST",
    "ALL_PINNED": "; use a num_embeddings of twice the distinct keys of these batches, and call cancel() after "
    "forwards without backward, or run them under torch.no_grad()",
    "HELD": ": run their backwards, or call the collection's cancel()",
}
#: This package's names of the C library's options of a table.
NAMES = {
    "capacity": "num_embeddings",
    "max_capacity": "max_embeddings",
    "dim": "embedding_dim",
    "dtype": "data_type",
    "state_dtype": "state_type",
}

#: Folders of this package and of PyTorch, whose lines say nothing to a reader of a warning.
_INSIDE = tuple(os.path.dirname(path) + os.sep for path in (hotbed.__file__, torch.__file__))

#: Storages by the handle that custom operators receive.
_by_handle: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()
_next_handle = [1]


def stored(table: Table) -> Tuple[torch.dtype, int]:
    """Return dtype and columns of the tensor that has a table's rows as they are stored."""
    if table.dtype in _DTYPES:
        return table.dtype, table.dim
    return torch.uint8, lib.hotbed_dtype_row_bytes(_ROW_TYPES[table.dtype], table.dim)


def _convert(table: Table, rows: torch.Tensor, source: int, to: int, like: Tuple[torch.dtype, int]) -> torch.Tensor:
    given = rows.detach().to("cpu").contiguous()
    made = torch.empty(rows.shape[0], like[1], dtype=like[0], device="cpu")
    out, data = (ffi.cast("void *", t.data_ptr()) for t in (made, given))
    if made.numel() > 0:
        check(lib.hotbed_dtype_convert(source, data, to, out, table.dim, rows.shape[0]))
    return made.to(rows.device)


def values_of(table: Table, rows: torch.Tensor) -> torch.Tensor:
    """Return rows as they are stored as ``[n, dim]`` values: those of bytes in float32."""
    if table.dtype in _DTYPES:
        return rows
    return _convert(table, rows, _ROW_TYPES[table.dtype], lib.HOTBED_F32, (torch.float32, table.dim))


def stored_of(table: Table, rows: torch.Tensor) -> torch.Tensor:
    """Return rows as they are stored; values of a table of bytes are rounded to nearest."""
    if table.dtype in _DTYPES or rows.dtype == torch.uint8:
        return rows
    values = rows.reshape(-1, table.dim).to(torch.float32)
    return _convert(table, values, lib.HOTBED_F32, _ROW_TYPES[table.dtype], stored(table))


def of_handle(handle: int) -> Storage:
    """Return the storage of an operator's handle.

    Raises:
        StateError: its module was deleted.
    """
    storage = _by_handle.get(handle)
    if storage is None:
        raise StateError(f"the embedding collection with handle {handle} does not exist any more", "handle", handle)
    return storage


def stack_level() -> int:
    """Return the ``stacklevel`` with which the caller's warning names the first line outside of hotbed and PyTorch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_code.co_filename.startswith(_INSIDE):
        if frame.f_back is None:  # a thread of PyTorch
            return 1
        level, frame = level + 1, frame.f_back
    return level


def _fill_optimizer(to: Any, optimizer: Optional[Optimizer]) -> None:
    if optimizer is None:
        return
    if not isinstance(optimizer, get_args(Optimizer)):
        *names, last = [kind.__name__ for kind in get_args(Optimizer)]
        given = optimizer if isinstance(optimizer, (str, type)) else type(optimizer)
        raise ArgumentError(
            f"optimizer: {given!r} is not an instance of {', '.join(names)} or {last} of hotbed.torch; pass "
            "one, for example hotbed.torch.Adam(lr=0.001)",
            parameter="optimizer",
            value=given,
        )
    try:
        _fill_fields(to, optimizer)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"optimizer {optimizer!r}: {error}", parameter="optimizer", value=optimizer) from None
    if optimizer.lr is None:
        raise ArgumentError(f"optimizer {optimizer!r}: the learning rate is None", "lr")
    if optimizer.lr < 0:
        raise ArgumentError(f"optimizer {optimizer!r}: the learning rate is negative", "lr", optimizer.lr)
    for name in ("weight_decay", "l2_decay"):
        if (value := getattr(optimizer, name, 0) or 0) < 0:
            raise ArgumentError(f"optimizer {optimizer!r}: {name} is negative", parameter=name, value=value)


def optimizer_info(optimizer: Optimizer) -> Any:
    """Return C's description of an optimizer, a ``hotbed_optimizer_info``."""
    kind = 1
    while ffi.string((info := lib.hotbed_optimizer_describe(kind)).name).decode() != optimizer.c_name:
        kind += 1
    return info


def _fill_fields(to: Any, optimizer: Optimizer) -> None:
    info = optimizer_info(optimizer)
    to.kind = info.kind
    number = 0
    while parameter := lib.hotbed_optimizer_parameter_at(number):
        if info.parameters >> number & 1:
            name = ffi.string(parameter.name).decode()
            value = optimizer.parameter(name)
            setattr(to, name, getattr(to, name) if value is None else value)
        number += 1


def _rate(given: Any) -> float:
    """Return the learning rate of a parameter group.

    Raises:
        ArgumentError: it is not a number, negative or not finite.
    """
    try:
        rate = float(given)
    except (TypeError, ValueError, RuntimeError):
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise ArgumentError(
            f"fused_optimizer: the learning rate {given!r} is not a finite number of at least 0", "lr", given
        )
    return rate


def shortest(rate: float) -> float:
    """Return the number with the fewest digits that has a float32's bits: 0.1, not 0.10000000149."""
    bits = struct.pack("f", rate)
    return next(n for n in (float(f"{rate:.{digits}g}") for digits in range(1, 18)) if struct.pack("f", n) == bits)


def _power(beta: float, steps: int) -> float:
    """Return ``beta**steps`` as the library computes it, one product for each step, so that a resume changes no bit."""
    power = 1.0
    if 0 < beta < 1:
        for _ in range(steps):
            power *= beta
            if power == 0:
                break
        return power
    return float(beta**steps)


def check_index(name: str, given: Any) -> None:
    """Check the type of keys or offsets.

    Raises:
        ArgumentError: not a vector of int32 or int64, with its type or shape.
    """
    if not isinstance(given, torch.Tensor) or given.dim() != 1:
        raise ArgumentError(f"{name}: {described(given)} is not a 1-D tensor", parameter=name, value=given)
    if given.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(f"{name}: dtype {given.dtype} is not torch.int64 or torch.int32", name, given.dtype)


def indices(name: str, given: Any) -> torch.Tensor:
    """Return keys or offsets as int64, contiguous; errors as of ``check_index()``."""
    check_index(name, given)
    found: torch.Tensor = given.to(torch.int64).contiguous()
    return found


class _Streams:
    """Hotbed's streams of one device: an inline one for the CPU, and one for each stream of PyTorch on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.number = device.index if device.type == "cuda" else -1
        self.known: Dict[int, Any] = {}

    def current(self) -> Any:
        """Return the stream to which this thread enqueues work."""
        native = 0 if self.number < 0 else torch._C._cuda_getCurrentRawStream(self.number)
        stream = self.known.get(native)
        if stream is not None:
            return stream
        out = ffi.new("hotbed_stream **")
        if self.number >= 0:
            check(lib.hotbed_stream_wrap_cuda(self.device.index, ffi.cast("void *", native), out))
        else:
            check(
                lib.hotbed_stream_create_with(
                    new("stream_options", backend=lib.HOTBED_BACKEND_HOST, run_inline=True), out
                )
            )
        self.known[native] = out[0]
        return out[0]

    def ordered(self) -> Any:
        """Return current(), behind the work of the other streams: lookups ahead, which insert keys and move rows."""
        stream = self.current()
        if len(self.known) < 2 or torch.cuda.is_current_stream_capturing():
            return stream
        current = torch.cuda.current_stream(self.device)
        for native in self.known:
            if native == current.cuda_stream:
                continue
            other = torch.cuda.default_stream(self.device)
            if native:
                other = torch.cuda.ExternalStream(native, self.device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(other):
                captures = torch.cuda.is_current_stream_capturing()
            if not captures:
                current.wait_stream(other)
        return stream


class Batch(NamedTuple):
    """What a lookup reads: int64 keys and offsets, float32 weights, and the number of samples of each feature."""

    keys: torch.Tensor
    offsets: torch.Tensor
    weights: Optional[torch.Tensor]
    samples: int


@dataclasses.dataclass
class _Slot:
    """A ticket, and the objects that its batch keeps alive."""

    ticket: Any = None
    max_keys: int = 0
    max_samples: int = 0
    generation: int = 0
    held: bool = False  # prefetched, and not yet followed by a backward
    order: int = 0
    samples: int = 0
    settled: bool = False  # it is known that the batch did not overflow
    batch: Any = None
    shape: Tuple[int, ...] = (0, 0)  # of the output
    tensors: Tuple[Optional[torch.Tensor], ...] = ()  # keys, offsets, weights, counts
    versions: Optional[Tuple[int, ...]] = None  # of the tensors
    key: Optional[Tuple[int, ...]] = None  # identifies a batch that was prefetched ahead


def identity(keys: torch.Tensor, offsets: torch.Tensor, weights: Optional[torch.Tensor]) -> Tuple[int, ...]:
    """Return what the forward of a prefetched batch must have in common with its prefetch: memory and lengths."""
    place = 0 if weights is None else weights.data_ptr()
    return keys.data_ptr(), offsets.data_ptr(), place, keys.numel(), offsets.numel()


def versions(tensors: Sequence[Optional[torch.Tensor]]) -> Optional[Tuple[int, ...]]:
    """Return how often each tensor of a slot was written in place; None if PyTorch does not count it."""
    keys, offsets, weights, counts = tensors
    try:
        if weights is None and counts is None:
            return keys._version, offsets._version  # type: ignore[union-attr]
        return tuple([t._version for t in tensors if t is not None])
    except RuntimeError:  # an inference tensor
        return None


def destroy(
    free_ticket: Any, slots: List[_Slot], free: Any, pointer: Any, streams: Dict[int, Any], after: Sequence[Any]
) -> None:
    """Free the tickets of slots, then what ``pointer`` points to, then the streams; last, call each of ``after``."""
    for slot in slots:
        if slot.ticket is not None:
            free_ticket(slot.ticket)
    for stream in streams.values():
        lib.hotbed_stream_sync(stream)
    free(pointer)
    for stream in streams.values():
        lib.hotbed_stream_destroy(stream)
    for call in after:
        call()


class Storage:
    """Tables that are looked up together.

    Args:
        tables: tables with the same pooling, in the order of their features.
        pooling: pooling of all tables.
        optimizer: optimizer of all tables; None for lookup only.
        device: "cpu", or a CUDA device with an index.
        seed: seed of the initializers.
        output_dtype: dtype of outputs and gradients.
        max_in_flight: number of forwards that may wait for their backward.
        options: further fields of ``hotbed_storage_options``, such as ``hbm_bytes`` and ``caching``.
        check_keys: what happens when a key is refused: "error", "warn" or "ignore".
    """

    def __init__(
        self,
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
        if not hasattr(max_in_flight, "__index__") or not 1 <= max_in_flight <= _SLOTS_MOST:
            raise wrong("max_in_flight", max_in_flight, f"is not in [1, {_SLOTS_MOST}]", _SLOTS_MOST)
        if output_dtype not in [*_DTYPES]:  # which needs no hash
            raise wrong("output_dtype", output_dtype, "is not float32, float16 or bfloat16")
        if check_keys not in [*_CHECKS]:
            raise wrong("check", check_keys, f"is not one of {sorted(_CHECKS)}")
        self.tables = list(tables)
        self.pooling = pooling
        #: Its name in a checkpoint, after the name of its collection, which may change it.
        self.label = pooling.name.lower()
        self.optimizer = optimizer
        self.device = device
        self.output_dtype = output_dtype
        self.features = [(t, f) for t, table in enumerate(self.tables) for f in table.features]
        self.is_pooled = pooling is not PoolingType.NONE  # an output has one row per sample; otherwise one per key
        self.feature_names = [f for _, f in self.features]
        self.num_features = len(self.features)
        #: An empty tensor, whose dtype and device outputs get.
        self.like = torch.empty(0, dtype=output_dtype, device=device)
        #: Columns of an output row.
        self.columns = max(t.dim for t in self.tables)
        if pooling is not PoolingType.NONE:
            self.columns = sum(self.tables[t].dim for t, _ in self.features)
        self.lock = threading.RLock()
        self.streams = _Streams(device)
        self.slots = [_Slot() for _ in range(max_in_flight)]
        self.ahead: Dict[Tuple[int, ...], int] = {}
        self.turn = 0
        self.dropped: collections.deque[int] = collections.deque()  # tokens of forwards that get no backward
        self.group: Optional[Dict[str, Any]] = None  # the parameter group that has the learning rate
        self.scaler: Any = None  # a GradScaler whose scale the gradients have
        self._warned_of_scaler = False
        self.warns_of_keys = check_keys == "warn"
        skips = options.get("nonfinite") == lib.HOTBED_NONFINITE_SKIP
        #: Of hotbed_storage_warning().
        self.detail: Any = ffi.new("hotbed_error_detail *")
        self.text: Any = ffi.new("char[]", 512) if self.warns_of_keys or skips else None
        self.warned: Set[Tuple[Optional[str], bool]] = (
            set()
        )  # tables, and whether of a gradient, about which a warning has been issued
        self._settled: Set[int] = set()  # tables whose keys a load or an erase has decided
        #: By table, keys and optimizer states that wait for a load of the keys' rows, until the next backward.
        self._waiting: Dict[int, Tuple[torch.Tensor, Dict[str, torch.Tensor]]] = {}
        self.space: Dict[int, int] = {}
        self.count_again()
        self.estimates = [sys.maxsize] * len(self.tables)  # twice the keys of a table in the batch last counted
        #: Called after the storage is destroyed; must not refer to it.
        self.after: List[Callable[[], None]] = []
        keep: List[Any] = []
        self._create(self._options(seed, options, check_keys, keep))
        self.learning_rate = None if optimizer is None else float(optimizer.lr)
        self.handle = _next_handle[0]
        _next_handle[0] += 1
        _by_handle[self.handle] = self

    def _options(self, seed: int, extra: Mapping[str, Any], check_keys: str, keep: List[Any]) -> Any:
        """Create the ``hotbed_storage_options``, which points to objects appended to ``keep``."""
        tables = ffi.new("hotbed_table_options[]", len(self.tables))
        for i, table in enumerate(self.tables):
            o = tables[i]
            o.size = ffi.sizeof(o)
            keep.append(ffi.new("char[]", table.name.encode()))
            o.name, o.dim, o.capacity = keep[-1], table.dim, table.rows
            o.kind = lib.HOTBED_TABLE_HASH if table.is_hash else lib.HOTBED_TABLE_STATIC
            o.dtype = _ROW_TYPES[table.dtype]
            if table.is_hash:
                o.evict = table.evict.value
                o.score = _SCORES[table.score.name]
                o.max_capacity = table.most_rows
            if table.lower < table.upper:
                o.initializer.kind = lib.HOTBED_INIT_UNIFORM
                o.initializer.lower, o.initializer.upper = table.lower, table.upper
            else:
                o.initializer.value = table.lower
            for field, value in table.extra.items():
                setattr(o, field, value)
        of_features = ffi.new("uint32_t[]", [t for t, _ in self.features])
        keep += [tables, of_features]
        own = {
            "num_tables": len(self.tables),
            "tables": tables,
            "num_features": len(self.features),
            "feature_tables": of_features,
            "pooling": _POOLING[self.pooling],
            "output_dtype": _DTYPES[self.output_dtype],
            "seed": seed,
            "check": _CHECKS[check_keys],
        }
        for name in extra:
            if name in own or name in ("size", "optimizer"):
                raise wrong("options", name, "is a field that the collection's other arguments set")
        options = new("storage_options", **own, **extra)
        _fill_optimizer(options.optimizer, self.optimizer)
        self._complete(options)
        return options

    def _create(self, options: Any) -> None:
        out = ffi.new("hotbed_storage **")
        try:
            self.check(lib.hotbed_storage_create(options, self.streams.current(), out))
        except BaseException:
            for call in self.after:
                call()
            raise
        self._c = out[0]
        self._pointers = [self._c]
        frees = (lib.hotbed_ticket_destroy, self.slots, lib.hotbed_storage_destroy, self._c)
        weakref.finalize(self, destroy, *frees, self.streams.known, self.after)

    def _complete(self, options: Any) -> None:
        """Set further fields of the ``hotbed_storage_options *``; for subclasses."""

    #: What to do, by the cause of an error, and names of options; subclasses with other names replace them.
    advice: Mapping[str, str] = ADVICE
    names: Mapping[str, str] = NAMES

    def check(self, status: int) -> None:
        """Raise the exception of a status, with this package's words in its text.

        Raises:
            HotbedError: the subclass that belongs to ``status``; nothing for ``HOTBED_OK``.
        """
        if status != 0:
            raise self._own(failure(status))

    def _own(self, error: HotbedError) -> HotbedError:
        """Put names of this package into an error of the C library, by its fields."""
        if isinstance(error.feature, int) and error.feature < len(self.feature_names):
            error.feature = self.feature_names[error.feature]
        error.args = (self._said(error),)
        return error

    def _said(self, error: HotbedError) -> str:
        """Return the text of an error with this package's words.  Reads its fields only."""
        text, advice = _TEXTS.get(error.cause), self.advice.get(error.cause, "")
        known = {"table": error.table, "key": error.key, "limit": error.limit, "value": error.value}
        if text is None or error.rank is not None or any(f"{{{n}" in text and v is None for n, v in known.items()):
            text = str(error)  # of several possible tables, or of a row's number in its rank
        else:
            text = text.format(**known)
            if error.cause == "HELD" and error.table is not None:
                text = f"table {error.table!r}: {text}"
        name = None if error.table is None else self.names.get(error.parameter or "")
        return f"{text}{advice}" if name is None else f"{name}: {text}{advice}"

    def _call(self, function: Any, *arguments: Any, wait: bool = False) -> None:
        """Call a function of the C library whose last argument is this thread's stream; ``wait`` for the stream."""
        with self.lock:
            stream = self.streams.ordered()
            self.check(function(*arguments, stream))
            if wait:
                self.check(lib.hotbed_stream_sync(stream))

    def expect_scaler(self) -> None:
        """Warn once if a training forward runs under autocast to float16, but no GradScaler is known."""
        kind = self.device.type
        if self.scaler is not None or self._warned_of_scaler or not torch.is_autocast_enabled(kind):
            return
        if torch.get_autocast_dtype(kind) is torch.float16:
            self._warned_of_scaler = True
            warnings.warn(
                f"autocast to float16: if a GradScaler scales the loss, the backward updates the tables "
                f"{[table.name for table in self.tables]} with the scaled gradient; set grad_scaler of the collection "
                "to it, or to GradScaler(enabled=False) if there is none, or use bfloat16, which needs no scaler",
                stacklevel=stack_level(),
            )

    # --- batches --------------------------------------------------------------------------------

    @property
    def pointer(self) -> Any:
        """The ``hotbed_storage *``, after forwards that get no backward have returned their tickets."""
        self.release_dropped()
        return self._c

    def _at(self, table: int) -> Tuple[Any, int]:
        """Return the ``hotbed_storage *`` that has a table, and the table's number there."""
        return self._c, table

    def lookups(self) -> List[Tuple[str, Any, List[int]]]:
        """Return each C storage: its label, the ``hotbed_storage *``, and its tables, by their numbers here."""
        return [(self.label, self.pointer, list(range(len(self.tables))))]

    @property
    def share(self) -> Tuple[int, int]:
        """Return this rank and the number of ranks that share the rows."""
        return 0, 1

    def join(self, options: Any, keep: List[Any]) -> None:
        """Set the communicator and share in options of a checkpoint; one rank has none."""

    def output(self, keys: torch.Tensor, samples: int, columns: int, pooled: bool, dtype: torch.dtype) -> torch.Tensor:
        """Allocate the output of a batch, after a check of the operator's arguments against the tables.

        Raises:
            ArgumentError: columns, pooling or dtype differ from the tables', or keys or samples are invalid.
        """
        made = (columns, pooled, dtype)
        expected = (self.columns, self.is_pooled, self.output_dtype)
        if made != expected or keys.dim() != 1 or not 0 <= samples < 2**31:
            raise ArgumentError(
                f"columns, pooled and dtype are {made}, not {expected}; or {samples} samples, or keys of shape "
                f"{tuple(keys.shape)}: not a vector",
                value=made,
                limit=expected,
            )
        return self.empty(keys, samples)

    def empty(self, keys: torch.Tensor, samples: int) -> torch.Tensor:
        """Allocate the output of a batch."""
        return self.like.new_empty((samples if self.is_pooled else keys.numel(), self.columns))

    def check_batch(self, given: Batch) -> None:
        """Check the arguments of an operator.

        Raises:
            ArgumentError: dtype, device, shape or layout, with the value.
        """
        keys, offsets, weights, samples = given
        device, bags = self.device, self.num_features * samples
        is_right = (
            weights is None
            and keys.dtype is _INT64
            and offsets.dtype is _INT64
            and keys.dim() == 1
            and offsets.dim() == 1
            and offsets.numel() == bags + 1
            and keys.is_contiguous()
            and offsets.is_contiguous()
            and keys.device == device
            and offsets.device == device
        )
        if not is_right:
            self._check_each(given)
        if self.streams.number < 0:  # on a GPU, reading it would wait for the device
            last = ffi.cast(_INT64S, offsets.data_ptr())[bags]
            if last != keys.numel():
                raise wrong_end(last, keys.numel())

    def _check_each(self, given: Batch) -> None:
        keys, offsets, weights, samples = given
        for name, tensor, dtype, length in (
            ("keys", keys, torch.int64, None),
            ("offsets", offsets, torch.int64, len(self.features) * samples + 1),
            ("weights", weights, torch.float32, keys.shape[0] if keys.dim() == 1 else None),
        ):
            if tensor is None:
                continue
            if tensor.dtype != dtype:
                raise ArgumentError(f"{name}: dtype {tensor.dtype} is not {dtype}", parameter=name, value=tensor.dtype)
            if tensor.device != self.device:
                raise ArgumentError(
                    f"{name}: on {tensor.device}, but the tables are on {self.device}", name, tensor.device, self.device
                )
            if tensor.dim() != 1 or not tensor.is_contiguous():
                raise ArgumentError(
                    f"{name}: shape {tuple(tensor.shape)}, stride {tensor.stride()}: not a dense vector",
                    parameter=name,
                    value=tuple(tensor.shape),
                )
            if length is not None and tensor.shape[0] != length:
                raise ArgumentError(
                    f"{name}: {tensor.shape[0]} elements, not {length} for {len(self.features)} features of {samples}",
                    parameter=name,
                    value=tensor.shape[0],
                    limit=length,
                )

    def _batch(self, to: Any, given: Batch) -> Any:
        keys, offsets, weights, to.batch_size = given
        to.num_keys = keys.numel()
        to.keys = ffi.cast(_VOID, keys.data_ptr())
        to.offsets = ffi.cast(_INT64S, offsets.data_ptr())
        to.weights = ffi.NULL if weights is None else ffi.cast(_FLOATS, weights.data_ptr())
        return to

    def _faults(self, stream: Any, given: Optional[Batch] = None) -> None:
        """Raise a fault that kernels have found: at once on the CPU, in ``given``; some calls later on a GPU.

        Never waits.
        """
        if self.warns_of_keys:
            self._warn()
        status = lib.hotbed_stream_fault(stream)
        if status != 0:
            raise self._with_feature(self._own(failure(status)), given)  # a name would keep the forward's output alive

    def _with_feature(self, error: HotbedError, given: Optional[Batch]) -> HotbedError:
        """Add the feature of a key outside its table: the only one there, or on the CPU the first that has the key."""
        if given is None or error.cause != "KEY_RANGE":
            return error
        found = [i for i, (t, _) in enumerate(self.features) if self.tables[t].name == error.table]
        if len(found) > 1:
            bounds = [] if self.device.type != "cpu" else self._bounds(given)
            parts = {i: given.keys[bounds[i] : bounds[i + 1]] for i in found if bounds}
            found = [i for i, keys in parts.items() if error.key in keys.tolist()][:1]
        if found:
            error.feature = self.feature_names[found[0]]
            error.args = (f"{error} (feature {error.feature!r})",)
        return error

    def _warn(self) -> None:
        """Issue a warning about the first key that a table has refused, or not updated, once for each table."""
        for pointer in self._pointers:
            self._warn_of(pointer)

    def _warn_of(self, pointer: Any) -> None:
        detail = self.detail
        detail.size = ffi.sizeof(detail[0])
        self.check(lib.hotbed_storage_warning(pointer, self.text, len(self.text), detail))
        if detail.status == lib.HOTBED_OK:
            return
        error = self._own(FullError(text(self.text), **fields(detail)))
        is_gradient = error.cause == "GRADIENT"
        if (error.table, is_gradient) not in self.warned:
            self.warned.add((error.table, is_gradient))
            kind = "gradients" if is_gradient else "refused keys"
            said = f"{error}; further {kind} of this table are only counted, see stats()"
            warnings.warn(said, stacklevel=stack_level())

    # --- tickets --------------------------------------------------------------------------------

    def _take_slot(self, keys: int, samples: int, stream: Any) -> int:
        """Find a free ticket and make it large enough; if none is free, drop the oldest forward."""
        if self.dropped:
            self.release_dropped()
        for i, slot in enumerate(self.slots):
            if not slot.held and slot.max_keys >= keys and slot.max_samples >= samples and slot.ticket is not None:
                return i
        number = self._free_slot(stream)
        slot = self.slots[number]
        if slot.ticket is None or slot.max_keys < keys or slot.max_samples < samples:
            most_keys = max(1024, 1 << (keys - 1).bit_length() if keys > 0 else 1, slot.max_keys)
            most_samples = max(64, 1 << (samples - 1).bit_length() if samples > 0 else 1, slot.max_samples)
            out = ffi.new("hotbed_ticket **")
            self.check(lib.hotbed_ticket_create(self._c, most_keys, most_samples, stream, out))
            if slot.ticket is not None:
                lib.hotbed_ticket_destroy(slot.ticket)
            slot.ticket, slot.max_keys, slot.max_samples = out[0], most_keys, most_samples
            slot.batch = new("batch")
        return number

    def _free_slot(self, stream: Any) -> int:
        """Return the number of a slot that is free; if none is, drop the oldest forward."""
        free = [i for i, s in enumerate(self.slots) if not s.held]
        number = free[0] if free else min(range(len(self.slots)), key=lambda i: self.slots[i].order)
        if self.slots[number].held:
            self._release(number, stream)
        return number

    def _cancel(self, ticket: Any, stream: Any) -> int:
        return int(lib.hotbed_ticket_cancel(ticket, stream))

    def _release(self, number: int, stream: Any) -> None:
        slot = self.slots[number]
        self._forget(number)
        if slot.held:
            self.check(self._cancel(slot.ticket, stream))
        slot.held = False
        slot.tensors = ()
        slot.generation += 1

    def _forget(self, number: int) -> None:
        """Remove a slot from ``ahead``."""
        slot = self.slots[number]
        if slot.key is not None and self.ahead.get(slot.key) == number:
            del self.ahead[slot.key]
        slot.key = None

    def _hold(self, slot: _Slot, tensors: Tuple[Optional[torch.Tensor], ...]) -> None:
        """Note that a slot holds rows: before the call that takes them, since Ctrl-C may arrive right after it."""
        slot.held = True
        slot.generation += 1
        slot.tensors = tensors
        slot.versions = versions(tensors)

    def drop(self, token: int) -> None:
        """Take note that a forward gets no backward; PyTorch frees graphs in any thread, at any time."""
        self.dropped.append(token)

    def release_dropped(self) -> None:
        """Release the tickets of forwards whose graph was freed without a backward."""
        if not self.dropped or self._captures():
            return
        with self.lock:
            stream = self.streams.current()
            while self.dropped:
                generation, number = divmod(self.dropped.popleft(), _SLOTS_MOST)
                slot = self.slots[number]
                if slot.held and slot.generation == generation:
                    self._release(number, stream)

    def _captures(self) -> bool:
        """Whether calls of this thread go to a CUDA graph."""
        return self.streams.number >= 0 and torch.cuda.is_current_stream_capturing()

    def _prefetch(self, given: Batch, stream: Any, counts: Optional[torch.Tensor] = None, output: Any = None) -> int:
        """Look a batch up, and read its rows into ``output`` unless it is None; return the batch's slot."""
        self.check_batch(given)
        number = self._take_slot(given.keys.numel(), given.samples, stream)
        slot = self.slots[number]
        batch = self._batch(slot.batch, given)
        batch.counts = ffi.NULL if counts is None else ffi.cast("uint32_t *", counts.data_ptr())
        self._hold(slot, (*given[:3], counts))
        if output is None:
            status = lib.hotbed_storage_prefetch(self._c, batch, slot.ticket, stream)
        else:
            status = lib.hotbed_storage_prefetch_forward(self._c, batch, slot.ticket, output, self.columns, stream)
        if status != 0:
            slot.held, slot.tensors = False, ()
            self.check(status)
        self.turn += 1
        slot.order = self.turn
        try:
            self._faults(stream, given)
        except BaseException:
            self._release(number, stream)
            raise
        return number

    def count_again(self) -> None:
        """Have the next batch count the keys of tables that grow."""
        #: By table that can still grow: new keys that surely fit before its next growth.
        self.space = {t: 0 for t, table in enumerate(self.tables) if table.most_rows != 0}

    def _load(self, table: int) -> float:
        """Return the load, relative to the capacity, above which a table grows."""
        return 0.9 if self.tables[table].evict is Evict.LOWEST else 1.0

    def _bounds(self, given: Batch) -> List[int]:
        """Return where the keys of each feature begin, and where the last ones end; on a GPU it waits."""
        if given.samples == 0:
            return [0] * (len(self.features) + 1)
        return given.offsets[:: given.samples].tolist()

    def _keys_by_table(self, given: Batch) -> List[int]:
        """Return how many keys of a batch each table gets; on a GPU it waits for the stream."""
        bounds = self._bounds(given)
        found = [0] * len(self.tables)
        for i, (t, _) in enumerate(self.features):
            found[t] += max(0, bounds[i + 1] - bounds[i])
        return found

    def _arriving(self, keys: int) -> int:
        """Return how many keys of a table a batch may bring to this rank if it has ``keys`` keys of it here."""
        return keys

    def _grow(self, keys: int, stream: Any, by_table: Callable[[], Sequence[int]]) -> None:
        """Grow tables that the next batch might fill.

        It counts the keys of a table, and then waits for the stream, only if all new keys of the batches since the
        last count might have filled it.

        Args:
            keys: of the batch.
            stream: of the batch.
            by_table: returns the keys of the batch by table; may wait for the stream.
        """
        if not self.space or self._captures():
            return
        found = by_table() if self.streams.number < 0 else None
        for t in list(self.space):
            need = self._arriving(min(keys, self.estimates[t]) if found is None else found[t])
            if self.space[t] < need:
                found = by_table() if found is None else found
                need = self._arriving(found[t])
                self.estimates[t] = 2 * found[t]
                info, size, load = self.info(t), self.size(t), self._load(t)
                capacity, most = int(info.capacity), int(info.max_capacity)
                needed = min(math.ceil((size + 2 * need) / load), most)
                if capacity < needed:
                    capacity = min(max(2 * capacity, needed), most)
                    self.check(lib.hotbed_storage_grow(*self._at(t), capacity, stream))
                if capacity >= most:
                    del self.space[t]
                    continue
                self.space[t] = int(load * capacity) - size
            self.space[t] -= need

    def prefetch(self, given: Batch) -> None:
        """Look a batch up ahead of its forward, which must get the same tensors."""
        key = identity(*given[:3])
        with self.lock:
            stream = self.streams.current()
            before = self.ahead.get(key)
            if before is not None:
                if self._is_unchanged(self.slots[before]):
                    return
                self._release(before, stream)
            self._grow(given.keys.shape[0], stream, lambda: self._keys_by_table(given))
            number = self._prefetch(given, stream)
            self.slots[number].key = key
            self.ahead[key] = number

    def discard(self, given: Batch) -> None:
        """Release a batch that was prefetched, and has had no forward."""
        with self.lock:
            number = self._prefetched(given)
            if number is not None:
                self._release(number, self.streams.current())

    def _is_unchanged(self, slot: _Slot) -> bool:
        """Whether a batch is surely as it was at its lookup."""
        return slot.versions is not None and slot.versions == versions(slot.tensors)

    def _check_unchanged(self, slot: _Slot, since: str) -> None:
        """Check that a batch, which the library reads until the backward, is as it was at its lookup.

        Raises:
            StateError: a tensor was written in place.
        """
        if slot.versions != versions(slot.tensors):
            raise StateError(
                f"{since}: keys, offsets or weights of the batch were changed in place; leave them unchanged until the "
                "backward, or pass a copy"
            )

    def is_ahead(self, given: Batch) -> bool:
        """Whether the batch was prefetched, and has had no forward."""
        return bool(self.ahead) and identity(*given[:3]) in self.ahead

    def _prefetched(self, given: Batch) -> Optional[int]:
        """Remove a prefetched batch from ``ahead`` and return its slot; None if it was not prefetched."""
        return self.ahead.pop(identity(*given[:3]), None) if self.ahead else None

    def forward(self, given: Batch, training: bool, out: torch.Tensor) -> int:
        """Fill ``out``, and return the batch's number for the backward; -1 without training."""
        target, stride = ffi.cast(_VOID, out.data_ptr()), self.columns
        with self.lock:
            stream = self.streams.current()
            if not training:
                self.check_batch(given)
                batch = self._batch(new("batch"), given)
                self.check(lib.hotbed_storage_eval(self._c, batch, target, stride, stream))
                self._faults(stream, given)
                return -1
            number = self._prefetched(given)
            if number is None:
                if self.space:
                    self._grow(given.keys.shape[0], stream, lambda: self._keys_by_table(given))
                number = self._prefetch(given, stream, output=target)
                slot = self.slots[number]
            else:
                slot = self.slots[number]
                try:
                    self._check_unchanged(slot, "forward of a prefetched batch")
                    self.check(lib.hotbed_storage_forward(self._c, slot.ticket, target, stride, stream))
                except BaseException:
                    self._release(number, stream)
                    raise
            slot.key, slot.shape = None, out.shape
            return slot.generation * _SLOTS_MOST + number

    def backward(self, token: int, gradient: torch.Tensor) -> None:
        """Apply a batch's gradient, ``[samples, columns]`` or ``[keys, dim]`` of ``output_dtype``.

        Raises:
            StateError: the batch has had its backward, or was dropped for a later batch.
        """
        generation, number = divmod(token, _SLOTS_MOST)
        with self.lock:
            slot = self.slots[number] if number < len(self.slots) else _Slot()
            if token < 0 or not slot.held or slot.generation != generation:
                raise StateError(self._batch_is_dropped())
            if gradient.dtype is not self.output_dtype or gradient.device != self.device:
                raise ArgumentError(
                    f"gradient: {gradient.dtype} on {gradient.device}, not {self.output_dtype} on {self.device}",
                    parameter="gradient",
                    value=gradient.dtype,
                )
            check_shape("gradient", gradient, slot.shape)
            self._check_unchanged(slot, "backward")
            if gradient.layout is not torch.strided or gradient.is_neg():  # its memory does not have its elements
                gradient = torch.zeros(slot.shape, dtype=gradient.dtype, device=self.device).add_(gradient)
            if self.scaler is not None:
                gradient = gradient / self.scaler.scale(torch.ones((), device=self.device))
            self._waiting.clear()
            if not gradient.is_contiguous():
                gradient = gradient.contiguous()
            stream = self.streams.current()
            self._take_rate(stream)
            self._backward(slot, ffi.cast(_VOID, gradient.data_ptr()), self.columns, stream)
            slot.held = False
            slot.tensors = ()
            slot.generation += 1
            if self.text is not None:
                self._warn()
            self._faults(stream)

    def _batch_is_dropped(self) -> str:
        """Return the text of the error of a backward whose batch no longer exists; for subclasses."""
        return (
            f"backward: the batch was dropped: only the last max_in_flight={len(self.slots)} forwards may wait for "
            "their backward; pass a larger max_in_flight, and run forwards without backward under torch.no_grad(); or "
            "it had its backward already, or cancel() or a load has dropped it"
        )

    def _backward(self, slot: _Slot, data: Any, stride: int, stream: Any) -> None:
        status = lib.hotbed_storage_backward(self._c, slot.ticket, data, stride, stream)
        if status != 0:
            self.check(status)

    def take_rate(self) -> None:
        """Set the learning rate to that of the parameter group, as a backward does; before a save."""
        with self.lock:
            self._take_rate(self.streams.current())

    def _take_rate(self, stream: Any) -> None:
        if self.group is not None and self.group["lr"] != self.learning_rate:
            self._set_learning_rate(_rate(self.group["lr"]), stream)

    def _set_learning_rate(self, rate: float, stream: Any) -> None:
        self.learning_rate = None  # unknown, if Ctrl-C arrives before the end
        self.check(lib.hotbed_storage_set_learning_rate(self._c, rate, stream))
        self.learning_rate = rate

    def cancel(self) -> None:
        """Drop all batches that still wait for their backward."""
        with self.lock:
            stream = self.streams.current()
            for number in range(len(self.slots)):
                self._release(number, stream)

    # --- rows -----------------------------------------------------------------------------------

    def clear(self, table: int) -> None:
        """Remove all keys of a hash table, or reset a static table's rows to their initial values; drop all batches."""
        with self.lock:
            self.cancel()
            self._call(lib.hotbed_storage_clear, *self._at(table))

    def info(self, table: int) -> Any:
        """Return the ``hotbed_table_info`` of a table."""
        info = new("table_info")
        self.check(lib.hotbed_storage_table(*self._at(table), info))
        return info

    def size(self, table: int) -> int:
        """Return the number of keys; waits for the stream."""
        n = ffi.new("uint64_t *")
        self._call(lib.hotbed_storage_size, *self._at(table), n, ffi.NULL)
        return int(n[0])

    def stats(self, table: int) -> Dict[str, int]:
        """Return the counts of ``hotbed_table_stats`` by name; waits for the stream."""
        stats = new("table_stats")
        self._call(lib.hotbed_storage_stats, *self._at(table), stats)
        return numbers(stats)

    def memory(self) -> Dict[str, int]:
        """Return the bytes that are allocated now, by kind; the module's ``memory()`` documents the kinds."""
        found = dict.fromkeys(("weights", "states", "index", "cache", "batches", "exchange"), 0)
        with self.lock:
            for table in range(len(self.tables)):
                info = self.info(table)
                caches = lib.hotbed_storage_mode(self._at(table)[0]) == lib.HOTBED_MODE_CACHE
                sizes = (dtype.itemsize for dtype in self.state_dtypes(table))
                state = sum(size * dim for size, dim in zip(sizes, self.state_dims(table)))
                rows = info.lower_slots + info.segment_slots + (0 if caches else info.slots)
                found["weights"] += rows * (info.row_bytes - state)
                found["states"] += rows * state
                found["index"] += info.index_bytes
                found["cache"] += info.slots * info.row_bytes if caches else 0
            self._add_buffers(found)
        return {name: int(size) for name, size in found.items()}

    def _add_buffers(self, found: Dict[str, int]) -> None:
        found["batches"] += sum(lib.hotbed_ticket_bytes(s.ticket) for s in self.slots if s.ticket is not None)

    def state_names(self) -> List[str]:
        """Return the names of the optimizer's states."""
        kind = lib.hotbed_storage_optimizer(self._c).kind
        return [
            ffi.string(lib.hotbed_optimizer_state_name(kind, s)).decode()
            for s in range(lib.hotbed_optimizer_states(kind))
        ]

    def state_dims(self, table: int) -> List[int]:
        """Return the number of elements of each of the optimizer's states in a row of a table."""
        kind, dim = lib.hotbed_storage_optimizer(self._c).kind, self.tables[table].dim
        return [lib.hotbed_optimizer_state_dim(kind, s, dim) for s in range(lib.hotbed_optimizer_states(kind))]

    def state_dtypes(self, table: int) -> List[torch.dtype]:
        """Return the type of each of the optimizer's states of a table."""
        types = self.info(table).state_dtypes
        return [_TORCH_TYPES[types[s]] for s in range(len(self.state_dims(table)))]

    def is_direct(self, table: int) -> bool:
        """Whether row r of the table's memory belongs to ``keys(table)[r]``."""
        pointer, _ = self._at(table)
        return not self.tables[table].is_hash and lib.hotbed_storage_mode(pointer) == lib.HOTBED_MODE_HBM_DIRECT

    def view(self, table: int, state: int = -1) -> torch.Tensor:
        """Return a view of a table's rows, ``[rows, dim]``, or of one of their states, ``[rows, state dim]``.

        Rows with scales are bytes, as they are stored: ``[rows, n]`` uint8.  Training continues with the values that
        are written to the view.  The view keeps the storage alive.

        Raises:
            StateError: the table is a hash table or has two tiers, so that no array has its rows in the order of keys.
        """
        if not self.is_direct(table):
            raise StateError(
                f"table {self.tables[table].name!r} has no array of rows in the order of keys: it is a hash table, or "
                "its rows are in two tiers; use keys() and rows()",
                table=self.tables[table].name,
            )
        info, described = self.info(table), self.tables[table]
        (dtype, columns), offset = stored(described), 0
        if state >= 0:
            dtype, columns = self.state_dtypes(table)[state], self.state_dims(table)[state]
            offset = info.state_offsets[state]
        size = dtype.itemsize
        data = ffi.cast("char *", info.weights) + offset
        strides = (info.row_bytes // size, 1)
        shape = (self.num_rows(table), columns)
        if shape[0] == 0:
            return torch.empty(shape, dtype=dtype, device=self.device)
        span = ((shape[0] - 1) * strides[0] + columns) * size
        if self.device.type == "cuda":
            return torch.as_tensor(_CudaArray(self, data, dtype, shape, strides), device=self.device).view(dtype)
        owner = ffi.gc(data, _Keep(self))
        flat = torch.frombuffer(ffi.buffer(owner, span), dtype=dtype)
        return flat.as_strided(shape, strides)

    def num_rows(self, table: int) -> int:
        """Return the number of a static table's rows that this storage has."""
        return self.tables[table].rows

    def keys(self, table: int) -> torch.Tensor:
        """Return a table's keys, int64 on the CPU, ascending; a hash table waits for the stream."""
        if not self.tables[table].is_hash:
            return torch.arange(self.tables[table].rows, device="cpu")
        n = ffi.new("uint64_t *")
        with self.lock:
            stream = self.streams.ordered()
            lib.hotbed_storage_export_keys(*self._at(table), 0, ffi.NULL, ffi.NULL, n, stream)
            found = torch.empty(n[0], dtype=torch.int64, device="cpu")
            self.check(
                lib.hotbed_storage_export_keys(
                    *self._at(table), n[0], ffi.cast("uint64_t *", found.data_ptr()), ffi.NULL, n, stream
                )
            )
        return torch.sort(found).values

    def global_keys(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Return the keys, on the CPU, that the lookup stores as these."""
        return keys

    def _parts(self, table: int, n: int, wanted: Sequence[str]) -> Tuple[Any, Dict[str, torch.Tensor]]:
        described, widths, types = self.tables[table], self.state_dims(table), self.state_dtypes(table)
        rows = ffi.new("hotbed_rows *")
        parts: Dict[str, torch.Tensor] = {}
        if "weight" in wanted:
            dtype, columns = stored(described)
            parts["weight"] = torch.zeros(n, columns, dtype=dtype, device=self.device)
            rows.weights = ffi.cast("void *", parts["weight"].data_ptr())
        if "scores" in wanted:
            parts["scores"] = torch.zeros(n, dtype=torch.int64, device=self.device)
            rows.scores = ffi.cast("uint64_t *", parts["scores"].data_ptr())
        if "times" in wanted:
            parts["times"] = torch.zeros(n, dtype=torch.int64, device=self.device)
            rows.times = ffi.cast("uint64_t *", parts["times"].data_ptr())
        for s, name in enumerate(self.state_names()):
            if name in wanted:
                parts[name] = torch.zeros(n, widths[s], dtype=types[s], device=self.device)
                rows.states[s] = ffi.cast("void *", parts[name].data_ptr())
        return rows, parts

    def load_rows(self, table: int, keys: torch.Tensor, given: Mapping[str, torch.Tensor]) -> None:
        """Replace a table's rows by the rows of a state dict; keys that stay keep their optimizer states."""
        self.check_rows(table, keys, given)
        if self.is_direct(table) and not self.tables[table].extra.get("track_changes"):
            view = self.view(table)
            with torch.no_grad():
                view.copy_(stored_of(self.tables[table], given["weight"]).reshape(view.shape))
            return
        if not self.tables[table].is_hash:  # all rows are given, perhaps in the table's own memory
            self.set_rows(table, keys, given)
            return
        self.check_distinct(table, keys)
        names = self.state_names()
        kept, states = torch.empty(0, dtype=torch.int64), {}
        if names:
            kept = self.keys(table)
            kept = kept[torch.isin(kept, indices("keys", keys).cpu())]
            states = self.rows(table, kept, names)
        self._settled.add(table)
        self.clear(table)
        self.set_rows(table, keys, given, fill=True)
        self._advance(table, given)
        if kept.numel() > 0:
            fit = torch.isin(kept, self.keys(table))
            self.set_rows(table, kept[fit], {name: state[fit.to(state.device)] for name, state in states.items()})
        if table in self._waiting:
            kept, states = self._waiting.pop(table)
            fit = self.has(table, kept)
            self.set_rows(table, kept[fit], {name: state[fit.to(state.device)] for name, state in states.items()})

    def _advance(self, table: int, given: Mapping[str, torch.Tensor]) -> None:
        """Make STEP scores of later batches higher than the given ones."""
        if self.tables[table].score is Score.STEP and "scores" in given and given["scores"].numel() > 0:
            latest, clock = int(given["scores"].max().item()), self.clock()
            if clock["clock"] < latest:
                self.set_clock({**clock, "clock": latest})

    def rows(self, table: int, keys: torch.Tensor, wanted: Sequence[str]) -> Dict[str, torch.Tensor]:
        """Return the wanted parts of rows ("weight", names of states, "scores", "times"); zeros for absent keys.

        Weights are as they are stored; see :func:`values_of`.
        """
        keys = indices("keys", keys).to(self.device)
        rows, parts = self._parts(table, keys.shape[0], wanted)
        data = ffi.cast("void *", keys.data_ptr())
        self._call(lib.hotbed_storage_get_rows, *self._at(table), keys.shape[0], data, rows, ffi.NULL, wait=True)
        return parts

    def check_rows(self, table: int, keys: torch.Tensor, given: Mapping[str, torch.Tensor]) -> None:
        """Check the arguments of :meth:`set_rows`.

        Raises:
            ArgumentError: keys are not a vector of integers, or a part is not a tensor with one row per key.
        """
        n, dim = indices("keys", keys).shape[0], self.tables[table].dim
        widths = dict(zip(self.state_names(), self.state_dims(table)))
        for name, part in given.items():
            width = widths.get(name, 1)
            if name == "weight":
                is_stored = isinstance(part, torch.Tensor) and part.dtype == torch.uint8
                width = stored(self.tables[table])[1] if is_stored else dim
            fits = isinstance(part, torch.Tensor) and part.shape[:1] == (n,) and part.numel() == n * width
            if not fits or part.is_complex() or part.is_meta or part.layout is not torch.strided:
                shape = (n,) if name in ("scores", "times") else (n, width)
                kind = f" of {part.dtype} on {part.device}, {part.layout}" if isinstance(part, torch.Tensor) else ""
                raise ArgumentError(
                    f"table {self.tables[table].name!r}: {name} is {described(part)}{kind}, not shape {shape}",
                    table=self.tables[table].name,
                    parameter=name,
                )

    def check_distinct(self, table: int, keys: torch.Tensor) -> None:
        """Check keys before a call that changes something else first; :meth:`set_rows` checks its own.

        Raises:
            ArgumentError: a key occurs twice, with its positions.
        """
        found, order = torch.sort(indices("keys", keys).cpu(), stable=True)
        twice = torch.nonzero(found[1:] == found[:-1])
        if twice.numel() > 0:
            i = int(twice[0])
            raise ArgumentError(
                f"table {self.tables[table].name!r}: key {int(found[i])} occurs twice, at positions {int(order[i])} "
                f"and {int(order[i + 1])}; pass each key once",
                table=self.tables[table].name,
                key=int(found[i]),
                value=int(order[i + 1]),
                limit=int(order[i]),
            )

    def set_rows(self, table: int, keys: torch.Tensor, given: Mapping[str, torch.Tensor], fill: bool = False) -> None:
        """Insert or overwrite rows, growing if needed; absent parts keep their values, or the initial ones.

        Args:
            table: number of the table.
            keys: ``[n]``, distinct.
            given: the parts to set, by name.
            fill: use each slot, so that the rows of a full table fit; warn of rows that a table which evicts drops.
        """
        self.check_rows(table, keys, given)
        keys = indices("keys", keys).to(self.device)
        rows, parts = self._parts(table, keys.shape[0], list(given))
        for name, part in parts.items():
            value = stored_of(self.tables[table], given[name]) if name == "weight" else given[name]
            part.copy_(value.reshape(part.shape))
        with self.lock:
            stream = self.streams.ordered()
            data = ffi.cast("void *", keys.data_ptr())
            given_keys = [0] * len(self.tables)
            given_keys[table] = keys.shape[0]
            self._grow(keys.shape[0], stream, lambda: given_keys)
            call = lib.hotbed_storage_offer_rows if fill else lib.hotbed_storage_set_rows
            self.check(call(*self._at(table), keys.shape[0], data, rows, stream))
            if fill and self.tables[table].is_hash and self.tables[table].evict is Evict.LOWEST:
                kept = int(Storage.has(self, table, keys).sum())
                if kept < keys.shape[0]:
                    name = self.tables[table].name
                    warnings.warn(f"table {name!r}: {kept} of {keys.shape[0]} rows fit", stacklevel=stack_level())
            self.check(lib.hotbed_stream_sync(stream))

    def has(self, table: int, keys: torch.Tensor) -> torch.Tensor:
        """Return a mask ``[n]``, bool on the CPU, of the keys that have a row here; waits for the stream."""
        keys = indices("keys", keys).to(self.device)
        found = torch.zeros(keys.shape[0], dtype=torch.uint8, device=self.device)
        data, flags = ffi.cast("void *", keys.data_ptr()), ffi.cast("uint8_t *", found.data_ptr())
        self._call(lib.hotbed_storage_get_rows, *self._at(table), keys.shape[0], data, ffi.NULL, flags, wait=True)
        return found.cpu() == 1

    def erase(self, table: int, keys: torch.Tensor) -> int:
        """Remove keys and their rows from a hash table, and return how many of them were there.

        Raises:
            ArgumentError: a static table.
            StateError: batches that wait for their backward use some of the keys; all others are gone.
        """
        self._settled.add(table)
        keys = torch.unique(indices("keys", keys)).to(self.device)
        gone = torch.zeros(keys.shape[0], dtype=torch.uint8, device=self.device)
        data, flags = ffi.cast("void *", keys.data_ptr()), ffi.cast("uint8_t *", gone.data_ptr())
        with self.lock:
            self.release_dropped()
            self._call(lib.hotbed_storage_erase, *self._at(table), keys.shape[0], data, flags, wait=True)
            left = Storage.has(self, table, keys)
        if left.any():
            raise StateError(
                f"table {self.tables[table].name!r}: {int(left.sum())} of {keys.shape[0]} keys were not erased, the "
                f"first is {int(keys.cpu()[left][0])}: forwards that wait for their backward use their rows; run their "
                "backwards, or call the collection's cancel()",
                table=self.tables[table].name,
                key=int(keys.cpu()[left][0]),
                value=int(left.sum()),
                limit=keys.shape[0],
            )
        return int(gone.sum())

    def expire(self, table: int, unseen: int, min_score: int, min_norm: float, slots: int) -> None:
        """Remove the expired keys among the next slots of a hash table; does not wait for the device.

        Raises:
            ArgumentError: a static table, ``unseen`` without a clock, no condition, or a number that is negative.
            UnsupportedError: an external store has the rows.
        """
        expiry = new("expiry", unseen=unseen, min_score=min_score, min_norm=min_norm, slots=slots)
        self._settled.add(table)
        with self.lock:
            self.release_dropped()
            storage, expiry.table = self._at(table)
            self._call(lib.hotbed_storage_expire, storage, expiry)

    def set_states(self, table: int, keys: torch.Tensor, given: Mapping[str, torch.Tensor]) -> None:
        """Set optimizer states of keys that have rows.

        A load of the module's state dict may come second.  So the states of other keys wait for it, with a warning,
        until the next backward.  A table that has had no rows yet gets rows with initial weights, and no warning.
        """
        self._waiting.pop(table, None)
        if self.tables[table].is_hash and (table in self._settled or self.size(table) > 0):
            self.check_rows(table, keys, given)
            keys, found = indices("keys", keys).cpu(), self.has(table, keys)
            if not found.all():
                rest = {name: part[~found.to(part.device)] for name, part in given.items()}
                self._waiting[table] = keys[~found], rest
                keys, given = keys[found], {name: part[found.to(part.device)] for name, part in given.items()}
                warnings.warn(
                    f"table {self.tables[table].name!r}: {int(found.sum())} of {found.shape[0]} keys of the "
                    "optimizer's state dict have rows; the states of the others are set only if the module's state "
                    "dict, loaded before the next backward, has the keys",
                    stacklevel=stack_level(),
                )
        self.set_rows(table, keys, given, fill=True)

    def clock(self) -> Dict[str, Any]:
        """Return the training state beside rows: step counts, learning rate, time.

        Adam's powers of beta follow from ``optimizer_steps``.
        """
        state = new("storage_state")
        self._call(lib.hotbed_storage_get_state, self._c, state)
        return {name: value for name, value in numbers(state).items() if not name.endswith("_power")}

    def set_clock(self, values: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`clock` returned."""
        optimizer, steps = lib.hotbed_storage_optimizer(self._c), int(values["optimizer_steps"])
        powers = {"beta1_power": _power(optimizer.beta1, steps), "beta2_power": _power(optimizer.beta2, steps)}
        state = new("storage_state", **{**values, **powers})
        with self.lock:
            self.learning_rate = None  # unknown, if Ctrl-C arrives before the end
            for pointer in self._pointers:
                self._call(lib.hotbed_storage_set_state, pointer, state)
            self.learning_rate = float(values["learning_rate"])


class _Keep:
    """Keeps a storage alive until the last tensor over its memory is freed, which calls this object."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def __call__(self, _: Any) -> None:
        del self.storage


class _CudaArray:
    """The CUDA array interface over a storage's memory; PyTorch keeps it while a tensor uses it."""

    def __init__(
        self, storage: Storage, data: Any, dtype: torch.dtype, shape: Tuple[int, int], strides: Tuple[int, int]
    ) -> None:
        size = dtype.itemsize
        self.storage = storage
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "strides": tuple(s * size for s in strides),
            "typestr": {torch.float32: "<f4", torch.float16: "<f2", torch.bfloat16: "<i2", torch.uint8: "|u1"}[dtype],
            "data": (int(ffi.cast("uintptr_t", data)), False),
        }
