"""From training to serving: publish the tables of a model, and look up rows in another process.

A trainer creates a :class:`Publisher` and calls :meth:`Publisher.publish` every few minutes.  A server opens the
directory with a :class:`Reader`, or Redis with a :class:`RedisReader`.  Or it runs a program that was exported from
:func:`for_serving`, whose lookups use the directory or the Redis server of the process: :func:`use`, or, for a
directory, the environment variable ``HOTBED_SERVE``.  ``docs/guide/serving.md`` shows all.
"""

# Annotations are types here, not strings: PyTorch 2.4 makes the operator's schema from them as they are.
import copy
import dataclasses
import enum
import operator
import os
import threading
import weakref
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

import torch
from torch import Tensor

from hotbed._c import check, ffi, lib, new, numbers, text
from hotbed.checkpoint import _Model, c_text
from hotbed.comm import Comm
from hotbed.errors import ArgumentError, HotbedError, KeyRangeError, StateError, UnsupportedError, wrong, wrong_end
from hotbed.torch._changes import ChangeFilter, filter_array
from hotbed.torch.config import PoolingType
from hotbed.torch.sparse import JaggedTensor, KeyedJaggedTensor, KeyedTensor, described

Path = Union[str, "os.PathLike[str]"]

_ENCODINGS = ("table", "f32", "f16", "bf16", "int8")


def _encoding(name: str) -> int:
    if name not in _ENCODINGS:
        raise wrong("encoding", name, f"is not one of {', '.join(_ENCODINGS)}")
    return _ENCODINGS.index(name)


# --- publishing -------------------------------------------------------------------------------------------------------


class Publisher:
    """Writes cuts of a model's tables to a directory.

    Args:
        directory: is created if it does not exist; no other publisher may use it.
        model: a module that contains collections of ``hotbed.torch``, or one of them.
        encoding: of the rows: "table" (the dtype of the table), "f32", "f16", "bf16" or "int8".  A dict has one for
            each table by its name; tables that it lacks have "table".
        base_every: every so many cuts, one is a base, which has all rows.
        keep_bases: how many bases stay in the directory, with the cuts after them.
        comm: with several ranks, a communicator of the same ranks that nothing else uses, on the CPU:
            ``Comm.from_group()``.
        filters: by table name: which changed rows a cut has.  A row that is left out is compared again for
            the next cut.  A table with a filter is read as a whole for each cut.
        states: rows have the states of the optimizer, too, so that :meth:`Reader.fill` can write to a second trainer.
        redis: the rows of this rank go to this server, too, cut by cut.

    Raises:
        StateError: another publisher has the directory.
        ArgumentError: an argument; ``comm`` is missing.
        FileError: Redis does not answer, or refuses the user or the password.
        UnsupportedError: ``redis``, and the library was built without Redis.
    """

    def __init__(
        self,
        directory: Path,
        model: Any,
        encoding: Union[str, Dict[str, str]] = "table",
        base_every: int = 16,
        keep_bases: int = 2,
        comm: Optional[Comm] = None,
        filters: Optional[Mapping[str, ChangeFilter]] = None,
        states: bool = False,
        redis: Optional["Redis"] = None,
    ) -> None:
        path = c_text("directory", directory)
        self._model = found = _Model(model)
        world = 1 if found.comm is None else found.comm.size
        if (comm is None) != (world == 1):
            raise ArgumentError(
                f"comm: {world} ranks need {'none' if world == 1 else 'a communicator of their own'}",
                parameter="comm",
                limit=world,
            )
        if comm is not None and comm is found.comm:
            raise ArgumentError("comm: the collections use this communicator; create another one of the same ranks")
        options = new("publish_options", base_every=base_every, keep_bases=keep_bases, states=states)
        keep: List[Any] = [self._encodings(encoding), filter_array(self._names(), filters or {}, "filters")]
        options.encodings, options.filters = keep
        if comm is not None:
            share = new("checkpoint_options")
            found.join(share, keep)
            options.comm, options.routes = comm.pointer, share.share.routes
        out, sink = ffi.new("hotbed_publisher **"), ffi.new("hotbed_redis_sink **")
        if redis is not None:
            check(lib.hotbed_redis_sink_create(redis._options(keep), sink))
            options.file, options.context = ffi.addressof(lib, "hotbed_redis_sink_file"), sink[0]
        try:
            with found.locks() as storages:
                check(lib.hotbed_publisher_create(path, storages, len(storages), options, found.stream, out))
        except BaseException:
            lib.hotbed_redis_sink_destroy(sink[0])
            raise
        self._c, self._comm = out[0], comm
        # The storages and the communicator live as long as the publisher, which uses them.
        self._close = weakref.finalize(self, _destroy, out[0], sink[0], found, comm)

    def _names(self) -> List[str]:
        """Return the names of all tables, in order."""
        return [
            storage.tables[number].name
            for storage in self._model.storages
            for _, _, numbers in storage.lookups()
            for number in numbers
        ]

    def _encodings(self, encoding: Union[str, Dict[str, str]]) -> Any:
        names = self._names()
        given = dict.fromkeys(names, encoding) if isinstance(encoding, str) else encoding
        for name in given:
            if name not in names:
                raise ArgumentError(
                    f"encoding: there is no table {name!r}; the tables are {names}", parameter="encoding", table=name
                )
        return ffi.new("hotbed_encoding[]", [_encoding(given.get(name, "table")) for name in names])

    def publish(self, step: int) -> None:
        """Publish the tables as they are between two steps.

        Waits for the cut before, and for a copy of the rows.  A thread writes the cut.  All ranks call it at the same
        step.

        Args:
            step: recorded in the cut.

        Raises:
            ArgumentError: ``step``.
            HotbedError: the cut before could not be written, on some rank; nothing is published now, and the next call
                publishes the changes of both.
        """
        if not hasattr(step, "__index__") or not 0 <= operator.index(step) < 2**64:
            raise wrong("step", step, "is not a whole number from 0 to 2^64 - 1")
        with self._model.locks():
            check(lib.hotbed_publisher_publish(self._pointer, step, self._model.stream))

    @property
    def _pointer(self) -> Any:
        if not self._close.alive:
            raise StateError("the publisher is closed")
        return self._c

    def wait(self) -> None:
        """Wait until the last cut is on disk.

        Raises:
            HotbedError: it could not be written.
        """
        check(lib.hotbed_publisher_wait(self._pointer))

    @property
    def busy(self) -> bool:
        """Whether a cut is being written, so that :meth:`publish` would wait."""
        return bool(lib.hotbed_publisher_busy(self._pointer))

    def stats(self) -> Dict[str, Any]:
        """Return the fields of ``hotbed_publish_stats``."""
        out = new("publish_stats")
        check(lib.hotbed_publisher_stats(self._pointer, out))
        return numbers(out)

    def close(self) -> None:
        """Wait for the last cut, and let another publisher use the directory.

        Raises:
            HotbedError: the last cut could not be written; the publisher is closed.
        """
        if not self._close.alive:
            return
        try:
            self.wait()
        finally:
            self._close()

    def __enter__(self) -> "Publisher":
        """Return the publisher; the block's end waits for the last cut, and closes it."""
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """Close the publisher; if the block raised, an error of the last cut is not raised."""
        if kind is None:
            self.close()
        else:
            self._close()


def _destroy(publisher: Any, sink: Any, *keep: Any) -> None:
    lib.hotbed_publisher_destroy(publisher)
    lib.hotbed_redis_sink_destroy(sink)


@dataclasses.dataclass(frozen=True)
class Redis:
    """Where a Redis server is, for :class:`Publisher`, :class:`RedisReader` and :func:`use`.

    Attributes:
        path: its Unix socket; or pass ``host``.
        host: its name or address; any node of a cluster.
        port: of ``host``; 0: 6379.
        prefix: of all keys; in a cluster with a hash tag, as ``"{model}"``.
        timeout_ms: for a connection, and for each answer, in milliseconds; 0: 10000.
        cache_rows: rows that a reader remembers until the next cut; 0: 65536.
        user: of Redis 6 or later, with ``password``; None: "default".
        password: None: none.  It is not in the ``repr``.
    """

    path: Optional[Path] = None
    host: Optional[str] = None
    port: int = 0
    prefix: str = "hotbed"
    timeout_ms: int = 0
    cache_rows: int = 0
    user: Optional[str] = None
    password: Optional[str] = dataclasses.field(default=None, repr=False)

    def _options(self, keep: List[Any]) -> Any:
        """Return the C options, whose strings are appended to ``keep``."""
        options = new("redis_options", port=self.port, timeout_ms=self.timeout_ms, cache_rows=self.cache_rows)
        for name in ("path", "host", "prefix", "user", "password"):
            if getattr(self, name) is not None:
                keep.append(ffi.new("char[]", c_text(name, getattr(self, name))))
                setattr(options, name, keep[-1])
        return options


# --- reading ----------------------------------------------------------------------------------------------------------


#: For each model that was filled: a reference to the reader that did it last, and the version that it wrote.
_filled: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class _Rows:
    """What both readers have: lookups, and descriptions of tables."""

    _prefix: str  # of the C calls

    def _open(self, pointer: Any) -> None:
        self._c = pointer
        weakref.finalize(self, self._call("close"), pointer)
        self._tables: Dict[str, Tuple[int, int]] = {}  # number and dim by name
        for number in range(self._call("num_tables")(pointer)):
            info = self._info(number)
            self._tables[text(info.name)] = (number, int(info.dim))

    def _call(self, name: str) -> Any:
        return getattr(lib, f"hotbed_{self._prefix}_{name}")

    def _info(self, number: int) -> Any:
        out = new("reader_table")
        check(self._call("table_info")(self._c, number, out))
        return out

    def tables(self) -> Dict[str, Dict[str, Any]]:
        """Return dim, encoding and number of keys of each table, by name."""
        found = {}
        for name, (number, dim) in self._tables.items():
            info = self._info(number)
            found[name] = {"dim": dim, "encoding": _ENCODINGS[info.encoding], "keys": int(info.keys)}
        return found

    def lookup(
        self,
        keys: Tensor,
        offsets: Tensor,
        tables: Sequence[str],
        pooling: Optional[Sequence[PoolingType]] = None,
        weights: Optional[Tensor] = None,
        order: Optional[Sequence[int]] = None,
        samples: Optional[int] = None,
    ) -> Tensor:
        """Look up a batch, from one version.

        Args:
            keys: ``[n]`` int64 on the CPU, feature by feature.
            offsets: ``[features * samples + 1]`` int64.
            tables: the table of each feature that is looked up.
            pooling: how each of them is pooled; None: one row per key, for tables of one dim.
            weights: ``[n]`` float32, or None.
            order: the number of each of them in the batch; None: 0, 1, 2 and so on.
            samples: number of samples; None: the batch has no other features than these.

        Returns:
            ``[samples, sum of dims]``, or ``[n, dim]`` in the order of the keys, float32; keys of features that are not
            looked up have rows of 0.

        Raises:
            ArgumentError: a wrong dtype, device or shape; there is no such table; without pooling, two tables read one
                feature.
            KeyRangeError: offsets that fall, leave the keys, or end before them.
        """
        _check_vector("keys", keys, torch.int64)
        _check_vector("offsets", offsets, torch.int64)
        if weights is not None:
            _check_vector("weights", weights, torch.float32, len(keys))
        if isinstance(tables, str):
            raise wrong("tables", tables, "is one name, not a list of names")
        keys, offsets = keys.contiguous(), offsets.contiguous()
        weights = None if weights is None else weights.contiguous()
        order = range(len(tables)) if order is None else order
        kinds = None if pooling is None else [_pooling(kind) for kind in pooling]
        for name, given in (("order", order), ("pooling", kinds)):
            if given is not None and len(given) != len(tables):
                raise wrong(name, given, f"is not one for each of {len(tables)} features", len(tables))
        whole = samples is not None or (len(offsets) - 1) % max(len(tables), 1) == 0
        samples = (len(offsets) - 1) // max(len(tables), 1) if samples is None else samples
        if not whole or not tables or samples < 0 or min(order) < 0 or len(offsets) < (max(order) + 1) * samples + 1:
            raise ArgumentError(
                f"offsets: {len(offsets)} for the features {list(order)} of {samples} samples",
                parameter="offsets",
                value=len(offsets),
                limit=len(tables) * samples,
            )
        if int(offsets[-1]) < len(keys):
            raise wrong_end(int(offsets[-1]), len(keys))
        places = [self._table(name) for name in tables]
        dims = [dim for _, dim in places]
        if kinds is None and len(set(dims)) > 1:
            raise ArgumentError(
                f"tables without pooling have one dim, not {sorted(set(dims))}", "tables", sorted(set(dims))
            )
        if kinds is None:
            if len(set(order)) < len(tables):
                raise wrong("order", list(order), "has a feature twice; without pooling each has one table")
            falls = offsets[1:] < offsets[:-1]
            if bool(falls.any()):
                bag = int(falls.nonzero()[0])
                raise KeyRangeError(
                    f"offsets: {int(offsets[bag + 1])} comes after {int(offsets[bag])}",
                    parameter="offsets",
                    value=int(offsets[bag + 1]),
                    limit=int(offsets[bag]),
                )
        columns = dims[0] if kinds is None else sum(dims)
        out = torch.zeros((len(keys), columns)) if kinds is None else torch.empty((samples, columns))
        lookups = ffi.new("hotbed_lookup[]", len(tables))
        for i, (to, (number, _), at) in enumerate(zip(lookups, places, order)):
            to.table, to.stride = number, columns
            if kinds is None:
                first, last = int(offsets[at * samples]), int(offsets[(at + 1) * samples])
                if not 0 <= first <= last <= len(keys):
                    raise KeyRangeError(
                        f"offsets: feature {at} has keys {first} to {last} of {len(keys)}",
                        parameter="offsets",
                        feature=at,
                        value=last,
                        limit=len(keys),
                    )
                to.num_keys, to.keys = last - first, ffi.cast("void *", keys.data_ptr() + 8 * first)
                to.output = ffi.cast("float *", out.data_ptr() + 4 * columns * first)
                continue
            to.pooling = kinds[i]
            to.batch_size, to.num_keys = samples, len(keys)
            to.keys = ffi.cast("void *", keys.data_ptr())
            to.offsets = ffi.cast("int64_t *", offsets.data_ptr() + 8 * at * samples)
            if weights is not None:
                to.weights = ffi.cast("float *", weights.data_ptr())
            to.output = ffi.cast("float *", out.data_ptr() + 4 * sum(dims[:i]))
        self._ask(lookups)
        return out

    def _ask(self, lookups: Any) -> None:
        check(self._call("lookup")(self._c, lookups, len(lookups), ffi.NULL))

    def _table(self, name: str) -> Tuple[int, int]:
        if name not in self._tables:
            raise ArgumentError(f"there is no table {name!r}; the tables are {list(self._tables)}", table=name)
        return self._tables[name]

    def metrics(self) -> str:
        """Return the state in Prometheus's text format."""
        size = ffi.new("uint64_t *")
        check(self._call("metrics")(self._c, ffi.NULL, 0, size))
        out = ffi.new("char[]", size[0] + 4096)  # numbers may become longer meanwhile
        check(self._call("metrics")(self._c, out, len(out), size))
        return text(out)


class Reader(_Rows):
    """Looks up rows in a published directory, and follows the publisher.  Any number of threads may use one.

    Args:
        directory: to which a publisher writes.
        follow_ms: a thread looks for new cuts every so many milliseconds; 0: only :meth:`poll` does.

    Raises:
        StateError: the directory has no whole cut yet.
    """

    _prefix = "reader"

    def __init__(self, directory: Path, follow_ms: int = 200) -> None:
        out = ffi.new("hotbed_reader **")
        options = new("reader_options", follow_ms=follow_ms)
        check(lib.hotbed_reader_open(c_text("directory", directory), options, out))
        self._open(out[0])

    def poll(self) -> None:
        """Look for new cuts now.

        Raises:
            HotbedError: why the newest one cannot be used; the reader keeps its version.
        """
        check(lib.hotbed_reader_poll(self._c))

    def fill(self, model: torch.nn.Module, whole: bool = False) -> int:
        """Write the rows of the version to the collections of a model in this process, for example on a GPU.

        Writes what changed since this reader's last call for the model, or all rows.  All its tables get one version,
        which its next forward answers.  Call :meth:`poll` first, or let the reader follow.  Waits for the stream.

        If rows of the cut have states, a collection whose optimizer has the same states gets them, too, and the count
        of steps.

        Args:
            model: a module that contains collections of ``hotbed.torch`` without ``comm``, or one of them, in eval
                mode; its hash tables have space for all keys.
            whole: write all rows, because the tables were changed otherwise, for example by a load.

        Returns:
            The number of the version.

        Raises:
            ArgumentError: the cut does not have a table, or has it with another dim; the model has several ranks.
            UnsupportedError: the optimizer has other states than the rows of the cut.
            FullError: a table has no slot for a key; as after the next error, the tables then have a part of the
                version, and the next call writes all rows.
            StateError: a table that evicts did not keep all keys, or forwards wait for their backward.
        """
        found = _Model(model)
        if found.comm is not None:
            raise ArgumentError(
                f"model: its collections are shared by {found.comm.size} ranks; make them without comm=",
                parameter="model",
                value=found.comm.size,
            )
        with found.locks() as storages:
            last, version = _filled.get(model, (None, None))
            if whole or last is None or last() is not self:
                version = ffi.new("uint64_t *")
            _filled[model] = (weakref.ref(self), version)
            check(lib.hotbed_reader_fill(self._c, storages, len(storages), found.stream, version))
        return int(version[0])

    def health(self, most_seconds: float = 0.0) -> None:
        """Check that the newest cut is used, and that it is not older than ``most_seconds``, if that is not 0.

        Raises:
            HotbedError: why not.
        """
        check(lib.hotbed_reader_health(self._c, most_seconds))

    def stats(self) -> Dict[str, Any]:
        """Return the fields of ``hotbed_reader_stats``: version, step, age, lag, ..."""
        out = new("reader_stats")
        check(lib.hotbed_reader_get_stats(self._c, out))
        return numbers(out)


class RedisReader(_Rows):
    """Looks up rows in Redis, where a :class:`Publisher` with ``redis=`` has put them, behind a cache.

    A lookup is of the newest cut.  It has at most 2^20 - 1 keys.  Lookups of several threads wait for each other.

    Args:
        redis: the server.

    Raises:
        FileError: Redis does not answer, or refuses the user or the password; so do lookups.
        StateError: Redis has no cut yet, or may drop keys when its memory is short; so do lookups.
        UnsupportedError: the library was built without Redis.
    """

    _prefix = "redis_reader"

    def __init__(self, redis: Redis) -> None:
        out = ffi.new("hotbed_redis_reader **")
        keep: List[Any] = []
        check(lib.hotbed_redis_reader_open(redis._options(keep), out))
        self._reason: Tuple[str, Optional[str], Optional[str]] = ("", None, None)  # of the last lookup that failed
        self._open(out[0])

    def _ask(self, lookups: Any) -> None:
        try:
            super()._ask(lookups)
        except (ArgumentError, KeyRangeError):  # nothing is wrong with Redis
            raise
        except HotbedError as error:
            self._reason = (str(error), error.parameter, error.path)  # not the error, which would keep the lookup alive
            raise

    def health(self, most_seconds: float = 0.0) -> None:
        """Check that the last lookup succeeded, and that its cut is not older than ``most_seconds``, if that is not 0.

        Raises:
            StateError: why not.
            ArgumentError: ``most_seconds`` is negative or NaN.
        """
        if not most_seconds >= 0:
            raise wrong("most_seconds", most_seconds, "is not 0 or more")
        found = self.stats()
        if not found["healthy"]:
            text, parameter, path = self._reason
            raise StateError(f"the last lookup in Redis failed: {text}", parameter, path=path)
        if most_seconds and found["age"] > most_seconds:
            raise StateError(
                f"cut {found['version']} is {found['age']:.3g} s old; the limit is {most_seconds:.3g} s",
                value=found["age"],
                limit=most_seconds,
            )

    def stats(self) -> Dict[str, Any]:
        """Return the fields of ``hotbed_redis_stats``: version, step, age, healthy, ..."""
        out = new("redis_stats")
        check(lib.hotbed_redis_reader_stats(self._c, out))
        return numbers(out)


_lock = threading.Lock()
_reader: Union[Reader, RedisReader, None] = None
_place: Union[Path, Redis, None] = None  # of the reader, for processes that are forked


def _check_vector(name: str, given: Any, dtype: torch.dtype, length: Optional[int] = None) -> None:
    """Check a vector of a lookup, whose memory the library reads.

    Raises:
        ArgumentError: another type, shape or device.
    """
    if (
        isinstance(given, Tensor)
        and (given.dtype, given.dim(), given.device.type) == (dtype, 1, "cpu")
        and length in (None, given.shape[0])
    ):
        return
    found = f"{given.dtype} {tuple(given.shape)} on {given.device}" if isinstance(given, Tensor) else described(given)
    of = "" if length is None else f" of {length}"
    raise ArgumentError(f"{name}: {found} is no vector{of} of {dtype} on the CPU", parameter=name, value=given)


def _pooling(given: Any) -> int:
    """Return C's number of a pooling; TorchRec's enumeration is accepted.

    Raises:
        ArgumentError: neither SUM nor MEAN.
    """
    name = given.name if isinstance(given, enum.Enum) and type(given).__name__ == "PoolingType" else ""
    if name not in ("SUM", "MEAN"):
        raise wrong("pooling", given, "is not PoolingType.SUM or PoolingType.MEAN")
    return int(lib.HOTBED_POOL_SUM if name == "SUM" else lib.HOTBED_POOL_MEAN)


def _open(place: Union[Path, Redis]) -> Union[Reader, RedisReader]:
    return RedisReader(place) if isinstance(place, Redis) else Reader(place)


def use(place: Union[Path, Redis, None]) -> None:
    """Open the directory or the Redis server from which this process's exported programs look up rows; None: none.

    Processes that are forked later open it again when they first look something up.

    Raises:
        HotbedError: as :class:`Reader` and :class:`RedisReader`.
    """
    global _reader, _place
    with _lock:
        _reader = None if place is None else _open(place)
        _place = place


def reader() -> Union[Reader, RedisReader]:
    """Return the reader of this process.

    Raises:
        StateError: neither :func:`use` nor ``HOTBED_SERVE`` has named a directory.
    """
    global _reader
    found = _reader
    if found is not None:
        return found
    with _lock:
        if _reader is None:
            place = os.environ.get("HOTBED_SERVE") if _place is None else _place
            if place is None:
                raise StateError("no published directory: call hotbed.serve.use(), or set HOTBED_SERVE")
            _reader = _open(place)
        return _reader


def _forget_reader() -> None:
    global _reader, _lock
    _reader, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_reader)


# --- in the model -----------------------------------------------------------------------------------------------------


@torch.library.custom_op("hotbed::serve", mutates_args=())
def serve(
    keys: Tensor,
    offsets: Tensor,
    weights: Optional[Tensor],
    tables: str,
    pooling: str,
    dims: List[int],
    order: List[int],
    samples: int,
) -> Tensor:
    """Look up a batch in the reader of this process: :meth:`Reader.lookup`.

    ``tables`` and ``pooling`` are names with commas, ``pooling`` "NONE" for one row per key.  ``dims`` are those of the
    tables when they were exported.
    """
    found = reader()
    names = tables.split(",")
    for name, dim in zip(names, dims):
        if found._table(name)[1] != dim:
            raise ArgumentError(
                f"table {name!r} has dim {found._table(name)[1]}; the program was exported with {dim}",
                table=name,
                limit=dim,
            )
    kinds = None if pooling == "NONE" else [PoolingType[kind] for kind in pooling.split(",")]
    return found.lookup(keys, offsets, names, kinds, weights, order, samples)


@serve.register_fake
def _(keys: Tensor, *others: Any) -> Tensor:
    _, _, _, pooling, dims, _, samples = others
    shape = (keys.shape[0], dims[0]) if pooling == "NONE" else (samples, sum(dims))
    return keys.new_empty(shape, dtype=torch.float32)


class _Served(torch.nn.Module):
    """A collection whose rows come from the reader of the process."""

    def __init__(self, collection: Any) -> None:
        super().__init__()
        tables = [(table, feature) for table in collection._tables for feature in table.features]
        self._features = [feature for _, feature in tables]
        self._tables = [table.name for table, _ in tables]
        self._dims = [table.dim for table, _ in tables]
        self._names = [collection._name(table, feature) for table, feature in tables]
        self._pooling = ",".join(table.pooling.name for table, _ in tables)
        self._is_weighted = bool(collection._is_weighted)
        self._dtype = collection._output_dtype

    def _order(self, features: Any) -> List[int]:
        """Return the place in the batch of each table's feature.

        Raises:
            ArgumentError: a feature is missing.
        """
        given = list(features.keys())
        missing = [feature for feature in self._features if feature not in given]
        if missing:
            raise ArgumentError(
                f"features {missing} are not in the batch, which has {given}", parameter="features", feature=missing[0]
            )
        return [given.index(feature) for feature in self._features]

    def _look_up(self, features: Any, pooling: str, chosen: Sequence[int], order: List[int]) -> Tensor:
        """Look up the features of the chosen tables."""
        keys, offsets = features.values().to(torch.int64), features.offsets().to(torch.int64)
        weights = features.weights().to(torch.float32) if self._is_weighted else None
        tables, dims = ",".join(self._tables[i] for i in chosen), [self._dims[i] for i in chosen]
        places = [order[i] for i in chosen]
        rows: Tensor = serve(keys, offsets, weights, tables, pooling, dims, places, features.stride())
        return rows.to(self._dtype)


class ServedBagCollection(_Served):
    """An :class:`~hotbed.torch.EmbeddingBagCollection` for serving, which :func:`for_serving` makes."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pool the bags of a batch."""
        values = self._look_up(features, self._pooling, range(len(self._tables)), self._order(features))
        return KeyedTensor(self._names, self._dims, values)


class ServedCollection(_Served):
    """An :class:`~hotbed.torch.EmbeddingCollection` for serving, which :func:`for_serving` makes."""

    def forward(self, features: KeyedJaggedTensor) -> Dict[str, JaggedTensor]:
        """Read the row of each key of a batch."""
        order = self._order(features)
        bounds, offsets, samples = features.offset_per_key(), features.offsets(), features.stride()
        found: Dict[str, JaggedTensor] = {}
        left = list(range(len(order)))
        while left:  # a lookup has one row for each key: tables that share a feature need several
            chosen = [i for n, i in enumerate(left) if order[i] not in [order[k] for k in left[:n]]]
            left = [i for i in left if i not in chosen]
            rows = self._look_up(features, "NONE", chosen, order)
            for i in chosen:
                at = order[i]
                size = bounds[at + 1] - bounds[at]
                if torch.compiler.is_compiling():
                    torch._check(size >= 0)
                    torch._check(bounds[at] >= 0)
                    torch._check(bounds[at] + size <= rows.shape[0])
                inside = offsets[at * samples : (at + 1) * samples + 1]
                part = torch.narrow(rows, 0, bounds[at], size)
                found[self._names[i]] = JaggedTensor(part, lengths=inside[1:] - inside[:-1])
        return {name: found[name] for name in self._names}


def for_serving(model: torch.nn.Module) -> torch.nn.Module:
    """Copy a model for serving: its collections look up rows in the reader of the process.

    The copy has the dense part as it is now, on the CPU and in evaluation.  ``torch.export.export`` accepts it; the
    program needs ``import hotbed.serve`` in the process that runs it, and no code of the trainer.

    Raises:
        ArgumentError: the model contains no collection.
        UnsupportedError: a collection has hooks of its forward, or its class a forward, parameters, buffers or children
            of its own.
    """
    from hotbed.torch import EmbeddingBagCollection

    memo: Dict[int, Any] = {}
    for module in _collections(model):
        memo[id(module)] = (ServedBagCollection if isinstance(module, EmbeddingBagCollection) else ServedCollection)(
            module
        )
    if not memo:
        raise ArgumentError(
            f"model: {type(model).__name__} is not a collection of hotbed.torch, and contains none", "model", model
        )
    copied: torch.nn.Module = copy.deepcopy(model, memo)
    return copied.cpu().eval()


def _collections(model: torch.nn.Module) -> List[torch.nn.Module]:
    """Return the collections in a model."""
    from hotbed.torch import EmbeddingBagCollection, EmbeddingCollection

    if not isinstance(model, (EmbeddingBagCollection, EmbeddingCollection)):
        return [module for child in model.children() for module in _collections(child)]
    place = type(model).forward.__module__.partition(".")[0]
    hooks = model._forward_hooks or model._forward_pre_hooks
    if hooks or model._parameters or model._buffers or model._modules or place not in ("hotbed", "torchrec"):
        raise UnsupportedError(
            f"model: {type(model).__name__} adds to a collection, whose copy for serving looks up rows only; put what "
            "it adds into a module around the collection",
            parameter="model",
        )
    return [model]
