"""Options of tables, and the arithmetic of their capacities and bytes."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from typing import Any, Dict, FrozenSet, Optional, Tuple, Union

import torch

from hotbed.compat.dynamicemb.optimizer import EmbOptimType, get_optimizer_state_dim
from hotbed.compat.dynamicemb.types import (
    BUCKET_ALIGNMENT,
    DEMB_TABLE_ALIGN_SIZE,
    MAX_BUCKET_CAPACITY,
    AdmissionStrategy,
    DynamicEmbInitializerArgs,
    DynamicEmbInitializerMode,
)
from hotbed.compat.dynamicemb.utils import DTYPE_NUM_BYTES

DEFAULT_INDEX_TYPE = torch.int64
DYNAMICEMB_CSTM_SCORE_CHECK = "DYNAMICEMB_CSTM_SCORE_CHECK"
BATCH_SIZE_PER_DUMP = 65536
SUPPORTED_DIST_TYPES = ("continuous", "roundrobin", "hash_roundrobin")
DEBUG_EMB_INITIALIZER_MOD = 100_000
DEFAULT_BUCKET_CAPACITY = 128


class DynamicEmbCheckMode(enum.IntEnum):
    """What happens when a key gets no slot: ``FullError``, a warning, or nothing."""

    ERROR = 0
    WARNING = 1
    IGNORE = 2


class DynamicEmbPoolingMode(enum.IntEnum):
    """How the rows of a bag are combined."""

    SUM = 0
    MEAN = 1
    NONE = 2  #: one row per key


class EvictStrategy(enum.Enum):
    """The order of eviction, by the names in a dump's JSON file."""

    KLru = "KLru"
    KLfu = "KLfu"
    KEpochLru = "KEpochLru"
    KEpochLfu = "KEpochLfu"
    KCustomized = "KCustomized"

    def __str__(self) -> str:
        """Return the name in a dump's JSON file."""
        return f"EvictStrategy.{self.name}"


class DynamicEmbEvictStrategy(enum.Enum):
    """The order of eviction; it follows from the score strategy."""

    LRU = EvictStrategy.KLru
    LFU = EvictStrategy.KLfu
    EPOCH_LRU = EvictStrategy.KEpochLru
    EPOCH_LFU = EvictStrategy.KEpochLfu
    CUSTOMIZED = EvictStrategy.KCustomized


class EvictedItemMode(enum.Flag):
    """What is kept of a key that a table evicts, or that ``erase()`` removes."""

    DISCARD = 0
    RETAIN_KEY = enum.auto()  #: the key, for ``pop_evicted_keys()`` and ``pop_erased_keys()``


class ReplayContent(enum.Flag):
    """What ``replay_increment()`` writes besides keys and embeddings."""

    EMBEDDING_ONLY = 0
    OPTIMIZER_STATE = enum.auto()
    SCORE = enum.auto()
    ALL = OPTIMIZER_STATE | SCORE


class DynamicEmbScoreStrategy(enum.IntEnum):
    """The kind of a key's score; the key with the lowest score is evicted first."""

    TIMESTAMP = 0  #: when the key was last trained
    STEP = 1  #: the number of the last prefetch that had it
    CUSTOMIZED = 2  #: what ``set_score()`` has set
    LFU = 3  #: how often it was trained
    NO_EVICTION = 4  #: the table grows instead


ScoreStrategy = Union[DynamicEmbScoreStrategy, Tuple[DynamicEmbScoreStrategy, ...]]

_COMPOUND: FrozenSet[DynamicEmbScoreStrategy] = frozenset(
    {DynamicEmbScoreStrategy.TIMESTAMP, DynamicEmbScoreStrategy.LFU}
)


def normalize_score_strategy(score_strategy: Optional[ScoreStrategy]) -> Optional[ScoreStrategy]:
    """Check a strategy, and unwrap a tuple with one element.

    Raises:
        NotImplementedError: the tuple is not TIMESTAMP and LFU, in either order.
        TypeError: it is not a strategy.
    """
    parts = score_strategy if isinstance(score_strategy, tuple) else (score_strategy,)
    for part in parts:
        if part is not None and not isinstance(part, DynamicEmbScoreStrategy):
            raise TypeError(f"score_strategy {part!r} is no DynamicEmbScoreStrategy")
    if len(parts) == 1:
        return parts[0]
    if len(parts) != 2 or frozenset(parts) != _COMPOUND:
        raise NotImplementedError(f"score_strategy {parts} is not (TIMESTAMP, LFU) or (LFU, TIMESTAMP)")
    return score_strategy


def get_eviction_score_strategy(score_strategy: ScoreStrategy) -> DynamicEmbScoreStrategy:
    """Return the part of a strategy that orders evictions."""
    if isinstance(score_strategy, tuple):
        return DynamicEmbScoreStrategy.LFU
    return score_strategy


def score_strategy_has_timestamp_column(score_strategy: ScoreStrategy) -> bool:
    """Whether keys have a time, by which an incremental dump then selects them."""
    return isinstance(score_strategy, tuple) or score_strategy == DynamicEmbScoreStrategy.TIMESTAMP


def _zeros() -> DynamicEmbInitializerArgs:
    return DynamicEmbInitializerArgs(mode=DynamicEmbInitializerMode.CONSTANT, value=0.0)


@dataclasses.dataclass(eq=False)
class DynamicEmbTableOptions:
    """Options of one table; two compare equal if one module can hold both tables.

    Attributes:
        embedding_dtype: dtype of the rows: float32, float16 or bfloat16; None: float32.
        dim: number of elements in a row.
        max_capacity: maximum number of keys; NO_EVICTION tables grow beyond it.
        evict_strategy: ignored; it follows from ``score_strategy``.
        local_hbm_for_values: this table's bytes of device memory for rows; the sum over tables decides the tiers.
        device_id: number of the GPU.
        training: whether rows have optimizer states.
        initializer_args: initializer of new rows.
        eval_initializer_args: CONSTANT; the value that a missing key reads as in evaluation.
        caching: if rows exceed the budget, use device memory as a cache; otherwise each row is in one of two tiers.
        init_capacity: capacity at the start; None: ``max_capacity``.
        max_load_factor: load, relative to the capacity, above which the table grows.
        score_strategy: the score, which decides which key is evicted.
        bucket_capacity: ignored: Hotbed's buckets have 16 slots, and a key has 64 candidates.
        safe_check_mode: what happens when a key gets no slot; a module uses its tables' strictest mode.
        global_hbm_for_values: read by planners only.
        external_storage: a subclass of :class:`.Storage` that keeps all rows.
        index_type: dtype of keys: int64 or uint64; None: int64.
        dist_type: which rank owns a key; written to dumps.
        admit_strategy: which new keys get a row; None: all.
        admission_counter: :class:`.KVCounter` of keys without a row; newer programs pass it to the strategy.
        evicted_item_mode: RETAIN_KEY keeps the keys that are evicted for ``pop_evicted_keys()``.  Each batch then
            waits for the device.
    """

    embedding_dtype: Optional[torch.dtype] = None
    dim: Optional[int] = None
    max_capacity: Optional[int] = None
    evict_strategy: DynamicEmbEvictStrategy = DynamicEmbEvictStrategy.LRU
    local_hbm_for_values: int = 0
    device_id: Optional[int] = None
    training: bool = True
    initializer_args: DynamicEmbInitializerArgs = dataclasses.field(default_factory=DynamicEmbInitializerArgs)
    eval_initializer_args: DynamicEmbInitializerArgs = dataclasses.field(default_factory=_zeros)
    caching: bool = False
    init_capacity: Optional[int] = None
    max_load_factor: float = 0.5
    score_strategy: Optional[ScoreStrategy] = DynamicEmbScoreStrategy.TIMESTAMP
    bucket_capacity: int = DEFAULT_BUCKET_CAPACITY
    safe_check_mode: DynamicEmbCheckMode = DynamicEmbCheckMode.IGNORE
    global_hbm_for_values: int = 0
    external_storage: Optional[Any] = None
    index_type: Optional[torch.dtype] = None
    dist_type: str = "roundrobin"
    admit_strategy: Optional[AdmissionStrategy] = None
    admission_counter: Optional[Any] = None
    evicted_item_mode: EvictedItemMode = EvictedItemMode.DISCARD

    def __post_init__(self) -> None:
        """Check the options that do not depend on the module."""
        if self.eval_initializer_args.mode != DynamicEmbInitializerMode.CONSTANT:
            raise ValueError(f"eval_initializer_args.mode {self.eval_initializer_args.mode} is not CONSTANT")
        if self.dist_type not in SUPPORTED_DIST_TYPES:
            raise ValueError(f"dist_type {self.dist_type!r} is not one of {SUPPORTED_DIST_TYPES}")
        self.score_strategy = normalize_score_strategy(self.score_strategy)

    def get_grouped_key(self) -> Dict[str, Any]:
        """Return the options that all tables of a module have in common."""
        names = ("training", "caching", "external_storage", "index_type", "dist_type", "score_strategy")
        key = {name: getattr(self, name) for name in names}
        return {**key, "admit_strategy": self.admit_strategy and self.admit_strategy.get_grouped_key()}

    def get_counter(self) -> Optional[Any]:
        """Return the counter of keys without a row: the strategy's, or else the table's."""
        return getattr(self.admit_strategy, "counter", None) or self.admission_counter

    def __eq__(self, other: object) -> bool:
        """Compare the options that all tables of a module have in common."""
        if not isinstance(other, DynamicEmbTableOptions):
            return NotImplemented
        return self.get_grouped_key() == other.get_grouped_key()

    def __hash__(self) -> int:
        """Hash the options that all tables of a module have in common."""
        return hash(tuple(self.get_grouped_key().items()))


def warning_for_cstm_score() -> bool:
    """Whether to warn if a score decreases: yes, unless ``DYNAMICEMB_CSTM_SCORE_CHECK`` is 0."""
    return os.getenv(DYNAMICEMB_CSTM_SCORE_CHECK) != "0"


def complete_initializer_args(
    initializer_args: DynamicEmbInitializerArgs, *, embedding_config: Optional[Any] = None
) -> DynamicEmbInitializerArgs:
    """Set missing bounds of a UNIFORM initializer: +-sqrt(1 / num_embeddings), or 0 and 1 without a config."""
    args = initializer_args
    if args.mode != DynamicEmbInitializerMode.UNIFORM or (args.lower is not None and args.upper is not None):
        return args
    lower, upper = 0.0, 1.0
    if embedding_config is not None:
        upper = math.sqrt(1.0 / float(embedding_config.num_embeddings))
        lower = -upper
    return dataclasses.replace(
        args, lower=lower if args.lower is None else args.lower, upper=upper if args.upper is None else args.upper
    )


def align_to_table_size(n: int, alignment: int = DEMB_TABLE_ALIGN_SIZE) -> int:
    """Round up to a multiple of ``alignment``, at least to ``alignment``."""
    return max(1, -(-int(n) // alignment)) * alignment


def _sharded_table_bucket_layout(embedding_config: Any, world_size: int, bucket_capacity: int) -> Tuple[int, int]:
    """Return the number of buckets of a rank, and the number of rows in a bucket."""
    if world_size <= 0:
        raise ValueError(f"world_size {world_size} is not positive")
    rows = math.ceil(int(embedding_config.num_embeddings) / world_size)
    if bucket_capacity == MAX_BUCKET_CAPACITY:
        return 1, align_to_table_size(rows, BUCKET_ALIGNMENT)
    if bucket_capacity <= 0 or bucket_capacity % BUCKET_ALIGNMENT != 0:
        raise ValueError(f"bucket_capacity {bucket_capacity} is no positive multiple of {BUCKET_ALIGNMENT}")
    return align_to_table_size(rows, bucket_capacity) // bucket_capacity, bucket_capacity


def get_sharded_table_capacity(embedding_config: Any, world_size: int, bucket_capacity: int) -> int:
    """Return the number of rows of a rank: its share of ``num_embeddings``, rounded up to whole buckets."""
    buckets, rows = _sharded_table_bucket_layout(embedding_config, world_size, bucket_capacity)
    return buckets * rows


def data_type_to_dtype(data_type: Any) -> torch.dtype:
    """Return PyTorch's type of a TorchRec ``DataType``.

    Raises:
        ValueError: the type is not float32, float16, bfloat16 or an integer of 8, 32 or 64 bits.
    """
    known = {
        "FP32": torch.float32,
        "FP16": torch.float16,
        "BF16": torch.bfloat16,
        "INT64": torch.int64,
        "INT32": torch.int32,
        "INT8": torch.int8,
        "UINT8": torch.uint8,
    }
    name = getattr(data_type, "name", data_type)
    if name not in known:
        raise ValueError(f"data type {data_type} is not one of {sorted(known)}")
    return known[name]


def get_table_value_bytes(
    embedding_config: Any, optimizer_type: EmbOptimType, world_size: int, bucket_capacity: int = DEFAULT_BUCKET_CAPACITY
) -> int:
    """Return the bytes of a table's rows and optimizer states on all ranks, to size ``global_hbm_for_values``."""
    rows = get_sharded_table_capacity(embedding_config, world_size, bucket_capacity) * world_size
    dtype = data_type_to_dtype(embedding_config.data_type)
    dim = int(embedding_config.embedding_dim)
    return DTYPE_NUM_BYTES[dtype] * (dim + get_optimizer_state_dim(optimizer_type, dim, dtype)) * rows


def string_to_evict_strategy(strategy_str: str) -> EvictStrategy:
    """Return the strategy of a name such as ``KLru``.

    Raises:
        ValueError: no such name.
    """
    return EvictStrategy(strategy_str)
