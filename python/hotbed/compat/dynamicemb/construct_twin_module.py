"""A model of hash tables and one of TorchRec's tables that have the same rows, to compare both.  Needs TorchRec."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional

import torch
import torch.distributed as dist
import torchrec
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import Topology
from torchrec.distributed.types import BoundsCheckMode, ShardingType

from hotbed.compat.dynamicemb.dump_load import get_dynamic_emb_module
from hotbed.compat.dynamicemb.dynamicemb_config import DynamicEmbTableOptions
from hotbed.compat.dynamicemb.optimizer import EmbOptimType
from hotbed.compat.dynamicemb.planner import DynamicEmbeddingShardingPlanner, DynamicEmbParameterConstraints
from hotbed.compat.dynamicemb.shard import DynamicEmbeddingBagCollectionSharder, DynamicEmbeddingCollectionSharder
from hotbed.compat.dynamicemb.utils import ranks_of_keys
from hotbed.errors import wrong

_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "exact_sgd": EmbOptimType.EXACT_SGD,
    "adam": EmbOptimType.ADAM,
    "exact_adagrad": EmbOptimType.EXACT_ADAGRAD,
    "exact_row_wise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def _uniform(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.uniform_(0, 1)


class ConstructTwinModule:
    """Creates both models, sharded row-wise over all ranks.

    Tables are ``t_0``, ``t_1``, ..., their features ``f_0``, ``f_1``, ...

    Args:
        table_num: number of tables.
        dims: dim of each table.
        num_embeddings: rows of each table in the TorchRec model.
        pooling_mode: a ``PoolingType``, for bags.
        is_pooled: True for bags, False for rows.
        multi_hot_sizes: maximum number of keys in a bag, for each table.
        batch_size: batch size for TorchRec's planner.
        output_dtype: dtype of outputs.
        fwd_a2a_precision: ignored: float32.
        bwd_a2a_precision: ignored: float32.
        optimizer_kwargs: fused parameters; ``optimizer`` is "sgd", "adam", "exact_adagrad" or "exact_row_wise_adagrad".
        use_index_dedup: option of the row sharders.
        init_fn: initializer of the rows.
        rank: rank of this process.
        world_size: number of processes.
        scale_factor: capacity of a hash table, as a multiple of ``num_embeddings``.

    Raises:
        ArgumentError: the optimizer is not one of these.
    """

    def __init__(
        self,
        table_num: int,
        dims: List[int],
        num_embeddings: List[int],
        pooling_mode: Any,
        is_pooled: bool,
        multi_hot_sizes: List[int],
        batch_size: int = 65536,
        output_dtype: Optional[Any] = None,
        fwd_a2a_precision: Optional[Any] = None,
        bwd_a2a_precision: Optional[Any] = None,
        optimizer_kwargs: Optional[Dict[str, Any]] = None,
        use_index_dedup: bool = False,
        init_fn: Optional[Callable[[torch.Tensor], Optional[torch.Tensor]]] = _uniform,
        rank: int = 0,
        world_size: int = 1,
        scale_factor: int = 2,
    ) -> None:
        self._params = copy.deepcopy(optimizer_kwargs or {"optimizer": "sgd"})
        if self._params["optimizer"] not in _OPTIMIZERS:
            raise wrong("optimizer", self._params["optimizer"], f"is not one of {sorted(_OPTIMIZERS)}")
        self._params["optimizer"] = _OPTIMIZERS[self._params["optimizer"]]
        if output_dtype is not None:
            self._params["output_dtype"] = output_dtype
        self._tables = list(zip(dims, num_embeddings, multi_hot_sizes))[:table_num]
        self._pooling = pooling_mode if is_pooled else None
        self._batch_size, self._use_index_dedup, self._init_fn = batch_size, use_index_dedup, init_fn
        self._rank, self._world_size, self._scale = rank, world_size, scale_factor

    def init_twin_embedding_model(self) -> None:
        """Create both models, and copy the rows of TorchRec's tables to the hash tables."""
        self._dynamicemb_model = self._make(True)
        self._torchrec_model = self._make(False)
        weights = self._torchrec_model.state_dict()
        for module in get_dynamic_emb_module(self._dynamicemb_model):
            for number, name in enumerate(module.table_names):
                shard = next(w for key, w in weights.items() if key.endswith(f".{name}.weight"))
                self._copy(shard, module.tables, number)

    def _copy(self, weight: Any, to: Any, number: int) -> None:
        """Copy this rank's rows of a table to the hash table.  All ranks call it together."""
        for rank, part in enumerate(weight.metadata().shards_metadata):
            mine = [s.tensor for s in weight.local_shards() if s.metadata.shard_offsets == part.shard_offsets]
            rows = mine[0].detach().clone() if mine else torch.empty(part.shard_sizes, device=to.hotbed.device)
            if self._world_size > 1:
                dist.broadcast(rows, rank)
            keys = torch.arange(rows.shape[0], dtype=torch.int64, device=rows.device) + part.shard_offsets[0]
            owner, _ = ranks_of_keys(keys, "roundrobin", self._world_size)
            keys, rows = keys[owner == self._rank], rows[owner == self._rank]
            values = torch.full((keys.numel(), to.max_value_dim()), to.init_optimizer_state(), device=rows.device)
            values[:, : rows.shape[1]] = rows
            to.insert(keys, torch.full_like(keys, number), values)

    def _make(self, dynamic: bool) -> DistributedModelParallel:
        configs: List[Any] = []
        for i, (dim, rows, _) in enumerate(self._tables):
            common: Dict[str, Any] = {"name": f"t_{i}", "feature_names": [f"f_{i}"], "embedding_dim": dim}
            common["num_embeddings"] = rows * self._scale if dynamic else rows
            if not dynamic:
                common["init_fn"] = self._init_fn
            if self._pooling is None:
                configs.append(torchrec.EmbeddingConfig(**common))
            else:
                configs.append(torchrec.EmbeddingBagConfig(pooling=self._pooling, **common))
        meta = torch.device("meta")
        if self._pooling is None:
            collection: Any = torchrec.EmbeddingCollection(tables=configs, device=meta)
            sharder: Any = DynamicEmbeddingCollectionSharder(
                fused_params=self._params, use_index_dedup=self._use_index_dedup
            )
        else:
            collection = torchrec.EmbeddingBagCollection(tables=configs, device=meta)
            sharder = DynamicEmbeddingBagCollectionSharder(fused_params=self._params)
        device = torch.device("cuda", self._rank) if torch.cuda.is_available() else torch.device("cpu")
        plan = self._planner(configs, device, dynamic).collective_plan(collection, [sharder], dist.GroupMember.WORLD)
        return DistributedModelParallel(module=collection, device=device, sharders=[sharder], plan=plan)

    def _planner(self, configs: List[Any], device: torch.device, dynamic: bool) -> DynamicEmbeddingShardingPlanner:
        constraints = {
            config.name: DynamicEmbParameterConstraints(
                sharding_types=[ShardingType.ROW_WISE.value],
                pooling_factors=[hot],
                num_poolings=[1],
                enforce_hbm=True,
                bounds_check_mode=BoundsCheckMode.NONE,
                use_dynamicemb=dynamic,
                dynamicemb_options=DynamicEmbTableOptions(global_hbm_for_values=1 << 30),
            )
            for config, (_, _, hot) in zip(configs, self._tables)
        }
        return DynamicEmbeddingShardingPlanner(
            eb_configs=configs,
            topology=Topology(
                world_size=self._world_size, local_world_size=get_local_size(), compute_device=device.type
            ),
            batch_size=self._batch_size,
            constraints=constraints,
        )

    @property
    def dynamicemb_model(self) -> DistributedModelParallel:
        """Return the model of hash tables."""
        return self._dynamicemb_model

    @property
    def torchrec_model(self) -> DistributedModelParallel:
        """Return TorchRec's model."""
        return self._torchrec_model
