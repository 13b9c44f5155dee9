"""Checkpoints: save and load the tables of a collection, and read a checkpoint without the library's backends.

``save()``, ``load()`` and the check of digests in ``read()`` need a library that was built with HDF5
(``UnsupportedError`` otherwise).  ``read(verify=False)`` needs only h5py and numpy.  A checkpoint of a GPU's tables is
read on any machine.  ``docs/formats.md`` has the bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import logging
import os
import pathlib
import re
import shutil
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from hotbed._c import check, ffi, lib, new
from hotbed.errors import ArgumentError, CorruptError, FileError, StateError, UnsupportedError

if TYPE_CHECKING:
    import numpy
    import pandas

Path = Union[str, "os.PathLike[str]"]

_EXTRA_MOST = 1 << 30
_PATH_BYTES = 480
_PARTS, _PARTS_HEAD = "PARTS", "hotbed-parts 1"


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The contents of a checkpoint beside rows.

    Attributes:
        step: the step that was passed to the save.
        extra: the caller's bytes.
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
    """Return the storages of a collection, each with its path: sums and means have a directory each."""
    storages = list(module.storages)
    if b"\0" in os.fsencode(path):
        raise ArgumentError(f"path {path!r} has a null character")
    if len(storages) == 1:
        return [(storages[0], os.fsencode(path))]
    return [(s, os.fsencode(pathlib.Path(path) / s.label)) for s in storages]


@contextlib.contextmanager
def _together(module: Any) -> Iterator[None]:
    """Run a block that does not communicate; if it raises on one rank, all ranks raise."""
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


def _compare_paths(module: Any, path: Path) -> None:
    """Raise on all ranks if two ranks save under different names, or if only some of the directories exist.

    The paths to the directory may differ.
    """
    if module.comm is None:
        return
    from hotbed.torch._sharded import gather

    first = module.storages[0]
    exists = b"+" if os.path.lexists(pathlib.Path(path).parent) else b"-"
    mine = exists + os.fsencode(path)[-_PATH_BYTES:].ljust(_PATH_BYTES, b"\0")
    found = gather(module.comm, first.device, first.streams.current(), mine)
    every = [os.fsdecode(p[1:].rstrip(b"\0")) for p in found]
    for rank, theirs in enumerate(every):
        if pathlib.Path(theirs).name != pathlib.Path(every[0]).name:
            raise ArgumentError(
                f"path: rank {rank} saves to {theirs!r}, rank 0 to {every[0]!r}; pass the same path on all ranks"
            )
    there = [p[:1] == b"+" for p in found]
    if any(there) and not all(there):
        without, other = there.index(False), there.index(True)
        raise FileError(
            f"rank {without} saves to {every[without]!r}, whose directory does not exist there, rank {other} to "
            f"{every[other]!r}; pass a path in one directory that all ranks can reach"
        )


class Arena:
    """Memory for the copies that ``async_save()`` makes, allocated once and used by one save at a time.

    Without an arena, each save allocates host memory for its copy.  On a GPU an arena makes the copy faster: tables
    whose rows are all in device memory are copied to device memory, others to pinned memory.  Rows that do not fit into
    the arena go to host memory.

    Args:
        module: a collection on the device.
        device_bytes: bytes of device memory.
        pinned_bytes: bytes of pinned host memory.
    """

    def __init__(self, module: Any, device_bytes: int = 0, pinned_bytes: int = 0) -> None:
        out = ffi.new("hotbed_checkpoint_arena **")
        stream = module.storages[0].streams.current()
        check(lib.hotbed_checkpoint_arena_create(device_bytes, pinned_bytes, stream, out))
        self.pointer = out[0]
        weakref.finalize(self, lib.hotbed_checkpoint_arena_destroy, self.pointer)


class Saving:
    """A save that runs in a thread while the program trains; ``async_save()`` returns it."""

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
        _compare_paths(module, path)
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
                    options.comm = ffi.NULL  # a snapshot has this rank's rows only
                    options.arena = ffi.NULL if arena is None else arena.pointer
                    out = ffi.new("hotbed_checkpoint_snapshot **")
                    with storage.lock:
                        storage.check(
                            lib.hotbed_checkpoint_snapshot_take(
                                ffi.new("hotbed_storage *[]", [storage.pointer]),
                                1,
                                options,
                                storage.streams.current(),
                                out,
                            )
                        )
                    # The default argument keeps the arena alive until the snapshot is destroyed.
                    snapshots.append(ffi.gc(out[0], lambda s, _=arena: lib.hotbed_checkpoint_snapshot_destroy(s)))
                    if self._several and module.comm.rank == 0:
                        check(lib.hotbed_checkpoint_begin(place, self._ids + number))
                        self._begun += 1
            if self._several:
                from hotbed.torch._sharded import gather

                first = targets[0][0]
                ids = ffi.buffer(self._ids)
                ids[:] = gather(module.comm, first.device, first.streams.current(), bytes(ids))[0]
        except BaseException:
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
        """Return whether the thread has ended: this rank's rows are on disk, or it has failed."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the checkpoint is complete.  With several ranks, all call it; the path exists only afterwards.

        Raises:
            FileError: the files could not be written, for example for lack of space or permission.
            HotbedError: another error of this save.  Later calls raise the same error.
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
    """Saves a full checkpoint first, and then increments: what changed since the previous save.

    All saves are of one collection; make an ``Increments`` for each.

    Keeps a digest of each row, which takes 24 bytes of host memory per row.  To load, pass the first of ``paths`` to
    ``load()``, and the others as its ``increments``.

    Before each increment, rank 0 checks that all checkpoints of ``paths`` still exist and are the saved ones.  If one
    does not, for example because ``hotbed-ckpt gc`` has removed it, the save is a full one, ``paths`` begins with it,
    and a ``UserWarning`` names the missing one.

    Attributes:
        paths: paths of the full checkpoint and its increments, in order.
    """

    def __init__(self) -> None:
        self._marks: Dict[int, Any] = {}
        self._saving: Optional[Saving] = None
        self._saved: Any = None  # a weak reference to the first storage of the collection
        self._ids: List[List[str]] = []  # of each checkpoint: the ids of its parts; rank 0 only
        self.paths: List[str] = []

    def mark(self, number: int) -> Any:
        """Return the ``hotbed_checkpoint_mark *`` of a storage."""
        if number not in self._marks:
            out = ffi.new("hotbed_checkpoint_mark **")
            check(lib.hotbed_checkpoint_mark_create(out))
            self._marks[number] = ffi.gc(out[0], lib.hotbed_checkpoint_mark_destroy)
        return self._marks[number]

    def save(self, path: Path, module: Any, step: int = 0, extra: bytes = b"") -> None:
        """Save everything the first time, and later what changed since the last save.  Arguments as in ``save()``.

        Raises:
            ArgumentError: ``module`` is not the collection of the first save.
        """
        self._settle(module)
        self._check_chain(module)
        error: Optional[BaseException] = None
        try:
            _save(path, module, step, extra, self)
        except BaseException as raised:
            error = raised
        self.ended(os.fspath(path), module, error)
        if error is not None:
            raise error

    def async_save(
        self, path: Path, module: Any, step: int = 0, extra: bytes = b"", arena: Optional[Arena] = None
    ) -> Saving:
        """Save like ``save()``, in a thread.  Arguments as in ``async_save()``.

        First waits for the previous save, and raises its error unless a call of its ``wait()`` has done so.
        """
        self._settle(module)
        self._check_chain(module)
        self._saving = Saving(path, module, step, extra, self, arena)
        return self._saving

    def _settle(self, module: Any) -> None:
        """Wait for the previous save, and check that the next one is of the same collection."""
        if self._saving is not None:
            self._saving.wait()
        _check(module)
        if self.paths and self._saved() is not module.storages[0]:
            raise ArgumentError(
                f"module: {self.paths[0]} is a checkpoint of another collection; make an Increments() for each "
                "collection"
            )

    def _clear(self) -> None:
        """Make the next save a full one."""
        self._marks.clear()
        self._ids.clear()
        self.paths.clear()

    def _check_chain(self, module: Any) -> None:
        """Make the next save a full one if a checkpoint of the chain was removed or replaced.  Rank 0 decides."""
        missing = b""
        if _is_first(module):
            found = (path for path, ids in zip(self.paths, self._ids) if _ids(module, path) != ids)
            missing = os.fsencode(next(found, ""))[-_PATH_BYTES:]
        if module.comm is not None:
            from hotbed.torch._sharded import gather

            first = module.storages[0]
            padded = missing.ljust(_PATH_BYTES, b"\0")
            missing = gather(module.comm, first.device, first.streams.current(), padded)[0].rstrip(b"\0")
        if missing:
            warnings.warn(
                f"{os.fsdecode(missing)}, which the next increment would need, was removed or replaced: the next save "
                "is a full one",
                stacklevel=3,
            )
            self._clear()

    def ended(self, path: str, module: Any, error: Optional[BaseException]) -> None:
        """Record the result of a save.

        After a failure the next increment has all changes since the last complete checkpoint.  If the collection has
        several storages, some of them may have been saved, so the next checkpoint is full.  So it is after Ctrl-C,
        which may arrive when the save is complete.
        """
        self._saving = None
        if error is None:
            self._saved = weakref.ref(module.storages[0])
            self.paths.append(path)
            self._ids.append(_ids(module, path) if _is_first(module) else [])
        elif len(module.storages) > 1 or not isinstance(error, Exception):
            self._clear()


def _ids(module: Any, path: Path) -> List[str]:
    """Return the ids of the parts of a checkpoint; "": it cannot be read."""
    return [_head(os.fsdecode(place)).get("id", "") for _, place in _storages(module, path)]


def _head(path: Path) -> Dict[str, str]:
    """Return a checkpoint's id, parent, step and time, from the beginning of its MANIFEST; {}: it cannot be read."""
    head = b""
    with contextlib.suppress(OSError), (pathlib.Path(path) / "MANIFEST").open("rb") as file:
        head = file.read(512)
    lines = [line.split(" ") for line in head.decode("ascii", "replace").split("\n")[:-1]]
    found: Dict[str, str] = {}
    for words in lines:
        if words[0] in ("id", "parent"):
            found.update(zip(words[::2], words[1::2]))
    return found


def _folder(path: Path, module: Any) -> pathlib.Path:
    """Return the directory to save to; for several storages a new one, which is renamed when all are saved."""
    path = pathlib.Path(path)
    if len(module.storages) == 1:
        return path
    folder = path.with_name(f".tmp-{path.name}")
    with _together(module):
        if _is_first(module):
            if os.path.lexists(path):
                raise StateError(f"{path} exists")
            try:
                shutil.rmtree(folder, ignore_errors=True)  # left by a save that was killed
                folder.mkdir()
                _write_parts(folder, [storage.label for storage in module.storages])
            except FileNotFoundError as error:
                raise FileError(
                    f"the directory {path.parent}, in which {path.name} is to be saved, does not exist: create it"
                ) from error
            except OSError as error:
                raise FileError(f"{folder}: {error}") from error
    return folder


def _write_parts(folder: pathlib.Path, names: List[str]) -> None:
    """Write the file that lists the checkpoints in a directory, so that they are kept or removed together."""
    with (folder / _PARTS).open("x", encoding="ascii", newline="\n") as file:
        file.write("".join(f"{line}\n" for line in (_PARTS_HEAD, *names)))
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: pathlib.Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_first(module: Any) -> bool:
    return module.comm is None or module.comm.rank == 0


def _name(folder: pathlib.Path, path: Path) -> None:
    """Rename a directory of several checkpoints to its final name."""
    if folder == pathlib.Path(path):
        return
    if os.path.lexists(path):
        raise StateError(f"{os.fspath(path)} exists")
    try:
        _sync(folder)
        os.rename(folder, path)
        try:
            _sync(folder.parent)
        except OSError:  # the name may not survive a power failure, so the failed save removes it
            os.rename(path, folder)
            raise
    except OSError as error:
        raise FileError(f"{os.fspath(path)}: {error}") from error


def _remove(folder: pathlib.Path, path: Path, module: Any) -> None:
    if folder != pathlib.Path(path) and _is_first(module):
        shutil.rmtree(folder, ignore_errors=True)


def _options(
    module: Any, number: int, step: int, extra: bytes, increments: Optional[Increments], keep: List[Any]
) -> Any:
    """Create the ``hotbed_checkpoint_options *`` of a storage, which points to objects appended to ``keep``."""
    data = ffi.from_buffer(extra)
    options = new("checkpoint_options", step=step, num_blobs=1)
    name, blob = ffi.new("char[]", b"extra"), ffi.new("hotbed_checkpoint_blob *")
    blob.name, blob.data, blob.bytes = name, ffi.cast("void *", data), len(extra)
    options.blobs = blob
    keep += [data, name, blob]
    if increments is not None:
        options.mark = increments.mark(number)
        if increments.paths:
            keep.append(ffi.new("char[]", _storages(module, increments.paths[-1])[number][1]))
            options.parent = keep[-1]
    list(module.storages)[number].join(options, keep)
    return options


def _save(path: Path, module: Any, step: int, extra: bytes, increments: Optional[Increments]) -> None:
    _check(module, extra)
    _compare_paths(module, path)
    folder = _folder(path, module)
    try:
        for number, (storage, place) in enumerate(_storages(module, folder)):
            keep: List[Any] = []
            options = _options(module, number, step, extra, increments, keep)
            with storage.lock:
                one = ffi.new("hotbed_storage *[]", [storage.pointer])
                storage.check(lib.hotbed_checkpoint_save(place, one, 1, options, storage.streams.current()))
        with _together(module):
            if _is_first(module):
                _name(folder, path)
    except BaseException:
        _remove(folder, path, module)
        raise


def save(path: Path, module: Any, step: int = 0, extra: bytes = b"") -> None:
    """Write the rows, scores and optimizer states of a collection to a new directory.  Waits for the disk.

    With several ranks, all call it and each writes its rows; all ranks must see the directory's file system.

    Args:
        path: path of a directory that does not exist; it appears under this name only when it is complete and on disk.
            The directory that will contain it must exist.  The same on all ranks.
        module: an ``EmbeddingBagCollection`` or ``EmbeddingCollection``; no forward may wait for its backward, except
            in static tables in one tier.
        step: the training step, which ``load()`` returns.
        extra: the caller's bytes, at most 1 GiB, for example the dense model.  With several ranks, rank 0's are saved.

    Raises:
        ArgumentError: ranks save under different names.
        StateError: the path exists, a forward still waits for its backward, or ranks save different steps.
        FileError: the files could not be written, for example for lack of space or permission, or because the directory
            that will contain ``path`` does not exist.
        UnsupportedError: the library was built without HDF5.
    """
    _save(path, module, step, extra, None)


def async_save(path: Path, module: Any, step: int = 0, extra: bytes = b"", arena: Optional[Arena] = None) -> Saving:
    """Copy a collection, and write the copy in a thread.  Returns as soon as the copy is made.

    The checkpoint has the rows as they are during the call.  ``wait()`` of the result waits for the disk and raises the
    errors of the write, which are also logged.  With several ranks, all call ``async_save()``, and later ``wait()``.

    Args:
        path: as in ``save()``.
        module: as in ``save()``.
        step: as in ``save()``.
        extra: as in ``save()``.
        arena: memory for the copy; None: allocate as much host memory as the rows and their states take.

    Raises:
        ArgumentError: ranks save under different names.
        StateError: the path exists, or a forward still waits for its backward.
        OutOfMemoryError: the memory for the copy could not be allocated.
        UnsupportedError: the library was built without HDF5.
    """
    return Saving(path, module, step, extra, None, arena)


def load(path: Path, module: Any, increments: Sequence[Path] = ()) -> Loaded:
    """Replace the rows of a collection by the rows of a checkpoint.  Blocks are checked against their digests.

    With several ranks, all call it, and each gets the rows of its keys.  The checkpoint may have been saved by another
    number of ranks.  The collection keeps its seed; a ``UserWarning`` is issued if the checkpoint was trained with
    another one, because keys that are new after the load then get other initial rows than in that run.  Another one
    says how many rows of a table that evicts did not fit (not with several ranks or increments).  A load that fails
    leaves the tables empty.

    Args:
        path: a full checkpoint.
        module: a collection with the same table names, dims, data types and kind of optimizer; ``optimizer=None`` loads
            every checkpoint without the optimizer's states.  Static tables have the same ``num_embeddings``; the
            capacity of hash tables, eviction and device may differ.
        increments: paths of the increments that follow it, in order.

    Raises:
        CorruptError: a file is damaged.
        StateError: the tables differ from the checkpoint's, the increments do not follow each other, or the ranks load
            different checkpoints.
        FullError: a table that does not evict is full.
    """
    _check(module, increments=increments)
    result = Loaded(0, b"")
    for number, (storage, place) in enumerate(_storages(module, path)):
        parts = [ffi.new("char[]", _storages(module, p)[number][1]) for p in increments]
        array = ffi.new("char *[]", parts)
        options = new("checkpoint_load_options", num_increments=len(parts))
        options.increments = ffi.cast("char **", array) if parts else ffi.NULL
        size = ffi.new("uint64_t *")
        with _together(module):
            size[0] = _extra_bytes(os.fsdecode(place), increments, number, module)
            chain = [_storages(module, p)[number][1] for p in (path, *increments)]
            ids = [_id(p) for p in chain]
        _compare(module, path, ids)
        _check_order([os.fsdecode(p) for p in chain])
        buffer = ffi.new("char[]", max(1, size[0]))
        keep: List[Any] = []
        storage.join(options, keep)
        with storage.lock:
            stream = storage.streams.current()
            storage.learning_rate = None  # unknown, if the load fails or Ctrl-C ends it
            storage.count_again()
            one = ffi.new("hotbed_storage *[]", [storage.pointer])
            storage.check(lib.hotbed_checkpoint_load(place, one, 1, options, ffi.NULL, stream))
            storage.learning_rate = float(storage.clock()["learning_rate"])
            text = ffi.new("char[]", 256)
            storage.check(lib.hotbed_storage_warning(storage.pointer, text, len(text)))
        if text[0] != b"\0":
            warnings.warn(f"{os.fspath(path)}: {ffi.string(text).decode(errors='replace')}", stacklevel=2)
        if module.comm is None and not increments:
            _warn_of_dropped_rows(os.fsdecode(place), storage)
        if number == 0:
            last = chain[-1]
            if size[0] > 0:
                check(lib.hotbed_checkpoint_read_blob(last, b"extra", buffer, size))
            result = Loaded(int(_head(os.fsdecode(last))["step"]), bytes(ffi.buffer(buffer, size[0])))
    return result


@dataclasses.dataclass(frozen=True)
class _Found:
    """A checkpoint in a directory, with or without parts, from the beginning of its MANIFEST or MANIFESTs."""

    path: pathlib.Path
    parts: Tuple[str, ...]  # their names; ("",): it has none
    ids: Tuple[str, ...]
    parents: Tuple[str, ...]  # "-": it is a full checkpoint
    order: Tuple[int, int, bool]  # step, time, and whether it is no link


def latest(directory: Path) -> List[str]:
    """Return the paths of the newest whole checkpoint in a directory, to resume from it.

    The first path is a full checkpoint; the others are the increments that lead to the newest one::

        paths = checkpoint.latest("runs/a")
        if paths:
            loaded = checkpoint.load(paths[0], embeddings, paths[1:])

    A checkpoint is whole if all its files, and the checkpoints that it follows, exist in the directory and pass the
    check of ``hotbed-ckpt verify --quick``, which reads no rows; ``load()`` checks the rows.  The newest one has the
    highest step, then the latest time.  Newer ones that are not whole are skipped, each with a ``UserWarning``.
    Unfinished saves, and names that end in ``.damaged``, are ignored.  With several ranks let one rank call it, and
    send the paths to the others.

    Returns:
        []: there is no whole checkpoint.

    Raises:
        FileError: a directory or file cannot be read.
        UnsupportedError: a checkpoint has a newer format, or the library was built without HDF5.
    """
    try:
        every = [_find(place) for place in sorted(pathlib.Path(directory).iterdir()) if _is_finished(place)]
    except OSError as error:
        raise FileError(f"{os.fspath(directory)}: {error}") from error
    known = {(f.parts, f.ids): f for f in sorted(filter(None, every), key=lambda f: f.order)}
    for newest in sorted(known.values(), key=lambda f: f.order, reverse=True):
        chain = [newest]
        try:
            while set(chain[0].parents) != {"-"}:
                before = known.get((chain[0].parts, chain[0].parents))
                if before is None or before in chain:
                    raise CorruptError(f"{chain[0].path} is an increment, whose parent was not found")
                chain.insert(0, before)
            for one in chain:
                for part in one.parts:
                    check(lib.hotbed_checkpoint_check_quick(os.fsencode(one.path / part)))
            return [os.fspath(one.path) for one in chain]
        except CorruptError as error:
            warnings.warn(f"{newest.path} cannot be loaded: {error}", stacklevel=2)
    return []


def _is_finished(path: pathlib.Path) -> bool:
    return path.is_dir() and not path.name.startswith(".tmp-") and not re.search(r"\.damaged(-[0-9]+)?$", path.name)


def _find(path: pathlib.Path) -> Optional[_Found]:
    """Return a checkpoint; None if it has no files of one, or, after a warning, if it is damaged."""
    if (path / "MANIFEST").exists():
        parts = [""]
    elif (path / _PARTS).exists():
        head, *parts = (path / _PARTS).read_text("ascii", "replace").splitlines() or [""]
        parts = sorted(parts) if head == _PARTS_HEAD else [""]
    else:
        parts = _parts(path)
    heads = [_head(path / part) for part in parts]
    if not heads:
        return None
    number = {"step": 0, "created": 0}
    try:
        ids, parents = (tuple(head[name] for head in heads) for name in ("id", "parent"))
        number = {name: max(int(head[name]) for head in heads) for name in number}
        whole = len({head["step"] for head in heads}) == 1
        whole = whole and (len(parts) > 1 or parts == [""] or (path / _PARTS).exists())
    except (KeyError, ValueError):
        whole = False
    if not whole:
        warnings.warn(f"{path} cannot be loaded: it is damaged, or a part of it is missing", stacklevel=3)
        return None
    return _Found(path, tuple(parts), ids, parents, (number["step"], number["created"], not path.is_symlink()))


def _warn_of_dropped_rows(path: str, storage: Any) -> None:
    saved = tables(path)
    for number, table in enumerate(storage.tables):
        rows, kept = saved[table.name][0], storage.size(number) if table.is_hash else 0
        if table.is_hash and kept < rows:
            warnings.warn(f"{path}: table {table.name!r}: {kept} of {rows} rows fit", stacklevel=3)


def _id(place: bytes) -> str:
    """Return the id of a checkpoint, from its MANIFEST."""
    return next((words[1] for words in _manifest(os.fsdecode(place)) if words[0] == "id" and len(words) > 1), "")


def _check_order(chain: List[str]) -> None:
    """Raise if an increment does not follow the checkpoint before it, and name its parent if it is found."""
    for before, path in zip(chain, chain[1:]):
        parent, found = _head(path).get("parent", "-"), _head(before).get("id", "")
        if parent in ("-", found):
            continue  # the library reports a full checkpoint
        folder, part = pathlib.Path(path).parent, glob.escape(pathlib.Path(path).name)
        # The parents of a part are in the directories beside its own.
        beside = [*sorted(folder.glob("*/MANIFEST")), *sorted(folder.parent.glob(f"*/{part}/MANIFEST"))]
        places = [p for p in (*chain, *(os.fspath(m.parent) for m in beside)) if _head(p).get("id") == parent]
        name = f"{places[0]} (id {parent})" if places else f"a checkpoint with the id {parent}, which was not found"
        raise StateError(
            f"{path} does not follow the checkpoint before it, {before} (id {found}): its parent is {name}"
        )


def _compare(module: Any, path: Path, ids: List[str]) -> None:
    """Raise on all ranks if two ranks load different checkpoints or increments."""
    if module.comm is None:
        return
    from hotbed.torch._sharded import gather

    first = module.storages[0]
    mine = hashlib.sha256(" ".join(ids).encode()).digest()
    every = gather(module.comm, first.device, first.streams.current(), mine)
    for rank, theirs in enumerate(every):
        if theirs != every[0]:
            raise StateError(
                f"ranks 0 and {rank} load different checkpoints or increments; here it is {os.fspath(path)!r} and "
                f"{len(ids) - 1} increments"
            )


def _extra_bytes(path: str, increments: Sequence[Path], number: int, module: Any) -> int:
    """Return the size of the caller's bytes in the last checkpoint, from its MANIFEST."""
    last = os.fsdecode(_storages(module, increments[-1])[number][1]) if increments else path
    for words in _manifest(last):
        if words[:2] == ["blob", "extra"]:
            size = _number(last, words, "len")
            if not 0 <= size <= _EXTRA_MOST:
                raise CorruptError(f"{last}/MANIFEST is damaged: extra has {size} bytes")
            return size
    return 0


def _manifest(path: Path) -> Iterable[List[str]]:
    try:
        text = (pathlib.Path(path) / "MANIFEST").read_text("ascii")
    except OSError as error:
        parts, inside = _parts(path), _checkpoints(path)
        if inside and not parts:
            others = f"; the others are {'..., ' if len(inside) > 6 else ''}{', '.join(inside[-6:-1])}"
            raise FileError(
                f"{os.fspath(path)} is no checkpoint, but contains {len(inside)}: pass one of them, for example the "
                f"newest, {inside[-1]}{others if len(inside) > 1 else ''}"
            ) from error
        if parts:
            raise StateError(
                f"{os.fspath(path)} has a checkpoint for each of {parts}: read() one of them, or load() all into a "
                "collection with these poolings and routes; hotbed.Comm() is a communicator of one rank"
            ) from error
        raise FileError(f"{os.fspath(path)} is no checkpoint: {error}") from error
    except UnicodeDecodeError as error:
        raise CorruptError(f"{os.fspath(path)}/MANIFEST is damaged: {error}") from error
    return [line.split(" ") for line in text.splitlines() if line]


def _parts(path: Path) -> List[str]:
    """Return the names of the parts of a checkpoint of several storages; []: it has no parts."""
    found = sorted(found.parent.name for found in pathlib.Path(path).glob("*/MANIFEST"))
    if (pathlib.Path(path) / _PARTS).exists() or all(re.match("(sum|mean|none)(-|$)", name) for name in found):
        return found
    return []


def _checkpoints(directory: Path) -> List[str]:
    """Return the names of the checkpoints in a directory, in order of the numbers in them."""

    def numbers(name: str) -> List[Tuple[bool, int, str]]:
        return [(word.isdigit(), int(word) if word.isdigit() else 0, word) for word in re.split("([0-9]+)", name)]

    places = [p for p in pathlib.Path(directory).glob("*") if not p.name.startswith(".tmp-")]
    return sorted((p.name for p in places if (p / "MANIFEST").exists() or _parts(p)), key=numbers)


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
        name: the table's name.
        keys: ``[rows]`` int64 or uint64; 0, 1, 2, ... for a static table.
        weights: ``[rows, dim]`` float32 or float16; bfloat16 is read as float32.
        scores: ``[rows]`` uint64; None for a static table.
        states: ``[rows, dim]`` or ``[rows]`` float32, by the state's name.
    """

    name: str
    keys: numpy.ndarray[Any, Any]
    weights: numpy.ndarray[Any, Any]
    scores: Optional[numpy.ndarray[Any, Any]]
    states: Dict[str, numpy.ndarray[Any, Any]]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per key and one column per element."""
        import pandas

        return pandas.DataFrame(self.weights, index=pandas.Index(self.keys, name="key"))


def tables(path: Path) -> Dict[str, Tuple[int, int]]:
    """Return the number of rows and the dim of each table of a checkpoint, by name.

    Raises:
        FileError: ``path`` is not a checkpoint.
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
        names: names of the tables; None: all.
        progress: show a progress bar, if tqdm is installed.
        verify: first read the whole checkpoint and check all digests.  False: damaged rows are not noticed.

    Raises:
        FileError: ``path`` is not a checkpoint.
        CorruptError: a file is missing or damaged.
        ArgumentError: the checkpoint is an increment, or lacks one of the tables.
        UnsupportedError: ``verify``, and the library was built without HDF5.
    """
    if isinstance(names, str):
        raise ArgumentError(f"names: {names!r} is one name, not a list of names")
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
    except ModuleNotFoundError:
        return names
    bar: Iterable[str] = tqdm(names, unit="table")
    return bar


__all__ = ["Arena", "Increments", "Loaded", "Saving", "Table", "async_save", "latest", "load", "read", "save", "tables"]
