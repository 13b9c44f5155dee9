"""The modules as PyTorch's: compile, operators, state dicts, errors, threads, fork."""

import ast
import copy
import errno
import gc
import importlib
import inspect
import itertools
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import warnings
from functools import partial

import pytest
import torch
from conftest import Interrupted, batch
from torch.nn.init import uniform_

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint
from hotbed.torch import _ops, _sharded, _storage

ROWS, DIM, SAMPLES = 40, 8, 6


def collection(hashed=False, **more):
    table = ht.EmbeddingBagConfig(ROWS, DIM, "a", feature_names=["f", "g"], use_virtual_table=hashed)
    return ht.EmbeddingBagCollection([table], **more)


# --- compile ----------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ebc = collection(optimizer=ht.Adagrad(lr=0.1), seed=5)
        torch.manual_seed(2)
        self.top = torch.nn.Linear(2 * DIM, 1)

    def forward(self, values, offsets):
        kjt = ht.KeyedJaggedTensor(["f", "g"], values, offsets=offsets)
        return self.top(self.ebc(kjt).values()).square().mean()


@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param("inductor", marks=pytest.mark.skipif("HOTBED_PYTHON_FULL" not in os.environ, reason="slow")),
    ],
)
def test_a_compiled_model_gives_the_same_bytes(backend):
    def run(compiled):
        torch.manual_seed(1)
        model = Model()
        call = torch.compile(model, fullgraph=True, backend=backend) if compiled else model
        losses = []
        for _ in range(4):
            kjt = batch(["f", "g"], SAMPLES, ROWS)
            loss = call(kjt.values(), kjt.offsets())
            loss.backward()
            losses.append(float(loss.detach()))
        return losses, model.ebc.weight("a").clone()

    losses, weight = run(False)
    compiled_losses, compiled_weight = run(True)
    torch.testing.assert_close(losses, compiled_losses, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(weight, compiled_weight, rtol=1e-6, atol=1e-7)


def test_compiled_models_of_one_class_have_rows_of_their_own():
    torch.compiler.reset()
    models = [Model(), Model()]  # the second compilation sees that the storage's handle varies
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    for model in models:
        torch.compile(model, fullgraph=True, backend="aot_eager")(kjt.values(), kjt.offsets()).backward()
    untrained = Model().ebc.weight("a")
    assert torch.equal(models[0].ebc.weight("a"), models[1].ebc.weight("a"))
    assert not torch.equal(models[0].ebc.weight("a"), untrained)


def test_a_compiler_may_reuse_the_memory_of_the_operators_inputs():
    """Inductor writes to buffers that no later operator reads; the backward needs keys, offsets and weights."""
    weights = []
    for reused in (False, True):
        ebc = collection(optimizer=ht.SGD(lr=1.0), is_weighted=True, seed=3)
        torch.manual_seed(4)
        kjt = batch(["f", "g"], SAMPLES, ROWS, weighted=True)
        inputs = [x.clone() for x in (kjt.values(), kjt.offsets(), kjt.weights())]
        fixed = (ebc.storages[0].handle, SAMPLES, 2 * DIM, True, True, torch.float32)
        out, _ = _ops.lookup(torch.zeros(1, requires_grad=True), *inputs, *fixed)
        if reused:
            for x in inputs:
                x.zero_()
        out.square().sum().backward()
        weights.append(ebc.weight("a").clone())
    assert torch.equal(*weights)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_of_several_storages_trains_them_all(backend):
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        pytest.skip("this PyTorch does not compile slices whose bounds are data")
    torch.compiler.reset()
    moved = []
    for compiled in (False, True):
        tables = [
            ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=[name], pooling=pooling)
            for name, pooling in (("a", ht.PoolingType.SUM), ("b", ht.PoolingType.MEAN))
        ]
        module = ht.EmbeddingBagCollection(tables, optimizer=ht.SGD(lr=1.0))
        before = [module.weight(name).clone() for name in ("a", "b")]

        def run(values, lengths, module=module):
            return module(ht.KeyedJaggedTensor(["a", "b"], values, lengths=lengths)).values()

        call = torch.compile(run, fullgraph=True, backend=backend) if compiled else run
        for _ in range(3):
            call(torch.tensor([1, 2]), torch.tensor([1, 1])).sum().backward()
        moved.append([was - module.weight(name) for was, name in zip(before, ("a", "b"))])
    for eager, compiled in zip(*moved):
        torch.testing.assert_close(eager.max(), torch.tensor(3.0))
        torch.testing.assert_close(eager, compiled)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("features", [["f"], ["f", "g"]])
def test_a_compiled_embedding_collection_gives_the_same_rows(features, backend):
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        pytest.skip("this PyTorch does not compile slices whose bounds are data")
    torch.compiler.reset()
    results = []
    for compiled in (False, True):
        tables = [ht.EmbeddingConfig(ROWS, DIM, name, feature_names=[name]) for name in features]
        module = ht.EmbeddingCollection(tables, optimizer=ht.SGD(lr=1.0), seed=3)

        def run(values, lengths, module=module):
            out = module(ht.KeyedJaggedTensor(features, values, lengths=lengths))
            return sum((i + 1) * part.values().square().sum() for i, part in enumerate(out.values()))

        call = torch.compile(run, fullgraph=True, backend=backend) if compiled else run
        losses = []
        for lengths in ([3, 1], [0, 2], [4, 4]):
            loss = call(torch.arange(sum(lengths) * len(features)), torch.tensor(lengths * len(features)))
            loss.backward()
            losses.append(loss.detach())
        results.append([*losses, *(module.weight(name).clone() for name in features)])
    torch.testing.assert_close(*results)


def test_two_compiled_calls_with_one_batch_are_two_lookups():
    if "is_impure" not in inspect.getsource(importlib.import_module("torch._functorch.compile_utils")):
        pytest.skip("this PyTorch merges equal calls of operators with side effects")
    torch.compiler.reset()
    module = collection(optimizer=ht.SGD(lr=1.0))
    before = module.weight("a").clone()

    def run(values, lengths):
        kjt = ht.KeyedJaggedTensor(["f", "g"], values, lengths=lengths)
        return module(kjt).values().sum() + module(kjt).values().sum()

    torch.compile(run, fullgraph=True)(torch.tensor([1, 2]), torch.tensor([1, 1])).backward()
    torch.testing.assert_close((before - module.weight("a")).max(), torch.tensor(2.0))


def test_export_and_trace_are_refused():
    ebc = collection(optimizer=None)
    if not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("this PyTorch does not say whether it exports")

    class Net(torch.nn.Module):
        def forward(self, values, lengths):
            return ebc(ht.KeyedJaggedTensor(["f", "g"], values, lengths=lengths)).values()

    with pytest.raises(Exception, match=r"torch\.export: the tables are not in the program"):
        torch.export.export(Net(), (torch.tensor([1, 2]), torch.tensor([1, 1])))
    with pytest.raises(hotbed.UnsupportedError, match=r"torch\.jit\.trace: .*; use torch\.compile"):
        torch.jit.trace(Net(), (torch.tensor([1, 2]), torch.tensor([1, 1])))


def test_scripts_are_refused():
    for module in (collection(), torch.nn.Sequential(collection())):
        with pytest.raises(hotbed.UnsupportedError, match=r"torch\.jit\.script: .*; use torch\.compile"):
            torch.jit.script(module)


@pytest.mark.parametrize("training", [False, True])
def test_operators_pass_opcheck(training):
    ebc = collection(optimizer=ht.SGD(lr=0.0), max_in_flight=16)
    kjt, storage = batch(["f", "g"], SAMPLES, ROWS), ebc.storages[0]
    anchor = torch.zeros(1, requires_grad=training)
    arguments = (anchor, kjt.values(), kjt.offsets(), None, storage.handle, SAMPLES, 2 * DIM, True)
    # The second output is the number of a ticket, and differs from call to call.
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(_ops.lookup, (*arguments, training, torch.float32), test_utils=utils)


# --- rows beyond the step ---------------------------------------------------------------------------


def test_only_the_forward_of_the_same_batch_takes_a_prefetch():
    ebc = collection(optimizer=ht.SGD(lr=0.0))
    values = torch.tensor([1, 2, 3, 4])
    offsets = torch.tensor([0, 1, 2, 3] + [4] * 4001)
    long = ht.KeyedJaggedTensor(["f", "g"], values, offsets=offsets)
    short = ht.KeyedJaggedTensor(["f", "g"], values, offsets=offsets[:5])  # the same memory, two samples
    want = ebc(short).values()
    ebc.prefetch(long)
    assert torch.equal(ebc(short).values(), want)
    weighted = collection(optimizer=ht.SGD(lr=0.0), is_weighted=True)
    once, twice = (
        ht.KeyedJaggedTensor(["f", "g"], values, torch.full((4,), weight), offsets=offsets[:5]) for weight in (1.0, 2.0)
    )
    want = weighted(once).values()
    weighted.prefetch(once)
    assert torch.equal(weighted(twice).values(), 2 * want)
    swapped = ht.KeyedJaggedTensor(["g", "f"], values, offsets=offsets[:5])
    want = ebc(short).values()
    ebc.prefetch(swapped)
    assert torch.equal(ebc(short).values(), want)


def test_forwards_without_backward_leave_nothing_behind():
    ebc = collection(hashed=True, optimizer=ht.SGD())
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    for _ in range(1000):
        ebc(kjt)
    assert sum(slot.held for slot in ebc.storages[0].slots) <= 1
    out, *_later = (ebc(kjt).values() for _ in range(5))
    with pytest.raises(hotbed.StateError, match=r"the last max_in_flight=4 forwards .*; pass a larger max_in_flight"):
        out.sum().backward()


def test_memory_is_flat_over_ten_thousand_forwards_without_backward():
    table = ht.EmbeddingConfig(ROWS, DIM, "a", feature_names=["f"], use_virtual_table=True)
    module = ht.EmbeddingCollection([table], optimizer=ht.Adam())
    kjt = batch(["f"], SAMPLES, ROWS)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def run(forwards):
        for _ in range(forwards):
            module(kjt)

    run(10_000)  # the first ones may take a new arena of Python, of 1 MiB
    before = resident()
    run(10_000)
    assert resident() - before < 2**20, "100 bytes a forward"


def test_lookups_are_the_same_with_and_without_the_operators():
    """Where PyTorch traces, the operators run; elsewhere a step bypasses their dispatch."""

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Mode.seen += function is torch.ops.hotbed.lookup.default
            return function(*args, **(kwargs or {}))

    batches = [batch(["f", "g"], SAMPLES, ROWS) for _ in range(3)]
    direct, traced = (collection(optimizer=ht.Adam(lr=0.1), seed=2) for _ in range(2))
    for kjt in batches:
        out = direct(kjt).values()
        with Mode():
            other = traced(kjt).values()
        assert torch.equal(out, other)
        out.square().sum().backward()
        other.square().sum().backward()
        with torch.no_grad(), Mode():
            assert torch.equal(direct(kjt).values(), traced(kjt).values())
    assert Mode.seen == 9
    assert torch.equal(direct.weight("a"), traced.weight("a"))


@pytest.mark.parametrize("changed", ["values", "offsets", "weights"])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_batch_may_not_change_before_its_backward(changed, ahead):
    ebc = collection(is_weighted=True)
    kjt = batch(["f", "g"], SAMPLES, ROWS, weighted=True)
    before = ebc.weight("a").clone()
    if ahead:
        ebc.prefetch(kjt)
        getattr(kjt, changed)().zero_()
        with pytest.raises(hotbed.StateError, match=r"forward of a prefetched batch: .* changed in place"):
            ebc(kjt)
    else:
        out = ebc(kjt).values()
        getattr(kjt, changed)().zero_()
        with pytest.raises(hotbed.StateError, match=r"backward: .* changed in place"):
            out.sum().backward()
    assert torch.equal(ebc.weight("a"), before)
    with torch.inference_mode():
        kjt = batch(["f", "g"], SAMPLES, ROWS, weighted=True)
    ebc(kjt).values().sum().backward()  # PyTorch does not count writes to such tensors
    assert not torch.equal(ebc.weight("a"), before)


def test_the_host_reads_offsets_once_and_again_after_a_change():
    lengths = torch.tensor([1, 2, 0, 1])
    kjt = ht.KeyedJaggedTensor(["f", "g"], torch.arange(4), offsets=torch.tensor([0, 1, 3, 3, 4]))
    assert kjt.offset_per_key() == [0, 3, 4]
    assert kjt.offset_per_key() is kjt.offset_per_key()
    kjt.offsets().copy_(torch.tensor([0, 1, 1, 3, 4]))
    assert kjt.offset_per_key() == [0, 1, 4]
    moved = ht.KeyedJaggedTensor(["f", "g"], torch.arange(4), lengths=lengths).to(torch.device("meta"))
    assert moved.offset_per_key() == [0, 3, 4]  # a meta tensor has no values that could be read


def test_offsets_count_where_lengths_are_given_too():
    lengths, offsets = torch.tensor([2, 0]), torch.tensor([0, 1, 2])
    kjt = ht.KeyedJaggedTensor(["g", "f"], torch.tensor([1, 2]), lengths=lengths, offsets=offsets)
    assert kjt.lengths().tolist() == [1, 1] and kjt["g"].values().tolist() == [1]
    ebc = collection()
    right = ht.KeyedJaggedTensor(["f", "g"], torch.tensor([2, 1]), lengths=torch.tensor([1, 1]))
    assert torch.equal(ebc(kjt).values(), ebc(right).values())  # the first one is permuted
    with pytest.raises(hotbed.ArgumentError, match="3 bags"):
        ht.KeyedJaggedTensor(["f", "g"], torch.tensor([1]), lengths=lengths, offsets=torch.tensor([0, 1, 1, 1]))


@pytest.mark.parametrize("given", ["lengths", "offsets"])
@pytest.mark.parametrize("order", ["fg", "gf"])
def test_lengths_and_offsets_follow_what_was_written_into_the_given_ones(given, order):
    ebc = collection(optimizer=None)
    tensors = {"lengths": torch.tensor([1, 1, 1, 1]), "offsets": torch.arange(5)}
    written = {"lengths": torch.tensor([2, 0, 2, 0]), "offsets": torch.tensor([0, 2, 2, 4, 4])}
    buffer, keys = tensors[given], torch.tensor([1, 2, 3, 4])
    kjt = ht.KeyedJaggedTensor(list(order), keys, **{given: buffer})
    assert kjt.offset_per_key() == [0, 2, 4]
    ebc(kjt)
    buffer.copy_(written[given])
    right = ht.KeyedJaggedTensor(list(order), keys, **written)
    assert torch.equal(ebc(kjt).values(), ebc(right).values())
    assert all(torch.equal(getattr(kjt, name)(), written[name]) for name in written)
    assert kjt[order[1]].lengths().tolist() == [2, 0]
    buffer.copy_(torch.tensor({"lengths": [1, 0, 3, 0], "offsets": [0, 1, 1, 4, 4]}[given]))
    assert kjt.offset_per_key() == [0, 1, 4]


@pytest.mark.parametrize("why", ["eval", "no_grad", "no optimizer"])
def test_a_prefetch_outside_of_training_creates_no_rows(why):
    ebc = collection(hashed=True, optimizer=None if why == "no optimizer" else ht.SGD())
    ebc.train(why != "eval")
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    with torch.set_grad_enabled(why != "no_grad"):
        ebc.prefetch(kjt)
        assert not ebc(kjt).values().any()
    assert ebc.keys("a").numel() == 0
    assert not any(slot.held for slot in ebc.storages[0].slots)


def test_rows_of_features_have_one_gradient():
    """A slice for each feature would have a gradient as large as all rows."""
    tables = [ht.EmbeddingConfig(ROWS, DIM, name, feature_names=[name]) for name in "ab"]
    module = ht.EmbeddingCollection(tables)
    out = module(batch(["a", "b"], SAMPLES, ROWS))
    assert {type(out[name].values().grad_fn).__name__ for name in "ab"} == {"SplitWithSizesBackward0"}


def test_a_second_backward_is_refused():
    ebc = collection()
    out = ebc(batch(["f", "g"], SAMPLES, ROWS)).values().sum()
    out.backward(retain_graph=True)
    with pytest.raises(hotbed.StateError, match=r"had its backward.*; for several losses .* add them up"):
        out.backward()


def test_parts_of_an_output_accumulate_into_one_step():
    first, second = (collection(optimizer=ht.Adam(lr=0.1), seed=2) for _ in range(2))
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    first(kjt).values().square().sum().backward()
    pooled = second(kjt).values()
    rows = pooled.detach().requires_grad_()
    for part in rows.split(2):
        part.square().sum().backward()
    pooled.backward(rows.grad)
    assert torch.equal(first.weight("a"), second.weight("a"))


def test_flat_needs_the_order_of_the_tables():
    tables = [ht.EmbeddingConfig(ROWS, DIM, name, feature_names=[name]) for name in ("a", "b")]
    module, keys, lengths = ht.EmbeddingCollection(tables), torch.arange(3), torch.ones(3, dtype=torch.int64)
    rows = module.flat(ht.KeyedJaggedTensor(["a", "c", "b"], keys, lengths=lengths))
    assert torch.equal(rows, torch.stack([module.weight("a")[0], module.weight("b")[2]]))
    for given in (["b", "a"], ["b", "c", "a"]):
        part = ht.KeyedJaggedTensor(given, keys[: len(given)], lengths=lengths[: len(given)])
        with pytest.raises(hotbed.ArgumentError, match=r"flat: the batch has the features .*, the tables \['a', 'b'\]"):
            module.flat(part)


def test_a_feature_of_two_tables_may_not_be_twice_in_a_batch():
    tables = [ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=["f"]) for name in ("a", "b")]
    twice = ht.KeyedJaggedTensor(["f", "f"], torch.arange(4), lengths=torch.tensor([2, 2]))
    with pytest.raises(hotbed.ArgumentError, match="are in the batch more than once"):
        ht.EmbeddingBagCollection(tables)(twice)


def test_offsets_of_a_sequence_may_not_fall():
    module = ht.EmbeddingCollection([ht.EmbeddingConfig(ROWS, DIM, "a", feature_names=["f"])])
    with pytest.raises(hotbed.KeyRangeError, match="lengths: -2 keys in bag 1"):
        module(ht.KeyedJaggedTensor(["f"], torch.arange(8), offsets=torch.tensor([0, 5, 3, 8])))


@pytest.mark.parametrize("field", ["check", "nonfinite"])
def test_options_do_not_replace_an_argument(field):
    with pytest.raises(
        hotbed.ArgumentError, match=f"options '{field}' is a field that the collection's other arguments"
    ):
        collection(options={field: 0})


@pytest.mark.parametrize("training", [False, True])
def test_keys_outside_of_a_static_table_are_ignored(training):
    table = ht.EmbeddingConfig(ROWS, DIM, "a", feature_names=["f"], init_fn=lambda weight: weight.fill_(3.0))
    module = ht.EmbeddingCollection([table], check="ignore").train(training)
    rows = module.flat(ht.KeyedJaggedTensor(["f"], torch.tensor([ROWS, 1]), lengths=torch.tensor([2]))).detach()
    assert bool((rows[1] == 3).all())
    assert bool((rows[0] != 0).any()) == training and bool((rows[0].abs() <= ROWS**-0.5).all())
    assert module.stats("a")["refused"] == training


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: (2 * out).sum() + out.sum(),
        lambda out: out.mul_(3).sum(),
        lambda out: (out.t() * torch.arange(4.0 * DIM).view(2 * DIM, 2)).sum(),
        lambda out: torch.nn.functional.embedding(torch.tensor([1, 1]), out, sparse=True).sum(),
        lambda out: (out.register_hook(torch._neg_view), out.mul(2).sum())[1],  # as of the imag of a conj
    ],
    ids=["two uses", "in place", "a gradient that is not contiguous", "a sparse gradient", "a negative view"],
)
def test_a_backward_gets_the_gradient_of_the_output(loss):
    ebc = collection(optimizer=ht.SGD(lr=1.0))
    before = ebc.weight("a").clone()
    out = ebc(ht.KeyedJaggedTensor(["f", "g"], torch.arange(4), lengths=torch.ones(4, dtype=torch.int64))).values()
    leaf = out.detach().clone().requires_grad_()
    loss(leaf.clone()).backward()
    loss(out).backward()
    want = torch.cat(leaf.grad.to_dense().split(DIM, dim=1))  # f's two samples have the keys 0 and 1, g's 2 and 3
    torch.testing.assert_close((before - ebc.weight("a"))[:4], want)


def test_hooks_of_the_output_come_before_the_update():
    ebc = collection(optimizer=ht.SGD(lr=1.0))
    before = ebc.weight("a").clone()
    out = ebc(ht.KeyedJaggedTensor(["f", "g"], torch.tensor([1, 2]), lengths=torch.tensor([1, 1]))).values()
    out.register_hook(lambda gradient: 2 * gradient)
    (gradient,) = torch.autograd.grad(out.sum(), out, retain_graph=True)  # which updates nothing
    assert gradient.unique().tolist() == [2.0]
    assert torch.equal(ebc.weight("a"), before)
    out.sum().backward()
    assert (before - ebc.weight("a")).max() == 2.0


def test_transforms_of_functions_are_refused():
    ebc = collection()
    with pytest.raises(RuntimeError, match=r"autograd\.Function with functorch transforms"):
        torch.func.grad(lambda x: (ebc(batch(["f", "g"], SAMPLES, ROWS)).values() * x).sum())(torch.tensor(1.0))
    ones = torch.ones(2 * SAMPLES, dtype=torch.int64)
    given = ht.KeyedJaggedTensor(["f", "g"], torch.arange(2 * SAMPLES), lengths=ones)
    with pytest.raises(RuntimeError, match=r"autograd\.Function with functorch transforms"):
        torch.func.grad(lambda x: (ebc(given).values() * x).sum())(torch.tensor(1.0))
    ebc(given).values().sum().backward()  # the offsets are not of the transform
    ebc(batch(["f", "g"], SAMPLES, ROWS)).values().sum().backward()


@pytest.mark.parametrize("kind", ["evicting", "growing", "fixed"])
def test_the_rows_of_a_full_table_are_loaded_again(kind, tmp_path):
    size = {"evicting": 1000, "growing": 100, "fixed": 10000}[kind]
    how = {"evicting": {"evict": ht.Evict.LOWEST}, "growing": {"max_embeddings": 1000}, "fixed": {}}[kind]

    def make():
        config = ht.EmbeddingBagConfig(size, DIM, "a", feature_names=["f"], use_virtual_table=True, **how)
        return ht.EmbeddingBagCollection([config], optimizer=ht.Adagrad(lr=0.1), check="ignore")

    ebc = make()
    for keys in torch.arange(12 * size).split(max(7, size // 50)):
        lengths = torch.ones(keys.numel(), dtype=torch.int64)
        ebc(ht.KeyedJaggedTensor(["f"], keys, lengths=lengths)).values().sum().backward()
        if len(ebc.keys("a")) > 1.1 * max(size, how.get("max_embeddings", 0)):
            break
    rows, states = ebc.state_dict(), ebc.fused_optimizer.state_dict()
    count = len(ebc.keys("a"))
    assert count > 1.02 * max(size, how.get("max_embeddings", 0))
    checkpoint.save(tmp_path / "full", ebc)
    for load in ("checkpoint", "state dict", "itself"):
        other = ebc if load == "itself" else make()
        if load == "checkpoint":
            checkpoint.load(tmp_path / "full", other)
        else:
            other.load_state_dict(rows)
            other.fused_optimizer.load_state_dict(states)
        assert len(other.keys("a")) == count
        keys = ebc.keys("a")
        assert torch.equal(other.rows("a", keys), ebc.rows("a", keys))


def test_keys_of_a_state_dict_that_do_not_fit_stay_away():
    def make(size):
        config = ht.EmbeddingBagConfig(
            size, DIM, "a", feature_names=["f"], use_virtual_table=True, evict=ht.Evict.LOWEST
        )
        return ht.EmbeddingBagCollection([config], optimizer=ht.Adagrad(lr=0.1))

    def train(ebc, keys):
        lengths = torch.ones(keys.numel(), dtype=torch.int64)
        ebc(ht.KeyedJaggedTensor(["f"], keys, lengths=lengths)).values().sum().backward()

    large, small = make(1000), make(100)
    for keys in torch.arange(900).split(100):
        train(large, keys)
    train(small, torch.arange(50))  # keys with the lowest scores of the large table
    with pytest.warns(UserWarning, match=r"table 'a': \d+ of 900 rows fit"):
        small.load_state_dict(large.state_dict())
    keys = small.keys("a")
    assert keys.min() >= 450
    assert torch.equal(small.rows("a", keys), large.rows("a", keys))


@pytest.mark.parametrize("kind", ["static", "hash", "two tiers"])
def test_a_save_beside_a_forward_without_backward_has_its_rows(kind, tmp_path):
    options = {"hbm_bytes": 3000, "caching": True} if kind == "two tiers" else None

    def make():
        return collection(kind == "hash", optimizer=ht.Adam(lr=0.1), options=options)

    first, kjt = make(), batch(["f", "g"], SAMPLES, ROWS - 1)
    first(kjt).values().sum().backward()
    new = ht.KeyedJaggedTensor(["f", "g"], torch.tensor([int(kjt.values()[0]), ROWS - 1]), lengths=torch.tensor([1, 1]))
    out = first(new).values()
    keys = torch.cat([kjt.values().unique(), torch.tensor([ROWS - 1])]) if kind == "hash" else torch.arange(ROWS)
    rows = first.rows("a", keys)
    checkpoint.save(tmp_path / "held", first)
    with pytest.raises(hotbed.StateError, match="forwards without backward hold"):
        checkpoint.load(tmp_path / "held", first)
    out.sum().backward()
    assert not torch.equal(first.rows("a", keys), rows)
    second = make()
    checkpoint.load(tmp_path / "held", second)
    assert torch.equal(second.rows("a", keys), rows)
    if kind == "hash":
        assert torch.equal(second.keys("a").sort().values, keys)
    second(new).values().sum().backward()
    assert torch.equal(second.rows("a", keys), first.rows("a", keys))


def test_a_failed_forward_holds_no_rows(tmp_path):
    tables = [
        ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=[name], pooling=pooling, use_virtual_table=hashed)
        for name, pooling, hashed in (("a", ht.PoolingType.SUM, True), ("b", ht.PoolingType.MEAN, False))
    ]
    ebc = ht.EmbeddingBagCollection(tables)

    def forward(b):
        return ebc(ht.KeyedJaggedTensor(["a", "b"], torch.tensor([3, b]), lengths=torch.tensor([1, 1]))).values()

    with pytest.raises(hotbed.KeyRangeError):
        forward(ROWS)
    checkpoint.save(tmp_path / "saved", ebc)
    checkpoint.load(tmp_path / "saved", ebc)
    forward(1).sum().backward()


@pytest.mark.parametrize("kind", ["static", "hash", "two tiers"])
def test_the_optimizers_state_dict_may_be_loaded_first(kind):
    options = {"hbm_bytes": 3000, "caching": True} if kind == "two tiers" else None
    first, second = (collection(kind == "hash", optimizer=ht.Adam(lr=0.1), options=options) for _ in range(2))
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    for _ in range(3):
        first(kjt).values().sum().backward()
    saved = {k: v.clone() for k, v in first.state_dict().items()}
    second.fused_optimizer.load_state_dict(copy.deepcopy(first.fused_optimizer.state_dict()))
    second.load_state_dict(saved)
    states = [ebc.fused_optimizer.state_dict()["state"]["a"] for ebc in (first, second)]
    assert all(torch.equal(states[1][name], state) for name, state in states[0].items())
    for ebc in (first, second):
        ebc(kjt).values().square().sum().backward()
    keys = torch.arange(ROWS)
    assert torch.equal(first.rows("a", keys), second.rows("a", keys))


def test_a_collection_without_optimizer_lacks_the_attribute():
    ebc = collection(optimizer=None)
    assert not hasattr(ebc, "fused_optimizer") and hasattr(collection(), "fused_optimizer")
    with pytest.raises(hotbed.StateError, match="made without an optimizer"):
        _ = ebc.fused_optimizer
    with pytest.raises(AttributeError, match="no attribute 'fused'"):
        _ = ebc.fused


def test_a_scheduler_does_not_miss_the_optimizers_step():
    ebc = collection(optimizer=ht.SGD(lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(ebc.fused_optimizer, 1, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ebc(batch(["f", "g"], SAMPLES, ROWS)).values().sum().backward()
        scheduler.step()
    assert ebc.fused_optimizer.param_groups[0]["lr"] == 0.5


def test_keys_after_a_load_score_higher_than_the_loaded_ones():
    def table(optimizer):
        config = ht.EmbeddingConfig(200, 4, "h", feature_names=["f"], use_virtual_table=True, evict=ht.Evict.LOWEST)
        return ht.EmbeddingCollection([config], optimizer=optimizer)

    def step(module, keys):
        jagged = ht.KeyedJaggedTensor(["f"], keys, lengths=torch.ones(keys.shape[0], dtype=torch.int64))
        module(jagged)["f"].values().sum().backward()

    first, second = table(ht.SGD(lr=1.0)), table(ht.Adam(lr=1.0))  # of another optimizer, whose clock is not loaded
    for i in range(300):
        step(first, torch.randint(0, 1000, (40,), generator=torch.Generator().manual_seed(i)))
    second.load_state_dict(first.state_dict())
    new = torch.arange(10**6, 10**6 + 100)
    for _ in range(20):
        for part in new.split(25):
            step(second, part)
    assert torch.isin(new, second.keys("h")).all()
    assert (second.rows("h", new)[:, 0] < -10).all(), "rows of new keys were evicted between their updates"


@pytest.mark.parametrize("hashed", [False, True])
def test_state_dicts_are_loaded_again(hashed):
    def step(ebc):
        kjt = batch(["f", "g"], SAMPLES, ROWS)
        ebc(kjt).values().square().sum().backward()

    first = collection(hashed, optimizer=ht.Adam(lr=0.1))
    for _ in range(3):
        step(first)
    saved = copy.deepcopy({k: v.clone() for k, v in first.state_dict(prefix="model.").items()})
    assert "model.embedding_bags.a.weight" in saved and ("model.embedding_bags.a.weight_id" in saved) == hashed
    optimizer = copy.deepcopy(first.fused_optimizer.state_dict())
    second = collection(hashed, optimizer=ht.Adam(lr=0.3))  # one seed: keys that are new later begin alike
    step(second)
    missing, unexpected = second.load_state_dict({k[len("model.") :]: v for k, v in saved.items()})
    assert not missing and not unexpected
    second.fused_optimizer.load_state_dict(optimizer)
    for ebc in (first, second):
        torch.manual_seed(9)
        for _ in range(3):
            step(ebc)
    keys = torch.arange(ROWS)
    assert torch.equal(first.rows("a", keys), second.rows("a", keys))


@pytest.mark.parametrize("optimizer", [ht.SGD(), ht.Adam(), None])
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("options", [{}, {"hbm_bytes": 256}], ids=["one tier", "two tiers"])
def test_a_collection_loads_its_own_state_dict(optimizer, tracked, options):
    """Its tensors may have the memory of the tables."""
    tables = [
        ht.EmbeddingBagConfig(ROWS, DIM, "a", feature_names=["f"], track_changes=tracked),
        ht.EmbeddingBagConfig(ROWS, DIM, "b", feature_names=["g"], track_changes=tracked, use_virtual_table=True),
    ]
    ebc = ht.EmbeddingBagCollection(tables, optimizer=optimizer, options=options)
    rows = {name: torch.rand(ROWS, DIM) for name in "ab"}
    for name in "ab":
        ebc.set_rows(name, torch.arange(ROWS), rows[name])
    start = ebc.changes().position if tracked else None
    ebc.load_state_dict(ebc.state_dict())
    assert all(torch.equal(ebc.rows(name, torch.arange(ROWS)), rows[name]) for name in "ab")
    if tracked:
        found = ebc.changes(start).tables["a"]
        assert torch.equal(found.keys, torch.arange(ROWS)) and torch.equal(found.rows, rows["a"])


def test_a_weight_is_the_memory_that_trains():
    ebc = collection(optimizer=ht.SGD(lr=1.0))
    weight = ebc.state_dict()["embedding_bags.a.weight"]
    weight.fill_(2.0)
    kjt = ht.KeyedJaggedTensor(["f", "g"], torch.tensor([1, 2]), lengths=torch.tensor([1, 1]))
    out = ebc(kjt).values()
    assert torch.equal(out.detach(), torch.full((1, 2 * DIM), 2.0))
    out.sum().backward()
    assert weight[1, 0] == 1.0 and weight[2, 0] == 1.0 and weight[3, 0] == 2.0
    del ebc, out
    gc.collect()
    assert weight[3, 0] == 2.0  # the tensor keeps the storage


def test_strict_loading_names_what_is_missing():
    ebc = collection()
    with pytest.raises(RuntimeError, match=r"embedding_bags\.a\.weight"):
        ebc.load_state_dict({})
    with pytest.raises(RuntimeError, match=r"embedding_bags\.b\.weight"):
        ebc.load_state_dict({**ebc.state_dict(), "embedding_bags.b.weight": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="shape"):
        ebc.load_state_dict({"embedding_bags.a.weight": torch.zeros(3, 3)})


def test_strict_loading_also_names_what_hash_tables_miss():
    model = torch.nn.ModuleDict({"top": torch.nn.Linear(2, 2), "ebc": collection(hashed=True)})
    model.ebc.set_rows("a", torch.arange(3), torch.ones(3, DIM))
    assert model.load_state_dict(model.state_dict()) == ([], [])
    state = dict(model.state_dict())
    weight = state.pop("ebc.embedding_bags.a.weight")
    found = model.load_state_dict({**state, "ebc.other": weight, "ebc.a.b.weight": weight}, strict=False)
    assert found.missing_keys == ["ebc.embedding_bags.a.weight"]
    assert sorted(found.unexpected_keys) == ["ebc.a.b.weight", "ebc.other"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"ebc\.embedding_bags\.a\.weight"'):
        model.load_state_dict(state)
    assert torch.equal(model.ebc.keys("a"), torch.arange(3))


def test_a_subclass_may_have_parameters():
    class Scaled(ht.EmbeddingBagCollection):
        def __init__(self):
            super().__init__([ht.EmbeddingBagConfig(ROWS, DIM, "a", feature_names=["f"])])
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.top = torch.nn.Linear(2, 2)

    first, second = Scaled(), Scaled()
    with torch.no_grad():
        first.scale.fill_(3.0)
    assert second.load_state_dict(first.state_dict()) == ([], [])
    assert second.scale.item() == 3.0 and torch.equal(second.top.weight, first.top.weight)


def test_types_and_devices_reach_what_a_subclass_adds():
    class Scaled(ht.EmbeddingBagCollection):
        def __init__(self):
            super().__init__([ht.EmbeddingBagConfig(ROWS, DIM, "a", feature_names=["f"])])
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.register_buffer("count", torch.ones(1))
            self.top = torch.nn.Linear(2, 2)

    bags = Scaled()
    model = torch.nn.Sequential(bags)
    with pytest.warns(UserWarning, match="data types"):
        model.double()
    added = [*model.parameters(), *model.buffers()]
    assert len(added) == 4 and {tensor.dtype for tensor in added} == {torch.float64}
    assert bags.weight("a").dtype == torch.float32
    model.share_memory()
    assert all(tensor.is_shared() for tensor in [*model.parameters(), *model.buffers()])
    before, rows = bags.scale.data_ptr(), bags.weight("a").clone()
    model.to_empty(device="cpu")
    assert bags.scale.data_ptr() != before
    assert torch.equal(bags.weight("a"), rows)
    with pytest.raises(hotbed.StateError, match="do not move to meta"):
        bags.to("meta")
    assert bags.scale.device.type == "cpu"


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", ["static", "hash", "two tiers"])
@pytest.mark.parametrize("shape", [(ROWS, 1), (ROWS, DIM + 2), (ROWS,)])
def test_loading_rows_of_another_dim_changes_nothing(shape, kind, several):
    ranks = {}
    if several:
        sharded = ht.ShardedOptions(max_batch_size=SAMPLES, max_keys=ROWS)
        ranks = {"comm": hotbed.Comm(), "sharded": sharded}
    options = {"hbm_bytes": 3000, "caching": True} if kind == "two tiers" else None
    ebc = collection(kind == "hash", optimizer=ht.Adam(), options=options, **ranks)
    assert ebc.storages[0].is_direct(0) == (kind == "static")
    keys = torch.arange(ROWS)
    ebc.set_rows("a", keys, torch.rand(ROWS, DIM))
    before = ebc.rows("a", keys)
    state = {**ebc.state_dict(), "embedding_bags.a.weight": torch.ones(shape)}
    size = ", ".join(map(str, shape))
    with pytest.raises(RuntimeError, match=rf"table 'a': weight is shape \({size},?\) .* not shape \({ROWS}, {DIM}\)"):
        ebc.load_state_dict(state)
    assert torch.equal(ebc.rows("a", keys), before)


def test_modules_are_not_pickled_copied_or_moved():
    ebc = collection()
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(hotbed.UnsupportedError, match="state_dict"):
            attempt(ebc)
    with pytest.raises(hotbed.StateError, match=r"do not move to meta$"):
        ebc.to("meta")
    assert ebc.to("cpu") is ebc
    with pytest.warns(UserWarning, match="data types") as seen:
        torch.nn.Sequential(ebc).half()
    assert seen[0].filename == __file__


@pytest.mark.parametrize("rate", [-0.5, float("nan"), float("inf"), "fast"])
def test_bad_learning_rates_are_errors(rate):
    ebc = collection(optimizer=ht.SGD(lr=1.0))
    before = ebc.weight("a").clone()
    out = ebc(batch(["f", "g"], SAMPLES, ROWS)).values()
    ebc.fused_optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(hotbed.ArgumentError, match=f"the learning rate {rate!r} is not a finite number of at least 0"):
        out.sum().backward()
    assert torch.equal(ebc.weight("a"), before)
    ebc.fused_optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
    ebc(batch(["f", "g"], SAMPLES, ROWS)).values().sum().backward()
    assert not torch.equal(ebc.weight("a"), before)


@pytest.mark.parametrize("hashed", [False, True])
def test_states_of_another_optimizer_are_refused(hashed):
    given = collection(hashed, optimizer=ht.Adam()).fused_optimizer.state_dict()
    text = r"table 'a': the state dict has \['exp_avg', 'exp_avg_sq'\] of another optimizer; SGD has the states \[\]"
    with pytest.raises(hotbed.ArgumentError, match=text):
        collection(hashed, optimizer=ht.SGD()).fused_optimizer.load_state_dict(given)
    with pytest.raises(hotbed.ArgumentError, match=r"table 'a': the state dict has no states \['sum'"):
        collection(hashed, optimizer=ht.Adagrad()).fused_optimizer.load_state_dict(given)


def test_the_fused_optimizer_is_not_pickled_copied_or_extended(tmp_path):
    optimizer = collection().fused_optimizer
    other = {**optimizer.param_groups[0], "lr": 0.5}
    text = r"param_groups cannot be replaced.*; set lr of its groups"
    with pytest.raises(hotbed.UnsupportedError, match=text):
        optimizer.param_groups = [other]
    with pytest.raises(hotbed.UnsupportedError, match=text):
        optimizer.param_groups[0] = other
    for attempt in (pickle.dumps, copy.deepcopy, copy.copy, lambda o: torch.save(o, tmp_path / "o")):
        with pytest.raises(hotbed.UnsupportedError, match=r"cannot be pickled or copied, .* save its state_dict\(\)"):
            attempt(optimizer)
    with pytest.raises(hotbed.UnsupportedError, match="updates only the tables; pass other parameters to an optimizer"):
        optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
    assert len(optimizer.param_groups) == 1


# --- bad input --------------------------------------------------------------------------------------


@pytest.mark.skipif("cuda" in hotbed.backends(), reason="the library has GPUs")
def test_pytorchs_allocator_needs_cuda():
    with pytest.raises(hotbed.UnsupportedError, match="backend cuda is not in this build"):
        ht.use_torch_allocator()


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EACCES, errno.ENOENT, None])
def test_the_error_of_a_file_has_the_systems_number(reason):
    raised = hotbed.FileError("cannot write a/b", errno=reason)
    for error in (raised, pickle.loads(pickle.dumps(raised))):
        assert (error.errno, str(error)) == (reason, "cannot write a/b")


def hash_tables(capacity=32, **more):
    config = ht.EmbeddingBagConfig(capacity, 4, "h", feature_names=["f"], use_virtual_table=True)
    return ht.EmbeddingBagCollection([config], optimizer=ht.SGD(lr=0.1), **more)


def of_keys(*keys):
    return ht.KeyedJaggedTensor(["f"], torch.tensor(keys), lengths=torch.ones(len(keys), dtype=torch.int64))


@pytest.mark.parametrize("words", ["", "%s entirely other words, with 7 and table 'x' is full: %s"])
def test_errors_have_fields_and_their_texts_do_not_matter(monkeypatch, words):
    last = hotbed._c.last_error
    monkeypatch.setattr(hotbed._c, "last_error", lambda: words or last())
    with pytest.raises(hotbed.FullError) as full:
        hash_tables()(of_keys(*range(-99, 0)))
    error = full.value
    assert (error.cause, error.table, error.limit) == ("TABLE_FULL", "h", 48) and -99 <= error.key < 0
    assert str(error).startswith(
        f"table 'h' is full: no slot for key {error.key}, the table has 48 slots; use a larger "
    )
    with pytest.raises(hotbed.KeyRangeError) as outside:
        collection()(kjt_of(torch.tensor([ROWS, 0])))
    error = outside.value
    assert (error.cause, error.key, error.limit, error.table) == ("KEY_RANGE", ROWS, ROWS, "a")
    assert str(error) == f"table 'a': key {ROWS} is not in [0, {ROWS}) (feature 'f')"
    assert (error.rank, error.feature, error.errno, error.parameter) == (None, "f", None, None)  # of no earlier error
    for bad, call in itertools.product((torch.tensor([0, ROWS]), torch.tensor([ROWS, ROWS])), ("forward", "prefetch")):
        for ebc in (collection(), collection().eval()):
            if ebc.training or call == "forward":
                with pytest.raises(hotbed.KeyRangeError) as outside:
                    getattr(ebc, call)(kjt_of(bad))
                assert outside.value.feature == ("f" if bad[0] == ROWS else "g")
    tables = hash_tables(check="warn")
    with pytest.warns(UserWarning, match="table 'h' is full.*; further refused keys of this table are only counted"):
        tables(of_keys(*range(99)))
    with pytest.raises(hotbed.ArgumentError) as option:
        hash_tables(2**40)
    error = option.value
    assert (error.table, error.parameter, error.value, error.limit) == ("h", "capacity", 2**40, 2**35)
    assert str(error).startswith("num_embeddings: ")
    status = hotbed._c.lib.hotbed_error_set(hotbed._c.lib.HOTBED_ERR_STATE, b"of a callback")
    error = hotbed._c.failure(status)
    assert (error.cause, error.table, error.value) == ("OTHER", None, None)


def one_config(**more):
    return ht.EmbeddingBagConfig(
        **{"num_embeddings": 9, "embedding_dim": 4, "name": "t", "feature_names": ["f"], **more}
    )


@pytest.mark.parametrize(
    "call, fields",
    [
        (lambda: ht.EmbeddingBagCollection([one_config(embedding_dim=0)]), ("t", "embedding_dim", 0, None)),
        (
            lambda: ht.EmbeddingBagCollection([one_config(feature_names=["f", "f"])]),
            ("t", "feature_names", ["f", "f"], None),
        ),
        (
            lambda: ht.EmbeddingBagCollection([one_config(weight_init_min=2.0, weight_init_max=1.0)]),
            ("t", "weight_init_min", 2.0, 1.0),
        ),
        (lambda: ht.EmbeddingBagCollection([one_config(), one_config()]), ("t", None, None, None)),
        (lambda: ht.ShardedOptions(max_keys=-1), (None, "max_keys", -1, None)),
        (lambda: hash_tables().rows("none", torch.tensor([1])), ("none", None, None, None)),
        (lambda: hash_tables(check="loud"), (None, "check", "loud", None)),
        (lambda: hash_tables(max_in_flight=0), (None, "max_in_flight", 0, hotbed.torch._storage._SLOTS_MOST)),
    ],
)
def test_errors_of_the_package_have_fields(call, fields):
    with pytest.raises(hotbed.ArgumentError) as raised:
        call()
    error = raised.value
    assert (error.table, error.parameter, error.value, error.limit) == fields


#: Texts whose values name no table, option, key or file of the caller.
WITHOUT_FIELDS = ("cannot be pickled or copied", "the dense part: ", "were changed in place")


def test_every_error_with_values_in_its_text_has_them_in_fields():
    kinds = {kind.__name__ for kind in hotbed.errors.BY_STATUS.values()}
    package, bare, calls = pathlib.Path(hotbed.__file__).parent, [], 0
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if name not in kinds or not any(isinstance(part, ast.FormattedValue) for part in ast.walk(node)):
                continue
            calls += 1
            text = ast.unparse(node)
            if len(node.args) + len(node.keywords) < 2 and not any(words in text for words in WITHOUT_FIELDS):
                bare.append(f"{path.name}:{node.lineno}")
    assert calls > 100 and bare == []


def test_errors_of_batches_and_files_have_fields(tmp_path):
    tables = hash_tables()
    with pytest.raises(hotbed.ArgumentError) as missing:
        tables(ht.KeyedJaggedTensor(["g"], torch.tensor([1]), lengths=torch.tensor([1])))
    assert missing.value.feature == "f"
    with pytest.raises(hotbed.ArgumentError) as twice:
        tables.set_rows("h", torch.tensor([3, 7, 3]), torch.zeros(3, 4))
    assert (twice.value.table, twice.value.key) == ("h", 3)
    path = str(tmp_path / "c")
    hotbed.checkpoint.save(path, tables)
    with pytest.raises(hotbed.ArgumentError) as unknown:
        hotbed.checkpoint.read(path, ["none"])
    assert (unknown.value.table, unknown.value.path) == ("none", path)
    with pytest.raises(hotbed.StateError) as there:
        hotbed.checkpoint.save(path, tables)
    assert there.value.path == path
    (tmp_path / "c" / "MANIFEST").write_bytes(b"x")
    with pytest.raises(hotbed.CorruptError) as damaged:
        hotbed.checkpoint.load(path, tables)
    assert damaged.value.path == path + "/MANIFEST"


def test_the_errors_of_calls_on_files_have_the_systems_number(tmp_path):
    with pytest.raises(hotbed.FileError) as raised:
        hotbed.checkpoint.load(tmp_path / "absent", collection())
    assert raised.value.errno == errno.ENOENT


def kjt_of(values, lengths=(1, 1), **more):
    return ht.KeyedJaggedTensor(["f", "g"], values, lengths=torch.tensor(lengths), **more)


@pytest.mark.parametrize("dtype", [torch.uint64, torch.int16, torch.float32])
@pytest.mark.parametrize("features", [["f", "g"], ["g", "f"]])
def test_keys_of_other_types_are_errors_in_any_order(features, dtype):
    keys = torch.tensor([1, 2]).to(dtype)
    with pytest.raises(hotbed.ArgumentError, match=rf"^keys: dtype {dtype} is not torch\.int64 or torch\.int32"):
        collection()(ht.KeyedJaggedTensor(features, keys, lengths=torch.tensor([1, 1])))
    with pytest.raises(hotbed.ArgumentError, match=rf"^lengths: dtype {dtype} is not"):
        collection()(ht.KeyedJaggedTensor(features, torch.tensor([1, 2]), lengths=torch.ones(2, dtype=dtype)))


def test_tables_are_no_modules():
    bags = collection().embedding_bags
    for use in (lambda: bags["a"].weight, lambda: list(bags), lambda: "a" in bags, lambda: bags.a.weight[0]):
        with pytest.raises(hotbed.UnsupportedError, match=r"^embedding_bags.*: tables are no modules: call weight\("):
            use()
    with pytest.raises(AttributeError, match=r"no embedding_bags\.a\.weight\.data in .*: call weight\(table\)"):
        bags.a.weight.data  # noqa: B018


def test_bad_batches_are_errors_with_the_values():
    ebc = collection()
    good = torch.tensor([1, 2])
    for wrong, error, text in (
        (kjt_of(good.float()), hotbed.ArgumentError, r"keys: dtype torch\.float32"),
        (kjt_of(good, [1.0, 1.0]), hotbed.ArgumentError, r"lengths: dtype torch\.float32"),
        (kjt_of(torch.tensor([1, ROWS])), hotbed.KeyRangeError, f"key {ROWS} is not in"),
        (kjt_of(torch.tensor([-1, 2])), hotbed.KeyRangeError, "key -1 is not in"),
        (kjt_of(good, [1, 5]), hotbed.KeyRangeError, "sum of the lengths, is 6, but there are 2 keys"),
        (kjt_of(good, [5, -3]), hotbed.KeyRangeError, "ends at 5"),
        (kjt_of(torch.tensor([1, 2, 3])), hotbed.KeyRangeError, "sum of the lengths, is 2, but there are 3 keys"),
        (ht.KeyedJaggedTensor(["f"], good, lengths=torch.tensor([2])), hotbed.ArgumentError, r"\['g'\] are not in"),
        (kjt_of(good.to("meta")), hotbed.ArgumentError, "on meta"),
    ):
        with pytest.raises(error, match=text):
            ebc(wrong)
    assert issubclass(hotbed.ArgumentError, ValueError) and issubclass(hotbed.KeyRangeError, IndexError)
    out = ebc(kjt_of(good)).values()  # it works as before
    out.sum().backward()
    with pytest.raises(hotbed.ArgumentError, match="3 bags"):
        ht.KeyedJaggedTensor(["f", "g"], good, lengths=torch.tensor([1, 1, 0]))
    with pytest.raises(hotbed.ArgumentError, match=r"values: shape \(1, 2\) is not a 1-D tensor"):
        kjt_of(torch.tensor([[1, 2]]))
    with pytest.raises(hotbed.ArgumentError, match="features: 'f' is not a KeyedJaggedTensor"):
        ebc("f")
    rows = ht.EmbeddingCollection([ht.EmbeddingConfig(ROWS, DIM, "a", feature_names=["f"])])
    for wrong, text in ((None, "None"), ({}, r"\{\}")):
        with pytest.raises(hotbed.ArgumentError, match=f"features: {text} is not a KeyedJaggedTensor"):
            rows(wrong)
    with pytest.raises(hotbed.ArgumentError, match="keys: 'item' is one name, not a list of names"):
        ht.KeyedJaggedTensor("item", good, lengths=torch.tensor([1, 1, 0, 0]))
    with pytest.raises(KeyError, match=r"no feature 'zz'; there are \['f', 'g'\]"):
        kjt_of(good)["zz"]
    with pytest.raises(hotbed.ArgumentError, match=r"values: \[1, 2\] is not a 1-D tensor"):
        kjt_of([1, 2])
    with pytest.raises(hotbed.ArgumentError, match=r"keys: \[1, 2\] is not a 1-D tensor"):
        ebc.rows("a", [1, 2])


def test_bad_rows_change_nothing():
    ebc = collection(hashed=True, optimizer=ht.Adam())
    keys = torch.arange(5)
    ebc.set_rows("a", keys, torch.ones(5, DIM))
    state = ebc.state_dict()
    for name, wrong, text in (
        ("weight", torch.ones(4, DIM), r"weight is shape \(4, 8\)"),
        ("weight", torch.ones(5, DIM).to_sparse(), r"weight is shape \(5, 8\) .* torch.sparse_coo, not shape \(5, 8\)"),
        ("weight_id", keys.float(), "keys: dtype torch.float32"),
        ("metadata", None, "metadata: None is not a tensor"),
    ):
        with pytest.raises(RuntimeError, match=text):
            ebc.load_state_dict({**state, f"embedding_bags.a.{name}": wrong})
    for keys_given, rows in ((keys.float(), torch.ones(5, DIM)), (keys, torch.ones(5, DIM + 1)), ([1], None)):
        with pytest.raises(hotbed.ArgumentError):
            ebc.set_rows("a", keys_given, rows)
    assert torch.equal(ebc.keys("a"), keys) and bool((ebc.rows("a", keys) == 1).all())


def test_a_wrong_entry_is_reported_once_and_other_tables_are_loaded():
    tables = [
        ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=[name], use_virtual_table=name == "b") for name in "abc"
    ]
    ebc = ht.EmbeddingBagCollection(tables)
    keys = torch.tensor([3, -7, 5])
    state = {
        **ebc.state_dict(),
        "embedding_bags.a.weight": [1.0],
        "embedding_bags.b.weight": torch.ones(3, DIM),
        "embedding_bags.b.weight_id": keys,
        "embedding_bags.b.metadata": torch.ones(3, dtype=torch.int64),
        "embedding_bags.c.weight": torch.ones(ROWS, DIM),
    }
    with pytest.raises(RuntimeError, match="is not a tensor") as caught:
        ebc.load_state_dict(state)
    assert str(caught.value).count("embedding_bags.a.weight: [1.0] is not a tensor") == 1
    assert torch.equal(ebc.keys("b"), keys.sort().values) and bool((ebc.weight("c") == 1).all())
    before = ebc.rows("b", keys)
    twice = {**state, "embedding_bags.a.weight": ebc.weight("a"), "embedding_bags.b.weight": torch.rand(3, DIM)}
    with pytest.raises(RuntimeError, match="table 'b': key -7 occurs twice, at positions"):
        ebc.load_state_dict({**twice, "embedding_bags.b.weight_id": torch.tensor([-7, 3, -7])})
    assert torch.equal(ebc.keys("b"), keys.sort().values) and torch.equal(ebc.rows("b", keys), before)


def test_weights_are_checked():
    ebc = collection(is_weighted=True)
    good = torch.tensor([1, 2])
    with pytest.raises(hotbed.ArgumentError, match="no weights"):
        ebc(kjt_of(good))
    with pytest.raises(hotbed.ArgumentError, match="weights: 1 elements, not 2"):
        ebc(kjt_of(good, weights=torch.ones(1)))
    with pytest.raises(hotbed.UnsupportedError, match="gradient"):
        ebc(kjt_of(good, weights=torch.ones(2, requires_grad=True)))
    with pytest.raises(hotbed.ArgumentError, match=r"weights: dtype torch\.int64 is not a floating-point type"):
        ebc(kjt_of(good, weights=torch.ones(2, dtype=torch.int64)))
    half, double = (ebc(kjt_of(good, weights=torch.full((2,), 0.5, dtype=t))) for t in (torch.float16, torch.float64))
    assert torch.equal(half.values(), double.values())


@pytest.mark.parametrize(
    "change, text",
    [
        ({"num_embeddings": 0}, "0 rows"),
        ({"num_embeddings": 2**70}, f"table 'a': num_embeddings {2**70} does not fit into int64"),
        ({"use_virtual_table": True, "max_embeddings": 2**70}, f"'a': max_embeddings {2**70} does not fit into int64"),
        ({"embedding_dim": 5000}, "5000 elements"),
        ({"name": "no blanks"}, "no blanks"),
        ({"feature_names": []}, r"feature_names \[\]"),
        ({"feature_names": ["f", "f"]}, r"feature_names \['f', 'f'\] has a name twice"),
        ({"data_type": torch.int32}, "int32"),
        ({"data_type": "float16"}, r"data_type 'float16' is not one of torch\.float32, torch\.float16"),
        ({"data_type": ["f"]}, r"data_type \['f'\] is not one of torch\.float32"),
        ({"use_virtual_table": True, "init_fn": torch.nn.init.zeros_}, "init_fn"),
        (
            {"use_virtual_table": True, "init_fn": partial(uniform_, generator=torch.Generator())},
            "init_fn is for tables",
        ),
        ({"init_fn": partial(uniform_, a=0.5, b=0.1)}, r"init_fn .* has a=0\.5, which is not at most b=0\.1"),
        ({"pooling": "sum"}, r"pooling 'sum' is not one of PoolingType\.SUM"),
        ({"use_virtual_table": True, "evict": "lowest"}, r"evict 'lowest' is not one of Evict\.NEVER, Evict\.LOWEST"),
        ({"use_virtual_table": True, "evict": ht.Score.LFU}, "evict <Score.LFU: 2> is not one of"),
        ({"use_virtual_table": True, "score": 1}, "score 1 is not one of"),
        ({"use_virtual_table": True, "max_embeddings": -1}, "max_embeddings -1 is below num_embeddings"),
        ({"use_virtual_table": True, "max_embeddings": ROWS - 1}, f"{ROWS - 1} is below num_embeddings {ROWS}"),
        ({"weight_init_min": 0.5, "weight_init_max": 0.1}, r"weight_init_min 0\.5 is not at most weight_init_max 0\.1"),
        ({"weight_init_min": 0.5}, r"weight_init_min 0\.5 is not at most weight_init_max 0\.158"),
        ({"weight_init_max": float("nan")}, "weight_init_max nan"),
        ({"weight_init_min": "a"}, "table 'a': weight_init_min 'a' is not a number"),
        ({"init_fn": 0.5}, r"table 'a': init_fn 0\.5 is not a function"),
        ({"evict": ht.Evict.LOWEST}, "evict .* is for hash tables: set use_virtual_table"),
        ({"score": ht.Score.LFU}, "score .* is for hash tables"),
        ({"max_embeddings": 2 * ROWS}, "max_embeddings .* is for hash tables"),
    ],
)
def test_bad_configs_are_errors(change, text):
    fields = {"num_embeddings": ROWS, "embedding_dim": DIM, "name": "a", "feature_names": ["f"]}
    with pytest.raises(hotbed.ArgumentError, match=text):
        ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(**{**fields, **change})])


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("given", [{"a": 0.5, "b": 0.625}, {"a": 0.75}, {"b": 0.25}])
def test_a_partial_of_uniform_gives_the_bounds(given, hashed):
    fields = {"use_virtual_table": hashed, "init_fn": partial(uniform_, **given), "weight_init_max": 9.0}
    module = ht.EmbeddingCollection([ht.EmbeddingConfig(1000, DIM, "a", feature_names=["f"], **fields)])
    kjt = ht.KeyedJaggedTensor(["f"], torch.arange(1000), lengths=torch.ones(1000, dtype=torch.int64))
    rows = module.flat(kjt).detach()
    lower, upper = given.get("a", 0.0), given.get("b", 1.0)
    assert lower <= float(rows.min()) < lower + 0.01 and upper - 0.01 < float(rows.max()) <= upper


def test_a_partial_of_uniform_with_more_than_bounds_is_called():
    fields = {"init_fn": partial(uniform_, a=0.5, b=0.625, generator=torch.Generator().manual_seed(3))}
    module = ht.EmbeddingCollection([ht.EmbeddingConfig(ROWS, DIM, "a", feature_names=["f"], **fields)])
    expected = uniform_(torch.empty(ROWS, DIM), 0.5, 0.625, torch.Generator().manual_seed(3))
    assert torch.equal(module.weight("a"), expected)


def test_configs_may_come_from_a_generator():
    def configs(kind):
        return (kind(ROWS, DIM, name, feature_names=[name]) for name in "ab")

    assert len(ht.EmbeddingBagCollection(configs(ht.EmbeddingBagConfig)).embedding_bag_configs()) == 2
    assert len(ht.EmbeddingCollection(configs(ht.EmbeddingConfig)).embedding_configs()) == 2


def test_bad_options_are_errors():
    for options, text in (
        ({"device": "meta"}, "meta"),
        ({"device": "gpu"}, "'gpu' is not cpu or cuda"),
        ({"device": True}, "device True is not a torch.device"),
        ({"optimizer": ht.Adam(lr=-0.1)}, "the learning rate is negative"),
        ({"optimizer": ht.Adam(weight_decay=-0.1)}, r"weight_decay=-0\.1.*: weight_decay is negative"),
        ({"optimizer": ht.Adam(lr="0.1")}, r"optimizer Adam\(lr='0\.1'.* must be real number, not str"),
        ({"optimizer": ht.Adam(betas=(0.9,))}, r"betas=\(0\.9,\).* not enough values"),
        ({"optimizer": ht.Adam}, r"config\.Adam'> is not an instance of SGD, .* example hotbed\.torch\.Adam\(lr="),
        ({"optimizer": "adam"}, "'adam' is not an instance of SGD"),
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)},
            r"<class 'torch\.optim\.sgd\.SGD'> is not an instance of SGD",
        ),
        ({"output_dtype": torch.int64}, "int64"),
        ({"max_in_flight": 0}, "max_in_flight 0"),
        ({"max_in_flight": 1.5}, r"max_in_flight 1\.5 is not in"),
        ({"check": "maybe"}, "maybe"),
        ({"check": ["error"]}, r"check \['error'\] is not one of"),
        ({"nonfinite": ["skip"]}, r"nonfinite \['skip'\] is not one of"),
        ({"output_dtype": [torch.float32]}, r"output_dtype \[torch\.float32\] is not float32"),
        ({"options": ["hbm_bytes"]}, r"options \['hbm_bytes'\] is not a dict of fields"),
        ({"options": {3: 1}}, r"options \{3: 1\} is not a dict of fields"),
        ({"options": {"seed": 3}}, "options 'seed' is a field that the collection's other arguments set"),
        ({"options": {"optimizer": None}}, "options 'optimizer' is a field"),
        ({"optimizer": ht.SGD(lr=None)}, r"SGD\(lr=None.* the learning rate is None"),
        ({"optimizer": ht.SGD(lr=float("nan"))}, "learning_rate"),
    ):
        with pytest.raises(hotbed.ArgumentError, match=text):
            collection(**options)
    with pytest.raises(hotbed.ArgumentError, match="at least one"):
        ht.EmbeddingBagCollection([])
    for made, kind in (
        (ht.EmbeddingBagCollection, ht.EmbeddingBagConfig),
        (ht.EmbeddingCollection, ht.EmbeddingConfig),
    ):
        for tables in (None, kind(5, 4, "t", feature_names=["f"])):
            with pytest.raises(hotbed.ArgumentError, match=r"tables .* is not a list of configs"):
                made(tables)
    with pytest.raises(hotbed.ArgumentError, match="is no EmbeddingBagConfig: it has no pooling"):
        ht.EmbeddingBagCollection([ht.EmbeddingConfig(5, 4, "t", feature_names=["f"])])
    with pytest.raises(hotbed.ArgumentError, match="'t' is no EmbeddingConfig: it has no name"):
        ht.EmbeddingCollection(["t"])
    with pytest.raises(hotbed.ArgumentError, match="one embedding_dim"):
        ht.EmbeddingCollection([ht.EmbeddingConfig(5, d, f"t{d}", feature_names=[f"f{d}"]) for d in (4, 8)])


def test_tables_that_ranks_do_not_share_cause_a_warning(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.warns(
        UserWarning, match="without comm=: each of the 2 ranks trains .* pass comm= and sharded="
    ) as seen:
        table = ht.EmbeddingBagConfig(ROWS, DIM, "a", feature_names=["f"])
        ht.EmbeddingBagCollection([table])
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collection(optimizer=None)


def test_a_full_table_says_so_or_not():
    def run(check):
        table = ht.EmbeddingBagConfig(16, DIM, "a", feature_names=["f"], use_virtual_table=True)
        ebc = ht.EmbeddingBagCollection([table], check=check)
        keys = torch.arange(200)
        return ebc(ht.KeyedJaggedTensor(["f"], keys, lengths=torch.ones(200, dtype=torch.int64))).values()

    with pytest.raises(hotbed.FullError, match=r"table 'a' is full: .*; use a larger num_embeddings"):
        run("error")
    run("ignore").sum().backward()


def test_refused_keys_cause_a_warning_per_table():
    tables = [
        ht.EmbeddingBagConfig(16, DIM, name, feature_names=[name], use_virtual_table=name == "hash")
        for name in ("static", "hash")
    ]
    ebc = ht.EmbeddingBagCollection(tables, check="warn")

    def step(statics, hashes):
        lengths = torch.tensor([statics.shape[0], hashes.shape[0]])
        ebc(
            ht.KeyedJaggedTensor(["static", "hash"], torch.cat([statics, hashes]), lengths=lengths)
        ).values().sum().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.arange(16), torch.arange(16))
    with pytest.warns(UserWarning, match=r"^table 'hash' is full: .*num_embeddings.*stats\(\)") as seen:
        step(torch.arange(16), torch.arange(200))
    assert (seen[0].filename, seen[0].lineno) == (__file__, inspect.getsourcelines(step)[1] + 2)
    with pytest.warns(UserWarning, match=r"^table 'static': key 16 is not in \[0, 16\)"):
        step(torch.arange(17), torch.arange(16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.arange(17), torch.arange(400))
    assert ebc.stats("static")["refused"] == 2


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_table_that_cannot_evict_says_what_to_do(forgotten):
    table = ht.EmbeddingBagConfig(64, DIM, "a", feature_names=["f"], use_virtual_table=True, evict=ht.Evict.LOWEST)
    ebc = ht.EmbeddingBagCollection([table])

    def forward(keys):
        return ebc(ht.KeyedJaggedTensor(["f"], keys, lengths=torch.ones_like(keys)))

    text = r"table 'a': no slot for key .* use a num_embeddings of twice .* call cancel\(\)"
    with pytest.raises(hotbed.FullError, match=text):
        if forgotten:
            _ = [forward(torch.arange(50) + 50 * step) for step in range(4)]
        forward(torch.arange(200))
    ebc.cancel()
    for step in range(8):
        with torch.no_grad():
            forward(torch.arange(50) + 50 * step)
        forward(torch.arange(50) + 50 * step).values().sum().backward()
    assert ebc.stats("a")["evictions"] > 0


def test_errors_name_tables_of_two_poolings():
    tables = [
        ht.EmbeddingBagConfig(rows, DIM, name, feature_names=[name], pooling=pooling)
        for name, rows, pooling in (("sums", 9, ht.PoolingType.SUM), ("means", 5, ht.PoolingType.MEAN))
    ]
    ebc = ht.EmbeddingBagCollection(tables)
    with pytest.raises(hotbed.KeyRangeError, match=r"table 'means': key 7 is not in \[0, 5\)"):
        ebc(ht.KeyedJaggedTensor(["sums", "means"], torch.tensor([7, 7]), lengths=torch.tensor([1, 1])))


def test_an_operator_of_a_module_that_is_gone():
    ebc = collection()
    kjt, handle = batch(["f", "g"], SAMPLES, ROWS), ebc.storages[0].handle
    del ebc
    gc.collect()
    with pytest.raises(hotbed.StateError, match="does not exist"):
        arguments = (torch.zeros(0), kjt.values(), kjt.offsets(), None, handle, SAMPLES, 2 * DIM, True)
        _ops.lookup(*arguments, False, torch.float32)


# --- interruptions and forgotten batches ------------------------------------------------------------


def one_rank():
    return {"comm": hotbed.Comm(), "sharded": ht.ShardedOptions(max_batch_size=SAMPLES, max_keys=200)}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("call", ["prefetch", "forward", "backward"])
def test_an_interrupted_batch_can_be_cancelled(call, several, tmp_path, monkeypatch):
    ebc = collection(hashed=True, **(one_rank() if several else {}))
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    out = ebc(kjt).values() if call == "backward" else None
    if several:
        module, name = _sharded, {"forward": "sharded_read"}.get(call, f"sharded_{call}")
    else:
        module, name = _storage, {"forward": "storage_prefetch_forward"}.get(call, f"storage_{call}")
    with monkeypatch.context() as patch:
        patch.setattr(module, "lib", Interrupted(module.lib, f"hotbed_{name}"))
        with pytest.raises(KeyboardInterrupt):
            if out is not None:
                out.sum().backward(retain_graph=True)
            else:
                (ebc.prefetch if call == "prefetch" else ebc)(kjt)
    if out is not None:
        with pytest.raises(hotbed.StateError, match=None if several else r"interrupted.*Ctrl-C") as caught:
            out.sum().backward()
        assert "ticket" not in str(caught.value)
    ebc.cancel()
    checkpoint.save(tmp_path / "saved", ebc)
    ebc(kjt).values().sum().backward()
    assert all(not slot.held for slot in ebc.storages[0].slots)


def test_an_interrupted_forward_is_freed_in_silence():
    _ops._Forward.__new__(_ops._Forward).__del__()


@pytest.mark.parametrize("several", [False, True])
def test_a_batch_that_is_prefetched_twice_is_held_once(several, tmp_path):
    ebc = collection(hashed=True, **(one_rank() if several else {}))
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    for _ in range(2):
        ebc.prefetch(kjt)
    assert sum(slot.held for slot in ebc.storages[0].slots) == 1
    ebc(kjt).values().sum().backward()
    checkpoint.save(tmp_path / "saved", ebc)


def test_a_buffer_that_is_filled_again_is_prefetched_again(tmp_path):
    ebc = collection(hashed=True, optimizer=ht.SGD(lr=1.0))
    kjt = ht.KeyedJaggedTensor(["f", "g"], torch.tensor([1, 2]), lengths=torch.tensor([1, 1]))
    ebc.prefetch(kjt)
    kjt.values().copy_(torch.tensor([5, 6]))
    ebc.prefetch(kjt)
    out = ebc(kjt).values()
    assert torch.equal(out.detach().reshape(2, DIM), ebc.rows("a", kjt.values()))
    out.sum().backward()
    checkpoint.save(tmp_path / "saved", ebc)


@pytest.mark.parametrize("several", [False, True])
def test_a_prefetched_batch_that_was_changed_is_not_held(several, tmp_path):
    ebc = collection(hashed=True, **(one_rank() if several else {}))
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    ebc.prefetch(kjt)
    kjt.values().add_(1)
    with pytest.raises(hotbed.StateError, match="changed in place"):
        ebc(kjt)
    checkpoint.save(tmp_path / "saved", ebc)
    ebc(kjt).values().sum().backward()


@pytest.mark.parametrize("several", [False, True])
def test_a_prefetched_batch_whose_read_fails_is_not_held(several, tmp_path, monkeypatch):
    ebc = collection(hashed=True, **(one_rank() if several else {}))
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    ebc.prefetch(kjt)
    module, name = (_sharded, "hotbed_sharded_read") if several else (_storage, "hotbed_storage_forward")
    with monkeypatch.context() as patch:
        patch.setattr(module, "lib", Interrupted(module.lib, name))
        with pytest.raises(KeyboardInterrupt):
            ebc(kjt)
    assert not any(slot.held for slot in ebc.storages[0].slots)
    checkpoint.save(tmp_path / "saved", ebc)
    ebc(kjt).values().sum().backward()


@pytest.mark.parametrize("ended", ["cancel", "load"])
def test_a_backward_after_a_cancel_says_why(ended):
    ebc = collection(hashed=True)
    out = ebc(batch(["f", "g"], SAMPLES, ROWS)).values()
    if ended == "cancel":
        ebc.cancel()
    else:
        ebc.load_state_dict(ebc.state_dict())
    with pytest.raises(hotbed.StateError, match=r"or cancel\(\) or a load has dropped it"):
        out.sum().backward()


# --- defaults of PyTorch ----------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("hashed", [False, True])
def test_the_default_device_changes_nothing(hashed, several):
    kjt, values = batch(["f", "g"], SAMPLES, ROWS), torch.arange(3)
    with torch.device("meta"):
        ebc = collection(hashed, device="cpu", optimizer=ht.Adam(lr=0.1), **(one_rank() if several else {}))
        ebc(kjt).values().sum().backward()
        ebc.set_rows("a", values, ebc.rows("a", values))
        keys = ebc.keys("a")
        assert keys.device.type == "cpu" and keys.numel() > 0
        assert ebc.load_state_dict(ebc.state_dict()) == ([], [])
        ebc.fused_optimizer.load_state_dict(ebc.fused_optimizer.state_dict())
        assert ebc.to("cpu") is ebc
        fixed = (ebc.storages[0].handle, SAMPLES, 2 * DIM, True, True, torch.float32)
        anchor = ebc._anchor
        out, token = _ops.lookup(anchor, kjt.values(), kjt.offsets(), None, *fixed)
        assert token.device.type == "cpu"
        out.sum().backward()


def test_the_default_dtype_changes_nothing():
    torch.set_default_dtype(torch.float64)
    try:
        ebc = collection()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ebc.to("cpu")
            ebc(batch(["f", "g"], SAMPLES, ROWS)).values().sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)


# --- threads and processes --------------------------------------------------------------------------


def test_two_threads_may_use_a_module():
    ebc, errors = collection(optimizer=ht.SGD(), max_in_flight=8), []

    def work():
        try:
            for _ in range(50):
                ebc(batch(["f", "g"], SAMPLES, ROWS)).values().sum().backward()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert ebc.stats("a")["keys"] > 0


def test_a_forked_child_gets_an_exception():
    ebc = collection()
    kjt = batch(["f", "g"], SAMPLES, ROWS)
    ebc(kjt).values().sum().backward()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(hotbed.StateError, match=r"was forked .* spawn method"):
                ebc.weight("a")
            ebc(kjt)
            os._exit(1)
        except hotbed.StateError as error:
            del ebc
            gc.collect()
            os._exit(0 if "forked" in str(error) else 2)
        except BaseException:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- growth -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("evict", list(ht.Evict))
@pytest.mark.parametrize("ahead", [False, True])
def test_a_hash_table_grows_up_to_max_embeddings(evict, ahead):
    def make():
        table = ht.EmbeddingConfig(
            8, DIM, "t", feature_names=["f"], use_virtual_table=True, max_embeddings=3000, evict=evict
        )
        return ht.EmbeddingCollection([table], optimizer=ht.SGD(lr=0.5))

    def train(embeddings, keys):
        kjt = ht.KeyedJaggedTensor(["f"], keys, lengths=torch.ones_like(keys))
        if ahead:
            embeddings.prefetch(kjt)
        embeddings.flat(kjt).sum().backward()

    def capacity(embeddings):
        return embeddings.storages[0].info(0).capacity

    first = make()
    for step in range(40):
        train(first, torch.arange(50 * step, 50 * step + 50) << 40)
    train(first, torch.arange(20) << 40)  # keys that exist
    assert 2000 <= capacity(first) <= 3000
    assert first.stats("t")["refused"] == first.stats("t")["evictions"] == 0
    assert torch.equal(first.keys("t"), torch.arange(2000) << 40)

    second = make()
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.rows("t", first.keys("t")), first.rows("t", first.keys("t")))
    train(second, torch.arange(2000, 2900) << 40)
    assert len(second.keys("t")) == 2900 or evict is ht.Evict.LOWEST
    if evict is ht.Evict.NEVER:
        with pytest.raises(hotbed.FullError, match="table 't' is full"):
            train(second, torch.arange(3000, 6000) << 40)
    assert capacity(second) == 3000


def test_a_missing_module_is_named():
    program = "import sys; sys.modules['_cffi_backend'] = None; sys.modules['cffi'] = None; import hotbed"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "hotbed needs the module _cffi_backend, which is not installed: pip install cffi" in run.stderr
    assert "not built" not in run.stderr
