"""Jagged tensors for use without TorchRec: the part of its interface that the modules need."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from hotbed.errors import ArgumentError, wrong
from hotbed.torch.config import PoolingType


def _lengths_of(offsets: torch.Tensor) -> torch.Tensor:
    return offsets[1:] - offsets[:-1]


def _offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    kind = lengths.dtype
    if kind not in (torch.int64, torch.int32):
        raise ArgumentError(f"lengths: dtype {kind} is not torch.int64 or torch.int32", "lengths", kind)
    return torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written in place; -1 if PyTorch does not count it."""
    return -1 if torch.compiler.is_compiling() or tensor.is_inference() else tensor._version


def _is_transforming() -> bool:
    """Whether a transform of ``torch.func`` is active; tensors made in it are of no use after it."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def described(value: Any) -> str:
    """Describe the object that was passed as a tensor, for a message."""
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r:.40}"


def check_shape(name: str, given: torch.Tensor, shape: Sequence[int]) -> None:
    """Check the shape of an argument.

    Raises:
        ArgumentError: it has another one.
    """
    found, wanted = tuple(given.shape), tuple(shape)
    if found != wanted:
        raise ArgumentError(f"{name}: shape {found} is not {wanted}", name, found, wanted)


class JaggedTensor:
    """Rows of different lengths, one after the other.

    Args:
        values: the items of all rows, ``[n, ...]``.
        lengths: the number of items of each row, ``[rows]`` int32 or int64; or pass ``offsets``.
        offsets: where each row begins, and where the last one ends, ``[rows + 1]``.  If both are given, ``lengths`` is
            ignored.
        weights: the weights of the items, ``[n]`` float32.
    """

    def __init__(
        self,
        values: torch.Tensor,
        lengths: Optional[torch.Tensor] = None,
        offsets: Optional[torch.Tensor] = None,
        weights: Optional[torch.Tensor] = None,
    ) -> None:
        if lengths is None and offsets is None:
            raise ArgumentError("a jagged tensor needs lengths or offsets")
        self._values, self._weights = values, weights
        self._has_offsets = offsets is not None
        self._given: torch.Tensor = lengths if offsets is None else offsets  # type: ignore[assignment]  # one of both
        self._other: Optional[Tuple[int, torch.Tensor]] = None  # version of the given one, and what follows from it

    def values(self) -> torch.Tensor:
        """Return the items of all rows, ``[n, ...]``."""
        return self._values

    def lengths(self) -> torch.Tensor:
        """Return the number of items of each row, ``[rows]``."""
        return self._of_given(_lengths_of) if self._has_offsets else self._given

    def offsets(self) -> torch.Tensor:
        """Return where each row begins, and where the last one ends, ``[rows + 1]``."""
        return self._given if self._has_offsets else self._of_given(_offsets_of)

    def _of_given(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return lengths of the given offsets, or offsets of the given lengths: again, if those were written since."""
        version = _version(self._given)
        if self._other is None or (version >= 0 and self._other[0] != version):
            made = compute(self._given)
            if _is_transforming():
                return made
            self._other = (version, made)
        return self._other[1]

    def weights_or_none(self) -> Optional[torch.Tensor]:
        """Return the weights of the items, ``[n]``, or None."""
        return self._weights

    def to_padded_dense(self, desired_length: Optional[int] = None, padding_value: float = 0.0) -> torch.Tensor:
        """Return the rows as one tensor, ``[rows, length, ...]``: short rows are filled up, long ones cut off.

        Args:
            desired_length: the length; None: the longest row's, for which the host waits for a GPU.
            padding_value: fills short rows.
        """
        lengths, offsets = self.lengths(), self.offsets()
        if desired_length is None:
            desired_length = int(lengths.max()) if lengths.numel() > 0 else 0
        place = torch.arange(desired_length, device=offsets.device)[None, :]
        inside = place < lengths[:, None]
        if self._values.shape[0] == 0:
            return self._values.new_full((*inside.shape, *self._values.shape[1:]), padding_value)
        at = torch.where(inside, offsets[:-1, None] + place, 0)
        mask = inside.reshape(*inside.shape, *[1] * (self._values.dim() - 1))
        return torch.where(mask, self._values[at], padding_value).to(self._values.dtype)

    def to_dense(self) -> List[torch.Tensor]:
        """Return the values of each row, as a list of tensors."""
        bounds = self.offsets().tolist()
        return [self._values[a:b] for a, b in zip(bounds[:-1], bounds[1:])]


def pooled(rows: Any, pooling: PoolingType = PoolingType.SUM, weights: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Pool the rows of a feature that an :class:`~hotbed.torch.EmbeddingCollection` returned, bag by bag.

    With it one table serves features that are pooled and features that are sequences: their gradients are summed by
    key, so a batch is one step of the table's optimizer.

    Args:
        rows: a ``JaggedTensor`` of this package or of TorchRec, of ``[n, dim]``.  On a GPU its lengths are not checked.
        pooling: SUM or MEAN; of an empty bag both are zeros.
        weights: ``[n]``, multiplied with the rows before; the mean is still divided by the number of keys.

    Returns:
        ``[samples, dim]``.

    Raises:
        ArgumentError: another pooling, another shape, or lengths that are not those of the rows.
    """
    if pooling not in (PoolingType.SUM, PoolingType.MEAN):
        raise wrong("pooling", pooling, "is not PoolingType.SUM or PoolingType.MEAN")
    values, lengths = rows.values(), rows.lengths()
    if weights is not None:
        check_shape("weights", weights, values.shape[:1])
        values = values * weights.to(values.dtype)[:, None]
    is_checked = lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    if is_checked and (bool((lengths < 0).any()) or int(lengths.sum()) != values.shape[0]):
        raise ArgumentError(
            f"rows: {values.shape[0]} rows, but lengths whose sum is {int(lengths.sum())}",
            parameter="rows",
            value=values.shape[0],
            limit=int(lengths.sum()),
        )
    sums = torch.segment_reduce(values, "sum", lengths=lengths.to(torch.int64), axis=0, unsafe=True)
    return sums / lengths.clamp(min=1)[:, None].to(sums.dtype) if pooling is PoolingType.MEAN else sums


class KeyedJaggedTensor(JaggedTensor):
    """One bag of keys for each feature and sample, feature-major: TorchRec's ``KeyedJaggedTensor``.

    Args:
        keys: names of the features.
        values: the keys, ``[n]`` int32 or int64: the bags of the first feature, sample by sample, then the second's.
        weights: the weights of the keys, ``[n]`` float32, or None.
        lengths: the number of keys in each bag, ``[features * samples]`` int32 or int64; or pass ``offsets``.
        offsets: where each bag begins, and where the last one ends, ``[features * samples + 1]``.  If both are given,
            ``lengths`` is ignored.

    Raises:
        ArgumentError: ``keys`` is a string; both lengths and offsets are missing, or their number is not a multiple of
            the features.
    """

    def __init__(
        self,
        keys: Sequence[str],
        values: torch.Tensor,
        weights: Optional[torch.Tensor] = None,
        lengths: Optional[torch.Tensor] = None,
        offsets: Optional[torch.Tensor] = None,
    ) -> None:
        if isinstance(keys, str):
            raise ArgumentError(f"keys: {keys!r} is one name, not a list of names", parameter="keys", value=keys)
        self._keys = list(keys)
        super().__init__(values, lengths, offsets, weights)
        given = {"values": values, "weights": weights, "lengths": lengths, "offsets": offsets}
        for name, tensor in given.items():
            if tensor is not None and (not isinstance(tensor, torch.Tensor) or tensor.dim() != 1):
                raise ArgumentError(f"{name}: {described(tensor)} is not a 1-D tensor", parameter=name, value=tensor)
        bags = offsets.shape[0] - 1 if offsets is not None else lengths.shape[0]  # type: ignore[union-attr]
        if not self._keys or bags < 0 or bags % len(self._keys) != 0:
            raise ArgumentError(
                f"{bags} bags are no multiple of {len(self._keys)} features: {self._keys}",
                value=bags,
                limit=len(self._keys),
            )
        self._stride = bags // len(self._keys)
        #: The offsets, their version, and offset_per_key().
        self._bounds: Optional[Tuple[torch.Tensor, int, List[int]]] = None

    @staticmethod
    def from_lengths_sync(
        keys: Sequence[str], values: torch.Tensor, lengths: torch.Tensor, weights: Optional[torch.Tensor] = None
    ) -> KeyedJaggedTensor:
        """Create one from lengths; TorchRec's name."""
        return KeyedJaggedTensor(keys, values, weights, lengths=lengths)

    @staticmethod
    def from_offsets_sync(
        keys: Sequence[str], values: torch.Tensor, offsets: torch.Tensor, weights: Optional[torch.Tensor] = None
    ) -> KeyedJaggedTensor:
        """Create one from offsets; TorchRec's name."""
        return KeyedJaggedTensor(keys, values, weights, offsets=offsets)

    def keys(self) -> List[str]:
        """Return the names of the features."""
        return self._keys

    def weights(self) -> torch.Tensor:
        """Return the weights of the keys, ``[n]``.

        Raises:
            ArgumentError: it has no weights.
        """
        if self._weights is None:
            raise ArgumentError("the jagged tensor has no weights")
        return self._weights

    def stride(self) -> int:
        """Return the number of samples."""
        return self._stride

    def offset_per_key(self) -> List[int]:
        """Return where each feature's keys begin, and where the last one's end, ``[features + 1]``.

        On a GPU the host waits for them, unless the batch came from the CPU with :meth:`to`.
        """
        offsets = self.offsets()
        version = _version(offsets)
        if self._bounds is not None and self._bounds[0] is offsets and self._bounds[1] == version:
            return self._bounds[2]
        bounds = offsets[:: self._stride].tolist() if self._stride > 0 else [0] * (len(self._keys) + 1)
        if version >= 0:
            self._bounds = (offsets, version, bounds)
        return bounds

    def permute(self, indices: List[int]) -> KeyedJaggedTensor:
        """Return the features at ``indices``, in that order; a feature may occur several times, or not at all."""
        bounds = self.offset_per_key()
        lengths, values, weights = self.lengths(), self.values(), self.weights_or_none()
        rows = [lengths[i * self._stride : (i + 1) * self._stride] for i in indices]
        return KeyedJaggedTensor(
            [self._keys[i] for i in indices],
            torch.cat([values[bounds[i] : bounds[i + 1]] for i in indices]),
            None if weights is None else torch.cat([weights[bounds[i] : bounds[i + 1]] for i in indices]),
            lengths=torch.cat(rows),
        )

    def to(self, device: torch.device, non_blocking: bool = False) -> KeyedJaggedTensor:
        """Copy it to a device."""
        return self._moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> KeyedJaggedTensor:
        """Copy it to pinned memory, from which :meth:`to` copies with ``non_blocking``; DataLoader calls it."""
        return self._moved(torch.Tensor.pin_memory)

    def _moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> KeyedJaggedTensor:
        weights = self.weights_or_none()
        moved = KeyedJaggedTensor(
            self._keys,
            move(self.values()),
            None if weights is None else move(weights),
            offsets=move(self.offsets()),
        )
        version = _version(moved.offsets())
        if version >= 0 and (self._bounds is not None or not self.values().is_cuda):
            moved._bounds = (moved.offsets(), version, self.offset_per_key())
        return moved

    def __getitem__(self, key: str) -> JaggedTensor:
        """Return the bags of one feature.

        Raises:
            KeyError: there is no such feature.
        """
        if key not in self._keys:
            raise KeyError(f"there is no feature {key!r}; there are {self._keys}")
        one = self.permute([self._keys.index(key)])
        return JaggedTensor(one.values(), one.lengths(), None, one.weights_or_none())

    def __repr__(self) -> str:
        """Return features, samples and the number of keys."""
        return f"KeyedJaggedTensor({self._keys}, samples={self._stride}, keys={self.values().shape[0]})"


class KeyedTensor:
    """A tensor whose columns are grouped under names: the output of an embedding bag collection.

    Args:
        keys: names.
        length_per_key: columns of each.
        values: ``[samples, sum of columns]``.
    """

    def __init__(self, keys: Sequence[str], length_per_key: Sequence[int], values: torch.Tensor) -> None:
        self._keys, self._lengths, self._values = list(keys), list(length_per_key), values

    def keys(self) -> List[str]:
        """Return the names."""
        return self._keys

    def length_per_key(self) -> List[int]:
        """Return the columns of each name."""
        return self._lengths

    def values(self) -> torch.Tensor:
        """Return all columns, ``[samples, columns]``."""
        return self._values

    def to_dict(self) -> Dict[str, torch.Tensor]:
        """Return a dict from each name to its tensor, ``[samples, columns of the name]``."""
        return dict(self.items())

    def items(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """Iterate over names and their tensors."""
        return iter(zip(self._keys, torch.split(self._values, self._lengths, dim=1)))

    def __getitem__(self, key: str) -> torch.Tensor:
        """Return the tensor of a name."""
        return self.to_dict()[key]
