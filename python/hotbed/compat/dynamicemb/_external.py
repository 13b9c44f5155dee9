"""A plug-in for Hotbed's external stores that calls a :class:`.Storage` written in Python."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy
import torch

from hotbed._c import check, ffi, lib, new, text
from hotbed.compat.dynamicemb.optimizer import BaseDynamicEmbeddingOptimizer
from hotbed.compat.dynamicemb.types import CopyMode
from hotbed.errors import HotbedError, UnsupportedError
from hotbed.torch.config import Table

#: Score, stamp and checksum of a row, which Hotbed reads back; None: the key was erased.
_Metadata = Optional[Tuple[int, int, int]]


class Bridge:
    """Makes tables a cache over a storage that is written in Python.

    The storage keeps float32 rows in the layout of ``CopyMode.VALUE``.  This object keeps Hotbed's metadata of rows,
    so rows can be used only as long as the tables exist.  It is an error to find a row that these tables did not write.
    Batches call the storage on the thread of the forward, with tensors on the tables' device.

    Args:
        storage: a :class:`.Storage`.
        tables: the module's tables.
        optimizer: the module's optimizer.
        device: device of the tables.

    Raises:
        UnsupportedError: rows are not float32, or scores are (TIMESTAMP, LFU).
    """

    def __init__(
        self, storage: Any, tables: Sequence[Table], optimizer: BaseDynamicEmbeddingOptimizer, device: torch.device
    ) -> None:
        for table in tables:
            if table.dtype != torch.float32 or table.extra["score"] == lib.HOTBED_SCORE_TIMESTAMP_LFU:
                raise UnsupportedError(
                    f"table {table.name!r}: over an external_storage, rows are float32 and score_strategy is no pair",
                    table=table.name,
                )
        self._storage = storage
        self._tables = list(tables)
        self._device = device
        self._external: Any = ffi.NULL
        self._widest = max(t.dim for t in tables)
        self._width = self._widest + max(optimizer.get_state_dim(t.dim) for t in tables)
        #: For each table and part of a row: its offset in Hotbed's row and in the storage's, and its length, in floats.
        self._columns: List[List[Tuple[int, int, int]]] = []
        self._initial = optimizer.get_initial_optim_states()
        self._metadata: List[Dict[int, _Metadata]] = [{} for _ in tables]
        self._row_bytes: List[int] = []
        self._cursors: Dict[int, List[int]] = {}
        self._next_cursor = 1
        self._callbacks: Any = None
        #: What the storage last raised, until :meth:`raised` takes it.
        self.failure: Optional[BaseException] = None

    def open(self, options: Any) -> Any:
        """Create the ``hotbed_external *`` for a ``hotbed_storage_options *``."""
        described = ffi.new("hotbed_external_table[]", len(self._tables))
        check(lib.hotbed_storage_external_tables(options, described))
        self._row_bytes = [int(t.row_bytes) for t in described]
        calls = new("external_calls")
        self._callbacks = {name: self._callback(calls, name) for name in ("open", "find", "insert", "erase", "count")}
        for name in ("cursor_open", "cursor_next", "cursor_close", "close"):
            self._callbacks[name] = self._callback(calls, name)
        for name, callback in self._callbacks.items():
            setattr(calls, name, callback)
        calls.on_callers_thread = True  # CUDA allows no calls, thus no tensors, on a stream's own thread
        self._callbacks["name"] = calls.name = ffi.new("char[]", type(self._storage).__name__.encode())
        out = ffi.new("hotbed_external **")
        store = new("external_options", num_tables=len(self._tables), tables=described)
        check(lib.hotbed_external_create(store, calls, ffi.NULL, out))
        self._external = out[0]
        return out[0]

    def closer(self) -> Callable[[], None]:
        """Return a function that destroys the ``hotbed_external *``: to be called after its storage is destroyed.

        It does not refer to this object, which the garbage collector may free before the storage or after it.
        """
        return functools.partial(_destroy, self._external, self._callbacks)

    def raised(self, error: HotbedError) -> HotbedError:
        """Return an error of the C library with the failed call in its text and the storage's exception as its cause.

        Raises:
            BaseException: the storage's own exception, if it is no Exception, such as KeyboardInterrupt.
        """
        failure, self.failure = self.failure, None
        if failure is None:
            return error
        if not isinstance(failure, Exception):
            raise failure
        reason = ffi.new("char[]", 512)
        lib.hotbed_external_failure(self._external, reason, 512)
        if error.cause == "EXTERNAL":  # a fault, which has no space for the reason
            error.args = (text(reason),)
        error.__cause__ = failure
        return error

    def _callback(self, calls: Any, name: str) -> Any:
        """Wrap a method as a C callback that holds only a weak reference to this object."""
        me = weakref.ref(self)
        kind = ffi.typeof(ffi.addressof(calls, name)).item
        fails = kind.result.kind != "void"

        def call(*args: Any) -> Any:
            bridge = me()
            if bridge is None:  # the tables are deleted; only close() is called now
                return lib.HOTBED_OK if fails else None
            try:
                getattr(bridge, f"_{name}")(*args[1:])
            except BaseException as error:  # cffi would print it and go on
                bridge.failure = error
                if fails:
                    said = f"{type(error).__name__}: {error}".replace("\n", " ").encode()[:255]
                    ffi.memmove(args[-1].reason, said + b"\0", len(said) + 1)
                    return lib.HOTBED_ERR_IO
            return lib.HOTBED_OK if fails else None

        function: Callable[..., Any] = call
        return ffi.callback(kind, function, error=lib.HOTBED_ERR_IO) if fails else ffi.callback(kind, function)

    # --- rows -----------------------------------------------------------------------------------

    def lay_out(self, infos: Sequence[Any], state_dims: Sequence[Sequence[int]]) -> None:
        """Set the layout of Hotbed's rows from the tables' ``hotbed_table_info`` and the dims of their states."""
        self._columns = []
        for table, info, widths in zip(self._tables, infos, state_dims):
            parts = [(0, 0, table.dim)]
            for s, width in enumerate(widths):
                parts.append((info.state_offsets[s] // 4, self._widest + sum(widths[:s]), width))
            self._columns.append(parts)

    def _named(self, table: int, keys: List[int]) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return keys and their table ids, ``[n]`` int64 on the tables' device."""
        signed = torch.from_numpy(numpy.array(keys, numpy.uint64).view(numpy.int64)).to(self._device)
        return signed, torch.full_like(signed, table)

    def _lookup(self, table: int, keys: List[int]) -> torch.Tensor:
        """Return the rows of keys that the storage must have, ``[n, width]`` float32."""
        answer = self._storage.find(*self._named(table, keys), CopyMode.VALUE)
        if int(answer[0]) > 0:
            raise LookupError(
                f"table {self._tables[table].name!r}: find() lacks {int(answer[0])} keys that it was given"
            )
        values: torch.Tensor = answer[-1]
        return values.detach().to(device="cpu", dtype=torch.float32)

    def _known(self, table: int, keys: List[int]) -> List[Tuple[int, Tuple[int, int, int]]]:
        """Return positions and metadata of keys that these tables wrote; raise if the storage has any other key."""
        kept = self._metadata[table]
        strange = [k for k in keys if k not in kept]
        if strange:
            found = self._storage.find(*self._named(table, strange), CopyMode.EMBEDDING)[-3]
            if bool(found.any()):
                raise NotImplementedError(
                    f"table {self._tables[table].name!r}: the storage has rows that these tables did not write"
                )
        have = ((i, kept.get(k)) for i, k in enumerate(keys))
        return [(i, m) for i, m in have if m is not None]

    # --- calls of the plug-in -------------------------------------------------------------------

    def _open(self, num_tables: int, tables: Any, call: Any) -> None:
        pass

    def _find(self, table: int, n: int, keys: Any, found: Any, rows: Any, metadata: Any, call: Any) -> None:
        wanted = ffi.unpack(keys, n)
        ffi.memmove(found, bytes(n), n)
        known = self._known(table, wanted)
        for i, (score, stamp, checksum) in known:
            found[i] = 1
            metadata[i].score, metadata[i].stamp, metadata[i].checksum = score, stamp, checksum
        if rows == ffi.NULL or not known:
            return
        values = self._lookup(table, [wanted[i] for i, _ in known]).numpy()
        size = self._row_bytes[table]
        out = numpy.frombuffer(ffi.buffer(rows, n * size), numpy.float32).reshape(n, size // 4)
        at = [i for i, _ in known]
        out[at] = 0
        for to, of, width in self._columns[table]:
            out[at, to : to + width] = values[:, of : of + width]

    def _insert(self, table: int, n: int, keys: Any, rows: Any, metadata: Any, call: Any) -> None:
        size = self._row_bytes[table]
        given = numpy.frombuffer(ffi.buffer(rows, n * size), numpy.float32).reshape(n, size // 4)
        values = numpy.full((n, self._width), self._initial, numpy.float32)
        values[:, : self._widest] = 0
        for of, to, width in self._columns[table]:
            values[:, to : to + width] = given[:, of : of + width]
        names = ffi.unpack(keys, n)
        scores = torch.tensor([metadata[i].score for i in range(n)], dtype=torch.int64, device="cpu")
        rows_of_all = torch.from_numpy(values).to(self._device)
        self._storage.insert(*self._named(table, names), rows_of_all, scores.to(self._device))
        for i, key in enumerate(names):
            self._metadata[table][key] = (metadata[i].score, metadata[i].stamp, metadata[i].checksum)

    def _erase(self, table: int, n: int, keys: Any, erased: Any, call: Any) -> None:
        for i, key in enumerate(ffi.unpack(keys, n)):
            there = self._metadata[table].get(key) is not None
            if there:
                self._metadata[table][key] = None
            if erased != ffi.NULL:
                erased[i] = int(there)

    def _count(self, table: int, keys: Any, call: Any) -> None:
        keys[0] = sum(m is not None for m in self._metadata[table].values())

    def _cursor_open(self, table: int, cursor: Any, call: Any) -> None:
        number = self._next_cursor
        self._next_cursor += 1
        self._cursors[number] = [table, *(k for k, m in self._metadata[table].items() if m is not None)]
        cursor[0] = ffi.cast("void *", number)

    def _cursor_next(self, cursor: Any, capacity: int, keys: Any, rows: Any, metadata: Any, n: Any, call: Any) -> None:
        table, *left = self._cursors[int(ffi.cast("uintptr_t", cursor))]
        now = left[:capacity]
        n[0] = len(now)
        if now:
            ffi.memmove(keys, numpy.array(now, numpy.uint64).tobytes(), 8 * len(now))
            found = ffi.new("uint8_t[]", len(now))
            self._find(table, len(now), keys, found, rows, metadata, call)
        self._cursors[int(ffi.cast("uintptr_t", cursor))] = [table, *left[len(now) :]]

    def _cursor_close(self, cursor: Any) -> None:
        self._cursors.pop(int(ffi.cast("uintptr_t", cursor)), None)

    def _close(self) -> None:
        self._metadata = []


def _destroy(external: Any, callbacks: Any) -> None:
    lib.hotbed_external_destroy(external)
    callbacks.clear()
