"""What changed in the tables of a collection since a position."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from hotbed._c import check, ffi, lib, new
from hotbed.errors import ArgumentError
from hotbed.torch._storage import Storage, values_of

_WINDOW = 1 << 26  # slots of one export


@dataclasses.dataclass(frozen=True)
class Position:
    """A point in the record of a collection's changes: :attr:`Changes.position`.

    It is of one collection in one process, and means nothing to another.
    """

    _numbers: Tuple[Tuple[int, int, int], ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class ChangeFilter:
    """Which changed rows of a table a receiver gets: rows that are within all limits.  A limit of 0 is none.

    Keys that left are always sent, and if all rows are sent, no row is left out.  The limits are of each rank.

    Attributes:
        min_score: of the key; with ``Score.LFU``, how often batches had it.
        min_occurrences: how often batches had the key since the receiver got its row, or since the key came to the
            table; for ``Score.LFU`` and ``Score.TIMESTAMP_LFU``.
        most_rows: at most this number of rows, those with the highest scores.
        min_change: L2 norm of the difference from the row that the receiver has.
    """

    min_score: int = 0
    min_occurrences: int = 0
    most_rows: int = 0
    min_change: float = 0.0

    def __post_init__(self) -> None:
        """Check that the limits fit the C types.

        Raises:
            ArgumentError: one does not.
        """
        for name in ("min_score", "min_occurrences", "most_rows"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < 1 << 64:
                raise ArgumentError(f"{name} is {value!r}, not from 0 to 2^64 - 1", parameter=name, value=value)


#: Returns the rows that a receiver has of keys of a table, ``[n, embedding_dim]``, and the scores that it got with
#: them, ``[n]``; of a key that it does not have, the row that it uses, and 0.  None: the filter has no such limit.
Receiver = Callable[[str, torch.Tensor], Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]]


@dataclasses.dataclass
class TableChanges:
    """The changes of one table, on this rank.

    Attributes:
        keys: ``[n]`` int64, ascending: keys whose rows were changed.
        rows: ``[n, embedding_dim]``, their rows.
        states: optimizer states by name, ``[n, ...]``, of the same keys.
        scores: ``[n]`` int64, of the same keys; None for a table without scores.
        removed: ``[m]`` int64, ascending: keys that have left the table and are not back.  The receiver may lack some,
            which came and left.
        left_out: ``[k]`` int64, ascending: keys whose rows were changed, and that the filter left out.  A later call
            has them again if they are changed again, or if ``since`` is from before this one.
    """

    keys: torch.Tensor
    rows: torch.Tensor
    states: Dict[str, torch.Tensor]
    scores: Optional[torch.Tensor]
    removed: torch.Tensor
    left_out: torch.Tensor


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
            at = torch.zeros(3, dtype=torch.int64, device=storage.device)
            to = ffi.cast("hotbed_change_position *", at.data_ptr())
            storage._call(lib.hotbed_storage_position, pointer, to, wait=True)
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
            self.storage._call(lib.hotbed_storage_removed, pointer, batch, wait=True)
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
            stream = self.storage.streams.ordered()
            for i, start in enumerate(starts):
                batch.first, batch.count = i * _WINDOW, self._words(counts[i:])
                if keys is not None and start < keys.shape[0]:
                    batch.keys, batch.capacity = self._words(keys[start:]), keys.shape[0] - start
                    item.weights = ffi.cast("void *", rows["weight"][start:].data_ptr())
                    if "scores" in rows:
                        item.scores = ffi.cast("uint64_t *", rows["scores"][start:].data_ptr())
                    for s, name in enumerate(self.storage.state_names()):
                        item.states[s] = ffi.cast("void *", rows[name][start:].data_ptr())
                    batch.rows = item[0]
                elif keys is not None:
                    continue
                self.storage.check(lib.hotbed_storage_export(pointer, batch, stream))
            self.storage.check(lib.hotbed_stream_sync(stream))

    def rows(self) -> Tuple[torch.Tensor, Dict[str, torch.Tensor]]:
        """Return keys of the lookup, and the parts of their rows."""
        end = ffi.new("uint64_t *")
        self.storage._call(lib.hotbed_storage_export_end, *self.storage._at(self.table), end)
        windows = -(-end[0] // _WINDOW)
        counts = torch.zeros(windows, dtype=torch.int64, device=self.storage.device)
        self._windows({}, None, counts, [0] * windows)
        each = counts.tolist()
        keys = torch.empty(sum(each), dtype=torch.int64, device=self.storage.device)
        scores = ["scores"] if self.storage.tables[self.table].is_hash else []
        _, parts = self.storage._parts(self.table, sum(each), ["weight", *scores, *self.storage.state_names()])
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
        scores = parts.pop("scores", None)
        return TableChanges(keys, weight, parts, scores, removed, torch.empty(0, dtype=torch.int64))


def filter_array(names: Sequence[str], filters: Mapping[str, ChangeFilter], what: str) -> Any:
    """Return the C filter of each table; tables that ``filters`` lacks have none.

    Raises:
        ArgumentError: a filter is of another table.
    """
    for name in filters:
        if name not in names:
            raise ArgumentError(f"{what}: there is no table {name!r}; the tables are {list(names)}", what, table=name)
    none = ChangeFilter()
    return ffi.new("hotbed_change_filter[]", [dataclasses.asdict(filters.get(name, none)) for name in names])


def _received(
    name: str, limits: ChangeFilter, found: TableChanges, receiver: Receiver
) -> Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]:
    """Return how often each key occurred, and the norm of its row's change, as far as there are limits for them."""
    rows, scores = receiver(name, found.keys)
    occurrences = changes = None
    for what, given, want in (("rows", rows, found.rows), ("scores", scores, found.scores)):
        if given is not None and (want is None or given.shape != want.shape):
            raise ArgumentError(
                f"receiver: {what} of table {name!r} are {tuple(given.shape)}, not "
                f"{'None' if want is None else tuple(want.shape)}",
                parameter="receiver",
                table=name,
                value=tuple(given.shape),
            )
    if limits.min_occurrences and scores is not None and found.scores is not None:
        now, then = found.scores.cpu(), scores.cpu()
        occurrences = torch.where(now >= then, now - then, now).contiguous()  # less: the key left, and is back
    if limits.min_change and rows is not None:
        changes = torch.linalg.vector_norm(found.rows.cpu().double() - rows.cpu().double(), dim=1).contiguous()
    for limit, what, given in (("min_occurrences", "scores", occurrences), ("min_change", "rows", changes)):
        if getattr(limits, limit) and given is None:
            raise ArgumentError(
                f"receiver: no {what} of table {name!r}, whose filter has {limit}", parameter="receiver", table=name
            )
    return occurrences, changes


def _select(
    name: str, limits: ChangeFilter, pointer: Any, found: TableChanges, receiver: Optional[Receiver]
) -> TableChanges:
    """Leave out what the filter does."""
    occurrences = changes = scores = None
    if limits.min_occurrences or limits.min_change:
        if receiver is None:
            raise ArgumentError(
                f"receiver: the filter of table {name!r} compares with what the receiver has; pass receiver=",
                parameter="receiver",
                table=name,
            )
    if len(found.keys) == 0:
        return found
    if receiver is not None and (limits.min_occurrences or limits.min_change):
        occurrences, changes = _received(name, limits, found, receiver)
    if found.scores is not None:
        scores = found.scores.cpu().contiguous()
    passes = torch.zeros(len(found.keys), dtype=torch.bool)

    def data(kind: str, tensor: Optional[torch.Tensor]) -> Any:
        return ffi.NULL if tensor is None else ffi.cast(kind, tensor.data_ptr())

    check(
        lib.hotbed_change_filter_select(
            pointer,
            len(found.keys),
            data("uint64_t *", scores),
            data("uint64_t *", occurrences),
            data("double *", changes),
            data("bool *", passes),
        )
    )

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[passes.to(tensor.device)]

    states = {state: kept(part) for state, part in found.states.items()}
    return TableChanges(
        kept(found.keys),
        kept(found.rows),
        states,
        None if found.scores is None else kept(found.scores),
        found.removed,
        found.keys[~passes],
    )


def changes(
    storages: List[Storage],
    since: Optional[Position],
    filters: Mapping[str, ChangeFilter],
    receiver: Optional[Receiver],
) -> Changes:
    """Return what changed in storages since a position.

    Raises:
        ArgumentError: no table has ``track_changes``; ``since`` is of another collection; a filter does not fit its
            table.
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
            address = int(ffi.cast("uintptr_t", storage._at(number)[0]))
            numbers = then.get(address)
            start = None if numbers is None else torch.tensor(numbers, dtype=torch.int64, device=storage.device)
            readers[table.name] = _Reader(storage, number, start, until[address])
    names = list(readers)
    limits = filter_array(names, filters, "filters")
    for at, name in enumerate(names):
        check(lib.hotbed_change_filter_check(*readers[name].storage._at(readers[name].table), limits + at))
    gone = {name: reader.removed() for name, reader in readers.items()} if since is not None else {}
    whole = since is None or any(keys is None for keys in gone.values())
    tables: Dict[str, TableChanges] = {}
    for at, (name, reader) in enumerate(readers.items()):
        left = gone.get(name)
        if whole or left is None:
            reader.since, left = torch.zeros_like(reader.until), torch.empty(0, dtype=torch.int64)
        tables[name] = reader.read(left)
        if name in filters and not whole:
            tables[name] = _select(name, filters[name], limits + at, tables[name], receiver)
    return Changes(tables, whole, Position(tuple((n[0], n[1], n[2]) for n in numbers_now)))
