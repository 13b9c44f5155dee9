"""Which new keys get a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Tuple

import torch

from hotbed.compat.dynamicemb.scored_hashtable import ScoreArg
from hotbed.compat.dynamicemb.types import AdmissionStrategy, Counter, DynamicEmbInitializerArgs

if TYPE_CHECKING:
    from hotbed.compat.dynamicemb._tables import Tables


class KVCounter(Counter):
    """Counts how often a table's keys without a row were seen.

    Args:
        capacity: number of keys that are counted before the lowest count is forgotten.
        bucket_capacity: ignored: Hotbed has its own buckets.
        key_type: dtype of the keys.
    """

    def __init__(self, capacity: int, bucket_capacity: int = 1024, key_type: torch.dtype = torch.int64) -> None:
        self.capacity = capacity
        self.bucket_capacity = bucket_capacity
        self.key_type = key_type


class AdmissionCounts:
    """The counts of a module's tables; :attr:`table_` has dynamicemb's methods to read them.

    Args:
        tables: the module's.
    """

    score_name_ = "frequency"
    score_names_ = (score_name_,)

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @property
    def table_(self) -> AdmissionCounts:
        """Return this object, because dynamicemb has the counts in a separate table."""
        return self

    def size(self) -> int:
        """Return the number of keys that are counted, of all tables."""
        return sum(self._tables.counts(t)[0].numel() for t in range(len(self._tables.tables)))

    def _batched_export_keys_scores(
        self, score_names: List[str], target_device: torch.device, table_id: int, batch_size: int = 65536
    ) -> Iterator[Tuple[torch.Tensor, Dict[str, torch.Tensor], None]]:
        keys, counts = self._tables.counts(table_id)
        for part, count in zip(torch.split(keys, batch_size), torch.split(counts, batch_size)):
            yield part.to(target_device), {self.score_name_: count.to(target_device)}, None

    def lookup(
        self, keys: torch.Tensor, table_ids: torch.Tensor, score: ScoreArg
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the counts of keys (0 if a key is not counted), a mask of counted keys, and the keys' positions."""
        out = torch.zeros(keys.numel(), dtype=torch.int64, device=keys.device)
        found = torch.zeros(keys.numel(), dtype=torch.bool, device=keys.device)
        for t in sorted(set(table_ids.tolist())):
            names, counts = self._tables.counts(t)
            count_of = dict(zip(names.tolist(), counts.tolist()))
            at = (table_ids == t).nonzero().squeeze(1)
            given = [count_of.get(key) for key in keys[at].tolist()]
            out[at] = torch.tensor([c or 0 for c in given], dtype=torch.int64, device=keys.device)
            found[at] = torch.tensor([c is not None for c in given], dtype=torch.bool, device=keys.device)
        return out, found, torch.arange(keys.numel(), device=keys.device)


class FrequencyAdmissionStrategy(AdmissionStrategy):
    """Admits keys that were seen ``threshold`` times, including the current batch.

    Args:
        threshold: 0 and 1 admit every key.
        initializer_args: has no effect, and causes a warning: a key that is not admitted reads as the row that it would
            get if it were admitted.

    Raises:
        ValueError: the threshold is negative.
    """

    def __init__(self, threshold: int, initializer_args: Optional[DynamicEmbInitializerArgs] = None) -> None:
        if threshold < 0:
            raise ValueError(f"threshold {threshold} is negative")
        self.threshold = threshold
        self.initializer_args = initializer_args

    def get_initializer_args(self) -> Optional[DynamicEmbInitializerArgs]:
        """Return the initializer of keys that are not admitted."""
        return self.initializer_args

    def admit(self, keys: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
        """Return a mask ``[n]`` of the keys whose frequency reaches the threshold.

        Raises:
            ValueError: the lengths differ.
        """
        if keys.shape[0] != frequencies.shape[0]:
            raise ValueError(f"{keys.shape[0]} keys have {frequencies.shape[0]} frequencies")
        return frequencies >= self.threshold
