"""The fused optimizer as a ``torch.optim.Optimizer``, for PyTorch's schedulers and checkpoints."""

from __future__ import annotations

import copy
import dataclasses
import struct
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

import torch

from hotbed.errors import ArgumentError, HotbedError, UnsupportedError
from hotbed.torch._sharded import ShardedStorage, agree, gather
from hotbed.torch._states import _look, own_rows, parts_of
from hotbed.torch._storage import Storage, _rate, optimizer_info, stack_level
from hotbed.torch.config import plain


def table_state(storage: Storage, number: int) -> Dict[str, torch.Tensor]:
    """Return the states of a table's rows by name, ``[rows, width]``, and for a hash table its ``keys``."""
    return parts_of(storage, number, storage.state_names())


def _wanted(storage: Storage, number: int, given: Optional[Mapping[str, torch.Tensor]]) -> Dict[str, torch.Tensor]:
    """Return the parts of a table's entry in a state dict that its optimizer needs.

    Raises:
        ArgumentError: a state is missing, or belongs to another optimizer.
    """
    names, table = storage.state_names(), storage.tables[number]
    wanted = [*names, "keys"] if names and table.is_hash else names
    if not isinstance(given, Mapping) or any(name not in given for name in wanted):
        raise ArgumentError(f"table {table.name!r}: the state dict has no states {wanted}", table=table.name)
    others = sorted(str(name) for name in given if name not in (*names, "keys", "clock"))
    if others:
        raise ArgumentError(
            f"table {table.name!r}: the state dict has {others} of another optimizer; "
            f"{type(storage.optimizer).__name__} has the states {names}",
            table=table.name,
        )
    return {name: given[name] for name in wanted}


def load_table_state(storage: Storage, number: int, given: Optional[Mapping[str, torch.Tensor]]) -> None:
    """Restore the states that :func:`table_state` returned.

    Raises:
        ArgumentError: a state is missing, has another shape, or belongs to another optimizer.
    """
    parts, error = None, None
    try:
        parts = _wanted(storage, number, given)
    except ArgumentError as raised:
        error = raised
    found = own_rows(storage, number, f"state.{storage.tables[number].name}", parts or None, error)
    if found is not None:
        storage.set_states(number, *found)


def take_rates(storages: Sequence[Storage]) -> None:
    """Take the learning rates that are set now, for a state dict, and compare those of the ranks."""
    for storage in storages:
        if isinstance(storage, ShardedStorage):
            with storage.comm.calls(0):
                storage.take_rate()
        else:
            storage.take_rate()
    compare_rates(storages)


def compare_rates(storages: Sequence[Storage]) -> None:
    """Warn if ranks train a table with different learning rates.  All ranks call it together, before they save."""
    sharded = [s for s in storages if isinstance(s, ShardedStorage) and s.comm.size > 1 and s.group is not None]
    if not sharded:
        return
    first, record = sharded[0], struct.Struct(f"{len(sharded)}d")
    mine = record.pack(*(storage.learning_rate or 0 for storage in sharded))
    every = [record.unpack(words) for words in gather(first.comm, first.device, first.streams.current(), mine)]
    for storage, rates in zip(sharded, zip(*every)):
        if len(set(rates)) > 1:
            warnings.warn(
                f"table {storage.tables[0].name!r}: the ranks train with different learning rates: rank 0 with "
                f"{rates[0]:g}, rank {(other := next(r for r, rate in enumerate(rates) if rate != rates[0]))} with "
                f"{rates[other]:g}; set the same one on all ranks",
                stacklevel=stack_level(),
            )


def common(values: Mapping[str, Any], what: str) -> Any:
    """Return the first table's value of what tables were saved with; warn if another one has another value."""
    first, value = next(iter(values.items()))
    different = [f"{other!r} with {theirs}" for other, theirs in values.items() if theirs != value]
    if different:
        warnings.warn(
            f"table {first!r} was saved with {what} {value}, {', '.join(different[:5])}; their tables share one "
            f"optimizer here, which goes on with {value}",
            stacklevel=stack_level(),
        )
    return value


def _clock_of(storage: Storage, clocks: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Return the clock of a storage, given the clocks with which its tables were saved."""
    own = {table.name: clocks[table.name] for table in storage.tables}
    for name, clock in own.items():
        lacking = [part for part in storage.clock() if part not in clock]
        if lacking:
            raise ArgumentError(
                f"the state dict's clocks of the table {name!r} lack {', '.join(map(repr, lacking))}", table=name
            )
    steps = {name: int(clock["optimizer_steps"]) for name, clock in own.items()}
    latest = {part: max(clock[part] for clock in own.values()) for part in ("clock", "time")}
    if storage.optimizer is not None and optimizer_info(storage.optimizer).counts_steps:
        common(steps, "optimizer_steps")
    return {**clocks[storage.tables[0].name], **latest}


#: Hyper-parameters of PyTorch's optimizers, and of Hotbed's, that a collection cannot change.
_FIXED = frozenset(
    "weight_decay momentum dampening nesterov betas eps lr_decay alpha rho centered amsgrad maximize max_gradient "
    "initial_accumulator_value decoupled_weight_decay l2_decay trust learning_rate_power ftrl_beta l1_reg l2_reg "
    "tables".split()
)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(
        "fused_optimizer: param_groups cannot be replaced, added or removed, nor can lr and other hyper-parameters of "
        "theirs be removed, since the collection would not see it; set lr of its groups instead"
    )


class _Group(Dict[str, Any]):
    """A parameter group: its learning rate may be set, other hyper-parameters are those of the collection."""

    def check(self, name: str, value: Any) -> None:
        """Compare a hyper-parameter with the collection's.

        Raises:
            UnsupportedError: it differs, and is not ``lr``.
        """
        if name in _FIXED and (name not in self or self[name] != plain(value)):
            has = f"the collection was made with {self[name]!r}" if name in self else "its optimizer has none"
            raise UnsupportedError(
                f"fused_optimizer: {name} cannot be set to {value!r}: {has}; only lr can change, so make the "
                "collection with another optimizer",
                parameter=name,
                value=value,
            )

    def __setitem__(self, name: str, value: Any) -> None:
        self.check(name, value)
        if name not in _FIXED:
            super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        if name in _FIXED or name in ("lr", "params"):
            _refuse()
        super().__delitem__(name)

    def __ior__(self, other: Any) -> _Group:  # type: ignore[misc, override]
        self.update(other)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)  # copies are no groups

    def update(self, *others: Any, **more: Any) -> None:
        for name, value in dict(*others, **more).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        found = self[name] if name in self or not default else default[0]
        if name in self:
            del self[name]
        return found

    popitem = clear = _refuse


class _Groups(List[Dict[str, Any]]):
    """The parameter groups of a collection, which reads ``lr`` from them: none can be replaced, added or removed."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = insert = extend = pop = remove = clear = sort = reverse = _refuse

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


def keep_groups(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Refuse another list in the place of ``param_groups``."""
    if name == "param_groups" and isinstance(vars(optimizer).get(name), _Groups):
        _refuse()


class FusedOptimizer(torch.optim.Optimizer):
    """Holds the learning rate and the optimizer states; the backward updates the rows.

    ``step()`` and ``zero_grad()`` do nothing.  ``param_groups`` has a group for each optimizer of the collection, with
    the names of its ``tables``; its ``lr`` is the learning rate of later backwards: set it, or pass the optimizer to a
    scheduler of ``torch.optim.lr_scheduler``.
    """

    def __init__(self, anchor: torch.Tensor, storages: List[Storage]) -> None:
        self._storages = storages
        optimizers: List[Any] = []
        for storage in storages:
            if storage.optimizer not in optimizers:
                optimizers.append(storage.optimizer)
        # A tensor belongs to one group, so further groups get tensors that nothing else uses.
        anchors = [anchor, *(torch.zeros_like(anchor, requires_grad=True) for _ in optimizers[1:])]
        super().__init__([{"params": [a], "lr": float(o.lr)} for a, o in zip(anchors, optimizers)], {})
        groups: List[Dict[str, Any]] = []
        for given, optimizer in zip(self.param_groups, optimizers):
            served = [storage for storage in storages if storage.optimizer == optimizer]
            tables = tuple(table.name for storage in served for table in storage.tables)
            group = _Group({**dataclasses.asdict(optimizer), **given, "tables": tables})
            groups.append(group)
            for storage in served:
                storage.group = group
        self.param_groups = _Groups(groups)
        self._opt_called = True  # backwards update, so a scheduler need not warn that step() was not called

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but not another list of parameter groups."""
        keep_groups(self, name)
        super().__setattr__(name, value)

    @property
    def state(self) -> Any:
        """An empty dict: the states are in the library's memory, and :meth:`state_dict` returns them.

        Raises:
            UnsupportedError: called by ``torch.distributed.checkpoint``'s ``get_state_dict()`` or ``set_state_dict()``.
        """
        if sys._getframe(1).f_globals.get("__name__") == "torch.distributed.checkpoint.state_dict":
            raise UnsupportedError(
                "fused_optimizer: its states are those of tables, which get_state_dict() and set_state_dict() cannot "
                "name; pass them the optimizers of the dense part, and save fused_optimizer.state_dict() beside theirs"
            )
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = state

    @property
    def steps(self) -> int:
        """The number of optimizer steps so far, Adam's ``t``; set it to 0 for a new bias correction.

        The states of rows stay; :meth:`load_state_dict` sets them.  Tables that are looked up apart count apart: it is
        the largest of their numbers.
        """
        return max(int(storage.clock()["optimizer_steps"]) for storage in self._storages)

    @steps.setter
    def steps(self, steps: int) -> None:
        if not isinstance(steps, int) or steps < 0:
            raise ArgumentError(f"fused_optimizer.steps: {steps!r} is not a whole number of at least 0", "steps", steps)
        for storage in self._storages:
            storage.set_clock({**storage.clock(), "optimizer_steps": steps})

    #: ``GradScaler.step()`` sets ``found_inf`` in optimizers with this attribute, and calls their ``step()``.
    _step_supports_amp_scaling = True

    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:  # type: ignore[override]
        """Do nothing but call ``closure``: the backward has updated the rows.

        Raises:
            UnsupportedError: called by ``GradScaler.step()``, and the rows were updated with the scaled gradient.
        """
        if hasattr(self, "found_inf") and any(storage.scaler is None for storage in self._storages):
            del self.found_inf
            raise UnsupportedError(
                "GradScaler: the backward has updated the tables already, with the scaled gradient; set grad_scaler of "
                "the collection to the GradScaler, and it divides the gradient by the scale, or use bfloat16, which "
                "needs no scaler"
            )
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients are not kept."""

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Refuse other parameters.

        Raises:
            UnsupportedError: always, except in the constructor.
        """
        if hasattr(self, "_opt_called"):
            raise UnsupportedError(
                "fused_optimizer: add_param_group() is not supported, since this optimizer updates only the tables; "
                "pass other parameters to an optimizer of PyTorch"
            )
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or deep-copied: the states are in the library's memory."""
        raise UnsupportedError(
            "fused_optimizer cannot be pickled or copied, since its states are in Hotbed's memory; save its "
            "state_dict()"
        )

    def state_dict(self) -> Dict[str, Any]:
        """Return the states of all rows by table, and the step counts.  On several ranks all call it together.

        Returns:
            A dict with ``state``: for each table a dict of tensors ``[rows, width]`` by the state's name, and for a
            hash table ``keys``, int64 ``[rows]``; with ``clocks`` by table; and with ``param_groups``.  The tensors
            are of the kinds that the collection's state dict has.
        """
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        take_rates(self._storages)
        state = {table.name: table_state(s, t) for s in self._storages for t, table in enumerate(s.tables)}
        clocks = {table.name: clock for s in self._storages for clock in [s.clock()] for table in s.tables}
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        made: Dict[str, Any] = {"state": state, "clocks": clocks, "param_groups": groups}
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, made)
            made = made if changed is None else changed
        return made

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Restore the states that ``state_dict()`` returned, there or on another number of ranks.

        If it raises one of these errors, nothing has changed.

        Raises:
            ArgumentError: a table or state is missing, or has another shape.
            UnsupportedError: another hyper-parameter than ``lr`` differs.
            CommError: one of the two errors on another rank.
        """
        state_dict = copy.copy(state_dict)  # for the hooks, as PyTorch does
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        error: Optional[HotbedError] = None
        clocks: List[Dict[str, Any]] = []
        groups: List[Dict[str, Any]] = []
        try:
            clocks, groups = self._checked(state_dict)
        except HotbedError as raised:
            error = raised
        ranks = [s for s in self._storages if isinstance(s, ShardedStorage) and s.comm.size > 1]
        if ranks:
            agree(ranks[0].comm, ranks[0].device, ranks[0].streams.current(), error)
        elif error is not None:
            raise error
        for storage, clock in zip(self._storages, clocks):
            for t, table in enumerate(storage.tables):
                load_table_state(storage, t, state_dict["state"][table.name])
            storage.set_clock(clock)
        for group, given in zip(self.param_groups, groups):
            group.update(given)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _checked(self, state_dict: Any) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
        """Check a state dict; return the clocks of the storages and what the groups get.

        Raises:
            ArgumentError: a table or state is missing, or has another shape.
            UnsupportedError: another hyper-parameter than ``lr`` differs.
        """
        for name, kind in (("state", Mapping), ("clocks", Mapping), ("param_groups", list)):
            if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get(name), kind):
                raise ArgumentError(f"the state dict of the optimizer has no {kind.__name__} {name!r}", parameter=name)
        clocks = state_dict["clocks"]
        missing = [table.name for s in self._storages for table in s.tables if table.name not in clocks]
        if missing:
            raise ArgumentError(
                f"the state dict of the optimizer has no clocks of the tables {missing}", table=missing[0]
            )
        for storage in self._storages:
            for t, table in enumerate(storage.tables):
                parts = _wanted(storage, t, state_dict["state"].get(table.name))
                if parts:
                    _look(storage, t, f"state.{table.name}", parts)
        groups = [self._group_of(group, state_dict["param_groups"]) for group in self.param_groups]
        return [_clock_of(storage, clocks) for storage in self._storages], groups

    def _group_of(self, group: Any, given: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        """Return what a state dict's groups have for the tables of a group.

        Raises:
            ArgumentError: a table is in none.
            UnsupportedError: another hyper-parameter than ``lr`` differs.
        """
        tables = group["tables"]
        of_table = {name: found for found in given for name in found.get("tables", ())}
        missing = [name for name in tables if name not in of_table]
        if missing:
            raise ArgumentError(
                f"the state dict of the optimizer has no parameter group of the tables {missing}", table=missing[0]
            )
        without = [name for name in tables if "lr" not in of_table[name]]
        if without:
            raise ArgumentError(f"the state dict of the optimizer has no lr of the tables {without}", table=without[0])
        for name in tables:
            _rate(of_table[name]["lr"])
        merged: Dict[str, Any] = {}
        for found in (of_table[name] for name in tables):
            for name, value in found.items():
                if name not in ("params", "tables"):
                    group.check(name, value)
                    merged[name] = value
        merged["lr"] = common({name: of_table[name]["lr"] for name in tables}, "lr")
        return merged
