"""The modules beside PyTorch's own, step by step."""

import typing

import pytest
import torch
from conftest import batch

import hotbed
import hotbed.torch as ht
from hotbed._c import ffi, lib
from hotbed.torch.config import Optimizer

ROWS, DIM, SAMPLES, STEPS = 40, 8, 6, 30


class RowWiseAdagrad(torch.optim.Optimizer):
    """Textbook row-wise AdaGrad: dense gradients, but only rows that a step touches are updated."""

    def __init__(self, parameters, lr, eps):
        super().__init__(parameters, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.setdefault(p, {"sum": torch.zeros(p.shape[0], 1)})
                state["sum"] += (p.grad * p.grad).mean(1, keepdim=True)
                p -= group["lr"] * p.grad / (state["sum"].sqrt() + group["eps"])


class SparseAdam(torch.optim.Optimizer):
    """Adam on the rows that have a gradient, with one count of steps for all of them: FBGEMM's and Hotbed's."""

    def __init__(self, parameters, lr, betas, eps):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p, used in zip(group["params"], self.used):
                state = self.state.setdefault(p, {"m": torch.zeros_like(p), "v": torch.zeros_like(p)})
                m, v, g = state["m"][used], state["v"][used], p.grad[used]
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
                state["m"][used], state["v"][used] = m, v
                p[used] -= group["lr"] * (m / (1 - b1**self.steps)) / ((v / (1 - b2**self.steps)).sqrt() + group["eps"])


class OnUsedRows:
    """An optimizer of PyTorch on the rows that have a gradient: other rows and their states stay as they are."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.zero_grad = optimizer.zero_grad

    def step(self):
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        kept = [{t.data_ptr(): t.clone() for t in self._parts(p)} for p in parameters]
        self.optimizer.step()
        for p, used, old in zip(parameters, self.used, kept):
            others = torch.ones(p.shape[0], dtype=torch.bool).index_fill(0, used, False)
            for part in self._parts(p):
                part[others] = old[part.data_ptr()][others] if part.data_ptr() in old else 0

    def _parts(self, p):
        states = [t for t in self.optimizer.state.get(p, {}).values() if isinstance(t, torch.Tensor)]
        return [p.data, *(t for t in states if t.shape == p.shape)]


class Textbook(torch.optim.Optimizer):
    """A few lines of an optimizer that PyTorch does not have, on the rows that have a gradient."""

    def __init__(self, parameters, update):
        super().__init__(parameters, {})
        self.update, self.steps = update, 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            for p, used in zip(group["params"], self.used):
                a, b = self.state.setdefault(p, {"s": [torch.zeros_like(p), torch.zeros_like(p)]})["s"]
                p[used], a[used], b[used] = self.update(p[used], p.grad[used], a[used], b[used], self.steps)


class RowStepsAdam(Textbook):
    """Adam with a count of steps for each row."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p, used in zip(group["params"], self.used):
                zeros = [torch.zeros_like(p), torch.zeros_like(p), torch.zeros(len(p), 1)]
                m, v, t = self.state.setdefault(p, {"s": zeros})["s"]
                t[used] += 1
                step, m[used], v[used] = adam_step(p[used], p.grad[used], m[used], v[used], t[used])
                p[used] -= 0.01 * step


def norms(rows):
    return rows.norm(dim=1, keepdim=True)


def adam_step(w, g, m, v, t, decay=0.0):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8) + decay * w, m, v


def ftrl(w, g, z, n, _, lr=0.5, power=0.5, beta=1.0, l1=0.001, l2=0.01):
    z, n = z + g - ((n + g * g) ** power - n**power) / lr * w, n + g * g
    step = -(z - l1 * z.sign()) / ((beta + n**power) / lr + l2)
    return torch.where(z.abs() <= l1, 0.0, step), z, n


def lion(w, g, m, unused, _):
    return w - 0.001 * (0.9 * m + 0.1 * g).sign(), 0.99 * m + 0.01 * g, unused


def partial_rowwise_adam(w, g, m, v, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * (g * g).mean(1, keepdim=True)
    return w - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8), m, v


def rowwise_adam(w, g, m, v, t):
    m, v = 0.9 * m + 0.1 * g.mean(1, keepdim=True), 0.999 * v + 0.001 * (g * g).mean(1, keepdim=True)
    return w - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8), m, v


def lamb(w, g, m, v, t):
    step, m, v = adam_step(w, g, m, v, t, 0.01)
    return w - 0.01 * norms(w) / norms(step) * step, m, v


def lars(w, g, m, unused, _):
    m = 0.9 * m + 0.02 * norms(w) / (norms(g) + 0.01 * norms(w) + 1e-8) * (g + 0.01 * w)
    return w - m, m, unused


def test_every_optimizer_of_the_library_has_a_class_with_its_parameters():
    classes = {kind.c_name: kind for kind in typing.get_args(Optimizer)}
    kind, names = 0, set()
    while info := lib.hotbed_optimizer_describe(kind := kind + 1):
        name = ffi.string(info.name).decode()
        names.add(name)
        optimizer = classes[name]()
        missing, number = set(), 0
        while parameter := lib.hotbed_optimizer_parameter_at(number):
            if info.parameters >> number & 1 and optimizer.parameter(ffi.string(parameter.name).decode()) is None:
                missing.add(ffi.string(parameter.name).decode())
            number += 1
        assert missing <= ({"initial_accumulator"} if name == "adam" else set())
        defaults = ffi.new("hotbed_optimizer *")
        lib.hotbed_optimizer_init(defaults)
        for number in range(1, 32):  # but learning_rate
            parameter = lib.hotbed_optimizer_parameter_at(number)
            if parameter and info.parameters >> number & 1:
                field = ffi.string(parameter.name).decode()
                value = optimizer.parameter(field)
                assert value is None or value == pytest.approx(getattr(defaults, field), rel=1e-6)
    assert set(classes) == names


OPTIMIZERS = {
    "sgd": (ht.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adagrad": (ht.Adagrad(lr=0.1, eps=1e-10), lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-10)),
    "rowwise": (ht.RowWiseAdagrad(lr=0.1, eps=1e-8), lambda p: RowWiseAdagrad(p, 0.1, 1e-8)),
    "adam": (ht.Adam(lr=0.01), lambda p: SparseAdam(p, 0.01, (0.9, 0.999), 1e-8)),
    "adamw": (
        ht.Adam(lr=0.01, weight_decay=0.1),
        lambda p: OnUsedRows(torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
    ),
    "adam, l2": (
        ht.Adam(lr=0.01, l2_decay=0.1),
        lambda p: OnUsedRows(torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
    ),
    "sgd, l2": (ht.SGD(lr=0.1, l2_decay=0.1), lambda p: OnUsedRows(torch.optim.SGD(p, lr=0.1, weight_decay=0.1))),
    "adagrad, l2": (
        ht.Adagrad(lr=0.1, l2_decay=0.1),
        lambda p: OnUsedRows(torch.optim.Adagrad(p, lr=0.1, eps=1e-8, weight_decay=0.1)),
    ),
    "momentum": (
        ht.Momentum(lr=0.1, momentum=0.8, l2_decay=0.1),
        lambda p: OnUsedRows(torch.optim.SGD(p, lr=0.1, momentum=0.8, weight_decay=0.1)),
    ),
    "nesterov": (
        ht.Nesterov(lr=0.1, momentum=0.8),
        lambda p: OnUsedRows(torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True)),
    ),
    "rmsprop": (
        ht.RMSprop(lr=0.01, rho=0.95, l2_decay=0.1),
        lambda p: OnUsedRows(torch.optim.RMSprop(p, lr=0.01, alpha=0.95, weight_decay=0.1)),
    ),
    "adadelta": (
        ht.Adadelta(lr=0.5, rho=0.95, eps=1e-6),
        lambda p: OnUsedRows(torch.optim.Adadelta(p, lr=0.5, rho=0.95, eps=1e-6)),
    ),
    "ftrl": (
        ht.FTRL(lr=0.5, ftrl_beta=1.0, l1_reg=0.001, l2_reg=0.01),
        lambda p: Textbook(p, ftrl),
    ),
    "lion": (ht.Lion(lr=0.001, betas=(0.9, 0.99)), lambda p: Textbook(p, lion)),
    "row_steps_adam": (ht.RowStepsAdam(lr=0.01), lambda p: RowStepsAdam(p, None)),
    "partial_rowwise_adam": (ht.PartialRowWiseAdam(lr=0.01), lambda p: Textbook(p, partial_rowwise_adam)),
    "rowwise_adam": (ht.RowWiseAdam(lr=0.01), lambda p: Textbook(p, rowwise_adam)),
    "lamb": (ht.LAMB(lr=0.01, weight_decay=0.01), lambda p: Textbook(p, lamb)),
    "lars": (ht.LARS(lr=1.0, trust=0.02, weight_decay=0.01), lambda p: Textbook(p, lars)),
}


def bags_of(kjt, feature):
    at, samples, bounds = kjt.keys().index(feature), kjt.stride(), kjt.offsets()
    begin, end = bounds[at * samples], bounds[(at + 1) * samples]
    weights = kjt.weights_or_none()
    offsets = (bounds[at * samples : (at + 1) * samples + 1] - begin).long()
    return kjt.values()[begin:end].long(), offsets, None if weights is None else weights[begin:end]


def config(name, features, pooling=ht.PoolingType.SUM, **more):
    return ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=features, pooling=pooling, **more)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bags_train_as_embedding_bag(kind, mode, index):
    ours, theirs = OPTIMIZERS[kind]
    pooling = ht.PoolingType.MEAN if mode == "mean" else ht.PoolingType.SUM
    weighted = mode == "weighted"
    ebc = ht.EmbeddingBagCollection(
        [config("a", ["f", "g"], pooling), config("b", ["h"], pooling)], optimizer=ours, is_weighted=weighted
    )
    tables = {
        name: torch.nn.EmbeddingBag(ROWS, DIM, mode="mean" if mode == "mean" else "sum", include_last_offset=True)
        for name in "ab"
    }
    for name, table in tables.items():
        table.weight.data.copy_(ebc.weight(name))
    optimizer = theirs([t.weight for t in tables.values()])
    for _ in range(STEPS):
        kjt = batch(["f", "g", "h"], SAMPLES, ROWS, weighted=weighted, index=index)
        target = torch.randn(SAMPLES, 3 * DIM)
        loss = ((ebc(kjt).values() - target) ** 2).mean()
        loss.backward()
        outputs, used = [], {"a": [], "b": []}
        for feature, name in (("f", "a"), ("g", "a"), ("h", "b")):
            keys, offsets, weights = bags_of(kjt, feature)
            outputs.append(tables[name](keys, offsets, per_sample_weights=weights))
            used[name].append(keys)
        expected = ((torch.cat(outputs, 1) - target) ** 2).mean()
        optimizer.zero_grad()
        expected.backward()
        optimizer.used = [torch.cat(used[name]).unique() for name in "ab"]
        optimizer.step()
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for name, table in tables.items():
        torch.testing.assert_close(ebc.weight(name), table.weight.data, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_one_table_serves_bags_and_sequences(kind, mode, hashed):
    ours, theirs = OPTIMIZERS[kind]
    table = ht.EmbeddingConfig(ROWS, DIM, "a", feature_names=["bags", "words"], use_virtual_table=hashed)
    ec, pooling = ht.EmbeddingCollection([table], optimizer=ours), ht.PoolingType.MEAN if mode == "mean" else None
    weight, every = torch.nn.Parameter(torch.randn(ROWS, DIM) / 8), torch.arange(ROWS)
    ec.set_rows("a", every, weight.detach())
    optimizer = theirs([weight])
    for _ in range(STEPS):
        kjt = batch(["bags", "words"], SAMPLES, ROWS)
        (keys, offsets, _), (words, _, _) = (bags_of(kjt, feature) for feature in ("bags", "words"))
        factors = torch.rand(keys.shape[0]) if mode == "weighted" else None
        target = torch.randn(SAMPLES, DIM)

        def loss_of(bags, words, target=target):
            return ((bags - target) ** 2).mean() + words.square().mean()

        found = ec(kjt)
        bags = ht.pooled(found["bags"], pooling or ht.PoolingType.SUM, factors)
        loss = loss_of(bags, found["words"].values())
        loss.backward()
        how = {"mode": "mean" if mode == "mean" else "sum", "include_last_offset": True, "per_sample_weights": factors}
        expected = loss_of(torch.nn.functional.embedding_bag(keys, weight, offsets, **how), weight[words])
        optimizer.zero_grad()
        expected.backward()
        optimizer.used = [torch.cat([keys, words]).unique()]
        optimizer.step()
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ec.rows("a", every), weight.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "more", "text"),
    [
        ([1, 1], {}, "3 rows, but lengths whose sum is 2"),
        ([5, -2], {}, "3 rows, but lengths whose sum is 3"),
        ([1, 2], {"weights": torch.ones(2)}, r"weights: shape \(2,\) is not \(3,\)"),
        ([1, 2], {"pooling": ht.PoolingType.NONE}, "is not PoolingType.SUM or"),
    ],
)
def test_wrong_lengths_are_not_pooled(lengths, more, text):
    with pytest.raises(hotbed.ArgumentError, match=text):
        ht.pooled(ht.JaggedTensor(torch.ones(3, 2), torch.tensor(lengths)), **more)


def test_bags_of_a_compiled_model_are_pooled():
    table = ht.EmbeddingConfig(ROWS, DIM, "a", feature_names=["f"])
    made = [ht.EmbeddingCollection([table], optimizer=ht.SGD(lr=0.1)) for _ in range(2)]
    kjt = batch(["f"], SAMPLES, ROWS)
    for ec, wrap in zip(made, (lambda f: f, lambda f: torch.compile(f, backend="aot_eager"))):
        wrap(lambda rows: ht.pooled(rows).square().sum())(ec(kjt)["f"]).backward()
    assert torch.equal(made[0].weight("a"), made[1].weight("a"))


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rows_train_as_embedding(kind, hashed):
    ours, theirs = OPTIMIZERS[kind]
    ec = ht.EmbeddingCollection(
        [ht.EmbeddingConfig(ROWS, DIM, "a", feature_names=["f", "g"], use_virtual_table=hashed)], optimizer=ours
    )
    table = torch.nn.Embedding(ROWS, DIM)
    ec.set_rows("a", torch.arange(ROWS), table.weight.data)
    optimizer = theirs([table.weight])
    for _ in range(STEPS):
        kjt = batch(["f", "g"], SAMPLES, ROWS)
        found = ec(kjt)
        rows = torch.cat([found["f"].values(), found["g"].values()])
        assert found["g"].lengths().tolist() == kjt.lengths()[SAMPLES:].tolist()
        target = torch.randn_like(rows)
        ((rows - target) ** 2).mean().backward()
        optimizer.zero_grad()
        ((table(kjt.values()) - target) ** 2).mean().backward()
        optimizer.used = [kjt.values().unique()]
        optimizer.step()
    torch.testing.assert_close(ec.rows("a", torch.arange(ROWS)), table.weight.data, rtol=1e-4, atol=1e-6)


def test_tables_of_both_poolings_and_other_orders():
    ebc = ht.EmbeddingBagCollection(
        [config("a", ["f"], ht.PoolingType.MEAN), config("b", ["g", "f"]), config("c", ["h"], ht.PoolingType.MEAN)]
    )
    kjt = batch(["h", "f", "x", "g"], SAMPLES, ROWS)
    got = ebc(kjt).to_dict()
    assert list(got) == ["f@a", "g", "f@b", "h"]
    for name, feature, table, mode in (("f@a", "f", "a", "mean"), ("f@b", "f", "b", "sum"), ("h", "h", "c", "mean")):
        keys, offsets, _ = bags_of(kjt, feature)
        weight = ebc.weight(table)
        expected = torch.nn.functional.embedding_bag(keys, weight, offsets, mode=mode, include_last_offset=True)
        torch.testing.assert_close(got[name], expected)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_rows(kind):
    ebc = ht.EmbeddingBagCollection([config("a", ["f"], data_type=kind)], output_dtype=kind)
    kjt = batch(["f"], SAMPLES, ROWS)
    out = ebc(kjt).values()
    keys, offsets, _ = bags_of(kjt, "f")
    expected = torch.nn.functional.embedding_bag(
        keys, ebc.weight("a").float(), offsets, mode="sum", include_last_offset=True
    )
    assert out.dtype == kind and ebc.weight("a").dtype == kind
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-3)
    out.sum().backward()


def test_no_samples_and_no_keys():
    ebc = ht.EmbeddingBagCollection([config("a", ["f"])])
    none = torch.zeros(0, dtype=torch.int64)
    assert ebc(ht.KeyedJaggedTensor(["f"], none, lengths=none)).values().shape == (0, DIM)
    out = ebc(ht.KeyedJaggedTensor(["f"], none, lengths=torch.zeros(3, dtype=torch.int64))).values()
    assert torch.equal(out, torch.zeros(3, DIM))
    before = ebc.weight("a").clone()
    out.sum().backward()
    assert torch.equal(before, ebc.weight("a"))


def test_a_schedulers_learning_rate_is_used():
    ebc = ht.EmbeddingBagCollection([config("a", ["f"], weight_init_min=0, weight_init_max=0)], optimizer=ht.SGD(lr=1))
    scheduler = torch.optim.lr_scheduler.StepLR(ebc.fused_optimizer, 1, gamma=0.5)
    kjt = ht.KeyedJaggedTensor(["f"], torch.tensor([3]), lengths=torch.tensor([1]))
    for _ in range(3):
        ebc(kjt).values().sum().backward()
        ebc.fused_optimizer.step()
        scheduler.step()
    torch.testing.assert_close(ebc.weight("a")[3], torch.full((DIM,), -1.75))


def test_hash_tables_take_any_key_and_evaluation_adds_none():
    table = ht.EmbeddingBagConfig(100, DIM, "a", feature_names=["f"], use_virtual_table=True, max_embeddings=400)
    ebc = ht.EmbeddingBagCollection([table], optimizer=ht.Adagrad())
    keys = torch.tensor([-5, 2**62, 7, 7])
    kjt = ht.KeyedJaggedTensor(["f"], keys, lengths=torch.tensor([2, 2]))
    with torch.no_grad():
        assert torch.equal(ebc(kjt).values(), torch.zeros(2, DIM))
    assert ebc.keys("a").tolist() == []
    ebc(kjt).values().sum().backward()
    assert ebc.keys("a").tolist() == [-5, 7, 2**62]
    assert ebc.stats("a")["inserts"] == 3
    assert ebc.rows("a", torch.tensor([1, 7]))[0].abs().sum() == 0


def test_lookups_without_an_optimizer_change_nothing():
    ebc = ht.EmbeddingBagCollection([config("a", ["f"])], optimizer=None)
    before = ebc.weight("a").clone()
    out = ebc(batch(["f"], SAMPLES, ROWS)).values()
    assert not out.requires_grad
    top = torch.nn.Linear(out.shape[1], 1)
    top(out).sum().backward()  # the layers above train
    assert top.weight.grad is not None and torch.equal(before, ebc.weight("a"))


def test_prefetched_batches_train_to_the_same_bytes():
    def run(ahead):
        torch.manual_seed(1)
        ebc = ht.EmbeddingBagCollection([config("a", ["f", "g"])], optimizer=ht.Adam(), seed=3)
        batches = [batch(["f", "g"], SAMPLES, ROWS) for _ in range(8)]
        for kjt in batches:
            kjt.offsets()
        for i, kjt in enumerate(batches):
            if ahead and i == 0:
                ebc.prefetch(kjt)
            out = ebc(kjt).values()
            if ahead and i + 1 < len(batches):
                ebc.prefetch(batches[i + 1])
            out.square().sum().backward()
        return ebc.weight("a").clone()

    assert torch.equal(run(False), run(True))
