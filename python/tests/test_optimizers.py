"""Tables with optimizers of their own, and learning rates that come back."""

import copy
import pickle
import warnings

import numpy
import pytest
import torch
from conftest import batch
from test_sharded import on_threads, well

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint

ROWS, DIM, SAMPLES = 40, 4, 6
OPTIMIZERS = {"a": ht.Adam(lr=0.1), "b": ht.Adam(lr=0.1, betas=(0.5, 0.9)), "c": ht.SGD(lr=0.5), "d": ht.Adam(lr=0.1)}
FEATURES = list("fgh")


def configs(kind=ht.EmbeddingBagConfig):
    more = [{}] * 4
    if kind is ht.EmbeddingBagConfig:
        more = [{}, {}, {}, {"pooling": ht.PoolingType.MEAN}]
    return [
        kind(ROWS, DIM, "a", feature_names=["f"], **more[0]),
        kind(ROWS, DIM, "b", feature_names=["g", "f"], use_virtual_table=True, **more[1]),
        kind(ROWS, DIM, "c", feature_names=["h"], **more[2]),
        kind(ROWS, DIM, "d", feature_names=["h"], use_virtual_table=True, **more[3]),
    ]


def collection(optimizer=OPTIMIZERS, **more):
    return ht.EmbeddingBagCollection(configs(), optimizer=optimizer, **more)


def train(made, steps=3, seed=0):
    torch.manual_seed(seed)
    for _ in range(steps):
        out = made(batch(FEATURES, SAMPLES, ROWS))
        values = torch.cat([part.values() for part in out.values()]) if isinstance(out, dict) else out.values()
        values.square().sum().backward()


def rows_of(made, name):
    return made.keys(name), made.rows(name, made.keys(name))


def check_same(first, second, names="abcd"):
    for name in names:
        for one, other in zip(rows_of(first, name), rows_of(second, name)):
            assert torch.equal(one, other), name


@pytest.mark.parametrize("kind", ["bags", "rows"])
def test_a_table_trains_as_in_a_collection_of_its_own(kind):
    cls = ht.EmbeddingBagCollection if kind == "bags" else ht.EmbeddingCollection
    tables = configs(ht.EmbeddingBagConfig if kind == "bags" else ht.EmbeddingConfig)
    made = cls(tables, optimizer=OPTIMIZERS)
    train(made)
    for table in tables:
        alone = cls([table], optimizer=OPTIMIZERS[table.name])
        torch.manual_seed(0)
        for _ in range(3):
            out = alone(batch(FEATURES, SAMPLES, ROWS))
            parts = [part.values() for part in out.values()] if kind == "rows" else [out.values()]
            torch.cat(parts).square().sum().backward()
        for one, other in zip(rows_of(made, table.name), rows_of(alone, table.name)):
            assert torch.equal(one, other), table.name


def test_each_optimizer_has_a_group():
    made = collection()
    groups = made.fused_optimizer.param_groups
    assert [(g["tables"], g["lr"]) for g in groups] == [(("a", "d"), 0.1), (("b",), 0.1), (("c",), 0.5)]
    assert groups[1]["betas"] == (0.5, 0.9) and "betas" not in groups[2]
    scheduler = torch.optim.lr_scheduler.StepLR(made.fused_optimizer, 1, gamma=0.5)
    before = made.weight("c").clone()
    scheduler.step()
    made(batch(FEATURES, SAMPLES, ROWS)).values().sum().backward()
    assert [g["lr"] for g in groups] == [0.05, 0.05, 0.25]
    times = (before - made.weight("c"))[:, 0] / 0.25
    torch.testing.assert_close(times, times.round())
    assert float(times.max()) > 0.5
    with pytest.raises(hotbed.UnsupportedError, match="tables cannot be set"):
        groups[0]["tables"] = ("c",)


@pytest.mark.parametrize("kind", [list, numpy.array, torch.tensor])
def test_hyper_parameters_are_compared_by_value(kind):
    numbers = {"lr": numpy.float64(0.5), "eps": torch.tensor(0.125), "weight_decay": 1}
    same = {name: ht.Adam(betas=kind([0.5, 0.75]), **numbers) for name in "abcd"}
    assert same["a"] == ht.Adam(lr=0.5, betas=(0.5, 0.75), eps=0.125, weight_decay=1.0)
    assert (
        str(same["a"]) == "Adam(lr=0.5, betas=(0.5, 0.75), eps=0.125, weight_decay=1.0, max_gradient=0.0, l2_decay=0.0)"
    )
    made = collection(same)
    train(made, 1)
    optimizer = made.fused_optimizer
    assert len(optimizer.param_groups) == 1
    optimizer.load_state_dict(optimizer.state_dict())
    state = optimizer.state_dict()
    state["param_groups"][0].update(betas=kind([0.5, 0.75]), eps=numpy.float64(0.125))  # as JSON has it, too
    optimizer.load_state_dict(state)
    optimizer.param_groups[0]["betas"] = kind([0.5, 0.75])
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.75)


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        ({"a": ht.SGD()}, r"it has none for \['b', 'c', 'd'\]"),
        ({**OPTIMIZERS, "x": ht.SGD()}, r"\['x'\] are no tables"),
        ({**OPTIMIZERS, "c": None}, r"it has none for \['c'\]"),
        ({**OPTIMIZERS, "c": "sgd"}, "'sgd' is not an instance of SGD"),
    ],
)
def test_bad_dicts_are_errors(optimizer, text):
    with pytest.raises(hotbed.ArgumentError, match=text):
        collection(optimizer)


@pytest.mark.parametrize("by", ["state dict", "checkpoint", "increments"])
def test_rows_states_and_rates_come_back(by, tmp_path):
    first, second = collection(), collection(seed=0)
    train(second, 1, seed=5)
    train(first)
    first.fused_optimizer.param_groups[1]["lr"] = 0.25
    train(first, 1)
    if by == "state dict":
        torch.save({"rows": first.state_dict(), "optimizer": first.fused_optimizer.state_dict()}, tmp_path / "s")
        saved = torch.load(tmp_path / "s")
        second.load_state_dict(saved["rows"])
        second.fused_optimizer.load_state_dict(saved["optimizer"])
    elif by == "checkpoint":
        checkpoint.save(tmp_path / "0", first)
        checkpoint.load(tmp_path / "0", second)
    else:
        saves = checkpoint.Increments()
        saves.save(tmp_path / "0", first)
        train(first, 1)
        saves.save(tmp_path / "1", first)
        checkpoint.load(tmp_path / "0", second, [tmp_path / "1"])
    assert [g["lr"] for g in second.fused_optimizer.param_groups] == [0.1, 0.25, 0.5]
    check_same(first, second)
    for made in (first, second):
        train(made, 2, seed=9)
    check_same(first, second)


@pytest.mark.parametrize("by", ["state dict", "checkpoint"])
def test_tables_may_share_an_optimizer_after_a_load(by, tmp_path):
    """And the reverse, with a warning where one value becomes of two."""
    apart = {"a": ht.Adam(lr=0.1), "b": ht.Adam(lr=0.2), "c": ht.Adam(lr=0.1), "d": ht.Adam(lr=0.1)}
    first, second, third = collection(apart), collection(ht.Adam(lr=0.5)), collection(apart)
    train(first)

    def copy(source, to):
        if by == "checkpoint":
            checkpoint.save(tmp_path / str(id(source)), source)
            checkpoint.load(tmp_path / str(id(source)), to)
            return
        to.load_state_dict(source.state_dict())
        to.fused_optimizer.load_state_dict(source.fused_optimizer.state_dict())

    with pytest.warns(UserWarning, match="table 'a' was saved with lr 0.1, 'b' with 0.2; .* goes on with 0.1"):
        copy(first, second)
    assert second.fused_optimizer.param_groups[0]["lr"] == 0.1
    check_same(first, second)
    second.fused_optimizer.param_groups[0]["lr"] = 0.3
    train(second, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy(second, third)
    assert [g["lr"] for g in third.fused_optimizer.param_groups] == [0.3, 0.3]
    check_same(second, third)
    assert third.fused_optimizer.steps == 4


@pytest.mark.parametrize("by", ["state dict", "checkpoint"])
def test_a_load_says_which_step_count_it_takes(by, tmp_path):
    tables, both = configs()[:2], {"a": ht.Adam(lr=0.1), "b": ht.Adam(lr=0.2)}
    first = ht.EmbeddingBagCollection(tables, optimizer=both)
    train(first)
    first.storages[1].set_clock({**first.storages[1].clock(), "optimizer_steps": 7})
    second = ht.EmbeddingBagCollection(tables, optimizer=ht.Adam())
    with pytest.warns(UserWarning, match="table 'a' was saved with optimizer_steps 3, 'b' with 7; .* goes on with 3"):
        if by == "checkpoint":
            checkpoint.save(tmp_path / "c", first)
            checkpoint.load(tmp_path / "c", second)
        else:
            second.load_state_dict(first.state_dict())
            second.fused_optimizer.load_state_dict(first.fused_optimizer.state_dict())
    assert second.fused_optimizer.steps == 3


def test_a_state_dict_of_other_optimizers_is_refused():
    first, second = collection(), collection(ht.Adam(lr=0.1))
    train(first)
    state = first.fused_optimizer.state_dict()
    before = second.fused_optimizer.state_dict()
    with pytest.raises((hotbed.ArgumentError, hotbed.UnsupportedError)):
        second.fused_optimizer.load_state_dict(state)
    assert str(second.fused_optimizer.state_dict()["param_groups"]) == str(before["param_groups"])
    state["param_groups"].pop()
    with pytest.raises(hotbed.ArgumentError, match=r"no parameter group of the tables \['c'\]"):
        first.fused_optimizer.load_state_dict(state)


def broken_state(made, wrong):
    """The state dict of a collection with Adam, trained, in which something is wrong."""
    train(made)
    state = made.fused_optimizer.state_dict()
    last = state["param_groups"][-1]
    if wrong == "betas":
        last["betas"] = (0.5, 0.99)
    elif wrong == "no lr":
        del last["lr"]
    elif wrong == "lr":
        last["lr"] = float("nan")
    elif wrong == "shape":
        state["state"]["d"]["exp_avg"] = state["state"]["d"]["exp_avg"][:, :1]
    elif wrong == "clock":
        del state["clocks"]["d"]["clock"]
    else:
        del state["state"]["d"]["exp_avg"]
    return state


WRONG = {
    "betas": "betas cannot be set to",
    "no lr": r"no lr of the tables \['a', ",
    "lr": "the learning rate nan is not a finite number",
    "shape": r"state\.d: .*exp_avg is shape",
    "clock": "clocks of the table 'd' lack 'clock'",
    "state": "table 'd': the state dict has no states",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_state_dict_that_is_refused_changes_nothing(wrong):
    state = broken_state(collection(ht.Adam(lr=0.5)), wrong)
    made = collection(ht.Adam(lr=0.25))
    train(made, 1, seed=1)
    before = made.fused_optimizer.state_dict()
    with pytest.raises(hotbed.HotbedError, match=WRONG[wrong]):
        made.fused_optimizer.load_state_dict(state)
    after = made.fused_optimizer.state_dict()
    assert after["clocks"] == before["clocks"] and str(after["param_groups"]) == str(before["param_groups"])
    for table, parts in before["state"].items():
        assert all(torch.equal(after["state"][table][name], part) for name, part in parts.items())


@pytest.mark.parametrize("wrong", WRONG)
def test_ranks_refuse_a_state_dict_together(wrong):
    states = [
        broken_state(collection(ht.Adam(lr=0.5)), wrong),
        collection(ht.Adam(lr=0.5)).fused_optimizer.state_dict(),
    ]

    def body(comm):
        made = collection(ht.Adam(lr=0.25), comm=comm, sharded=ht.ShardedOptions())
        optimizer = made.fused_optimizer
        text = WRONG[wrong] if comm.rank == 0 else f"rank 0: .*{WRONG[wrong]}"
        with pytest.raises(hotbed.HotbedError, match=text) as caught:
            optimizer.load_state_dict(states[min(comm.rank, 1)])
        assert isinstance(caught.value, hotbed.CommError) == (comm.rank > 0)
        assert optimizer.steps == 0 and optimizer.param_groups[0]["lr"] == 0.25
        optimizer.load_state_dict(states[1])  # the communicator is not aborted
        return optimizer.param_groups[0]["lr"]

    assert set(well(on_threads(body))) == {0.5}


def test_tables_of_different_optimizers_are_not_loaded_into_one():
    made = collection({**OPTIMIZERS, "b": ht.Adam(lr=0.1), "c": ht.Adam(lr=0.1), "a": ht.Adam(betas=(0.5, 0.9))})
    with pytest.raises(hotbed.UnsupportedError, match="betas cannot be set"):
        collection(ht.Adam()).fused_optimizer.load_state_dict(made.fused_optimizer.state_dict())


def test_hooks_of_state_dicts_run_as_pytorchs():
    def hooked(optimizer):
        called, given = [], []
        optimizer.register_state_dict_pre_hook(lambda own: called.append(("save", own is optimizer)))
        optimizer.register_state_dict_post_hook(lambda own, state: {**state, "more": 1})
        optimizer.register_state_dict_post_hook(lambda own, state: called.append(("saved", state["more"])))
        optimizer.register_load_state_dict_pre_hook(lambda own, state: called.append(("load", state.pop("more"))))
        optimizer.register_load_state_dict_pre_hook(lambda own, state: {**state, "param_groups": given})
        optimizer.register_load_state_dict_post_hook(lambda own: called.append(("loaded", own.param_groups[0]["lr"])))
        state = optimizer.state_dict()
        given += [{**group, "lr": 0.75} for group in state["param_groups"]]
        optimizer.load_state_dict(state)
        return called, state["more"], optimizer.param_groups[0]["lr"]

    found = hooked(collection(ht.Adam()).fused_optimizer)
    assert found == hooked(torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]))
    assert [name for name, _ in found[0]] == ["save", "saved", "load", "loaded"]


CHANGES = {
    "append": lambda groups: groups.append({"params": [torch.ones(1)], "lr": 1.0}),
    "insert": lambda groups: groups.insert(0, groups[0]),
    "extend": lambda groups: groups.extend([groups[0]]),
    "pop": lambda groups: groups.pop(),
    "remove": lambda groups: groups.remove(groups[0]),
    "clear": lambda groups: groups.clear(),
    "reverse": lambda groups: groups.reverse(),
    "sort": lambda groups: groups.sort(key=len),
    "+=": lambda groups: groups.__iadd__([groups[0]]),
    "*=": lambda groups: groups.__imul__(2),
    "del": lambda groups: groups.__delitem__(0),
    "del lr": lambda groups: groups[0].__delitem__("lr"),
    "pop betas": lambda groups: groups[0].pop("betas"),
    "clear a group": lambda groups: groups[0].clear(),
    "popitem": lambda groups: groups[0].popitem(),
    "|=": lambda groups: groups[0].__ior__({"betas": (0.25, 0.5)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_groups_are_not_added_or_removed(change):
    groups = collection().fused_optimizer.param_groups
    before = str(groups)
    with pytest.raises(hotbed.UnsupportedError, match=r"fused_optimizer: .* cannot be"):
        CHANGES[change](groups)
    assert str(groups) == before


def test_groups_can_be_copied_and_have_further_entries():
    groups = collection().fused_optimizer.param_groups
    for copied in (copy.deepcopy(groups), copy.copy(groups), pickle.loads(pickle.dumps(groups))):
        assert type(copied) is list and [g["lr"] for g in copied] == [0.1, 0.1, 0.5]
    assert type(copy.deepcopy(groups)[0]) is type(copy.copy(groups[0])) is dict
    groups[0]["mine"] = [1]
    group = groups[0]
    group |= {"lr": 0.75, "yours": 2}
    assert groups[0].pop("mine") == [1] and groups[0].pop("mine", 3) == 3 and groups[0].pop("yours") == 2
    assert "mine" not in groups[0] and groups[0]["lr"] == 0.75
    with pytest.raises(KeyError):
        groups[0].pop("mine")


def test_ranks_share_tables_with_optimizers_of_their_own(tmp_path):
    alone = collection()
    train(alone)
    checkpoint.save(tmp_path / "alone", alone)

    def body(comm):
        made = collection(comm=comm, sharded=ht.ShardedOptions())
        assert len(made.storages) == 4
        checkpoint.load(tmp_path / "alone", made)
        for name in "abcd":
            keys, rows = rows_of(made, name)
            assert torch.equal(rows, alone.rows(name, keys))
        torch.manual_seed(1)
        made(batch(FEATURES, SAMPLES, ROWS)).values().sum().backward()
        made.fused_optimizer.param_groups[2]["lr"] = 0.125
        made(batch(FEATURES, SAMPLES, ROWS)).values().sum().backward()
        checkpoint.save(tmp_path / "ranks", made)
        return {name: rows_of(made, name) for name in "abcd"}

    found = well(on_threads(body))
    again = collection()
    checkpoint.load(tmp_path / "ranks", again)
    assert [g["lr"] for g in again.fused_optimizer.param_groups] == [0.1, 0.1, 0.125]
    for name in "abcd":
        keys = torch.cat([part[name][0] for part in found])
        assert sorted(keys.tolist()) == again.keys(name).tolist()
        assert torch.equal(again.rows(name, keys), torch.cat([part[name][1] for part in found]))


def test_ranks_with_other_optimizers_raise():
    def body(comm):
        other = {**OPTIMIZERS, "c": ht.SGD(lr=0.1)} if comm.rank else ht.SGD(lr=0.1)
        with pytest.raises(hotbed.HotbedError) as caught:
            collection(other, comm=comm, sharded=ht.ShardedOptions())
        return str(caught.value)

    assert all(well(on_threads(body)))


# --- learning rates ---------------------------------------------------------------------------------------


def test_a_load_restores_the_learning_rate(tmp_path):
    first, second, third = (collection(ht.SGD(lr=rate)) for rate in (0.1, 0.5, 0.5))
    scheduler = torch.optim.lr_scheduler.StepLR(first.fused_optimizer, 1, gamma=0.3)
    train(first, 1)
    scheduler.step()
    train(first, 1)
    checkpoint.save(tmp_path / "c", first)
    checkpoint.load(tmp_path / "c", second)
    assert second.fused_optimizer.param_groups[0]["lr"] == 0.03
    for made in (first, second):
        train(made, 1, seed=4)
    check_same(first, second)
    third.fused_optimizer.param_groups[0]["lr"] = 0.25
    checkpoint.save(tmp_path / "new", collection(ht.SGD(lr=0.1)))  # as a conversion, it has no steps
    checkpoint.load(tmp_path / "new", third)
    assert third.fused_optimizer.param_groups[0]["lr"] == 0.25
    only = ht.EmbeddingBagCollection(
        [ht.EmbeddingBagConfig(ROWS, DIM, "x", feature_names=["f"]), configs()[2]],
        optimizer={"x": ht.SGD(lr=0.75), "c": ht.SGD(lr=1.0)},
    )
    with pytest.warns(UserWarning, match="the model does not have it"):
        checkpoint.load(tmp_path / "c", only)
    assert [g["lr"] for g in only.fused_optimizer.param_groups] == [0.75, 0.03]  # x was not loaded


def test_the_steps_of_rows_can_be_read_and_reset():
    config = ht.EmbeddingConfig(20, 4, "t", feature_names=["f"], use_virtual_table=True)
    made = ht.EmbeddingCollection([config], optimizer=ht.RowStepsAdam(lr=0.25))

    def step(keys):
        batch = ht.KeyedJaggedTensor(["f"], torch.tensor(keys), lengths=torch.ones(len(keys), dtype=torch.int64))
        made(batch)["f"].values().sum().backward()

    for keys in ([1, 2], [2], [2, 3]):
        step(keys)
    state = made.fused_optimizer.state_dict()
    steps = state["state"]["t"]["exp_avg_sq_steps"][:, -1]
    assert dict(zip(state["state"]["t"]["keys"].tolist(), steps.tolist())) == {1: 1, 2: 3, 3: 1}
    for name in ("exp_avg", "exp_avg_sq_steps"):
        state["state"]["t"][name].zero_()
    made.fused_optimizer.load_state_dict(state)
    before = made.rows("t", torch.tensor([2]))
    step([2])
    torch.testing.assert_close(before - made.rows("t", torch.tensor([2])), torch.full((1, 4), 0.25))
