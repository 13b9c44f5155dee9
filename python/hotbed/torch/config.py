"""Descriptions of tables and optimizers, with TorchRec's field names.

TorchRec's own ``EmbeddingBagConfig`` and ``EmbeddingConfig`` are accepted too: fields are read by name.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import numbers
from typing import Any, Callable, ClassVar, Iterable, List, Mapping, Optional, TypeVar, Union

import torch

from hotbed._c import ffi, lib
from hotbed.errors import ArgumentError, UnsupportedError, wrong

_Member = TypeVar("_Member", bound=enum.Enum)


class PoolingType(enum.Enum):
    """How the rows of a bag are combined; TorchRec's names."""

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


class Evict(enum.Enum):
    """The reaction of a full hash table to a new key.

    Attributes:
        NEVER: it refuses the key, which is an error unless ``check`` says otherwise.
        LOWEST: it evicts the key with the lowest score.
    """

    NEVER = 0
    LOWEST = 1


class Score(enum.Enum):
    """The score of a key: a full hash table evicts the key with the lowest.

    Attributes:
        STEP: number of the last step that had the key.
        TIMESTAMP: when the key was last seen.
        LFU: how often it was seen.
    """

    STEP = 0
    TIMESTAMP = 1
    LFU = 2


class Rounding(enum.Enum):
    """How an update rounds a row of a type narrower than float32.

    Attributes:
        STOCHASTIC: up or down, so that the expected value is exact and small updates add up.  The random numbers depend
            only on the collection's seed, the table's name, the key, the element and the number of the step, so runs
            are repeatable bit for bit.
        NEAREST: an update below half of an element's last place is lost; ``stats(name)["rounded_away"]`` counts rows
            that an update left as they were.
    """

    STOCHASTIC = 0
    NEAREST = 1


@dataclasses.dataclass
class EmbeddingConfig:
    """One table of an :class:`~hotbed.torch.EmbeddingCollection`.

    Attributes:
        num_embeddings: rows; of a hash table, the number of keys that it holds for certain before it refuses, evicts or
            grows: its size is rounded up.
        embedding_dim: elements of a row, 1 to 4096.
        name: unique in the collection, 1 to 63 characters of ``A-Za-z0-9_.-``.
        data_type: element type of the rows: ``torch.float32``, ``float16`` or ``bfloat16``; or ``torch.int8`` or
            ``float8_e4m3fn``, whose rows have scales and are stored as bytes.
        feature_names: features that read the table.
        weight_init_max: upper bound of the uniform initializer; ``sqrt(1 / num_embeddings)`` unless set.
        weight_init_min: lower bound; ``-sqrt(1 / num_embeddings)`` unless set.
        init_fn: called with the ``[num_embeddings, embedding_dim]`` weight instead of the uniform initializer, and
            again for the rows that a loaded checkpoint does not have; not for hash tables, whose rows are created when
            a key is first trained.  A ``functools.partial`` of
            ``torch.nn.init.uniform_`` with ``a`` and ``b`` alone, for any table, gives the uniform initializer's bounds
            in place of the two fields above.
        use_virtual_table: make it a hash table: any 64-bit key; rows are created when a key is first trained.
        evict: what a full hash table does.
        score: of a hash table's keys.  A table that does not evict has scores too, in state dicts and checkpoints.
        max_embeddings: a hash table grows until it holds that many keys, rounded up; 0: it does not grow.
        rounding: of updates, if ``data_type`` or ``state_type`` is narrower than float32.
        track_changes: record which rows are changed and which keys leave, for ``changes()`` and publishers, in 4 bytes
            per row.  Writes into the memory of :meth:`~hotbed.torch.EmbeddingCollection.weight` are not seen.
        state_type: element type of the optimizer's states: ``torch.float32`` or ``bfloat16``.  States of one number per
            row are float32, and so is the second state of :class:`RowStepsAdam`.
    """

    num_embeddings: int
    embedding_dim: int
    name: str = ""
    data_type: Any = torch.float32
    feature_names: List[str] = dataclasses.field(default_factory=list)
    weight_init_max: Optional[float] = None
    weight_init_min: Optional[float] = None
    init_fn: Optional[Callable[[torch.Tensor], Optional[torch.Tensor]]] = None
    use_virtual_table: bool = False
    evict: Evict = Evict.NEVER
    score: Score = Score.STEP
    max_embeddings: int = 0
    rounding: Rounding = Rounding.STOCHASTIC
    track_changes: bool = False
    state_type: Any = torch.float32


@dataclasses.dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """One table of an :class:`~hotbed.torch.EmbeddingBagCollection`.

    Attributes:
        pooling: SUM or MEAN of the rows of a bag.  The other attributes: see :class:`EmbeddingConfig`.
    """

    pooling: PoolingType = PoolingType.SUM


def plain(value: Any) -> Any:
    """Return a hyper-parameter as a float or a tuple of floats; as it is, if it is no number or numbers."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return value
    try:
        is_sequence = isinstance(value, (list, tuple)) or bool(getattr(value, "shape", ()))
        return tuple(plain(part) for part in value) if is_sequence else float(value)
    except (TypeError, ValueError, OverflowError):
        return value


class Fused:
    """Base of the optimizers.  Their parameters and states are those of the C API's description."""

    #: The name in C.
    c_name: ClassVar[str]
    #: Parameters of C whose attribute here has another name.
    attributes: ClassVar[Mapping[str, str]] = {
        "learning_rate": "lr",
        "initial_accumulator": "initial_accumulator_value",
    }

    def __post_init__(self) -> None:
        """Take lists, and numbers of NumPy and PyTorch, as floats, so that equal optimizers compare equal."""
        for name, value in vars(self).items():
            object.__setattr__(self, name, plain(value))

    def parameter(self, name: str) -> Any:
        """Return the value of a parameter of C, or None for C's default."""
        if name in ("beta1", "beta2") and hasattr(self, "betas"):
            first, second = self.betas
            return first if name == "beta1" else second
        return getattr(self, self.attributes.get(name, name), None)


def _init(name: str) -> float:
    """Return C's default of a parameter: the float32 with the fewest digits."""
    options = ffi.new("hotbed_optimizer *")
    lib.hotbed_optimizer_init(options)
    return float(f"{getattr(options, name):.7g}")


_BETAS = (_init("beta1"), _init("beta2"))


@dataclasses.dataclass(frozen=True)
class SGD(Fused):
    """``w -= lr * (g + weight_decay * w)``.

    ``include/hotbed/types.h`` has the formulas of all optimizers.  Defaults are C's, but ``lr`` is PyTorch's, where it
    has the optimizer.

    Attributes:
        lr: the learning rate.
        weight_decay: in all optimizers here it is decoupled: it is applied to the row, not added to the gradient.
        max_gradient: each element of the gradient that a backward receives is clamped to ``[-max_gradient,
            max_gradient]`` before any sum, on several ranks after it is scaled (``ShardedOptions.gradient_scale``);
            0: it is not clamped.
        l2_decay: ``l2_decay * w`` is added to the summed gradient, as by PyTorch's ``weight_decay``, except AdamW's.
    """

    c_name = "sgd"
    lr: float = 0.01
    weight_decay: float = 0.0
    max_gradient: float = 0.0
    l2_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Momentum(Fused):
    """``m = momentum * m + g;  w -= lr * m``: PyTorch's ``SGD`` with a momentum."""

    c_name = "momentum"
    lr: float = 0.01
    momentum: float = _init("momentum")
    weight_decay: float = 0.0
    max_gradient: float = 0.0
    l2_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Nesterov(Momentum):
    """``m = momentum * m + g;  w -= lr * (g + momentum * m)``: PyTorch's ``SGD`` with ``nesterov=True``."""

    c_name = "nesterov"


@dataclasses.dataclass(frozen=True)
class Adam(Fused):
    """Adam with decoupled weight decay, PyTorch's ``AdamW``, on the rows that a step touches."""

    c_name = "adam"
    lr: float = 0.001
    betas: tuple[float, float] = _BETAS
    eps: float = _init("eps")
    weight_decay: float = 0.0
    max_gradient: float = 0.0
    l2_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class RowStepsAdam(Adam):
    """Like :class:`Adam`, with bias correction by the row's own number of steps, the last of ``exp_avg_sq_steps``.

    A row that is first used after many steps begins as a row of the first step does.
    """

    c_name = "row_steps_adam"


@dataclasses.dataclass(frozen=True)
class RowWiseAdam(Adam):
    """Like :class:`PartialRowWiseAdam`, with one first moment per row, too: all elements of a row take one step."""

    c_name = "rowwise_adam"


@dataclasses.dataclass(frozen=True)
class PartialRowWiseAdam(Adam):
    """Like :class:`Adam`, with one second moment per row, the mean of the elements'."""

    c_name = "partial_rowwise_adam"


@dataclasses.dataclass(frozen=True)
class LAMB(Adam):
    """Like :class:`Adam`, with a learning rate per row: ``lr * norm of the row / norm of Adam's step``."""

    c_name = "lamb"


@dataclasses.dataclass(frozen=True)
class LARS(Fused):
    """:class:`Momentum` with a learning rate per row that follows the norms of the row and of its gradient.

    Attributes:
        trust: the factor of the ratio of norms.  The other attributes: see :class:`SGD`.
    """

    c_name = "lars"
    lr: float = 1.0
    momentum: float = _init("momentum")
    trust: float = _init("trust")
    eps: float = _init("eps")
    weight_decay: float = 0.0
    max_gradient: float = 0.0
    l2_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Lion(Fused):
    """``w -= lr * sign(b1 * m + (1 - b1) * g);  m = b2 * m + (1 - b2) * g``."""

    c_name = "lion"
    lr: float = 0.0001
    betas: tuple[float, float] = _BETAS
    weight_decay: float = 0.0
    max_gradient: float = 0.0
    l2_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Adagrad(Fused):
    """``G += g * g;  w -= lr * g / (sqrt(G) + eps)``, one ``G`` per element."""

    c_name = "adagrad"
    lr: float = 0.01
    eps: float = _init("eps")
    initial_accumulator_value: float = 0.0
    weight_decay: float = 0.0
    max_gradient: float = 0.0
    l2_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class RowWiseAdagrad(Adagrad):
    """Like :class:`Adagrad`, with one ``G`` per row, to which each step adds the mean of ``g * g`` over the row."""

    c_name = "rowwise_adagrad"


@dataclasses.dataclass(frozen=True)
class RMSprop(Fused):
    """``v = rho * v + (1 - rho) * g * g;  w -= lr * g / (sqrt(v) + eps)``; PyTorch calls rho alpha."""

    c_name = "rmsprop"
    lr: float = 0.01
    rho: float = _init("rho")
    eps: float = _init("eps")
    weight_decay: float = 0.0
    max_gradient: float = 0.0
    l2_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Adadelta(RMSprop):
    """Steps of the size of earlier ones: PyTorch's ``Adadelta``."""

    c_name = "adadelta"
    lr: float = 1.0


@dataclasses.dataclass(frozen=True)
class FTRL(Fused):
    """FTRL-proximal, with dynamicemb's names.  It has no decoupled weight decay.

    Attributes:
        lr: the learning rate, always above 0.
        learning_rate_power: the power of the sum of squares, negated: at most 0; -0.5 is the fastest.
        ftrl_beta: smooths the learning rate of elements with small gradients.
        l1_reg: elements whose ``linear`` is within ``[-l1_reg, l1_reg]`` are 0.
        l2_reg: TensorFlow's is half of it.
        initial_accumulator_value: first value of the sum of squares.
        max_gradient: see :class:`SGD`, like the next one.
        l2_decay: added to the gradient; not ``l2_reg``.
    """

    c_name = "ftrl"
    lr: float = 0.01
    learning_rate_power: float = _init("learning_rate_power")
    ftrl_beta: float = 0.0
    l1_reg: float = 0.0
    l2_reg: float = 0.0
    initial_accumulator_value: float = 0.0
    max_gradient: float = 0.0
    l2_decay: float = 0.0


Optimizer = Union[
    SGD,
    Momentum,
    Nesterov,
    Adam,
    RowStepsAdam,
    RowWiseAdam,
    PartialRowWiseAdam,
    LAMB,
    LARS,
    Lion,
    Adagrad,
    RowWiseAdagrad,
    RMSprop,
    Adadelta,
    FTRL,
]

#: Argument of a collection: one optimizer for all tables, or one for each table by its name; None: rows are only read.
Optimizers = Union[Optimizer, Mapping[str, Optimizer], None]


def listed(tables: Any) -> List[Any]:
    """Return the configs of a collection; they may come from a generator, once.

    Raises:
        ArgumentError: one config, or no configs.
    """
    if not isinstance(tables, Iterable):
        raise wrong("tables", tables, "is not a list of configs")
    return list(tables)


def by_table(given: Optimizers, names: List[str]) -> List[Optional[Optimizer]]:
    """Return the optimizer of each table.

    Raises:
        ArgumentError: a dict lacks a table, or has a name or a None that no table can have.
    """
    if not isinstance(given, Mapping):
        return [given] * len(names)
    missing = [name for name in names if given.get(name) is None]
    more = [name for name in given if name not in names]
    if missing or more:
        raise ArgumentError(
            f"optimizer: a dict has an optimizer for each of the tables {names}; it has none for {missing}, and "
            f"{more} are no tables",
            parameter="optimizer",
        )
    return [given[name] for name in names]


class Plan(enum.Enum):
    """How keys and rows travel between ranks; all plans give the same bytes."""

    FIXED = 0  #: messages hold up to ``capacity`` keys: no host wait
    TWO_PHASE = 1  #: sizes first, then exact messages: one host wait per batch
    ONE_SIDED = 2  #: as FIXED, but ranks write into each other's memory: NCCL within one NVLink domain, or threads
    AUTO = 3  #: ONE_SIDED where it works between all ranks, otherwise FIXED


class Overflow(enum.Enum):
    """What happens to a batch with more keys for one rank than fit into a message."""

    REPLAY = 0  #: all ranks send it again by TWO_PHASE
    REPORT = 1  #: it reads as zeros on all ranks, and ``overflowed()`` says so


class Dedup(enum.Enum):
    """Whether each rank of an EmbeddingCollection sends each distinct key of a table only once."""

    AUTO = 0  #: as ON
    ON = 1
    OFF = 2


class Route(enum.Enum):
    """Which rank stores a key."""

    HASH_ROUND_ROBIN = 0  #: by the key's hash: hash tables, unless ``routes`` says otherwise
    #: the key modulo the number of ranks: static tables whose small keys are the frequent ones
    ROUND_ROBIN = 1
    CONTINUOUS = 2  #: the first ranks have the smallest keys: static tables, unless ``routes`` says otherwise


class PooledExchange(enum.Enum):
    """What ranks of an EmbeddingBagCollection send each other for a table."""

    AUTO = 0  #: ROWS if fewer bytes are expected to travel than by SUMS; with Plan.FIXED SUMS
    #: each distinct row once; bags are pooled where the batch is, so outputs have the bytes of one process
    ROWS = 1
    SUMS = 2  #: each owner's sum of a bag, as TorchRec does; the last bits of outputs depend on the number of ranks


def _check_member(what: str, given: Any, kind: type[enum.Enum]) -> None:
    if not isinstance(given, kind):
        names = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ArgumentError(f"{what} {given!r} is not one of {names}", parameter=what, value=given)


def travel_dtype(precision: Any) -> Optional[torch.dtype]:
    """Return PyTorch's type of a precision of the exchange; None if nothing travels in it."""
    kind = getattr(precision, "name", precision)
    if kind == "FP8":  # a CommType's name; a DataType's is NFP8
        return torch.float8_e4m3fn
    return _DTYPES.get(kind) if isinstance(kind, (str, torch.dtype)) else None


@dataclasses.dataclass(frozen=True)
class ShardedOptions:
    """How a collection of several ranks exchanges keys and rows; all ranks pass equal options.

    The fields have the names of ``hotbed_sharded_options``, which ``include/hotbed/sharded.h`` explains.

    Attributes:
        max_batch_size: samples of a rank's largest batch; 0: follows the batches.
        max_keys: keys of a rank's largest batch, over all features of the tables; 0: follows the batches.
        plan: AUTO, FIXED, TWO_PHASE or ONE_SIDED.
        overflow: what happens to a batch that does not fit into the messages of FIXED or ONE_SIDED.
        dedup: for an EmbeddingCollection; bags always send every key.
        gradient_scale: the gradients of the ranks are averaged, as ``DistributedDataParallel`` averages dense ones, and
            multiplied by this factor.  For a sum over the ranks pass their number.
        capacity: keys that a message holds; 0: follows the batches or, with ``Overflow.REPORT``, 64 more than 1.25
            times a rank's share of ``max_keys``.
        growth_every: number of prefetches between two checks whether tables should grow; 0: 16.
        routes: routing rules by table name, for tables that do not use the default rule.
        exchanges: for an EmbeddingBagCollection: what ranks send each other, for all tables or by table name.
        pooling_factors: keys of a bag, on average, by feature name, for ``PooledExchange.AUTO``: TorchRec's planner has
            the same number in its constraints.  For other features: what follows from ``max_keys`` and
            ``max_batch_size``, or 1.
        forward_precision: dtype of the rows or sums that ranks send each other: ``torch.float32``, ``float16``,
            ``bfloat16``, ``float8_e4m3fn`` or ``int8``, or the field of TorchRec's ``QCommsConfig`` with that name, a
            ``CommType``.  None: ``output_dtype``, float32 for sums, and the type of their table for rows of bags.
        backward_precision: likewise, of the gradients that travel back.  None: ``output_dtype``, or float32 if they
            are scaled, clamped or divided.

    A size that follows the batches is measured in the first one, on all ranks, with a quarter to spare.  All ranks see
    a batch that does not fit, measure again and send it again.  Give all three for CUDA graphs.
    """

    max_batch_size: int = 0
    max_keys: int = 0
    plan: Plan = Plan.AUTO
    overflow: Overflow = Overflow.REPLAY
    dedup: Dedup = Dedup.AUTO
    gradient_scale: float = 1.0
    capacity: int = 0
    growth_every: int = 0
    routes: Mapping[str, Route] = dataclasses.field(default_factory=dict)
    exchanges: Union[PooledExchange, Mapping[str, PooledExchange]] = PooledExchange.AUTO
    pooling_factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    forward_precision: Any = None
    backward_precision: Any = None

    def __post_init__(self) -> None:
        """Check the types of the fields; the library checks the values.

        Raises:
            ArgumentError: a field has another type.
        """
        for field, kind in (("plan", Plan), ("overflow", Overflow), ("dedup", Dedup)):
            _check_member(f"ShardedOptions: {field}", getattr(self, field), kind)
        for field in ("max_batch_size", "max_keys", "capacity", "growth_every"):
            given = getattr(self, field)
            if not isinstance(given, numbers.Integral) or not 0 <= given < 2**32:  # type: ignore[operator]
                raise wrong(field, given, f"is not an integer in [0, {2**32})", where="ShardedOptions: ")
        if self.overflow is Overflow.REPORT and 0 in (self.max_batch_size, self.max_keys):
            raise ArgumentError(
                f"ShardedOptions: max_batch_size {self.max_batch_size} and max_keys {self.max_keys} cannot follow the "
                "batches with Overflow.REPORT, which never sends a batch again; give both",
                parameter="max_batch_size" if self.max_batch_size == 0 else "max_keys",
                value=0,
            )
        if not isinstance(self.gradient_scale, numbers.Real) or not math.isfinite(self.gradient_scale):
            raise wrong("gradient_scale", self.gradient_scale, "is not a finite number", where="ShardedOptions: ")
        for field in ("forward_precision", "backward_precision"):
            given = getattr(self, field)
            if given is not None and travel_dtype(given) is None:
                raise wrong(
                    field, given, "is not float32, float16, bfloat16, float8_e4m3fn or int8", where="ShardedOptions: "
                )
        if not isinstance(self.routes, Mapping):
            raise wrong("routes", self.routes, "is not a dict of table names and Routes", where="ShardedOptions: ")
        for table, route in self.routes.items():
            _check_member(f"ShardedOptions: route of table {table!r}", route, Route)
        if isinstance(self.exchanges, Mapping):
            for table, exchange in self.exchanges.items():
                _check_member(f"ShardedOptions: exchange of table {table!r}", exchange, PooledExchange)
        else:
            _check_member("ShardedOptions: exchanges", self.exchanges, PooledExchange)
        if not isinstance(self.pooling_factors, Mapping):
            raise ArgumentError(
                f"ShardedOptions: pooling_factors {self.pooling_factors!r} is not a dict of feature names and numbers",
                parameter="pooling_factors",
                value=self.pooling_factors,
            )
        for feature, factor in self.pooling_factors.items():
            if not isinstance(factor, numbers.Real) or not 0 <= factor < math.inf:
                raise ArgumentError(
                    f"ShardedOptions: pooling factor {factor!r} of feature {feature!r} is not a finite number of at "
                    "least 0",
                    parameter="pooling_factors",
                    feature=feature,
                    value=factor,
                )


@dataclasses.dataclass(frozen=True)
class Table:
    """A checked config, as the modules use it."""

    config: Any
    name: str
    rows: int
    dim: int
    dtype: torch.dtype
    features: List[str]
    pooling: PoolingType
    is_hash: bool
    lower: float = 0.0
    upper: float = 0.0
    init_fn: Optional[Callable[[torch.Tensor], Optional[torch.Tensor]]] = None
    evict: Evict = Evict.NEVER
    score: Score = Score.STEP
    most_rows: int = 0
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further fields of hotbed_table_options


#: The row types, by their names in C: PyTorch's type and TorchRec's name.  The rest of a type is C's description.
ROW_TYPES = {
    "f32": (torch.float32, "FP32"),
    "f16": (torch.float16, "FP16"),
    "bf16": (torch.bfloat16, "BF16"),
    "int8": (torch.int8, "INT8"),
    "fp8": (torch.float8_e4m3fn, "NFP8"),
}
_DTYPES = {key: dtype for dtype, name in ROW_TYPES.values() for key in (dtype, name)}
_STATE_TYPES = {torch.float32: lib.HOTBED_F32, torch.bfloat16: lib.HOTBED_BF16}


def _is_uniform(init_fn: Any) -> bool:
    """Whether it is a partial of ``uniform_`` with bounds only, as TorchRec sets it by default."""
    return (
        isinstance(init_fn, functools.partial)
        and init_fn.func is torch.nn.init.uniform_
        and not init_fn.args
        and init_fn.keywords.keys() <= {"a", "b"}
    )


def _whole(name: str, config: Any, field: str, default: Any = None) -> int:
    value = getattr(config, field, default)
    if not isinstance(value, numbers.Integral):
        raise wrong(field, value, "is not an integer", table=name)
    if not -(2**63) <= value < 2**63:  # type: ignore[operator]
        raise wrong(field, value, "does not fit into int64", table=name)
    return int(value)


def _bound(name: str, config: Any, field: str, default: float) -> float:
    value = getattr(config, field)
    try:
        return default if value is None else float(value)
    except (TypeError, ValueError):
        raise wrong(field, value, "is not a number", table=name) from None


def _member(name: str, config: Any, field: str, default: _Member) -> _Member:
    """Return a field of a config as a member of ``default``'s enumeration.

    TorchRec's enumeration of the same name is accepted: its values are the same.
    """
    given, kind = getattr(config, field, default), type(default)
    if isinstance(given, enum.Enum) and (isinstance(given, kind) or type(given).__name__ == kind.__name__):
        return kind(given.value)
    raise wrong(field, given, f"is not one of {', '.join(f'{kind.__name__}.{m.name}' for m in kind)}", table=name)


def _state_type(name: str, config: Any) -> int:
    """Return ``hotbed_table_options.state_dtype``."""
    given = getattr(config, "state_type", torch.float32)
    kind = getattr(given, "name", given)
    dtype = _DTYPES.get(kind) if isinstance(kind, (str, torch.dtype)) else None
    if dtype not in _STATE_TYPES:
        raise wrong("state_type", given, "is not torch.float32 or torch.bfloat16", table=name)
    return int(_STATE_TYPES[dtype])


def _check_growth(name: str, config: Any, is_hash: bool, rows: int, most: int) -> None:
    """Check fields that only hash tables have.

    Raises:
        ArgumentError: a static table has one; ``max_embeddings`` cannot be.
    """
    for field, default in (("evict", Evict.NEVER), ("score", Score.STEP), ("max_embeddings", 0)):
        given = getattr(config, field, default)
        if not is_hash and given != default:
            raise wrong(field, given, "is for hash tables: set use_virtual_table=True", table=name)
    if most != 0 and most < rows:
        raise wrong("max_embeddings", most, f"is below num_embeddings {rows}; 0: no growth", rows, table=name)


def read(config: Any, pooled: bool) -> Table:
    """Read a config of this package or of TorchRec.

    Raises:
        ArgumentError: a field has a value that no table can have.
        UnsupportedError: a field of TorchRec that Hotbed does not have.
    """
    wanted = "EmbeddingBagConfig" if pooled else "EmbeddingConfig"
    fields = ["name", "num_embeddings", "embedding_dim", "feature_names", "data_type", "init_fn"]
    missing = [f for f in [*fields, *(["pooling"] if pooled else [])] if not hasattr(config, f)]
    if missing:
        raise ArgumentError(f"{config!r:.80} is no {wanted}: it has no {', '.join(missing)}", missing[0], config)
    name = config.name
    if not isinstance(name, str) or "\0" in name:
        raise ArgumentError(f"name {name!r} is not a string without null characters", parameter="name", value=name)
    rows, dim = (_whole(name, config, field) for field in ("num_embeddings", "embedding_dim"))
    if rows < 1 or not 1 <= dim <= 4096:
        raise ArgumentError(
            f"table {name!r}: {rows} rows of {dim} elements; rows are at least 1, elements 1 to 4096",
            table=name,
            parameter="num_embeddings" if rows < 1 else "embedding_dim",
            value=rows if rows < 1 else dim,
        )
    features = config.feature_names
    if not features or isinstance(features, str) or not all(isinstance(feature, str) for feature in features):
        raise wrong("feature_names", features, "is not a list of names", table=name)
    if len(set(features)) < len(features):
        raise wrong("feature_names", list(features), "has a name twice", table=name)
    kind = getattr(config.data_type, "name", config.data_type)
    dtype = _DTYPES.get(kind) if isinstance(kind, (str, torch.dtype)) else None
    if dtype is None:
        raise wrong(
            "data_type",
            config.data_type,
            f"is not one of {', '.join((str(dtype) for dtype, _ in ROW_TYPES.values()))}",
            table=name,
        )
    pooling = _member(name, config, "pooling", PoolingType.SUM) if pooled else PoolingType.NONE
    if pooled and pooling is PoolingType.NONE:
        raise ArgumentError(f"table {name!r}: pooling NONE is for an EmbeddingCollection", "pooling", table=name)
    ignored = None if pooled else getattr(config, "pooling", None)
    if ignored is not None and getattr(ignored, "name", ignored) != "NONE":
        raise ArgumentError(
            f"table {name!r}: pooling {getattr(ignored, 'name', ignored)} is for an EmbeddingBagCollection; an "
            "EmbeddingCollection gives a row for each key, so pass an EmbeddingConfig, and pool its rows by pooled()",
            parameter="pooling",
            value=ignored,
            table=name,
        )
    for field, instead in (("virtual_table_eviction_policy", "; set evict and score"), ("need_pos", "")):
        if getattr(config, field, None):
            raise UnsupportedError(f"table {name!r}: {field} is not supported{instead}", table=name, parameter=field)
    is_hash = bool(getattr(config, "use_virtual_table", False))
    most = _whole(name, config, "max_embeddings", 0)
    _check_growth(name, config, is_hash, rows, most)
    init_fn = config.init_fn
    bound = math.sqrt(1 / rows)
    upper = _bound(name, config, "weight_init_max", bound)
    lower = _bound(name, config, "weight_init_min", -bound)
    if not callable(init_fn) and init_fn is not None:
        raise wrong("init_fn", init_fn, "is not a function", table=name)
    if _is_uniform(init_fn):
        lower, upper, init_fn = float(init_fn.keywords.get("a", 0)), float(init_fn.keywords.get("b", 1)), None
        if not lower <= upper:
            raise wrong("init_fn", config.init_fn, f"has a={lower}, which is not at most b={upper}", upper, table=name)
    if init_fn is None and not lower <= upper:
        raise wrong("weight_init_min", lower, f"is not at most weight_init_max {upper}", upper, table=name)
    if is_hash and init_fn is not None:
        raise ArgumentError(
            f"table {name!r}: init_fn is for tables whose rows exist; a hash table makes rows from weight_init_min and "
            "weight_init_max, or from a partial of uniform_ with a and b alone",
            table=name,
            parameter="init_fn",
        )
    return Table(
        config,
        name,
        rows,
        dim,
        dtype,
        list(features),
        pooling,
        is_hash,
        lower,
        upper,
        init_fn,
        _member(name, config, "evict", Evict.NEVER),
        _member(name, config, "score", Score.STEP),
        most,
        {
            "rounding": _member(name, config, "rounding", Rounding.STOCHASTIC).value,
            "track_changes": bool(getattr(config, "track_changes", False)),
            "state_dtype": _state_type(name, config),
        },
    )
