"""A planner with common constraints.  Needs TorchRec."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping

import torch
import torch.distributed as dist
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.constants import HBM_CAP
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.types import BoundsCheckMode, ShardingType

from hotbed.compat.dynamicemb.dynamicemb_config import DynamicEmbTableOptions
from hotbed.compat.dynamicemb.planner import (
    DynamicEmbeddingEnumerator,
    DynamicEmbeddingShardingPlanner,
    DynamicEmbParameterConstraints,
)
from hotbed.errors import wrong

#: Kernels of data-parallel tables, and of other tables that are not hash tables; empty: TorchRec chooses.
_KERNELS: Mapping[str, Any] = {
    "prefetch": (["dense"], ["fused_uvm_caching"]),
    "native": (["dense"], ["fused", "fused_uvm"]),
    "none": ([], []),
}


def get_planner(
    eb_configs: List[Any],
    data_parallel_embedding_table_names: Collection[str],
    dynamicemb_options_dict: Dict[str, DynamicEmbTableOptions],
    device: torch.device,
    pipeline_type: str = "none",
    ddr_cap: int = 512 * 1024 * 1024 * 1024,
    intra_host_bw: float = 450e9,
    inter_host_bw: float = 25e9,
) -> DynamicEmbeddingShardingPlanner:
    """Return a planner that shards all tables row-wise, except the data-parallel ones.

    Args:
        eb_configs: TorchRec's configs of all tables.
        data_parallel_embedding_table_names: tables of which each rank has a copy.
        dynamicemb_options_dict: options of the hash tables by name.
        device: the model's device.
        pipeline_type: "prefetch", "native" or "none": which kernels the other tables may use.
        ddr_cap: bytes of host memory.
        intra_host_bw: bytes per second between ranks of a host.
        inter_host_bw: bytes per second between hosts.

    Raises:
        ArgumentError: ``pipeline_type`` is not one of these.
    """
    if pipeline_type not in _KERNELS:
        raise wrong("pipeline_type", pipeline_type, f"is not one of {sorted(_KERNELS)}")
    replicated, sharded = _KERNELS[pipeline_type]
    constraints: Dict[str, Any] = {}
    for config in eb_configs:
        one: Dict[str, Any] = {"sharding_types": [ShardingType.ROW_WISE.value], "compute_kernels": list(sharded)}
        if config.name in data_parallel_embedding_table_names:
            one = {"sharding_types": [ShardingType.DATA_PARALLEL.value], "compute_kernels": list(replicated)}
        elif config.name in dynamicemb_options_dict:
            options = dynamicemb_options_dict[config.name]
            one.update(compute_kernels=None, enforce_hbm=True, use_dynamicemb=True, dynamicemb_options=options)
        constraints[config.name] = DynamicEmbParameterConstraints(bounds_check_mode=BoundsCheckMode.NONE, **one)
    topology = Topology(
        world_size=dist.get_world_size(),
        local_world_size=get_local_size(),
        compute_device=device.type,
        hbm_cap=torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else HBM_CAP,
        ddr_cap=ddr_cap,
        intra_host_bw=intra_host_bw,
        inter_host_bw=inter_host_bw,
    )
    return DynamicEmbeddingShardingPlanner(
        eb_configs=eb_configs,
        topology=topology,
        enumerator=DynamicEmbeddingEnumerator(topology, constraints=constraints),
        storage_reservation=HeuristicalStorageReservation(percentage=0.05),
        constraints=constraints,
    )
