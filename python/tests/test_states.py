"""State dicts of several ranks: torch.distributed.checkpoint from two ranks to three and one, full state dicts."""

import collections
import copy
import io
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from conftest import run_ranks
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import hotbed
import hotbed.torch as ht
from hotbed.torch.dcp import LoadPlanner

DIM, SAMPLES, STEPS = 4, 8, 3
MOST = ht.ShardedOptions(max_batch_size=SAMPLES, max_keys=400)
FEATURES = ["s", "h", "m", "n", "r"]


class Model(torch.nn.Module):
    """Sums and means, rows, and a dense part; static and hash tables, one of them a name with dots."""

    def __init__(self, comm=None, optimizer=ht.Adam, seed=1):
        super().__init__()
        more = {"optimizer": optimizer(lr=0.1), "seed": seed, "comm": comm, "sharded": comm and MOST}
        mean = {"pooling": ht.PoolingType.MEAN}
        self.bags = ht.EmbeddingBagCollection(
            [
                ht.EmbeddingBagConfig(41, DIM, "s", feature_names=["s"]),
                ht.EmbeddingBagConfig(200, DIM, "h.x", feature_names=["h"], use_virtual_table=True),
                ht.EmbeddingBagConfig(2, DIM, "m", feature_names=["m"], **mean),
                ht.EmbeddingBagConfig(
                    200,
                    DIM,
                    "n",
                    torch.float16,
                    feature_names=["n"],
                    use_virtual_table=True,
                    score=ht.Score.LFU,
                    **mean,
                ),
            ],
            **more,
        )
        self.rows = ht.EmbeddingCollection(
            [
                ht.EmbeddingConfig(41, DIM, "r", feature_names=["r"], use_virtual_table=True),
                ht.EmbeddingConfig(7, DIM, "none", feature_names=["none"], use_virtual_table=True),
            ],
            **more,
        )
        self.top = torch.nn.Linear(4 * DIM, 1)

    def step(self, seed):
        random = torch.Generator().manual_seed(seed)
        lengths = torch.randint(0, 5, (5 * SAMPLES,), generator=random)
        keys = torch.randint(0, 40, (int(lengths.sum()),), generator=random)
        keys[int(lengths[: 2 * SAMPLES].sum()) : int(lengths[: 3 * SAMPLES].sum())] %= 2
        lengths = torch.cat([lengths, torch.zeros(SAMPLES, dtype=torch.int64)])
        kjt = ht.KeyedJaggedTensor([*FEATURES, "none"], keys, lengths=lengths)
        rows = self.rows(kjt)["r"].values()
        (self.top(self.bags(kjt).values()).sum() + rows.sum()).backward()

    def optimizers(self):
        return {"bags": self.bags.fused_optimizer, "rows": self.rows.fused_optimizer}

    def states(self):
        return {"model": self.state_dict(), **{n: o.state_dict() for n, o in self.optimizers().items()}}

    def load(self, states):
        assert self.load_state_dict(states["model"]) == ([], [])
        for name, optimizer in self.optimizers().items():
            optimizer.load_state_dict(states[name])

    def full(self, rank=None):
        return {
            "model": ht.full_state_dict(self, rank),
            **{n: ht.full_state_dict(o, rank) for n, o in self.optimizers().items()},
        }


def by_key(states):
    """The full states with each hash table's rows in the order of the keys."""
    states = copy.deepcopy(states)
    rows = states["model"]
    for name in [name for name in rows if name.endswith("weight_id")]:
        order = torch.argsort(rows[name])
        for part in ("weight_id", "weight", "metadata"):
            rows[name[: -len("weight_id")] + part] = rows[name[: -len("weight_id")] + part][order]
    for optimizer in ("bags", "rows"):
        for parts in states[optimizer]["state"].values():
            if "keys" in parts:
                order = torch.argsort(parts["keys"])
                parts.update({name: part[order] for name, part in parts.items()})
    return states


def check_equal(found, wanted, path=""):
    assert type(found) is type(wanted), path
    if isinstance(found, dict):
        assert list(found) == list(wanted), path
        for name in found:
            check_equal(found[name], wanted[name], f"{path}.{name}")
    elif isinstance(found, torch.Tensor):
        assert found.dtype is wanted.dtype and torch.equal(found, wanted), path
    else:
        assert found == wanted, path


def check_refused(states, **where):
    """Without the planner, PyTorch from 2.6 on compares sizes."""
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6):
        with pytest.raises(dcp.api.CheckpointException, match="Size mismatch between saved"):
            dcp.load(states, **where)


# --- what a rank does -------------------------------------------------------------------------------


def save(folder, rank, world):
    comm = hotbed.Comm.from_group()
    torch.manual_seed(2)
    model = Model(comm)
    for step in range(STEPS):
        model.step(2 * step + rank)
    dcp.save(model.states(), checkpoint_id=f"{folder}/dcp")
    future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{folder}/async")
    future.result()  # it uses the process group, as a full state dict does
    full = model.full()
    first = model.full(rank=1)
    assert all((not part) == (rank != 1) for part in first.values())
    if rank == 1:
        check_equal(first, full)
        torch.save(full, f"{folder}/full")
    state = model.state_dict()
    weight = state["bags.embedding_bags.s.weight"]
    assert weight.shape == (41, DIM) and weight.to_local().shape[0] == (21, 20)[rank] and weight.is_contiguous()
    for kept in (state, copy.deepcopy(dict(state)), {n: t.detach().clone().cpu() for n, t in state.items()}):
        with pytest.raises(hotbed.UnsupportedError, match=f"rank {rank}'s chunk of the rows, one of 2"):
            torch.save(kept, io.BytesIO())
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    check_equal(whole, dict(full["model"]))
    with pytest.raises(RuntimeError, match=r"ranks 0 and 1 load state dicts that differ in the entry"):
        model.load_state_dict(state if rank == 0 else {"bags.embedding_bags.s.weight": weight}, strict=False)
    wrong = dict(state)
    wrong["bags.embedding_bags.s.weight"] = wrong["bags.embedding_bags.s.weight"].redistribute(
        placements=[torch.distributed.tensor.Replicate()]
    )
    with pytest.raises(RuntimeError, match=r"s.weight: a DTensor with .*; the rows of this table are sharded over 2"):
        model.load_state_dict(wrong)


def other(rank, comm=None):
    """A model with other rows and other keys, which a load replaces."""
    torch.manual_seed(5)
    model = Model(comm, seed=9)
    model.step(50 + rank)
    model.bags.set_rows("h.x", torch.arange(50, 90), torch.ones(40, DIM))
    return model


def load(folder, rank, world):
    comm = hotbed.Comm.from_group()
    wanted = torch.load(f"{folder}/full")

    def check(model):
        check_equal(by_key(model.full()), by_key(wanted))

    model = other(rank, comm)
    states = model.states()
    check_refused(states, checkpoint_id=f"{folder}/dcp")
    dcp.load(states, checkpoint_id=f"{folder}/dcp", planner=LoadPlanner())
    model.load(states)
    check(model)

    model = other(rank, comm)  # as Stateful objects
    dcp.load({"model": model, **model.optimizers()}, checkpoint_id=f"{folder}/dcp", planner=LoadPlanner())
    check(model)

    model = other(rank, comm)  # by the functions for models that are wrapped
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=f"{folder}/async", planner=LoadPlanner())
    set_model_state_dict(model, state["model"])
    check_equal(by_key({**wanted, "model": ht.full_state_dict(model)}), by_key(wanted))

    model = other(rank, comm)
    model.load(wanted)
    check(model)


def distributed(seed):
    """A model of TorchRec under its DistributedModelParallel."""
    import torchrec
    from torchrec.distributed.model_parallel import DistributedModelParallel

    from hotbed.torch.torchrec import sharders

    meta, common = torch.device("meta"), {"embedding_dim": DIM, "num_embeddings": 41}
    bags = [
        torchrec.EmbeddingBagConfig(name="s", feature_names=["s"], **common),
        torchrec.EmbeddingBagConfig(name="h", feature_names=["h"], use_virtual_table=True, **common),
    ]
    rows = [torchrec.EmbeddingConfig(name="r", feature_names=["r"], use_virtual_table=True, **common)]
    model = torch.nn.ModuleDict(
        {
            "bags": torchrec.EmbeddingBagCollection(tables=bags, device=meta),
            "rows": torchrec.EmbeddingCollection(tables=rows, device=meta),
        }
    )
    more = {"optimizer": ht.Adam(lr=0.1), "seed": seed}
    return DistributedModelParallel(model, device=torch.device("cpu"), sharders=sharders(MOST, **more))


def step_distributed(model, seed):
    import torchrec

    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (3 * SAMPLES,), generator=random)
    keys = torch.randint(0, 40, (int(lengths.sum()),), generator=random)
    kjt = torchrec.KeyedJaggedTensor(["s", "h", "r"], keys, lengths=lengths)
    rows = model.module["rows"](kjt)["r"].values()
    (model.module["bags"](kjt).values().sum() + rows.sum()).backward()


def states_of(model):
    return {"model": model.state_dict(), "optimizer": model.fused_optimizer.state_dict()}


def by_key_distributed(model):
    """Rows and states by table and key."""
    full = ht.full_state_dict(model)
    found = {"s": full["bags.embedding_bags.s.weight"].tolist()}
    states = ht.full_state_dict(model.fused_optimizer)["state"]
    for name in ("bags.embedding_bags.h", "rows.embeddings.r"):
        rows = zip(full[f"{name}.weight_id"].tolist(), full[f"{name}.weight"].tolist())
        found[name] = sorted(rows)
        parts = states[f"{name}.weight"]["rows"]
        found[f"{name}.states"] = sorted(zip(*(parts[part].tolist() for part in ("keys", "exp_avg", "exp_avg_sq"))))
    found["states"] = {n: p.tolist() for n, p in states["bags.embedding_bags.s.weight"]["rows"].items() if n != "clock"}
    return found


def save_distributed(folder, rank, world):
    model = distributed(seed=1)
    for step in range(STEPS):
        step_distributed(model, 2 * step + rank)
    dcp.save(states_of(model), checkpoint_id=f"{folder}/distributed")
    wanted = by_key_distributed(model)
    if rank == 0:
        torch.save(wanted, f"{folder}/by_key")


def load_distributed(folder, rank, world):
    model = distributed(seed=2)
    step_distributed(model, 50 + rank)
    states = states_of(model)
    dcp.load(states, checkpoint_id=f"{folder}/distributed", planner=LoadPlanner())
    model.load_state_dict(states["model"])
    model.fused_optimizer.load_state_dict(states["optimizer"])
    assert by_key_distributed(model) == torch.load(f"{folder}/by_key")


def dealt(comm, route):
    """A collection of static tables whose numbers of rows are multiples of the ranks' or not."""
    tables = [ht.EmbeddingBagConfig(n, DIM, f"t{n}", feature_names=[f"f{n}"]) for n in (12, 41)]
    tables.append(ht.EmbeddingBagConfig(7, DIM, "kept", feature_names=["g"], track_changes=True))
    sharded = ht.ShardedOptions(routes={table.name: route for table in tables})
    return ht.EmbeddingBagCollection(tables, optimizer=ht.Adagrad(lr=0.1), comm=comm, sharded=sharded, seed=comm.size)


def rows_of_keys(made):
    """The rows and states of all ranks by table, in the order of the keys."""
    found = {}
    for storage in made.storages:
        for number, table in enumerate(storage.tables):
            parts = storage.rows(number, torch.arange(table.rows), ["weight", *storage.state_names()])
            for part in parts.values():
                dist.all_reduce(part)  # a rank has zeros for keys of others
            found[table.name] = parts
    return found


def check_dealt(made, wanted):
    check_equal(rows_of_keys(made), wanted)
    states = ht.full_state_dict(made.fused_optimizer)["state"]
    for name, weight in ht.full_state_dict(made).items():
        table = name.split(".")[1]
        check_equal({"weight": weight, **states[table]}, wanted[table])


def save_dealt(folder, rank, world):
    made = dealt(hotbed.Comm.from_group(), ht.Route.ROUND_ROBIN)
    keys = torch.randint(0, 7, (3 * SAMPLES,))
    out = made(ht.KeyedJaggedTensor(["f12", "f41", "g"], keys, lengths=torch.ones_like(keys)))
    out.values().square().sum().backward()
    wanted = rows_of_keys(made)
    check_dealt(made, wanted)
    dcp.save({"model": made.state_dict(), "opt": made.fused_optimizer.state_dict()}, checkpoint_id=f"{folder}/dealt")
    if rank == 0:
        torch.save(wanted, f"{folder}/wanted")
        torch.save((ht.full_state_dict(made, 0), ht.full_state_dict(made.fused_optimizer, 0)), f"{folder}/whole")
    else:
        ht.full_state_dict(made, 0), ht.full_state_dict(made.fused_optimizer, 0)


def load_dealt(folder, rank, world):
    comm, wanted = hotbed.Comm.from_group(), torch.load(f"{folder}/wanted")
    for route in (ht.Route.ROUND_ROBIN, ht.Route.CONTINUOUS):
        made = dealt(comm, route)
        states = {"model": made.state_dict(), "opt": made.fused_optimizer.state_dict()}
        dcp.load(states, checkpoint_id=f"{folder}/dealt")
        made.load_state_dict(states["model"])
        made.fused_optimizer.load_state_dict(states["opt"])
        check_dealt(made, wanted)
        made = dealt(comm, route)
        rows, states = torch.load(f"{folder}/whole")
        made.load_state_dict(rows)
        made.fused_optimizer.load_state_dict(states)
        check_dealt(made, wanted)


ROLES = {f.__name__: f for f in (save, load, save_distributed, load_distributed, save_dealt, load_dealt)}


def main(role, folder, rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/{role}{world}"), rank=rank, world_size=world)
    try:
        ROLES[role](folder, rank, world)
        dist.barrier()
    finally:
        dist.destroy_process_group()


# --- what is expected of them -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    run_ranks(folder, 2, main, "save", folder)
    return folder


def test_rows_that_ranks_are_dealt_in_turn_have_the_order_of_the_keys(tmp_path):
    run_ranks(tmp_path, 2, main, "save_dealt", tmp_path)
    run_ranks(tmp_path, 3, main, "load_dealt", tmp_path)


def test_two_ranks_save_by_dcp_and_three_load(saved):
    run_ranks(saved, 3, main, "load", saved)


def test_one_rank_of_a_process_group_loads_what_two_saved(saved):
    main("load", saved, 0, 1)


def test_distributed_models_load_on_other_numbers_of_ranks(tmp_path):
    pytest.importorskip("torchrec")
    run_ranks(tmp_path, 2, main, "save_distributed", tmp_path)
    run_ranks(tmp_path, 3, main, "load_distributed", tmp_path)
    main("load_distributed", tmp_path, 0, 1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_single_process_loads_what_two_ranks_saved(saved):
    """Without a process group."""
    wanted = torch.load(saved / "full")
    dcp_to_torch_save(saved / "dcp", saved / "converted")
    for kind in ("dcp", "full", "converted"):
        model = other(0)
        states = wanted if kind == "full" else torch.load(saved / "converted", weights_only=False)
        if kind == "dcp":
            states = model.states()
            check_refused(states, checkpoint_id=saved / "dcp", no_dist=True)
            dcp.load(states, checkpoint_id=saved / "dcp", no_dist=True, planner=LoadPlanner())
        model.load(states)
        check_equal(by_key(model.full()), by_key(wanted))


@pytest.mark.parametrize("optimizer", [ht.SGD, ht.Adam])
def test_tensors_of_a_state_dict_have_memory_of_their_own(optimizer):
    model = Model(optimizer=optimizer)
    model.step(1)
    states = model.states()
    for part in [*states["model"].values(), *states["bags"]["state"]["s"].values()]:
        assert part.is_contiguous() and part.untyped_storage().nbytes() == part.numel() * part.element_size()
    file = io.BytesIO()
    torch.save(states["model"]["bags.embedding_bags.s.weight"], file)
    assert len(file.getvalue()) < 41 * DIM * 4 + 2000


class Pair(NamedTuple):
    number: int
    tensor: torch.Tensor


def test_a_full_state_dict_keeps_types():
    class Extra(torch.nn.Module):
        def get_extra_state(self):
            return {"pair": Pair(1, torch.ones(1)), "size": torch.Size([2]), "counts": collections.Counter("ab")}

    found = ht.full_state_dict(Extra())["_extra_state"]
    assert [type(part) for part in found.values()] == [Pair, torch.Size, collections.Counter]


def test_dcps_functions_for_models_of_one_process():
    model, again = Model(), Model(seed=3)
    model.step(1)
    assert list(get_model_state_dict(model)) == list(model.state_dict())
    again.rows.set_rows("r", torch.tensor([7]), torch.ones(1, DIM))
    set_model_state_dict(again, get_model_state_dict(model))
    check_equal(again.state_dict(), model.state_dict())
    assert not hasattr(model.bags, "embeddings") and not hasattr(model.bags.embedding_bags, "t")
    assert not hasattr(model.bags.embedding_bags.s, "weight_id")


def test_dcps_functions_refuse_the_fused_optimizer():
    model = torch.nn.ModuleDict({"model": Model(), "top": torch.nn.Linear(1, 1)})
    fused, dense = model["model"].rows.fused_optimizer, torch.optim.Adam(model["top"].parameters())
    saved = get_optimizer_state_dict(model, dense)
    for call in (
        lambda: get_state_dict(model, [dense, fused]),
        lambda: get_optimizer_state_dict(model, fused),
        lambda: set_optimizer_state_dict(model, [dense, fused], saved),
    ):
        with pytest.raises(hotbed.UnsupportedError, match="pass them the optimizers of the dense part"):
            call()
    assert fused.param_groups[0]["lr"] == 0.1 and not fused.state
