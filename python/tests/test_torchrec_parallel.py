"""Models of TorchRec under its DistributedModelParallel with Hotbed's tables, on two ranks: CPUs with gloo, or GPUs.

Run as a program, this file is one rank: ``test_torchrec_parallel.py FOLDER cpu|cuda RANK``.
"""

import datetime
import io
import shutil
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp

import hotbed
import hotbed.torch as ht
from hotbed.torch.dcp import LoadPlanner

torchrec = pytest.importorskip("torchrec")
from torchrec.datasets.utils import Batch  # noqa: E402
from torchrec.distributed.comm_ops import set_gradient_division  # noqa: E402
from torchrec.distributed.model_parallel import DistributedModelParallel  # noqa: E402
from torchrec.distributed.train_pipeline import EvalPipelineSparseDist, TrainPipelineSparseDist  # noqa: E402
from torchrec.distributed.types import ShardingEnv, ShardingEnv2D  # noqa: E402
from torchrec.models.dlrm import DLRM, DLRMTrain  # noqa: E402
from torchrec.modules import mc_modules  # noqa: E402
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection  # noqa: E402
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper  # noqa: E402
from torchrec.optim.optimizers import in_backward_optimizer_filter  # noqa: E402

from hotbed.torch.torchrec import ShardedEmbeddingBagCollection, sharders  # noqa: E402

ROWS, DIM, SAMPLES, STEPS, RANKS, LR = 41, 8, 6, 5, 2, 0.2
FEATURES, LONGEST = ["f", "g", "h"], datetime.timedelta(seconds=120)
MOST = ht.ShardedOptions(max_batch_size=SAMPLES, max_keys=200)


def batch(step, ranks):
    """The samples of some ranks in one step."""
    lengths, values, dense, labels = [], {f: [] for f in FEATURES}, [], []
    for rank in ranks:
        random = torch.Generator().manual_seed(100 * step + rank)
        lengths.append(torch.randint(0, 5, (len(FEATURES), SAMPLES), generator=random))
        for feature, counts in zip(FEATURES, lengths[-1]):
            values[feature].append(torch.randint(0, ROWS, (int(counts.sum()),), generator=random))
        dense.append(torch.randn(SAMPLES, 4, generator=random))
        labels.append(torch.randint(0, 2, (SAMPLES,), generator=random))
    keys = torch.cat([part for feature in FEATURES for part in values[feature]])
    kjt = torchrec.KeyedJaggedTensor(FEATURES, keys, lengths=torch.cat(lengths, 1).flatten())
    return Batch(torch.cat(dense), kjt, torch.cat(labels))


def dlrm(collection=None):
    torch.manual_seed(7)
    tables = [
        torchrec.EmbeddingBagConfig(name="item", embedding_dim=DIM, num_embeddings=ROWS, feature_names=["h", "f"]),
        torchrec.EmbeddingBagConfig(
            name="user",
            embedding_dim=DIM,
            num_embeddings=ROWS,
            feature_names=["g"],
            pooling=torchrec.PoolingType.MEAN,
        ),
    ]
    theirs = torchrec.EmbeddingBagCollection(tables=tables)  # made in any case, for the same random numbers
    return DLRMTrain(DLRM(collection or theirs, 4, [8, DIM], [8, 1]))


def dense_optimizer(model):
    parameters = dict(in_backward_optimizer_filter(model.named_parameters()))
    return KeyedOptimizerWrapper(parameters, lambda p: torch.optim.SGD(p, lr=LR))


def mean(loss):
    """The mean of the ranks' losses."""
    torch.distributed.all_reduce(every := loss.detach() / RANKS)
    return float(every)


OPTIMIZERS = {"a": ht.Adam(lr=0.1), "b": ht.Adam(lr=0.2), "c": ht.Adam(lr=0.1), "d": ht.Adam(lr=0.1)}


class Mixed(torch.nn.Module):
    """Bags and rows, of static tables and of hash tables."""

    def __init__(self, bags, rows):
        super().__init__()
        self.bags, self.rows = bags, rows
        self.top = torch.nn.Linear(2 * DIM, 1)

    def forward(self, kjt):
        rows = torch.cat([jagged.values() for jagged in self.rows(kjt).values()])
        # A sum, because ranks have different numbers of keys.
        return self.top(self.bags(kjt).values()).square().sum() + rows.square().sum()


def mixed(make_bags=torchrec.EmbeddingBagCollection, make_rows=torchrec.EmbeddingCollection, **more):
    torch.manual_seed(7)
    common = {"embedding_dim": DIM, "num_embeddings": ROWS}
    hashed = {**common, "use_virtual_table": True}
    bags = [
        torchrec.EmbeddingBagConfig(name="a", feature_names=["f"], **common),
        torchrec.EmbeddingBagConfig(name="b", feature_names=["g"], **hashed),
    ]
    rows = [
        torchrec.EmbeddingConfig(name="c", feature_names=["g", "h"], **common),
        torchrec.EmbeddingConfig(name="d", feature_names=["f"], **hashed),
    ]
    return Mixed(make_bags(tables=bags, **more), make_rows(tables=rows, **more))


def train_mixed(model, steps):
    losses = []
    for step in steps:
        loss = model(batch(step, [torch.distributed.get_rank()]).sparse_features.to(model.device))
        loss.backward()
        losses.append(mean(loss))
        model.module.top.zero_grad()
    return losses


# --- what both ranks do -----------------------------------------------------------------------------


def run_dlrm(rank, device):
    """Train with a learning rate that changes."""
    own = dlrm()
    names = list(own.state_dict())
    model = DistributedModelParallel(own, device=device, sharders=sharders(MOST, optimizer=ht.SGD(lr=LR)))
    optimizer = CombinedOptimizer([model.fused_optimizer, dense_optimizer(model)])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    assert len(optimizer.param_groups) == 2
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = model(batch(step, [rank]).to(device))
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(mean(loss))
    assert sorted(model.state_dict()) == sorted(names)
    with pytest.raises(hotbed.UnsupportedError, match="cannot be pickled or copied"):
        model.copy(torch.device("cpu"))
    return losses, ht.full_state_dict(model)


def run_pipeline(rank, device):
    """Train and evaluate by TorchRec's pipeline; sizes follow the batches, and rows travel."""
    sharded = ht.ShardedOptions(plan=ht.Plan.TWO_PHASE, exchanges=ht.PooledExchange.ROWS)
    model = DistributedModelParallel(dlrm(), device=device, sharders=sharders(sharded, optimizer=ht.SGD(lr=LR)))
    assert "item=(41, 8) by rows" in repr(model)
    optimizer = CombinedOptimizer([model.fused_optimizer, dense_optimizer(model)])
    pipeline = TrainPipelineSparseDist(model, optimizer, device)
    batches = iter([batch(step, [rank]) for step in range(STEPS)])
    losses = [mean(pipeline.progress(batches)[0]) for _ in range(STEPS)]
    assert model.module.model.sparse_arch.embedding_bag_collection.is_pipelined
    model.eval()
    before = ht.full_state_dict(model)
    evaluation = EvalPipelineSparseDist(model, optimizer, device)
    with torch.no_grad():
        losses.append(mean(evaluation.progress(iter([batch(STEPS, [rank])]))[0]))
    assert all(torch.equal(before[name], value) for name, value in ht.full_state_dict(model).items())
    return losses


def run_mixed(rank, device):
    """Save by torch.distributed.checkpoint, load into another model, and train on."""
    more = {"optimizer": OPTIMIZERS, "seed": 3}
    meta = torch.device("meta")
    model = DistributedModelParallel(mixed(device=meta), device=device, sharders=sharders(MOST, **more))
    losses = train_mixed(model, range(3))
    rows, states = model.state_dict(), model.fused_optimizer.state_dict()
    assert {"bags.embedding_bags.a.weight", "rows.embeddings.d.weight_id"} <= set(rows)
    assert set(states["state"]["rows.embeddings.d.weight"]["rows"]) == {"exp_avg", "exp_avg_sq", "keys", "clock"}
    with pytest.raises(hotbed.UnsupportedError, match=rf"rank {rank}'s chunk of the rows, one of {RANKS}"):
        torch.save(rows, io.BytesIO())
    paths = [tempfile.mkdtemp() if rank == 0 else ""]
    torch.distributed.broadcast_object_list(paths)
    dcp.save({"model": rows, "optimizer": states}, checkpoint_id=paths[0])
    full, optimizer = ht.full_state_dict(model), ht.full_state_dict(model.fused_optimizer)
    losses += train_mixed(model, range(3, STEPS))
    for load in ("dcp", "full"):
        again = DistributedModelParallel(mixed(device=meta), device=device, sharders=sharders(MOST, **more))
        assert train_mixed(again, [0]) == losses[:1]
        state = {"model": full, "optimizer": optimizer}
        if load == "dcp":
            state = {"model": again.state_dict(), "optimizer": again.fused_optimizer.state_dict()}
            dcp.load(state, checkpoint_id=paths[0], planner=LoadPlanner())
        missing, unexpected = again.load_state_dict(state["model"])  # the dense part, too
        assert not missing and not unexpected
        again.fused_optimizer.load_state_dict(state["optimizer"])
        assert train_mixed(again, range(3, STEPS)) == losses[3:]
    torch.distributed.barrier()
    shutil.rmtree(paths[0], ignore_errors=True)
    return losses, len(model.module.bags.keys("b"))


def run_options(rank, device):
    """Sharders with a given communicator, without an optimizer, and with TorchRec's sum of gradients."""
    with pytest.raises(
        hotbed.ArgumentError, match=f"comm= is rank 0 of 1, but the process group's rank is {rank} of 2"
    ):
        DistributedModelParallel(dlrm(), device=device, sharders=sharders(MOST, comm=hotbed.Comm()))
    comm = hotbed.Comm.from_group(device=device)
    set_gradient_division(False)
    model = DistributedModelParallel(dlrm(), device=device, sharders=sharders(MOST, optimizer=None, comm=comm))
    set_gradient_division(True)
    collection = model.module.model.sparse_arch.embedding_bag_collection
    assert collection.comm is comm and collection.storages[0].sharded.gradient_scale == RANKS
    model(batch(0, [rank]).to(device))[0].backward()
    assert not model.fused_optimizer.params


def run_own(rank, device):
    """A model with a collection of hotbed.torch, which stays as it is."""
    comm = hotbed.Comm.from_group(device=device)
    tables = dlrm().model.sparse_arch.embedding_bag_collection.embedding_bag_configs()
    own = ht.EmbeddingBagCollection(tables, device=device, optimizer=ht.SGD(lr=LR), comm=comm, sharded=MOST)
    own.load_state_dict(dlrm().model.sparse_arch.embedding_bag_collection.state_dict())
    model = DistributedModelParallel(dlrm(own), device=device, sharders=sharders(MOST))
    assert model.module.model.sparse_arch.embedding_bag_collection is own
    optimizer = dense_optimizer(model)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = model(batch(step, [rank]).to(device))
        loss.backward()
        optimizer.step()
        losses.append(mean(loss))
    return losses, ht.full_state_dict(model)


def run_without_samples(rank, device):
    """One rank has a batch without samples."""
    more = {"optimizer": ht.SGD(lr=LR), "seed": 3}
    own = mixed(device=torch.device("meta"))
    model = DistributedModelParallel(own, device=device, sharders=sharders(ht.ShardedOptions(), **more))
    kjt = batch(0, [0]).sparse_features.to(device)
    if rank == 1:
        none = torch.zeros(0, dtype=torch.int64, device=device)
        kjt = torchrec.KeyedJaggedTensor(FEATURES, none, lengths=none.int())
    model(kjt).backward()
    return len(model.module.bags.keys("b"))


def run_frozen(rank, device):
    """Train with frozen bags; then train them, too.  Returns whether each of both collections changed."""
    own = mixed(device=torch.device("meta"))
    own.bags.requires_grad_(False)
    more = {"optimizer": OPTIMIZERS, "seed": 3}
    model = DistributedModelParallel(own, device=device, sharders=sharders(ht.ShardedOptions(), **more))
    found, before = [], ht.full_state_dict(model)
    for _ in range(2):
        train_mixed(model, [0])
        after = ht.full_state_dict(model)
        names = ("bags.embedding_bags.a.weight", "rows.embeddings.c.weight")
        found.append([not torch.equal(before[name], after[name]) for name in names])
        before = after
        model.requires_grad_(True)
    return found


RUNS = {
    f.__name__: f for f in (run_dlrm, run_pipeline, run_mixed, run_options, run_own, run_without_samples, run_frozen)
}


def main(folder, kind, rank):
    torch.set_num_threads(1)
    device, backend = torch.device(kind), "gloo"
    if kind == "cuda":
        device, backend = torch.device("cuda", rank), "nccl"
        torch.cuda.set_device(device)
    for name, function in RUNS.items():
        store = torch.distributed.FileStore(f"{folder}/{name}", RANKS)
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=LONGEST)
        torch.save(function(rank, device), f"{folder}/{name}.{rank}")
        torch.distributed.destroy_process_group()


# --- what is expected of them -----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def results(request, tmp_path_factory):
    if request.param == "cuda" and ("cuda" not in hotbed.backends() or torch.cuda.device_count() < RANKS):
        pytest.skip(f"the library or PyTorch does not have {RANKS} GPUs")
    folder = tmp_path_factory.mktemp("ranks")
    program = [sys.executable, "-W", "ignore", __file__, str(folder), request.param]
    ranks = []
    for rank in range(RANKS):
        with open(folder / f"log.{rank}", "w") as log:
            ranks.append(subprocess.Popen([*program, str(rank)], stdout=log, stderr=subprocess.STDOUT))
    codes = [rank.wait() for rank in ranks]
    assert not any(codes), "".join((folder / f"log.{rank}").read_text()[-3000:] for rank in range(RANKS))

    def saved(name, rank):
        return torch.load(folder / f"{name}.{rank}", map_location="cpu", weights_only=False)

    return {name: [saved(name, rank) for rank in range(RANKS)] for name in RUNS}


def expected_dlrm(gamma=1.0):
    """Losses and state dict of TorchRec's DLRM with the samples of all ranks, and the next step's loss."""
    model, losses = dlrm(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=gamma)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = model(batch(step, range(RANKS)))
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        following = float(model(batch(STEPS, range(RANKS)))[0])
    return losses, model.state_dict(), following


def check_state(found, expected):
    for name, value in expected.items():
        for _, state in found:
            torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)


def test_a_dlrm_trains_as_on_one_rank(results):
    losses, state, _ = expected_dlrm(gamma=0.5)
    for found, _ in results["run_dlrm"]:
        assert found == pytest.approx(losses, rel=1e-5)
    check_state(results["run_dlrm"], state)


def test_torchrecs_pipeline_trains_alike(results):
    losses, _, following = expected_dlrm()
    for found in results["run_pipeline"]:
        assert found == pytest.approx([*losses, following], rel=1e-5)


def test_bags_and_rows_of_hash_tables(results):
    def make(kind):
        return lambda tables: kind(tables, optimizer={table.name: OPTIMIZERS[table.name] for table in tables}, seed=3)

    one, expected = mixed(make(ht.EmbeddingBagCollection), make(ht.EmbeddingCollection)), []
    for step in range(STEPS):
        loss = one(batch(step, range(RANKS)).sparse_features) / RANKS  # the mean of the ranks' sums
        loss.backward()
        expected.append(float(loss.detach()))
    for losses, _ in results["run_mixed"]:
        assert losses == pytest.approx(expected, rel=1e-5)
    assert sum(keys for _, keys in results["run_mixed"]) == len(one.bags.keys("b"))


def test_collections_of_hotbed_stay_as_they_are(results):
    losses, state, _ = expected_dlrm()
    for found, _ in results["run_own"]:
        assert found == pytest.approx(losses, rel=1e-5)
    check_state(results["run_own"], state)


def test_a_rank_may_have_no_samples(results):
    keys = batch(0, [0]).sparse_features["g"].values()
    assert sum(results["run_without_samples"]) == len(keys.unique())


def test_tables_that_are_frozen_stay_frozen(results):
    assert results["run_frozen"] == [[[False, True], [True, True]]] * RANKS


def test_managed_collisions_are_for_one_rank():
    """Each rank would map keys to rows of the shared tables in its own way."""
    table = torchrec.EmbeddingBagConfig(name="t", embedding_dim=DIM, num_embeddings=ROWS, feature_names=["f"])
    policy = mc_modules.DistanceLFU_EvictionPolicy()
    collisions = mc_modules.MCHManagedCollisionModule(
        zch_size=ROWS,
        device=torch.device("cpu"),
        eviction_policy=policy,
        eviction_interval=1,
        input_hash_size=2**40,
    )
    model = ManagedCollisionEmbeddingBagCollection(
        torchrec.EmbeddingBagCollection(tables=[table]),
        mc_modules.ManagedCollisionCollection({"t": collisions}, [table]),
    )
    by_type = {one.module_type: one for one in sharders(MOST, comm=hotbed.Comm(), optimizer=ht.SGD(lr=1.0))}
    sharder = by_type[ManagedCollisionEmbeddingBagCollection]
    assert list(sharder.shardable_parameters(model)) == ["t"]
    with pytest.raises(hotbed.UnsupportedError, match=r"sparse: ManagedCollisionEmbeddingBagCollection on 2 ranks: "):
        sharder.shard(model, {}, ShardingEnv.from_local(RANKS, 0), module_fqn="sparse")
    assert sharder.shard(model, {}, SimpleNamespace(process_group=object(), rank=0, world_size=1)) is model
    assert isinstance(model._embedding_module, ShardedEmbeddingBagCollection)
    pooled, _ = model(torchrec.KeyedJaggedTensor(["f"], torch.tensor([2**39, 5]), lengths=torch.tensor([1, 1])))
    before = model._embedding_module.weight("t").clone()
    pooled.values().sum().backward()
    assert (model._embedding_module.weight("t") != before).any(dim=1).sum() == 2


def test_wrong_uses_are_named():
    bags, rows, *_ = sharders(MOST)
    model, table_wise = dlrm().model.sparse_arch.embedding_bag_collection, SimpleNamespace(sharding_type="table_wise")
    env = ShardingEnv.from_local(RANKS, 0)
    with pytest.raises(hotbed.UnsupportedError, match="sparse: the plan has table 'item' as table_wise"):
        bags.shard(model, {"item": table_wise}, env, module_fqn="sparse")
    with pytest.raises(hotbed.ArgumentError, match="no process group"):
        bags.shard(model, {}, env)
    replicas = ShardingEnv2D.__new__(ShardingEnv2D)  # of DMPCollection, which needs more than two ranks
    replicas.process_group = object()
    with pytest.raises(hotbed.UnsupportedError, match="DMPCollection: Hotbed's tables have one copy"):
        bags.shard(model, {}, replicas)
    tables = [torchrec.EmbeddingConfig(name="t", embedding_dim=DIM, num_embeddings=ROWS, feature_names=["f"])]
    with pytest.raises(hotbed.UnsupportedError, match="EmbeddingCollection: need_indices=True"):
        rows.shard(torchrec.EmbeddingCollection(tables=tables, need_indices=True), {}, env)
    alone = ShardedEmbeddingBagCollection(model.embedding_bag_configs(), comm=hotbed.Comm(), sharded=MOST)
    strides = [[1], [1], [0]]
    varying = torchrec.KeyedJaggedTensor(
        FEATURES, torch.tensor([1, 2]), lengths=torch.ones(2, dtype=torch.int64), stride_per_key_per_rank=strides
    )
    with pytest.raises(hotbed.UnsupportedError, match="must have the same number of samples"):
        alone(varying)
    model.embedding_bags["user"].weight.requires_grad_(False)
    with pytest.raises(
        hotbed.UnsupportedError, match=r"sparse: the tables \['user'\] have requires_grad=False, and \['it"
    ):
        bags.shard(model, {}, env, module_fqn="sparse")
    model.embedding_bags["user"].weight._optimizer_classes = [torch.optim.SGD]
    with pytest.raises(hotbed.ArgumentError, match="table 'user' has an optimizer of apply_optimizer_in_backward"):
        bags.shard(model, {}, env)


def test_the_planner_counts_the_memory_where_the_rows_are():
    weight = torch.empty(10, 4, device="meta")
    for options, place in ((None, "hbm"), ({"hbm_bytes": 64}, "ddr")):
        for sharder in sharders(MOST, options=options):
            assert sharder.storage_usage(weight, "cuda", "fused") == {place: 160}
            assert sharder.fused_params is None  # the planners of TorchRec 1.5 and 1.6 read it


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
