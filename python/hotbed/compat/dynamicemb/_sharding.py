"""Row-wise sharding of hash tables by TorchRec: the lookup of a rank, and the distribution of keys to ranks."""

from __future__ import annotations

import warnings
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist
from torchrec.distributed.batched_embedding_kernel import BaseBatchedEmbedding, BaseBatchedEmbeddingBag
from torchrec.distributed.embedding_lookup import GroupedEmbeddingsLookup, GroupedPooledEmbeddingsLookup
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.sharding.rw_sequence_sharding import RwSequenceEmbeddingSharding
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingSharding, RwSparseFeaturesDist
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim.fused import EmptyFusedOptimizer, FusedOptimizer, FusedOptimizerModule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from hotbed.compat.dynamicemb.batched_dynamicemb_tables import BatchedDynamicEmbeddingTablesV2
from hotbed.compat.dynamicemb.dynamicemb_config import DynamicEmbPoolingMode
from hotbed.compat.dynamicemb.planner import PLANNED
from hotbed.compat.dynamicemb.utils import ranks_of_keys
from hotbed.errors import UnsupportedError

#: Pooling of a rank's tables.  A rank has only some keys of a bag, so TorchRec divides the sum of all ranks.
_POOLING = {
    PoolingType.SUM: DynamicEmbPoolingMode.SUM,
    PoolingType.MEAN: DynamicEmbPoolingMode.SUM,
    PoolingType.NONE: DynamicEmbPoolingMode.NONE,
}


def is_dynamic(fused_params: Optional[Mapping[str, Any]]) -> bool:
    """Whether fused parameters belong to a hash table."""
    return fused_params is not None and fused_params.get("dynamicemb_options") is not None


# --- the lookup of a rank -------------------------------------------------------------------------


class LearningRate(FusedOptimizer):  # type: ignore[misc]
    """A lookup's optimizer for TorchRec: the backward updates the rows, and ``step()`` sets the learning rate."""

    def __init__(self, tables: BatchedDynamicEmbeddingTablesV2) -> None:
        self._tables = [tables]  # in a list, so that it is not registered as part of the optimizer's state
        tables.optimizer.group.setdefault("params", [])
        super().__init__({}, {}, [tables.optimizer.group])  # a load of a checkpoint sets its learning rate

    def step(self, closure: Any = None) -> None:
        """Take the learning rate from the parameter group."""
        self._tables[0].set_learning_rate(self.param_groups[0]["lr"])

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Take the learning rate from the parameter group."""
        self.step()


def _make_tables(config: Any, device: Optional[torch.device], features: List[int]) -> BatchedDynamicEmbeddingTablesV2:
    params = {k: v for k, v in (config.fused_params or {}).items() if k not in PLANNED}
    if "betas" in params:
        params["beta1"], params["beta2"] = params.pop("betas")
    if hasattr(params.get("output_dtype"), "as_dtype"):
        params["output_dtype"] = params["output_dtype"].as_dtype()
    if "lr" in params and "learning_rate" not in params:
        warnings.warn("fused_params['lr'] has no effect, as in dynamicemb; write 'learning_rate'", stacklevel=2)
    return BatchedDynamicEmbeddingTablesV2(
        table_options=[table.fused_params["dynamicemb_options"] for table in config.embedding_tables],
        table_names=[table.name for table in config.embedding_tables],
        feature_table_map=features,
        pooling_mode=_POOLING[config.pooling],
        device=device,
        **params,
    )


class _Lookup(FusedOptimizerModule):  # type: ignore[misc]
    """Base of the lookups of rows and of bags; TorchRec's base class follows it in their bases."""

    _emb_module: BatchedDynamicEmbeddingTablesV2
    _config: Any
    _feature_table_map: List[int]
    #: Whether the features' weights are counts of occurrences.
    counted = True

    def __init__(self, config: Any, pg: Optional[dist.ProcessGroup], device: Optional[torch.device]) -> None:
        super().__init__(config, pg, device)
        self._emb_module = _make_tables(self._config, device, self._feature_table_map)
        self._optim = LearningRate(self._emb_module)
        self._param_per_table = {}
        for table in self._config.embedding_tables:  # TorchRec needs a parameter for each table
            weight = torch.nn.Parameter(torch.empty(0, table.local_cols, device=device))
            weight._in_backward_optimizers = [EmptyFusedOptimizer()]  # type: ignore[attr-defined]
            self._param_per_table[table.name] = weight

    @property
    def emb_module(self) -> BatchedDynamicEmbeddingTablesV2:
        """Return the tables."""
        return self._emb_module

    @property
    def fused_optimizer(self) -> FusedOptimizer:
        """Return the optimizer, whose ``param_groups[0]["lr"]`` is the learning rate."""
        return self._optim

    def _counts(self, features: KeyedJaggedTensor) -> Optional[torch.Tensor]:
        return features.weights_or_none() if self.counted else None

    def forward(self, features: KeyedJaggedTensor, *_: Any, **__: Any) -> torch.Tensor:
        """Look up the features' keys."""
        if features.variable_stride_per_key():
            raise UnsupportedError("hash tables: all features of a batch have the same number of samples")
        return self._emb_module(  # type: ignore[no-any-return]
            features.values().long(), features.offsets().long(), self._counts(features)
        )

    def prefetch(self, features: KeyedJaggedTensor, forward_stream: Optional[Any] = None) -> None:
        """Look a batch up ahead."""
        self._emb_module.prefetch(
            features.values().long(),
            features.offsets().long(),
            forward_stream=forward_stream,
            frequency_counters=self._counts(features),
        )

    def state_dict(
        self, destination: Optional[Dict[str, Any]] = None, prefix: str = "", keep_vars: bool = False
    ) -> Dict[str, Any]:
        """Add nothing: ``DynamicEmbDump`` saves the rows."""
        return {} if destination is None else destination

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[Tuple[str, torch.nn.Parameter]]:
        """Iterate over the tables' parameters, which have no elements."""
        for name, weight in self._param_per_table.items():
            yield f"{prefix}.{name}.weight" if prefix else f"{name}.weight", weight

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[Tuple[str, torch.Tensor]]:
        """Iterate over nothing: there are no buffers."""
        yield from ()

    def flush(self) -> None:
        """Write changed rows of the upper tier back."""
        self._emb_module.flush()

    def purge(self) -> None:
        """Write changed rows of the upper tier back, and empty it."""
        self._emb_module.reset_cache_states()


class RowsLookup(_Lookup, BaseBatchedEmbedding):  # type: ignore[misc]
    """A rank's lookup of rows."""


class BagsLookup(_Lookup, BaseBatchedEmbeddingBag):  # type: ignore[misc]
    """A rank's lookup of bags."""

    counted = False


class _Lookups:
    """Base of the grouped lookups: groups of hash tables use this package's lookup, other groups use TorchRec's."""

    _lookup: Any
    _emb_modules: Any
    _feature_splits: List[int]

    def _create_embedding_kernel(self, config: Any, *args: Any, **kwargs: Any) -> Any:
        if config.compute_kernel != EmbeddingComputeKernel.CUSTOMIZED_KERNEL:
            return super()._create_embedding_kernel(config, *args, **kwargs)  # type: ignore[misc]
        given = [*args, *kwargs.values()]  # their order depends on TorchRec's class and version
        pg = next((a for a in given if isinstance(a, dist.ProcessGroup)), None)
        device = next((a for a in given if isinstance(a, torch.device)), None)
        return self._lookup(config, pg, device)

    def prefetch(self, sparse_features: KeyedJaggedTensor, forward_stream: Optional[Any] = None) -> None:
        """Look a batch up ahead in all groups that support it."""
        for lookup, features in zip(self._emb_modules, sparse_features.split(self._feature_splits)):
            if isinstance(lookup, _Lookup):
                lookup.prefetch(features, forward_stream)
            elif getattr(lookup.emb_module, "prefetch_pipeline", False):
                lookup.emb_module.prefetch(
                    indices=features.values(), offsets=features.offsets(), forward_stream=forward_stream
                )


class RowsLookups(_Lookups, GroupedEmbeddingsLookup):  # type: ignore[misc]
    """TorchRec's groups of row lookups, some of them of hash tables."""

    _lookup = RowsLookup


class BagsLookups(_Lookups, GroupedPooledEmbeddingsLookup):  # type: ignore[misc]
    """TorchRec's groups of bag lookups, some of them of hash tables."""

    _lookup = BagsLookup


# --- keys to ranks --------------------------------------------------------------------------------


class KeysDist(RwSparseFeaturesDist):  # type: ignore[misc]
    """TorchRec's row-wise input distribution, with the owner of a key chosen by its table's ``dist_type``.

    Args:
        features: names, in the order of the sharding.
        dist_types: ``dist_type`` of each feature's table.
        hash_sizes: number of keys of each feature's table; with ``continuous``, each rank owns an equal block of them.
        options: options of TorchRec's class.
    """

    def __init__(self, features: List[str], dist_types: List[str], hash_sizes: List[int], **options: Any) -> None:
        super().__init__(feature_hash_sizes=hash_sizes, **options)
        self._dist_type_per_feature = dict(zip(features, dist_types))
        self._dist_types = dist_types
        self._blocks = [-(-size // self._world_size) for size in hash_sizes]

    def forward(self, sparse_features: KeyedJaggedTensor) -> Any:
        """Send each key to the rank that owns it."""
        features = sparse_features
        by_position = self._need_pos if features.weights_or_none() is not None else self._has_feature_processor
        moved, positions = self._move(features, by_position)
        self.unbucketize_permute_tensor = positions if self._is_sequence else None
        return self._dist(moved)

    def _owners(self, features: KeyedJaggedTensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return the rank that owns each key, and the key that this rank's table stores."""
        ranks, keys = [], []
        parts = torch.split(features.values(), features.length_per_key())
        for part, dist_type, block in zip(parts, self._dist_types, self._blocks):
            owner, key = ranks_of_keys(part.long(), dist_type, self._world_size, block)
            ranks.append(owner)
            keys.append(key)
        return torch.cat(ranks), torch.cat(keys)

    def _move(self, features: KeyedJaggedTensor, by_position: bool) -> Tuple[KeyedJaggedTensor, torch.Tensor]:
        """Group the keys by rank, and return their new positions too."""
        ranks, keys = self._owners(features)
        varies = features.variable_stride_per_key()
        strides = features.stride_per_key()
        lengths, _, _, positions, to = torch.ops.fbgemm.block_bucketize_sparse_features(
            features.lengths().long().view(-1),
            ranks,
            bucketize_pos=by_position,
            sequence=True,
            block_sizes=torch.ones(len(features.keys()), dtype=torch.int64, device=ranks.device),
            my_size=self._world_size,
            weights=None,
            batch_size_per_feature=torch.tensor(strides, device=ranks.device) if varies else None,
            max_B=max(strides) if varies else -1,
            block_bucketize_pos=None,
        )
        to = to.long()
        weights = positions if by_position else features.weights_or_none()
        if weights is not None and not by_position:
            weights = torch.empty_like(weights).index_copy_(0, to, weights)
        return (
            KeyedJaggedTensor(
                keys=list(features.keys()) * self._world_size,
                values=torch.empty_like(keys).index_copy_(0, to, keys),
                weights=weights,
                lengths=lengths.view(-1),
                stride=None if varies else features.stride(),
                stride_per_key_per_rank=features.stride_per_key_per_rank() * self._world_size if varies else None,
            ),
            to,
        )


class _RowWise:
    """Base of the row-wise shardings of rows and of bags."""

    _sequence = False
    _lookups: Any

    def __init__(self, sharding_infos: List[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(sharding_infos, *args, **kwargs)  # type: ignore[call-arg]
        self._dist_types: List[str] = []
        for table in self.embedding_tables():  # type: ignore[attr-defined]
            dynamic = is_dynamic(table.fused_params)
            if dynamic and table.is_weighted:
                raise UnsupportedError(f"table {table.name!r}: a hash table's bags have no weights", table=table.name)
            self._dist_types += [table.fused_params["dist_type"] if dynamic else "continuous"] * table.num_features()
        self._dist_type_per_feature = dict(zip(self.feature_names(), self._dist_types))  # type: ignore[attr-defined]

    def create_input_dist(self, device: Optional[torch.device] = None) -> KeysDist:
        """Return the distribution of keys to ranks."""
        me: Any = self
        return KeysDist(
            me.feature_names(),
            self._dist_types,
            me._get_feature_hash_sizes(),
            pg=me._pg,
            num_features=me._get_num_features(),
            device=device if device is not None else me._device,
            is_sequence=self._sequence,
            has_feature_processor=me._has_feature_processor,
            need_pos=not self._sequence and me._need_pos,
        )

    def create_lookup(
        self,
        device: Optional[torch.device] = None,
        fused_params: Optional[Dict[str, Any]] = None,
        feature_processor: Optional[Any] = None,
    ) -> Any:
        """Return the lookups of this rank."""
        me: Any = self
        more = (
            {} if self._sequence else {"feature_processor": feature_processor, "sharding_type": ShardingType.ROW_WISE}
        )
        return self._lookups(
            grouped_configs=me._grouped_embedding_configs,
            pg=me._pg,
            device=device if device is not None else me._device,
            env=me._env,
            **more,
        )


class RowsRowWise(_RowWise, RwSequenceEmbeddingSharding):  # type: ignore[misc]
    """Row-wise sharding of row lookups."""

    _sequence = True
    _lookups = RowsLookups


class BagsRowWise(_RowWise, RwPooledEmbeddingSharding):  # type: ignore[misc]
    """Row-wise sharding of bag lookups."""

    _lookups = BagsLookups
