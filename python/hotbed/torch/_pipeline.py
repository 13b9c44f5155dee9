"""A train pipeline: the next batch is looked up and exchanged while the current one trains."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch.utils._pytree import tree_map_only

from hotbed.errors import ArgumentError, wrong
from hotbed.torch._modules import EmbeddingBagCollection, EmbeddingCollection
from hotbed.torch._optimizer import FusedOptimizer

_DEPTH = 4  #: levels of a batch that are searched for the input of a collection
_Collection = Union[EmbeddingBagCollection, EmbeddingCollection]
_Path = Tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class _Attribute:
    """A step of a path to an attribute; other steps are keys and indices."""

    name: str


def _parts(value: Any) -> Iterator[Tuple[Any, Any]]:
    """Iterate over the parts of a batch: how to reach each one, and the part."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    for name, part in getattr(value, "__dict__", {}).items():
        yield _Attribute(name), part
    for cls in type(value).__mro__:
        slots = getattr(cls, "__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                yield _Attribute(name), getattr(value, name)


def _find(batch: Any, wanted: Any, depth: int = _DEPTH) -> Optional[_Path]:
    """Return the path from a batch to one of its parts; None if it is none."""
    if batch is wanted:
        return ()
    if depth == 0 or isinstance(batch, (torch.Tensor, str, bytes)):
        return None
    for step, part in _parts(batch):
        rest = _find(part, wanted, depth - 1)
        if rest is not None:
            return (step, *rest)
    return None


def _follow(batch: Any, path: _Path) -> Any:
    for step in path:
        batch = getattr(batch, step.name) if isinstance(step, _Attribute) else batch[step]
    return batch


def _with(value: Any, parts: Dict[Any, Any]) -> Any:
    """Return a copy of a part of a batch with other parts; its class's constructor and setters are not called."""
    kind = type(value)
    if isinstance(value, (dict, list, tuple)):  # of which a copy may have been through a setter
        parts = {**dict(_parts(value)), **parts}
    if isinstance(value, tuple):
        items = [parts.pop(index) for index in range(len(value))]
        # PyTorch's results, such as torch.return_types.max, have a constructor in C.
        copied = kind(items) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, items)
    else:
        copied = copy.copy(value)
        if copied is value:
            raise TypeError(f"{kind.__name__} has no copies")
    builtin = next((base for base in (collections.OrderedDict, dict, list) if isinstance(value, base)), None)
    set_item: Any = None if builtin is None else builtin.__setitem__
    for step, part in parts.items():
        if isinstance(step, _Attribute):
            object.__setattr__(copied, step.name, part)
        elif set_item is None:
            copied[step] = part
        else:
            set_item(copied, step, part)
    return copied


def _moved(value: Any, device: torch.device, seen: Dict[int, Tuple[Any, Any]]) -> Any:
    """Return a batch on a device: itself if no part moves, else a copy.  A part that has ``to()`` moves itself.

    Args:
        value: the batch, or a part of it.
        device: where it goes.
        seen: parts, and what they are there, by identity; a part that a batch has twice moves once.

    Raises:
        ArgumentError: a part can be neither moved nor copied.
    """
    if id(value) in seen:
        return seen[id(value)][1]
    moved = value
    if callable(getattr(type(value), "to", None)):
        moved = value.to(device, non_blocking=True)
    elif isinstance(value, (Mapping, list, tuple)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        every = [(step, part, _moved(part, device, seen)) for step, part in _parts(value)]
        parts = {step: there for step, part, there in every if there is not part}
        try:
            moved = _with(value, parts) if parts else value
        except Exception as error:
            raise ArgumentError(
                f"TrainPipeline: a part of the batch, of {type(value).__qualname__}, cannot be copied to {device}: "
                f"{error}; give its class a method to(device, non_blocking)",
                parameter="batches",
                value=type(value),
            ) from error
    elif not isinstance(value, type) and callable(getattr(value, "to", None)):  # by __getattr__
        moved = value.to(device, non_blocking=True)
    seen[id(value)] = (value, moved)
    return moved


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Iterate over the tensors of a batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 0 and not isinstance(value, (str, bytes)):
        for _, part in _parts(value):
            yield from _tensors(part, depth - 1)


class _Streams:
    """The streams of a pipeline: batches to the device, and lookups ahead; on the CPU there are none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.copies: Any = None
        self.lookups: Any = None
        if device.type == "cuda":
            self.copies, self.lookups = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

        self.trained: Any = None  #: recorded before the forward of the current batch

    def begin(self, batch: Any) -> None:
        """Let the current stream use a batch that was copied and looked up on other streams."""
        if self.copies is None:
            return
        main = torch.cuda.current_stream(self.device)
        self.trained = main.record_event()
        main.wait_stream(self.copies)
        main.wait_stream(self.lookups)
        for tensor in _tensors(batch):
            if tensor.is_cuda:
                tensor.record_stream(main)
                tensor.record_stream(self.lookups)

    def copying(self) -> Any:
        """Return a context manager for copies to the device."""
        return contextlib.nullcontext() if self.copies is None else torch.cuda.stream(self.copies)

    def looking_up(self) -> Any:
        """Return a context manager for lookups ahead."""
        if self.copies is None:
            return contextlib.nullcontext()
        self.lookups.wait_stream(self.copies)
        self.lookups.wait_event(self.trained)  # the backwards that free slots are before it
        return torch.cuda.stream(self.lookups)


class TrainPipeline:
    """Trains a model while the next batch is copied to the device, looked up and, with several ranks, exchanged.

    Rows, dense parameters and losses are those of the plain loop, bit for bit, unless a table evicts or refuses keys::

        pipeline = ht.TrainPipeline(model, optimizer)
        for loss in pipeline(batches):
            ...

    For each batch it calls ``model(batch)``, which returns the loss, or a tuple or list that begins with it; then the
    optimizer's ``zero_grad()``, ``loss.backward()`` and the optimizer's ``step()``.  Between forward and backward it
    calls ``prefetch()`` of the model's collections for the next batch.  In the first batch it notes which part of the
    batch each collection receives, so it needs no description of the batch.  With several ranks, every rank passes
    equally many batches.

    Args:
        model: a module with collections of this package; wrappers such as ``DistributedDataParallel`` may be around it.
        optimizer: of the dense parameters; None: there are none, or ``step`` trains them.
        step: is called with the model's result in place of ``zero_grad()``, ``backward()`` and ``step()``, for
            example to clip gradients.
        device: where batches are moved; None: the device of the model's collections.

    Attributes:
        unprefetched: why a collection is not looked up ahead, by its name in the model.

    Raises:
        ArgumentError: the model has no collection, or a collection with ``max_in_flight=1``; ``optimizer`` is of rows.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optional[torch.optim.Optimizer] = None,
        step: Optional[Callable[[Any], None]] = None,
        device: Optional[Union[str, torch.device]] = None,
    ) -> None:
        if isinstance(optimizer, FusedOptimizer):
            raise wrong(
                "optimizer",
                type(optimizer).__name__,
                "is of rows, which train by themselves; pass that of the dense part",
            )
        self.model, self.optimizer, self._step = model, optimizer, step
        self._collections: Dict[str, _Collection] = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, (EmbeddingBagCollection, EmbeddingCollection))
        }
        if not self._collections:
            raise ArgumentError("TrainPipeline: the model has no EmbeddingBagCollection or EmbeddingCollection")
        for name, collection in self._collections.items():
            if any(len(storage.slots) < 2 for storage in collection.storages):
                raise ArgumentError(
                    f"TrainPipeline: collection {name!r} has max_in_flight=1, but the next batch is looked up before "
                    "the current one has had its backward; make it with max_in_flight=2",
                    parameter="max_in_flight",
                    value=1,
                    limit=2,
                )
        first = next(iter(self._collections.values()))
        self.device = first.device if device is None else torch.device(device)
        self.unprefetched: Dict[str, str] = {}
        self._paths: Dict[str, _Path] = {}
        self._known = False
        self._streams = _Streams(self.device)

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Train on batches, and iterate over what the model returned for each one, detached.

        The iterator is lazy: a batch trains when its result is asked for.  At most one further batch is read ahead.
        If the loop ends early, the batch that was read ahead is dropped.
        """
        source = iter(batches)
        current = self._load(source)
        try:
            while current is not None:
                result = self._forward(current[0])
                current, error = self._ahead(source)
                try:
                    self._train(result)
                except Exception:
                    if error is not None:
                        raise error from None  # which may be why, on several ranks
                    raise
                yield tree_map_only(torch.Tensor, torch.Tensor.detach, result)
                if error is not None:
                    raise error
        finally:
            if current is not None:
                for name in self._paths:
                    self._collections[name].cancel()

    # --- the stages of a batch --------------------------------------------------------------------

    def _ahead(self, source: Iterator[Any]) -> Tuple[Optional[List[Any]], Optional[Exception]]:
        """Load and look up the next batch.  An error is returned: the current batch trains before it is raised."""
        batch = None
        try:
            batch = self._load(source)
            if batch is not None:
                self._prefetch(batch[0])
        except Exception as error:
            return batch, error
        return batch, None

    def _load(self, source: Iterator[Any]) -> Optional[List[Any]]:
        """Return the next batch on the device, in a list; None at the end."""
        for batch in source:
            with self._streams.copying():
                moved = _moved(batch, self.device, {})
            return [moved]
        return None

    def _forward(self, batch: Any) -> Any:
        self._streams.begin(batch)
        if self._known:
            return self.model(batch)
        seen: Dict[str, List[Any]] = {name: [] for name in self._collections}
        hooks = [
            collection.register_forward_pre_hook(self._note(seen[name]), with_kwargs=True)
            for name, collection in self._collections.items()
        ]
        try:
            result = self.model(batch)
        finally:
            for hook in hooks:
                hook.remove()
        for name, received in seen.items():
            self._learn(name, batch, received)
        self._known = True
        return result

    @staticmethod
    def _note(received: List[Any]) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
            received.append(args[0] if args else kwargs.get("features"))

        return hook

    def _learn(self, name: str, batch: Any, received: List[Any]) -> None:
        """Note where a collection's input is in a batch, or why it is not looked up ahead."""
        if not received:
            self.unprefetched[name] = "the model did not call it in the first batch"
            return
        path = _find(batch, received[0])
        if path is None:
            self.unprefetched[name] = "the model computes its input from the batch; pass a part of the batch unchanged"
            return
        self._paths[name] = path

    def _prefetch(self, batch: Any) -> None:
        with self._streams.looking_up():
            for name, path in self._paths.items():
                self._collections[name].prefetch(_follow(batch, path))

    def _train(self, result: Any) -> None:
        if self._step is not None:
            self._step(result)
            return
        loss = result[0] if isinstance(result, (list, tuple)) else result
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()


__all__ = ["TrainPipeline"]
