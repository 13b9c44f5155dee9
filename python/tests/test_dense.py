"""Checkpoints of models whose dense part ranks share: FSDP, fully_shard() and DTensors, on 2 ranks, 3 and 1."""

import importlib.util
import io

import pytest
import torch
import torch.distributed as dist
from conftest import run_ranks
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint

DIM, SAMPLES = 4, 8
MOST = ht.ShardedOptions(max_batch_size=SAMPLES, max_keys=200)


class Model(torch.nn.Module):
    """A static and a hash table, and a dense part with an inner block."""

    def __init__(self, comm=None, seed=1):
        super().__init__()
        tables = [
            ht.EmbeddingBagConfig(41, DIM, "s", feature_names=["s"]),
            ht.EmbeddingBagConfig(200, DIM, "h", feature_names=["h"], use_virtual_table=True),
        ]
        self.bags = ht.EmbeddingBagCollection(
            tables, optimizer=ht.Adam(lr=0.1), seed=seed, comm=comm, sharded=comm and MOST
        )
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(2 * DIM, 5)
        self.block = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
        self.last = torch.nn.Linear(7, 1)

    def forward(self, kjt):
        return self.last(self.block(self.first(self.bags(kjt).values()))).square().sum()


def plain(model):
    return model


def ddp(model):
    model.block = torch.nn.parallel.DistributedDataParallel(model.block)  # inner and outer wrappers
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp(model, **more):
    from torch.distributed.fsdp import FullyShardedDataParallel

    more = {"device_id": torch.device("cpu"), **more}
    model.block = FullyShardedDataParallel(model.block, **more)
    return FullyShardedDataParallel(model, **more)


def fsdp_of_original_parameters(model):
    return fsdp(model, use_orig_params=True)


def fsdp_of_a_part(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model.block = FullyShardedDataParallel(model.block, device_id=torch.device("cpu"))
    return model


def mesh():
    return dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))


def fully_sharded(model):
    from torch.distributed.fsdp import fully_shard

    over = mesh()
    fully_shard(model.block, mesh=over)
    return fully_shard(model, mesh=over)


def tensor_parallel(model):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    parallelize_module(model.first, mesh(), ColwiseParallel(output_layouts=Replicate()))
    return model


KINDS = {f.__name__: f for f in (plain, ddp, fsdp, fsdp_of_original_parameters, fsdp_of_a_part)}
if importlib.util.find_spec("torch.distributed.tensor.placement_types"):  # from PyTorch 2.5 on
    KINDS.update({f.__name__: f for f in (fully_sharded, tensor_parallel)})


#: What is saved: a kind and the number of groups of its optimizer.  Parameters that are flat have one.
SAVED = {kind: (kind, 1 if kind in ("fsdp", "fsdp_of_a_part") else 2) for kind in KINDS}
SAVED["one_group"] = ("plain", 1)
TRIED = [(name, kind) for name, (kind, _) in SAVED.items()] + [(name, "plain") for name in SAVED]
TRIED += [("one_group" if SAVED[kind][1] == 1 else "plain", kind) for kind in KINDS]
TRIED += [("fsdp", "fully_sharded"), ("fully_sharded", "ddp"), ("tensor_parallel", "fsdp_of_original_parameters")]


def make(kind, groups, comm, seed=1):
    """A model, wrapped, and its optimizer."""
    model = KINDS[kind](Model(comm, seed))
    if groups == 1:
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)
    small = [p for n, p in model.named_parameters() if n.endswith("bias")]
    others = [p for n, p in model.named_parameters() if not n.endswith("bias")]
    return model, torch.optim.AdamW([{"params": others}, {"params": small, "lr": 0.05}], lr=0.1)


def step(model, optimizer, seed):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (2 * SAMPLES,), generator=random)
    keys = torch.randint(0, 40, (int(lengths.sum()),), generator=random)
    loss = model(ht.KeyedJaggedTensor(["s", "h"], keys, lengths=lengths))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def bags_of(model):
    return next(m for m in model.modules() if isinstance(m, ht.EmbeddingBagCollection))


def clean(name):
    for wrapper in ("_fsdp_wrapped_module.", "module."):
        name = name.replace(wrapper, "")
    return name


def states(model, optimizer):
    """What PyTorch's own functions return of the dense part: whole values and optimizer states by name."""
    values, moments = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    tables = {name for name in values if "embedding_bags" in name}
    found = {clean(name): value for name, value in values.items() if name not in tables}
    for name, parts in moments["state"].items():
        found.update({f"{clean(name)}.{part}": value for part, value in parts.items()})
    return found


def check_equal(found, wanted, what):
    assert sorted(found) == sorted(wanted), what
    for name, value in wanted.items():
        assert torch.equal(found[name], value), f"{what}: {name}"


# --- what a rank does -------------------------------------------------------------------------------


def save(folder, comm):
    for name, (kind, groups) in SAVED.items():
        model, optimizer = make(kind, groups, comm)
        checkpoint.save(f"{folder}/{name}0", model, optimizer)  # without states
        for number in range(3):
            step(model, optimizer, 2 * number + comm.rank)
        checkpoint.save(f"{folder}/{name}", model, optimizer, step=3)
        checkpoint.async_save(f"{folder}/{name}-async", model, optimizer, step=4).wait()
        whole, rows = states(model, optimizer), ht.full_state_dict(bags_of(model))
        if comm.rank == 0:
            torch.save((whole, rows), f"{folder}/{name}.pt")


class Renamed(torch.nn.Linear):
    """A layer whose hooks rename its weight in state dicts, and that sums what it has loaded."""

    def __init__(self):
        super().__init__(3, 6)
        self.register_state_dict_post_hook(self.renamed)
        self.register_load_state_dict_pre_hook(self.renamed_back)
        self.register_load_state_dict_post_hook(self.loaded)

    @staticmethod
    def renamed(module, state, prefix, metadata):
        state[f"{prefix}double"] = state.pop(f"{prefix}weight") * 2

    @staticmethod
    def renamed_back(module, state, prefix, *_):
        state[f"{prefix}weight"] = state.pop(f"{prefix}double") / 2

    @staticmethod
    def loaded(module, keys):
        module.sum = whole(module.weight).sum().item()


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def hooks(folder, comm):
    """Hooks get and set the shared weights of a model."""
    values = torch.arange(18.0).reshape(6, 3)
    for name, kind in KINDS.items():
        if name == "tensor_parallel":
            continue  # names a layer of Model
        for way in ("save", "load"):
            model = Model(comm)
            model.block = Renamed()
            with torch.no_grad():
                model.block.weight.copy_(values if way == "save" else -values)
            inner, model = model.block, kind(model)
            if way == "save":
                checkpoint.save(f"{folder}/hooks-{name}", model)
            else:
                checkpoint.load(f"{folder}/hooks-{name}", model)
                assert inner.sum == values.sum(), name
                found = ht.full_state_dict(model) if not name.startswith("fsdp") else None
                assert found is None or torch.equal(find(found, "block.double"), 2 * values), name
        blob = checkpoint._blobs(f"{folder}/hooks-{name}")["dense"]
        saved = torch.load(io.BytesIO(blob), weights_only=True)["model"]
        assert torch.equal(saved["block.double"], 2 * values), name


def find(state, name):
    return next(value for key, value in state.items() if clean(key) == name)


def load(folder, comm):
    for name, kind in dict.fromkeys(pair for pair in TRIED if pair[0] in SAVED and pair[1] in KINDS):
        what, (own, groups) = f"{name} into {kind}", SAVED[name]
        wanted, rows = torch.load(f"{folder}/{name}.pt")
        model, optimizer = make(kind, groups, comm, seed=2)
        step(model, optimizer, 50 + comm.rank)
        saved = f"{folder}/{name}{'-async' if own == kind else ''}"
        assert checkpoint.load(saved, model, optimizer=optimizer).step == (4 if own == kind else 3), what
        check_equal(states(model, optimizer), wanted, what)
        assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.05][:groups], what
        found = ht.full_state_dict(bags_of(model))
        assert torch.equal(found["embedding_bags.s.weight"], rows["embedding_bags.s.weight"]), what
        if own == kind:
            step(model, optimizer, comm.rank)  # trains on
            checkpoint.load(f"{folder}/{name}0", model, optimizer=optimizer)
            assert not any(optimizer.state.values()), what


ROLES = {f.__name__: f for f in (save, load, hooks)}


def main(role, folder, rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/{role}{world}"), rank=rank, world_size=world)
    try:
        ROLES[role](folder, hotbed.Comm.from_group())
        dist.barrier()
    finally:
        dist.destroy_process_group()


# --- what is expected of them -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    try:
        checkpoint.save(folder / "probe", Model())
    except hotbed.UnsupportedError:
        pytest.skip("the library was built without HDF5")
    run_ranks(folder, 2, main, "save", folder)
    return folder


def test_three_ranks_load_a_dense_part_that_two_shared(saved):
    run_ranks(saved, 3, main, "load", saved)


def test_hooks_have_whole_weights(saved):
    run_ranks(saved, 2, main, "hooks", saved)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_rank_loads_a_dense_part_that_two_shared(saved):
    main("load", saved, 0, 1)
