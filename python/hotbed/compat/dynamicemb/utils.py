"""Sizes of element types, TorchRec's collections, and the ranks that own keys."""

from __future__ import annotations

from typing import Any, Dict, Optional, Set, Tuple

import torch

from hotbed.errors import UnsupportedError, wrong

DTYPE_NUM_BYTES: Dict[torch.dtype, int] = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}

#: TorchRec's collections that can be sharded; empty without TorchRec.
TORCHREC_TYPES: Set[Any] = set()
try:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    TORCHREC_TYPES |= {EmbeddingBagCollection, EmbeddingCollection}
except ModuleNotFoundError as missing:
    if (missing.name or "").split(".")[0] != "torchrec":
        raise  # TorchRec is there, and lacks a module

_MURMUR = (0xFF51AFD7ED558CCD - 2**64, 0xC4CEB9FE1A85EC53 - 2**64)


def _shifted(keys: torch.Tensor) -> torch.Tensor:
    """Shift unsigned keys in int64 right by 33 bits."""
    return (keys >> 33) & (2**31 - 1)


def _hashed(keys: torch.Tensor) -> torch.Tensor:
    """Return MurmurHash3's 64-bit finalizer of the keys."""
    for factor in _MURMUR:
        keys = (keys ^ _shifted(keys)) * factor
    return keys ^ _shifted(keys)


def _modulo(keys: torch.Tensor, n: int) -> torch.Tensor:
    """Return unsigned keys in int64 modulo ``n``."""
    return ((keys & (2**63 - 1)) % n + (keys < 0) * (2**63 % n)) % n


def ranks_of_keys(
    keys: torch.Tensor, dist_type: str, world_size: int, block: Optional[int] = None
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the rank that owns each key, and the key that the rank's table stores.

    ``roundrobin`` takes the unsigned key modulo the number of ranks, ``hash_roundrobin`` a hash of it; both store the
    key itself.  ``continuous`` assigns a block of keys to each rank and stores the position in the block; keys beyond
    the last block are assigned round-robin.

    Args:
        keys: ``[n]`` int64.
        dist_type: of :class:`.DynamicEmbTableOptions`.
        world_size: number of ranks.
        block: number of keys in a rank's block; required for ``continuous``.

    Raises:
        UnsupportedError: ``dist_type`` is ``continuous``, and ``block`` is missing.
        ArgumentError: ``dist_type`` is none of these.
    """
    if dist_type == "roundrobin":
        return _modulo(keys, world_size), keys
    if dist_type == "hash_roundrobin":
        return _modulo(_hashed(keys), world_size), keys
    if dist_type != "continuous":
        raise wrong("dist_type", dist_type, "is not continuous, roundrobin or hash_roundrobin")
    if block is None:
        raise UnsupportedError("dist_type 'continuous': the owner of a stored key does not follow from the key")
    inside = (keys >= 0) & (keys < block * world_size)
    beyond = _modulo(keys, world_size)
    rank = torch.where(inside, torch.div(keys, block, rounding_mode="floor"), beyond)
    upper = (keys >> 1) & (2**63 - 1)  # the unsigned quotient, from the upper 63 bits and the last bit
    quotient = torch.div(upper, world_size, rounding_mode="floor")
    rest = 2 * (upper - quotient * world_size) + (keys & 1)
    quotient = 2 * quotient + torch.div(rest, world_size, rounding_mode="floor")
    return rank, torch.where(inside, keys % block, quotient)
