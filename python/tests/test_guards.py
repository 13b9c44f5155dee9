"""What does not pass silently: bad gradients, scaled ones, frozen tables, what is not of a dense part."""

import math
import warnings

import pytest
import torch
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint


def collection(**more):
    configs = [
        ht.EmbeddingBagConfig(100, 4, name, feature_names=[name], use_virtual_table=name == "h") for name in ("h", "s")
    ]
    return ht.EmbeddingBagCollection(configs, **{"optimizer": ht.Adagrad(lr=0.1), **more})


def pooled(made, keys=4):
    return made(ht.KeyedJaggedTensor(["h", "s"], torch.arange(keys).repeat(2), lengths=torch.ones(2 * keys).long()))


def train(made, bad):
    """A step whose gradient is `bad` for key 1 of table h, and 1 elsewhere."""
    out = pooled(made).values()
    gradient = torch.ones_like(out)
    gradient[1, 2] = bad
    out.backward(gradient)


# --- gradients that are NaN or infinite ------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_with_a_bad_gradient_stays_and_is_counted(bad):
    made, other = collection(), collection()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(made, 1.0)
        train(other, 1.0)
    before, keys = made.rows("h", torch.arange(4)), torch.arange(4)
    with pytest.warns(UserWarning, match="table 'h': the gradient of key 1 is NaN or infinite; .* see stats"):
        train(made, bad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning for each table
        train(made, bad)
        train(other, 1.0)
        train(other, 1.0)
    assert torch.equal(made.rows("h", keys)[1], before[1])
    assert torch.equal(made.rows("h", keys)[[0, 2, 3]], other.rows("h", keys)[[0, 2, 3]])
    assert made.stats("h")["nonfinite"] == 2 and made.stats("s")["nonfinite"] == 0
    states = made.fused_optimizer.state_dict()["state"]["h"]["sum"]
    assert bool(states.isfinite().all())


def test_a_bad_gradient_may_be_an_error_or_pass():
    made = collection(nonfinite="raise")
    pooled(made)
    with pytest.raises(hotbed.ArgumentError, match="table 'h': the gradient of key 1 is NaN or infinite"):
        train(made, math.nan)
    assert bool(made.rows("h", torch.arange(4)).isfinite().all()) and made.stats("h")["nonfinite"] == 1
    train(made, 1.0)  # goes on
    made = collection(nonfinite="pass")
    train(made, math.nan)
    assert made.rows("h", torch.tensor([1]))[0].isnan().tolist() == [False, False, True, False]
    assert made.stats("h")["nonfinite"] == 0
    with pytest.raises(hotbed.ArgumentError, match=r"nonfinite 'stop' is not one of \['pass', 'raise', 'skip'\]"):
        collection(nonfinite="stop")


# --- freezing ---------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = collection()
        self.top = torch.nn.Linear(8, 1)

    def forward(self):
        return self.top(pooled(self.tables).values()).sum()


def changes(model):
    """Whether a training step changes the static table."""
    before = model.tables.weight("s").clone()
    model().backward()
    return not torch.equal(before, model.tables.weight("s"))


def test_freezing_an_outer_module_freezes_the_tables():
    model = Model()
    assert changes(model)
    model.requires_grad_(False)
    model.top.requires_grad_(True)
    assert not changes(model) and model.top.weight.grad is not None
    model.requires_grad_(True)
    assert changes(model)
    model.tables.requires_grad_(False)
    assert not changes(model)
    model.tables.requires_grad_()
    for part in model.modules():  # as Lightning's BaseFinetuning.freeze() does
        for parameter in part.parameters(recurse=False):
            parameter.requires_grad = False
    assert not pooled(model.tables).values().requires_grad


def test_nothing_else_sees_a_parameter():
    model = Model()
    names = ["top.weight", "top.bias"]
    for frozen in (False, True):
        model.tables.requires_grad_(not frozen)
        assert [name for name, _ in model.named_parameters()] == names and len(list(model.parameters())) == 2
        assert list(model.tables.parameters()) == [] and len(list(model.modules())) == 3
        assert [name for name in model.state_dict() if "tables" not in name] == names
        assert all(name.startswith("tables.embedding_bags.") for name in model.state_dict() if name not in names)


def test_lightning_freezes_the_tables():
    callbacks = pytest.importorskip("lightning.pytorch.callbacks")
    model = Model()
    callbacks.BaseFinetuning.freeze(model)
    assert not pooled(model.tables).values().requires_grad
    callbacks.BaseFinetuning.make_trainable(model)
    assert changes(model)


# --- the fused optimizer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weight_decay", "momentum", "betas", "eps", "maximize"])
def test_hyper_parameters_that_cannot_change_are_refused(name):
    group = collection().fused_optimizer.param_groups[0]
    for change in (group.__setitem__, lambda k, v: group.update({k: v})):
        with pytest.raises(hotbed.UnsupportedError, match=f"{name} cannot be set to 0.5: .*; only lr can change"):
            change(name, 0.5)
    group["lr"] = 0.25
    assert group["weight_decay"] == 0 and group["eps"] == ht.Adagrad().eps and group["lr"] == 0.25


def test_schedulers_and_state_dicts_may_use_the_group():
    made, other = collection(), collection()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(made.fused_optimizer, 0.5, total_steps=4, cycle_momentum=False)
    scheduler.step()
    other.fused_optimizer.load_state_dict(made.fused_optimizer.state_dict())
    assert other.fused_optimizer.param_groups[0]["lr"] == made.fused_optimizer.param_groups[0]["lr"]
    with pytest.raises(hotbed.UnsupportedError, match="eps cannot be set"):
        collection(optimizer=ht.Adagrad(lr=0.1, eps=0.5)).fused_optimizer.load_state_dict(
            made.fused_optimizer.state_dict()
        )


def test_a_grad_scaler_does_not_step_the_tables():
    made = collection()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(pooled(made).values().sum()).backward()
    with pytest.raises(hotbed.UnsupportedError, match="with the scaled gradient"):
        scaler.step(made.fused_optimizer)


def scaled_step(made, scaler, dense):
    """A step of tables and a dense part, of which the scaler steps only the latter."""
    dense.zero_grad()
    out = dense(pooled(made).values())
    scaler.scale(out.square().sum()).backward()
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
    scaler.step(optimizer)
    scaler.update()


def test_autocast_to_float16_without_a_known_grad_scaler_causes_a_warning():
    made, scaler = collection(), torch.amp.GradScaler("cpu", init_scale=8.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pooled(made)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pooled(made)
        with torch.autocast("cpu", dtype=torch.float16):
            with torch.no_grad():
                pooled(made)
            for known in (scaler, torch.amp.GradScaler("cpu", enabled=False)):
                made.grad_scaler = known
                pooled(made)
        made.cancel()
        made.grad_scaler = None
    with torch.autocast("cpu", dtype=torch.float16):
        with pytest.warns(UserWarning, match=r"scales the loss, the backward updates the tables \['h', 's'\]") as said:
            pooled(made)
        assert [warning.filename for warning in said] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once for each collection
            pooled(made)
    with torch.autocast("cpu", dtype=torch.float16), pytest.warns(UserWarning, match="set grad_scaler"):
        torch.compile(pooled, backend="eager")(collection())


def test_a_grad_scaler_that_the_collection_knows_changes_nothing():
    rows = []
    for scale in (None, 8.0):
        torch.manual_seed(5)
        made, dense = collection(), torch.nn.Linear(8, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        if scale is not None:
            made.grad_scaler = scaler
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                scaled_step(made, scaler, dense)
        rows.append(made.rows("h", torch.arange(4)))
    assert torch.equal(*rows)
    assert made.grad_scaler is scaler
    scaler.scale(pooled(made).values().sum()).backward()
    scaler.step(made.fused_optimizer)  # and may be stepped
    made.grad_scaler = None
    with pytest.raises(hotbed.ArgumentError, match=r"grad_scaler: 8\.0 is not a torch.amp.GradScaler"):
        made.grad_scaler = 8.0
    with pytest.raises(hotbed.UnsupportedError, match=r"make the collection with output_dtype=torch\.float32"):
        collection(output_dtype=torch.float16).grad_scaler = scaler


def test_a_scaled_gradient_that_overflows_skips_its_row():
    made, scaler = collection(), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    made.grad_scaler = scaler
    before = made.weight("s").clone()
    with pytest.warns(UserWarning, match="the gradient of key 0 is NaN or infinite"):
        scaler.scale(4 * pooled(made).values().sum()).backward()
    assert torch.equal(before, made.weight("s")) and made.stats("s")["nonfinite"] == 4


def test_a_state_dict_of_torchrecs_own_tables_is_refused():
    tables = collection()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu"])
        shared = sharded_tensor.zeros(spec, 100, 4, process_group=None)
        before = tables.weight("s").clone()
        with pytest.raises(RuntimeError, match=r"s\.weight: a ShardedTensor, as of TorchRec's own tables, cannot"):
            tables.load_state_dict({**tables.state_dict(), "embedding_bags.s.weight": shared})
        assert torch.equal(before, tables.weight("s"))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("refused", ["ShardedTensor", "fused_optimizer", "other parameters", "other groups"])
def test_a_checkpoint_refuses_what_is_not_of_the_dense_part(refused, tmp_path):
    model, whole = Model(), Model()
    optimizer, error = torch.optim.SGD(model.top.parameters(), lr=0.1), hotbed.ArgumentError
    checkpoint.save(tmp_path / "whole", whole, torch.optim.SGD(whole.top.parameters(), lr=0.1))
    before = model.tables.weight("s").fill_(2.0).clone()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        if refused == "ShardedTensor":
            shards = ChunkShardingSpec(dim=0, placements=["rank:0/cpu"])
            model.top.register_buffer("shared", sharded_tensor.zeros(shards, 4, 2, process_group=None))
            error, text = hotbed.UnsupportedError, "the ShardedTensor 'top.shared', of which each rank has a part"
        elif refused == "fused_optimizer":
            optimizer, text = model.tables.fused_optimizer, "a fused_optimizer, whose states are saved"
        elif refused == "other parameters":
            optimizer = torch.optim.SGD([*model.top.parameters(), torch.nn.Parameter(torch.ones(3, 4))], lr=0.1)
            text = r"parameter 2, of shape \(3, 4\), is not in the dense part"
        else:
            optimizer = torch.optim.SGD([{"params": [p]} for p in model.top.parameters()], lr=0.1)
            error, text = hotbed.StateError, r"other parameters: groups of \[2\] there, of \[1, 1\] here"
        if refused != "other groups":
            with pytest.raises(error, match=text):
                checkpoint.save(tmp_path / "c", model, optimizer)
        with pytest.raises(error, match=text):
            checkpoint.load(tmp_path / "whole", model, optimizer=optimizer)
        assert not (tmp_path / "c").exists() and torch.equal(before, model.tables.weight("s"))
        checkpoint.save(tmp_path / "tables", model.tables)
        checkpoint.load(tmp_path / "tables", whole.tables)
        assert torch.equal(before, whole.tables.weight("s"))
    finally:
        torch.distributed.destroy_process_group()


def test_the_step_count_can_be_set():
    made = collection(optimizer=ht.Adam(lr=0.1))
    for _ in range(5):
        pooled(made).values().sum().backward()
    assert made.fused_optimizer.steps == 5
    saved = made.fused_optimizer.state_dict()
    for state in saved["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(state[name])
    made.fused_optimizer.load_state_dict(saved)
    made.fused_optimizer.steps = 0
    before = made.rows("h", torch.arange(4))
    pooled(made).values().sum().backward()
    assert torch.allclose(before - made.rows("h", torch.arange(4)), torch.tensor(0.1), atol=1e-5)
    assert made.fused_optimizer.steps == 1
    with pytest.raises(hotbed.ArgumentError, match="steps: -1 is not a whole number"):
        made.fused_optimizer.steps = -1


def test_a_resume_keeps_every_bit_of_the_powers():
    made, other = collection(optimizer=ht.Adam(lr=0.1)), collection(optimizer=ht.Adam(lr=0.1))
    for _ in range(7):
        pooled(made).values().sum().backward()
    pooled(other)
    other.load_state_dict(made.state_dict())
    other.fused_optimizer.load_state_dict(made.fused_optimizer.state_dict())
    for each in (made, other):
        pooled(each).values().square().sum().backward()
    assert torch.equal(made.weight("s"), other.weight("s"))


# --- what a user is told ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "lr"), [(torch.bfloat16, 1e-3), (torch.float16, 1e-4)])
@pytest.mark.parametrize("is_hash", [True, False])
def test_small_updates_of_narrow_rows_add_up(dtype, lr, is_hash):
    keys = torch.arange(4)
    batch = ht.KeyedJaggedTensor(["n"], keys, lengths=torch.ones(4, dtype=torch.int64))

    def trained(**fields):
        config = ht.EmbeddingBagConfig(
            64, 8, "n", feature_names=["n"], data_type=dtype, use_virtual_table=is_hash, **fields
        )
        made = ht.EmbeddingBagCollection([config], optimizer=ht.SGD(lr=lr))
        made.set_rows("n", keys, torch.ones(4, 8, dtype=dtype))
        for _ in range(1000):
            made(batch).values().backward(torch.ones(4, 8))
        return made.rows("n", keys).float(), made.stats("n")

    rows, stats = trained()
    assert abs(float(rows.mean()) - (1 - 1000 * lr)) < 0.05 and stats["rounded_away"] < 4000
    assert torch.equal(rows, trained()[0])
    rows, stats = trained(rounding=ht.Rounding.NEAREST)
    assert torch.equal(rows, torch.ones(4, 8)) and stats["rounded_away"] == 4000


def test_counters_of_a_step():
    made = collection()
    pooled(made).values().sum().backward()
    before = made.stats("h")
    assert before["inserts"] == 4 and not any(made.stats("h", since=before).values())
    pooled(made, 6).values().sum().backward()
    step = made.stats("h", since=before)
    assert (step["keys"], step["hits"], step["inserts"]) == (6, 4, 2)


def test_bytes_are_counted_by_kind():
    hashed = {"use_virtual_table": True, "max_embeddings": 4000}
    tables = [
        ht.EmbeddingBagConfig(100, 8, "s", feature_names=["s"]),
        ht.EmbeddingBagConfig(100, 8, "h", feature_names=["h"], **hashed),
    ]
    made = ht.EmbeddingBagCollection(tables, optimizer=ht.Adam(lr=0.1))
    slots = 100 + 128
    assert made.memory() == {
        "weights": slots * 32, "states": slots * 64, "index": 128 * 16, "cache": 0, "batches": 0, "exchange": 0
    }  # fmt: skip
    keys = torch.cat([torch.arange(50), torch.arange(1000)])
    lengths = torch.tensor([50, 1000])
    made(ht.KeyedJaggedTensor(["s", "h"], keys, lengths=lengths)).values().sum().backward()
    after = made.memory()
    assert after["states"] == 2 * after["weights"] >= 2 * 1100 * 32 and after["index"] >= 1000 * 16
    assert after["batches"] >= 1050 * 8 and after["exchange"] == after["cache"] == 0
    cached = ht.EmbeddingBagCollection(tables[:1], optimizer=None, options={"hbm_bytes": 2048, "caching": True})
    found = cached.memory()
    assert found["weights"] >= 100 * 32 and 0 < found["cache"] <= 2048 and found["states"] == 0 < found["index"]
    shared = ht.EmbeddingBagCollection(tables[:1], comm=hotbed.Comm(), sharded=ht.ShardedOptions(4, 64))
    assert shared.memory()["exchange"] > 0 and shared.memory()["batches"] == 0


def test_a_profile_names_lookup_and_update():
    made = collection()
    with torch.profiler.profile() as profile:
        pooled(made).values().sum().backward()
    assert {"hotbed::lookup", "hotbed::update"} <= {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("length", [None, 0, 2, 5])
@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0], []])
def test_rows_are_padded(lengths, length):
    n = sum(lengths)
    for values in (torch.arange(1.0, n + 1), torch.arange(1.0, 2 * n + 1).view(n, 2)):
        jagged = ht.JaggedTensor(values, torch.tensor(lengths, dtype=torch.int64))
        longest = max(lengths, default=0) if length is None else length
        wanted = torch.full((len(lengths), longest, *values.shape[1:]), -1.0)
        for row, part in zip(wanted, jagged.to_dense()):
            row[: part.shape[0]] = part[:longest]
        assert torch.equal(jagged.to_padded_dense(length, -1.0), wanted)
