"""Types that options and storages share: initializers, the storage interface, counters, admission."""

from __future__ import annotations

import abc
import dataclasses
import enum
from typing import Any, Dict, Generic, Iterator, List, Optional, Tuple, TypeVar

import torch

KEY_TYPE = torch.int64
EMBEDDING_TYPE = torch.float32
SCORE_TYPE = torch.int64
OPT_STATE_TYPE = torch.float32
COUNTER_TYPE = torch.int64
DEMB_TABLE_ALIGN_SIZE = 16
BUCKET_ALIGNMENT = DEMB_TABLE_ALIGN_SIZE
#: A bucket capacity that means: the whole table is one bucket.  Hotbed has its own bucket size and ignores it.
MAX_BUCKET_CAPACITY = 2**63 - 1

OptionsT = TypeVar("OptionsT")
OptimizerT = TypeVar("OptimizerT")


class MemoryType(enum.Enum):
    """Where memory is allocated."""

    DEVICE = "device"
    MANAGED = "managed"
    PINNED_HOST = "pinned_host"
    HOST = "host"


class DynamicEmbInitializerMode(enum.Enum):
    """How the elements of a new row are initialized."""

    NORMAL = "normal"
    TRUNCATED_NORMAL = "truncated_normal"
    UNIFORM = "uniform"
    CONSTANT = "constant"
    DEBUG = "debug"  #: the key modulo 100000


@dataclasses.dataclass
class DynamicEmbInitializerArgs:
    """Parameters of an initializer.

    Attributes:
        mode: which of the other attributes are used.
        mean: of the normal distributions.
        std_dev: of the normal distributions.
        lower: bound of the uniform and the truncated normal distribution; None: 0.
        upper: bound of the same distributions; None: 1.
        value: of the constant.
    """

    mode: DynamicEmbInitializerMode = DynamicEmbInitializerMode.UNIFORM
    mean: float = 0.0
    std_dev: float = 1.0
    lower: Optional[float] = None
    upper: Optional[float] = None
    value: float = 0.0


class CopyMode(enum.Enum):
    """Which part of a row a storage copies."""

    EMBEDDING = "embedding"  #: ``[n, largest dim]``
    VALUE = "value"  #: the embedding, padded to the largest dim, then the optimizer's states


class Storage(abc.ABC, Generic[OptionsT, OptimizerT]):
    """Rows of several tables by key.

    A subclass that is passed as ``DynamicEmbTableOptions.external_storage`` keeps all rows, and Hotbed's tables are a
    cache over it.  Hotbed calls ``find()`` and ``insert()``; ``dump()``, ``load()`` and callers use the other methods.
    """

    @abc.abstractmethod
    def find(
        self,
        unique_keys: torch.Tensor,
        table_ids: torch.Tensor,
        copy_mode: CopyMode,
        lfu_accumulated_frequency: Optional[torch.Tensor] = None,
    ) -> Tuple[Any, ...]:
        """Look up ``[n]`` keys.

        Returns:
            The number of missing keys; the missing keys, their positions, table ids and scores; a mask of the found
            keys, and the scores of all keys; and the rows, ``[n, width]``, which are defined where a key was found.
        """

    @abc.abstractmethod
    def insert(
        self,
        keys: torch.Tensor,
        table_ids: torch.Tensor,
        values: torch.Tensor,
        scores: Optional[torch.Tensor] = None,
        preserve_existing: bool = False,
    ) -> None:
        """Insert or overwrite rows in the layout of ``CopyMode.VALUE``."""

    @abc.abstractmethod
    def export_keys_values(
        self, device: torch.device, batch_size: int = 65536, table_id: int = 0
    ) -> Iterator[Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor], torch.Tensor]]:
        """Iterate over a table: keys, embeddings, optimizer states or None, scores."""


class Cache(abc.ABC):
    """The upper tier of tables that have a lower one."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Empty the tier."""


class Counter:
    """Counts how often each key without a row was seen.

    Hotbed counts in its own tables and does not call subclasses; see :class:`.KVCounter`.
    """


class AdmissionStrategy(abc.ABC):
    """Which new keys get a row."""

    @abc.abstractmethod
    def admit(self, keys: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
        """Return a mask ``[n]`` of the keys that get a row."""

    def get_grouped_key(self) -> Any:
        """Return what must be equal for two tables to be in one module: by default the object itself."""
        return self


@dataclasses.dataclass
class DeltaDumpResult:
    """What an incremental dump found in one collection.  Element ``i`` of each list belongs to ``table_names[i]``.

    Iterating gives two dicts, as dynamicemb before v26.10: keys and rows, and the next threshold, by table.

    Attributes:
        table_names: names of the tables.
        keys: int64 keys on the CPU.
        values: float32 rows ``[n, dim]``.
        optimizer_states: float32 states ``[n, width]``, as wide as in a dump's file; None without states.
        scores: int64 ``[n, number of scores]``, in the order of the score strategy.  Times are ages: microseconds
            before ``meta[i]["hotbed_time"]``, the same for all ranks of the group.
        evicted_keys: keys that were evicted since the last incremental dump; None without ``RETAIN_KEY``.
        erased_keys: keys that ``erase()`` was to retain since the last incremental dump.
        meta: ``current_score``, this rank's threshold for its next dump; ``hotbed_time``; ``table_options``;
            ``world_size``, the number of ranks; ``num_scores``; ``current_capacity``.
    """

    table_names: List[str] = dataclasses.field(default_factory=list)
    keys: List[torch.Tensor] = dataclasses.field(default_factory=list)
    values: List[torch.Tensor] = dataclasses.field(default_factory=list)
    optimizer_states: List[Optional[torch.Tensor]] = dataclasses.field(default_factory=list)
    scores: List[torch.Tensor] = dataclasses.field(default_factory=list)
    evicted_keys: List[Optional[torch.Tensor]] = dataclasses.field(default_factory=list)
    erased_keys: List[Optional[torch.Tensor]] = dataclasses.field(default_factory=list)
    meta: List[Dict[str, Any]] = dataclasses.field(default_factory=list)

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        """Iterate over the two dicts of the older form."""
        yield dict(zip(self.table_names, zip(self.keys, self.values)))
        yield {name: meta["current_score"] for name, meta in zip(self.table_names, self.meta)}

    def add(self, other: DeltaDumpResult) -> None:
        """Append the tables of another result."""
        for field in dataclasses.fields(self):
            getattr(self, field.name).extend(getattr(other, field.name))


@dataclasses.dataclass
class ReplayStats:
    """What a replay did to a table.

    Attributes:
        upserted: number of rows that were written.
        erased: number of keys that were there and in ``erased_keys``.
        skipped: number of keys that other ranks own.
    """

    upserted: int = 0
    erased: int = 0
    skipped: int = 0
