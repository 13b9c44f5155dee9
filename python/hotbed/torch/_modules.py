"""The modules: collections of tables, in TorchRec's words."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import warnings
from typing import Any, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Set, Tuple, Union

import torch

from hotbed._c import lib
from hotbed.comm import Comm
from hotbed.errors import ArgumentError, KeyRangeError, StateError, UnsupportedError, wrong, wrong_end
from hotbed.torch import _changes
from hotbed.torch import config as _config
from hotbed.torch._changes import ChangeFilter, Changes, Position, Receiver
from hotbed.torch._freezable import Freezable
from hotbed.torch._ops import rows_of
from hotbed.torch._optimizer import FusedOptimizer
from hotbed.torch._sharded import ShardedStorage, route_of
from hotbed.torch._states import own_rows, parts_of
from hotbed.torch._storage import (
    Batch,
    Storage,
    check_index,
    identity,
    indices,
    stack_level,
    stored,
    stored_of,
    values_of,
    versions,
)
from hotbed.torch.sparse import JaggedTensor, KeyedJaggedTensor, KeyedTensor, described

_log = logging.getLogger("hotbed")
_INT64 = torch.int64
_NO_MODULES = "tables are no modules: call weight(table), rows(table, keys) or set_rows() of the collection"
_NONFINITE = {"pass": lib.HOTBED_NONFINITE_PASS, "skip": lib.HOTBED_NONFINITE_SKIP, "raise": lib.HOTBED_NONFINITE_ERROR}


#: A batch with the features of a storage, and what the storage reads of it.
Inputs = Tuple[Any, Batch]


@dataclasses.dataclass
class _Ahead:
    """A prefetched batch: its tensors, how often each was written, and the inputs of each storage."""

    tensors: Tuple[Optional[torch.Tensor], ...]
    versions: Optional[Tuple[int, ...]]
    inputs: List[Inputs]


class _NoOptimizerError(StateError, AttributeError):
    """There is no ``fused_optimizer``; ``hasattr()`` says so."""


class _Names:
    """A part of a name in a collection's state dict; ``torch.distributed.checkpoint`` follows names by attributes."""

    def __init__(self, collection: _Collection, path: Tuple[str, ...]) -> None:
        self._collection, self._path = collection, path

    def __getattr__(self, name: str) -> Any:
        """Return the longer name.

        Raises:
            AttributeError: no name of the state dict begins so.
        """
        path = (*self._path, name)
        text = ".".join(path[1:])
        for table in self._collection._tables:
            parts = ("weight", "weight_id", "metadata") if table.is_hash else ("weight",)
            if any(f"{table.name}.{part}.".startswith(f"{text}.") for part in parts):
                return _Names(self._collection, path)
        raise AttributeError(f"there is no {'.'.join(path)} in the state dict; {_NO_MODULES}")

    def __getitem__(self, name: Any) -> NoReturn:
        """Refuse what modules and tensors can do."""
        raise UnsupportedError(f"{'.'.join(self._path)}[{name!r}]: {_NO_MODULES}", parameter=".".join(self._path))


class _Collection(Freezable):
    """The common part of both collections: storages, names in state dicts, the fused optimizer."""

    _state_name = ""

    def __init__(
        self,
        tables: Sequence[Any],
        pooled: bool,
        device: Optional[Union[str, torch.device]],
        is_weighted: bool,
        optimizer: _config.Optimizers,
        seed: int,
        output_dtype: torch.dtype,
        max_in_flight: int,
        check: str,
        options: Optional[Mapping[str, Any]],
        comm: Optional[Comm],
        sharded: Optional[_config.ShardedOptions],
        nonfinite: str,
    ) -> None:
        super().__init__()
        if nonfinite not in [*_NONFINITE]:  # which needs no hash
            raise wrong("nonfinite", nonfinite, f"is not one of {sorted(_NONFINITE)}")
        self._process = os.getpid()
        self._comm = comm
        self._apart = False  # state dicts leave the tables out
        for argument, value, kind in (("comm", comm, Comm), ("sharded", sharded, _config.ShardedOptions)):
            if not isinstance(value, (kind, type(None))):
                raise ArgumentError(f"{argument} {value!r:.80} is not a {kind.__name__}", argument, value)
        if (comm is None) != (sharded is None):
            given, missing = ("comm", "sharded") if sharded is None else ("sharded", "comm")
            raise ArgumentError(
                f"{given}= needs {missing}=: a collection of several ranks has a Comm and ShardedOptions()", missing
            )
        if comm is None and optimizer is not None and _ranks() > 1:
            warnings.warn(
                f"{type(self).__name__} without comm=: each of the {_ranks()} ranks trains tables of its own, which "
                "DistributedDataParallel does not synchronize; pass comm= and sharded= to share the tables",
                stacklevel=3,
            )
        if not isinstance(options, (Mapping, type(None))) or not all(isinstance(name, str) for name in options or ()):
            raise wrong("options", options, "is not a dict of fields of hotbed_storage_options")
        if "nonfinite" in (options or {}):
            raise wrong("options", "nonfinite", "is a field that the collection's other arguments set")
        more = {"nonfinite": _NONFINITE[nonfinite], **(options or {})}
        with contextlib.nullcontext() if comm is None else comm.calls(0):
            self._pooled = pooled
            self._is_weighted = is_weighted
            self._configs = _config.listed(tables)
            self.device = _device(device)
            if self.device.type == "cuda" and self.device.index is None:
                self.device = torch.device("cuda", torch.cuda.current_device())
            if self.device.type not in ("cpu", "cuda"):
                raise ArgumentError(f"device {self.device} is not cpu or cuda", parameter="device", value=self.device)
            self._tables = [_config.read(c, pooled) for c in self._configs]
            self._check_names()
            self._anchor = torch.zeros(1, dtype=torch.float32, device=self.device, requires_grad=True)  # see _ops
            self._storages: List[Storage] = []
            #: Prefetched batches whose keys are copies, or in several storages, by the identity of the batch.
            self._ahead: Dict[Tuple[Any, ...], _Ahead] = {}
            self._output_dtype = output_dtype
            optimizers = _config.by_table(optimizer, [table.name for table in self._tables])
            distinct = [o for i, o in enumerate(optimizers) if o not in optimizers[:i]]  # in ==, as some have no hash
            common = (self.device, seed, output_dtype, max_in_flight, more, check)
            for pooling in dict.fromkeys(t.pooling for t in self._tables):
                for number, one in enumerate(distinct):
                    group = [t for t, o in zip(self._tables, optimizers) if t.pooling is pooling and o == one]
                    label = pooling.name.lower() + ("" if len(distinct) == 1 else f"-optimizer{number}")
                    self._add_storages(group, label, sharded, (pooling, one, *common))
            self._place = {table.name: (s, t) for s in self._storages for t, table in enumerate(s.tables)}
            for table in self._tables:
                if table.init_fn is not None:
                    weight = self.weight(table.name)
                    values = values_of(table, weight)
                    table.init_fn(values)
                    if values is not weight:
                        weight.copy_(stored_of(table, values))
            self._fused: Optional[FusedOptimizer] = None
            self._keyed: Any = None  # see keyed_optimizer() in torchrec.py
            if optimizer is not None:
                self._fused = FusedOptimizer(self._anchor, self._storages)
            counts: Dict[str, int] = {}
            for table in self._tables:
                for feature in table.features:
                    counts[feature] = counts.get(feature, 0) + 1
            self._shared = {f for f, n in counts.items() if n > 1}
            _log.debug("%s of %d tables on %s", type(self).__name__, len(self._tables), self.device)

    def _add_storages(
        self,
        tables: List[_config.Table],
        label: str,
        sharded: Optional[_config.ShardedOptions],
        common: Tuple[Any, ...],
    ) -> None:
        """Create the storages of tables with one pooling and one optimizer: one, or on several ranks one a route."""
        rules = [None] if sharded is None else list(dict.fromkeys(route_of(t, sharded) for t in tables))
        for rule in rules if tables else []:
            if self._comm is None or sharded is None or rule is None:
                made = Storage(tables, *common)
            else:
                part = [t for t in tables if route_of(t, sharded) is rule]
                made = ShardedStorage(self._comm, sharded, self._is_weighted, part, *common)
            made.label = label if rule is None or len(rules) == 1 else f"{label}-{rule.name.lower()}"
            self._storages.append(made)

    def _check_names(self) -> None:
        if not self._tables:
            raise ArgumentError("a collection needs at least one table")
        seen = set()
        for table in self._tables:
            if table.name in seen:
                raise ArgumentError(f"two tables are called {table.name!r}", table=table.name)
            seen.add(table.name)

    def _name(self, table: _config.Table, feature: str) -> str:
        return f"{feature}@{table.name}" if feature in self._shared else feature

    # --- lookups --------------------------------------------------------------------------------

    def _together(self, batches: Sequence[Any]) -> Any:
        """Give the outputs of ``batches``: one for each storage, with the features of that storage.

        An error is reported to the other ranks, which would wait for this rank's backward.
        """
        if self._comm is None or torch.compiler.is_compiling():
            return self._outputs(batches)
        with self._comm.calls(0):
            return self._outputs(batches)

    def _outputs(self, batches: Sequence[Any]) -> Any:
        raise NotImplementedError

    def _lookup(self, features: Any, storage: Storage) -> Tuple[torch.Tensor, Any]:
        """Give the rows of a storage's features, and its batch."""
        if self._comm is None or torch.compiler.is_compiling():
            return self._read(features, storage)
        with self._comm.calls(0):  # reports an error in the input to the other ranks too
            return self._read(features, storage)

    def _read(self, features: Any, storage: Storage) -> Tuple[torch.Tensor, Any]:
        found = None
        if self._ahead and not torch.compiler.is_compiling() and self._trains():
            found = self._take_ahead(features, storage)
        features, batch = found or inputs(features, storage, self._is_weighted)
        return rows_of(storage, self._anchor, batch, self._trains()), features

    def _take_ahead(self, features: Any, storage: Storage) -> Optional[Inputs]:
        """Return the inputs of a storage that :meth:`prefetch` made of a batch; None if it did not."""
        key = self._identity(features)
        ahead = self._ahead.get(key)
        if ahead is None:
            return None
        if storage is self._storages[-1]:
            del self._ahead[key]
        if ahead.versions is None or ahead.versions != versions(ahead.tensors):
            self.cancel()
            raise StateError(
                "forward of a prefetched batch: keys, offsets or weights of the batch were changed in place; leave "
                "them unchanged until the backward, or pass a copy"
            )
        found = ahead.inputs[self._storages.index(storage)]
        if self.device.type == "cuda":
            for tensor in found[1][:3]:
                if tensor is not None:
                    tensor.record_stream(torch.cuda.current_stream(self.device))
        return found

    def _identity(self, features: Any) -> Tuple[Any, ...]:
        weights = features.weights() if self._is_weighted else None
        return (*identity(features.values(), features.offsets(), weights), *features.keys())

    def _trains(self) -> bool:
        """Whether a forward of this thread creates rows and expects a backward."""
        return self.training and not self._frozen and self._fused is not None and torch.is_grad_enabled()

    def prefetch(self, features: Any) -> None:
        """Look a batch up ahead of its forward: find or create its rows, and fetch them into device memory.

        The next forward with the same keys, offsets and weights uses the prefetched rows.  On a GPU the work goes to
        PyTorch's current stream; if the forward runs on another stream, order the two with events.  Where a forward
        would only read (in eval mode, under ``torch.no_grad()``, without an optimizer), a prefetch does nothing.

        Where the forward would copy the keys, because it converts them or has them in another order, this call copies
        them.  A compiled forward does not find such a batch, and looks it up again.

        Args:
            features: as in the forward.
        """
        if not self._trains():
            return  # a forward that only reads would not use the batch, and the batch would hold its rows
        with contextlib.nullcontext() if self._comm is None else self._comm.calls(0):
            self._prefetch(features)

    def _prefetch(self, features: Any) -> None:
        found = [inputs(features, storage, self._is_weighted) for storage in self._storages]
        key = self._identity(features)
        before = self._ahead.get(key)
        if before is not None and before.versions is not None and before.versions == versions(before.tensors):
            return
        if before is not None and self._comm is None:  # the batch was filled again
            for storage, (_, batch) in zip(self._storages, before.inputs):
                storage.discard(batch)
        for storage, (_, batch) in zip(self._storages, found):
            storage.prefetch(batch)
        tensors = (features.values(), features.offsets(), features.weights() if self._is_weighted else None, None)
        if all(identity(*batch[:3]) == identity(*tensors[:3]) for _, batch in found):
            return  # nothing was copied, and storages recognize the batch
        self._ahead.pop(key, None)
        self._ahead[key] = _Ahead(tensors, versions(tensors), found)
        while len(self._ahead) > len(self._storages[0].slots):  # the storages have dropped the oldest
            del self._ahead[next(iter(self._ahead))]

    def overflowed(self) -> bool:
        """Return whether the last forward's batch did not fit into the messages of FIXED or ONE_SIDED on some rank.

        With ``Overflow.REPLAY`` the batch was sent again; with ``REPORT`` its output is zeros on all ranks.

        Raises:
            StateError: the collection has no ``comm``, or there was no forward.
        """
        if self._comm is None:
            raise StateError("overflowed: the collection was made without comm=")
        return any([s.overflowed() for s in self._storages if isinstance(s, ShardedStorage)])

    def cancel(self) -> None:
        """Drop all forwards that still wait for their backward; while one waits, no checkpoint can be saved."""
        self._ahead.clear()
        for storage in self._storages:
            storage.cancel()

    # --- rows -----------------------------------------------------------------------------------

    def weight(self, table: str) -> torch.Tensor:
        """Return a static table's rows, ``[num_embeddings, embedding_dim]``: the memory that trains, not a copy.

        Rows of ``int8`` and ``float8_e4m3fn`` are uint8, each with its scales behind its elements.  With several
        ranks, this rank's rows: row r is the row of key ``keys(table)[r]``.

        Raises:
            ArgumentError: there is no such table.
            StateError: a hash table, or rows in two tiers; see :meth:`keys` and :meth:`rows`.
        """
        storage, number = self._find(table)
        return storage.view(number)

    def keys(self, table: str) -> torch.Tensor:
        """Return the keys of this rank's rows, ``[n]`` int64 on the CPU, ascending.  Waits for the device."""
        storage, number = self._find(table)
        return storage.keys(number)

    def rows(self, table: str, keys: torch.Tensor) -> torch.Tensor:
        """Return a copy of the rows of ``[n]`` keys, ``[n, embedding_dim]``.

        Keys that this rank lacks, and keys outside of a static table, have zeros.
        Rows of ``int8`` and ``float8_e4m3fn`` are returned as float32.
        """
        storage, number = self._find(table)
        return values_of(storage.tables[number], storage.rows(number, keys, ["weight"])["weight"])

    def set_rows(self, table: str, keys: torch.Tensor, rows: torch.Tensor, fill: bool = False) -> None:
        """Insert or overwrite the rows of some keys; with several ranks, skip keys of other ranks.

        A new key gets the score of a key of the last batch, or a count of 1.  In a table that evicts it replaces the
        key with the lowest score among its candidate slots, but not a key of the same call.

        Args:
            table: name of the table.
            keys: ``[n]``, distinct.
            rows: ``[n, embedding_dim]``; or, of rows with scales, the bytes of a state dict.
            fill: the call fills a table, for example with the rows of a checkpoint: it uses every slot, so the rows of
                a full table fit into a table of the same size.  In a table that evicts, a new key then replaces only
                keys with lower scores, and a ``UserWarning`` says how many rows did not fit.

        Raises:
            ArgumentError: a key occurs twice; then nothing is set.
            FullError: a hash table has no slot for a key; a table that evicts raises it only without ``fill``.
            KeyRangeError: a static table has no such key.
        """
        storage, number = self._find(table)
        storage.set_rows(number, keys, {"weight": rows}, fill)

    def erase(self, table: str, keys: torch.Tensor) -> int:
        """Remove some keys and their rows from a hash table; a later training forward makes new rows for them.

        A load of the optimizer's state dict does not bring the keys back.

        Args:
            table: name of the table.
            keys: ``[n]``; a key may occur twice.  With several ranks, keys of other ranks are skipped, so call it on
                all ranks, each with all keys.

        Returns:
            How many of the keys had a row, here: the sum over the ranks is the number of all.

        Raises:
            ArgumentError: a static table, which has all its rows.
            StateError: forwards that wait for their backward use some of the keys; the others are gone.
        """
        storage, number = self._find(table)
        return storage.erase(number, keys)

    def changes(
        self,
        since: Optional[Position] = None,
        filters: Optional[Mapping[str, ChangeFilter]] = None,
        receiver: Optional[Receiver] = None,
    ) -> Changes:
        """Return what changed in the tables with ``track_changes`` since a position: rows, and keys to delete.

        Each receiver has its own position.  Call it between two steps, as a checkpoint is saved; several ranks each get
        the changes of their own rows.  Waits for the device.  A receiver that applies all changes has the same rows as
        the tables::

            found = collection.changes(position)
            for name, table in found.tables.items():
                if found.whole:
                    replica[name].clear()
                replica[name].delete(table.removed)
                replica[name].update(table.keys, table.rows)
            position = found.position

        Args:
            since: :attr:`Changes.position` of an earlier result; None: all rows.
            filters: of tables by name: which of their changed rows to return.
            receiver: called as ``receiver(table, keys)`` for a filter with ``min_occurrences`` or ``min_change``:
                returns the rows and the scores that the receiver has of these keys.

        Raises:
            ArgumentError: no table has ``track_changes``; ``since`` is of another collection; a filter does not fit its
                table, or lacks a receiver.
        """
        return _changes.changes(self._storages, since, filters or {}, receiver)

    def expire(
        self,
        table: str,
        *,
        unseen_steps: int = 0,
        unseen_seconds: float = 0.0,
        min_score: int = 0,
        min_norm: float = 0.0,
        slots: int = 0,
    ) -> None:
        """Remove the keys of a hash table to which one of the conditions applies; 0 turns a condition off.

        Keys of forwards that wait for their backward stay.  ``stats(table)["expired"]`` counts the removed keys.  Does
        not wait for the device.  On several ranks each call removes keys of its own rank.

        Args:
            table: name of the table.
            unseen_steps: for ``Score.STEP``: remove keys that none of the last ``unseen_steps`` training forwards had.
            unseen_seconds: for ``Score.TIMESTAMP``: remove keys that no training forward had in the ``unseen_seconds``
                before the last one.
            min_score: remove keys with a lower score, for example with a lower count for ``Score.LFU``.
            min_norm: remove keys whose rows have a lower L2 norm.
            slots: how many slots to look at, beginning where the last call ended; 0: all.

        Raises:
            ArgumentError: a static table; a condition on another score than the table's; no condition.
        """
        storage, number = self._find(table)
        score = storage.tables[number].score
        for name, given, wanted in (
            ("unseen_steps", unseen_steps, _config.Score.STEP),
            ("unseen_seconds", unseen_seconds, _config.Score.TIMESTAMP),
        ):
            if given != 0 and score is not wanted:
                raise ArgumentError(
                    f"expire: table {table!r} has {score}, not {wanted}, so {name} cannot be {given!r}",
                    parameter=name,
                    table=table,
                    value=given,
                )
        if not 0 <= unseen_seconds < 2**32:
            raise ArgumentError(
                f"expire: unseen_seconds is {unseen_seconds!r}, not from 0 to {2**32}", "unseen_seconds", unseen_seconds
            )
        unseen = unseen_steps if unseen_seconds == 0 else max(1, round(unseen_seconds * 1e6))
        storage.expire(number, unseen, min_score, min_norm, slots)

    def stats(self, table: str, since: Optional[Mapping[str, int]] = None) -> Dict[str, int]:
        """Return this rank's counters of a table: keys, uniques, hits, inserts, evictions, ...  Waits for the device.

        Args:
            table: name of the table.
            since: an earlier result; the counters since then, for example of one step.  None: since the creation.
        """
        storage, number = self._find(table)
        return {name: count - (since or {}).get(name, 0) for name, count in storage.stats(number).items()}

    def memory(self) -> Dict[str, int]:
        """Return the bytes that the collection has allocated on this rank, by kind.

        - ``weights``: embeddings of all slots, the unused ones included, and the bytes that align rows.
        - ``states``: the optimizer's states of these rows.
        - ``index``: what maps keys to slots.
        - ``cache``: with two tiers or an external store, the copies of rows in device memory.
        - ``batches``: buffers of the batches in flight; 0 with ``comm=``.
        - ``exchange``: with ``comm=``, buffers of the batches in flight, their messages included.

        Workspaces of streams, and what the communicator itself has allocated, are not counted.  On the CPU, pages
        of a hash table that have not been used yet may take no memory.  Never waits for the device.
        """
        parts = [storage.memory() for storage in self._storages]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def exchange_stats(self) -> Dict[str, int]:
        """Return what this rank has exchanged with the others since the collection's creation.

        ``batches`` and ``overflows`` count batches; ``keys_sent``, ``keys_received``, ``rows_sent``, ``rows_received``,
        ``gradients_sent`` and ``gradients_received`` are bytes.  All are 0 on one rank.  Waits for the device.

        Raises:
            StateError: the collection was made without ``comm=``.
        """
        stats = [s.exchange_stats() for s in self._storages if isinstance(s, ShardedStorage)]
        if not stats:
            raise StateError("exchange_stats: the collection was made without comm=")
        return {name: sum(s[name] for s in stats) for name in stats[0]}

    def _find(self, table: str) -> Tuple[Storage, int]:
        if table not in self._place:
            raise ArgumentError(f"there is no table {table!r}; there are {sorted(self._place)}", table=table)
        if os.getpid() != self._process:
            raise StateError(
                f"process {os.getpid()} was forked from process {self._process}, which made the tables, and a forked "
                "child cannot make others; start the process with the spawn method, and make the collection in it",
                value=os.getpid(),
                limit=self._process,
            )
        return self._place[table]

    @property
    def fused_optimizer(self) -> FusedOptimizer:
        """The optimizer of the rows; ``lr`` of its ``param_groups``, one for each optimizer of tables, can be set.

        Raises:
            StateError: the collection was created without an optimizer.
        """
        if self._fused is None:
            raise AttributeError("fused_optimizer")  # which calls __getattr__()
        return self._fused

    @property
    def grad_scaler(self) -> Any:
        """The ``torch.amp.GradScaler`` that scales the loss; None: none does.

        Set it, and each backward divides the gradient by the scale.  The scaler need not step ``fused_optimizer``.
        Where the scaled gradient overflows, rows are treated as ``nonfinite`` says.

        Raises:
            UnsupportedError: ``output_dtype`` is float16, in which the divided gradient would be rounded to 0.
        """
        return self._storages[0].scaler

    @grad_scaler.setter
    def grad_scaler(self, scaler: Any) -> None:
        if not isinstance(scaler, (torch.amp.GradScaler, type(None))):
            raise ArgumentError(f"grad_scaler: {scaler!r:.80} is not a torch.amp.GradScaler", "grad_scaler", scaler)
        if scaler is not None and self._output_dtype is torch.float16:
            raise UnsupportedError(
                "grad_scaler: the gradient has output_dtype torch.float16, in which small elements become 0 when they "
                "are divided by the scale; make the collection with output_dtype=torch.float32"
            )
        for storage in self._storages:
            storage.scaler = scaler

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module; called for attributes that Python does not find."""
        if name == "fused_optimizer":  # Module's own text would hide the reason
            raise _NoOptimizerError("the collection was made without an optimizer")
        if name == self._state_name and "_tables" in self.__dict__:
            return _Names(self, (name,))
        return super().__getattr__(name)

    @property
    def storages(self) -> List[Storage]:
        """The C storages, one for each pooling and optimizer and, on several ranks, for each routing rule."""
        return self._storages

    @property
    def comm(self) -> Optional[Comm]:
        """The communicator; None: one rank."""
        return self._comm

    # --- as a module of PyTorch -----------------------------------------------------------------

    @contextlib.contextmanager
    def without_tables(self) -> Iterator[None]:
        """Leave the tables out of state dicts in a block, so that they have what a subclass adds."""
        self._apart = True
        try:
            yield
        finally:
            self._apart = False

    def _save_to_state_dict(self, destination: Dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        types = {table.name: str(table.dtype) for table in self._tables if stored(table)[0] is torch.uint8}
        if types and not self._apart and hasattr(destination, "_metadata"):  # bytes alone do not tell
            destination._metadata.setdefault(prefix[:-1], {})["row_types"] = types
        for table in () if self._apart else self._tables:
            name = f"{prefix}{self._state_name}.{table.name}.weight"
            parts = parts_of(*self._place[table.name], ["weight", "scores"] if table.is_hash else ["weight"])
            destination[name] = parts["weight"]
            if table.is_hash:
                destination[f"{name}_id"] = parts["keys"]
                destination[name[: -len("weight")] + "metadata"] = parts["scores"]

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        others: List[str] = []  # keys under the prefix that PyTorch does not know
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, others, error_msgs)
        if self._apart:
            unexpected_keys += others
            return
        with contextlib.nullcontext() if self._comm is None else self._comm.calls(0):
            types = (local_metadata or {}).get("row_types", {})
            used = self._load_tables(state_dict, prefix, types, missing_keys, error_msgs)
        unexpected_keys += [k for k in others if k not in used]

    def _load_tables(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        types: Mapping[str, str],
        missing_keys: List[str],
        error_msgs: List[str],
    ) -> Set[str]:
        """Load the rows, of ``types`` by table where they are bytes, and return the names of their entries."""
        used: Set[str] = set()
        for table in self._tables:
            storage, number = self._place[table.name]
            name = f"{prefix}{self._state_name}.{table.name}.weight"
            metadata = name[: -len("weight")] + "metadata"
            own = [name, f"{name}_id", metadata] if table.is_hash else [name]
            used.update(own)
            needed = {"weight": name, **({"keys": f"{name}_id"} if table.is_hash else {})}
            missing = [key for key in needed.values() if key not in state_dict]
            missing_keys += missing[:1]
            given, error = None, None
            if not missing:
                given = {part: state_dict[key] for part, key in needed.items()}
                if table.is_hash and metadata in state_dict:
                    given["scores"] = state_dict[metadata]
                unfit = [n for n in own if not isinstance(state_dict.get(n, self._anchor), torch.Tensor)]
                if unfit:
                    error = ArgumentError(
                        f"{unfit[0]}: {described(state_dict[unfit[0]])} is not a tensor", unfit[0], state_dict[unfit[0]]
                    )
                elif given["weight"].dtype == torch.uint8 and types.get(table.name, str(table.dtype)) != str(
                    table.dtype
                ):
                    error = ArgumentError(
                        f"{name}: the bytes of rows of {types[table.name]}, but the table has {table.dtype}; load them "
                        "into a table of their type, and pass its rows() to set_rows()",
                        parameter=name,
                        table=table.name,
                        value=types[table.name],
                        limit=str(table.dtype),
                    )
            found = None
            try:
                found = own_rows(storage, number, name, given, error)
            except ArgumentError as raised:
                error_msgs.append(str(raised))
            try:
                if found is not None:
                    storage.load_rows(number, *found)
            except ArgumentError as raised:
                error_msgs.append(f"{name}: {raised}")
        return used

    def _apply(self, fn: Any, recurse: bool = True) -> _Collection:
        to = fn(torch.empty(1, dtype=torch.float32, device=self.device))
        if to.device != self.device:
            other = f"; make the collection with device={str(to.device)!r} and load its state dict"
            raise StateError(
                f"the tables are on {self.device} and do not move to {to.device}{'' if to.is_meta else other}",
                value=to.device,
                limit=self.device,
            )
        if to.dtype != torch.float32:
            warnings.warn(
                f"{type(self).__name__} keeps its data types; set data_type of its tables and output_dtype",
                stacklevel=stack_level(),
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # what a subclass adds
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or deep-copied: rows are in the library's memory."""
        raise UnsupportedError(
            f"{type(self).__name__} cannot be pickled or copied, since its rows are in Hotbed's memory; save its "
            "state_dict(), or use hotbed.checkpoint.save()"
        )

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse ``torch.jit.script()``, which calls it."""
        raise UnsupportedError("torch.jit.script: the lookup is no operator of TorchScript; use torch.compile")

    def extra_repr(self) -> str:
        """Describe the tables, and what ranks send each other for each of them."""
        return ", ".join(
            f"{t.name}=({t.rows}, {t.dim}){' hash' if t.is_hash else ''}{self._sent(t.name)}" for t in self._tables
        )

    def _sent(self, table: str) -> str:
        storage, number = self._place[table]
        if not isinstance(storage, ShardedStorage) or storage.exchanges[number] is _config.PooledExchange.AUTO:
            return ""
        return f" by {storage.exchanges[number].name.lower()}"


def _device(given: Any) -> torch.device:
    """Give the device of an argument.

    Raises:
        ArgumentError: it names no device.
    """
    try:
        if isinstance(given, (str, torch.device)):
            return torch.device(given)
    except RuntimeError as error:
        raise ArgumentError(f"device {given!r} is not cpu or cuda", parameter="device", value=given) from error
    if given is not None:
        raise ArgumentError(f"device {given!r} is not a torch.device or its name", parameter="device", value=given)
    return torch.device("cpu")


def _ranks() -> int:
    """Return the number of ranks of PyTorch's default process group; 1 without one."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1


def inputs(features: Any, storage: Storage, is_weighted: bool) -> Inputs:
    """Return the batch with the storage's features, in its order, and what the storage reads of it.

    Raises:
        ArgumentError: not a batch; a feature or the weights are missing; a feature is there twice; a tensor has a wrong
            type, or the keys are on another device.
        KeyRangeError: the features have to be permuted, and the lengths are not those of the keys.
        UnsupportedError: the weights require a gradient; features have samples of their own.
    """
    if not isinstance(features, KeyedJaggedTensor):
        if not _is_torchrecs(features):
            raise ArgumentError(f"features: {described(features)} is not a KeyedJaggedTensor", "features", features)
        if features.variable_stride_per_key() or features.inverse_indices_or_none() is not None:
            raise UnsupportedError(
                "features: all features of a batch must have the same samples; stride_per_key_per_rank and "
                "inverse_indices are not supported"
            )
    if is_weighted:
        _check_weights(features.weights_or_none())
    wanted, given = storage.feature_names, features.keys()
    if given != wanted or len(set(wanted)) < len(wanted):
        missing = [f for f in wanted if f not in given]
        if missing:
            raise ArgumentError(
                f"features {missing} are not in the batch, which has {list(given)}", "features", feature=missing[0]
            )
        _check_permutable(features, wanted)
        features = features.permute([given.index(f) for f in wanted])
    elif storage.pooling is _config.PoolingType.NONE and not torch.compiler.is_compiling():
        _check_lengths(features.lengths())  # C reads the first and the last offset only
    keys, offsets, weights = features.values(), features.offsets(), None
    if keys.device != storage.device:
        raise ArgumentError(
            f"keys: on {keys.device}, but the tables are on {storage.device}", "keys", keys.device, storage.device
        )
    if is_weighted:
        weights = features.weights().to(torch.float32).contiguous()
    is_right = keys.dtype is _INT64 and offsets.dtype is _INT64 and keys.is_contiguous() and offsets.is_contiguous()
    if not is_right:  # Storage.check_batch() checks the shapes
        keys, offsets = indices("keys", keys), indices("offsets", offsets)
    return features, Batch(keys, offsets, weights, features.stride())


def _check_weights(weights: Optional[torch.Tensor]) -> None:
    if weights is None:
        raise ArgumentError("weights: the batch has no weights, but the collection has is_weighted=True", "weights")
    if weights.requires_grad:
        raise UnsupportedError("weights: Hotbed gives no gradient of per-sample weights; detach() them")
    if not weights.is_floating_point():
        raise ArgumentError(f"weights: dtype {weights.dtype} is not a floating-point type", "weights", weights.dtype)


def _check_lengths(lengths: torch.Tensor) -> None:
    if lengths.device.type == "cpu" and bool((lengths < 0).any()):  # on a GPU, the host would wait
        bag = int((lengths < 0).nonzero()[0])
        raise KeyRangeError(f"lengths: {int(lengths[bag])} keys in bag {bag}", "lengths", int(lengths[bag]), 0)


def _check_permutable(features: Any, wanted: Sequence[str]) -> None:
    """Check what ``permute()`` does not: types, names, and lengths by which it would read outside of the tensors."""
    check_index("keys", features.values())
    given = features.keys()
    if len(set(given)) < len(given):
        twice = [f for f in wanted if given.count(f) > 1]
        if twice:
            raise ArgumentError(
                f"features {twice} are in the batch more than once: {list(given)}", "features", feature=twice[0]
            )
    lengths = features.lengths()  # first: without samples, TorchRec computes offset_per_key() from them only
    if lengths.is_floating_point():
        raise ArgumentError(f"lengths: dtype {lengths.dtype} is not an integer type", "lengths", lengths.dtype)
    bounds, keys, weights = features.offset_per_key(), features.values().shape[0], features.weights_or_none()
    if torch.compiler.is_compiling():
        torch._check(bounds[-1] == keys, lambda: "offsets: the last one is not the number of keys")
        return
    _check_lengths(lengths)
    if bounds[0] != 0:
        raise KeyRangeError(f"offsets: the first is {bounds[0]}, not 0", "offsets", bounds[0], 0)
    if bounds[-1] != keys:
        raise wrong_end(bounds[-1], keys)
    if weights is not None and weights.shape[0] != keys:
        raise ArgumentError(f"weights: {weights.shape[0]} elements, not {keys}", "weights", weights.shape[0], keys)


def _is_torchrecs(features: Any) -> bool:
    return type(features).__module__.startswith("torchrec.")


class EmbeddingBagCollection(_Collection):
    """Tables whose bags are pooled: TorchRec's ``EmbeddingBagCollection`` with the optimizer fused into the backward.

    Args:
        tables: list of :class:`~hotbed.torch.EmbeddingBagConfig`, or of TorchRec's class of that name.
        device: "cpu" or a CUDA device; the tables stay there.
        is_weighted: batches have per-sample weights.
        optimizer: :class:`~hotbed.torch.SGD` or another class of ``hotbed.torch.config``; a dict has one for each
            table by its name; None: rows are only read.
        seed: seed of the initializers.
        output_dtype: dtype of the pooled rows and of their gradient.
        max_in_flight: number of forwards that may wait for their backward; one more drops the oldest.
        check: what happens when a key is refused, because a hash table is full or because the key is outside of a
            static table: "error"; "warn", a warning for the first such key of each table; or "ignore".  Unless it is
            an error, the key reads as a new row in training and as zeros in evaluation.
        options: further fields of ``hotbed_storage_options``, such as ``hbm_bytes``.
        comm: the ranks that share the tables' rows; None: this process has all rows.  All ranks create the collection
            with the same arguments and call it together, each with its own batches.
        sharded: with ``comm``: the largest batch, and how ranks exchange keys and rows.
        nonfinite: what a backward does with a row whose gradient is NaN or infinite in some element: "skip", the row
            and its state stay as they are, :meth:`stats` counts it, and the first one of each table causes a warning;
            "raise", the same with an ``ArgumentError``; or "pass", the row becomes NaN.

    Raises:
        ArgumentError: a config or an option; the text has the value.
        UnsupportedError: the library was built without CUDA.
    """

    _state_name = "embedding_bags"

    def __init__(
        self,
        tables: Sequence[Any],
        device: Optional[Union[str, torch.device]] = None,
        is_weighted: bool = False,
        optimizer: _config.Optimizers = _config.SGD(),  # noqa: B008
        seed: int = 0,
        output_dtype: torch.dtype = torch.float32,
        max_in_flight: int = 4,
        check: str = "error",
        options: Optional[Mapping[str, Any]] = None,
        comm: Optional[Comm] = None,
        sharded: Optional[_config.ShardedOptions] = None,
        nonfinite: str = "skip",
    ) -> None:
        common = (optimizer, seed, output_dtype, max_in_flight, check, options, comm, sharded, nonfinite)
        super().__init__(tables, True, device, is_weighted, *common)
        self._names = [self._name(t, f) for t in self._tables for f in t.features]
        self._widths = [t.dim for t in self._tables for _ in t.features]

    def embedding_bag_configs(self) -> List[Any]:
        """Return the configs, as they were given."""
        return self._configs

    def is_weighted(self) -> bool:
        """Return whether batches have per-sample weights."""
        return self._is_weighted

    def forward(self, features: Any) -> Any:
        """Pool the bags of a batch.

        Args:
            features: a ``KeyedJaggedTensor`` of this package or of TorchRec, with all features of the tables, in any
                order; keys and offsets are int32 or int64, on the tables' device.

        Returns:
            A ``KeyedTensor`` (TorchRec's for TorchRec's input): ``[samples, sum of embedding_dim]`` of
            ``output_dtype``.  A feature that two tables read is called ``feature@table``.

        Raises:
            ArgumentError: a wrong dtype, device or shape, or a missing feature.
            KeyRangeError: a key outside of a static table.  On a GPU a later call raises it.
            FullError: a full hash table refused a key.
        """
        return self._together([features] * len(self._storages))

    def _outputs(self, batches: Sequence[Any]) -> Any:
        """Pool ``batches``: one for each storage, with the features of that storage."""
        if len(self._storages) == 1:
            values, _ = self._lookup(batches[0], self._storages[0])
        else:
            parts: Dict[str, torch.Tensor] = {}
            for features, storage in zip(batches, self._storages):
                pooled, _ = self._lookup(features, storage)
                widths = [storage.tables[t].dim for t, _ in storage.features]
                names = [self._name(storage.tables[t], f) for t, f in storage.features]
                parts.update(zip(names, torch.split(pooled, widths, dim=1)))
            values = torch.cat([parts[name] for name in self._names], dim=1)
        if _is_torchrecs(batches[0]):
            from torchrec.sparse.jagged_tensor import KeyedTensor as TorchRecs

            return TorchRecs(keys=self._names, length_per_key=self._widths, values=values)
        return KeyedTensor(self._names, self._widths, values)


class EmbeddingCollection(_Collection):
    """Tables that return a row per key: TorchRec's ``EmbeddingCollection`` with the optimizer fused into the backward.

    Args:
        tables: list of :class:`~hotbed.torch.EmbeddingConfig`, or of TorchRec's class of that name, all with the same
            ``embedding_dim``.
        device: "cpu" or a CUDA device; the tables stay there.
        optimizer: as in :class:`EmbeddingBagCollection`, like all arguments below.
        seed: seed of the initializers.
        output_dtype: dtype of the rows and of their gradient.
        max_in_flight: number of forwards that may wait for their backward; one more drops the oldest.
        check: what happens when a key is refused: "error", "warn" or "ignore".
        options: further fields of ``hotbed_storage_options``.
        comm: as in :class:`EmbeddingBagCollection`.
        sharded: as in :class:`EmbeddingBagCollection`.
        nonfinite: as in :class:`EmbeddingBagCollection`.

    Raises:
        ArgumentError: a config or an option; the text has the value.
        UnsupportedError: the library was built without CUDA.
    """

    _state_name = "embeddings"

    def __init__(
        self,
        tables: Sequence[Any],
        device: Optional[Union[str, torch.device]] = None,
        optimizer: _config.Optimizers = _config.SGD(),  # noqa: B008
        seed: int = 0,
        output_dtype: torch.dtype = torch.float32,
        max_in_flight: int = 4,
        check: str = "error",
        options: Optional[Mapping[str, Any]] = None,
        comm: Optional[Comm] = None,
        sharded: Optional[_config.ShardedOptions] = None,
        nonfinite: str = "skip",
    ) -> None:
        tables = _config.listed(tables)
        dims = sorted({_config.read(t, False).dim for t in tables})
        if len(dims) > 1:
            raise ArgumentError(
                f"tables of an embedding collection have one embedding_dim, not {dims}", "embedding_dim", dims
            )
        common = (optimizer, seed, output_dtype, max_in_flight, check, options, comm, sharded, nonfinite)
        super().__init__(tables, False, device, False, *common)

    def embedding_configs(self) -> List[Any]:
        """Return the configs, as they were given."""
        return self._configs

    def embedding_dim(self) -> int:
        """Return the number of elements in a row."""
        return self._tables[0].dim

    def forward(self, features: Any) -> Dict[str, Any]:
        """Read the row of each key of a batch.

        Args:
            features: as in :class:`EmbeddingBagCollection`.

        Returns:
            For each feature a ``JaggedTensor`` (TorchRec's for TorchRec's input) of ``[keys, embedding_dim]``.  On a
            GPU the host waits for the number of keys of each feature, unless the batch knows it: batches that came
            from the CPU with ``to()`` do.

        Raises:
            HotbedError: as :class:`EmbeddingBagCollection`.
        """
        found: Dict[str, Any] = self._together([features] * len(self._storages))
        return found

    def _outputs(self, batches: Sequence[Any]) -> Dict[str, Any]:
        """Read the rows of ``batches``: one for each storage, with the features of that storage."""
        make: Any = JaggedTensor
        if _is_torchrecs(batches[0]):
            from torchrec.sparse.jagged_tensor import JaggedTensor as TorchRecs

            make = TorchRecs
        found = {}
        for given, storage in zip(batches, self._storages):
            rows, features = self._lookup(given, storage)
            bounds, offsets, samples = features.offset_per_key(), features.offsets(), features.stride()
            sizes = [end - begin for begin, end in zip(bounds, bounds[1:])]
            if torch.compiler.is_compiling():
                for size in (*sizes, rows.shape[0] - bounds[-1]):
                    torch._check(size >= 0)
            elif min(sizes) < 0 or bounds[-1] > rows.shape[0]:
                raise KeyRangeError(
                    f"offsets: features begin at {bounds} of {rows.shape[0]} keys", "offsets", bounds, rows.shape[0]
                )
            # One split: each slice would have a gradient as large as all rows.
            parts = torch.split(rows, [*sizes, rows.shape[0] - bounds[-1]])
            for i, (t, feature) in enumerate(storage.features):
                inside = offsets[i * samples : (i + 1) * samples + 1]
                found[self._name(storage.tables[t], feature)] = make(parts[i], lengths=inside[1:] - inside[:-1])
        return {self._name(t, f): found[self._name(t, f)] for t in self._tables for f in t.features}

    def flat(self, features: Any) -> torch.Tensor:
        """Read the row of each key of a batch whose features are in the order of the tables.

        Returns:
            ``[keys, embedding_dim]``, in the order of the batch's keys, without those of features that no table reads.
            The host does not read the offsets.

        Raises:
            ArgumentError: the features are in another order, or two tables read one.
            StateError: the tables have several routing rules or optimizers, so their rows come from several lookups.
        """
        if len(self._storages) > 1:
            raise StateError(
                f"flat: the tables are looked up in {len(self._storages)} parts, {[s.label for s in self._storages]}; "
                "call the collection itself",
                value=len(self._storages),
                limit=1,
            )
        wanted = self._storages[0].feature_names
        given = list(features.keys()) if hasattr(features, "keys") else wanted  # _lookup() says what it is
        if [feature for feature in given if feature in wanted] != wanted:
            raise ArgumentError(
                f"flat: the batch has the features {given}, the tables {wanted}, in this order; call the collection "
                "itself",
                parameter="features",
                value=given,
            )
        return self._lookup(features, self._storages[0])[0]


__all__ = ["EmbeddingBagCollection", "EmbeddingCollection", "KeyedJaggedTensor"]
