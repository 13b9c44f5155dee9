"""The dense part of a model in a checkpoint: whole tensors by name, however ranks share them.

``DistributedDataParallel``, ``FullyShardedDataParallel``, ``fully_shard()`` and tensor parallelism change the names or
tensors of a model.  A checkpoint has neither: so a model is loaded with another wrapper, or on another number of ranks.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import warnings
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy
import torch
from torch.nn.modules.module import _IncompatibleKeys
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map, tree_map_only

from hotbed.errors import ArgumentError, HotbedError, StateError, UnsupportedError
from hotbed.torch._modules import EmbeddingBagCollection, EmbeddingCollection
from hotbed.torch._states import dtensors

_FSDP = "FullyShardedDataParallel"
#: The child of a module that contains a model and adds its own part to the model's names.
_WRAPPERS = {
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "DistributedModelParallel": "_dmp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    _FSDP: "_fsdp_wrapped_module",
}
_KEPT = ("DataParallel", "DistributedDataParallel", "DistributedModelParallel")  # their parts stay in names of FSDP


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a module in a model.

    Attributes:
        name: its name, without the parts of wrappers.
        path: its name in state dicts of ``FullyShardedDataParallel``.
        unit: the ``FullyShardedDataParallel`` that has its parameters; None: there is none.
    """

    name: str = ""
    path: str = ""
    unit: Any = None

    @property
    def prefix(self) -> str:
        """The beginning of the names of the module's tensors."""
        return _prefix(self.name)

    def child(self, parent: Any, name: str) -> Place:
        """Return the place of a child of the module at this place."""
        kind = _wrapper(parent)
        is_inside = kind is not None and name == _WRAPPERS[kind]
        return Place(
            self.name if is_inside else _join(self.name, name),
            self.path if is_inside and kind not in _KEPT else _join(self.path, name),
            parent if kind == _FSDP else self.unit,
        )


def _prefix(name: str) -> str:
    return f"{name}." if name else ""


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _wrapper(module: Any) -> Optional[str]:
    return next((cls.__name__ for cls in type(module).__mro__ if cls.__name__ in _WRAPPERS), None)


class Dense:
    """What a model has outside of its tables: its modules, as ``state_dict()`` visits them."""

    def __init__(self, model: Any) -> None:
        """Begin without modules."""
        self._model = model
        #: Each module before its children, and again behind them, where the last element is True.
        self._visits: List[Tuple[Place, Any, bool]] = []

    def __bool__(self) -> bool:
        """Whether there are modules."""
        return bool(self._visits)

    @contextlib.contextmanager
    def adding(self, place: Place, module: Any, has_tables: bool) -> Iterator[None]:
        """Add a module; its children are added in the block.

        Wrappers are not added, nor modules that have tables and nothing else.
        """
        is_added = _wrapper(module) is None and (not has_tables or _has_state(module))
        if is_added:
            self._visits.append((place, module, False))
        yield
        if is_added:
            self._visits.append((place, module, True))

    def check(self, optimizer: Any) -> None:
        """Check what can be checked without other ranks.

        Raises:
            ArgumentError: the optimizer is a collection's, whose states are saved with the rows.
            UnsupportedError: a tensor is a ``ShardedTensor``; the model has a ``state_dict()`` of its own.
        """
        from hotbed.torch._optimizer import FusedOptimizer

        if isinstance(optimizer, FusedOptimizer):
            raise ArgumentError(
                "optimizer: a fused_optimizer, whose states are saved and loaded with the rows; pass the optimizer of "
                "the dense part, or None"
            )
        for place, module in self._modules():
            for method in ("state_dict", "load_state_dict"):
                if place.name == "" and _overrides(module, method):
                    raise UnsupportedError(
                        f"{type(module).__name__} overrides {method}(), which hotbed.checkpoint does not call for the "
                        "whole model; use hooks of state dicts, or get_extra_state() and set_extra_state()",
                        parameter=method,
                    )
            for name, value in _own(place, module).items():
                _refuse_sharded(name, value)
        if optimizer is not None:
            _refuse_sharded("optimizer", optimizer.state_dict())

    # --- the modules ----------------------------------------------------------------------------

    def state(self, keep: bool) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Return the state dict with whole tensors, and the metadata of modules by name, such as their versions.

        Ranks that share tensors call it together.

        Args:
            keep: False: values are only good for their shapes.

        Raises:
            UnsupportedError: a hook fails.
        """
        found: Dict[str, Any] = collections.OrderedDict()
        metadata: Dict[str, Any] = {}
        for place, module, is_end in self._each():
            with _calling(place, module):
                if is_end:
                    for hook in module._state_dict_hooks.values():
                        result = hook(module, found, place.prefix, metadata[place.name])
                        found = found if result is None else result
                    if _overrides(module, "state_dict"):
                        _call_override(place, module, found)
                    continue
                metadata[place.name] = {"version": module._version}
                for hook in module._state_dict_pre_hooks.values():
                    hook(module, place.prefix, False)
                own = _own(place, module)
                if place.unit is not None:  # its tensors are whole only now
                    own = tree_map_only(torch.Tensor, functools.partial(_copy, keep=keep), own)
                found.update(own)
        whole = functools.partial(tree_map_only, torch.Tensor, functools.partial(_whole, keep=keep))
        return {name: whole(value) for name, value in found.items()}, metadata

    def check_state(self, path: str, state: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Raise if a state dict is of another dense part.  Ranks that share tensors call it together.

        Names and shapes inside of a module of another version may differ: the module itself converts them.

        Raises:
            StateError: names or shapes differ.
        """
        own, here = self.state(keep=False)
        converted = tuple(_prefix(name) for name in here if name in metadata and here[name] != metadata[name])
        missing, more = (
            sorted(name for name in names if not name.startswith(converted))
            for names in (own.keys() - state.keys(), state.keys() - own.keys())
        )
        shapes = [
            f"{name} is {tuple(getattr(state[name], 'shape', ()))} there, {tuple(own[name].shape)} here"
            for name in own
            if name in state and not name.startswith(converted) and not is_lazy(own[name])
            if hasattr(own[name], "shape")
            if own[name].shape != getattr(state[name], "shape", None)
        ]
        if missing or more or shapes:
            raise StateError(
                f"{path} has another dense part: missing there {missing[:5]}, missing here {more[:5]}, other shapes "
                f"{shapes[:5]}; load() a collection of the model alone",
                path=path,
            )

    def load(self, path: str, state: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Load a state dict that ``check_state()`` accepted.  Ranks that share tensors call it together.

        Raises:
            StateError: a module does not load its part; the rows are loaded.
        """
        missing: List[str] = []
        unexpected: List[str] = []
        errors: List[str] = []
        outer: List[Dict[str, Any]] = [{**state}]  # of the modules around the visited one
        try:
            for place, module, is_end in self._each():
                if is_end:
                    outer.pop()
                    for hook in module._load_state_dict_post_hooks.values():
                        hook(module, _IncompatibleKeys(missing, unexpected))
                    continue
                given: Dict[str, Any] = collections.OrderedDict(
                    (name, value) for name, value in outer[-1].items() if name.startswith(place.prefix)
                )
                about = dict(metadata.get(place.name, {}))
                with _apart(module), _sharing(module):
                    module._load_from_state_dict(given, place.prefix, about, True, missing, unexpected, errors)
                outer.append(given)
        except Exception as error:
            raise StateError(
                f"{path}: the rows were loaded, but {type(module).__name__} {place.name!r} of the dense part raised "
                f"{type(error).__name__}: {error}",
                path=path,
            ) from error
        errors += [f"missing {missing[:5]}"] if missing else []
        errors += [f"unexpected {unexpected[:5]}"] if unexpected else []
        if errors:
            raise StateError(f"{path}: the rows were loaded, but not all of the dense part: {errors[0]}", path=path)

    def _modules(self) -> List[Tuple[Place, Any]]:
        return [(place, module) for place, module, is_end in self._visits if not is_end]

    def _each(self) -> Iterator[Tuple[Place, Any, bool]]:
        """Visit each module while its parameters are in it; behind its children, only if hooks may need them."""
        unsharded: Any = None
        with contextlib.ExitStack() as stack:
            for place, module, is_end in self._visits:
                needs = not is_end or module._state_dict_hooks or module._load_state_dict_post_hooks
                if needs and place.unit is not unsharded:
                    stack.close()
                    unsharded = place.unit
                    if unsharded is not None:  # one unit at a time, so that no GPU needs memory for all
                        kind: Any = next(cls for cls in type(unsharded).__mro__ if cls.__name__ == _FSDP)
                        stack.enter_context(kind.summon_full_params(unsharded, recurse=False))
                if any(cls.__name__ == "FSDPModule" for cls in type(module).__mro__):
                    module.reshard()  # a forward may have left whole parameters in it, which are copies
                yield place, module, is_end

    # --- its optimizer --------------------------------------------------------------------------

    def optimizer_state(self, optimizer: Any, keep: bool, only_first: bool) -> Any:
        """Return the optimizer's state dict with whole tensors, and names instead of numbers of parameters.

        Args:
            optimizer: None: there is none.
            keep: as in ``state()``.
            only_first: only rank 0 of PyTorch's process group has ``keep``.

        Raises:
            ArgumentError: it has a parameter that the modules do not have.
        """
        if optimizer is None:
            return None
        if self._is_fsdp():
            with self._full_states(only_first) as kind:
                state = kind.optim_state_dict(self._model, optimizer)
            names = {place.path: place.name for place, _ in self._modules()}
            return tree_map(_plain_number, _rename(state, lambda path: _moved(names, path))) if keep else state
        state = optimizer.state_dict()
        if _has_numbers(state):
            state = _rename(state, self._labels(optimizer).__getitem__)
        return tree_map(functools.partial(_plain, keep=keep), state)

    def convert_optimizer_state(self, path: str, optimizer: Any, state: Mapping[str, Any]) -> Any:
        """Return what ``optimizer.load_state_dict()`` takes, given a state dict of a checkpoint.

        Ranks that share tensors call it together.

        Raises:
            ArgumentError: as ``optimizer_state()``.
            StateError: the optimizer has other parameters or groups.
            UnsupportedError: a state of a ``DTensor`` has another shape than the tensor.
        """
        if self._is_fsdp():
            paths = {place.name: place.path for place, _ in self._modules()}
            known = [name for group in state["param_groups"] for name in group["params"]]
            missing = [name for name in known if name.rpartition(".")[0] not in paths]
            if missing:
                raise StateError(f"{path} has an optimizer of other parameters: missing here {missing[:5]}", path=path)
            with self._full_states(only_first=False) as kind:
                return kind.optim_state_dict_to_load(
                    self._model, optimizer, _rename(state, lambda name: _moved(paths, name))
                )
        own = optimizer.state_dict()
        if not _has_numbers(own):
            return state
        labels = self._labels(optimizer)
        groups = [sorted(labels[number] for number in group["params"]) for group in own["param_groups"]]
        theirs = [sorted(map(str, group["params"])) for group in state["param_groups"]]
        if groups != theirs:
            missing = sorted({n for g in groups for n in g} - {n for g in theirs for n in g})
            more = sorted({n for g in theirs for n in g} - {n for g in groups for n in g})
            sizes = [[len(group) for group in every] for every in (theirs, groups)]
            raise StateError(
                f"{path} has an optimizer of other parameters: groups of {sizes[0]} there, of {sizes[1]} here, missing "
                f"there {missing[:5]}, missing here {more[:5]}",
                path=path,
            )
        numbers = {name: number for number, name in labels.items()}
        parameters = _parameters(optimizer)
        found = _rename(state, numbers.__getitem__)
        for given, group in zip(found["param_groups"], own["param_groups"]):
            given["params"] = group["params"]
        for number, values in found["state"].items():
            parameter = parameters[number]
            like = functools.partial(_state_like, parameter, labels[number])
            found["state"][number] = tree_map_only(torch.Tensor, like, values)
        return found

    def _is_fsdp(self) -> bool:
        return any(place.unit is not None for place, _ in self._modules())

    @contextlib.contextmanager
    def _full_states(self, only_first: bool) -> Iterator[Any]:
        """Make ``FullyShardedDataParallel`` return whole states in a block; returns the class."""
        from torch.distributed.fsdp import (
            FullOptimStateDictConfig,
            FullStateDictConfig,
            FullyShardedDataParallel,
            StateDictType,
        )

        # With offload_to_cpu, states that are on the CPU already would share the memory into which they are gathered.
        moves = any(parameter.device.type != "cpu" for parameter in self._model.parameters())
        states = FullOptimStateDictConfig(offload_to_cpu=moves, rank0_only=only_first)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "FSDP.state_dict_type", FutureWarning)  # of all its callers
            with FullyShardedDataParallel.state_dict_type(
                self._model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), states
            ):
                yield FullyShardedDataParallel

    def _labels(self, optimizer: Any) -> Dict[int, str]:
        """Return the names of an optimizer's parameters by their numbers."""
        names = {
            id(parameter): _join(place.name, name)
            for place, module, is_end in self._each()
            if not is_end
            for name, parameter in module._parameters.items()
        }
        parameters = _parameters(optimizer)
        for number, parameter in enumerate(parameters):
            if id(parameter) not in names:
                raise ArgumentError(
                    f"optimizer: its parameter {number}, of shape {tuple(parameter.shape)}, is not in the dense part "
                    "of the model; pass the model that contains it, and the optimizer that was made after wrapping",
                    parameter="optimizer",
                    value=number,
                )
        return {number: names[id(parameter)] for number, parameter in enumerate(parameters)}


def _moved(modules: Mapping[str, str], name: str) -> str:
    """Return the name of a parameter whose module has another name."""
    module, _, last = name.rpartition(".")
    return _join(modules[module], last)


def _own(place: Place, module: Any) -> Dict[str, Any]:
    """Return the state dict of a module without its children and tables."""
    found: Dict[str, Any] = {}
    with _apart(module):
        module._save_to_state_dict(found, place.prefix, False)
    return found


def is_collection(module: Any) -> bool:
    """Whether a module is a collection of this package."""
    return isinstance(module, (EmbeddingBagCollection, EmbeddingCollection))


def _apart(module: Any) -> Any:
    return module.without_tables() if is_collection(module) else contextlib.nullcontext()


def _has_state(module: Any) -> bool:
    """Whether a state dict has more of a module than its tables."""
    own = module._parameters or module._buffers or module._modules
    return bool(own) or type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _overrides(module: Any, method: str) -> bool:
    """Whether a module has another method than PyTorch's."""
    return getattr(getattr(module, method), "__func__", None) is not getattr(torch.nn.Module, method)


@contextlib.contextmanager
def _calling(place: Place, module: Any) -> Iterator[None]:
    """Explain an error of code that belongs to a module."""
    try:
        yield
    except HotbedError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"the dense part: the state dict of {type(module).__name__} {place.name!r} raised {type(error).__name__}: "
            f"{error}; hotbed.checkpoint makes it without the entries of tables",
            parameter=place.name,
        ) from error


def _call_override(place: Place, module: Any, found: Dict[str, Any]) -> None:
    """Replace what a state dict has of a module by what the module's own ``state_dict()`` returns."""
    if place.unit is not None or any(is_collection(m) or _wrapper(m) == _FSDP for m in module.modules()):
        raise UnsupportedError(
            f"{type(module).__name__} {place.name!r} overrides state_dict(), and has tables or is in "
            "FullyShardedDataParallel; use hooks of state dicts, or get_extra_state() and set_extra_state()",
            parameter=place.name,
        )
    for name in [name for name in found if name.startswith(place.prefix)]:
        del found[name]
    found.update(module.state_dict(prefix=place.prefix))


@contextlib.contextmanager
def _sharing(module: Any) -> Iterator[None]:
    """Make a module share whole tensors that it loads as it shares its own, after its hooks have renamed them."""
    tensors = {**module._parameters, **module._buffers}
    shared = {name: tensor for name, tensor in tensors.items() if hasattr(tensor, "device_mesh")}

    def share(state: Dict[str, Any], prefix: str, *_: Any) -> None:
        for name, tensor in shared.items():
            if f"{prefix}{name}" in state:
                state[f"{prefix}{name}"] = _like(tensor, state[f"{prefix}{name}"])

    handle = module._register_load_state_dict_pre_hook(share) if shared else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def _whole(tensor: Any, keep: bool) -> Any:
    """Return all of a tensor."""
    if not hasattr(tensor, "device_mesh"):
        return tensor
    full = tensor.full_tensor()
    return full.cpu() if keep else tensor


def _plain_number(value: Any) -> Any:
    """Return a number of Python for one of numpy, which schedulers make, and which a load would refuse."""
    return value.item() if isinstance(value, numpy.generic) else value


def _plain(value: Any, keep: bool) -> Any:
    return _whole(value, keep) if isinstance(value, torch.Tensor) else _plain_number(value)


def _copy(tensor: Any, keep: bool) -> Any:
    """Return a copy of a tensor whose memory is freed soon."""
    whole = _whole(tensor, keep)
    return whole.cpu().clone() if keep else torch.empty_like(whole, device="meta")


def _like(own: Any, given: Any) -> Any:
    """Return a whole tensor as ranks share another one."""
    if hasattr(given, "device_mesh"):
        return given
    return dtensors().distribute_tensor(given.to(own.device), own.device_mesh, own.placements)


def _state_like(parameter: Any, name: str, state: torch.Tensor) -> Any:
    """Return an optimizer's state of a parameter as ranks share the parameter."""
    if not hasattr(parameter, "device_mesh") or state.dim() == 0:
        return state
    if state.shape != parameter.shape:
        raise UnsupportedError(
            f"optimizer: a state of {name!r} has shape {tuple(state.shape)}, the DTensor {tuple(parameter.shape)}; "
            "Hotbed cannot know how ranks share it: load the checkpoint into a model without DTensors",
            parameter=name,
            value=tuple(state.shape),
            limit=tuple(parameter.shape),
        )
    return _like(parameter, state)


def _refuse_sharded(name: str, value: Any) -> None:
    """Raise if a state dict has a ShardedTensor."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, part in parts:
        _refuse_sharded(f"{name}.{key}", part)
    if hasattr(value, "local_shards"):
        raise UnsupportedError(
            f"the dense part has the {type(value).__name__} {name!r}, of which each rank has a part; save and load "
            "each collection alone, and the dense part by torch.distributed.checkpoint",
            parameter=name,
        )


def _parameters(optimizer: Any) -> List[Any]:
    return list({id(p): p for group in optimizer.param_groups for p in group["params"]}.values())


def _has_numbers(state: Any) -> bool:
    """Whether a state dict of an optimizer has numbers of parameters, as PyTorch's optimizers have."""
    groups = state.get("param_groups", ()) if isinstance(state, dict) else ()
    numbers = [number for group in groups for number in group.get("params", ())]
    return bool(numbers) and all(isinstance(number, int) for number in numbers)


def _rename(state: Mapping[str, Any], new: Callable[[Any], Any]) -> Dict[str, Any]:
    """Return a state dict of an optimizer with other names of parameters."""
    return {
        **state,
        "state": {new(name): values for name, values in state["state"].items()},
        "param_groups": [{**g, "params": [new(name) for name in g["params"]]} for g in state["param_groups"]],
    }
