"""Modules whose tables are no parameters, and are frozen by ``requires_grad_()`` all the same."""

from __future__ import annotations

import sys
import weakref
from typing import Iterator, Optional, Set, Tuple

import torch


class _Switch(torch.nn.Parameter):
    """An empty parameter whose ``requires_grad`` says whether a module trains its tables."""

    _module: weakref.ref[Freezable]

    def __new__(cls, module: Freezable) -> _Switch:
        switch: _Switch = torch.Tensor._make_subclass(cls, torch.empty(0), False)
        switch._module = weakref.ref(module)
        return switch

    def __init__(self, module: Freezable) -> None:
        pass

    @property
    def requires_grad(self) -> bool:
        module = self._module()
        return module is not None and not module._frozen

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> _Switch:
        """Freeze the tables, or train them again."""
        module = self._module()
        if module is not None:
            module._frozen = not requires_grad
        return self


class Freezable(torch.nn.Module):
    """A module with tables.

    Tables are no parameters: an optimizer, DistributedDataParallel or a state dict could do nothing with one.  But
    ``requires_grad_()`` reaches modules only through their parameters, so it finds a switch.
    """

    _switch: _Switch

    def __init__(self) -> None:
        super().__init__()
        self._frozen = False
        self.__dict__["_switch"] = _Switch(self)  # no parameter

    def named_modules(
        self, memo: Optional[Set[torch.nn.Module]] = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[Tuple[str, torch.nn.Module]]:
        """Return the module and its children; ``requires_grad_()`` of any outer module also finds a switch there."""
        yield from super().named_modules(memo, prefix, remove_duplicate)
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not torch.nn.Module.requires_grad_.__code__:
            frame = frame.f_back  # type: ignore[assignment]
        if frame is not None:
            holder = torch.nn.Module()
            holder._parameters["tables"] = self._switch
            yield f"{prefix}.tables", holder

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """Return parameters of a subclass; of this module alone also the switch, which freezes the tables.

        Lightning's ``BaseFinetuning.freeze()`` asks each module for its own parameters.
        """
        yield from super().parameters(recurse)
        if not recurse:
            yield self._switch
