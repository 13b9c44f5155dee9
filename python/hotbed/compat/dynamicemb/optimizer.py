"""Optimizers as callers see them: their arguments and the widths of their states.  Hotbed's backward applies them."""

from __future__ import annotations

import dataclasses
import enum
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple, Union

import torch

from hotbed.compat.dynamicemb.utils import DTYPE_NUM_BYTES
from hotbed.torch.config import FTRL, SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad


class EmbOptimType(enum.Enum):
    """Kinds of optimizers, by FBGEMM's names."""

    SGD = "sgd"
    EXACT_SGD = "exact_sgd"
    ADAM = "adam"
    EXACT_ADAGRAD = "exact_adagrad"
    EXACT_ROWWISE_ADAGRAD = "exact_row_wise_adagrad"
    NONE = "none"


if not TYPE_CHECKING:
    try:  # FBGEMM's own, where it is installed
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] != "fbgemm_gpu":
            raise  # fbgemm_gpu is there, and lacks a module


class DynamicEmbOptimType(enum.Enum):
    """Optimizers that FBGEMM does not have."""

    FTRL = "ftrl"


OptimType = Union[EmbOptimType, DynamicEmbOptimType]


def get_optimizer_state_dim(optimizer_type: OptimType, dim: int, dtype: Optional[torch.dtype] = None) -> int:
    """Return the number of a row's state elements as dynamicemb's memory budgets count them.

    Row-wise AdaGrad counts as 16 bytes per row.  Hotbed's states are float32 whatever the dtype of the rows is.
    """
    if optimizer_type == EmbOptimType.EXACT_ROWWISE_ADAGRAD:
        if dtype is None:
            raise ValueError("EXACT_ROWWISE_ADAGRAD: the state's elements depend on dtype, which is None")
        return 16 // DTYPE_NUM_BYTES[dtype]
    states = {EmbOptimType.ADAM: 2 * dim, EmbOptimType.EXACT_ADAGRAD: dim, DynamicEmbOptimType.FTRL: 2 * dim}
    return states.get(optimizer_type, 0)


def get_optimizer_ckpt_state_dim(optimizer_type: OptimType, dim: int, dtype: Optional[torch.dtype] = None) -> int:
    """Return the number of a row's state elements in a dump: as above, but 1 for row-wise AdaGrad."""
    if optimizer_type == EmbOptimType.EXACT_ROWWISE_ADAGRAD:
        return 1
    return get_optimizer_state_dim(optimizer_type, dim, dtype)


@dataclasses.dataclass
class OptimizerArgs:
    """Parameters of optimizers.

    Parameters up to ``l2_reg`` have an effect; the others exist for FBGEMM's callers.
    """

    stochastic_rounding: bool = True
    gradient_clipping: bool = False
    max_gradient: float = 1.0
    max_norm: float = 0.0
    learning_rate: float = 0.01
    eps: float = 1.0e-8
    initial_accumulator_value: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    learning_rate_power: float = -0.5
    ftrl_beta: float = 0.0
    l1_reg: float = 0.0
    l2_reg: float = 0.0
    weight_decay_mode: int = 0
    eta: float = 0.001
    momentum: float = 0.9
    counter_halflife: int = -1
    adjustment_iter: int = -1
    adjustment_ub: float = 1.0
    learning_rate_mode: int = -1
    grad_sum_decay: int = -1
    tail_id_threshold: float = 0
    is_tail_id_thresh_ratio: int = 0
    total_hash_size: int = 0
    weight_norm_coefficient: float = 0
    lower_bound: float = 0
    regularization_mode: int = 0


class BaseDynamicEmbeddingOptimizer:
    """The optimizer of a module's tables.

    Args:
        opt_args: the optimizer's parameters.
        table_dtype: dtype of the rows.
    """

    kind: OptimType = EmbOptimType.NONE
    #: Hotbed's optimizer; None: rows are only read.
    _made: Any = None
    #: The parameters that a dump's JSON file has.
    _names: Tuple[str, ...] = ("lr",)

    def __init__(self, opt_args: OptimizerArgs, table_dtype: torch.dtype = torch.float32) -> None:
        self._opt_args = dataclasses.replace(opt_args)
        self._dtype = table_dtype
        self._iterations: Optional[Callable[[], int]] = None
        #: The storage reads the learning rate from here, as from a parameter group.
        self.group: Dict[str, Any] = {"lr": float(opt_args.learning_rate)}

    def hotbed(self) -> Optional[Optimizer]:
        """Return Hotbed's optimizer with the same parameters; None: rows are only read."""
        if self._made is None:
            return None
        given = self._parameters()
        if "beta1" in given:
            given["betas"] = given.pop("beta1"), given.pop("beta2")
        limit = self._opt_args.max_gradient if self._opt_args.gradient_clipping else 0.0
        made: Optimizer = self._made(**given, max_gradient=limit)
        return made

    def _parameters(self) -> Dict[str, Any]:
        args = {"lr": self._opt_args.learning_rate, **vars(self._opt_args)}
        return {name: args[name] for name in self._names}

    def get_opt_args(self) -> Dict[str, Any]:
        """Return the optimizer's entries for a dump's JSON file."""
        return {"opt_type": self.kind.value, **self._parameters()}

    def check_opt_args(self, args: Dict[str, Any]) -> None:
        """Check that a dump's JSON file has the optimizer's entries.

        Raises:
            ValueError: one is missing.
        """
        for name in self.get_opt_args():
            if name not in args:
                raise ValueError(f"the dump's optimizer arguments have no {name!r}: {sorted(args)}")

    def set_opt_args(self, args: Dict[str, Any]) -> None:
        """Set the learning rate from a dump's JSON file.

        Hotbed's other parameters are set when the tables are created; if the dump's differ, a warning says so.

        Raises:
            ValueError: a parameter is missing.
        """
        self.check_opt_args(args)
        for name, kept in self._parameters().items():
            if name != "lr" and float(args[name]) != float(kept):
                warnings.warn(
                    f"the dump has {name}={args[name]}, but the tables keep {kept}, which they were made with",
                    stacklevel=3,
                )
        self.set_learning_rate(args["lr"])

    def get_state_dim(self, emb_dim: int) -> int:
        """Return the number of a row's state elements, as dynamicemb counts them."""
        return get_optimizer_state_dim(self.kind, emb_dim, self._dtype)

    def get_ckpt_state_dim(self, emb_dim: int) -> int:
        """Return the number of a row's state elements in a dump."""
        return get_optimizer_ckpt_state_dim(self.kind, emb_dim, self._dtype)

    def set_learning_rate(self, new_lr: float) -> None:
        """Set the learning rate of later backwards."""
        self._opt_args.learning_rate = float(new_lr)
        self.group["lr"] = float(new_lr)

    def get_initial_optim_states(self) -> float:
        """Return the initial value of a new row's states."""
        return self._opt_args.initial_accumulator_value


class SGDDynamicEmbeddingOptimizer(BaseDynamicEmbeddingOptimizer):
    """``w -= lr * g``; it has no weight decay."""

    kind = EmbOptimType.SGD
    _made = SGD


class AdamDynamicEmbeddingOptimizer(BaseDynamicEmbeddingOptimizer):
    """Adam with decoupled weight decay."""

    kind = EmbOptimType.ADAM
    _made = Adam
    _names = ("lr", "beta1", "beta2", "eps", "weight_decay")

    def get_opt_args(self) -> Dict[str, Any]:
        """Return the optimizer's entries for a dump's JSON file; ``iters`` is the number of steps."""
        return {**super().get_opt_args(), "iters": self._iterations() if self._iterations is not None else 0}


class AdaGradDynamicEmbeddingOptimizer(BaseDynamicEmbeddingOptimizer):
    """AdaGrad with one sum per element; it has no weight decay."""

    kind = EmbOptimType.EXACT_ADAGRAD
    _made = Adagrad
    _names = ("lr", "eps", "initial_accumulator_value")


class RowWiseAdaGradDynamicEmbeddingOptimizer(AdaGradDynamicEmbeddingOptimizer):
    """AdaGrad with one sum per row; it has no weight decay."""

    kind = EmbOptimType.EXACT_ROWWISE_ADAGRAD
    _made = RowWiseAdagrad


class FTRLDynamicEmbeddingOptimizer(BaseDynamicEmbeddingOptimizer):
    """FTRL-proximal; its states are ``linear`` and then ``accum``."""

    kind = DynamicEmbOptimType.FTRL
    _made = FTRL
    _names = ("lr", "learning_rate_power", "ftrl_beta", "l1_reg", "l2_reg", "initial_accumulator_value")


def create_optimizer(
    optimizer_type: OptimType, args: OptimizerArgs, dtype: torch.dtype
) -> BaseDynamicEmbeddingOptimizer:
    """Create an optimizer by its kind.

    Raises:
        ValueError: Hotbed does not have this kind.
    """
    known = {
        "sgd": SGDDynamicEmbeddingOptimizer,
        "exact_sgd": SGDDynamicEmbeddingOptimizer,
        "adam": AdamDynamicEmbeddingOptimizer,
        "exact_adagrad": AdaGradDynamicEmbeddingOptimizer,
        "exact_row_wise_adagrad": RowWiseAdaGradDynamicEmbeddingOptimizer,
        "ftrl": FTRLDynamicEmbeddingOptimizer,
        "none": BaseDynamicEmbeddingOptimizer,
    }
    value = getattr(optimizer_type, "value", optimizer_type)
    if value not in known:
        raise ValueError(f"optimizer {optimizer_type} is not one of {sorted(known)}")
    return known[value](args, dtype)


def string_to_opt_type(optimizer_str: str) -> OptimType:
    """Return the kind with a name such as ``exact_adagrad``.

    Raises:
        ValueError: no kind has this name.
    """
    ftrl = DynamicEmbOptimType.FTRL
    return ftrl if optimizer_str == ftrl.value else EmbOptimType(optimizer_str)


def truncate_optimizer_states_for_checkpoint(
    optimizer: BaseDynamicEmbeddingOptimizer, emb_dim: int, opt_states: torch.Tensor
) -> torch.Tensor:
    """Return the columns of states ``[n, state dim]`` that are written to a dump."""
    return opt_states[:, : optimizer.get_ckpt_state_dim(emb_dim)].contiguous()


def pad_optimizer_states_from_checkpoint(
    optimizer: BaseDynamicEmbeddingOptimizer,
    emb_dim: int,
    opt_states: torch.Tensor,
    initial_optim_state: float,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Pad states from a dump to ``get_state_dim()`` columns, with the initial value."""
    missing = optimizer.get_state_dim(emb_dim) - opt_states.shape[1]
    states = opt_states.to(device=device, dtype=dtype)
    if missing <= 0:
        return states
    return torch.cat([states, states.new_full((states.shape[0], missing), initial_optim_state)], dim=1)
