"""PyTorch modules over Hotbed's tables, in TorchRec's words; TorchRec need not be installed."""

from hotbed.torch._memory import use_torch_allocator
from hotbed.torch._modules import EmbeddingBagCollection, EmbeddingCollection
from hotbed.torch._optimizer import FusedOptimizer
from hotbed.torch._pipeline import TrainPipeline
from hotbed.torch._states import full_state_dict
from hotbed.torch.config import (
    SGD,
    Adagrad,
    Adam,
    Dedup,
    EmbeddingBagConfig,
    EmbeddingConfig,
    Evict,
    Overflow,
    Plan,
    PooledExchange,
    PoolingType,
    Rounding,
    Route,
    RowWiseAdagrad,
    Score,
    ShardedOptions,
)
from hotbed.torch.sparse import JaggedTensor, KeyedJaggedTensor, KeyedTensor, pooled

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Dedup",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "Evict",
    "FusedOptimizer",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "Overflow",
    "Plan",
    "PooledExchange",
    "PoolingType",
    "Rounding",
    "Route",
    "RowWiseAdagrad",
    "Score",
    "ShardedOptions",
    "TrainPipeline",
    "full_state_dict",
    "pooled",
    "use_torch_allocator",
]
