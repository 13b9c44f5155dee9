"""dynamicemb's public names over Hotbed's tables.

``import hotbed.compat.dynamicemb as dynamicemb`` replaces ``import dynamicemb``.  Code that imports from its modules
(``from dynamicemb.planner import ...``) must call :func:`install` first, or change these lines too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

from hotbed.compat.dynamicemb.batched_dynamicemb_tables import BatchedDynamicEmbeddingTablesV2
from hotbed.compat.dynamicemb.dump_load import DynamicEmbDump, DynamicEmbLoad
from hotbed.compat.dynamicemb.dynamicemb_config import (
    BATCH_SIZE_PER_DUMP,
    DynamicEmbCheckMode,
    DynamicEmbEvictStrategy,
    DynamicEmbPoolingMode,
    DynamicEmbScoreStrategy,
    DynamicEmbTableOptions,
    EvictedItemMode,
    ReplayContent,
    ScoreStrategy,
    align_to_table_size,
    data_type_to_dtype,
    get_sharded_table_capacity,
    get_table_value_bytes,
    string_to_evict_strategy,
)
from hotbed.compat.dynamicemb.embedding_admission import (
    FrequencyAdmissionStrategy,
    KVCounter,
    ProbabilisticAdmissionStrategy,
)
from hotbed.compat.dynamicemb.incremental_dump import pop_erased_keys, pop_evicted_keys, replay_increment
from hotbed.compat.dynamicemb.optimizer import DynamicEmbOptimType, EmbOptimType, OptimizerArgs
from hotbed.compat.dynamicemb.types import (
    BUCKET_ALIGNMENT,
    DEMB_TABLE_ALIGN_SIZE,
    MAX_BUCKET_CAPACITY,
    AdmissionStrategy,
    Counter,
    DeltaDumpResult,
    DynamicEmbInitializerArgs,
    DynamicEmbInitializerMode,
    ReplayStats,
)

_MODULES = (
    "batched_dynamicemb_tables",
    "construct_twin_module",
    "dump_load",
    "dynamicemb_config",
    "embedding_admission",
    "get_planner",
    "incremental_dump",
    "key_value_table",
    "optimizer",
    "planner",
    "scored_hashtable",
    "shard",
    "types",
    "utils",
)
#: Modules that need TorchRec.
_OF_TORCHREC = ("construct_twin_module", "get_planner", "planner", "shard")


def install() -> None:
    """Make ``import dynamicemb`` and imports from its modules find this package, in this process.

    Without TorchRec, the modules that need it are left out: planner, get_planner, shard, construct_twin_module.

    Raises:
        ImportError: another ``dynamicemb`` has been imported.
    """
    there = sys.modules.get("dynamicemb")
    if there is not None and there is not sys.modules[__name__]:
        raise ImportError(f"dynamicemb is imported already, from {there.__file__}; call install() before")
    sys.modules["dynamicemb"] = sys.modules[__name__]
    torchrec = importlib.util.find_spec("torchrec") is not None
    for name in _MODULES:
        if torchrec or name not in _OF_TORCHREC:
            sys.modules[f"dynamicemb.{name}"] = importlib.import_module(f"{__name__}.{name}")


__all__ = [
    "BATCH_SIZE_PER_DUMP",
    "BUCKET_ALIGNMENT",
    "DEMB_TABLE_ALIGN_SIZE",
    "MAX_BUCKET_CAPACITY",
    "AdmissionStrategy",
    "BatchedDynamicEmbeddingTablesV2",
    "Counter",
    "DeltaDumpResult",
    "DynamicEmbCheckMode",
    "DynamicEmbDump",
    "DynamicEmbEvictStrategy",
    "DynamicEmbInitializerArgs",
    "DynamicEmbInitializerMode",
    "DynamicEmbLoad",
    "DynamicEmbOptimType",
    "DynamicEmbPoolingMode",
    "DynamicEmbScoreStrategy",
    "DynamicEmbTableOptions",
    "EmbOptimType",
    "EvictedItemMode",
    "FrequencyAdmissionStrategy",
    "KVCounter",
    "OptimizerArgs",
    "ProbabilisticAdmissionStrategy",
    "ReplayContent",
    "ReplayStats",
    "ScoreStrategy",
    "align_to_table_size",
    "data_type_to_dtype",
    "get_sharded_table_capacity",
    "get_table_value_bytes",
    "install",
    "pop_erased_keys",
    "pop_evicted_keys",
    "replay_increment",
    "string_to_evict_strategy",
]
