"""Checkpoints: save and load the tables of a model with its dense part, and read a checkpoint without the library.

A checkpoint has all collections of a model, its dense state dict and its optimizer; it is complete or does not exist.
``save()``, ``load()`` and the check of digests in ``read()`` need a library that was built with HDF5
(``UnsupportedError`` otherwise).  ``read(verify=False)`` needs only h5py and numpy.  A checkpoint of a GPU's tables is
read on any machine.  ``docs/formats.md`` has the bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
import os
import pathlib
import re
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

from hotbed._c import check, ffi, lib, new, text
from hotbed.errors import ArgumentError, CorruptError, FileError, StateError, UnsupportedError, wrong

if TYPE_CHECKING:
    import numpy
    import pandas

    from hotbed.torch._dense import Place

Path = Union[str, "os.PathLike[str]"]

_PATH_BYTES = 480
_DENSE, _EXTRA = "dense", "extra"  # names of blobs
#: The beginning of a table's line of the MANIFEST.
_TABLE = re.compile(r"table (?P<name>\S+) .* dim (?P<dim>\d+) value (?P<dtype>\w+) .*?rows (?P<rows>\d+) ")


@dataclasses.dataclass(frozen=True)
class LoadedTable:
    """What a load did with a table.

    Attributes:
        name: the table's name.
        saved: rows in the checkpoint; 0 for a table that it does not have.
        loaded: rows of them that the model has now, on all ranks.
        taken: "yes"; "new": the checkpoint does not have it; "dropped": the model does not have it; "kind" or "dim":
            the model's table is of another kind or dim.  Except for "yes", the model's table is unchanged.
    """

    name: str
    saved: int
    loaded: int
    taken: str


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The contents of a checkpoint beside rows.

    Attributes:
        step: the step that was passed to the save.
        extra: the caller's bytes.
        tables: what was loaded, by table.
    """

    step: int
    extra: bytes
    tables: Tuple[LoadedTable, ...] = ()


class _Model:
    """The collections of a model, or one collection, and the rest of the model."""

    def __init__(self, model: Any) -> None:
        """Find the collections.

        Raises:
            ArgumentError: there is none, or some have a communicator and others have not.
        """
        self.storages: List[Any] = []
        self.names: List[str] = []  # of the C storages
        self.is_collection = False  # the model itself has tables
        from hotbed.torch._dense import Dense, Place

        self.dense = Dense(model)
        comms: List[Any] = []
        self._walk(model, Place(), comms, set())
        if not self.storages:
            raise ArgumentError(
                f"model: {type(model).__name__} is not a collection of hotbed.torch, and contains none", "model", model
            )
        self.comm = next((comm for comm in comms if comm is not None), None)
        if self.comm is not None and self.comm.size > 1 and None in comms:
            raise ArgumentError(
                "model: some of its collections have a communicator, and others have not; pass comm= to all of them"
            )

    def _walk(self, module: Any, place: Place, comms: List[Any], seen: set[int]) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        from hotbed.torch._dense import is_collection
        from hotbed.torch._storage import Storage

        inner = getattr(module, "_hotbed", None)  # of dynamicemb's layer
        found = module.storages if is_collection(module) else [inner] if isinstance(inner, Storage) else []
        for storage in found:
            for label, _, _ in storage.lookups():
                whole = ".".join(part for part in (place.name, label) if part)
                self.names.append(re.sub("[^A-Za-z0-9_.-]", "_", whole)[-63:])
            self.storages.append(storage)
        if found:
            self.is_collection = self.is_collection or not place.name
            comms.append(getattr(module, "comm", None))
        if hasattr(module, "named_children"):
            with self.dense.adding(place, module, bool(found)):
                for name, child in module.named_children():
                    self._walk(child, place.child(module, name), comms, seen)

    @property
    def stream(self) -> Any:
        """The Hotbed stream of the current stream of the device, behind the work of the other streams."""
        for storage in self.storages[1:]:
            storage.streams.ordered()
        return self.storages[0].streams.ordered()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.comm is None or bool(self.comm.rank == 0)

    @contextlib.contextmanager
    def locks(self) -> Iterator[Any]:
        """Hold the locks of all storages; returns the ``hotbed_storage *[]``."""
        with contextlib.ExitStack() as stack:
            for storage in self.storages:
                stack.enter_context(storage.lock)
            pointers = [pointer for storage in self.storages for _, pointer, _ in storage.lookups()]
            yield ffi.new("hotbed_storage *[]", pointers)

    def join(self, options: Any, keep: List[Any]) -> None:
        """Set the communicator and the share in options of a save or load."""
        if self.comm is None:
            return
        options.comm = self.comm.pointer
        options.share.rank, options.share.world = self.comm.rank, self.comm.size
        if self.comm.size == 1:
            return
        routes = ffi.new("hotbed_route[]", sum(len(storage.tables) for storage in self.storages))
        at = 0
        for storage in self.storages:
            own = new("checkpoint_options")
            storage.join(own, keep)
            for _, _, numbers in storage.lookups():
                for number in numbers:
                    routes[at] = own.share.routes[number]
                    at += 1
        options.share.routes = routes
        keep.append(routes)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Run a block that does not communicate; if it raises on one rank, all ranks raise."""
        error: Optional[Exception] = None
        try:
            yield
        except Exception as raised:
            error = raised
        if self.comm is not None:
            from hotbed.torch._sharded import agree

            agree(self.comm, self.storages[0].device, self.stream, error)
        elif error is not None:
            raise error

    def gather(self, mine: bytes) -> List[bytes]:
        """Return the bytes of every rank, which have one length."""
        if self.comm is None:
            return [mine]
        from hotbed.torch._sharded import gather

        return gather(self.comm, self.storages[0].device, self.stream, mine)

    def compare_rates(self) -> None:
        """Warn if ranks train a table with different learning rates.  They call it together."""
        if self.comm is not None:
            from hotbed.torch._optimizer import compare_rates

            compare_rates(self.storages)

    def dense_bytes(self, optimizer: Any) -> Optional[bytes]:
        """Return the dense part with whole tensors, if this rank saves it.  Ranks call it together."""
        with self.together():
            self.dense.check(optimizer)
        if not self.dense and optimizer is None:
            return None
        import torch

        keep, distributed = self.is_first, torch.distributed.is_available() and torch.distributed.is_initialized()
        is_first = distributed and torch.distributed.get_rank() == 0
        only_first = all(same == b"+" for same in self.gather(b"+" if keep == is_first else b"-"))
        with self.together():
            model, metadata = self.dense.state(keep)
            state = {
                "model": model,
                "metadata": metadata,
                "optimizer": self.dense.optimizer_state(optimizer, keep, only_first),
            }
            saved = _pack(state) if keep else None
        return saved


def _pack(state: Dict[str, Any]) -> bytes:
    """Return the bytes of a dense part.

    Raises:
        ArgumentError: an entry has a type that a load would refuse.
    """
    import torch

    def packed(value: Any) -> bytes:
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        torch.load(file, "cpu", weights_only=True)
        return file.getvalue()

    try:
        return packed(state)
    except Exception:
        for part, entries in state.items():
            for name, entry in entries.items() if isinstance(entries, dict) else ():
                try:
                    packed(entry)
                except Exception as error:
                    what = repr(name) if part == "model" else f"{part} {name!r}"
                    raise ArgumentError(
                        f"the dense part: {what} cannot be loaded again, since it has something that "
                        "torch.load(weights_only=True) refuses; make it of tensors, numbers, strings, lists, tuples "
                        f"and dicts, or call torch.serialization.add_safe_globals(): {_reason(error)}",
                        parameter=str(name),
                    ) from error
        raise


def _reason(error: Exception) -> str:
    """Return the part of an error of ``torch.save()`` or ``torch.load()`` that says which type it refuses."""
    refused = re.search(r"GLOBAL \S+", str(error))
    return refused[0] if refused else str(error).partition("\n")[0]


def c_text(parameter: str, value: Path) -> bytes:
    """Return the bytes of a C string, which ends at its first null character."""
    found = os.fsencode(value)
    if b"\0" in found:
        if parameter == "password":
            raise ArgumentError("password has a null character", parameter=parameter)
        raise wrong(parameter, value, "has a null character")
    return found


def _check(extra: Any = b"", increments: Any = (), path: Path = "") -> None:
    """Check the arguments of a save or load.

    Raises:
        ArgumentError: one has another type.
    """
    if not isinstance(extra, (bytes, bytearray, memoryview)):
        raise ArgumentError(f"extra: {extra!r:.40} is not bytes", parameter="extra", value=extra)
    if isinstance(increments, (str, bytes, os.PathLike)):
        raise ArgumentError(f"increments: {increments!r} is one path, not a list of paths", "increments", increments)
    c_text("path", path)


def _compare_paths(model: _Model, path: Path) -> None:
    """Raise on all ranks if two ranks save under different names, or if only some of the directories exist.

    The paths to the directory may differ.
    """
    exists = b"+" if os.path.lexists(pathlib.Path(path).parent) else b"-"
    found = model.gather(exists + os.fsencode(path)[-_PATH_BYTES:].ljust(_PATH_BYTES, b"\0"))
    every = [os.fsdecode(p[1:].rstrip(b"\0")) for p in found]
    for rank, theirs in enumerate(every):
        if pathlib.Path(theirs).name != pathlib.Path(every[0]).name:
            raise ArgumentError(
                f"path: rank {rank} saves to {theirs!r}, rank 0 to {every[0]!r}; pass the same path on all ranks",
                parameter="path",
                rank=rank,
                value=theirs,
                limit=every[0],
                path=theirs,
            )
    there = [p[:1] == b"+" for p in found]
    if any(there) and not all(there):
        without, other = there.index(False), there.index(True)
        raise FileError(
            f"rank {without} saves to {every[without]!r}, whose directory does not exist there, rank {other} to "
            f"{every[other]!r}; pass a path in one directory that all ranks can reach",
            rank=without,
            path=every[without],
        )


def _options(
    model: _Model, dense: Optional[bytes], step: int, extra: bytes, increments: Optional[Increments], keep: List[Any]
) -> Any:
    """Create the ``hotbed_checkpoint_options *`` of a save, which points to objects appended to ``keep``."""
    for storage in model.storages:
        storage.take_rate()  # a scheduler may have stepped since the last backward
    blobs = {_EXTRA: extra} if extra else {}
    if dense is not None:
        blobs[_DENSE] = dense
    options = new("checkpoint_options", step=step, num_blobs=len(blobs))
    options.blobs = array = ffi.new("hotbed_checkpoint_blob[]", len(blobs))
    for blob, (name, data) in zip(array, blobs.items()):
        keep += [ffi.new("char[]", name.encode()), ffi.from_buffer(data)]
        blob.name, blob.data, blob.bytes = keep[-2], ffi.cast("void *", keep[-1]), len(data)
    names = [ffi.new("char[]", name.encode()) for name in model.names]
    options.names = pointers = ffi.new("char *[]", names)
    keep += [array, names, pointers]
    if increments is not None:
        options.mark, options.touched = increments.mark, int(increments.touched)
        if increments.paths:
            keep.append(ffi.new("char[]", os.fsencode(increments.paths[-1])))
            options.parent = keep[-1]
    model.join(options, keep)
    return options


class Arena:
    """Memory for the copies that ``async_save()`` makes, allocated once and used by one save at a time.

    Without an arena, each save allocates host memory for its copy.  On a GPU an arena makes the copy faster: tables
    whose rows are all in device memory are copied to device memory, others to pinned memory.  Rows that do not fit into
    the arena go to host memory.

    Args:
        model: a model or collection on the device.
        device_bytes: bytes of device memory.
        pinned_bytes: bytes of pinned host memory.
    """

    def __init__(self, model: Any, device_bytes: int = 0, pinned_bytes: int = 0) -> None:
        out = ffi.new("hotbed_checkpoint_arena **")
        check(lib.hotbed_checkpoint_arena_create(device_bytes, pinned_bytes, _Model(model).stream, out))
        self.pointer = out[0]
        weakref.finalize(self, lib.hotbed_checkpoint_arena_destroy, self.pointer)


class Saving:
    """A save that runs in a thread while the program trains; ``async_save()`` returns it."""

    def __init__(
        self,
        path: Path,
        model: Any,
        optimizer: Any,
        step: int,
        extra: bytes,
        increments: Optional[Increments],
        arena: Optional[Arena],
    ) -> None:
        """See ``async_save()``."""
        self._model, self._increments = _Model(model), increments
        with self._model.together():
            _check(extra, path=path)
        _compare_paths(self._model, path)
        self.path, self._place = os.fspath(path), os.fsencode(path)
        self._comm: Any = self._model.comm
        self._several = self._comm is not None and self._comm.size > 1
        self._error: Optional[Exception] = None
        self._waited = self._begun = False
        self._id = ffi.new("hotbed_checkpoint_id *")
        try:
            with self._model.together():
                if os.path.lexists(path):
                    raise StateError(f"{self.path} exists", path=self.path)
            dense = self._model.dense_bytes(optimizer)
            with self._model.together():
                keep: List[Any] = []
                options = _options(self._model, dense, step, extra, increments, keep)
                options.comm = ffi.NULL  # a snapshot has this rank's rows only
                options.arena = ffi.NULL if arena is None else arena.pointer
                out = ffi.new("hotbed_checkpoint_snapshot **")
                with self._model.locks() as storages:
                    taken = lib.hotbed_checkpoint_snapshot_take(
                        storages, len(storages), options, self._model.stream, out
                    )
                    self._model.storages[0].check(taken)
                # The default argument keeps the arena alive until the snapshot is destroyed.
                snapshot = ffi.gc(out[0], lambda s, _=arena: lib.hotbed_checkpoint_snapshot_destroy(s))
                if self._several and self._model.is_first:
                    check(lib.hotbed_checkpoint_begin(self._place, self._id))
                    self._begun = True
            self._model.compare_rates()
            if self._several:
                number = ffi.buffer(self._id)
                number[:] = self._model.gather(bytes(number))[0]
        except BaseException:
            self._abort()
            raise
        self._thread = threading.Thread(target=self._write, args=([snapshot],), name=f"hotbed save {self.path}")
        self._thread.start()

    def _write(self, snapshots: List[Any]) -> None:
        snapshot = snapshots.pop()
        try:
            if self._several:
                check(lib.hotbed_checkpoint_snapshot_put(snapshot, self._place, self._id[0]))
            else:
                check(lib.hotbed_checkpoint_snapshot_write(snapshot, self._place))
        except Exception as error:
            logging.getLogger("hotbed").error("the save to %s failed: %s", self.path, error)
            self._error = error
        finally:
            ffi.release(snapshot)

    def _abort(self) -> None:
        if self._begun:
            lib.hotbed_checkpoint_abort(self._place, self._id[0])

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
                with self._model.together():
                    if self._error is not None:
                        raise self._error
                if self._several:
                    with self._model.together():
                        if self._model.is_first:
                            check(lib.hotbed_checkpoint_commit(self._place, self._id[0], self._comm.size))
            except Exception as error:
                self._error = error
                self._abort()
            self._waited = True
            if self._increments is not None:
                self._increments.ended(self.path, self._model, self._error)
        if self._error is not None:
            raise self._error


class Increments:
    """Saves a full checkpoint first, and then increments: what changed since the previous save.

    All saves are of one model; make an ``Increments`` for each.

    Keeps a digest of each row, which takes 24 bytes of host memory per row, and reads all rows for each increment.
    With ``touched`` it keeps nothing of tables with ``track_changes``, and an increment reads the rows that were
    written since the save before; a key that was only looked up keeps its older score in the increment.  If more keys
    have left than the tables remember, the save is a full one, with a ``UserWarning``.

    To load, pass the first of ``paths`` to ``load()``, and the others as its ``increments``; or call ``load()`` of a
    new ``Increments``, whose next save is then an increment.

    Before each increment, rank 0 checks that all checkpoints of ``paths`` still exist and are the saved ones.  If one
    does not, for example because ``hotbed-ckpt gc`` has removed it, the save is a full one, ``paths`` begins with it,
    and a ``UserWarning`` names the missing one.

    Args:
        touched: find what changed by ``track_changes`` where tables have it.  Not for ``async_save()``.

    Attributes:
        paths: paths of the full checkpoint and its increments, in order.
    """

    def __init__(self, touched: bool = False) -> None:
        self.touched = touched
        out = ffi.new("hotbed_checkpoint_mark **")
        check(lib.hotbed_checkpoint_mark_create(out))
        self.mark = ffi.gc(out[0], lib.hotbed_checkpoint_mark_destroy)
        self._saving: Optional[Saving] = None
        self._saved: Any = None  # a weak reference to the first storage of the model
        self._ids: List[str] = []  # of each checkpoint; rank 0 only
        self.paths: List[str] = []

    def save(self, path: Path, model: Any, optimizer: Any = None, step: int = 0, extra: bytes = b"") -> None:
        """Save everything the first time, and later what changed since the last save.  Arguments as in ``save()``.

        Raises:
            ArgumentError: ``model`` is not the model of the first save.
        """
        found = self._settle(model)
        self._check_chain(found)
        error: Optional[BaseException] = None
        try:
            try:
                _save(path, found, optimizer, step, extra, self)
            except StateError as lost:  # on all ranks
                if not self.paths or lost.parameter != "touched":
                    raise
                warnings.warn(f"{lost}: this save is a full one", stacklevel=2)
                self._clear()
                _save(path, found, optimizer, step, extra, self)
        except BaseException as raised:
            error = raised
        self.ended(os.fspath(path), found, error)
        if error is not None:
            raise error

    def async_save(
        self,
        path: Path,
        model: Any,
        optimizer: Any = None,
        step: int = 0,
        extra: bytes = b"",
        arena: Optional[Arena] = None,
    ) -> Saving:
        """Save like ``save()``, in a thread.  Arguments as in ``async_save()``.

        First waits for the previous save, and raises its error unless a call of its ``wait()`` has done so.

        Raises:
            ArgumentError: ``touched`` is set.
        """
        if self.touched:
            raise ArgumentError("async_save: touched is for save()", parameter="touched", value=True)
        self._check_chain(self._settle(model))
        self._saving = Saving(path, model, optimizer, step, extra, self, arena)
        return self._saving

    def load(self, paths: Sequence[Path], model: Any, optimizer: Any = None) -> Loaded:
        """Load a chain, for example of ``latest()``, as ``load()`` does, and continue it.

        The next save is an increment if the model then has all rows of the chain, in the same tables and on as many
        ranks; otherwise it is a full one.
        """
        found = self._settle(model, other=True)
        with found.together():
            _check(increments=paths)
            chain = [os.fspath(path) for path in paths]
            if not chain:
                raise ArgumentError("paths: it has no path of a checkpoint")
        self._clear()
        loaded, marked = _load(chain[0], found, optimizer, chain[1:], self.mark)
        if marked:
            self._saved = weakref.ref(found.storages[0])
            self.paths = chain
            self._ids = [_id(path) if found.is_first else "" for path in chain]
        return loaded

    def _settle(self, model: Any, other: bool = False) -> _Model:
        """Wait for the previous save, and check that the next one is of the same model, unless ``other``."""
        if self._saving is not None:
            self._saving.wait()
        found = _Model(model)
        if self.paths and not other and self._saved() is not found.storages[0]:
            raise ArgumentError(
                f"model: {self.paths[0]} is a checkpoint of another model; make an Increments() for each model",
                parameter="model",
                path=self.paths[0],
            )
        return found

    def _clear(self) -> None:
        """Make the next save a full one."""
        self._ids, self.paths = [], []

    def _check_chain(self, model: _Model) -> None:
        """Make the next save a full one if a checkpoint of the chain was removed or replaced.  Rank 0 decides."""
        missing = b""
        if model.is_first:
            found = (path for path, known in zip(self.paths, self._ids) if _id(path) != known)
            missing = os.fsencode(next(found, ""))[-_PATH_BYTES:]
        missing = model.gather(missing.ljust(_PATH_BYTES, b"\0"))[0].rstrip(b"\0")
        if missing:
            warnings.warn(
                f"{os.fsdecode(missing)}, which the next increment would need, was removed or replaced: the next save "
                "is a full one",
                stacklevel=3,
            )
            self._clear()

    def ended(self, path: str, model: _Model, error: Optional[BaseException]) -> None:
        """Record the result of a save.

        After a failure the next increment has all changes since the last complete checkpoint.  After Ctrl-C, which may
        arrive when the save is complete, the next checkpoint is full.
        """
        self._saving = None
        if error is None:
            self._saved = weakref.ref(model.storages[0])
            self.paths.append(path)
            self._ids.append(_id(path) if model.is_first else "")
        elif not isinstance(error, Exception):
            self._clear()


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


def _id(path: Path) -> str:
    """Return the id of a checkpoint; "": it cannot be read."""
    return _head(path).get("id", "")


def _save(path: Path, model: _Model, optimizer: Any, step: int, extra: bytes, increments: Optional[Increments]) -> None:
    with model.together():
        _check(extra, path=path)
    _compare_paths(model, path)
    keep: List[Any] = []
    dense = model.dense_bytes(optimizer)
    with model.together():
        options = _options(model, dense, step, extra, increments, keep)
    model.compare_rates()
    with model.locks() as storages:
        saved = lib.hotbed_checkpoint_save(os.fsencode(path), storages, len(storages), options, model.stream)
        model.storages[0].check(saved)


def save(path: Path, model: Any, optimizer: Any = None, step: int = 0, extra: bytes = b"") -> None:
    """Write a model to a new directory: the rows, scores and optimizer states of its collections, and its dense part.

    Everything is saved at once or not at all.  Waits for the disk.  With several ranks, all call it, and each writes
    its rows; all ranks must see the directory's file system.

    Args:
        path: path of a directory that does not exist; it appears under this name only when it is complete and on disk.
            The directory that will contain it must exist.  The same on all ranks.
        model: a module that contains collections of ``hotbed.torch``, also those of ``sharders()`` under
            ``DistributedModelParallel``, or layers of ``hotbed.compat.dynamicemb``; or one collection.  The names of
            all tables are distinct.  The rest of the module is its dense part, of which rank 0's state dict is saved,
            with the versions of its modules; hooks of state dicts are called.
            Tensors that ranks share, by ``FullyShardedDataParallel``, ``fully_shard()`` or as ``DTensor``, are gathered
            into rank 0's host memory.
        optimizer: the optimizer of the dense part, whose state dict is saved too; None: none.  The states of
            ``fused_optimizer`` are saved with the rows.
        step: the training step, which ``load()`` returns.
        extra: the caller's bytes, for example the position in the data.  With several ranks, rank 0's are saved.

    Raises:
        ArgumentError: ``model`` has no collection, or two tables of one name; ranks save under different names; the
            optimizer has a parameter that is not in the dense part; an entry of the dense part or its optimizer has a
            type that ``torch.load(weights_only=True)`` refuses.
        StateError: the path exists, or ranks save different steps.
        FileError: the files could not be written, for example for lack of space or permission, or because the directory
            that will contain ``path`` does not exist.
        UnsupportedError: the library was built without HDF5; the dense part has a ``ShardedTensor``; the model itself
            overrides ``state_dict()`` or ``load_state_dict()``; or a hook of a state dict fails.
    """
    _save(path, _Model(model), optimizer, step, extra, None)


def async_save(
    path: Path, model: Any, optimizer: Any = None, step: int = 0, extra: bytes = b"", arena: Optional[Arena] = None
) -> Saving:
    """Copy a model, and write the copy in a thread.  Returns as soon as the copy is made.

    The checkpoint has the model as it is during the call.  ``wait()`` of the result waits for the disk and raises the
    errors of the write, which are also logged.  With several ranks, all call ``async_save()``, and later ``wait()``.

    Arguments as in ``save()``; ``arena`` is memory for the copy, None: as much host memory as the rows and their
    states take is allocated.

    Raises:
        ArgumentError: as of ``save()``.
        StateError: the path exists.
        OutOfMemoryError: the memory for the copy could not be allocated.
        UnsupportedError: the library was built without HDF5.
    """
    return Saving(path, model, optimizer, step, extra, None, arena)


def load(path: Path, model: Any, increments: Sequence[Path] = (), optimizer: Any = None) -> Loaded:
    """Replace the rows of a model, and its dense part, by a checkpoint's.  Blocks are checked against their digests.

    With several ranks, all call it, and each gets the rows of its keys.  The checkpoint may have been saved by another
    number of ranks, and by collections of other poolings and routes: tables are found by name.  The dense part may be
    in another wrapper for data parallelism than the saved one, or in none.  A table may have
    another dtype, capacity, device or eviction.  What does not fit is left out: a table that only one of both has, one
    of another dim or kind, rows beyond a table's capacity.  The result has the numbers of rows by table, and a
    ``UserWarning`` names each table of which rows were not loaded.

    ``fused_optimizer`` gets the learning rates of the checkpoint, except of tables that were saved before the first
    step or converted from other files; to go on with another rate, set it after the load.  Its other hyper-parameters
    stay.

    The collections keep their seeds; a ``UserWarning`` is issued if the checkpoint was trained with another one,
    because keys that are new after the load then get other initial rows than in that run.  A load that fails while it
    reads rows leaves the tables empty, and the dense part unchanged.  Names and shapes of the dense part are compared
    before; inside of a module of another version they may differ.

    Args:
        path: a full checkpoint.
        model: as in ``save()``; optimizers of collections are of the saved kind, or None, which loads rows without the
            optimizer's states.  For a single collection, a dense part of another model in the checkpoint is ignored,
            with a ``UserWarning`` if the collection's class adds parameters.
        increments: paths of the increments that follow it, in order.
        optimizer: the optimizer of the dense part, whose state is loaded too; None: none.

    Raises:
        CorruptError: a file is damaged.
        StateError: no table of the model is in the checkpoint, a key type or an optimizer is of another kind, or the
            dense part or the parameters of its optimizer are others, or cannot be loaded; the increments do not follow
            each other; the ranks load different checkpoints; or forwards that wait for their backward hold rows.
        FullError: a table that does not evict is full.
    """
    return _load(path, _Model(model), optimizer, increments, ffi.NULL)[0]


def _load(path: Path, model: _Model, optimizer: Any, increments: Sequence[Path], mark: Any) -> Tuple[Loaded, bool]:
    """Load, and return also whether the mark was set."""
    with model.together():
        _check(increments=increments)
        chain = [os.fspath(p) for p in (path, *increments)]
        for each in chain:
            _check(path=each)
        known = tables(path)  # also explains what is no checkpoint
        blobs = _blobs(chain[-1])
        dense = _dense(chain[-1], model, optimizer, blobs)
    _compare(model, chain)
    _check_order(chain)
    with model.together():
        states = None
        try:
            states = None if dense is None else _check_dense(chain[-1], model, optimizer, dense)
        except StateError:
            if not model.is_collection or optimizer is not None:
                raise
            warnings.warn(
                f"{chain[-1]} has the dense part of another model: of the collection only the tables are loaded",
                stacklevel=3,
            )
            dense = None
    keep: List[Any] = [ffi.new("char[]", os.fsencode(p)) for p in chain[1:]]
    paths = ffi.new("char *[]", keep)
    options = new("checkpoint_load_options", num_increments=len(chain) - 1, mark=mark)
    options.increments = ffi.cast("char **", paths) if keep else ffi.NULL
    model.join(options, keep)
    report = new("checkpoint_report", capacity=len(known) + sum(len(s.tables) for s in model.storages))
    report.tables = array = ffi.new("hotbed_checkpoint_table[]", report.capacity)
    with model.locks() as storages:
        for storage in model.storages:
            storage.learning_rate = None  # unknown, if the load fails or Ctrl-C ends it
            storage.count_again()
        model.storages[0].check(
            lib.hotbed_checkpoint_load(os.fsencode(path), storages, len(storages), options, report, model.stream)
        )
        words = {_warning(storage): None for storage in model.storages}
    for warning in filter(None, words):
        warnings.warn(f"{chain[0]}: {warning}", stacklevel=3)
    found = tuple(_loaded(array[i]) for i in range(report.num_tables))
    _take_rates(model, [array[i] for i in range(report.num_tables)])
    _init_rest(model, found)
    for table in found:
        if table.loaded < table.saved:
            warnings.warn(f"{chain[0]}: table {table.name!r}: {_why(table)}", stacklevel=3)
    if dense is not None:
        model.dense.load(chain[-1], dense["model"], dense["metadata"])
        if optimizer is not None:
            optimizer.load_state_dict(states)
    return Loaded(int(report.step), blobs.get(_EXTRA, b""), found), bool(report.marked)


def _warning(storage: Any) -> str:
    """Set the learning rate of a storage after a load, and return what it warns of."""
    storage.learning_rate = float(storage.clock()["learning_rate"])
    said, found = ffi.new("char[]", 256), []
    for _, pointer, _ in storage.lookups():
        storage.check(lib.hotbed_storage_warning(pointer, said, len(said), ffi.NULL))
        found.append(text(said))
    return "; ".join(filter(None, found))


def _init_rest(model: _Model, tables: Iterable[LoadedTable]) -> None:
    """Give rows of static tables that the checkpoint does not have the values of ``init_fn``, as in a new table."""
    from hotbed.torch._storage import values_of

    saved = {table.name: table.saved for table in tables if table.taken == "yes"}
    for storage in model.storages:
        for number, table in enumerate(storage.tables):
            keys = storage.keys(number) if table.init_fn is not None and table.name in saved else None
            if keys is None or not bool((keys >= saved[table.name]).any()):
                continue
            values = values_of(table, storage.view(number)).clone()
            table.init_fn(values)
            rest = keys >= saved[table.name]
            storage.set_rows(number, keys[rest], {"weight": values[rest.to(values.device)]})


def _take_rates(model: _Model, tables: Iterable[Any]) -> None:
    """Set the learning rates of parameter groups to those of the tables that were loaded, ``hotbed_checkpoint_table``.

    Each backward applies its group's, so the rate that the library has loaded would last until then.  Conversions of
    other formats have no steps, and a rate that nobody has chosen.
    """
    from hotbed.torch._optimizer import common
    from hotbed.torch._storage import optimizer_info, shortest

    saved = {
        text(table.name): (shortest(table.learning_rate), int(table.optimizer_steps))
        for table in tables
        if table.taken == lib.HOTBED_TAKEN and table.optimizer_steps > 0
    }
    groups: Dict[int, Tuple[Any, Dict[str, float]]] = {}
    for storage in model.storages:
        own = {table.name: saved[table.name] for table in storage.tables if table.name in saved}
        if storage.group is None or not own:
            continue
        groups.setdefault(id(storage.group), (storage.group, {}))[1].update({n: rate for n, (rate, _) in own.items()})
        if storage.optimizer is not None and optimizer_info(storage.optimizer).counts_steps:
            common({name: steps for name, (_, steps) in own.items()}, "optimizer_steps")
    for group, rates in groups.values():
        group["lr"] = common(rates, "lr")


def _loaded(table: Any) -> LoadedTable:
    words = {
        lib.HOTBED_TAKEN: "yes",
        lib.HOTBED_TAKEN_NEW: "new",
        lib.HOTBED_TAKEN_DROPPED: "dropped",
        lib.HOTBED_TAKEN_KIND: "kind",
        lib.HOTBED_TAKEN_DIM: "dim",
    }
    return LoadedTable(text(table.name), int(table.saved), int(table.loaded), words[table.taken])


def _why(table: LoadedTable) -> str:
    """Say why rows of a table were not loaded."""
    if table.taken == "yes":
        return f"{table.loaded} of {table.saved} rows fit"
    reason = {
        "dropped": "the model does not have it",
        "kind": "the model's is of another kind, hash or static",
        "dim": "the model's has another dim",
    }[table.taken]
    return f"{reason}; its {table.saved} rows were not loaded"


def _blobs(path: str) -> Dict[str, bytes]:
    """Read the blobs of a checkpoint."""
    found = {}
    for name in (_DENSE, _EXTRA):
        size = ffi.new("uint64_t *")
        try:
            check(lib.hotbed_checkpoint_read_blob(os.fsencode(path), name.encode(), ffi.NULL, size))
        except ArgumentError:  # there is none of this name
            continue
        data = ffi.new("char[]", max(1, size[0]))
        check(lib.hotbed_checkpoint_read_blob(os.fsencode(path), name.encode(), data, size))
        found[name] = bytes(ffi.buffer(data, size[0]))
    return found


def _dense(path: str, model: _Model, optimizer: Any, blobs: Dict[str, bytes]) -> Optional[Dict[str, Any]]:
    """Return the dense part of a checkpoint; None: it is not to be loaded."""
    model.dense.check(optimizer)
    if not model.dense and optimizer is None:
        return None
    import torch

    if _DENSE not in blobs:
        return {"model": {}, "metadata": {}}
    try:
        found = torch.load(io.BytesIO(blobs[_DENSE]), "cpu", weights_only=True)
        return {part: found[part] for part in ("model", "metadata", "optimizer")}
    except Exception as error:
        if model.is_collection and optimizer is None:
            return {"model": {}, "metadata": {}}  # which only another model has
        raise StateError(
            f"{path}: the dense part is not loaded: {_reason(error)}; call torch.serialization.add_safe_globals() if "
            "you trust its types, or load() a collection of the model alone",
            path=path,
        ) from error


def _check_dense(path: str, model: _Model, optimizer: Any, dense: Dict[str, Any]) -> Any:
    """Raise if the model has another dense part, and return the state to load into the optimizer.

    Ranks call it together.
    """
    model.dense.check_state(path, dense["model"], dense["metadata"])
    if optimizer is None:
        return None
    if dense.get("optimizer") is None:
        raise StateError(
            f"{path} has no optimizer of a dense part: it was saved without optimizer=", path=os.fspath(path)
        )
    return model.dense.convert_optimizer_state(path, optimizer, dense["optimizer"])


def latest(directory: Path) -> List[str]:
    """Return the paths of the newest whole checkpoint in a directory, to resume from it.

    The first path is a full checkpoint; the others are the increments that lead to the newest one::

        paths = checkpoint.latest("runs/a")
        if paths:
            loaded = checkpoint.load(paths[0], model, paths[1:], optimizer=optimizer)

    A checkpoint is whole if all its files, and the checkpoints that it follows, exist in the directory and pass the
    check of ``hotbed-ckpt verify --quick``, which reads no rows; ``load()`` checks the rows.  The newest one has the
    highest step, then the latest time.  Newer ones that are not whole, and links to nowhere, are skipped, each with a
    ``UserWarning``.
    Unfinished saves, and names that end in ``.damaged``, are ignored.  With several ranks let one rank call it, and
    send the paths to the others.

    Returns:
        []: there is no whole checkpoint.

    Raises:
        ArgumentError: the directory is a checkpoint itself.
        FileError: a directory or file cannot be read; create the directory before the first run.
        UnsupportedError: a checkpoint has a newer format, or the library was built without HDF5.
    """
    found = new("checkpoint_found")
    check(lib.hotbed_checkpoint_latest(c_text("directory", directory), found))
    try:
        for i in range(found.num_skipped):
            warnings.warn(f"skipped {text(found.skipped[i].path)}: {text(found.skipped[i].why)}", stacklevel=2)
        return [os.fsdecode(ffi.string(found.paths[i])) for i in range(found.num_paths)]
    finally:
        lib.hotbed_checkpoint_found_free(found)


def _check_order(chain: List[str]) -> None:
    """Raise if an increment does not follow the checkpoint before it, and name its parent if it is found."""
    for before, path in zip(chain, chain[1:]):
        parent, found = _head(path).get("parent", "-"), _id(before)
        if parent in ("-", found):
            continue  # the library reports a full checkpoint
        beside = sorted(pathlib.Path(path).parent.glob("*/MANIFEST"))
        places = [p for p in (*chain, *(os.fspath(m.parent) for m in beside)) if _id(p) == parent]
        name = f"{places[0]} (id {parent})" if places else f"a checkpoint with the id {parent}, which was not found"
        raise StateError(
            f"{path} does not follow the checkpoint before it, {before} (id {found}): its parent is {name}",
            path=os.fspath(path),
        )


def _compare(model: _Model, chain: List[str]) -> None:
    """Raise on all ranks if two ranks load different checkpoints or increments."""
    every = model.gather(hashlib.sha256(" ".join(map(_id, chain)).encode()).digest())
    for rank, theirs in enumerate(every):
        if theirs != every[0]:
            raise StateError(
                f"ranks 0 and {rank} load different checkpoints or increments; here it is {chain[0]!r} and "
                f"{len(chain) - 1} increments",
                rank=rank,
                path=chain[0],
            )


def _manifest(path: Path) -> List[str]:
    """Return the lines of a MANIFEST."""
    _check(path=path)
    try:
        lines = (pathlib.Path(path) / "MANIFEST").read_text("ascii")
    except OSError as error:
        inside = _checkpoints(path)
        if inside:
            others = f"; the others are {'..., ' if len(inside) > 6 else ''}{', '.join(inside[-6:-1])}"
            raise FileError(
                f"{os.fspath(path)} is no checkpoint, but contains {len(inside)}: pass one of them, for example the "
                f"newest, {inside[-1]}{others if len(inside) > 1 else ''}",
                path=os.fspath(path),
            ) from error
        where = os.path.join(os.fspath(path), "MANIFEST")
        raise FileError(f"{os.fspath(path)} is no checkpoint: {error}", errno=error.errno, path=where) from error
    except UnicodeDecodeError as error:
        raise _damaged(path, str(error)) from error
    return lines.splitlines()


def _damaged(path: Path, why: str) -> CorruptError:
    place = os.path.join(path, "MANIFEST")
    return CorruptError(f"{place} is damaged: {why}", path=place)


def _checkpoints(directory: Path) -> List[str]:
    """Return the names of the checkpoints in a directory, in order of the numbers in them."""

    def numbers(name: str) -> List[Tuple[bool, int, str]]:
        return [(word.isdigit(), int(word) if word.isdigit() else 0, word) for word in re.split("([0-9]+)", name)]

    places = [p.parent.name for p in pathlib.Path(directory).glob("*/MANIFEST")]
    return sorted((name for name in places if not name.startswith(".tmp-")), key=numbers)


def _tables(path: Path, manifest: Iterable[str]) -> Dict[str, Tuple[int, int, int]]:
    """Return the rows, the dim and the hotbed_dtype of each table, by name."""
    types: Dict[str, int] = {}
    while (name := text(lib.hotbed_dtype_name(len(types) + 1))) != "unknown":
        types[name] = len(types) + 1
    found = {}
    for line in manifest:
        if line.startswith("table "):
            words = _TABLE.match(line)
            if words is None:
                raise _damaged(path, f"{line!r:.80} describes no table")
            if words["dtype"] not in types:
                raise _damaged(path, f"rows of table {words['name']!r} have an unknown type {words['dtype']!r}")
            found[words["name"]] = int(words["rows"]), int(words["dim"]), types[words["dtype"]]
    return found


# --- reading without the library ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of one table, in the order of the file.

    Attributes:
        name: the table's name.
        keys: ``[rows]`` int64 or uint64; 0, 1, 2, ... for a static table.
        weights: ``[rows, dim]`` float32 or float16; other types are read as float32.
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
    return {name: described[:2] for name, described in _tables(path, _manifest(path)).items()}


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
        raise ArgumentError(f"names: {names!r} is one name, not a list of names", parameter="names", value=names)
    manifest = _manifest(path)
    if verify:
        try:
            check(lib.hotbed_checkpoint_check(os.fsencode(path)))
        except UnsupportedError as error:
            error.args = (f"{error}; verify=False reads without a check of the digests",)
            raise
    known = _tables(path, manifest)
    wanted = list(known) if names is None else list(names)
    for name in wanted:
        if name not in known:
            raise ArgumentError(
                f"{os.fspath(path)} has no table {name!r}; it has {sorted(known)}", path=os.fspath(path), table=name
            )
    if any(line.startswith("id ") and " kind delta " in line for line in manifest):
        raise ArgumentError(
            f"{os.fspath(path)} is an increment: load it after its parent with load()", path=os.fspath(path)
        )
    shards = sum(line.startswith("shard ") for line in manifest)
    for number in range(shards):
        shard = pathlib.Path(path) / f"shard-{number:05}-of-{shards:05}.h5"
        if not shard.exists():
            raise CorruptError(f"{shard} is missing", path=os.fspath(shard))
    try:
        with_states = {line.split()[1] for line in manifest if line.startswith("extent ") and " opt/" in line}
        return _read_tables(path, {name: known[name] for name in wanted}, with_states, progress)
    except (KeyError, OSError, RuntimeError) as error:
        raise CorruptError(f"{os.fspath(path)}: HDF5 cannot read it: {error}", path=os.fspath(path)) from error


def _values(rows: numpy.ndarray[Any, Any], dim: int, dtype: int) -> numpy.ndarray[Any, Any]:
    """Return rows as h5py reads them as values: float32 for rows of bytes."""
    import numpy

    if lib.hotbed_dtype_bytes(dtype) != 0:
        return rows
    values = numpy.empty((rows.shape[0], dim), numpy.float32)
    data = ffi.from_buffer(numpy.ascontiguousarray(rows))
    check(lib.hotbed_dtype_convert(dtype, data, lib.HOTBED_F32, ffi.from_buffer(values), dim, rows.shape[0]))
    return values


def _read_tables(
    path: Path, wanted: Dict[str, Tuple[int, int, int]], with_states: Set[str], progress: bool
) -> Dict[str, Table]:
    """Read tables, given their rows, dims and types, and the names of those with optimizer states."""
    import h5py
    import numpy

    found = {}
    with h5py.File(pathlib.Path(path) / "index.h5", "r") as file:
        for name in _bar(list(wanted)) if progress else wanted:
            rows, dim, dtype = wanted[name]
            group = "+" if name == "." else name
            at = file["embeddings"][group]
            keys = at["weight_id"][:] if "weight_id" in at else numpy.arange(rows, dtype=numpy.int64)
            scores = at["metadata"][:] if "metadata" in at else None
            optimizer = file[f"optimizer/embeddings.{name}.weight"] if name in with_states else {}
            states = {k[len(name) + 1 :]: v[:] for k, v in optimizer.items()}
            found[name] = Table(name, keys, _values(at["weight"][:], dim, dtype), scores, states)
    return found


def _bar(names: List[str]) -> Iterable[str]:
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return names
    bar: Iterable[str] = tqdm(names, unit="table")
    return bar


__all__ = [
    "Arena",
    "Increments",
    "Loaded",
    "LoadedTable",
    "Saving",
    "Table",
    "async_save",
    "latest",
    "load",
    "read",
    "save",
    "tables",
]
