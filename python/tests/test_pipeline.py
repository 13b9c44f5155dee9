"""The train pipeline gives the bytes of the plain loop, on one rank and on several."""

import collections
import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import pytest
import test_sharded
import torch
from conftest import batch

import hotbed
import hotbed.torch as ht
from hotbed.torch import _pipeline

ROWS, DIM, SAMPLES, STEPS = 60, 8, 6, 7


@dataclasses.dataclass
class Click:
    """A batch with the keys in a part of a part."""

    inputs: Any
    labels: torch.Tensor


class Model(torch.nn.Module):
    """Bags of two collections, a row for each key of a third, and a dense layer."""

    def __init__(self, comm=None, device="cpu", reordered=False):
        super().__init__()
        sharded = None if comm is None else ht.ShardedOptions()
        more = {"comm": comm, "sharded": sharded, "device": device, "optimizer": ht.Adagrad(lr=0.1)}
        items = ht.EmbeddingBagConfig(ROWS, DIM, "item", feature_names=["f", "g"])
        users = ht.EmbeddingBagConfig(ROWS, DIM, "user", feature_names=["h"], use_virtual_table=True)
        words = ht.EmbeddingConfig(ROWS, DIM, "word", feature_names=["w"], use_virtual_table=True)
        self.items = ht.EmbeddingBagCollection([items], seed=1, **more)
        self.users = ht.EmbeddingBagCollection([users], seed=2, **more)
        self.words = ht.EmbeddingCollection([words], seed=3, **more)
        self.top = torch.nn.Linear(3 * DIM, 1, device=device)
        with torch.no_grad():  # without PyTorch's random numbers, which threads share
            self.top.weight.copy_(torch.linspace(-1, 1, 3 * DIM))
            self.top.bias.zero_()
        self.reordered = reordered

    def forward(self, click):
        bags, words = click.inputs["bags"], click.inputs["words"]
        items = click.inputs["items"]
        pooled = self.items(items.permute([1, 0]) if self.reordered else items).values()
        hidden = torch.cat([pooled, self.users(bags).values()], 1)
        seen = self.words(words)["w"].values().sum()
        loss = (self.top(hidden) + seen / 100 - click.labels).square().mean()
        return loss, hidden


def batches(rank=0, steps=STEPS):
    torch.manual_seed(100 + rank)
    made = []
    for _ in range(steps):
        parts = {
            "items": batch(["f", "g"], SAMPLES, ROWS),
            "bags": batch(["h"], SAMPLES, ROWS),
            "words": batch(["w"], SAMPLES, ROWS),
        }
        made.append(Click(parts, torch.rand(SAMPLES, 1)))
    return made


def moved(click):
    return Click({name: kjt.to(torch.device("cuda")) for name, kjt in click.inputs.items()}, click.labels.cuda())


def plain(model, clicks, optimizer):
    results = []
    for click in clicks:
        loss, hidden = model(click)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append((loss.detach(), hidden.detach()))
    return results


def bytes_of(model):
    keys = torch.arange(ROWS)
    rows = [model.items.rows("item", keys), model.users.rows("user", keys), model.words.rows("word", keys)]
    return [r.cpu() for r in rows] + [p.detach().cpu() for p in model.top.parameters()]


def adam(model):
    return torch.optim.Adam(model.top.parameters(), lr=0.05)


def check_equal(results, expected, model, other):
    assert len(results) == len(expected)
    for (loss, hidden), (known, shown) in zip(results, expected):
        assert torch.equal(loss.cpu(), known.cpu()) and torch.equal(hidden.cpu(), shown.cpu())
    for a, b in zip(bytes_of(model), bytes_of(other)):
        assert torch.equal(a, b)


def test_a_batch_trains_before_the_error_of_the_next_one():
    clicks, model, other = batches(), Model(), Model()
    clicks[3].inputs["items"].values()[0] = ROWS  # not a row of the table
    pipeline, source, results = ht.TrainPipeline(model, adam(model)), iter(clicks), []
    with pytest.raises(hotbed.KeyRangeError):
        for result in pipeline(source):
            results.append(result)
    assert len(results) == 3
    results += pipeline(source)
    check_equal(results, plain(other, clicks[:3] + clicks[4:], adam(other)), model, other)


def test_a_pipeline_gives_the_bytes_of_the_plain_loop():
    model, other = Model(), Model()
    expected = plain(other, batches(), adam(other))
    pipeline = ht.TrainPipeline(model, adam(model))
    results = list(pipeline(iter(batches()[:3])))
    results += pipeline(batches()[3:])  # a second loop goes on
    check_equal(results, expected, model, other)
    assert pipeline.unprefetched == {}
    assert model.items.storages[0].ahead == {}


def test_ranks_give_the_bytes_of_the_plain_loop():
    every = [batches(rank) for rank in range(test_sharded.RANKS)]

    def body(comm, piped):
        model = Model(comm)
        clicks = every[comm.rank]
        optimizer = adam(model)
        results = list(ht.TrainPipeline(model, optimizer)(clicks)) if piped else plain(model, clicks, optimizer)
        return results, bytes_of(model)

    runs = [test_sharded.well(test_sharded.on_threads(lambda comm, p=p: body(comm, p))) for p in (True, False)]
    for (results, rows), (expected, known) in zip(*runs):
        for (loss, hidden), (other, shown) in zip(results, expected):
            assert torch.equal(loss, other) and torch.equal(hidden, shown)
        assert all(torch.equal(a, b) for a, b in zip(rows, known))


class Mixed(torch.nn.Module):
    """Two collections whose tables have several poolings, optimizers and routes, and other orders than the batch."""

    def __init__(self, comm=None, device="cpu"):
        super().__init__()
        more = {"comm": comm, "sharded": None if comm is None else ht.ShardedOptions(), "device": device}
        optimizers = {"a": ht.Adagrad(lr=0.1), "b": ht.Adam(lr=0.1), "c": ht.Adagrad(lr=0.1)}
        bags = [
            ht.EmbeddingBagConfig(ROWS, DIM, "a", feature_names=["g", "f"]),
            ht.EmbeddingBagConfig(ROWS, DIM, "b", feature_names=["f"], pooling=ht.PoolingType.MEAN),
            ht.EmbeddingBagConfig(ROWS, DIM, "c", feature_names=["h"], use_virtual_table=True),
        ]
        self.bags = ht.EmbeddingBagCollection(bags, seed=1, optimizer=optimizers, is_weighted=True, **more)
        rows = [
            ht.EmbeddingConfig(ROWS, DIM, "d", feature_names=["h"]),
            ht.EmbeddingConfig(ROWS, DIM, "e", feature_names=["f"], use_virtual_table=True),
        ]
        self.rows = ht.EmbeddingCollection(rows, seed=2, optimizer=ht.Adam(lr=0.1), **more)

    def forward(self, click):
        hidden = self.bags(click.inputs["all"]).values()
        found = self.rows(click.inputs["all"])
        seen = found["h"].values().square().sum() + found["f"].values().sum()
        return (hidden.sum(1, keepdim=True) - click.labels).square().mean() + seen / 100, hidden


def mixed_batches(rank=0, index=torch.int64):
    torch.manual_seed(200 + rank)
    made = []
    for _ in range(STEPS):
        features = batch(["f", "g", "h"], SAMPLES, ROWS, weighted=True, index=index)
        made.append(Click({"all": features}, torch.rand(SAMPLES, 1)))
    return made


def mixed_rows(model):
    keys = torch.arange(ROWS)
    return [model.bags.rows(name, keys) for name in "abc"] + [model.rows.rows(name, keys) for name in "de"]


def mixed_run(comm, piped, clicks):
    model, ahead = Mixed(comm), 0
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    if not piped:
        return plain(model, clicks, optimizer), mixed_rows(model), ahead
    pipeline, results = ht.TrainPipeline(model, optimizer), []
    for result in pipeline(clicks):
        results.append(result)
        ahead += sum(len(storage.ahead) for part in (model.bags, model.rows) for storage in part.storages)
    assert pipeline.unprefetched == {} and not model.bags._ahead and not model.rows._ahead
    return results, mixed_rows(model), ahead


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("ranks", [0, 1, 2])
def test_collections_of_several_poolings_optimizers_and_routes_are_looked_up_ahead(ranks, index):
    every = [mixed_batches(rank, index) for rank in range(max(ranks, 1))]

    def run(piped):
        if ranks == 0:
            return [mixed_run(None, piped, every[0])]
        return test_sharded.well(test_sharded.on_threads(lambda comm: mixed_run(comm, piped, every[comm.rank]), ranks))

    for (results, rows, ahead), (expected, known, _) in zip(run(True), run(False)):
        parts = 3 if ranks == 0 else 5  # a and c, b, d and e; with ranks each route is apart
        assert ahead == (STEPS - 1) * parts
        for (loss, hidden), (other, shown) in zip(results, expected):
            assert torch.equal(loss, other) and torch.equal(hidden, shown)
        assert all(torch.equal(a, b) for a, b in zip(rows, known))


def test_a_prefetched_copy_of_a_batch_that_was_changed_is_refused():
    model, (click, *_) = Mixed(), mixed_batches()
    features = click.inputs["all"]
    model.bags.prefetch(features)
    features.values()[0] = (features.values()[0] + 1) % ROWS
    with pytest.raises(hotbed.StateError, match=r"forward of a prefetched batch: .* changed in place"):
        model.bags(features)
    model.bags.prefetch(features)
    features.values()[0] = (features.values()[0] + 1) % ROWS
    model.bags.prefetch(features)  # the buffer was filled again
    assert all(sum(slot.held for slot in storage.slots) == 1 for storage in model.bags.storages)
    model.bags(features).values().sum().backward()
    assert not any(slot.held for storage in model.bags.storages for slot in storage.slots)


def test_the_next_batch_is_looked_up_before_the_backward():
    model, order = Model(), []
    pipeline = ht.TrainPipeline(model, step=lambda result: order.append((len(model.users.keys("user")), result[0])))
    clicks = batches(steps=2)
    results = pipeline(clicks)
    next(results)
    known = set(clicks[0].inputs["bags"].values().tolist()) | set(clicks[1].inputs["bags"].values().tolist())
    assert order[0][0] == len(known)  # the second batch's keys have rows already
    results.close()  # which drops the second batch
    assert model.users.storages[0].ahead == {}


def test_a_collection_that_cannot_be_looked_up_ahead_is_named():
    model, other = Model(reordered=True), Model(reordered=True)
    expected = plain(other, batches(), adam(other))
    pipeline = ht.TrainPipeline(model, adam(model))
    check_equal(list(pipeline(batches())), expected, model, other)
    assert list(pipeline.unprefetched) == ["items"]
    assert "computes its input" in pipeline.unprefetched["items"]


def test_no_batches_and_one_batch():
    model = Model()
    pipeline = ht.TrainPipeline(model, adam(model))
    assert list(pipeline([])) == []
    assert len(list(pipeline(batches(steps=1)))) == 1


def test_an_error_of_the_loader_leaves_no_batch_ahead():
    model = Model()

    def broken():
        yield from batches(steps=2)
        raise OSError("no more")

    pipeline = ht.TrainPipeline(model, adam(model))
    with pytest.raises(OSError, match="no more"):
        list(pipeline(broken()))
    assert model.items.storages[0].ahead == {}
    assert len(list(pipeline(batches(steps=2)))) == 2


# --- batches of any type --------------------------------------------------------------------------


@dataclasses.dataclass
class Scaled:
    """A batch whose constructor changes it."""

    features: Any
    labels: torch.Tensor
    step: dataclasses.InitVar[int] = 3
    made: int = dataclasses.field(init=False)

    def __post_init__(self, step):
        self.labels, self.made = self.labels / 10, step


class ByAttribute(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Setter(collections.OrderedDict):
    def __setitem__(self, name, value):
        super().__setitem__(name, value + 1 if name == "labels" else value)


class Pair(collections.namedtuple("Pair", ["features", "labels"])):
    def __new__(cls, features, labels):
        return super().__new__(cls, features, labels + 1)


class Items(list):
    pass


@dataclasses.dataclass
class Slots:
    __slots__ = ("features", "labels")
    features: Any
    labels: torch.Tensor


class Kept(Mapping):
    """A mapping without items of its own to set, nor copies."""

    def __init__(self, **items):
        self._items = items

    def __getitem__(self, name):
        return self._items[name]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)

    def __copy__(self):
        return self


class One(torch.nn.Module):
    """A bag, and what was seen of each batch."""

    def __init__(self, see):
        super().__init__()
        table = ht.EmbeddingBagConfig(ROWS, DIM, "t", feature_names=["f"])
        self.bags, self.see, self.seen = ht.EmbeddingBagCollection([table], optimizer=ht.SGD(lr=0.1)), see, []

    def forward(self, given):
        features, *seen = self.see(given)
        self.seen.append((type(given), *seen))
        return self.bags(features).values().sum()


def scaled():
    made = Scaled(batch(["f"], SAMPLES, ROWS), torch.tensor(100.0), 7)
    made.more = 5
    return made


def setter():
    return Setter(features=batch(["f"], SAMPLES, ROWS), labels=torch.tensor(9.0))


def attributes(kind):
    made = kind([batch(["f"], SAMPLES, ROWS), torch.tensor(10.0)])
    made.more = 5
    return made


@pytest.mark.parametrize(
    ("make", "see", "expected"),
    [
        (scaled, lambda b: (b.features, float(b.labels), b.made, b.more), (Scaled, 10, 7, 5)),
        (
            lambda: ByAttribute(features=batch(["f"], SAMPLES, ROWS), labels=torch.tensor(10.0)),
            lambda b: (b.features, float(b.labels)),
            (ByAttribute, 10),
        ),
        (setter, lambda b: (b["features"], list(b), float(b["labels"])), (Setter, ["features", "labels"], 10)),
        (
            lambda: Pair(batch(["f"], SAMPLES, ROWS), torch.tensor(9.0)),
            lambda b: (b.features, float(b.labels)),
            (Pair, 10),
        ),
        (lambda: attributes(Items), lambda b: (b[0], float(b[1]), b.more), (Items, 10, 5)),
        (
            lambda: collections.defaultdict(int, features=batch(["f"], SAMPLES, ROWS)),
            lambda b: (b["features"], b["other"]),
            (collections.defaultdict, 0),
        ),
        (
            lambda: {("a", "b"): batch(["f"], SAMPLES, ROWS)},
            lambda b: (b["a", "b"],),
            (dict,),
        ),
    ],
    ids=["dataclass", "attributes", "setter", "namedtuple", "list", "defaultdict", "tuple keys"],
)
def test_the_model_receives_the_batch_that_was_given(make, see, expected):
    model = One(see)
    pipeline = ht.TrainPipeline(model)
    list(pipeline(make() for _ in range(3)))
    assert model.seen == [expected] * 3
    assert not pipeline.unprefetched


def test_a_batch_without_parts_that_move_stays_itself():
    meta, tensor = torch.device("meta"), torch.ones(2)
    for given in (Kept(a=1), types.MappingProxyType({"a": 2}), Items([1]), Slots(1, 2), {"a": [(1, "b"), Items]}):
        assert _pipeline._moved(given, meta, {}) is given
    for given in ({"a": [tensor]}, Slots(1, tensor), Pair(1, tensor)):
        assert _pipeline._moved(given, torch.device("cpu"), {}) is given


def test_all_parts_of_a_batch_move():
    meta, tensor = torch.device("meta"), torch.ones(2)
    given = Scaled({"a": [tensor]}, tensor)
    given.more = (tensor,)
    labels = given.labels
    moved = _pipeline._moved(given, meta, {})
    assert moved.labels.is_meta and moved.features["a"][0].is_meta and moved.more[0].is_meta
    assert moved.features["a"][0] is moved.more[0]  # a part that is there twice
    assert given.labels is labels and given.features == {"a": [tensor]} and given.more == (tensor,)
    alias = ByAttribute(a=tensor)
    alias.__dict__ = alias
    moved = _pipeline._moved(alias, meta, {})
    assert moved["a"].is_meta and moved.a is moved["a"]
    moved = _pipeline._moved(torch.max(torch.ones(2, 2), 0), meta, {})
    assert type(moved) is torch.return_types.max and moved.values.is_meta and moved.indices.is_meta


@pytest.mark.parametrize("given", [Kept(a=torch.ones(1)), types.MappingProxyType({"a": torch.ones(1)})])
def test_a_batch_that_cannot_be_copied_is_named(given):
    with pytest.raises(hotbed.ArgumentError, match=rf"of {type(given).__name__}, cannot be copied to meta: .* to\("):
        _pipeline._moved([given], torch.device("meta"), {})


def test_arguments():
    with pytest.raises(hotbed.ArgumentError, match="has no EmbeddingBagCollection"):
        ht.TrainPipeline(torch.nn.Linear(1, 1))
    one = torch.nn.ModuleDict(
        {"e": ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(9, 4, "t", feature_names=["f"])], max_in_flight=1)}
    )
    with pytest.raises(hotbed.ArgumentError, match="'e' has max_in_flight=1"):
        ht.TrainPipeline(one)
    with pytest.raises(hotbed.ArgumentError, match="optimizer 'FusedOptimizer' is of rows"):
        ht.TrainPipeline(Model(), Model().items.fused_optimizer)
