"""The fused optimizer as a ``torch.optim.Optimizer``, for PyTorch's schedulers and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

import torch

from hotbed.errors import ArgumentError, UnsupportedError
from hotbed.torch._storage import Storage, of_another_rank, sign, signed


def table_state(storage: Storage, number: int) -> Dict[str, torch.Tensor]:
    """Return the states of a table's rows by name, ``[rows, width]``, and for a hash table its ``keys``."""
    names = storage.state_names()
    if storage.is_direct(number):
        state = {name: storage.view(number, s) for s, name in enumerate(names)}
    else:
        keys = storage.keys(number)
        state = dict(storage.rows(number, keys, names))
        if storage.tables[number].is_hash:
            state["keys"] = keys
    return {name: sign(part, storage.share) for name, part in state.items()}


def load_table_state(storage: Storage, number: int, given: Optional[Mapping[str, torch.Tensor]]) -> None:
    """Restore the states that :func:`table_state` returned.

    Raises:
        ArgumentError: a state is missing, has another shape, or belongs to another optimizer or rank.
    """
    names, table = storage.state_names(), storage.tables[number]
    wanted = [*names, "keys"] if names and table.is_hash else names
    if not isinstance(given, Mapping) or any(name not in given for name in wanted):
        raise ArgumentError(f"table {table.name!r}: the state dict has no states {wanted}")
    others = sorted(str(name) for name in given if name not in (*names, "keys", "clock"))
    if others:
        raise ArgumentError(
            f"table {table.name!r}: the state dict has {others} of another optimizer; "
            f"{type(storage.optimizer).__name__} has the states {names}"
        )
    for share in map(signed, given.values()):
        if share is not None and share != storage.share:
            raise ArgumentError(f"table {table.name!r}: states {of_another_rank(share, storage.share)}")
    if names:
        keys = given["keys"] if table.is_hash else storage.keys_of(number, table.name, given[names[0]])
        storage.set_rows(number, keys, {name: given[name] for name in names}, fill=True)


class FusedOptimizer(torch.optim.Optimizer):
    """Holds the learning rate and the optimizer states; the backward updates the rows.

    ``step()`` and ``zero_grad()`` do nothing.  ``param_groups[0]["lr"]`` is the learning rate of later backwards: set
    it, or pass the optimizer to a scheduler of ``torch.optim.lr_scheduler``.
    """

    def __init__(self, anchor: torch.Tensor, storages: List[Storage], lr: float, share: Tuple[int, int]) -> None:
        self._storages = storages
        self._share = share  # this rank, and the number of ranks that share the rows
        super().__init__([anchor], {"lr": lr})
        for storage in storages:
            storage.group = self.param_groups[0]
        self._opt_called = True  # backwards update, so a scheduler need not warn that step() was not called

    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:  # type: ignore[override]
        """Do nothing but call ``closure``: the backward has updated the rows."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients are not kept."""

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Refuse other parameters.

        Raises:
            UnsupportedError: always, after the constructor of PyTorch has added the only group.
        """
        if self.param_groups:
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
        """Return the states of all rows by table, and the step counts of each storage.

        Returns:
            A dict with ``state``: for each table a dict of tensors ``[rows, width]`` by the state's name, and for a
            hash table ``keys``, int64 ``[rows]``; with ``clocks``, one for each storage; with ``param_groups``; and, of
            several ranks, with ``share``, this rank and their number.
            States of static tables in device memory are views of the memory that trains.
        """
        state = {table.name: table_state(s, t) for s in self._storages for t, table in enumerate(s.tables)}
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        share = {"share": self._share} if self._share[1] > 1 else {}
        return {"state": state, "clocks": [s.clock() for s in self._storages], "param_groups": groups, **share}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Restore the states that ``state_dict()`` returned.

        Raises:
            ArgumentError: a table or state is missing, or has another shape, or the states are of another rank.
        """
        for name, kind in (("state", Mapping), ("clocks", list), ("param_groups", list)):
            if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get(name), kind):
                raise ArgumentError(f"the state dict of the optimizer has no {kind.__name__} {name!r}")
        rank, world = state_dict.get("share", (0, 1))
        if world > 1 and (rank, world) != self._share:
            raise ArgumentError(f"the optimizer's states are {of_another_rank((rank, world), self._share)}")
        clocks = state_dict["clocks"]
        if len(clocks) != len(self._storages):
            raise ArgumentError(f"the optimizer has {len(self._storages)} clocks, the state dict {len(clocks)}")
        for storage, clock in zip(self._storages, clocks):
            for t, table in enumerate(storage.tables):
                load_table_state(storage, t, state_dict["state"].get(table.name))
            storage.set_clock(clock)
        for group, given_group in zip(self.param_groups, state_dict["param_groups"]):
            group.update(given_group)
