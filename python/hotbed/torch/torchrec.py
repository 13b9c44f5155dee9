"""Hotbed's tables in models of TorchRec under its ``DistributedModelParallel``.  Needs TorchRec 1.5 or later.

A model keeps TorchRec's modules; :func:`sharders` replaces them when the model is distributed::

    model = DistributedModelParallel(
        model,  # with torchrec.EmbeddingBagCollection or torchrec.EmbeddingCollection inside
        device=device,
        sharders=sharders(ShardedOptions(), optimizer=Adam(lr=0.01)),
    )
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Type, Union

import torch
import torchrec
import torchrec.modules.mc_embedding_modules as managed
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, KJTList
from torchrec.distributed.types import (
    LazyNoWait,
    ModuleSharder,
    NoWait,
    NullShardedModuleContext,
    ParameterStorage,
    ShardedModule,
    ShardingEnv,
    ShardingEnv2D,
    ShardingType,
)
from torchrec.optim.fused import EmptyFusedOptimizer, FusedOptimizer, FusedOptimizerModule
from torchrec.optim.keyed import KeyedOptimizer

from hotbed.comm import Comm
from hotbed.errors import ArgumentError, UnsupportedError
from hotbed.torch._modules import EmbeddingBagCollection, EmbeddingCollection, inputs
from hotbed.torch._optimizer import keep_groups, load_table_state, table_state, take_rates
from hotbed.torch._storage import Storage, shortest
from hotbed.torch.config import SGD, Optimizers, ShardedOptions


class _TableState:
    """One table's optimizer state; TorchRec's optimizers save and load it through the two methods."""

    def __init__(self, storage: Storage, number: int) -> None:
        self._storage, self._number = storage, number

    def state_dict(self) -> Dict[str, Any]:
        if self._number == 0:
            take_rates([self._storage])  # a scheduler may have stepped since the last backward
        return {**table_state(self._storage, self._number), "clock": self._storage.clock()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        load_table_state(self._storage, self._number, state_dict)
        self._storage.set_clock(state_dict["clock"])
        if self._storage.group is not None:
            self._storage.group["lr"] = shortest(state_dict["clock"]["learning_rate"])


class KeyedFusedOptimizer(FusedOptimizer):  # type: ignore[misc]
    """A collection's optimizer as a ``KeyedOptimizer`` of TorchRec.

    Its parameters are empty tensors under the names that the tables have in a state dict.  The backward updates the
    rows, so ``step()`` does nothing; ``lr`` of ``param_groups`` is the learning rate.
    """

    def __init__(self, names: Mapping[str, str], storages: List[Storage], groups: List[Dict[str, Any]]) -> None:
        """See the class.

        Args:
            names: names of the parameters, by table.
            storages: the storages of the tables.
            groups: the parameter groups with the learning rates of the tables.
        """
        params: Dict[str, torch.Tensor] = {}
        state = {}
        for storage in storages:
            for number, table in enumerate(storage.tables):
                param = params[names[table.name]] = torch.empty(0, device=storage.device)
                state[param] = {"rows": _TableState(storage, number)}
        for group in groups:
            group["params"] = [params[names[table]] for table in group["tables"]]
        super().__init__(params, state, groups)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but not another list of parameter groups."""
        keep_groups(self, name)
        super().__setattr__(name, value)

    def step(self, closure: Any = None) -> None:
        """Do nothing: the backward has updated the rows."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Do nothing: gradients are not kept."""


def keyed_optimizer(collection: Union[EmbeddingBagCollection, EmbeddingCollection]) -> KeyedOptimizer:
    """Return a collection's optimizer for ``CombinedOptimizer``, ``WarmupOptimizer`` and other wrappers of TorchRec.

    A collection that :func:`sharders` made has it as ``fused_optimizer``.  ``lr`` of its parameter groups is the
    learning rate of the collection's ``fused_optimizer``, and the other way round.
    """
    if collection._keyed is None and collection._fused is not None:
        names = {table.name: f"{collection._state_name}.{table.name}.weight" for table in collection._tables}
        collection._keyed = KeyedFusedOptimizer(names, collection._storages, collection._fused.param_groups)
    return EmptyFusedOptimizer() if collection._keyed is None else collection._keyed


class _Sharded(ShardedModule, FusedOptimizerModule):  # type: ignore[misc]
    """The part of a collection that ``DistributedModelParallel`` and TorchRec's pipelines call."""

    def create_context(self) -> NullShardedModuleContext:
        """Return an empty context, which TorchRec asks for."""
        return NullShardedModuleContext()

    def input_dist(self, ctx: Any, features: Any) -> KJTListSplitsAwaitable[Any]:
        """Send a batch's keys to the ranks that own them; in training, also look them up.

        Raises:
            UnsupportedError: features have different numbers of samples.
            HotbedError: as in the collection's forward.
        """
        with self.comm.calls(0):
            if features.variable_stride_per_key():
                raise UnsupportedError("features: all features of a batch must have the same number of samples")
            training = self._trains()
            batches = []
            for storage in self._storages:
                _, batch = inputs(features, storage, self._is_weighted)
                if training:
                    storage.prefetch(batch)
                names = [feature for _, feature in storage.features]
                # Without samples, TorchRec cannot compute the number of keys of each feature.
                keys, offsets, weights, samples = batch
                sizes = [0] * len(names) if samples == 0 else None
                kjt = torchrec.KeyedJaggedTensor(
                    names, keys, weights, offsets=offsets, stride=samples, length_per_key=sizes
                )
                batches.append(NoWait(NoWait(kjt)))
        return KJTListSplitsAwaitable(batches, ctx)

    def compute(self, ctx: Any, dist_input: KJTList) -> Any:
        """Return the outputs of a batch."""
        return self._together(dist_input.features)

    def output_dist(self, ctx: Any, output: Any) -> LazyNoWait[Any]:
        """Return the result of ``compute()`` unchanged, because it already has this rank's outputs."""
        return LazyNoWait(output)

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer of the rows; ``model.fused_optimizer`` combines the optimizers of all collections."""
        return keyed_optimizer(self)


class ShardedEmbeddingBagCollection(EmbeddingBagCollection, _Sharded):
    """:class:`~hotbed.torch.EmbeddingBagCollection` in the place of TorchRec's in a distributed model.

    Its forward gives TorchRec's awaitable of the ``KeyedTensor``.
    """

    forward = _Sharded.forward
    prefetch = _Sharded.prefetch
    fused_optimizer = _Sharded.fused_optimizer
    unsharded_module_type = torchrec.EmbeddingBagCollection


class ShardedEmbeddingCollection(EmbeddingCollection, _Sharded):
    """:class:`~hotbed.torch.EmbeddingCollection` in the place of TorchRec's in a distributed model.

    Its forward gives TorchRec's awaitable of the dict of ``JaggedTensor``.
    """

    forward = _Sharded.forward
    prefetch = _Sharded.prefetch
    fused_optimizer = _Sharded.fused_optimizer
    unsharded_module_type = torchrec.EmbeddingCollection


class _Comms:
    """The communicators that a program's sharders share, by process group and device."""

    def __init__(self, given: Optional[Comm]) -> None:
        self._given = given
        self._made: Dict[Any, Comm] = {}

    def of(self, env: ShardingEnv, device: torch.device) -> Comm:
        if env.process_group is None:
            raise ArgumentError("the sharding environment has no process group, which Hotbed's ranks need")
        if isinstance(env, ShardingEnv2D):
            raise UnsupportedError("DMPCollection: Hotbed's tables have one copy, sharded over all ranks")
        if self._given is None:
            key = (env.process_group, device)
            if key not in self._made:
                self._made[key] = Comm.from_group(env.process_group, device)
            return self._made[key]
        found, wanted = (self._given.rank, self._given.size), (env.rank, env.world_size)
        if found != wanted:
            raise ArgumentError(
                f"comm= is rank {found[0]} of {found[1]}, but the process group's rank is {wanted[0]} of {wanted[1]}",
                parameter="comm",
                rank=found[0],
                value=found,
                limit=wanted,
            )
        if self._given.group is None:
            self._given.group = env.process_group
        return self._given


class Sharder(ModuleSharder[Any]):  # type: ignore[misc]
    """Replaces TorchRec's collections of one type by Hotbed's; see :func:`sharders`, which makes it."""

    fused_params = None  # the planners of TorchRec 1.5 and 1.6 read this of every sharder

    def __init__(
        self,
        kind: Type[torch.nn.Module],
        sharded: ShardedOptions,
        optimizer: Optimizers,
        comms: _Comms,
        more: Mapping[str, Any],
    ) -> None:
        """See :func:`sharders`."""
        super().__init__()
        self._kind, self._sharded, self._optimizer, self._comms, self._more = kind, sharded, optimizer, comms, more

    @property
    def module_type(self) -> Type[torch.nn.Module]:
        """TorchRec's module."""
        return self._kind

    def shardable_parameters(self, module: Any) -> Dict[str, torch.nn.Parameter]:
        """Return the weights by table, for the planner."""
        tables = module.embedding_bags if self._kind is torchrec.EmbeddingBagCollection else module.embeddings
        return {name: table.weight for name, table in tables.items()}

    def sharding_types(self, compute_device_type: str) -> List[str]:
        """Return row-wise, the only supported type."""
        return [ShardingType.ROW_WISE.value]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> List[str]:
        """Return TorchRec's fused kernel, whose cost its planner uses as an estimate of Hotbed's."""
        return [EmbeddingComputeKernel.FUSED.value]

    def storage_usage(self, tensor: torch.Tensor, compute_device_type: str, compute_kernel: str) -> Dict[str, int]:
        """Return the memory that a table uses; it counts as host memory if device memory holds only some rows."""
        if (self._more.get("options") or {}).get("hbm_bytes"):
            return {ParameterStorage.DDR.value: tensor.numel() * tensor.element_size()}
        usage: Dict[str, int] = super().storage_usage(tensor, compute_device_type, compute_kernel)
        return usage

    def shard(
        self,
        module: Any,
        params: Mapping[str, Any],
        env: ShardingEnv,
        device: Optional[torch.device] = None,
        module_fqn: Optional[str] = None,
    ) -> ShardedModule[Any, Any, Any, Any]:
        """Create Hotbed's collection, with the weights of the module unless they are on the meta device.

        It is frozen if the weights are, that is, if none requires a gradient.

        Raises:
            ArgumentError: the module or the environment is unsuitable; the text says why.
            UnsupportedError: the plan is not row-wise, only some of the weights are frozen, or the module has
                ``need_indices``.
        """
        place = module_fqn or type(module).__name__
        for name, planned in params.items():
            if planned.sharding_type != ShardingType.ROW_WISE.value:
                raise UnsupportedError(
                    f"{place}: the plan has table {name!r} as {planned.sharding_type}; Hotbed's tables are row_wise",
                    table=name,
                    value=planned.sharding_type,
                )
        weights = self.shardable_parameters(module)
        for name, weight in weights.items():
            if getattr(weight, "_optimizer_classes", None):
                raise ArgumentError(
                    f"{place}: table {name!r} has an optimizer of apply_optimizer_in_backward(); pass it to sharders()",
                    table=name,
                )
        frozen = [name for name, weight in weights.items() if not weight.requires_grad]
        if 0 < len(frozen) < len(weights):
            raise UnsupportedError(
                f"{place}: the tables {frozen} have requires_grad=False, and {[n for n in weights if n not in frozen]} "
                "have not; a collection of Hotbed is frozen as a whole, so put the frozen tables into one of their own",
                parameter="requires_grad",
                table=frozen[0],
            )
        if self._kind is torchrec.EmbeddingCollection and module.need_indices():
            raise UnsupportedError(
                f"{place}: need_indices=True is not supported; the keys are in the batch", "need_indices", True
            )
        device = torch.device("cpu") if device is None else device
        comm = self._comms.of(env, device)
        optimizer = self._optimizer
        if isinstance(optimizer, Mapping):
            optimizer = {name: optimizer[name] for name in weights if name in optimizer}
        scale = self._sharded.gradient_scale * (1 if get_gradient_division() else comm.size)
        common = {
            "device": device,
            "optimizer": optimizer,
            "comm": comm,
            "sharded": dataclasses.replace(self._sharded, gradient_scale=scale),
            **self._more,
        }
        made: Any
        if self._kind is torchrec.EmbeddingBagCollection:
            configs = module.embedding_bag_configs()
            made = ShardedEmbeddingBagCollection(configs, is_weighted=module.is_weighted(), **common)
        else:
            made = ShardedEmbeddingCollection(module.embedding_configs(), **common)
        made.train(module.training).requires_grad_(not frozen)
        state = module.state_dict()
        hashed = {table.name for table in made._tables if table.is_hash}
        made.load_state_dict(
            {n: w for n, w in state.items() if w.device.type != "meta" and n.split(".")[-2] not in hashed}, strict=False
        )
        return made


class ManagedCollisionSharder(Sharder):
    """Replaces the collection inside of TorchRec's managed collisions; see :func:`sharders`, which makes it.

    TorchRec's module for the collisions stays as it is, so it is for one rank only.
    """

    @property
    def module_type(self) -> Type[torch.nn.Module]:
        """TorchRec's module."""
        bags = self._kind is torchrec.EmbeddingBagCollection
        of_bags, of_rows = managed.ManagedCollisionEmbeddingBagCollection, managed.ManagedCollisionEmbeddingCollection
        return of_bags if bags else of_rows  # type: ignore[no-any-return]

    def shardable_parameters(self, module: Any) -> Dict[str, torch.nn.Parameter]:
        """Return the weights by table, for the planner."""
        return super().shardable_parameters(getattr(module, "_embedding_module", module))

    def shard(
        self,
        module: Any,
        params: Mapping[str, Any],
        env: ShardingEnv,
        device: Optional[torch.device] = None,
        module_fqn: Optional[str] = None,
    ) -> Any:
        """Replace the module's collection, and return the module.

        Raises:
            UnsupportedError: several ranks, each of which would give the rows of all ranks to keys of its own.
        """
        if env.world_size > 1:
            raise UnsupportedError(
                f"{module_fqn or 'the model'}: {type(module).__name__} on {env.world_size} ranks: each would map keys "
                "to the tables' rows in its own way; use hash tables, with use_virtual_table=True, which take any key",
                value=env.world_size,
                limit=1,
            )
        module._embedding_module = super().shard(module._embedding_module, params, env, device, module_fqn)
        return module


def sharders(
    sharded: ShardedOptions,
    optimizer: Optimizers = SGD(),  # noqa: B008
    comm: Optional[Comm] = None,
    **more: Any,
) -> List[Sharder]:
    """Return sharders of TorchRec's ``EmbeddingBagCollection`` and ``EmbeddingCollection`` for a distributed model.

    They replace each module by :class:`~hotbed.torch.EmbeddingBagCollection` or ``EmbeddingCollection``, whose rows are
    sharded over the ranks of the model's process group.  TorchRec's planner accepts them; all tables are row-wise.

    Args:
        sharded: the largest batch, and how ranks exchange keys and rows.  The gradients of the ranks are averaged, as
            TorchRec and ``DistributedDataParallel`` do, and multiplied by ``gradient_scale``.
        optimizer: optimizer of the rows; a dict has one for each table of the model by its name; None: rows are only
            read.
        comm: the ranks; None: create a communicator of the process group's ranks.
        more: further arguments of the collections, for example ``seed``, ``check`` or ``options``.
    """
    comms = _Comms(comm)
    kinds = (torchrec.EmbeddingBagCollection, torchrec.EmbeddingCollection)
    return [one(kind, sharded, optimizer, comms, more) for one in (Sharder, ManagedCollisionSharder) for kind in kinds]


__all__ = [
    "KeyedFusedOptimizer",
    "ManagedCollisionSharder",
    "ShardedEmbeddingBagCollection",
    "ShardedEmbeddingCollection",
    "Sharder",
    "keyed_optimizer",
    "sharders",
]
