"""What changed in the tables of a collection since a position."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from hotbed._c import ffi, lib, new
from hotbed.errors import ArgumentError
from hotbed.torch._storage import Storage, values_of

_WINDOW = 1 << 26  # slots of one export


@dataclasses.dataclass(frozen=True)
class Position:
    """A point in the record of a collection's changes: :attr:`Changes.position`.

    It is of one collection in one process, and means nothing to another.
    """

    _numbers: Tuple[Tuple[int, int, int], ...] = dataclasses.field(repr=False)


@dataclasses.dataclass
class TableChanges:
    """Of one table, on this rank.

    Attributes:
        keys: ``[n]`` int64, ascending: keys whose rows were changed.
        rows: ``[n, embedding_dim]``, their rows.
        states: optimizer states by name, ``[n, ...]``, of the same keys.
        removed: ``[m]`` int64, ascending: keys that have left the table and are not back.  The receiver may lack some,
            which came and left.
    """

    keys: torch.Tensor
    rows: torch.Tensor
    states: Dict[str, torch.Tensor]
    removed: torch.Tensor


@dataclasses.dataclass
class Changes:
    """What :meth:`~hotbed.torch.EmbeddingCollection.changes` returns.

    Attributes:
        tables: the changes of each table that has ``track_changes``, by its name.
        whole: ``tables`` has all rows, and a receiver drops the rows that it had: ``since`` was None, or more keys have
            left the tables since than are remembered, or a table was cleared.
        position: for the next call.
    """

    tables: Mapping[str, TableChanges]
    whole: bool
    position: Position


def _tracks(storage: Storage, table: int) -> bool:
    return bool(storage.tables[table].extra.get("track_changes"))


def _take_positions(storages: Sequence[Storage]) -> Dict[Any, torch.Tensor]:
    """Take the position of each C storage that has a table with ``track_changes``, by its address."""
    found: Dict[Any, torch.Tensor] = {}
    for storage in storages:
        for _, pointer, numbers in storage.lookups():
            if not any(_tracks(storage, number) for number in numbers):
                continue
            with storage.lock:
                at = torch.zeros(3, dtype=torch.int64, device=storage.device)
                to = ffi.cast("hotbed_change_position *", at.data_ptr())
                stream = storage.streams.current()
                storage.check(lib.hotbed_storage_position(pointer, to, stream))
                storage.check(lib.hotbed_stream_sync(stream))
            found[int(ffi.cast("uintptr_t", pointer))] = at
    return found


class _Reader:
    """Reads the changes of one table."""

    def __init__(self, storage: Storage, table: int, since: Optional[torch.Tensor], until: torch.Tensor) -> None:
        self.storage, self.table, self.until = storage, table, until
        self.since = torch.zeros_like(until) if since is None else since

    def _words(self, tensor: torch.Tensor) -> Any:
        return ffi.cast("uint64_t *", tensor.data_ptr())

    def removed(self) -> Optional[torch.Tensor]:
        """Return the keys that have left, ascending; None: some are not remembered."""
        room = 1 << 16
        while True:
            out = torch.empty(room, dtype=torch.int64, device=self.storage.device)
            counts = torch.zeros(2, dtype=torch.int64, device=self.storage.device)
            pointer, number = self.storage._at(self.table)
            batch = new("removed", table=number, keys=self._words(out), capacity=room)
            batch.since = ffi.cast("hotbed_change_position *", self.since.data_ptr())
            batch.until = ffi.cast("hotbed_change_position *", self.until.data_ptr())
            batch.count, batch.lost = self._words(counts), self._words(counts[1:])
            with self.storage.lock:
                stream = self.storage.streams.current()
                self.storage.check(lib.hotbed_storage_removed(pointer, batch, stream))
                self.storage.check(lib.hotbed_stream_sync(stream))
            count, lost = counts.tolist()
            if lost != 0:
                return None
            if count <= room:
                gone: torch.Tensor = torch.unique(out[:count].cpu())
                return gone
            room = count

    def _windows(self, rows: Any, keys: Optional[torch.Tensor], counts: torch.Tensor, starts: Sequence[int]) -> None:
        """Export all windows: their counts, or the keys and rows of each, from its start on."""
        pointer, number = self.storage._at(self.table)
        batch = new("export", table=number, slots=_WINDOW)
        batch.since = ffi.cast("hotbed_change_position *", self.since.data_ptr())
        item = ffi.new("hotbed_rows *")
        with self.storage.lock:
            stream = self.storage.streams.current()
            for i, start in enumerate(starts):
                batch.first, batch.count = i * _WINDOW, self._words(counts[i:])
                if keys is not None and start < keys.shape[0]:
                    batch.keys, batch.capacity = self._words(keys[start:]), keys.shape[0] - start
                    item.weights = ffi.cast("void *", rows["weight"][start:].data_ptr())
                    for s, name in enumerate(self.storage.state_names()):
                        item.states[s] = ffi.cast("float *", rows[name][start:].data_ptr())
                    batch.rows = item[0]
                elif keys is not None:
                    continue
                self.storage.check(lib.hotbed_storage_export(pointer, batch, stream))
            self.storage.check(lib.hotbed_stream_sync(stream))

    def rows(self) -> Tuple[torch.Tensor, Dict[str, torch.Tensor]]:
        """Return keys of the lookup, and the parts of their rows."""
        end = ffi.new("uint64_t *")
        with self.storage.lock:
            self.storage.check(
                lib.hotbed_storage_export_end(*self.storage._at(self.table), end, self.storage.streams.current())
            )
        windows = -(-end[0] // _WINDOW)
        counts = torch.zeros(windows, dtype=torch.int64, device=self.storage.device)
        self._windows({}, None, counts, [0] * windows)
        each = counts.tolist()
        keys = torch.empty(sum(each), dtype=torch.int64, device=self.storage.device)
        _, parts = self.storage._parts(self.table, sum(each), ["weight", *self.storage.state_names()])
        self._windows(parts, keys, counts, [sum(each[:i]) for i in range(windows)])
        return keys, parts

    def read(self, removed: torch.Tensor) -> TableChanges:
        local, parts = self.rows()
        local = local.cpu()
        keys, order = torch.sort(self.storage.global_keys(self.table, local))
        if not self.storage.tables[self.table].is_hash:  # a rank's table may have more rows than the rank
            keeps = local[order] < self.storage.num_rows(self.table)
            keys, order = keys[keeps], order[keeps]
        parts = {name: part[order.to(part.device)] for name, part in parts.items()}
        weight = values_of(self.storage.tables[self.table], parts.pop("weight"))
        return TableChanges(keys, weight, parts, removed)


def changes(storages: List[Storage], since: Optional[Position]) -> Changes:
    """Return what changed in storages since a position.

    Raises:
        ArgumentError: no table has ``track_changes``; ``since`` is of another collection.
    """
    until = _take_positions(storages)
    if not until:
        raise ArgumentError("changes: no table has track_changes=True in its config", "track_changes", False)
    numbers_now = [tuple(int(word) for word in at.tolist()) for at in until.values()]
    if since is not None and [n[0] for n in since._numbers] != [n[0] for n in numbers_now]:  # numbers of storages
        raise ArgumentError("changes: since is of another collection", parameter="since")
    then = dict(zip(until, since._numbers)) if since is not None else {}
    readers: Dict[str, _Reader] = {}
    for storage in storages:
        for number, table in enumerate(storage.tables):
            if not _tracks(storage, number):
                continue
            at = int(ffi.cast("uintptr_t", storage._at(number)[0]))
            numbers = then.get(at)
            start = None if numbers is None else torch.tensor(numbers, dtype=torch.int64, device=storage.device)
            readers[table.name] = _Reader(storage, number, start, until[at])
    gone = {name: reader.removed() for name, reader in readers.items()} if since is not None else {}
    whole = since is None or any(keys is None for keys in gone.values())
    tables: Dict[str, TableChanges] = {}
    for name, reader in readers.items():
        left = gone.get(name)
        if whole or left is None:
            reader.since, left = torch.zeros_like(reader.until), torch.empty(0, dtype=torch.int64)
        tables[name] = reader.read(left)
    return Changes(tables, whole, Position(tuple((n[0], n[1], n[2]) for n in numbers_now)))
