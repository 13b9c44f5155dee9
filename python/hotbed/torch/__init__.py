"""PyTorch modules over Hotbed's tables, in TorchRec's words; TorchRec need not be installed."""

from hotbed.torch._modules import EmbeddingBagCollection, EmbeddingCollection
from hotbed.torch._optimizer import FusedOptimizer
from hotbed.torch.config import (
    SGD,
    Adagrad,
    Adam,
    EmbeddingBagConfig,
    EmbeddingConfig,
    Evict,
    PoolingType,
    RowWiseAdagrad,
    Score,
)
from hotbed.torch.sparse import JaggedTensor, KeyedJaggedTensor, KeyedTensor

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "Evict",
    "FusedOptimizer",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "PoolingType",
    "RowWiseAdagrad",
    "Score",
]
