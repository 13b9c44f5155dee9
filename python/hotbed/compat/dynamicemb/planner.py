"""Sharding plans in which some tables are hash tables; the other tables are planned by TorchRec.  Needs TorchRec."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
    ShardMetadata,
)

from hotbed.compat.dynamicemb.dynamicemb_config import (
    DEFAULT_INDEX_TYPE,
    DynamicEmbTableOptions,
    _sharded_table_bucket_layout,
    align_to_table_size,
    complete_initializer_args,
    data_type_to_dtype,
)
from hotbed.errors import ArgumentError

DYNAMICEMB_KERNEL = "DynamicEmb"
#: A plan's extra fields for a hash table; TorchRec passes them to the table in its fused parameters.
PLANNED = ("customized_compute_kernel", "dist_type", "dynamicemb_options")


@dataclasses.dataclass
class DynamicEmbParameterConstraints(ParameterConstraints):  # type: ignore[misc]
    """TorchRec's constraints of a table, and whether it is a hash table.

    Attributes:
        use_dynamicemb: make the table a hash table, sharded row-wise.
        dynamicemb_options: of the hash table.
    """

    use_dynamicemb: Optional[bool] = False
    dynamicemb_options: Optional[DynamicEmbTableOptions] = dataclasses.field(default_factory=DynamicEmbTableOptions)


@dataclasses.dataclass
class DynamicEmbParameterSharding(ParameterSharding):  # type: ignore[misc]
    """A plan's entry for a hash table."""

    compute_kernel: str = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
    customized_compute_kernel: Optional[str] = DYNAMICEMB_KERNEL
    dist_type: str = "roundrobin"
    dynamicemb_options: Optional[DynamicEmbTableOptions] = dataclasses.field(default_factory=DynamicEmbTableOptions)

    def get_additional_fused_params(self) -> Dict[str, Any]:
        """Return the table's fused parameters for TorchRec."""
        return {name: getattr(self, name) for name in PLANNED}


def _is_dynamic(constraints: Optional[Mapping[str, Any]], name: str) -> bool:
    return bool(getattr((constraints or {}).get(name), "use_dynamicemb", False))


class DynamicEmbeddingEnumerator(EmbeddingEnumerator):  # type: ignore[misc]
    """TorchRec's enumerator without the hash tables, which have one possible sharding.

    Args:
        topology: topology of the ranks.
        batch_size: batch size of one rank.
        constraints: constraints of all tables, by name.
        estimator: estimator of shards; None: TorchRec's.
        use_exact_enumerate_order: as in TorchRec.
    """

    def __init__(
        self,
        topology: Topology,
        batch_size: Optional[int] = BATCH_SIZE,
        constraints: Optional[Mapping[str, ParameterConstraints]] = None,
        estimator: Optional[Any] = None,
        use_exact_enumerate_order: Optional[bool] = False,
    ) -> None:
        super().__init__(topology, batch_size, constraints, estimator, use_exact_enumerate_order)

    def enumerate(self, module: torch.nn.Module, sharders: List[Any]) -> List[Any]:
        """Return the possible shardings of the tables that are not hash tables."""
        return [o for o in super().enumerate(module, sharders) if not _is_dynamic(self._constraints, o.name)]


def _world_size(topology: Optional[Topology] = None) -> int:
    if dist.is_initialized():
        return dist.get_world_size()
    return 1 if topology is None else int(topology.world_size)


def complete_options(options: DynamicEmbTableOptions, config: Any, world_size: int) -> DynamicEmbTableOptions:
    """Return options with those of one rank's part of a table that follow from the config and the number of ranks.

    The caller's object stays as it is, so several tables and planners may share it.
    """
    buckets, width = _sharded_table_bucket_layout(config, world_size, options.bucket_capacity)
    capacity = buckets * width
    wanted = capacity if options.init_capacity is None else options.init_capacity
    aligned = min(align_to_table_size(wanted, width), capacity)
    if aligned != wanted:
        warnings.warn(
            f"table {config.name!r}: init_capacity {wanted} becomes {aligned}: a multiple of bucket_capacity "
            f"{width} that is at most {capacity}",
            stacklevel=4,
        )
    return dataclasses.replace(
        options,
        initializer_args=complete_initializer_args(options.initializer_args, embedding_config=config),
        bucket_capacity=width,
        max_capacity=capacity,
        local_hbm_for_values=math.ceil(options.global_hbm_for_values / world_size),
        dim=int(config.embedding_dim),
        index_type=options.index_type or DEFAULT_INDEX_TYPE,
        embedding_dtype=options.embedding_dtype or data_type_to_dtype(config.data_type),
        init_capacity=aligned,
    )


class DynamicEmbeddingShardingPlanner:
    """Plans models whose tables are partly hash tables.

    A hash table is sharded row-wise over all ranks by its ``dist_type``; its memory is not charged to the topology.
    The planner completes copies of the hash tables' options; see ``eb_configs``.

    Args:
        eb_configs: TorchRec's configs of all tables that ``constraints`` names; None, as since dynamicemb v26.10: the
            configs of the module that is planned.  For a hash table they determine ``dim``, the bounds of a UNIFORM
            initializer, and ``max_capacity``: a rank's share of ``num_embeddings``.
        topology: topology of the ranks; None: TorchRec's default for the available device.
        batch_size: batch size of one rank.
        enumerator: None: :class:`DynamicEmbeddingEnumerator`.
        storage_reservation: as in TorchRec.
        proposer: as in TorchRec.
        partitioner: as in TorchRec.
        performance_model: as in TorchRec.
        stats: as in TorchRec.
        constraints: constraints of all tables, by name; :class:`DynamicEmbParameterConstraints` for hash tables.
        debug: print TorchRec's statistics.

    Raises:
        ArgumentError: the names in ``eb_configs`` and ``constraints`` differ, or a name occurs twice.
    """

    def __init__(
        self,
        eb_configs: Optional[List[Any]] = None,
        topology: Optional[Topology] = None,
        batch_size: Optional[int] = None,
        enumerator: Optional[Any] = None,
        storage_reservation: Optional[Any] = None,
        proposer: Optional[Any] = None,
        partitioner: Optional[Any] = None,
        performance_model: Optional[Any] = None,
        stats: Optional[Any] = None,
        constraints: Optional[Mapping[str, ParameterConstraints]] = None,
        debug: bool = True,
    ) -> None:
        constraints = constraints or {}
        self._world = _world_size(topology)
        if topology is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            topology = Topology(world_size=self._world, local_world_size=get_local_size(), compute_device=device)
        self._constraints, self._topology = constraints, topology
        self._dynamic: Dict[str, DynamicEmbParameterSharding] = {}
        self._has_configs = eb_configs is not None
        if eb_configs is not None:
            self._use(eb_configs, "eb_configs")
        self._torchrec = EmbeddingShardingPlanner(
            topology=topology,
            batch_size=batch_size,
            enumerator=enumerator or DynamicEmbeddingEnumerator(topology, batch_size or BATCH_SIZE, constraints),
            storage_reservation=storage_reservation,
            proposer=proposer,
            partitioner=partitioner,
            performance_model=performance_model,
            stats=stats,
            constraints={k: c for k, c in constraints.items() if not _is_dynamic(constraints, k)},
            debug=debug,
        )

    def _use(self, configs: List[Any], what: str) -> None:
        """Plan the hash tables from TorchRec's configs.

        Raises:
            ArgumentError: the configs' names are not the constraints', each once.
        """
        names = [config.name for config in configs]
        if len(set(names)) != len(names) or set(names) != set(self._constraints):
            raise ArgumentError(
                f"{what} has the tables {sorted(names)}, constraints {sorted(self._constraints)}; both must have "
                "the same names, each once",
                parameter="constraints",
            )
        for config in configs:
            if _is_dynamic(self._constraints, config.name):
                options = self._constraints[config.name].dynamicemb_options or DynamicEmbTableOptions()
                completed = complete_options(options, config, self._world)
                self._dynamic[config.name] = _row_wise(completed, self._topology, self._world)

    def collective_plan(
        self, module: torch.nn.Module, sharders: List[Any], pg: Optional[dist.ProcessGroup] = None
    ) -> ShardingPlan:
        """Plan a model on rank 0, and broadcast the plan to all ranks.

        Args:
            module: the model.
            sharders: sharders of all modules; hash tables need this package's sharders.
            pg: process group; None: the default one.
        """
        return self._complete(self._torchrec.collective_plan(module, sharders, pg), module, sharders)

    def plan(self, module: torch.nn.Module, sharders: List[Any]) -> ShardingPlan:
        """Plan a model on this rank alone."""
        return self._complete(self._torchrec.plan(module, sharders), module, sharders)

    def _complete(self, plan: ShardingPlan, module: torch.nn.Module, sharders: List[Any]) -> ShardingPlan:
        """Add the hash tables to TorchRec's plan."""
        found = _sharded_by(module, {sharder.module_type: sharder for sharder in sharders})
        if not self._has_configs:
            self._use([config for _, current, _ in found for config in _configs(current)], "the module")
        for path, current, sharder in found:
            tables = [name for name in sharder.shardable_parameters(current) if name in self._dynamic]
            if tables:
                entry = plan.plan.setdefault(path, EmbeddingModuleShardingPlan())
                entry.update((name, self._dynamic[name]) for name in tables)
        return plan


def _sharded_by(module: torch.nn.Module, by_type: Mapping[Any, Any]) -> List[Tuple[str, torch.nn.Module, Any]]:
    """Return path, module and sharder of the modules inside a module that have a sharder."""
    found, stack = [], [("", module)]
    while stack:
        path, current = stack.pop()
        sharder = by_type.get(type(current))
        if sharder is not None:
            found.append((path, current, sharder))
        else:
            stack += [(f"{path}.{name}" if path else name, child) for name, child in current.named_children()]
    return found


def _configs(module: Any) -> List[Any]:
    """Return TorchRec's configs of a collection's tables."""
    read = getattr(module, "embedding_bag_configs", None) or getattr(module, "embedding_configs", None)
    return [] if read is None else list(read())


def _row_wise(options: DynamicEmbTableOptions, topology: Topology, world: int) -> DynamicEmbParameterSharding:
    rows, device = int(options.max_capacity or 0), topology.compute_device
    shards = [
        ShardMetadata(
            shard_offsets=[rows * rank, 0],
            shard_sizes=[rows, options.dim],
            placement=placement(device, rank, topology.local_world_size),
        )
        for rank in range(world)
    ]
    return DynamicEmbParameterSharding(
        sharding_type=ShardingType.ROW_WISE.value,
        ranks=list(range(world)),
        sharding_spec=EnumerableShardingSpec(shards),
        dist_type=options.dist_type,
        dynamicemb_options=options,
    )
