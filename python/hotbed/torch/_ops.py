"""Operators for ``torch.compile``: a lookup, and the update in its backward.

``hotbed::lookup`` reads rows; in training it also creates rows for new keys and keeps a ticket.  ``hotbed::update``
applies the gradient and frees the ticket.  Both change a storage that PyTorch does not see.  The result of
``hotbed::update`` is the gradient of ``anchor``, a leaf of the module, so autograd always runs the update.  The anchor
has one element: a compiler drops sums of empty gradients, and with them the updates of modules with several storages.

Where PyTorch does not trace, :func:`rows_of` does the same without the operators, whose dispatch takes the host longer
than the lookup.
"""

# Annotations are types here, not strings: PyTorch 2.4 makes the operators' schemas from them as they are.
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from hotbed.errors import ArgumentError, StateError, UnsupportedError
from hotbed.torch import _storage


@torch.library.custom_op("hotbed::lookup", mutates_args=())
def lookup(
    anchor: Tensor,
    keys: Tensor,
    offsets: Tensor,
    weights: Optional[Tensor],
    handle: int,
    samples: int,
    columns: int,
    pooled: bool,
    training: bool,
    dtype: torch.dtype,
) -> Tuple[Tensor, Tensor]:
    """Read the rows of a batch.

    Args:
        anchor: ``[1]``; it requires a gradient if the batch is trained.
        keys: ``[n]`` int64 on the tables' device.
        offsets: ``[features * samples + 1]`` int64.
        weights: ``[n]`` float32, or None.
        handle: the storage's handle.
        samples: number of samples, equal for all features.
        columns: number of columns of the output.
        pooled: the output has one row per sample; otherwise one per key.
        training: create rows for new keys, and expect a backward.
        dtype: dtype of the output.

    Returns:
        ``[samples, columns]`` or ``[n, columns]``, and the ticket's number, ``[1]`` int64 on the CPU.
    """
    storage = _storage.of_handle(handle)
    if training:
        storage.expect_scaler()
    out = storage.output(keys, samples, columns, pooled, dtype)
    batch = _storage.Batch(keys, offsets, weights, samples)
    if training and not storage.is_ahead(batch):
        # The backward reads them again, but a compiler may reuse the memory of an operator's inputs after the call.
        batch = _storage.Batch(keys.clone(), offsets.clone(), None if weights is None else weights.clone(), samples)
    token = storage.forward(batch, training, out)
    return out, torch.tensor([token], dtype=torch.int64, device="cpu")


@lookup.register_fake
def _(anchor: Tensor, keys: Tensor, *others: Any) -> Tuple[Tensor, Tensor]:
    _, _, _, samples, columns, pooled, _, dtype = others
    if keys.dim() != 1:
        raise ArgumentError(f"keys: shape {tuple(keys.shape)} is not a vector", "keys", tuple(keys.shape))
    rows = samples if pooled else keys.shape[0]
    return keys.new_empty((rows, columns), dtype=dtype), torch.empty(1, dtype=torch.int64, device="cpu")


@torch.library.custom_op("hotbed::update", mutates_args=())
def update(gradient: Tensor, token: Tensor, handle: int) -> Tensor:
    """Apply the gradient of a batch to its rows.

    Args:
        gradient: gradient of the lookup's output, with the same shape and dtype.
        token: the ticket's number, from the lookup.
        handle: the storage's handle.

    Returns:
        The anchor's gradient, ``[1]`` float32: zero.
    """
    _storage.of_handle(handle).backward(int(token.item()), gradient)
    return gradient.new_zeros(1, dtype=torch.float32)


@update.register_fake
def _(gradient: Tensor, token: Tensor, handle: int) -> Tensor:
    return gradient.new_zeros(1, dtype=torch.float32)


def _setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.handle = inputs[4]
    if isinstance(inputs[4], int):  # PyTorch 2.4 also calls this while it traces, with a symbol
        ctx.storage = _storage.of_handle(inputs[4])  # it stays while a backward may come


def _backward(ctx: Any, gradient: Tensor, _: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    (token,) = ctx.saved_tensors
    return (update(gradient, token, ctx.handle), *([None] * 9))


lookup.register_autograd(_backward, setup_context=_setup_context)

# Two calls with the same arguments are two lookups, and two updates.
for _operator in (torch.ops.hotbed.lookup.default, torch.ops.hotbed.update.default):
    torch.fx.node.has_side_effect(_operator)


class _Forward:
    """A forward that waits for its backward; freed without one, it returns its ticket."""

    __slots__ = ("done", "storage", "token")

    def __init__(self, storage: _storage.Storage, token: int) -> None:
        self.storage, self.token, self.done = storage, token, False

    def __del__(self) -> None:
        if not getattr(self, "done", True):  # Ctrl-C may have ended __init__()
            self.storage.drop(self.token)


#: A batch of a storage.
_Batch = Tuple[_storage.Storage, _storage.Batch]


class _Rows(torch.autograd.Function):
    """``hotbed::lookup`` in training and ``hotbed::update``, without their dispatch.

    The batch is one argument that is no tensor, because autograd examines each tensor.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, batch: _Batch) -> Tensor:
        storage, given = batch
        storage.expect_scaler()
        out = storage.empty(given.keys, given.samples)
        ctx.held = _Forward(storage, storage.forward(given, True, out))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[None, None]:
        held: _Forward = ctx.held
        if held.done:
            raise StateError(
                "backward: this forward had its backward, which has updated the rows; for several losses of one "
                "forward, add them up and call backward() once"
            )
        if torch._C._autograd._profiler_enabled():
            with torch.autograd.profiler.record_function("hotbed::update"):
                held.storage.backward(held.token, gradient)
        else:
            held.storage.backward(held.token, gradient)
        held.done = True
        return None, None


#: ``_Rows.apply`` without its preparations for the transforms of ``torch.func``, which take PyTorch 2.11 1.4 us.
_apply: Any = super(torch.autograd.Function, _Rows).apply


def rows_of(storage: _storage.Storage, anchor: Tensor, given: _storage.Batch, training: bool) -> Tensor:
    """Read the rows of a batch, as ``hotbed::lookup`` does: through the operator only if PyTorch traces.

    Returns:
        ``[samples, columns]`` or ``[n, columns]``; in training, its backward updates the rows.
    """
    if torch.compiler.is_compiling() or type(given.keys) is not Tensor or torch._C._len_torch_dispatch_stack() > 0:
        # Not is_exporting(), which is true in a function that PyTorch 2.11 compiles.  Before 2.7 there is neither.
        if getattr(torch.compiler, "_is_exporting_flag", False):
            raise UnsupportedError("torch.export: the tables are not in the program; use torch.compile")
        keys, offsets, weights, samples = given
        of, made = anchor if training else anchor.detach(), (storage.columns, storage.is_pooled)
        out: Tensor
        out, _ = lookup(of, keys, offsets, weights, storage.handle, samples, *made, training, storage.output_dtype)
        return out
    if torch._C._get_tracing_state() is not None:  # torch.jit.trace
        raise UnsupportedError("torch.jit.trace: the lookup is no operator of TorchScript; use torch.compile")
    batch = (storage, given)
    if torch._C._autograd._profiler_enabled():
        with torch.autograd.profiler.record_function("hotbed::lookup"):
            return _eager_rows(anchor, batch, training)
    return _eager_rows(anchor, batch, training)


def _eager_rows(anchor: Tensor, batch: _Batch, training: bool) -> Tensor:
    if training:
        call = _Rows.apply if torch._C._are_functorch_transforms_active() else _apply  # the former raises RuntimeError
        return call(anchor, batch)  # type: ignore[no-any-return]
    storage, given = batch
    out = storage.empty(given.keys, given.samples)
    storage.forward(given, False, out)
    return out
