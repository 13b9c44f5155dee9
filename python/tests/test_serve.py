"""Publishing from a model, and serving an exported program in another process."""

import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
import torch

import hotbed
import hotbed.serve
import hotbed.torch as ht

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"


class Model(torch.nn.Module):
    """Pooled features, one of them twice, and a sequence."""

    def __init__(self, is_weighted=False, **more):
        super().__init__()
        tables = [
            ht.EmbeddingBagConfig(100, 8, "item", feature_names=["bought", "seen"]),
            ht.EmbeddingBagConfig(
                1000, 4, "user", feature_names=["user"], use_virtual_table=True, pooling=ht.PoolingType.MEAN
            ),
        ]
        self.bags = ht.EmbeddingBagCollection(
            tables, optimizer=ht.RowWiseAdagrad(lr=0.1), is_weighted=is_weighted, **more
        )
        rows = [ht.EmbeddingConfig(50, 4, "word", feature_names=["seen"])]
        self.rows = ht.EmbeddingCollection(rows, optimizer=ht.SGD(lr=0.1), **more)
        self.top = torch.nn.Linear(20 + 4, 1)
        self.is_weighted = is_weighted

    def forward(self, keys, lengths):
        """Take the keys of "seen", "user" and "bought", and their numbers, [3, samples]."""
        weights = keys.float() / 50 if self.is_weighted else None
        batch = ht.KeyedJaggedTensor(["seen", "user", "bought"], keys, weights, lengths=lengths.reshape(-1))
        pooled = self.bags(batch).values()
        seen = self.rows(ht.KeyedJaggedTensor(["seen", "user", "bought"], keys, lengths=lengths.reshape(-1)))["seen"]
        return self.top(torch.cat([pooled, seen.values().sum(0).expand(pooled.shape[0], 4)], dim=1))


def draw(samples):
    lengths = torch.randint(0, 4, (3, samples))
    return torch.randint(0, 50, (int(lengths.sum()),)), lengths


def train(model, steps=3):
    model.train()
    for _ in range(steps):
        model(*draw(8)).square().mean().backward()
    return model.eval()


def evaluate(model, batch):
    with torch.no_grad():
        return model(*batch)


@pytest.fixture(autouse=True)
def no_reader():
    torch.manual_seed(0)
    yield
    hotbed.serve.use(None)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_served_model_is_the_trained_one(tmp_path, is_weighted):
    model = train(Model(is_weighted))
    batch = draw(7)
    with hotbed.serve.Publisher(tmp_path, model) as publisher:
        publisher.publish(3)
    hotbed.serve.use(tmp_path)
    served = hotbed.serve.for_serving(model)
    assert torch.equal(evaluate(served, batch), evaluate(model, batch))
    assert hotbed.serve.reader().stats()["step"] == 3
    assert hotbed.serve.reader().tables()["user"] == {"dim": 4, "encoding": "f32", "keys": len(model.bags.keys("user"))}


def test_tables_of_a_sequence_may_share_a_feature(tmp_path):
    configs = [ht.EmbeddingConfig(50, 4, name, feature_names=[*own, "seen"]) for name, own in (("t", ["a"]), ("u", []))]
    model = ht.EmbeddingCollection(configs, optimizer=ht.SGD(lr=0.1)).eval()
    with hotbed.serve.Publisher(tmp_path, model) as publisher:
        publisher.publish(1)
    hotbed.serve.use(tmp_path)
    keys, lengths = draw(5)
    batch = ht.KeyedJaggedTensor(["seen", "other", "a"], keys, lengths=lengths.reshape(-1))
    served, trained = evaluate(hotbed.serve.for_serving(model), [batch]), evaluate(model, [batch])
    assert list(served) == list(trained) == ["a", "seen@t", "seen@u"]
    for name, rows in trained.items():
        assert torch.equal(served[name].values(), rows.values())
        assert torch.equal(served[name].lengths(), rows.lengths())
    assert not torch.equal(served["seen@t"].values(), served["seen@u"].values())


SERVER = """
import sys, torch, hotbed.serve
program = torch.export.load(sys.argv[1]).module()
batches = torch.load(sys.argv[2])
torch.save([program(*batch) for batch in batches], sys.argv[3])
"""


def test_filters_leave_rows_out(tmp_path):
    configs = [
        ht.EmbeddingBagConfig(100, 2, name, feature_names=[name], use_virtual_table=name != "rows")
        for name in ("most", "far", "rows")
    ]
    configs[0].score = ht.Score.LFU
    bags = ht.EmbeddingBagCollection(configs, optimizer=ht.SGD(lr=0.1))
    keys = torch.arange(8)
    for name in ("most", "far", "rows"):
        bags.set_rows(name, keys, torch.ones(8, 2))
    filters = {"most": ht.ChangeFilter(most_rows=3), "far": ht.ChangeFilter(min_change=0.5)}
    with hotbed.serve.Publisher(tmp_path, bags, filters=filters) as publisher:
        publisher.publish(1)
        bags.set_rows("most", keys, torch.full((8, 2), 2.0))
        bags.set_rows("far", keys, torch.ones(8, 2) + torch.arange(8).reshape(8, 1) / 10)
        bags.set_rows("rows", keys, torch.full((8, 2), 2.0))
        publisher.publish(2)
        publisher.wait()
        assert publisher.stats()["last_rows"] == 3 + 4 + 8  # a change of 0.4 in both elements has norm 0.57
        publisher.publish(3)
        publisher.wait()
        assert publisher.stats()["last_rows"] == 3 + 0 + 0  # those that were left out come later
    with pytest.raises(hotbed.ArgumentError, match="no table 'user'"):
        hotbed.serve.Publisher(tmp_path, bags, filters={"user": ht.ChangeFilter(1)})
    with pytest.raises(hotbed.ArgumentError, match="min_score is -1"):
        hotbed.serve.Publisher(tmp_path, bags, filters={"most": ht.ChangeFilter(-1)})
    with pytest.raises(hotbed.ArgumentError, match="keys of a STATIC table have no score"):
        hotbed.serve.Publisher(tmp_path, bags, filters={"rows": ht.ChangeFilter(most_rows=1)})


def test_another_process_serves_without_the_trainers_code(tmp_path):
    model = train(Model())
    served, example = hotbed.serve.for_serving(model), draw(6)
    samples, keys = torch.export.Dim("samples", min=2, max=4096), torch.export.Dim("keys", min=2, max=1 << 20)
    program = torch.export.export(served, example, dynamic_shapes=({0: keys}, {1: samples}))
    torch.export.save(program, tmp_path / "program.pt2")
    batches = [draw(samples) for samples in (6, 2, 31)]
    torch.save(batches, tmp_path / "batches.pt")
    with hotbed.serve.Publisher(tmp_path / "tables", model) as publisher:
        for step in range(3):
            train(model, 1)
            publisher.publish(step)
    names = ["program.pt2", "batches.pt", "answers.pt"]
    environment = {**os.environ, "HOTBED_SERVE": str(tmp_path / "tables")}
    command = [sys.executable, "-c", SERVER, *(str(tmp_path / name) for name in names)]
    subprocess.run(command, env=environment, check=True, cwd=tmp_path)
    for batch, answer in zip(batches, torch.load(tmp_path / "answers.pt")):
        assert torch.allclose(answer, evaluate(model, batch), rtol=1e-5, atol=1e-6)  # sums of the dense part differ


def test_a_model_is_filled_from_the_reader(tmp_path):
    trained, served = train(Model()), Model().eval()
    served.top.load_state_dict(trained.top.state_dict())
    publisher = hotbed.serve.Publisher(tmp_path / "p", trained, base_every=3)
    publisher.publish(0)
    publisher.wait()
    reader = hotbed.serve.Reader(tmp_path / "p", follow_ms=0)
    for step in range(1, 6):
        assert reader.fill(served) == reader.fill(served) == step
        batch = draw(16)
        with torch.no_grad():
            assert torch.equal(served(*batch), trained.eval()(*batch))
        train(trained)
        publisher.publish(step)
        publisher.wait()
        reader.poll()
    again = hotbed.serve.Reader(tmp_path / "p", follow_ms=0)  # of the same cut
    served.bags.set_rows("item", torch.arange(3), torch.ones(3, 8))
    assert again.fill(served) == reader.fill(served, whole=True) == 6
    with torch.no_grad():
        assert torch.equal(served(*batch), trained.eval()(*batch))
    other = ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(10, 8, "other", feature_names=["f"])])
    with pytest.raises(hotbed.ArgumentError, match="has no table 'other'"):
        reader.fill(other)


def test_a_reader_follows_and_says_why_not(tmp_path):
    model = train(Model())
    publisher = hotbed.serve.Publisher(tmp_path, model, {"user": "int8", "item": "f16"}, base_every=100)
    with pytest.raises(hotbed.StateError, match="nothing is published yet"):
        hotbed.serve.Reader(tmp_path)
    publisher.publish(1)
    publisher.wait()
    reader = hotbed.serve.Reader(tmp_path, follow_ms=0)
    assert [table["encoding"] for table in reader.tables().values()] == ["f16", "int8", "f32"]
    for step in (2, 3):
        train(model, 1)
        publisher.publish(step)
    publisher.wait()
    assert not publisher.busy
    assert publisher.stats()["cuts"] == 3
    os.rename(tmp_path / "cut-000000000002", tmp_path / "late")
    with pytest.raises(hotbed.StateError, match="cut 3 follows cut 2; the reader has cut 1"):
        reader.poll()
    with pytest.raises(hotbed.StateError):
        reader.health()
    assert reader.stats()["version"] == 1
    assert reader.stats()["behind"] == 1
    os.rename(tmp_path / "late", tmp_path / "cut-000000000002")
    reader.poll()
    reader.health()
    assert "hotbed_reader_version 3\n" in reader.metrics()
    publisher.close()
    with pytest.raises(hotbed.StateError, match="closed"):
        publisher.publish(4)


def test_ranks_publish_one_cut(tmp_path):
    comms, own = hotbed.Comm.threads(2), hotbed.Comm.threads(2)
    models, found, errors = [None, None], [None, None], []
    keys, lengths = torch.arange(20) % 13, torch.tensor([3, 3, 4, 4, 3, 3])

    def body(rank):
        try:
            model = models[rank] = Model(comm=comms[rank], sharded=ht.ShardedOptions())
            batch = ht.KeyedJaggedTensor(["seen", "user", "bought"], keys, lengths=lengths)
            for _ in range(2):
                model.bags(batch).values().sum().backward()
            with pytest.raises(hotbed.ArgumentError, match="a communicator of their own"):
                hotbed.serve.Publisher(tmp_path, model)
            with hotbed.serve.Publisher(tmp_path, model, comm=own[rank]) as publisher:
                publisher.publish(2)
            found[rank] = evaluate(model.bags.eval(), [batch]).values()
        except BaseException as error:
            errors.append(error)
            comms[rank].abort("a test failed")
            own[rank].abort("a test failed")

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    hotbed.serve.use(tmp_path)
    served = hotbed.serve.for_serving(models[0].bags)
    batch = ht.KeyedJaggedTensor(["seen", "user", "bought"], keys, lengths=lengths)
    for rank in range(2):
        assert torch.equal(served(batch).values(), found[rank])


@pytest.mark.parametrize("adds", ["forward", "parameter", "hook"])
def test_what_a_subclass_adds_to_a_collection_is_not_served(adds):
    class Scaled(ht.EmbeddingBagCollection):
        if adds == "forward":

            def forward(self, features):
                return 2 * super().forward(features).values()

    model = torch.nn.ModuleDict({"bags": Scaled([ht.EmbeddingBagConfig(9, 4, "item", feature_names=["f"])])})
    if adds == "parameter":
        model["bags"].scale = torch.nn.Parameter(torch.ones(1))
    if adds == "hook":
        model["bags"].register_forward_hook(lambda module, given, out: out)
    with pytest.raises(hotbed.UnsupportedError, match="model: Scaled adds to a collection"):
        hotbed.serve.for_serving(model)


def test_a_module_may_have_an_attribute_of_a_collections_name():
    model = torch.nn.Sequential(torch.nn.Sequential(Model()))
    model[0].storages = []
    assert isinstance(hotbed.serve.for_serving(model)[0][0].bags, hotbed.serve.ServedBagCollection)


def test_bad_arguments_are_named(tmp_path):
    model = train(Model())
    with pytest.raises(hotbed.ArgumentError, match="encoding 'f8' is not one of table, f32, f16, bf16, int8"):
        hotbed.serve.Publisher(tmp_path, model, "f8")
    with pytest.raises(hotbed.ArgumentError, match="there is no table 'users'"):
        hotbed.serve.Publisher(tmp_path, model, {"users": "f16"})
    with pytest.raises(hotbed.ArgumentError, match="contains none"):
        hotbed.serve.for_serving(torch.nn.Linear(1, 1))
    with pytest.raises(hotbed.StateError, match="HOTBED_SERVE"):
        hotbed.serve.reader()
    with hotbed.serve.Publisher(tmp_path, model) as publisher:
        with pytest.raises(hotbed.StateError, match="another publisher"):
            hotbed.serve.Publisher(tmp_path, model)
        publisher.publish(1)
    reader = hotbed.serve.Reader(tmp_path)
    keys, offsets = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3])
    with pytest.raises(hotbed.ArgumentError, match="there is no table 'x'"):
        reader.lookup(keys, offsets, ["x"])
    with pytest.raises(hotbed.ArgumentError, match=r"keys: torch\.float32"):
        reader.lookup(keys.float(), offsets, ["word"])
    with pytest.raises(hotbed.ArgumentError, match=r"weights: torch\.float64"):
        reader.lookup(keys, offsets, ["item"], [ht.PoolingType.SUM], keys.double())
    with pytest.raises(hotbed.KeyRangeError, match="feature 0 has keys 0 to 9 of 3"):
        reader.lookup(keys, torch.tensor([0, 1, 9]), ["word"])
    with pytest.raises(hotbed.KeyRangeError, match=r"offsets\[2\] is 9"):
        reader.lookup(keys, torch.tensor([0, 1, 9]), ["item"], [ht.PoolingType.SUM])
    for pooling in (None, [ht.PoolingType.SUM]):
        with pytest.raises(hotbed.KeyRangeError, match="is 2, but there are 3 keys") as short:
            reader.lookup(keys, torch.tensor([0, 1, 2]), ["word"], pooling)
        assert (short.value.value, short.value.limit) == (2, 3)
    with pytest.raises(hotbed.ArgumentError, match="one dim, not"):
        reader.lookup(keys, torch.tensor([0, 1, 3]), ["word", "item"])
    with pytest.raises(hotbed.ArgumentError, match="has dim 8; the program was exported with 4"):
        hotbed.serve.use(tmp_path)
        hotbed.serve.serve(keys, offsets, None, "item", "SUM", [4], [0], 2)
    rows = reader.lookup(keys, offsets, ["word"])
    assert torch.equal(rows, model.rows.rows("word", keys))
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        second = reader.lookup(keys, offsets, ["word"], order=[1], samples=1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(second, torch.cat([torch.zeros(1, 4), rows[1:]]))


def test_arguments_of_a_lookup_are_checked_before_memory_is_read(tmp_path):
    model = train(Model())
    with hotbed.serve.Publisher(tmp_path, model) as publisher:
        for step in (-1, 2**64, 1.5, "1"):
            with pytest.raises(hotbed.ArgumentError, match=r"step .* is not a whole number"):
                publisher.publish(step)
        publisher.publish(1)
    reader, sums = hotbed.serve.Reader(tmp_path), ht.PoolingType.SUM
    keys, offsets = torch.tensor([1, 2]), torch.tensor([0, 1, 2])
    for wrong, text in (
        ({"order": [-1]}, r"3 for the features \[-1\] of 2 samples"),
        ({"tables": ["word", "item"], "order": [0], "pooling": [sums] * 2}, r"order \[0\] is not one for each of 2"),
        ({"tables": ["word", "item"], "pooling": [sums]}, r"pooling \[1\] is not one for each of 2 features"),
        ({"tables": "word"}, "tables 'word' is one name"),
        ({"pooling": ["MEAN"]}, "pooling 'MEAN' is not PoolingType.SUM or"),
        ({"pooling": [ht.PoolingType.NONE]}, "pooling .*NONE.* is not PoolingType.SUM or"),
        ({"samples": -1}, "of -1 samples"),
        ({"tables": ["word", "item"], "pooling": [sums] * 2, "offsets": torch.arange(4)}, "4 for the features .0, 1."),
        ({"tables": ["word", "word"], "pooling": None, "order": [0, 0]}, r"order \[0, 0\] has a feature twice"),
        (
            {"weights": torch.ones(2, device="meta")},
            "weights: torch.float32 .* on meta is no vector of 2 of torch.float32",
        ),
        ({"keys": [1, 2]}, r"keys: \[1, 2\] is no vector of torch.int64 on the CPU"),
    ):
        arguments = {"keys": keys, "offsets": offsets, "tables": ["word"], "pooling": [sums], **wrong}
        with pytest.raises(hotbed.ArgumentError, match=text):
            reader.lookup(**arguments)
    with pytest.raises(hotbed.KeyRangeError, match="offsets: 1 comes after 2"):
        reader.lookup(keys, torch.tensor([0, 2, 1, 2]), ["word"])
    theirs = enum.Enum("PoolingType", {"SUM": "SUM", "MEAN": "MEAN"})  # TorchRec's
    pair = keys, torch.tensor([0, 2]), ["word"]
    assert torch.equal(reader.lookup(*pair, [theirs.MEAN]), reader.lookup(*pair, [ht.PoolingType.MEAN]))
    assert not torch.equal(reader.lookup(*pair, [theirs.MEAN]), reader.lookup(*pair, [sums]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_served_collection_has_the_type_of_the_trained_one(tmp_path, dtype):
    bags = ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(9, 4, "a", feature_names=["f"])], output_dtype=dtype)
    rows = ht.EmbeddingCollection([ht.EmbeddingConfig(9, 4, "b", feature_names=["f"])], output_dtype=dtype)
    model = torch.nn.ModuleList([bags, rows]).eval()
    with hotbed.serve.Publisher(tmp_path, model) as publisher:
        publisher.publish(1)
    hotbed.serve.use(tmp_path)
    served = hotbed.serve.for_serving(model)
    batch = ht.KeyedJaggedTensor(["f"], torch.tensor([3, 5]), lengths=torch.tensor([1, 1]))
    assert torch.equal(served[0](batch).values(), bags(batch).values()) and served[0](batch).values().dtype is dtype
    assert torch.equal(served[1](batch)["f"].values(), rows(batch)["f"].values())


def test_a_null_character_does_not_cut_a_name(tmp_path):
    model = train(Model())
    path = f"{tmp_path}/model\0-test"
    for call in (lambda: hotbed.serve.Publisher(path, model), lambda: hotbed.serve.Reader(path)):
        with pytest.raises(hotbed.ArgumentError, match=r"directory .*null character") as caught:
            call()
        assert caught.value.parameter == "directory"
        assert caught.value.value == path
    for name in ("path", "host", "prefix", "user", "password"):
        redis = hotbed.serve.Redis(**{"host": "localhost", name: "se\0cret"})
        calls = (
            lambda redis=redis: hotbed.serve.RedisReader(redis),
            lambda redis=redis: hotbed.serve.Publisher(tmp_path / "new", model, redis=redis),
        )
        for call in calls:
            with pytest.raises(hotbed.ArgumentError, match=rf"{name} .*null character") as caught:
                call()
            assert caught.value.parameter == name
            assert name != "password" or "cret" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_closing_a_publisher_reports_the_last_cut(tmp_path):
    model = train(Model())
    model.bags.set_rows("item", torch.tensor([1]), torch.full((1, 8), 1e6))
    publisher = hotbed.serve.Publisher(tmp_path, model, encoding="f16")
    publisher.publish(1)
    with pytest.raises(hotbed.ArgumentError, match=r"key 1: f16 does not have the value 1e\+06"):
        publisher.close()
    publisher.close()  # is closed
    hotbed.serve.Publisher(tmp_path, model).close()


def parse(directory, number):
    """Read a cut of one rank as docs/formats.md describes it: keys, rows and removed keys of each table, by name."""
    numpy = pytest.importorskip("numpy")
    cut = (directory / f"cut-{number:012}").read_bytes()
    rows = (directory / f"rows-{number:012}-00000").read_bytes()
    magic, version, tables, world, _ = struct.unpack_from("<8s4I", cut)
    assert (magic, version, world) == (b"HOTBEDcu", 1, 1)
    assert len(cut) == 128 + 128 * tables + 32 + 16
    assert cut[-40:-24] == rows[64 + 128 * tables :][:16]
    found = {}
    for t in range(tables):
        head = struct.unpack_from("<64s4I2QfIQ2d", cut, 128 + 128 * t)
        name, dim, encoding, _, _, _, keys, missing, optimizer, steps, *_ = head
        widths = {0: [], 1: [], 2: [dim, dim], 4: [1]}[optimizer]  # none, sgd, adam, rowwise_adagrad
        n, m, at_keys, at_starts, at_values, at_removed = struct.unpack_from("<6Q", rows, 64 + 128 * t)
        bits, row_bytes = struct.unpack_from("<2I", rows, 64 + 128 * t + 112)
        assert n == 0 or n >> bits < 5
        assert missing == 0
        ids = numpy.frombuffer(rows, "<i8", n, at_keys)
        starts = numpy.frombuffer(rows, "<u4", 2**bits + 1, at_starts) if n else [0]
        assert starts[0] == 0
        assert starts[-1] == n
        whole = numpy.frombuffer(rows, "u1", n * row_bytes, at_values).reshape(n, row_bytes)
        encoded = {1: 4 * dim, 2: 2 * dim, 4: dim + dim % 2 + 4}[encoding]
        bytes_, behind = whole[:, :encoded], whole[:, -(-encoded // 4) * 4 :]
        assert row_bytes == encoded if not widths else -(-encoded // 4) * 4 + 4 * sum(widths)
        if encoding == 4:
            ends = numpy.ascontiguousarray(bytes_[:, dim + dim % 2 :]).view("<f2").astype("f4")
            values = ends[:, 1:] + ends[:, :1] * bytes_[:, :dim].astype("f4")
        else:
            values = numpy.ascontiguousarray(bytes_).view({1: "<f4", 2: "<f2"}[encoding]).astype("f4")
        removed = numpy.frombuffer(rows, "<i8", m, at_removed).tolist()
        label = name.rstrip(bytes(1)).decode()
        found[label] = dict(zip(ids.tolist(), torch.from_numpy(values))), removed, keys
        if widths:
            states = torch.from_numpy(numpy.ascontiguousarray(behind).view("<f4").copy())
            found[label + ".states"] = dict(zip(ids.tolist(), states)), steps
    return found


def test_the_files_are_as_documented(tmp_path):
    model = train(Model())
    with hotbed.serve.Publisher(tmp_path, model, {"user": "int8", "item": "f16"}) as publisher:
        publisher.publish(1)
        publisher.wait()
        base = parse(tmp_path, 1)
        gone = model.bags.keys("user")[:2]
        model.bags.erase("user", gone)
        train(model, 1)
        publisher.publish(2)
    changed = parse(tmp_path, 2)
    reader = hotbed.serve.Reader(tmp_path)
    for name, places in (("item", model.bags), ("user", model.bags), ("word", model.rows)):
        rows, removed, keys = changed[name]
        state = {**base[name][0], **rows}
        for key in removed:
            del state[key]
        assert len(state) == keys == reader.tables()[name]["keys"]
        ids = torch.tensor(sorted(state))
        offsets = torch.tensor([0, len(ids)])
        assert torch.equal(reader.lookup(ids, offsets, [name]), torch.stack([state[int(key)] for key in ids]))
        assert torch.allclose(reader.lookup(ids, offsets, [name]), places.rows(name, ids), atol=2e-3)


def test_a_second_trainer_follows(tmp_path):
    model, twin = train(Model()), Model()
    publisher = hotbed.serve.Publisher(tmp_path, model, {"user": "f32", "item": "f32"}, base_every=3, states=True)
    reader = None
    for step in range(1, 6):
        publisher.publish(step)
        publisher.wait()
        reader = reader or hotbed.serve.Reader(tmp_path, follow_ms=0)
        reader.poll()
        assert reader.fill(twin.eval()) == step
        train(model, 1)
    publisher.publish(6)
    publisher.wait()
    reader.poll()
    reader.fill(twin)
    twin.top.load_state_dict(model.top.state_dict())
    for each in (model, twin):  # both go on alike
        torch.manual_seed(9)
        train(each)
    for name in ("item", "user"):
        keys = model.bags.keys(name)
        assert torch.equal(keys, twin.bags.keys(name))
        assert torch.equal(model.bags.rows(name, keys), twin.bags.rows(name, keys))
    found = parse(tmp_path, 1)
    assert found["user.states"][1] == 3 and len(found["user.states"][0]) == len(found["user"][0])
    other = ht.EmbeddingBagCollection(
        [ht.EmbeddingBagConfig(100, 8, "item", feature_names=["seen"])], optimizer=ht.Adam(lr=0.1)
    )
    with pytest.raises(hotbed.UnsupportedError, match="by rowwise_adagrad with momentum1"):
        reader.fill(other)


@pytest.fixture
def redis(tmp_path):
    """A redis-server on a Unix socket, and how to restart it empty."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("there is no redis-server")
    place = hotbed.serve.Redis(path=tmp_path / "redis.sock", prefix="model", timeout_ms=5000)
    running = []

    def restart():
        for server in running:
            server.kill()
            server.wait()
        running.clear()
        command = [program, "--port", "0", "--unixsocket", place.path, "--save", "", "--dir", tmp_path]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for _ in range(3000):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
                asked.connect(str(place.path))
                asked.sendall(b"PING\r\n")
                if asked.recv(5) == b"+PONG":
                    return
            time.sleep(0.01)
        raise AssertionError("redis-server does not answer")

    try:
        restart()
        try:
            hotbed.serve.RedisReader(place)
        except hotbed.UnsupportedError as error:
            assert "HOTBED_REDIS" in str(error)
            with pytest.raises(hotbed.UnsupportedError):
                hotbed.serve.Publisher(tmp_path / "p", Model(), redis=place)
            pytest.skip("the library was built without Redis")
        except hotbed.StateError as error:
            assert "has no cut" in str(error)
        yield place, restart
    finally:
        for server in running:
            server.kill()
            server.wait()


FORKED_REDIS = """
import os, sys, torch, hotbed, hotbed.serve
hotbed.serve.use(hotbed.serve.Redis(path=sys.argv[1], prefix="model"))
before = hotbed.serve.reader()
child = os.fork()
if child == 0:
    try:
        before.stats()
    except hotbed.StateError:
        os._exit(0 if hotbed.serve.reader().stats()["version"] > 0 else 2)
    os._exit(1)
sys.exit(os.waitpid(child, 0)[1] != 0 or hotbed.serve.reader() is not before)
"""


def test_a_model_is_served_from_redis(tmp_path, redis):
    place, restart = redis
    model = train(Model())
    batch = draw(7)
    publisher = hotbed.serve.Publisher(tmp_path / "p", model, redis=place, states=True)
    publisher.publish(3)
    publisher.wait()
    hotbed.serve.use(place)
    served, reader = hotbed.serve.for_serving(model), hotbed.serve.reader()
    assert isinstance(reader, hotbed.serve.RedisReader)
    assert reader.tables() == hotbed.serve.Reader(tmp_path / "p").tables()
    assert torch.equal(evaluate(served, batch), evaluate(model, batch))
    train(model)
    publisher.publish(4)
    publisher.wait()
    assert torch.equal(evaluate(served, batch), evaluate(model, batch))
    assert reader.stats()["step"] == 4 and reader.stats()["versions"] == 2
    assert "hotbed_redis_reader_step 4\n" in reader.metrics()
    reader.health()
    with pytest.raises(hotbed.StateError, match="s old; the limit is"):
        reader.health(1e-9)
    for limit in (-1, float("nan")):
        with pytest.raises(hotbed.ArgumentError, match=r"most_seconds .* is not 0 or more"):
            reader.health(limit)
    subprocess.run([sys.executable, "-c", FORKED_REDIS, place.path], check=True, cwd=tmp_path)
    restart()  # Redis has lost everything
    with pytest.raises(hotbed.StateError, match="has no cut"):
        evaluate(served, batch)
    with pytest.raises(hotbed.StateError, match=r"the last lookup in Redis failed: .* has no cut"):
        reader.health()
    publisher.publish(5)
    with pytest.raises(hotbed.StateError):
        publisher.wait()
    publisher.publish(6)  # a base, which has everything
    publisher.close()
    assert torch.equal(evaluate(served, batch), evaluate(model, batch))
    reader.health()


def test_a_wrong_password_of_redis_is_an_error(tmp_path, redis):
    place, _ = redis

    def tell(command):
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(place.path))
            asked.sendall(command.encode() + b"\r\n")
            assert asked.recv(1) in (b"+", b":"), command

    tell("ACL SETUSER train on >secret ~model:* +info +@read +@write +@scripting")
    tell("ACL SETUSER serve on >secret ~model:* +info +@read +@transaction")
    serve = dataclasses.replace(place, user="serve", password="secret")
    train_place = dataclasses.replace(serve, user="train")
    assert "serve" in repr(serve) and "secret" not in repr(serve)
    model = train(Model())
    with hotbed.serve.Publisher(tmp_path / "p", model, redis=train_place) as publisher:
        publisher.publish(1)
        publisher.wait()
        hotbed.serve.use(serve)
        served, batch = hotbed.serve.for_serving(model), draw(7)
        assert torch.equal(evaluate(served, batch), evaluate(model, batch))
        with pytest.raises(hotbed.FileError, match="NOPERM") as refused:
            hotbed.serve.Publisher(tmp_path / "other", model, redis=serve)
        assert refused.value.parameter == "user" and refused.value.path == str(place.path)
        for user in "train", "serve":
            tell(f"ACL SETUSER {user} resetpass >changed")
        tell("CLIENT KILL TYPE normal")
        publisher.publish(2)
        for call in publisher.wait, lambda: evaluate(served, batch), lambda: hotbed.serve.RedisReader(serve):
            with pytest.raises(hotbed.FileError, match="WRONGPASS") as refused:
                call()
            assert refused.value.parameter == "password" and refused.value.path == str(place.path)
            assert "secret" not in str(refused.value) + repr(vars(refused.value))
        with pytest.raises(hotbed.StateError, match=r"the last lookup in Redis failed: .*WRONGPASS") as unwell:
            hotbed.serve.reader().health()
        assert unwell.value.parameter == "password" and unwell.value.path == str(place.path)
        assert "secret" not in str(unwell.value) + repr(vars(unwell.value)) + repr(hotbed.serve.reader().stats())
    tell("CONFIG SET requirepass secret")
    with pytest.raises(hotbed.FileError, match="NOAUTH") as refused:
        hotbed.serve.RedisReader(place)
    assert refused.value.parameter == "password"
    hotbed.serve.RedisReader(dataclasses.replace(place, password="secret"))
    with pytest.raises(hotbed.ArgumentError, match="password is NULL, but user is set"):
        hotbed.serve.RedisReader(dataclasses.replace(place, user="serve"))


def test_an_absent_redis_is_an_error(tmp_path):
    wrong = (hotbed.FileError, hotbed.UnsupportedError)  # with Redis in the library, and without
    place = hotbed.serve.Redis(path=tmp_path / "nowhere.sock")
    with pytest.raises(wrong):
        hotbed.serve.RedisReader(place)
    with pytest.raises(wrong):
        hotbed.serve.use(place)
    with pytest.raises(wrong):
        hotbed.serve.Publisher(tmp_path / "p", Model(), redis=place)
    with pytest.raises((hotbed.ArgumentError, hotbed.UnsupportedError)):
        hotbed.serve.RedisReader(hotbed.serve.Redis())
    with pytest.raises(hotbed.ArgumentError, match="port"):
        hotbed.serve.RedisReader(hotbed.serve.Redis(host="localhost", port=-1))


FORKED = """
import os, sys, torch, hotbed, hotbed.serve
hotbed.serve.use(sys.argv[1])
before = hotbed.serve.reader()
child = os.fork()
if child == 0:
    try:
        before.health()
    except hotbed.StateError:
        os._exit(0 if hotbed.serve.reader().stats()["version"] == 1 else 2)
    os._exit(1)
sys.exit(os.waitpid(child, 0)[1] != 0 or hotbed.serve.reader() is not before)
"""


def test_a_forked_process_opens_the_directory_again(tmp_path):
    with hotbed.serve.Publisher(tmp_path, train(Model())) as publisher:
        publisher.publish(1)
    subprocess.run([sys.executable, "-c", FORKED, tmp_path], check=True, cwd=tmp_path)


def test_the_example_serves_over_http(tmp_path):
    pytest.importorskip("aiohttp")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    subprocess.run(
        [sys.executable, EXAMPLES / "serving_train.py", tmp_path, "--seconds", "0.5", "--every", "0.1"],
        check=True,
        cwd=tmp_path,
    )
    command = [sys.executable, EXAMPLES / "serving_http.py", tmp_path, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    try:
        line = next(line for line in server.stdout if "http://" in line)
        url = line.split("http://")[1].split()[0]

        def ask(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            with urllib.request.urlopen(f"http://{url}{path}", data) as answer:
                return answer.read()

        two = json.loads(ask("/predict", {"keys": [0, 0, 0, 1], "lengths": [[1, 1], [1, 1]]}))
        one = json.loads(ask("/predict", {"keys": [0, 0], "lengths": [[1], [1]]}))
        assert len(two["scores"]) == 2
        assert one["scores"] == pytest.approx(two["scores"][:1], abs=1e-5)
        assert one["version"] == json.loads(ask("/health"))["version"] >= 2
        assert b"hotbed_reader_lookups_total 2\n" in ask("/metrics")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            ask("/predict", {"keys": [1], "lengths": "x"})
    finally:
        server.terminate()
        server.wait()
