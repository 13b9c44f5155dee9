"""The module: a batched lookup in several tables, with the optimizer in its backward."""

from __future__ import annotations

import copy
import dataclasses
import glob
import os
import warnings
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

import numpy
import torch
import torch.distributed as dist

from hotbed import backends
from hotbed._c import check, ffi, lib
from hotbed.compat.dynamicemb._dumps import read_meta, refuse_duplicates
from hotbed.compat.dynamicemb._external import Bridge
from hotbed.compat.dynamicemb._tables import POOLING, Tables, describe, integers
from hotbed.compat.dynamicemb.dynamicemb_config import (
    DynamicEmbEvictStrategy,
    DynamicEmbPoolingMode,
    DynamicEmbScoreStrategy,
    DynamicEmbTableOptions,
    EvictedItemMode,
    ReplayContent,
    get_eviction_score_strategy,
    score_strategy_has_timestamp_column,
    warning_for_cstm_score,
)
from hotbed.compat.dynamicemb.embedding_admission import MultiTableKVCounter
from hotbed.compat.dynamicemb.key_value_table import DynamicEmbCache, DynamicEmbStorage, HybridStorage
from hotbed.compat.dynamicemb.optimizer import (
    BaseDynamicEmbeddingOptimizer,
    EmbOptimType,
    OptimizerArgs,
    OptimType,
    create_optimizer,
)
from hotbed.compat.dynamicemb.types import DeltaDumpResult, ReplayStats
from hotbed.compat.dynamicemb.utils import DTYPE_NUM_BYTES, ranks_of_keys
from hotbed.errors import ArgumentError, StateError, UnsupportedError, wrong
from hotbed.torch._freezable import Freezable
from hotbed.torch._ops import rows_of
from hotbed.torch._storage import Batch, stack_level
from hotbed.torch.sparse import check_shape

_ITEMS = ("keys", "values", "scores", "opt_values")
_EVICT = {
    DynamicEmbScoreStrategy.TIMESTAMP: DynamicEmbEvictStrategy.LRU,
    DynamicEmbScoreStrategy.LFU: DynamicEmbEvictStrategy.LFU,
}
#: Least rows of a cache over an external storage, where each distinct key of a batch needs one.
_LEAST_OVER_STORAGE = 1024


def encode_meta_json_file_path(root_path: str, table_name: str) -> str:
    """Return the path of a dump's JSON file."""
    return os.path.join(root_path, f"{table_name}_opt_args.json")


def encode_checkpoint_file_path(root_path: str, table_name: str, rank: int, world_size: int, item: str) -> str:
    """Return the path of a dump's file of a rank; ``item`` is keys, values, scores or opt_values."""
    if item not in _ITEMS:
        raise ValueError(f"item {item!r} is not one of {_ITEMS}")
    return os.path.join(root_path, f"{table_name}_emb_{item}.rank_{rank}.world_size_{world_size}")


def encode_counter_checkpoint_file_path(root_path: str, table_name: str, rank: int, world_size: int, item: str) -> str:
    """Return the path of a dump's file of admission counts; ``item`` is keys or frequencies."""
    if item not in ("keys", "frequencies"):
        raise ValueError(f"item {item!r} is not keys or frequencies")
    return os.path.join(root_path, f"{table_name}_counter_{item}.rank_{rank}.world_size_{world_size}")


def _ranks_of(root_path: str, table_name: str) -> int:
    """Return the number of ranks that wrote a dump; 0 where there is none.

    Raises:
        RuntimeError: a file is missing, or files of several world sizes exist.
    """
    files = glob.glob(glob.escape(os.path.join(root_path, f"{table_name}_emb_keys.rank_")) + "*")
    if not files:
        return 0
    worlds = {int(f.rsplit("_", 1)[1]) for f in files}
    world = max(worlds)
    expected = {encode_checkpoint_file_path(root_path, table_name, r, world, "keys") for r in range(world)}
    if len(worlds) > 1 or set(files) != expected:
        raise RuntimeError(
            f"{root_path}: table {table_name!r} has key files {sorted(map(os.path.basename, files))}, not one of "
            "each rank of one dump"
        )
    return world


def _older_states(root_path: str, table_name: str, rank: int, world: int) -> str:
    """Return the path of a rank's states in an older dump."""
    return os.path.join(root_path, f"{table_name}_opt_values.rank_{rank}.world_size_{world}")


def _files(root_path: str, table_name: str, rank: int, world: int) -> List[Optional[str]]:
    """Return the paths of a rank's keys, rows, scores and states.  Older dumps name the states ``<table>_opt_values``.

    Raises:
        ValueError: there are states of both names.
    """
    paths: List[Optional[str]] = [
        encode_checkpoint_file_path(root_path, table_name, rank, world, item) for item in _ITEMS
    ]
    older = _older_states(root_path, table_name, rank, world)
    if os.path.exists(older):
        if os.path.exists(str(paths[3])):
            raise ValueError(f"{older} and {paths[3]} are both states of table {table_name!r}")
        paths[3] = older
    return paths


def _check_optional(root_path: str, table_name: str, world: int, optim: bool, counter: bool) -> None:
    """Check that what ranks with keys need not have written is there for all of them or for none.

    Raises:
        ValueError: an optional file exists for some ranks only.
    """
    paths = [_files(root_path, table_name, rank, world) for rank in range(world)]
    full = [rank for rank in range(world) if os.path.getsize(str(paths[rank][0])) > 0]
    kinds = {"scores": [str(paths[rank][2]) for rank in full]}
    if optim:
        kinds["states"] = [str(paths[rank][3]) for rank in full]
    if counter:
        kinds["counts"] = [
            encode_counter_checkpoint_file_path(root_path, table_name, rank, world, "keys") for rank in range(world)
        ]
    for what, files in kinds.items():
        absent = [file for file in files if not os.path.exists(file)]
        if 0 < len(absent) < len(files):
            raise ValueError(f"{absent[0]} does not exist: {what} exist for some ranks only")


def _device(device: Optional[Union[str, int, torch.device]], options: DynamicEmbTableOptions) -> torch.device:
    if device is not None:
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if "cuda" not in backends() or (device is not None and device.type == "cpu"):
        return torch.device("cpu")
    if device is not None and device.index is not None:
        return device
    number = torch.cuda.current_device() if options.device_id is None else options.device_id
    return torch.device("cuda", number)


def warn_of_rows(names: Sequence[str]) -> None:
    """Warn that a state dict does not have the rows of hash tables."""
    warnings.warn(
        f"the state dict has no rows of the hash tables {list(names)}; save and load them with DynamicEmbDump() and "
        "DynamicEmbLoad()",
        stacklevel=stack_level(),
    )


class BatchedDynamicEmbeddingTablesV2(Freezable):
    """Hash tables of 64-bit keys that are looked up together; rows are created when a key is first trained.

    Args:
        table_options: options of each table; :meth:`.DynamicEmbTableOptions.get_grouped_key` must be equal for all.
        table_names: name of each table; None: ``t0``, ``t1``, ...
        feature_table_map: table of each feature, ascending; None: one feature per table.
        use_index_dedup: without effect: Hotbed always looks each distinct key up once.
        prefetch_pipeline: without effect: ``prefetch()`` may always be called.
        pooling_mode: pooling of all tables.  With NONE all tables must have the same dim.
        output_dtype: dtype of outputs and gradients.
        device: device of the tables; None: the options' device_id or the current GPU, or the CPU if the library was
            built without CUDA.
        enforce_hbm: without effect.
        bounds_check_mode: without effect: every key is valid.
        optimizer: SGD, EXACT_SGD, ADAM, EXACT_ADAGRAD, EXACT_ROWWISE_ADAGRAD or ``DynamicEmbOptimType.FTRL``.
        stochastic_rounding: how updates round rows narrower than float32; False: to nearest.
        gradient_clipping: clamp each element of the incoming gradient to ``max_gradient``.
        max_gradient: see ``gradient_clipping``.
        max_norm: without effect.
        learning_rate: see :meth:`set_learning_rate`.
        eps: of ADAM and the AdaGrads.
        initial_accumulator_value: first state of the AdaGrads, and of FTRL's sum of squares.
        momentum: without effect.
        weight_decay: of ADAM, decoupled.
        weight_decay_mode: without effect.
        eta: without effect.
        beta1: of ADAM.
        beta2: of ADAM.
        args: ignored, for FBGEMM's callers.
        learning_rate_power: of FTRL, like the next three; see :class:`hotbed.torch.FTRL`.
        ftrl_beta: smooths the learning rate.
        l1_reg: L1 regularisation.
        l2_reg: L2 regularisation.
        kwargs: likewise.

    Raises:
        ArgumentError: options are invalid or contradict each other; the text has the value.
        UnsupportedError: Hotbed does not have an option.
    """

    def __init__(
        self,
        table_options: List[DynamicEmbTableOptions],
        table_names: Optional[List[str]] = None,
        feature_table_map: Optional[List[int]] = None,
        use_index_dedup: bool = False,
        prefetch_pipeline: bool = False,
        pooling_mode: DynamicEmbPoolingMode = DynamicEmbPoolingMode.SUM,
        output_dtype: torch.dtype = torch.float32,
        device: Optional[Union[str, int, torch.device]] = None,
        enforce_hbm: bool = False,
        bounds_check_mode: Any = None,
        optimizer: OptimType = EmbOptimType.SGD,
        stochastic_rounding: bool = True,
        gradient_clipping: bool = False,
        max_gradient: float = 1.0,
        max_norm: float = 0.0,
        learning_rate: float = 0.01,
        eps: float = 1.0e-8,
        initial_accumulator_value: float = 0.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        weight_decay_mode: Any = None,
        eta: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        *args: Any,
        learning_rate_power: float = -0.5,
        ftrl_beta: float = 0.0,
        l1_reg: float = 0.0,
        l2_reg: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if not table_options or any(o != table_options[0] for o in table_options):
            raise ArgumentError(
                "table_options: a module has at least one table, and all have the same training, caching, "
                "external_storage, index_type, dist_type, score_strategy and admit_strategy"
            )
        self._dynamicemb_options = [self._completed(option) for option in table_options]
        first = self._dynamicemb_options[0]
        self._table_names = [f"t{i}" for i in range(len(table_options))] if table_names is None else list(table_names)
        if len(self._table_names) != len(table_options):
            raise ArgumentError(
                f"{len(table_options)} tables have {len(self._table_names)} names",
                parameter="table_names",
                value=len(self._table_names),
                limit=len(table_options),
            )
        features = list(range(len(table_options))) if feature_table_map is None else list(feature_table_map)
        if features != sorted(features) or set(features) != set(range(len(table_options))):
            raise wrong("feature_table_map", features, f"does not name each of {len(table_options)} tables in order")
        self.feature_table_map = features
        self.feature_num = len(features)
        self.dims = [int(o.dim or 0) for o in table_options]
        if pooling_mode == DynamicEmbPoolingMode.NONE and len(set(self.dims)) > 1:
            raise ArgumentError(
                f"dims {self.dims}: without pooling all tables of a module have one dim", "dims", self.dims
            )
        self.total_D = sum(self.dims[t] for t in features)
        self.max_D = max(self.dims)
        self.pooling_mode = pooling_mode
        self.output_dtype = output_dtype
        self.use_index_dedup = use_index_dedup
        self.enable_prefetch = prefetch_pipeline
        self.index_type = first.index_type or torch.int64
        self.embedding_dtype = first.embedding_dtype or torch.float32
        for name, option in zip(self._table_names, table_options):
            if option.embedding_dtype is not None and option.embedding_dtype not in DTYPE_NUM_BYTES:
                raise wrong(
                    "embedding_dtype", option.embedding_dtype, f"is not one of {list(DTYPE_NUM_BYTES)}", table=name
                )
        self.device = _device(device, first)
        self._stochastic_rounding = stochastic_rounding
        self._optimizer_type = optimizer if first.training else EmbOptimType.NONE
        self._optimizer = create_optimizer(
            self._optimizer_type,
            OptimizerArgs(
                stochastic_rounding=stochastic_rounding,
                gradient_clipping=gradient_clipping,
                max_gradient=max_gradient,
                max_norm=max_norm,
                learning_rate=learning_rate,
                eps=eps,
                initial_accumulator_value=initial_accumulator_value,
                beta1=beta1,
                beta2=beta2,
                weight_decay=weight_decay,
                learning_rate_power=learning_rate_power,
                ftrl_beta=ftrl_beta,
                l1_reg=l1_reg,
                l2_reg=l2_reg,
                eta=eta,
                momentum=momentum,
            ),
            self.embedding_dtype,
        )
        self._scores: Dict[str, int] = {}
        self._cache: Optional[DynamicEmbCache] = None
        self._external: Optional[Any] = None
        self._create()
        self._admission_counter = self._make_counter()
        self._empty_tensor = torch.zeros(0, device=self.device, requires_grad=True)

    @staticmethod
    def _completed(option: DynamicEmbTableOptions) -> DynamicEmbTableOptions:
        """Return a copy with the options that follow from others; several tables may share the caller's object."""
        assert option.score_strategy is not None
        strategy = get_eviction_score_strategy(option.score_strategy)
        return dataclasses.replace(
            option,
            init_capacity=option.max_capacity if option.init_capacity is None else option.init_capacity,
            evict_strategy=_EVICT.get(strategy, DynamicEmbEvictStrategy.CUSTOMIZED),
        )

    def _make_counter(self) -> Optional[MultiTableKVCounter]:
        counted = any(o.get_counter() is not None for o in self._dynamicemb_options)
        return MultiTableKVCounter(self._hotbed) if counted else None

    def _create(self) -> None:
        """Create the tables, in the mode that dynamicemb's rules choose."""
        options, first = self._dynamicemb_options, self._dynamicemb_options[0]
        widths = [d + self._optimizer.get_state_dim(d) for d in self.dims]
        element = DTYPE_NUM_BYTES[self.embedding_dtype]
        wanted = sum(int(o.max_capacity or 0) * element * w for o, w in zip(options, widths))
        budget = sum(o.local_hbm_for_values for o in options)
        caching = any(o.caching for o in options)
        external = first.external_storage
        mode: Dict[str, Any] = {"mode": lib.HOTBED_MODE_HBM_DIRECT}
        upper = [0] * len(options)
        if wanted > budget:
            if caching and budget <= 0:
                raise ArgumentError(
                    f"caching: rows take {wanted} bytes, and local_hbm_for_values is {budget}",
                    parameter="local_hbm_for_values",
                    value=budget,
                    limit=wanted,
                )
            over = external is not None and (caching or budget <= 0)
            share = budget / wanted
            most = [int(o.max_capacity or 0) for o in options]
            upper = [min(m, max(16, int(m * share))) for m in most]
            if over:
                upper = [max(u, _LEAST_OVER_STORAGE) for u in upper]
            mode["mode"] = lib.HOTBED_MODE_CACHE if caching or over else lib.HOTBED_MODE_DEFAULT
        else:
            over = False
        if external is not None and not over:
            warnings.warn(
                f"external_storage is not used: it is with caching, or without local_hbm_for_values, where rows take "
                f"more than it; they take {wanted} bytes of {budget}",
                stacklevel=3,
            )
            options = [dataclasses.replace(o, external_storage=None) for o in options]
        self._tables_of = [self.feature_table_map.count(t) for t in range(len(options))]
        tables = [
            describe(name, o, n, u, self._stochastic_rounding)
            for name, o, n, u in zip(self._table_names, options, self._tables_of, upper)
        ]
        bridge = None
        if over:
            self._external = external(copy.deepcopy(options), self._optimizer)  # type: ignore[misc]
            bridge = Bridge(self._external, tables, self._optimizer, self.device)
        self._hotbed = Tables(
            tables, options, POOLING[self.pooling_mode], self._optimizer, self.device, self.output_dtype, mode, bridge
        )
        self._optimizer._iterations = lambda: int(self._hotbed.clock()["optimizer_steps"])
        hybrid = mode["mode"] == lib.HOTBED_MODE_DEFAULT and budget > 0
        self._storage: Any = self._external or (HybridStorage if hybrid else DynamicEmbStorage)(
            self._hotbed, self._optimizer
        )
        if mode["mode"] == lib.HOTBED_MODE_CACHE:
            self._cache = DynamicEmbCache(self._hotbed, self._optimizer)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or deep-copied: rows are in the library's memory."""
        raise UnsupportedError(
            f"{type(self).__name__} cannot be pickled or copied, since its rows are in Hotbed's memory; save them with "
            "DynamicEmbDump()"
        )

    # --- description ----------------------------------------------------------------------------

    @property
    def table_names(self) -> List[str]:
        """Return the names of the tables."""
        return self._table_names

    @property
    def optimizer(self) -> BaseDynamicEmbeddingOptimizer:
        """Return the optimizer, whose learning rate can be set."""
        return self._optimizer

    @property
    def tables(self) -> Any:
        """Return the rows: a :class:`.DynamicEmbStorage`, a :class:`.HybridStorage` or the external storage."""
        return self._storage

    @property
    def cache(self) -> Optional[DynamicEmbCache]:
        """Return the upper tier of tables with a cache, otherwise None."""
        return self._cache

    def explain(self) -> str:
        """Return a sentence that says where the rows are and why, and what a row takes."""
        capacity = 256 + 160 * len(self._table_names)
        text = ffi.new("char[]", capacity)
        check(lib.hotbed_storage_explain(self._hotbed.pointer, text, capacity))
        return str(ffi.string(text).decode())

    def extra_repr(self) -> str:
        """Describe the tables."""
        return ", ".join(
            f"{n}=({o.max_capacity}, {o.dim})" for n, o in zip(self._table_names, self._dynamicemb_options)
        )

    def split_embedding_weights(self) -> List[torch.Tensor]:
        """Return a placeholder ``[1, 1]`` per table, because TorchRec's planner asks for weights."""
        return [torch.empty((1, 1), device=self.device, dtype=self.embedding_dtype) for _ in self._dynamicemb_options]

    # --- the step -------------------------------------------------------------------------------

    def _batch(self, indices: torch.Tensor, offsets: torch.Tensor) -> Batch:
        ends = integers("offsets", offsets)
        bags = ends.numel() - 1
        if bags < 0 or bags % self.feature_num != 0:
            raise ArgumentError(
                f"offsets: {bags} bags are no multiple of {self.feature_num} features",
                parameter="offsets",
                value=bags,
                limit=self.feature_num,
            )
        keys = self._hotbed.converted(indices) if isinstance(indices, torch.Tensor) else None
        if keys is None:
            keys = integers("indices", indices)
        return Batch(keys, ends, None, bags // self.feature_num)

    def forward(
        self,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        per_sample_weights: Optional[torch.Tensor] = None,
        feature_requires_grad: Optional[torch.Tensor] = None,
        batch_size_per_feature_per_rank: Optional[List[List[int]]] = None,
        total_unique_indices: Optional[int] = None,
        frequency_counters: Optional[torch.Tensor] = None,
        pooling_weights: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Look a batch up.

        In training mode new keys get rows, and the backward of the result updates them.  After
        ``requires_grad_(False)`` the result has no gradient.  If batches have been prefetched, the forward uses the
        oldest one.  In evaluation mode nothing changes, and missing keys read as ``eval_initializer_args`` says.
        ``torch.compile`` breaks the graph here.

        Args:
            indices: the keys, ``[n]``: the bags of the first feature, sample by sample, then the second's.
            offsets: where each bag begins, and where the last one ends, ``[features * samples + 1]``.
            per_sample_weights: number of occurrences that each key counts for in LFU scores and in admission, ``[n]``,
                as in dynamicemb before v26.10; the pooling does not use it.
            feature_requires_grad: ignored.
            batch_size_per_feature_per_rank: None.
            total_unique_indices: ignored.
            frequency_counters: the newer name of ``per_sample_weights``.
            pooling_weights: None: sums have no weights.

        Returns:
            ``[samples, sum of dims]``, or ``[n, dim]`` without pooling.

        Raises:
            ArgumentError: a wrong dtype, device or shape.
            StateError: the tables were created with ``training=False``, or the batch is not the oldest prefetched one.
        """
        if pooling_weights is not None:
            raise UnsupportedError("pooling_weights: sums of hash tables have no weights")
        if frequency_counters is not None and per_sample_weights is not None:
            raise ArgumentError("frequency_counters and per_sample_weights are the same; pass one")
        per_sample_weights = frequency_counters if per_sample_weights is None else per_sample_weights
        if torch.compiler.is_compiling():
            out: torch.Tensor = _forward_eagerly(
                self, indices, offsets, per_sample_weights, None, batch_size_per_feature_per_rank
            )
            return out
        if batch_size_per_feature_per_rank is not None:
            raise UnsupportedError("batch_size_per_feature_per_rank: all features have the same number of samples")
        if self.training and not self._dynamicemb_options[0].training:
            raise StateError("the tables were made with training=False; call eval()")
        batch = self._batch(indices, offsets)
        if self.training and not self._hotbed.queue:
            self._prefetch(batch, per_sample_weights)
        anchor = self._empty_tensor.detach() if self._frozen else self._empty_tensor
        return rows_of(self._hotbed, anchor, batch, self.training)

    def prefetch(
        self,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        forward_stream: Optional[Any] = None,
        batch_size_per_feature_per_rank: Optional[List[List[int]]] = None,
        frequency_counters: Optional[torch.Tensor] = None,
    ) -> None:
        """Find or create the rows of a batch, and fetch them into device memory; forwards use batches in this order.

        The work goes to PyTorch's current stream; the forward's stream must wait for it.  Pass the same tensors to the
        forward: if the keys are in other memory, it compares them, and for that waits for the GPU.

        Args:
            indices: as in :meth:`forward`.
            offsets: as in :meth:`forward`.
            forward_stream: stream of the forward; the tensors are kept until its work is done.
            batch_size_per_feature_per_rank: None.
            frequency_counters: ``per_sample_weights`` of :meth:`forward`.
        """
        if not self.training:
            return
        if torch.compiler.is_compiling():
            _prefetch_eagerly(
                self, indices, offsets, forward_stream, batch_size_per_feature_per_rank, frequency_counters
            )
            return
        batch = self._batch(indices, offsets)
        if forward_stream is not None and batch.keys.device.type == "cuda":
            batch.keys.record_stream(forward_stream)
            batch.offsets.record_stream(forward_stream)
        self._prefetch(batch, frequency_counters, indices)

    def _prefetch(self, batch: Batch, counters: Optional[torch.Tensor], given: Optional[torch.Tensor] = None) -> None:
        counts, keys = None, batch.keys
        if counters is not None:
            counts = _occurrences(counters, keys)
        before = self._cache.counts() if self._cache is not None and self._cache.cache_metrics is not None else None
        self._hotbed.prefetch(batch, counts, given)
        if before is not None:
            assert self._cache is not None and self._cache.cache_metrics is not None
            after = self._cache.counts()
            self._cache.cache_metrics.copy_(torch.tensor([a - b for a, b in zip(after, before)], device="cpu"))

    def _save_to_state_dict(self, *arguments: Any, **named: Any) -> None:
        super()._save_to_state_dict(*arguments, **named)
        warn_of_rows(self._table_names)

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        super()._load_from_state_dict(*arguments, **named)
        warn_of_rows(self._table_names)

    def flush(self) -> None:
        """Write changed rows of the upper tier back; does nothing without a cache."""
        if self._cache is not None:
            self._hotbed.flush()

    def reset_cache_states(self) -> None:
        """Write changed rows of the upper tier back, empty it, and drop all batches."""
        if self._cache is not None:
            self._hotbed.reset()

    def set_record_cache_metrics(self, record: bool) -> None:
        """Count hits of the cache, see :attr:`.DynamicEmbCache.cache_metrics`."""
        if self._cache is not None:
            self._cache.set_record_cache_metrics(record)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of later backwards."""
        self._optimizer.set_learning_rate(lr)

    # --- scores ---------------------------------------------------------------------------------

    def _number(self, table_name: str) -> int:
        if table_name not in self._table_names:
            raise ArgumentError(f"there is no table {table_name!r}; there are {self._table_names}", table=table_name)
        return self._table_names.index(table_name)

    def set_score(self, named_score: Dict[str, int]) -> None:
        """Set the score that later batches give to the keys of CUSTOMIZED tables.

        Args:
            named_score: score by table, at least 1.

        Raises:
            ValueError: a score is not an integer in [1, 2**64 - 1], or a table has another strategy; no score is set.
        """
        for name, score in named_score.items():
            if not isinstance(score, int) or not 1 <= score < 2**64:
                raise ValueError(f"table {name!r}: score {score!r} is not an integer in [1, 2**64 - 1]")
            number = self._number(name)
            if self._dynamicemb_options[number].score_strategy != DynamicEmbScoreStrategy.CUSTOMIZED:
                raise ArgumentError(f"table {name!r}: scores are set for CUSTOMIZED tables only", table=name)
        for name, score in named_score.items():
            if self._scores.get(name, 0) > score and warning_for_cstm_score():
                warnings.warn(f"table {name!r}: score {score} is below {self._scores[name]}", stacklevel=2)
            self._hotbed.set_score(self._number(name), score)
            self._scores[name] = score

    def _score(self, number: int) -> int:
        strategy = self._dynamicemb_options[number].score_strategy
        assert strategy is not None
        if score_strategy_has_timestamp_column(strategy) or strategy == DynamicEmbScoreStrategy.STEP:
            return self._hotbed.now(number) + 1
        if strategy == DynamicEmbScoreStrategy.CUSTOMIZED:
            return self._scores.get(self._table_names[number], 0)
        return 1 if strategy == DynamicEmbScoreStrategy.LFU else 0

    def get_score(self) -> Dict[str, int]:
        """Return a threshold by table: :meth:`incremental_dump` with it returns the keys that are trained from now on.

        It is the next score of STEP and TIMESTAMP tables (microseconds since the tables' first batch), and the score
        that was last set for CUSTOMIZED tables.  LFU tables have 1, NO_EVICTION tables 0.
        """
        return {name: self._score(t) for t, name in enumerate(self._table_names)}

    # --- contents -------------------------------------------------------------------------------

    def fill_tables(self, load_factor: float = 0.95, tolerance: float = 1e-5) -> None:
        """Insert random keys up to ``load_factor`` of each table's capacity, at most 0.95."""
        if not isinstance(self._storage, DynamicEmbStorage):
            raise TypeError(f"fill_tables: {type(self._storage).__name__} is not DynamicEmbStorage")
        self._storage.fill_tables(load_factor, tolerance)

    def export_keys_values(
        self, table_name: str, device: torch.device, batch_size: int = 65536
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return the keys ``[n]`` of a table and their float32 rows ``[n, dim]``."""
        self.flush()
        number = self._number(table_name)
        found = list(self._view().export_keys_values(device, batch_size, number))
        if not found:
            return torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, self.dims[number], device=device)
        return torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found])

    def _view(self) -> Union[DynamicEmbStorage, HybridStorage]:
        """Return the rows as Hotbed has them, with the rows of an external storage."""
        if isinstance(self._storage, (DynamicEmbStorage, HybridStorage)):
            return self._storage
        return DynamicEmbStorage(self._hotbed, self._optimizer)

    def incremental_dump(self, named_thresholds: Dict[str, int], pg: Optional[Any] = None) -> DeltaDumpResult:
        """Return the rows whose score, or time where keys have one, is at least a threshold, and the keys that left.

        Args:
            named_thresholds: threshold by table, from :meth:`get_score` or an earlier dump.
            pg: process group whose ranks' rows and keys are gathered.

        Returns:
            The rows on the CPU; :meth:`pop_evicted_keys` and :meth:`pop_erased_keys` of the tables; and the thresholds
            for the next dump.  With ``dist_type`` ``continuous`` the keys are positions in their rank's block, which
            may be equal on two ranks.
        """
        self.flush()
        result, now = DeltaDumpResult(), self._time(pg, local=pg is None) + 1
        for name, threshold in named_thresholds.items():
            if name not in self._table_names:
                warnings.warn(f"incremental_dump: no table {name!r}; there are {self._table_names}", stacklevel=2)
                continue
            number = self._number(name)
            options = self._dynamicemb_options[number]
            keys, values, states, scores = self._view().delta(number, threshold, pg, now)
            retains = EvictedItemMode.RETAIN_KEY in options.evicted_item_mode
            result.table_names.append(name)
            result.keys.append(keys)
            result.values.append(values)
            result.optimizer_states.append(states)
            result.scores.append(scores)
            result.evicted_keys.append(gathered(self._hotbed.pop_evicted(number), pg) if retains else None)
            result.erased_keys.append(gathered(self._hotbed.pop_erased(number), pg))
            result.meta.append(
                {
                    "current_score": self._score(number),
                    "hotbed_time": now,
                    "iters": int(self._hotbed.clock()["optimizer_steps"]),
                    "table_options": options,
                    "world_size": dist.get_world_size() if dist.is_initialized() else 1,
                    "num_scores": int(scores.shape[1]),
                    "current_capacity": self._hotbed.capacity(number),
                }
            )
        return result

    def replay_increment(
        self, delta: DeltaDumpResult, content: ReplayContent = ReplayContent.ALL
    ) -> Dict[str, ReplayStats]:
        """Write an incremental dump into these tables: remove the keys that left, then insert or overwrite the rows.

        Rows are found by key, so capacities and numbers of ranks may differ from the dump's.  Each rank takes the keys
        that it owns.  All tables are checked before the first row is written.

        Args:
            delta: of a module whose tables have the same dim, score strategy and ``dist_type``.
            content: which of states and scores are written; see :meth:`.DynamicEmbStorage.replay_increment`.

        Returns:
            What was done, by table.

        Raises:
            ValueError: a table does not fit, a column is missing or has another shape, or a key occurs twice.
            UnsupportedError: ``dist_type`` is ``continuous``, on several ranks.
        """
        rank, world = _rank(None)
        view, plan = self._view(), []
        for i, name in enumerate(delta.table_names):
            if name not in self._table_names:
                warnings.warn(f"replay_increment: no table {name!r}; there are {self._table_names}", stacklevel=2)
                continue
            number = self._number(name)
            self._check_replay(name, delta.meta[i], self._dynamicemb_options[number])
            ordered = _reordered(delta.scores[i], delta.meta[i]["table_options"], self._dynamicemb_options[number])
            columns = delta.keys[i], delta.values[i], delta.optimizer_states[i], ordered
            view.check_delta(number, *columns, content)
            keep = None if world == 1 else self._owner(number, rank, world, world)
            plan.append((number, name, columns, (delta.erased_keys[i], delta.evicted_keys[i]), delta.meta[i], keep))
        self.flush()
        done: Dict[str, ReplayStats] = {}
        for number, name, columns, (erased, evicted), meta, keep in plan:
            mine = torch.ones_like(columns[0], dtype=torch.bool) if keep is None else keep(columns[0])
            keys, values, states, scores = (None if c is None else c[mine] for c in columns)
            assert keys is not None and values is not None
            stats = ReplayStats(skipped=int((~mine).sum()))
            stats.erased = self._remove(number, erased, keep)
            if evicted is not None:
                self._remove(number, evicted[~torch.isin(evicted, keys)], keep)
            timed = score_strategy_has_timestamp_column(meta["table_options"].score_strategy)
            written = view.replay_increment(
                number,
                keys,
                values,
                states,
                scores,
                insert_score=max(1, self._scores.get(name, 1)),
                content=content,
                timestamp=meta.get("hotbed_time") if timed else None,
            )
            stats.upserted = written.upserted
            if states is not None and ReplayContent.OPTIMIZER_STATE in content:
                view.advance_steps(int(meta.get("iters", 0)))
            if not timed:
                self._set_step(number, int(meta["current_score"]))
            done[name] = stats
        return done

    @staticmethod
    def _check_replay(name: str, meta: Dict[str, Any], options: DynamicEmbTableOptions) -> None:
        theirs = meta.get("table_options")
        if theirs is None or "current_score" not in meta:
            raise ValueError(f"replay_increment: table {name!r}: meta has no table_options or no current_score")
        for what in ("dim", "dist_type", "score_strategy"):
            pair = [getattr(o, what) for o in (theirs, options)]
            one, other = (frozenset(v) if isinstance(v, tuple) else v for v in pair)  # in either order
            if one != other:
                raise ValueError(
                    f"replay_increment: table {name!r}: {what} mismatch: the delta has {pair[0]}, the table {pair[1]}"
                )

    def _remove(self, number: int, keys: Optional[torch.Tensor], keep: Optional[Callable[..., Any]]) -> int:
        if keys is None or keys.numel() == 0:
            return 0
        return self._hotbed.erase_rows(number, keys if keep is None else keys[keep(keys)], False)

    def erase(self, table_name: str, keys: torch.Tensor, mode: EvictedItemMode = EvictedItemMode.DISCARD) -> int:
        """Remove keys of a table with their rows; absent keys are skipped.

        Args:
            table_name: name of the table.
            keys: int64.
            mode: RETAIN_KEY keeps the removed keys for :meth:`pop_erased_keys` and :meth:`incremental_dump`.

        Returns:
            The number of keys that were removed.

        Raises:
            StateError: batches that wait for their backward use some of the keys; all others are removed.
        """
        return self._hotbed.erase_rows(self._number(table_name), keys, EvictedItemMode.RETAIN_KEY in mode)

    def pop_evicted_keys(self, table_names: Optional[Sequence[str]] = None) -> Dict[str, torch.Tensor]:
        """Return the keys that had a row since the last call and were evicted, by table, ascending, on the CPU.

        Tables without ``evicted_item_mode`` RETAIN_KEY are left out.

        Args:
            table_names: of the tables; None: all.
        """
        wanted = [n for n in self._table_names if table_names is None or n in table_names]
        modes = {n: self._dynamicemb_options[self._number(n)].evicted_item_mode for n in wanted}
        return {
            n: self._hotbed.pop_evicted(self._number(n))
            for n, mode in modes.items()
            if EvictedItemMode.RETAIN_KEY in mode
        }

    def pop_erased_keys(self, table_names: Optional[Sequence[str]] = None) -> Dict[str, torch.Tensor]:
        """Return the keys that :meth:`erase` was to retain since the last call, by table, ascending, on the CPU.

        Args:
            table_names: of the tables; None: all.
        """
        wanted = [n for n in self._table_names if table_names is None or n in table_names]
        return {n: self._hotbed.pop_erased(self._number(n)) for n in wanted}

    # --- files ----------------------------------------------------------------------------------

    def dump(
        self,
        save_dir: str,
        optim: bool = False,
        counter: bool = False,
        table_names: Optional[Sequence[str]] = None,
        pg: Optional[Any] = None,
    ) -> None:
        """Write tables to dynamicemb's files in a directory.  All ranks of the group call it together.

        Args:
            save_dir: a directory, which must exist.
            optim: write optimizer states.
            counter: write admission counts.
            table_names: of the tables; None: all.
            pg: process group; its rank and size are in the files' names.  None: the default group, or one rank.
        """
        rank, world = _rank(pg)
        self.flush()
        now = self._time(pg)
        for number, name in enumerate(self._table_names):
            if table_names is not None and name not in table_names:
                continue
            if dist.is_initialized():
                dist.barrier(group=pg)
            keys, values, scores, states = [
                encode_checkpoint_file_path(save_dir, name, rank, world, item) for item in _ITEMS
            ]
            counted = [
                encode_counter_checkpoint_file_path(save_dir, name, rank, world, item)
                for item in ("keys", "frequencies")
            ]
            stale = [_older_states(save_dir, name, rank, world), *([] if optim else [states]), *counted]
            for path in filter(os.path.exists, stale):  # of an earlier dump here, whose rows are written over
                os.remove(path)
            self._view().dump(
                number,
                encode_meta_json_file_path(save_dir, name),
                keys,
                values,
                scores,
                states,
                include_optim=optim,
                include_meta=rank == 0,
                current_score=self._step(number),
                now=now,
            )
            if counter and self._admission_counter is None:
                warnings.warn(f"table {name!r} has no admission counter to dump", stacklevel=2)
            elif counter:
                for path, column in zip(counted, self._hotbed.counts(number)):
                    with open(path, "wb") as file:
                        file.write(column.numpy().tobytes())

    def _time(self, pg: Optional[Any], local: bool = False) -> int:
        """Return the latest time of any rank; 0 if tables have no times.  All tables of a module have one clock.

        Args:
            pg: process group; None: the default one.  Its ranks call this together.
            local: return the time of this rank, without communication.
        """
        strategy = self._dynamicemb_options[0].score_strategy
        assert strategy is not None
        if not score_strategy_has_timestamp_column(strategy):
            return 0
        mine = self._hotbed.now(0)
        if local or not dist.is_initialized():
            return mine
        times: List[Any] = [mine] * dist.get_world_size(group=pg)
        dist.all_gather_object(times, mine, group=pg)
        return int(max(times))

    def _step(self, number: int) -> int:
        """Return the score of a dump's JSON file: the next STEP, a set score, or dynamicemb's constant."""
        strategy = self._dynamicemb_options[number].score_strategy
        if strategy == DynamicEmbScoreStrategy.TIMESTAMP:
            return 0
        return 1 if isinstance(strategy, tuple) else self._score(number)

    def load(
        self,
        save_dir: str,
        optim: bool = False,
        counter: bool = False,
        table_names: Optional[Sequence[str]] = None,
        pg: Optional[Any] = None,
    ) -> None:
        """Read tables from dynamicemb's files; rows of other keys stay.  Warn of tables without files.

        If the dump was written by as many ranks, each rank reads its own file.  Otherwise it reads all files and keeps
        the keys that ``dist_type`` assigns to it.  All files are checked before the first row is loaded.

        Args:
            save_dir: directory of :meth:`dump`, or of dynamicemb's.
            optim: read optimizer states.
            counter: read admission counts.
            table_names: of the tables; None: all.
            pg: as in :meth:`dump`.

        Raises:
            FileError: a file of rows is missing.
            ValueError: the dump has another order of eviction, ``dist_type`` or dim, or a type that Hotbed does not
                have; its files' lengths do not match; a key occurs twice; or scores, states or counts exist for some
                ranks only.
            RuntimeError: files of some ranks are missing.
            UnsupportedError: the dump was written by another number of ranks, and ``dist_type`` is ``continuous``.
        """
        rank, world = _rank(pg)
        absent: List[str] = []
        plan: List[Any] = []
        for number, name in enumerate(self._table_names):
            if table_names is not None and name not in table_names:
                continue
            written = _ranks_of(save_dir, name)
            if written == 0:
                absent.append(name)
                continue
            keep = None if written == world else self._owner(number, rank, world, written)
            meta = read_meta(encode_meta_json_file_path(save_dir, name))
            parts = [rank] if written == world else range(written)
            _check_optional(save_dir, name, written, optim, counter)
            dumps = [
                self._view().open_dump(number, meta, _files(save_dir, name, part, written), optim) for part in parts
            ]
            self._view().check_dumps(number, dumps, keep)
            counts = [self._read_counts(save_dir, name, p, written, keep) for p in parts] if counter else []
            plan.append((number, meta, dumps, keep, counts))
        for number, meta, dumps, keep, counts in plan:
            self._set_step(number, self._view().load_dumps(number, meta, dumps, keep, optim))
            for pair in counts:
                if pair is not None:
                    self._hotbed.set_counts(number, *pair)
        if absent:
            warnings.warn(f"{save_dir} has no files of the tables {absent}, which keep their rows", stacklevel=2)

    def _owner(self, number: int, rank: int, world: int, written: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function from keys to a mask of the keys that this rank owns.

        Raises:
            UnsupportedError: ``dist_type`` is ``continuous``, with which ranks store other keys than the model's.
        """
        dist_type = self._dynamicemb_options[number].dist_type
        if dist_type == "continuous":
            raise UnsupportedError(
                f"table {self._table_names[number]!r}: the dump is of {written} ranks, and here are {world}; with "
                "dist_type 'continuous' a rank stores positions in its block of keys, so load the dump on as many "
                "ranks, or train with dist_type 'roundrobin'",
                table=self._table_names[number],
                value=written,
                limit=world,
            )
        return lambda keys: ranks_of_keys(keys, dist_type, world)[0] == rank

    def _set_step(self, number: int, step: Optional[int]) -> None:
        strategy = self._dynamicemb_options[number].score_strategy
        if step is None or step <= 0:
            return
        if strategy == DynamicEmbScoreStrategy.STEP:
            clock = self._hotbed.clock()
            clock["clock"] = max(clock["clock"], step - 1)
            self._hotbed.set_clock(clock)
        elif strategy == DynamicEmbScoreStrategy.CUSTOMIZED:
            self._scores[self._table_names[number]] = step
            self._hotbed.set_score(number, step)

    def _read_counts(
        self, save_dir: str, name: str, part: int, written: int, keep: Optional[Callable[..., Any]]
    ) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        paths = [encode_counter_checkpoint_file_path(save_dir, name, part, written, i) for i in ("keys", "frequencies")]
        if self._admission_counter is None or not all(os.path.exists(p) for p in paths):
            warnings.warn(f"table {name!r}: no admission counter, or no counts in {save_dir}", stacklevel=3)
            return None
        keys, counts = [torch.from_numpy(numpy.fromfile(p, numpy.int64)) for p in paths]
        if keys.shape != counts.shape:
            raise ValueError(f"{paths[0]}: {keys.shape[0]} keys have {counts.shape[0]} frequencies")
        if keep is not None:
            mask = keep(keys)
            keys, counts = keys[mask], counts[mask]
        refuse_duplicates(keys, paths[0])
        return keys, counts


def _occurrences(given: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return the number of occurrences that each key counts for, ``[n]`` int32.

    Raises:
        ArgumentError: another shape; or on the CPU, where the host need not wait, a number that none can be.
    """
    check_shape("per_sample_weights", given, keys.shape)
    given = given.detach().to(keys.device)
    if keys.device.type == "cpu" and given.numel() > 0:
        numbers = given.double()
        bad = (~((numbers >= 0) & (numbers < 2**31))).nonzero()
        if bad.shape[0] > 0:
            key, number = int(keys[bad[0, 0]]), float(numbers[bad[0, 0]])
            raise ArgumentError(
                f"per_sample_weights: key {key} counts for {number:g} occurrences, not for 0 to {2**31 - 1}",
                parameter="per_sample_weights",
                key=key,
                value=number,
                limit=2**31 - 1,
            )
    return given.to(torch.int32).contiguous()


def _reordered(scores: torch.Tensor, of: DynamicEmbTableOptions, to: DynamicEmbTableOptions) -> torch.Tensor:
    """Return a delta's scores in the order of another table's pair of strategies."""
    pair, order = of.score_strategy, to.score_strategy
    if not isinstance(pair, tuple) or not isinstance(order, tuple) or scores.dim() != 2 or scores.shape[1] != len(pair):
        return scores
    return scores[:, [pair.index(part) for part in order]]


def gathered(keys: torch.Tensor, pg: Optional[Any]) -> torch.Tensor:
    """Return the distinct keys of all ranks of a group; without a group, these keys."""
    if pg is None or not dist.is_initialized():
        return keys
    everyone: List[Any] = [None] * dist.get_world_size(group=pg)
    dist.all_gather_object(everyone, keys, group=pg)
    distinct: torch.Tensor = torch.unique(torch.cat(everyone))
    return distinct


#: Outside of a compiled graph: PyTorch cannot trace calls of the C library.
_eagerly: Any = torch.compiler.disable
_forward_eagerly = _eagerly(BatchedDynamicEmbeddingTablesV2.forward)
_prefetch_eagerly = _eagerly(BatchedDynamicEmbeddingTablesV2.prefetch)


def _rank(pg: Optional[Any]) -> Tuple[int, int]:
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group=pg), dist.get_world_size(group=pg)
