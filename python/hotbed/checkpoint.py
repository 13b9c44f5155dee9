"""Checkpoints: save and load the tables of a collection, and read a checkpoint without the library's backends.

``save()``, ``load()`` and the check of digests in ``read()`` need a library that was built with HDF5
(``UnsupportedError`` otherwise).  ``read(verify=False)`` needs only h5py and numpy.  A checkpoint of a GPU's tables is
read on any machine.  ``docs/formats.md`` has the bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import shutil
import threading
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from hotbed._c import check, ffi, lib, new
from hotbed.errors import ArgumentError, CorruptError, FileError, StateError, UnsupportedError

if TYPE_CHECKING:
    import numpy
    import pandas

Path = Union[str, "os.PathLike[str]"]

_EXTRA_MOST = 1 << 30


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a checkpoint has beside rows.

    Attributes:
        step: as it was given to the save.
        extra: the caller's own bytes.
    """

    step: int
    extra: bytes


def _check(module: Any, extra: Any = b"", increments: Any = ()) -> None:
    """Check the arguments of a save or load.

    Raises:
        ArgumentError: one has another type.
    """
    if not isinstance(getattr(module, "storages", None), list):
        inside = module.named_modules() if hasattr(module, "named_modules") else ()
        found = [name for name, part in inside if isinstance(getattr(part, "storages", None), list)]
        hint = f"; it has {found}: save and load these" if found else ""
        raise ArgumentError(f"module: {type(module).__name__} is not a collection of hotbed.torch{hint}")
    if not isinstance(extra, (bytes, bytearray, memoryview)):
        raise ArgumentError(f"extra: {extra!r:.40} is not bytes")
    if isinstance(increments, (str, bytes, os.PathLike)):
        raise ArgumentError(f"increments: {increments!r} is one path, not a list of paths")


def _storages(module: Any, path: Path) -> List[Tuple[Any, bytes]]:
    """Storages of a collection with the path of each: sums and means of one collection lie side by side."""
    storages = list(module.storages)
    if b"\0" in os.fsencode(path):
        raise ArgumentError(f"path {path!r} has a null character")
    if len(storages) == 1:
        return [(storages[0], os.fsencode(path))]
    return [(s, os.fsencode(pathlib.Path(path) / s.label)) for s in storages]


@contextlib.contextmanager
def _together(module: Any) -> Iterator[None]:
    """Run what a rank does by itself; if it raises on one rank, all raise."""
    error: Optional[Exception] = None
    try:
        yield
    except Exception as raised:
        error = raised
    if module.comm is not None:
        from hotbed.torch._sharded import agree

        storage = module.storages[0]
        agree(module.comm, storage.device, storage.streams.current(), error)
    elif error is not None:
        raise error


class Arena:
    """Memory for the copies that ``async_save()`` makes, allocated once and used by one save after the other.

    Without one a copy goes to memory that is allocated for it.  On a GPU an arena makes the copy faster: tables whose
    rows are all in device memory are copied there, others to pinned memory.  What does not fit goes to host memory.

    Args:
        module: a collection on the device.
        device_bytes: of device memory.
        pinned_bytes: of pinned host memory.
    """

    def __init__(self, module: Any, device_bytes: int = 0, pinned_bytes: int = 0) -> None:
        """See the class."""
        out = ffi.new("hotbed_checkpoint_arena **")
        stream = module.storages[0].streams.current()
        check(lib.hotbed_checkpoint_arena_create(device_bytes, pinned_bytes, stream, out))
        self.pointer = out[0]
        weakref.finalize(self, lib.hotbed_checkpoint_arena_destroy, self.pointer)


class Saving:
    """A save that goes on in a thread while the program trains; ``async_save()`` returns it."""

    def __init__(
        self,
        path: Path,
        module: Any,
        step: int,
        extra: bytes,
        increments: Optional[Increments],
        arena: Optional[Arena],
    ) -> None:
        """See ``async_save()``."""
        _check(module, extra)
        self.path = os.fspath(path)
        self._module, self._increments = module, increments
        self._several = module.comm is not None and module.comm.size > 1
        self._folder = _folder(path, module)
        self._error: Optional[Exception] = None
        self._waited = False
        targets = _storages(module, self._folder)
        self._ids = ffi.new("hotbed_checkpoint_id[]", len(targets))
        self._begun = 0
        snapshots: List[Any] = []
        try:
            with _together(module):
                if os.path.lexists(path):
                    raise StateError(f"{self.path} exists")
                for number, (storage, place) in enumerate(targets):
                    keep: List[Any] = []
                    options = _options(module, number, step, extra, increments, keep)
                    options.comm = ffi.NULL  # a snapshot is of this rank's rows
                    options.arena = ffi.NULL if arena is None else arena.pointer
                    out = ffi.new("hotbed_checkpoint_snapshot **")
                    with storage.lock:
                        storage.check(
                            lib.hotbed_checkpoint_snapshot_take(
                                storage.pointer, options, storage.streams.current(), out
                            )
                        )
                    # The default argument keeps the arena until the snapshot is gone.
                    snapshots.append(ffi.gc(out[0], lambda s, _=arena: lib.hotbed_checkpoint_snapshot_destroy(s)))
                    if self._several and module.comm.rank == 0:
                        check(lib.hotbed_checkpoint_begin(place, self._ids + number))
                        self._begun += 1
            if self._several:
                from hotbed.torch._sharded import gather

                first = targets[0][0]
                ids = ffi.buffer(self._ids)
                ids[:] = gather(module.comm, first.device, first.streams.current(), bytes(ids))[0]
        except Exception:
            self._remove()
            raise
        self._thread = threading.Thread(target=self._write, args=(snapshots,), name=f"hotbed save {self.path}")
        self._thread.start()

    def _write(self, snapshots: List[Any]) -> None:
        try:
            for number, (_, place) in enumerate(_storages(self._module, self._folder)):
                snapshot = snapshots.pop(0)
                if self._several:
                    check(lib.hotbed_checkpoint_snapshot_put(snapshot, place, self._ids[number]))
                else:
                    check(lib.hotbed_checkpoint_snapshot_write(snapshot, place))
                ffi.release(snapshot)
            if not self._several:
                _name(self._folder, self.path)
        except Exception as error:
            logging.getLogger("hotbed").error("the save to %s failed: %s", self.path, error)
            self._error = error
        finally:
            snapshots.clear()

    def _remove(self) -> None:
        for number in range(self._begun):
            place = _storages(self._module, self._folder)[number][1]
            lib.hotbed_checkpoint_abort(place, self._ids[number])
        _remove(self._folder, self.path, self._module)

    def done(self) -> bool:
        """Say whether the thread has ended: this rank's rows are on disk, or an error is known."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the checkpoint is complete.  With several ranks, all call it; the path exists only afterwards.

        Raises:
            FileError: no space, no permission.
            HotbedError: another error of this save; the same again in later calls.
        """
        if not self._waited:
            self._thread.join()
            try:
                with _together(self._module):
                    if self._error is not None:
                        raise self._error
                if self._several:
                    with _together(self._module):
                        if self._module.comm.rank == 0:
                            for number, (_, place) in enumerate(_storages(self._module, self._folder)):
                                world = self._module.comm.size
                                check(lib.hotbed_checkpoint_commit(place, self._ids[number], world))
                            _name(self._folder, self.path)
            except Exception as error:
                self._error = error
                self._remove()
            self._waited = True
            if self._increments is not None:
                self._increments.ended(self.path, self._module, self._error)
        if self._error is not None:
            raise self._error


class Increments:
    """Saves one full checkpoint, and after it only what changed.

    Takes 24 bytes of host memory a row, for its digest.  The first save is full; each later one is an increment after
    the one before.  ``load()`` takes the first path, and the others as ``increments``.

    Attributes:
        paths: of the full checkpoint and its increments, in order.
    """

    def __init__(self) -> None:
        """See the class."""
        self._marks: Dict[int, Any] = {}
        self._saving: Optional[Saving] = None
        self.paths: List[str] = []

    def mark(self, number: int) -> Any:
        """Give the ``hotbed_checkpoint_mark *`` of a storage."""
        if number not in self._marks:
            out = ffi.new("hotbed_checkpoint_mark **")
            check(lib.hotbed_checkpoint_mark_create(out))
            self._marks[number] = ffi.gc(out[0], lib.hotbed_checkpoint_mark_destroy)
        return self._marks[number]

    def save(self, path: Path, module: Any, step: int = 0, extra: bytes = b"") -> None:
        """Save everything the first time, and then what changed since the last save.  Arguments as of ``save()``."""
        self._settle()
        error: Optional[Exception] = None
        try:
            _save(path, module, step, extra, self)
        except Exception as raised:
            error = raised
        self.ended(os.fspath(path), module, error)
        if error is not None:
            raise error

    def async_save(
        self, path: Path, module: Any, step: int = 0, extra: bytes = b"", arena: Optional[Arena] = None
    ) -> Saving:
        """Save like ``save()``, in a thread.  Arguments as of ``async_save()``.

        Waits first for the save before, and raises its error if nobody has called its ``wait()``.
        """
        self._settle()
        self._saving = Saving(path, module, step, extra, self, arena)
        return self._saving

    def _settle(self) -> None:
        if self._saving is not None:
            self._saving.wait()

    def ended(self, path: str, module: Any, error: Optional[Exception]) -> None:
        """Record the result of a save.

        After a failure the next increment has everything since the last checkpoint; of a collection with several
        storages, some of which may have been saved, the next checkpoint is full.
        """
        self._saving = None
        if error is None:
            self.paths.append(path)
        elif len(module.storages) > 1:
            self._marks.clear()
            self.paths.clear()


def _folder(path: Path, module: Any) -> pathlib.Path:
    """Give the directory to save to: of several storages, a new one, renamed when all are saved."""
    path = pathlib.Path(path)
    if len(module.storages) == 1:
        return path
    folder = path.with_name(f".tmp-{path.name}")
    with _together(module):
        if _is_first(module):
            if os.path.lexists(path):
                raise StateError(f"{path} exists")
            try:
                shutil.rmtree(folder, ignore_errors=True)  # a save that was killed left it
                folder.mkdir()
            except OSError as error:
                raise FileError(f"{folder}: {error}") from error
    return folder


def _is_first(module: Any) -> bool:
    return module.comm is None or module.comm.rank == 0


def _name(folder: pathlib.Path, path: Path) -> None:
    """Give a directory of several checkpoints its name."""
    if folder == pathlib.Path(path):
        return
    if os.path.lexists(path):
        raise StateError(f"{os.fspath(path)} exists")
    try:
        os.rename(folder, path)
        parent = os.open(folder.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise FileError(f"{os.fspath(path)}: {error}") from error


def _remove(folder: pathlib.Path, path: Path, module: Any) -> None:
    if folder != pathlib.Path(path) and _is_first(module):
        shutil.rmtree(folder, ignore_errors=True)


def _options(
    module: Any, number: int, step: int, extra: bytes, increments: Optional[Increments], keep: List[Any]
) -> Any:
    """Make the ``hotbed_checkpoint_options *`` of a storage, which borrows what is appended to ``keep``."""
    data = ffi.from_buffer(extra)
    options = new("checkpoint_options", step=step, extra_bytes=len(extra))
    options.extra = ffi.cast("void *", data) if extra else ffi.NULL
    keep.append(data)
    if increments is not None:
        options.mark = increments.mark(number)
        if increments.paths:
            keep.append(ffi.new("char[]", _storages(module, increments.paths[-1])[number][1]))
            options.parent = keep[-1]
    list(module.storages)[number].join(options, keep)
    return options


def _save(path: Path, module: Any, step: int, extra: bytes, increments: Optional[Increments]) -> None:
    _check(module, extra)
    folder = _folder(path, module)
    try:
        for number, (storage, place) in enumerate(_storages(module, folder)):
            keep: List[Any] = []
            options = _options(module, number, step, extra, increments, keep)
            with storage.lock:
                storage.check(lib.hotbed_checkpoint_save(place, storage.pointer, options, storage.streams.current()))
        with _together(module):
            if _is_first(module):
                _name(folder, path)
    except Exception:
        _remove(folder, path, module)
        raise


def save(path: Path, module: Any, step: int = 0, extra: bytes = b"") -> None:
    """Write the rows, scores and optimizer states of a collection to a new directory.  Waits for the disk.

    With several ranks all of them call it, and each writes its rows; the directory is on a file system that all see.

    Args:
        path: of the directory, which must not exist; it has its name only when all of it is on disk.
        module: an ``EmbeddingBagCollection`` or ``EmbeddingCollection``; forwards have had their backwards.
        step: of the training, given back by ``load()``.
        extra: bytes of the caller's own, at most 1 GiB: the dense model, for example.  Of several ranks, rank 0's.

    Raises:
        StateError: the path exists, or a forward still waits for its backward.
        FileError: no space, no permission.
        UnsupportedError: the library was built without HDF5.
    """
    _save(path, module, step, extra, None)


def async_save(path: Path, module: Any, step: int = 0, extra: bytes = b"", arena: Optional[Arena] = None) -> Saving:
    """Copy a collection, and write the copy in a thread.  Training goes on as soon as the copy is made.

    The checkpoint has the rows as they are now.  ``wait()`` of the result waits for the disk and raises errors of the
    write, which are also logged.  With several ranks all of them call ``async_save()``, and later ``wait()``.

    Args:
        path: as of ``save()``, and so the next three.
        module: the collection.
        step: of the training.
        extra: bytes of the caller's own.
        arena: memory for the copy; None: as much host memory as the rows and their states take, for this save.

    Raises:
        StateError: the path exists, or a forward still waits for its backward.
        OutOfMemoryError: no memory for the copy.
        UnsupportedError: the library was built without HDF5.
    """
    return Saving(path, module, step, extra, None, arena)


def load(path: Path, module: Any, increments: Sequence[Path] = ()) -> Loaded:
    """Replace the rows of a collection by the rows of a checkpoint.  Blocks are checked against their digests.

    The number of ranks may be another than the checkpoint's: all ranks of the collection call it, and each gets the
    rows of its keys.

    Args:
        path: a full checkpoint.
        module: a collection with the same table names, dims, data types and kind of optimizer; ``optimizer=None`` loads
            every checkpoint without the optimizer's states.  Static tables have the same ``num_embeddings``; the
            capacity of hash tables, eviction and device may differ.
        increments: paths of the increments after it, in order.

    Raises:
        CorruptError: a file is damaged.
        StateError: tables do not fit, or increments do not follow each other.
        FullError: a table that does not evict is full.
    """
    _check(module, increments=increments)
    result = Loaded(0, b"")
    for number, (storage, place) in enumerate(_storages(module, path)):
        parts = [ffi.new("char[]", _storages(module, p)[number][1]) for p in increments]
        array = ffi.new("char *[]", parts)
        options = new("checkpoint_load_options", num_increments=len(parts))
        options.increments = ffi.cast("char **", array) if parts else ffi.NULL
        step, size = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        with _together(module):
            size[0] = _extra_bytes(os.fsdecode(place), increments, number, module)
        buffer = ffi.new("char[]", max(1, size[0]))
        keep: List[Any] = []
        storage.join(options, keep)
        with storage.lock:
            stream = storage.streams.current()
            storage.check(lib.hotbed_checkpoint_load(place, storage.pointer, options, step, buffer, size, stream))
            storage.learning_rate = float(storage.clock()["learning_rate"])
            storage.space = [0] * len(storage.tables)  # counts the loaded keys
        if number == 0:
            result = Loaded(int(step[0]), bytes(ffi.buffer(buffer, size[0])))
    return result


def _extra_bytes(path: str, increments: Sequence[Path], number: int, module: Any) -> int:
    """Bytes of the caller's own in the last of the checkpoints, as its MANIFEST says."""
    last = os.fsdecode(_storages(module, increments[-1])[number][1]) if increments else path
    for words in _manifest(last):
        if words[0] == "extra":
            size = _number(last, words, "len")
            if not 0 <= size <= _EXTRA_MOST:
                raise CorruptError(f"{last}/MANIFEST is damaged: extra has {size} bytes")
            return size
    return 0


def _manifest(path: Path) -> Iterable[List[str]]:
    try:
        text = (pathlib.Path(path) / "MANIFEST").read_text("ascii")
    except OSError as error:
        parts = sorted(found.parent.name for found in pathlib.Path(path).glob("*/MANIFEST"))
        if parts:
            raise StateError(
                f"{os.fspath(path)} has a checkpoint for each of {parts}: read() one of them, or load() all into a "
                "collection with these poolings and routes; hotbed.Comm() is a communicator of one rank"
            ) from error
        raise FileError(f"{os.fspath(path)} is no checkpoint: {error}") from error
    except UnicodeDecodeError as error:
        raise CorruptError(f"{os.fspath(path)}/MANIFEST is damaged: {error}") from error
    return [line.split(" ") for line in text.splitlines() if line]


def _number(path: Path, words: List[str], name: str) -> int:
    """Give the number after a name in a line of the MANIFEST."""
    try:
        return int(words[words.index(name) + 1])
    except (ValueError, IndexError) as error:
        raise CorruptError(f"{os.fspath(path)}/MANIFEST is damaged: no {name!r} in {' '.join(words)!r:.80}") from error


# --- reading without the library ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of one table, in the order of the file.

    Attributes:
        name: of the table.
        keys: ``[rows]`` int64 or uint64; of a static table 0, 1, 2, ...
        weights: ``[rows, dim]`` float32 or float16; bfloat16 is read as float32.
        scores: ``[rows]`` uint64; None of a static table.
        states: ``[rows, dim]`` or ``[rows]`` float32, by the state's name.
    """

    name: str
    keys: numpy.ndarray[Any, Any]
    weights: numpy.ndarray[Any, Any]
    scores: Optional[numpy.ndarray[Any, Any]]
    states: Dict[str, numpy.ndarray[Any, Any]]

    def to_pandas(self) -> pandas.DataFrame:
        """Give a frame with a row a key, and a column an element."""
        import pandas

        return pandas.DataFrame(self.weights, index=pandas.Index(self.keys, name="key"))


def tables(path: Path) -> Dict[str, Tuple[int, int]]:
    """Give the tables of a checkpoint: rows and dim by name.

    Raises:
        FileError: there is no checkpoint at ``path``.
        CorruptError: its MANIFEST is damaged, so far as this can be seen without the digests.
    """
    found = {}
    for words in _manifest(path):
        if words[0] == "table":
            found[words[1]] = (_number(path, words, "rows"), _number(path, words, "dim"))
    return found


def read(
    path: Path, names: Optional[Iterable[str]] = None, progress: bool = False, verify: bool = True
) -> Dict[str, Table]:
    """Read tables of a full checkpoint into numpy, with h5py.

    Args:
        path: the checkpoint's directory.
        names: of the tables; None: all.
        progress: show a bar, where tqdm is installed.
        verify: read the whole checkpoint once before, and check all digests.  False: damaged rows are not noticed.

    Raises:
        FileError: there is no checkpoint.
        CorruptError: a file is missing or damaged.
        ArgumentError: an increment; a table that the checkpoint lacks.
        UnsupportedError: ``verify``, and the library was built without HDF5.
    """
    manifest = list(_manifest(path))
    if verify:
        try:
            check(lib.hotbed_checkpoint_check(os.fsencode(path)))
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}; verify=False reads without a check of the digests") from error
    known = tables(path)
    wanted = list(known) if names is None else list(names)
    for name in wanted:
        if name not in known:
            raise ArgumentError(f"{os.fspath(path)} has no table {name!r}; it has {sorted(known)}")
    shards = sum(1 for words in manifest if words[0] == "shard")
    for words in manifest:
        if words[0] == "id" and "delta" in words:
            raise ArgumentError(f"{os.fspath(path)} is an increment: load it after its parent with load()")
        if words[0] == "shard":
            shard = pathlib.Path(path) / f"shard-{_number(path, words, 'shard'):05}-of-{shards:05}.h5"
            if not shard.exists():
                raise CorruptError(f"{shard} is missing")
    try:
        return _read_tables(path, {name: known[name][0] for name in wanted}, progress)
    except (KeyError, OSError, RuntimeError) as error:
        raise CorruptError(f"{os.fspath(path)}: HDF5 cannot read it: {error}") from error


def _read_tables(path: Path, wanted: Dict[str, int], progress: bool) -> Dict[str, Table]:
    """Read tables, given their numbers of rows."""
    import h5py
    import numpy

    found = {}
    with h5py.File(pathlib.Path(path) / "index.h5", "r") as file:
        for name in _bar(list(wanted)) if progress else wanted:
            group = "+" if name == "." else name
            at = file["embeddings"][group]
            keys = at["weight_id"][:] if "weight_id" in at else numpy.arange(wanted[name], dtype=numpy.int64)
            scores = at["metadata"][:] if "metadata" in at else None
            optimizer = file.get(f"optimizer/embeddings.{group}.weight", {})
            states = {k[len(group) + 1 :]: v[:] for k, v in optimizer.items()}
            found[name] = Table(name, keys, at["weight"][:], scores, states)
    return found


def _bar(names: List[str]) -> Iterable[str]:
    try:
        from tqdm import tqdm
    except ImportError:
        return names
    bar: Iterable[str] = tqdm(names, unit="table")
    return bar


__all__ = ["Arena", "Increments", "Loaded", "Saving", "Table", "async_save", "load", "read", "save", "tables"]
