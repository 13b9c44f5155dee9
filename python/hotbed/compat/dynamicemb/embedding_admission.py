"""Which new keys get a row."""

from __future__ import annotations

from typing import Optional

import torch

from hotbed.compat.dynamicemb.types import AdmissionStrategy, DynamicEmbInitializerArgs


class KVCounter:
    """Counts how often the keys of a table were seen that have no row.

    Args:
        capacity: keys that are counted before the lowest count is forgotten.
        bucket_capacity: ignored: Hotbed has its own buckets.
        key_type: of the keys.
    """

    def __init__(self, capacity: int, bucket_capacity: int = 1024, key_type: torch.dtype = torch.int64) -> None:
        """See the class."""
        self.capacity = capacity
        self.bucket_capacity = bucket_capacity
        self.key_type = key_type


class FrequencyAdmissionStrategy(AdmissionStrategy):
    """Admits keys that were seen ``threshold`` times, the present batch included.

    Args:
        threshold: 0 and 1 admit every key.
        initializer_args: of keys that are not admitted.  Hotbed gives them the row that they would get when they are
            admitted, so only None is supported.

    Raises:
        ValueError: a negative threshold.
    """

    def __init__(self, threshold: int, initializer_args: Optional[DynamicEmbInitializerArgs] = None) -> None:
        """See the class."""
        if threshold < 0:
            raise ValueError(f"threshold {threshold} is negative")
        self.threshold = threshold
        self.initializer_args = initializer_args

    def get_initializer_args(self) -> Optional[DynamicEmbInitializerArgs]:
        """Give the initializer of keys that are not admitted."""
        return self.initializer_args

    def admit(self, keys: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
        """Give a mask ``[n]`` of the keys whose frequency reaches the threshold.

        Raises:
            ValueError: the lengths differ.
        """
        if keys.shape[0] != frequencies.shape[0]:
            raise ValueError(f"{keys.shape[0]} keys have {frequencies.shape[0]} frequencies")
        return frequencies >= self.threshold
