"""Which new keys get a row."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import torch

from hotbed.compat.dynamicemb.scored_hashtable import ScoreArg
from hotbed.compat.dynamicemb.types import AdmissionStrategy, Counter, DynamicEmbInitializerArgs


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


class MultiTableKVCounter(Counter):
    """The counts of a module's tables, which the module creates; :attr:`table_` has dynamicemb's methods to read them.

    Args:
        tables: the module's.
    """

    score_name_ = "frequency"
    score_names_ = (score_name_,)

    def __init__(self, tables: Any) -> None:
        self._tables = tables

    @property
    def table_(self) -> MultiTableKVCounter:
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
        counter: capacity of the counter of keys without a row; None: the table's ``admission_counter``, or a default.
        initializer_args: has no effect, and causes a warning: a key that is not admitted reads as the row that it would
            get if it were admitted.

    Raises:
        ValueError: the threshold is negative.
        TypeError: the counter is no :class:`KVCounter`.
    """

    def __init__(
        self,
        threshold: int,
        counter: Union[KVCounter, DynamicEmbInitializerArgs, None] = None,
        initializer_args: Optional[DynamicEmbInitializerArgs] = None,
    ) -> None:
        if threshold < 0:
            raise ValueError(f"threshold {threshold} is negative")
        if isinstance(counter, DynamicEmbInitializerArgs) and initializer_args is None:
            counter, initializer_args = None, counter  # the second argument before v26.10
        if counter is not None and not isinstance(counter, KVCounter):
            raise TypeError(f"counter {counter!r} is no KVCounter")
        self.threshold = threshold
        self.counter = counter
        self.initializer_args = initializer_args

    def get_grouped_key(self) -> Any:
        """Return what must be equal for two tables to be in one module; each may have its own counter."""
        return type(self).__name__, self.threshold, self.initializer_args and self.initializer_args.mode

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


class ProbabilisticAdmissionStrategy(AdmissionStrategy):
    """Admits a random share of the new keys, drawn anew in each batch that has the key.

    Args:
        probability: in (0, 1]: the probability that a batch admits a key, however often it has it.
        initializer_args: as of :class:`FrequencyAdmissionStrategy`.

    Raises:
        ValueError: the probability is not in (0, 1].
    """

    def __init__(self, probability: float, initializer_args: Optional[DynamicEmbInitializerArgs] = None) -> None:
        if not 0.0 < probability <= 1.0 or math.isnan(probability):
            raise ValueError(f"probability {probability} is not in (0, 1]")
        self.probability = float(probability)
        self.initializer_args = initializer_args

    def get_initializer_args(self) -> Optional[DynamicEmbInitializerArgs]:
        """Return the initializer of keys that are not admitted."""
        return self.initializer_args

    def get_grouped_key(self) -> Any:
        """Return what must be equal for two tables to be in one module."""
        return type(self).__name__, self.probability, self.initializer_args and self.initializer_args.mode

    def admit(self, keys: torch.Tensor, frequencies: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Return a random mask ``[n]``; modules draw by another generator, from the key and the batch's number."""
        return torch.rand(keys.shape[0], device=keys.device) < self.probability
