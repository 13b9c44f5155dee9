"""Sharders for TorchRec's ``DistributedModelParallel``.  They need TorchRec."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from hotbed.compat.dynamicemb._sharding import BagsRowWise, RowsRowWise, is_dynamic
from hotbed.compat.dynamicemb.batched_dynamicemb_tables import warn_of_rows
from hotbed.compat.dynamicemb.dynamicemb_config import (
    DynamicEmbScoreStrategy,
    DynamicEmbTableOptions,
    get_eviction_score_strategy,
)


def _counts(options: DynamicEmbTableOptions) -> bool:
    """Whether a table counts how often its keys occur."""
    strategy = options.score_strategy
    lfu = strategy is not None and get_eviction_score_strategy(strategy) == DynamicEmbScoreStrategy.LFU
    return lfu or options.admit_strategy is not None


class _States:
    """Warns of state dicts, in which hash tables have a tensor without elements."""

    module_sharding_plan: Any

    def _save_to_state_dict(self, *arguments: Any, **named: Any) -> None:
        super()._save_to_state_dict(*arguments, **named)  # type: ignore[misc]
        names = [
            name
            for name, planned in self.module_sharding_plan.items()
            if planned.compute_kernel == EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
        ]
        if names:
            warn_of_rows(names)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any, **named: Any) -> None:
        plain = (torch.Tensor, torch.nn.Parameter)  # other tables have TorchRec's ShardedTensor
        weights = {n: t for n, t in state_dict.items() if n.startswith(prefix) and n.endswith(".weight")}
        empty = [name for name, weight in weights.items() if type(weight) in plain and weight.numel() == 0]
        super()._load_from_state_dict(state_dict, prefix, *arguments, **named)  # type: ignore[misc]
        if empty:  # the state dict of an unsharded module has rows
            warn_of_rows([name.split(".")[-2] for name in empty])


class ShardedDynamicEmbeddingCollection(_States, ShardedEmbeddingCollection):  # type: ignore[misc]
    """TorchRec's sharded collection of rows, with hash tables among its row-wise tables.

    With ``use_index_dedup`` each distinct key of a feature is sent to its rank once, with its number of occurrences if
    the table counts them.
    """

    @classmethod
    def create_embedding_sharding(
        cls,
        sharding_type: str,
        sharding_infos: List[Any],
        env: Any,
        device: Optional[torch.device] = None,
        qcomm_codecs_registry: Optional[Dict[str, Any]] = None,
    ) -> Any:
        """Return the sharding of the tables of a type."""
        if sharding_type == ShardingType.ROW_WISE.value:
            return RowsRowWise(sharding_infos, env, device, qcomm_codecs_registry=qcomm_codecs_registry)
        return super().create_embedding_sharding(
            sharding_type=sharding_type,
            sharding_infos=sharding_infos,
            env=env,
            device=device,
            qcomm_codecs_registry=qcomm_codecs_registry,
        )

    def input_dist(self, ctx: Any, features: Any) -> Any:
        """Send keys to their ranks; weights of the features are dropped."""
        if isinstance(features, KeyedJaggedTensor) and features.weights_or_none() is not None:
            varies = features.variable_stride_per_key()
            features = KeyedJaggedTensor(
                keys=features.keys(),
                values=features.values(),
                lengths=features.lengths(),
                offsets=features.offsets(),
                stride=None if varies else features.stride(),
                stride_per_key_per_rank=features.stride_per_key_per_rank() if varies else None,
                inverse_indices=features.inverse_indices_or_none(),
            )
        return super().input_dist(ctx, features)

    def _dedup_indices(self, ctx: Any, input_feature_splits: List[KeyedJaggedTensor]) -> List[KeyedJaggedTensor]:
        """Return the distinct keys of each feature, all in its first bag: without pooling, bags do not matter."""
        found = []
        for sharding, features in zip(self._sharding_type_to_sharding.values(), input_feature_splits):
            lengths = torch.zeros(
                len(features.keys()), features.stride(), dtype=torch.int64, device=features.values().device
            )
            keys, positions, counts, before = [], [], [], 0
            for i, part in enumerate(torch.split(features.values(), features.length_per_key())):
                distinct, inverse, count = torch.unique(part, return_inverse=True, return_counts=True)
                keys.append(distinct)
                positions.append(inverse + before)
                counts.append(count)
                before += distinct.numel()
                lengths[i, :1] = distinct.numel()
            tables = [t.fused_params for t in sharding.embedding_tables()]
            counted = any(is_dynamic(params) and _counts(params["dynamicemb_options"]) for params in tables)
            ctx.input_features.append(features)
            ctx.reverse_indices.append(torch.cat(positions))
            found.append(
                KeyedJaggedTensor(
                    keys=features.keys(),
                    values=torch.cat(keys),
                    weights=torch.cat(counts).float() if counted else None,
                    lengths=lengths.view(-1),
                    stride=features.stride(),
                )
            )
        return found


class DynamicEmbeddingCollectionSharder(EmbeddingCollectionSharder):  # type: ignore[misc]
    """TorchRec's sharder of ``EmbeddingCollection``, for plans with hash tables."""

    def shard(
        self,
        module: Any,
        params: Dict[str, Any],
        env: Any,
        device: Optional[torch.device] = None,
        module_fqn: Optional[str] = None,
    ) -> ShardedDynamicEmbeddingCollection:
        """Make this rank's part of a collection."""
        return ShardedDynamicEmbeddingCollection(
            module,
            params,
            env,
            self.fused_params,
            device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            use_index_dedup=self._use_index_dedup,
            module_fqn=module_fqn,
        )


class ShardedDynamicEmbeddingBagCollection(_States, ShardedEmbeddingBagCollection):  # type: ignore[misc]
    """TorchRec's sharded collection of bags, with hash tables among its row-wise tables."""

    @classmethod
    def create_embedding_bag_sharding(
        cls,
        sharding_infos: List[Any],
        env: Any,
        device: Optional[torch.device] = None,
        permute_embeddings: bool = False,
        qcomm_codecs_registry: Optional[Dict[str, Any]] = None,
    ) -> Any:
        """Return the sharding of the tables of a type."""
        if sharding_infos[0].param_sharding.sharding_type == ShardingType.ROW_WISE.value:
            return BagsRowWise(sharding_infos, env, device, qcomm_codecs_registry=qcomm_codecs_registry)
        return super().create_embedding_bag_sharding(
            sharding_infos=sharding_infos,
            env=env,
            device=device,
            permute_embeddings=permute_embeddings,
            qcomm_codecs_registry=qcomm_codecs_registry,
        )


class DynamicEmbeddingBagCollectionSharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """TorchRec's sharder of ``EmbeddingBagCollection``, for plans with hash tables."""

    def sharding_types(self, compute_device_type: str) -> List[str]:
        """Return TorchRec's types, plus row-wise sharding on the CPU, where TorchRec's planner leaves it out."""
        types: List[str] = super().sharding_types(compute_device_type)
        return [*types, *({ShardingType.ROW_WISE.value} - set(types))]

    def shard(
        self,
        module: Any,
        params: Dict[str, Any],
        env: Any,
        device: Optional[torch.device] = None,
        module_fqn: Optional[str] = None,
    ) -> ShardedDynamicEmbeddingBagCollection:
        """Make this rank's part of a collection."""
        return ShardedDynamicEmbeddingBagCollection(
            module=module,
            table_name_to_parameter_sharding=params,
            env=env,
            fused_params=self.fused_params,
            device=device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            module_fqn=module_fqn,
        )
