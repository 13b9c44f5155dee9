"""Types that options and storages share: initializers, the storage interface, counters, admission."""

from __future__ import annotations

import abc
import dataclasses
import enum
from typing import Any, Generic, Iterator, Optional, Tuple, TypeVar

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
