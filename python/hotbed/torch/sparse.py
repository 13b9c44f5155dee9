"""Jagged tensors for use without TorchRec: the part of its interface that the modules need."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from hotbed.errors import ArgumentError


def _lengths_of(offsets: torch.Tensor) -> torch.Tensor:
    return offsets[1:] - offsets[:-1]


def _offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])


def described(value: Any) -> str:
    """Describe what was given in the place of a tensor, for a message."""
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r:.40}"


class JaggedTensor:
    """Rows of different lengths, one after the other.

    Args:
        values: ``[n, ...]`` the items of all rows.
        lengths: ``[rows]`` items of each row, int32 or int64; or ``offsets``.
        offsets: ``[rows + 1]`` where each row begins and ends.
        weights: ``[n]`` float32 weights of the items.
    """

    def __init__(
        self,
        values: torch.Tensor,
        lengths: Optional[torch.Tensor] = None,
        offsets: Optional[torch.Tensor] = None,
        weights: Optional[torch.Tensor] = None,
    ) -> None:
        """See the class."""
        if lengths is None and offsets is None:
            raise ArgumentError("a jagged tensor needs lengths or offsets")
        self._values, self._lengths, self._offsets, self._weights = values, lengths, offsets, weights

    def values(self) -> torch.Tensor:
        """Give the items of all rows, ``[n, ...]``."""
        return self._values

    def lengths(self) -> torch.Tensor:
        """Give the number of items of each row, ``[rows]``."""
        if self._lengths is None:
            assert self._offsets is not None
            self._lengths = _lengths_of(self._offsets)
        return self._lengths

    def offsets(self) -> torch.Tensor:
        """Give where each row begins, and where the last one ends, ``[rows + 1]``."""
        if self._offsets is None:
            assert self._lengths is not None
            self._offsets = _offsets_of(self._lengths)
        return self._offsets

    def weights_or_none(self) -> Optional[torch.Tensor]:
        """Give the weights of the items, ``[n]``, or None."""
        return self._weights

    def to_dense(self) -> List[torch.Tensor]:
        """Give a tensor for each row."""
        bounds = self.offsets().tolist()
        return [self._values[a:b] for a, b in zip(bounds[:-1], bounds[1:])]


class KeyedJaggedTensor:
    """For each feature and sample a bag of keys, feature-major: TorchRec's ``KeyedJaggedTensor``.

    Args:
        keys: names of the features.
        values: ``[n]`` int32 or int64 keys: the bags of the first feature, sample after sample, then the second's.
        weights: ``[n]`` float32 weights of the keys, or None.
        lengths: ``[features * samples]`` keys of each bag, int32 or int64; or ``offsets``.
        offsets: ``[features * samples + 1]`` where each bag begins and ends.

    Raises:
        ArgumentError: neither lengths nor offsets, or their number is no multiple of the features.
    """

    def __init__(
        self,
        keys: Sequence[str],
        values: torch.Tensor,
        weights: Optional[torch.Tensor] = None,
        lengths: Optional[torch.Tensor] = None,
        offsets: Optional[torch.Tensor] = None,
    ) -> None:
        """See the class."""
        self._keys = list(keys)
        self._jagged = JaggedTensor(values, lengths, offsets, weights)
        given = {"values": values, "weights": weights, "lengths": lengths, "offsets": offsets}
        for name, tensor in given.items():
            if tensor is not None and (not isinstance(tensor, torch.Tensor) or tensor.dim() != 1):
                raise ArgumentError(f"{name}: {described(tensor)} is not a vector")
        bags = lengths.shape[0] if lengths is not None else offsets.shape[0] - 1  # type: ignore[union-attr]
        if not self._keys or bags < 0 or bags % len(self._keys) != 0:
            raise ArgumentError(f"{bags} bags cannot be those of {len(self._keys)} features: {self._keys}")
        self._stride = bags // len(self._keys)

    @staticmethod
    def from_lengths_sync(
        keys: Sequence[str], values: torch.Tensor, lengths: torch.Tensor, weights: Optional[torch.Tensor] = None
    ) -> KeyedJaggedTensor:
        """Make one of lengths; TorchRec's name."""
        return KeyedJaggedTensor(keys, values, weights, lengths=lengths)

    @staticmethod
    def from_offsets_sync(
        keys: Sequence[str], values: torch.Tensor, offsets: torch.Tensor, weights: Optional[torch.Tensor] = None
    ) -> KeyedJaggedTensor:
        """Make one of offsets; TorchRec's name."""
        return KeyedJaggedTensor(keys, values, weights, offsets=offsets)

    def keys(self) -> List[str]:
        """Give the names of the features."""
        return self._keys

    def values(self) -> torch.Tensor:
        """Give the keys of all bags, ``[n]``."""
        return self._jagged.values()

    def lengths(self) -> torch.Tensor:
        """Give the number of keys of each bag, ``[features * samples]``."""
        return self._jagged.lengths()

    def offsets(self) -> torch.Tensor:
        """Give where each bag begins, and where the last one ends, ``[features * samples + 1]``."""
        return self._jagged.offsets()

    def weights_or_none(self) -> Optional[torch.Tensor]:
        """Give the weights of the keys, ``[n]``, or None."""
        return self._jagged.weights_or_none()

    def weights(self) -> torch.Tensor:
        """Give the weights of the keys, ``[n]``.

        Raises:
            ArgumentError: there are none.
        """
        weights = self._jagged.weights_or_none()
        if weights is None:
            raise ArgumentError("the jagged tensor has no weights")
        return weights

    def stride(self) -> int:
        """Give the number of samples."""
        return self._stride

    def permute(self, indices: List[int]) -> KeyedJaggedTensor:
        """Give the features at ``indices``, in that order; one may be there several times, or not at all."""
        bounds = self.offsets()[:: self._stride].tolist() if self._stride > 0 else [0] * (len(self._keys) + 1)
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
        weights = self.weights_or_none()
        return KeyedJaggedTensor(
            self._keys,
            self.values().to(device, non_blocking=non_blocking),
            None if weights is None else weights.to(device, non_blocking=non_blocking),
            offsets=self.offsets().to(device, non_blocking=non_blocking),
        )

    def __getitem__(self, key: str) -> JaggedTensor:
        """Give the bags of one feature."""
        at = self._keys.index(key)
        one = self.permute([at])
        return JaggedTensor(one.values(), one.lengths(), None, one.weights_or_none())

    def __repr__(self) -> str:
        """Return features, samples and the number of keys."""
        return f"KeyedJaggedTensor({self._keys}, samples={self._stride}, keys={self.values().shape[0]})"


class KeyedTensor:
    """Columns of a tensor under names: what an embedding bag collection gives.

    Args:
        keys: names.
        length_per_key: columns of each.
        values: ``[samples, sum of columns]``.
    """

    def __init__(self, keys: Sequence[str], length_per_key: Sequence[int], values: torch.Tensor) -> None:
        """See the class."""
        self._keys, self._lengths, self._values = list(keys), list(length_per_key), values

    def keys(self) -> List[str]:
        """Give the names."""
        return self._keys

    def length_per_key(self) -> List[int]:
        """Give the columns of each name."""
        return self._lengths

    def values(self) -> torch.Tensor:
        """Give all columns, ``[samples, columns]``."""
        return self._values

    def to_dict(self) -> Dict[str, torch.Tensor]:
        """Give a tensor ``[samples, columns of the name]`` for each name."""
        return dict(self.items())

    def items(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """Go through names and their tensors."""
        return iter(zip(self._keys, torch.split(self._values, self._lengths, dim=1)))

    def __getitem__(self, key: str) -> torch.Tensor:
        """Give the tensor of a name."""
        return self.to_dict()[key]
