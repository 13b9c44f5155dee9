"""Beside TorchRec, where it is installed: its configs and tensors, and its DLRM."""

import copy
import functools

import pytest
import torch

import hotbed
import hotbed.torch as ht

torchrec = pytest.importorskip("torchrec")
from torchrec.models.dlrm import DLRM  # noqa: E402
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper  # noqa: E402
from torchrec.optim.warmup import WarmupOptimizer, WarmupPolicy, WarmupStage  # noqa: E402

from hotbed.torch.torchrec import keyed_optimizer  # noqa: E402

UNIFORM = functools.partial(torch.nn.init.uniform_, a=0.5, b=0.625)

ROWS, DIM, SAMPLES, FEATURES = 50, 8, 16, ["f1", "f2", "f3"]


def configs():
    return [
        torchrec.EmbeddingBagConfig(name="t1", embedding_dim=DIM, num_embeddings=ROWS, feature_names=["f1", "f3"]),
        torchrec.EmbeddingBagConfig(name="t2", embedding_dim=DIM, num_embeddings=ROWS, feature_names=["f2"]),
    ]


def batch():
    lengths = torch.randint(0, 4, (len(FEATURES) * SAMPLES,))
    values = torch.randint(0, ROWS, (int(lengths.sum()),))
    return torchrec.KeyedJaggedTensor(FEATURES, values, lengths=lengths)


def test_a_dlrm_has_the_same_losses_for_50_steps():
    theirs = DLRM(torchrec.EmbeddingBagCollection(tables=configs()), 4, [8, DIM], [8, 1])
    ours = DLRM(ht.EmbeddingBagCollection(configs(), optimizer=ht.SGD(lr=0.1)), 4, [8, DIM], [8, 1])
    missing, unexpected = ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert not missing and not unexpected
    assert list(ours.state_dict()) == list(theirs.state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (theirs, ours)]
    for _ in range(50):
        kjt, dense, labels = batch(), torch.randn(SAMPLES, 4), torch.randint(0, 2, (SAMPLES, 1)).float()
        losses = []
        for model, optimizer in zip((theirs, ours), optimizers):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(dense, kjt), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-6)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "more",
    [
        {"inverse_indices": (["f", "g"], torch.tensor([[0, 1, 1], [1, 0, 1]]))},
        {"stride_per_key_per_rank": [[1], [3]]},
    ],
)
def test_samples_of_a_feature_alone_are_refused(more):
    bags = ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(ROWS, DIM, "t", feature_names=["f", "g"])])
    kjt = torchrec.KeyedJaggedTensor(["f", "g"], torch.arange(4), lengths=torch.ones(4, dtype=torch.int64), **more)
    with pytest.raises(hotbed.UnsupportedError, match="stride_per_key_per_rank and inverse_indices"):
        bags(kjt)


def test_an_embedding_collection_reads_torchrecs_rows():
    tables = [torchrec.EmbeddingConfig(name="t", embedding_dim=DIM, num_embeddings=ROWS, feature_names=FEATURES)]
    theirs, ours = torchrec.EmbeddingCollection(tables=tables), ht.EmbeddingCollection(tables)
    ours.load_state_dict(theirs.state_dict())
    kjt = batch()
    expected, got = theirs(kjt), ours(kjt)
    assert list(got) == list(expected)
    for name, rows in expected.items():
        assert isinstance(got[name], torchrec.JaggedTensor)
        assert torch.equal(got[name].values(), rows.values()) and torch.equal(got[name].lengths(), rows.lengths())


def test_fields_of_hotbed_are_read_from_torchrecs_configs():
    table = torchrec.EmbeddingBagConfig(
        name="t", embedding_dim=DIM, num_embeddings=4, feature_names=["f"], use_virtual_table=True
    )
    table.evict = ht.Evict.LOWEST
    ours = ht.EmbeddingBagCollection([table])
    for keys in torch.arange(200).split(20):  # more than the table holds
        ours(torchrec.KeyedJaggedTensor(["f"], keys, lengths=torch.ones_like(keys))).values().sum().backward()
    assert ours.stats("t")["evictions"] > 0


@pytest.mark.parametrize("field, value", [("need_pos", True), ("virtual_table_eviction_policy", object())])
def test_fields_of_torchrec_that_would_have_no_effect(field, value):
    table = torchrec.EmbeddingBagConfig(name="t", embedding_dim=DIM, num_embeddings=4, feature_names=["f"])
    setattr(table, field, value)
    with pytest.raises(hotbed.UnsupportedError, match=f"table 't': {field} is not supported"):
        ht.EmbeddingBagCollection([table])


@pytest.mark.parametrize("make", [torchrec.KeyedJaggedTensor, ht.KeyedJaggedTensor])
@pytest.mark.parametrize(
    "names, lengths, kind, text",
    [
        (["g", "f"], [1, 2], hotbed.KeyRangeError, "the sum of the lengths, is 3, but there are 2 keys"),
        (["g", "f"], [1, 0], hotbed.KeyRangeError, "the sum of the lengths, is 1, but there are 2 keys"),
        (["g", "f"], [3, -1], hotbed.KeyRangeError, "lengths: -1 keys in bag 1"),
        (["f", "g", "f"], [1, 0, 1], hotbed.ArgumentError, r"features \['f'\] are in the batch more than once"),
    ],
)
def test_batches_that_would_be_permuted_wrongly_are_refused(make, names, lengths, kind, text):
    """TorchRec's permute() reads and writes as many keys as the lengths say."""
    rows = ht.EmbeddingCollection(
        [ht.EmbeddingConfig(ROWS, DIM, "t", feature_names=["f", "g"], use_virtual_table=True)]
    )
    kjt = make(names, torch.arange(2), lengths=torch.tensor(lengths))
    with pytest.raises(kind, match=text):
        rows(kjt)
    assert rows.keys("t").numel() == 0


def test_offsets_that_skip_keys_are_refused_in_any_order():
    bags = ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(ROWS, DIM, "t", feature_names=["f", "g"])])
    for names in (["f", "g"], ["g", "f"]):
        with pytest.raises(hotbed.KeyRangeError, match="offsets: the first is 1, not 0"):
            bags(ht.KeyedJaggedTensor(names, torch.arange(3), offsets=torch.tensor([1, 2, 3])))


@pytest.mark.parametrize("make", [torchrec.KeyedJaggedTensor, ht.KeyedJaggedTensor])
def test_a_compiled_forward_does_not_read_outside_of_the_keys(make):
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        pytest.skip("compiled permutations need PyTorch 2.11")
    bags = ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(ROWS, DIM, "t", feature_names=["f", "g"])])
    kjts = [make(["g", "f"], torch.arange(3), lengths=torch.tensor(n)) for n in ([1, 2], [4, 3], [1, 1])]
    compiled = torch.compile(bags, fullgraph=True)
    assert torch.equal(compiled(kjts[0]).values(), bags(kjts[0]).values())
    for kjt in kjts[1:]:
        with pytest.raises(RuntimeError):
            compiled(kjt)


def test_a_feature_twice_beside_those_of_the_tables_is_ignored():
    bags = ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(ROWS, DIM, "t", feature_names=["f"])])
    kjt = torchrec.KeyedJaggedTensor(["x", "f", "x"], torch.arange(3), lengths=torch.ones(3, dtype=torch.int64))
    assert torch.equal(bags(kjt).values(), bags.rows("t", torch.tensor([1])))


@pytest.mark.parametrize(
    "weights, text",
    [(None, "has no weights"), (torch.arange(2), "dtype torch.int64"), (torch.ones(1), "1 elements, not 2")],
)
def test_weights_that_do_not_fit_are_refused(weights, text):
    tables = [ht.EmbeddingBagConfig(ROWS, DIM, "t", feature_names=["f", "g"])]
    bags = ht.EmbeddingBagCollection(tables, is_weighted=True)
    kjt = torchrec.KeyedJaggedTensor(["g", "f"], torch.arange(2), weights, lengths=torch.ones(2, dtype=torch.int64))
    with pytest.raises(hotbed.ArgumentError, match=text):
        bags(kjt)


@pytest.mark.parametrize("module", [torchrec, ht])
def test_an_embedding_collection_refuses_tables_that_are_pooled(module):
    table = module.EmbeddingBagConfig(name="t", embedding_dim=DIM, num_embeddings=ROWS, feature_names=["f"])
    with pytest.raises(hotbed.ArgumentError, match="table 't': pooling SUM is for an EmbeddingBagCollection"):
        ht.EmbeddingCollection([table])


@pytest.mark.parametrize("given", [{}, {"weight_init_min": 0.5, "weight_init_max": 0.625}, {"init_fn": UNIFORM}])
def test_rows_begin_within_torchrecs_bounds(given):
    table = torchrec.EmbeddingBagConfig(name="t", embedding_dim=DIM, num_embeddings=1000, feature_names=["f"], **given)
    lower, upper = (0.5, 0.625) if given else (-(1000**-0.5), 1000**-0.5)
    for make in (torchrec.EmbeddingBagCollection, ht.EmbeddingBagCollection):
        rows = make([table]).state_dict()["embedding_bags.t.weight"]
        assert lower <= float(rows.min()) < lower + 0.01 and upper - 0.01 < float(rows.max()) <= upper


def wrapped(make):
    """A collection and dense parameters, trained by TorchRec's wrappers."""
    torch.manual_seed(3)
    tables = [
        ht.EmbeddingConfig(ROWS, DIM, name, feature_names=[f], use_virtual_table=name == "t2", init_fn=init)
        for name, f, init in (("t1", "f1", torch.nn.init.ones_), ("t2", "f2", None))
    ]
    rows, top = ht.EmbeddingCollection(tables, optimizer=ht.Adagrad(lr=0.25)), torch.nn.Linear(DIM, 1)
    dense = KeyedOptimizerWrapper(dict(top.named_parameters()), lambda p: torch.optim.Adagrad(p, lr=0.25))
    return rows, top, make(rows, dense)


def steps(rows, top, optimizer, numbers):
    losses = []
    for step in numbers:
        kjt = torchrec.KeyedJaggedTensor(["f1", "f2"], torch.arange(4) + step, lengths=torch.full((2,), 2))
        loss = sum(top(jagged.values()).square().sum() for jagged in rows(kjt).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_torchrecs_optimizers_take_a_collections():
    stages = [WarmupStage(WarmupPolicy.LINEAR, max_iters=4, value=0.5)]

    def make(rows, dense):
        keyed = keyed_optimizer(rows)
        assert keyed is keyed_optimizer(rows)
        warm = [WarmupOptimizer(optimizer, stages, lr=0.5) for optimizer in (keyed, dense)]
        return CombinedOptimizer([("rows", warm[0]), ("top", warm[1])])

    one, other = wrapped(make), wrapped(make)
    steps(*one, range(3))
    assert one[0].fused_optimizer.param_groups[0]["lr"] == one[2].param_groups[0]["lr"] == 0.4375
    other[0].load_state_dict(one[0].state_dict())
    other[1].load_state_dict(one[1].state_dict())
    other[2].step()  # TorchRec loads no states into an optimizer that has none
    saved = one[2].state_dict()
    assert {"rows.embeddings.t1.weight", "rows.embeddings.t2.weight"} < set(saved["state"])
    other[2].load_state_dict(saved)
    assert steps(*other, range(3, 6)) == steps(*one, range(3, 6))
    frozen = ht.EmbeddingCollection([ht.EmbeddingConfig(1, 1, "t", feature_names=["f"])], optimizer=None)
    assert keyed_optimizer(frozen).params == {}


def test_a_keyed_optimizer_saves_the_learning_rate_that_is_set():
    one, other = (wrapped(lambda rows, dense: keyed_optimizer(rows)) for _ in range(2))
    steps(*one, range(1))
    one[0].fused_optimizer.param_groups[0]["lr"] = 0.125  # as by a scheduler, after the backward
    other[2].load_state_dict(one[2].state_dict())
    assert other[0].fused_optimizer.param_groups[0]["lr"] == 0.125
    with pytest.raises(hotbed.UnsupportedError, match="param_groups cannot be replaced"):
        other[2].param_groups = [{"params": [], "lr": 0.5}]
