"""Checkpoints: saved, loaded, increments, and read with h5py alone."""

import concurrent.futures
import functools
import shutil
import threading
import warnings

import numpy as np
import pytest
import torch
from conftest import Interrupted, batch

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint

ROWS, DIM, SAMPLES = 40, 8, 6

# Collections of two seeds show that a load replaces all rows.
pytestmark = [pytest.mark.filterwarnings("ignore:.*was saved with seed"), pytest.mark.usefixtures("needs_hdf5")]


def collection(seed=0, tracks=False):
    tables = [
        ht.EmbeddingBagConfig(ROWS, DIM, "item", feature_names=["f"], track_changes=tracks),
        ht.EmbeddingBagConfig(ROWS, DIM, "user.id", feature_names=["g"], use_virtual_table=True, track_changes=tracks),
    ]
    return ht.EmbeddingBagCollection(tables, optimizer=ht.Adam(lr=0.1), seed=seed)


def step(ebc):
    ebc(batch(["f", "g"], SAMPLES, ROWS)).values().square().sum().backward()


def rows_of(ebc):
    return {name: ebc.rows(name, ebc.keys(name)) for name in ("item", "user.id")}


def test_a_checkpoint_is_loaded_again(tmp_path):
    first, second = collection(), collection()  # one seed: keys that are new afterwards begin alike
    step(second)
    for _ in range(5):
        step(first)
    checkpoint.save(tmp_path / "c", first, step=5, extra=b"dense")
    loaded = checkpoint.load(tmp_path / "c", second)
    assert (loaded.step, loaded.extra) == (5, b"dense")
    for ebc in (first, second):
        torch.manual_seed(3)
        step(ebc)
    for name, rows in rows_of(first).items():
        assert torch.equal(rows, rows_of(second)[name])


def test_a_null_character_does_not_cut_a_path(tmp_path):
    model, path = collection(), tmp_path / "saved"
    checkpoint.save(path, model)
    cut = f"{path}\0-test"
    calls = (
        lambda: checkpoint.save(f"{tmp_path}/a\0b", model),
        lambda: checkpoint.async_save(f"{tmp_path}/a\0b", model),
        lambda: checkpoint.load(cut, model),
        lambda: checkpoint.load(path, model, [cut]),
        lambda: checkpoint.latest(f"{tmp_path}\0-test"),
        lambda: checkpoint.tables(cut),
        lambda: checkpoint.read(cut),
    )
    for call in calls:
        with pytest.raises(hotbed.ArgumentError, match="null character") as caught:
            call()
        assert caught.value.parameter in ("path", "directory")
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_schedulers_last_step_is_saved(is_async, tmp_path):
    first, second = collection(), collection()
    schedule = torch.optim.lr_scheduler.ExponentialLR(first.fused_optimizer, 0.5)
    step(first)
    first.fused_optimizer.step()
    schedule.step()
    if is_async:
        checkpoint.async_save(tmp_path / "c", first).wait()
    else:
        checkpoint.save(tmp_path / "c", first)
    checkpoint.load(tmp_path / "c", second)
    assert second.fused_optimizer.param_groups[0]["lr"] == 0.05


def test_threads_save_at_the_same_time(tmp_path):
    # libhdf5 of release wheels is not thread-safe: the library calls it under a lock.
    together = threading.Barrier(4)

    def save(number):
        ebc = collection()
        for i in range(40):
            together.wait()
            checkpoint.save(tmp_path / f"{number}.{i}", ebc, step=number)
        return checkpoint.load(tmp_path / f"{number}.39", ebc).step

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(save, range(4))) == [0, 1, 2, 3]


def test_another_seed_is_reported(tmp_path):
    first = collection(1)
    step(first)
    checkpoint.save(tmp_path / "c", first)
    with pytest.warns(UserWarning, match=r"c: the checkpoint was saved with seed 1, but the storage has seed 2"):
        checkpoint.load(tmp_path / "c", collection(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.load(tmp_path / "c", collection(1))


def test_rows_that_a_checkpoint_lacks_get_the_values_of_init_fn(tmp_path):
    def table(rows):
        fill = functools.partial(torch.nn.init.constant_, val=7.0)
        config = ht.EmbeddingConfig(rows, 4, "t", feature_names=["f"], init_fn=fill, track_changes=True)
        return ht.EmbeddingCollection([config], optimizer=ht.SGD(lr=0.1))

    first, larger, saved = table(10), table(20), checkpoint.Increments(touched=True)
    first.set_rows("t", torch.arange(10), torch.ones(10, 4))
    checkpoint.save(tmp_path / "c", first)
    saved.load([tmp_path / "c"], larger)
    expected = torch.cat([torch.ones(10, 4), torch.full((10, 4), 7.0)])
    assert torch.equal(larger.weight("t"), expected)
    saved.save(tmp_path / "next", larger)
    resumed = table(20)
    checkpoint.load(saved.paths[0], resumed, saved.paths[1:])
    assert torch.equal(resumed.weight("t"), expected)


def test_rows_that_do_not_fit_are_reported(tmp_path):
    def table(rows):
        config = ht.EmbeddingConfig(rows, 4, "h", feature_names=["f"], use_virtual_table=True, evict=ht.Evict.LOWEST)
        return ht.EmbeddingCollection([config], optimizer=ht.SGD(lr=0.1))

    first, keys = table(1000), torch.arange(900)
    first.set_rows("h", keys, torch.zeros(900, 4))
    checkpoint.save(tmp_path / "c", first)
    small = table(100)
    with pytest.warns(UserWarning, match=r"c: table 'h': (\d+) of 900 rows fit") as found:
        checkpoint.load(tmp_path / "c", small)
    assert f" {len(small.keys('h'))} of 900 rows fit" in str(found[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.load(tmp_path / "c", table(1000))


def test_the_rows_of_a_full_table_are_copied(tmp_path):
    def table(rows, optimizer):
        config = ht.EmbeddingConfig(rows, 4, "h", feature_names=["f"], use_virtual_table=True, evict=ht.Evict.LOWEST)
        return ht.EmbeddingCollection([config], optimizer=optimizer)

    full, keys = table(1000, ht.SGD(lr=0.1)), torch.arange(3000)
    with pytest.warns(UserWarning, match="of 3000 rows fit"):
        full.set_rows("h", keys, keys[:, None].repeat(1, 4).float(), fill=True)
    checkpoint.save(tmp_path / "c", full)
    saved = checkpoint.read(tmp_path / "c")["h"]
    rows = torch.from_numpy(saved.keys), torch.from_numpy(saved.weights)
    with pytest.raises(hotbed.FullError, match="needs fill=True"):
        table(1000, ht.Adam()).set_rows("h", *rows)
    other = table(1000, ht.Adam())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.set_rows("h", *rows, fill=True)
    assert torch.equal(other.keys("h"), full.keys("h"))
    assert torch.equal(other.rows("h", rows[0]), rows[1])


def test_increments_follow_a_checkpoint(tmp_path):
    first, second, saved = collection(1), collection(2), checkpoint.Increments()
    for i in range(3):
        step(first)
        saved.save(tmp_path / str(i), first, step=i, extra=bytes([i]))
    loaded = checkpoint.load(saved.paths[0], second, saved.paths[1:])
    assert (loaded.step, loaded.extra) == (2, b"\x02")
    for name, rows in rows_of(first).items():
        assert torch.equal(rows, rows_of(second)[name])
    ids = [(tmp_path / str(i) / "MANIFEST").read_text().splitlines()[1].split()[1] for i in range(3)]
    text = f"^{tmp_path}/2 does not follow the checkpoint before it, {tmp_path}/0 .id {ids[0]}.: its parent is "
    with pytest.raises(hotbed.StateError, match=f"{text}{tmp_path}/1 .id {ids[1]}.$"):
        checkpoint.load(saved.paths[0], second, saved.paths[2:])
    (tmp_path / "1").rename(tmp_path / "x")
    with pytest.raises(hotbed.StateError, match=f"{text}{tmp_path}/x .id {ids[1]}.$"):
        checkpoint.load(saved.paths[0], second, saved.paths[2:])
    shutil.rmtree(tmp_path / "x")
    with pytest.raises(hotbed.StateError, match=f"{text}a checkpoint with the id {ids[1]}, which was not found$"):
        checkpoint.load(saved.paths[0], second, saved.paths[2:])


def test_increments_have_what_was_touched(tmp_path):
    first, second, saved = collection(1, tracks=True), collection(2), checkpoint.Increments(touched=True)
    for i in range(4):
        step(first)
        if i == 3:  # a load forgets which keys were there
            state = first.state_dict()
            first.load_state_dict({name: part.clone() for name, part in state.items()})
            with pytest.warns(UserWarning, match="table .item. was cleared or loaded .*: this save is a full one"):
                saved.save(tmp_path / str(i), first)
            assert saved.paths == [str(tmp_path / "3")]
        else:
            saved.save(tmp_path / str(i), first)
        checkpoint.load(saved.paths[0], second, saved.paths[1:])
        for name, rows in rows_of(first).items():
            assert torch.equal(rows_of(second)[name], rows)
    first.set_rows("item", torch.tensor([7]), torch.ones(1, DIM))
    saved.save(tmp_path / "4", first)
    checkpoint.load(saved.paths[0], second, saved.paths[1:])
    assert torch.equal(second.rows("item", torch.arange(ROWS)), first.rows("item", torch.arange(ROWS)))
    with pytest.raises(hotbed.ArgumentError, match="touched is for save"):
        saved.async_save(tmp_path / "5", first)


@pytest.mark.parametrize("gone", ["parent", "base", "replaced"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_save_after_a_removal_is_full(parts, is_async, gone, tmp_path):
    """As after 'hotbed-ckpt compact' and 'gc' during the run."""

    def make(seed):
        return collection(seed) if parts == 1 else both(seed)

    first, second, saved = make(1), make(2), checkpoint.Increments()

    def save(name):
        step(first)
        if is_async:
            saved.async_save(tmp_path / name, first).wait()
        else:
            saved.save(tmp_path / name, first)

    for name in "012":
        save(name)
    removed = tmp_path / {"parent": "2", "base": "0", "replaced": "0"}[gone]
    shutil.rmtree(removed)
    if gone == "replaced":
        checkpoint.save(removed, first)
    with pytest.warns(UserWarning, match=f"^{removed}, which the next increment would need, was removed or replaced"):
        save("3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save("4")
    assert [p[-1] for p in saved.paths] == ["3", "4"]
    checkpoint.load(saved.paths[0], second, saved.paths[1:])
    for name, rows in rows_of(first).items():
        assert torch.equal(rows_of(second)[name], rows)


@pytest.mark.parametrize("is_async", [False, True])
def test_increments_belong_to_one_collection(is_async, tmp_path):
    first, second, saved = collection(1), collection(2), checkpoint.Increments()

    save = saved.async_save if is_async else saved.save
    save(tmp_path / "0", first)
    with pytest.raises(hotbed.ArgumentError, match=f"{tmp_path}/0 is a checkpoint of another model; make an Incr"):
        save(tmp_path / "1", second)
    with pytest.raises(
        hotbed.ArgumentError, match=r"model: ReLU is not a collection of hotbed\.torch, and contains none"
    ):
        save(tmp_path / "1", torch.nn.ReLU())
    step(first)
    saving = save(tmp_path / "1", first)
    if saving is not None:
        saving.wait()
    checkpoint.Increments().save(tmp_path / "2", second)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2"]
    checkpoint.load(saved.paths[0], second, [tmp_path / "1"])
    assert torch.equal(first.weight("item"), second.weight("item"))


def test_a_table_grows_after_a_load(tmp_path):
    def make():
        table = ht.EmbeddingConfig(1000, DIM, "t", feature_names=["f"], use_virtual_table=True, max_embeddings=3000)
        return ht.EmbeddingCollection([table])

    def train(embeddings, keys):
        embeddings.flat(ht.KeyedJaggedTensor(["f"], keys, lengths=torch.ones_like(keys))).sum().backward()

    first, second = make(), make()
    train(first, torch.arange(1))
    train(second, torch.arange(1000))
    checkpoint.save(tmp_path / "c", second)
    checkpoint.load(tmp_path / "c", first)
    for key in range(1000, 2000, 100):
        train(first, torch.arange(key, key + 100))
    assert torch.equal(first.keys("t"), torch.arange(2000))


def test_a_checkpoint_is_read_without_the_library(tmp_path):
    pytest.importorskip("h5py")
    ebc = collection()
    for _ in range(4):
        step(ebc)
    checkpoint.save(tmp_path / "c", ebc)
    n = len(ebc.keys("user.id"))
    assert checkpoint.tables(tmp_path / "c") == {"item": (ROWS, DIM), "user.id": (n, DIM)}
    read = checkpoint.read(tmp_path / "c")
    np.testing.assert_array_equal(read["item"].weights, ebc.weight("item").numpy())
    user = read["user.id"]
    np.testing.assert_array_equal(user.weights, ebc.rows("user.id", torch.from_numpy(user.keys)).numpy())
    assert sorted(user.states) == ["exp_avg", "exp_avg_sq"] and user.states["exp_avg"].shape == (n, DIM)
    assert user.scores is not None and user.scores.max() == 4
    frame = pytest.importorskip("pandas") and user.to_pandas()
    assert frame.shape == (n, DIM) and frame.index.name == "key"


def test_the_states_of_each_table_are_read_or_missed(tmp_path):
    h5py = pytest.importorskip("h5py")
    names = [".", "..", "opt"]
    tables = [ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=["f"]) for name in names]
    ebc = ht.EmbeddingBagCollection(tables, optimizer=ht.Adam(lr=0.1))
    ebc(batch(["f"], SAMPLES, ROWS)).values().square().sum().backward()
    checkpoint.save(tmp_path / "c", ebc)
    for name, table in checkpoint.read(tmp_path / "c").items():
        assert sorted(table.states) == ["exp_avg", "exp_avg_sq"] and table.states["exp_avg"].any(), name
    with h5py.File(tmp_path / "c" / "index.h5", "r+") as file:
        del file["optimizer/embeddings...weight"]
    with pytest.raises(hotbed.CorruptError, match=r"embeddings\.\.\.weight"):
        checkpoint.read(tmp_path / "c", ["."], verify=False)


@pytest.mark.parametrize("arena", [None, (0, 0), (3000, 1 << 20)])
def test_training_goes_on_during_an_async_save(arena, tmp_path):
    first, second = collection(), collection(5)
    memory = arena and checkpoint.Arena(first, *arena)
    for _ in range(3):
        step(first)
    expected = {name: rows.clone() for name, rows in rows_of(first).items()}
    keys = first.keys("user.id")
    saving = checkpoint.async_save(tmp_path / "c", first, step=3, extra=b"dense", arena=memory)
    for _ in range(20):
        step(first)
    saving.wait()
    assert saving.done()
    loaded = checkpoint.load(tmp_path / "c", second)
    assert (loaded.step, loaded.extra) == (3, b"dense")
    assert torch.equal(second.keys("user.id"), keys)
    for name, rows in expected.items():
        assert torch.equal(rows_of(second)[name], rows)
        assert not torch.equal(first.rows(name, second.keys(name)), rows)


def test_increments_of_async_saves(tmp_path):
    first, second, saved = collection(1), collection(2), checkpoint.Increments()
    for i in range(4):
        step(first)
        if i == 2:
            saved.save(tmp_path / str(i), first, step=i)
        else:
            saving = saved.async_save(tmp_path / str(i), first, step=i)
        expected = {name: rows.clone() for name, rows in rows_of(first).items()}
    step(first)
    saving.wait()
    assert saved.paths == [str(tmp_path / str(i)) for i in range(4)]
    assert checkpoint.load(saved.paths[0], second, saved.paths[1:]).step == 3
    for name, rows in expected.items():
        assert torch.equal(rows_of(second)[name], rows)


def test_errors_of_async_saves(tmp_path, caplog):
    ebc, saved = collection(), checkpoint.Increments()
    saved.async_save(tmp_path / "0", ebc)
    with pytest.raises(hotbed.StateError, match="0 exists"):
        saved.async_save(tmp_path / "0", ebc)
    step(ebc)
    saving = saved.async_save(tmp_path / "none" / "1", ebc)
    for _ in range(2):
        with pytest.raises(hotbed.FileError, match="none"):
            saving.wait()
    assert f"the save to {tmp_path / 'none' / '1'} failed" in caplog.text
    saved.async_save(tmp_path / "none" / "2", ebc)
    with pytest.raises(hotbed.FileError, match="none"):
        saved.save(tmp_path / "3", ebc)  # nobody has waited for the save before
    assert not (tmp_path / "3").exists()
    saved.save(tmp_path / "4", ebc)
    assert saved.paths == [str(tmp_path / "0"), str(tmp_path / "4")]
    second = collection(3)
    checkpoint.load(saved.paths[0], second, saved.paths[1:])
    for name, rows in rows_of(ebc).items():
        assert torch.equal(rows_of(second)[name], rows)
    out = ebc(batch(["f", "g"], SAMPLES, ROWS)).values()
    before = rows_of(ebc)  # a save while a forward waits for its backward has the rows as they are
    saving = checkpoint.async_save(tmp_path / "5", ebc)
    out.sum().backward()
    saving.wait()
    checkpoint.load(tmp_path / "5", second)
    for name, rows in before.items():
        assert torch.equal(rows_of(second)[name], rows)


def both(seed):
    """A collection of a sum and a mean, which are two storages."""
    tables = [
        ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=[f], pooling=pooling)
        for name, f, pooling in (("item", "f", ht.PoolingType.SUM), ("user.id", "g", ht.PoolingType.MEAN))
    ]
    return ht.EmbeddingBagCollection(tables, optimizer=ht.Adam(lr=0.1), seed=seed)


@pytest.mark.parametrize("is_async", [False, True])
def test_one_of_two_savers_of_one_name_wins(is_async, tmp_path):
    """Sums and means are two storages of one checkpoint."""
    models = [both(seed) for seed in range(2)]
    for model in models:
        step(model)
    together = threading.Barrier(2)

    def save(number, name):
        together.wait()
        try:
            if is_async:
                checkpoint.async_save(tmp_path / name, models[number], step=number).wait()
            else:
                checkpoint.save(tmp_path / name, models[number], step=number)
        except hotbed.StateError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name in map(str, range(20)):
            won = list(pool.map(save, range(2), [name, name]))
            assert sum(won) == 1
            loaded, other = both(2), models[won.index(True)]
            assert checkpoint.load(tmp_path / name, loaded).step == won.index(True)
            for table, rows in rows_of(other).items():
                assert torch.equal(rows_of(loaded)[table], rows)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(map(str, range(20)))


class Model(torch.nn.Module):
    """Sums, means and sequences, hash and static, and a dense part."""

    def __init__(self, seed=0, hashed="user.id", pooling=ht.PoolingType.SUM, dim=DIM):
        super().__init__()
        optimizer = ht.Adam(lr=0.1)
        self.sums = ht.EmbeddingBagCollection(
            [
                ht.EmbeddingBagConfig(ROWS, dim, "item", feature_names=["f"], pooling=pooling),
                ht.EmbeddingBagConfig(ROWS, DIM, hashed, feature_names=["g"], use_virtual_table=True),
            ],
            optimizer=optimizer,
            seed=seed,
        )
        self.means = ht.EmbeddingBagCollection(
            [ht.EmbeddingBagConfig(ROWS, DIM, "tag", feature_names=["g"], pooling=ht.PoolingType.MEAN)],
            optimizer=optimizer,
            seed=seed,
        )
        self.words = ht.EmbeddingCollection(
            [ht.EmbeddingConfig(ROWS, DIM, "word", feature_names=["g"], use_virtual_table=True)],
            optimizer=optimizer,
            seed=seed,
        )
        torch.manual_seed(seed)
        self.top = torch.nn.Sequential(torch.nn.Linear(DIM, 4), torch.nn.BatchNorm1d(4))

    def collections(self):
        return {"item": self.sums, "user.id": self.sums, "tag": self.means, "word": self.words}

    def step(self, optimizer):
        kjt = batch(["f", "g"], SAMPLES, ROWS)
        parts = [self.sums(kjt).values()[:, -DIM:], self.means(kjt).values()]
        self.words.flat(kjt).square().sum().backward()
        loss = self.top(sum(parts)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def check_same(first, second):
    for name, part in first.collections().items():
        keys = part.keys(name)
        assert torch.equal(keys, second.collections()[name].keys(name))
        assert torch.equal(part.rows(name, keys), second.collections()[name].rows(name, keys))
    for name, value in first.top.state_dict().items():
        assert torch.equal(value, second.top.state_dict()[name])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_model_is_one_checkpoint(is_async, tmp_path):
    first, second = Model(1), Model(1)  # one seed: keys that are new afterwards begin alike
    optimizers = [torch.optim.Adam(model.top.parameters(), lr=0.1) for model in (first, second)]
    saved = checkpoint.Increments()
    second.step(optimizers[1])
    for number in range(3):
        first.step(optimizers[0])
        if is_async:
            saved.async_save(tmp_path / str(number), first, optimizers[0], step=number, extra=b"place").wait()
        else:
            saved.save(tmp_path / str(number), first, optimizers[0], step=number, extra=b"place")
    paths = checkpoint.latest(tmp_path)
    assert paths == saved.paths
    loaded = checkpoint.load(paths[0], second, paths[1:], optimizer=optimizers[1])
    assert (loaded.step, loaded.extra) == (2, b"place")
    assert sorted(t.name for t in loaded.tables) == ["item", "tag", "user.id", "word"]
    assert all(t.taken == "yes" and t.loaded == t.saved > 0 for t in loaded.tables)
    check_same(first, second)
    for model, optimizer in zip((first, second), optimizers):  # the optimizer's state is the same, too
        torch.manual_seed(4)
        model.step(optimizer)
    for name, value in first.top.state_dict().items():
        assert torch.equal(value, second.top.state_dict()[name])
    assert sorted(checkpoint.tables(paths[0])) == ["item", "tag", "user.id", "word"]
    pytest.importorskip("h5py")
    assert sorted(checkpoint.read(paths[0])) == ["item", "tag", "user.id", "word"]


def test_the_save_after_a_resume_is_an_increment(tmp_path):
    first, second, third = Model(1), Model(2), Model(3)
    optimizer = torch.optim.SGD(first.top.parameters(), lr=0.1)
    first.step(optimizer)
    checkpoint.save(tmp_path / "0", first, optimizer)
    resumed = checkpoint.Increments()
    resumed.load(checkpoint.latest(tmp_path), second)
    second.step(torch.optim.SGD(second.top.parameters(), lr=0.1))
    resumed.save(tmp_path / "1", second)
    assert resumed.paths == [str(tmp_path / "0"), str(tmp_path / "1")]
    assert "kind delta" in (tmp_path / "1" / "MANIFEST").read_text()
    checkpoint.load(resumed.paths[0], third, resumed.paths[1:])
    check_same(second, third)
    with pytest.warns(UserWarning):  # a load of a part is no base of an increment
        resumed.load(resumed.paths, Model(4).sums)
    assert resumed.paths == []


def test_a_load_of_a_part_says_what_it_left_out(tmp_path):
    first = Model(1)
    optimizer = torch.optim.SGD(first.top.parameters(), lr=0.1)
    first.step(optimizer)
    checkpoint.save(tmp_path / "c", first, optimizer)
    users = len(first.sums.keys("user.id"))
    other = Model(2, hashed="visitor", pooling=ht.PoolingType.MEAN, dim=4)
    before = other.sums.weight("item").clone()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        loaded = checkpoint.load(tmp_path / "c", other)
    texts = [str(w.message) for w in found if "rows were not loaded" in str(w.message)]
    assert sorted(texts) == [
        f"{tmp_path}/c: table 'item': the model's has another dim; its {ROWS} rows were not loaded",
        f"{tmp_path}/c: table 'user.id': the model does not have it; its {users} rows were not loaded",
    ]
    taken = {t.name: (t.taken, t.saved, t.loaded) for t in loaded.tables}
    assert taken["item"] == ("dim", ROWS, 0) and taken["visitor"] == ("new", 0, 0)
    assert taken["user.id"] == ("dropped", users, 0) and taken["tag"] == ("yes", ROWS, ROWS)
    assert torch.equal(other.sums.weight("item"), before)
    assert torch.equal(other.means.weight("tag"), first.means.weight("tag"))
    with pytest.warns(UserWarning, match="the model does not have it"):  # one collection of the model
        checkpoint.load(tmp_path / "c", Model(3).means)
    for name, why in (("x", "is not among them"), ("item", "has another dim there")):
        table = ht.EmbeddingBagConfig(9, DIM + 1, name, feature_names=["f"])
        with pytest.raises(hotbed.StateError, match=f"has no rows for any table of the storages: its table '.*' {why}"):
            checkpoint.load(tmp_path / "c", ht.EmbeddingBagCollection([table]))


def test_another_dense_part_is_refused_before_rows_are_loaded(tmp_path):
    first, second = Model(1), Model(2)
    checkpoint.save(tmp_path / "c", first)
    second.top = torch.nn.Sequential(torch.nn.Linear(DIM, 3))
    before = second.means.weight("tag").clone()
    with pytest.raises(
        hotbed.StateError, match=r"another dense part: .*'top.1.bias'.* other shapes \['top.0.weight is"
    ):
        checkpoint.load(tmp_path / "c", second)
    assert torch.equal(second.means.weight("tag"), before)
    with pytest.raises(hotbed.StateError, match="was saved without optimizer="):
        checkpoint.load(tmp_path / "c", first, optimizer=torch.optim.SGD(first.top.parameters(), lr=0.1))


def test_the_save_after_an_interrupted_one_is_full(tmp_path, monkeypatch):
    first, second, saved = collection(1), collection(2), checkpoint.Increments()
    saved.save(tmp_path / "0", first)
    step(first)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "lib", Interrupted(checkpoint.lib, "hotbed_checkpoint_save"))
        with pytest.raises(KeyboardInterrupt):
            saved.save(tmp_path / "1", first)
    for name in "23":
        step(first)
        saved.save(tmp_path / name, first)
    assert [p[-1] for p in saved.paths] == ["2", "3"]
    checkpoint.load(saved.paths[0], second, saved.paths[1:])
    for name, rows in rows_of(first).items():
        assert torch.equal(rows, rows_of(second)[name])


def test_training_after_an_interrupted_load_has_the_groups_learning_rate(tmp_path, monkeypatch):
    def make(rate):
        table = ht.EmbeddingConfig(ROWS, DIM, "t", feature_names=["f"])
        return ht.EmbeddingCollection([table], optimizer=ht.SGD(lr=rate))

    checkpoint.save(tmp_path / "c", make(0.25))
    ebc = make(1.0)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "lib", Interrupted(checkpoint.lib, "hotbed_checkpoint_load"))
        with pytest.raises(KeyboardInterrupt):
            checkpoint.load(tmp_path / "c", ebc)
    before = ebc.weight("t").clone()
    ebc.flat(ht.KeyedJaggedTensor(["f"], torch.tensor([3]), lengths=torch.tensor([1]))).sum().backward()
    torch.testing.assert_close(before[3] - ebc.weight("t")[3], torch.ones(DIM))


def test_what_cannot_be_done_is_said(tmp_path):
    ebc = collection()
    checkpoint.save(tmp_path / "c", ebc)
    with pytest.raises(hotbed.StateError, match=f"^{tmp_path}/c exists already"):
        checkpoint.save(tmp_path / "c", ebc)
    for other in (ebc, both(0)):
        text = f"the directory {tmp_path}/none, in which d is to be saved, does not exist: create it$"
        with pytest.raises(hotbed.FileError, match=text):
            checkpoint.save(tmp_path / "none" / "d", other)
    with pytest.raises(hotbed.ArgumentError, match=r"model: Sequential is not a collection of hotbed\.torch"):
        checkpoint.save(tmp_path / "d", torch.nn.Sequential(torch.nn.ReLU()))
    with pytest.raises(hotbed.ArgumentError, match="two tables have the name 'item'"):
        checkpoint.save(tmp_path / "d", torch.nn.ModuleList([collection(), collection()]))
    for save in (checkpoint.save, checkpoint.async_save):
        with pytest.raises(hotbed.ArgumentError, match="extra: 'abc' is not bytes"):
            save(tmp_path / "d", ebc, extra="abc")
    with pytest.raises(hotbed.ArgumentError, match="increments: 'ck/i1' is one path"):
        checkpoint.load(tmp_path / "c", ebc, "ck/i1")
    with pytest.raises(hotbed.FileError):
        checkpoint.tables(tmp_path / "none")
    with pytest.raises(hotbed.ArgumentError, match="no table 'other'"):
        checkpoint.read(tmp_path / "c", ["other"])
    with pytest.raises(hotbed.ArgumentError, match="names: 'item' is one name"):
        checkpoint.read(tmp_path / "c", "item")
    out = ebc(batch(["f", "g"], SAMPLES, ROWS)).values()
    with pytest.raises(hotbed.StateError, match=r"run their backwards, or call the collection's cancel\(\)"):
        checkpoint.load(tmp_path / "c", ebc)
    out.sum().backward()
    data = bytearray((tmp_path / "c" / "MANIFEST").read_bytes())
    data[100] ^= 1
    (tmp_path / "c" / "MANIFEST").write_bytes(data)
    with pytest.raises(hotbed.CorruptError):
        checkpoint.load(tmp_path / "c", ebc)


def test_a_folder_of_checkpoints_is_no_checkpoint(tmp_path):
    ebc = collection()
    for number in (8, 12, 1000):
        checkpoint.save(tmp_path / f"step-{number}", ebc)
    (tmp_path / ".tmp-step-2000").mkdir()
    checkpoint.save(tmp_path / "step-200", both(0))
    text = (
        f"{tmp_path} is no checkpoint, but contains 4: pass one of them, for example the newest, step-1000; the others "
        "are step-8, step-12, step-200$"
    )
    for call in (lambda: checkpoint.load(tmp_path, ebc), lambda: checkpoint.read(tmp_path)):
        with pytest.raises(hotbed.FileError, match=text):
            call()


@pytest.mark.parametrize("storages", [1, 2])
def test_the_latest_whole_checkpoint_is_found(storages, tmp_path):
    ebc, saved = collection() if storages == 1 else both(0), checkpoint.Increments()
    assert checkpoint.latest(tmp_path) == []
    with pytest.raises(hotbed.FileError, match="none"):
        checkpoint.latest(tmp_path / "none")

    def name(number):
        return str(tmp_path / f"step-{number}")

    def damage(number):
        """Shorten a shard of a checkpoint."""
        file = min((tmp_path / f"step-{number}").glob("shard*"))
        file.write_bytes(file.read_bytes()[:-1])

    def latest(*skipped):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            paths = checkpoint.latest(tmp_path)
        assert [str(w.message).split(": ")[0] for w in found] == [f"skipped {name(number)}" for number in skipped]
        if paths:
            last = int(paths[-1].rsplit("-")[-1])
            assert checkpoint.load(paths[0], ebc, paths[1:]).step == last
        return paths

    for number in (8, 9, 10):
        checkpoint.save(name(number), ebc, step=number)
    for number in (11, 12, 100):
        step(ebc)
        saved.save(name(number), ebc, step=number)
    for other in (".tmp-step-200", "logs", "step-101.damaged"):
        (tmp_path / other).mkdir()
    (tmp_path / "newest").symlink_to(name(100))
    assert latest() == [name(11), name(12), name(100)]
    damage(100)
    assert latest(100) == [name(11), name(12)]
    shutil.rmtree(name(11))
    assert latest(100, 12) == [name(10)]
    (tmp_path / "step-10" / "MANIFEST").write_bytes(b"")
    assert latest(10, 100, 12) == [name(9)]
    damage(9)
    damage(8)
    assert latest(10, 100, 12, 9, 8) == []


@pytest.mark.parametrize("hashed", [False, True])
def test_a_load_while_a_forward_waits_says_what_to_do(hashed, tmp_path):
    table = ht.EmbeddingConfig(ROWS, DIM, "t", feature_names=["f"], use_virtual_table=hashed)
    embeddings = ht.EmbeddingCollection([table])
    checkpoint.save(tmp_path / "c", embeddings)
    out = embeddings.flat(batch(["f"], SAMPLES, ROWS))
    with pytest.raises(hotbed.StateError, match=r"hold .*rows[:;] run their backwards, or call the .* cancel\(\)$"):
        checkpoint.load(tmp_path / "c", embeddings)
    embeddings.cancel()
    checkpoint.load(tmp_path / "c", embeddings)
    del out


def test_static_tables_are_saved_while_a_forward_waits(tmp_path):
    table = ht.EmbeddingConfig(ROWS, DIM, "t", feature_names=["f"])
    first, second = ht.EmbeddingCollection([table], seed=1), ht.EmbeddingCollection([table], seed=2)
    before = first.weight("t").clone()
    out = first.flat(batch(["f"], SAMPLES, ROWS))
    checkpoint.save(tmp_path / "c", first)
    out.sum().backward()
    checkpoint.load(tmp_path / "c", second)
    assert torch.equal(second.weight("t"), before)


def test_a_damaged_checkpoint_is_an_error(tmp_path):
    pytest.importorskip("h5py")
    ebc, random = collection(), torch.Generator().manual_seed(6)
    step(ebc)
    checkpoint.save(tmp_path / "c", ebc)
    for name in ("shard-00000-of-00001.h5", "MANIFEST"):
        file = tmp_path / "c" / name
        good = file.read_bytes()
        for at in torch.randint(0, len(good), (30,), generator=random).tolist():
            file.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
            for call in (lambda: checkpoint.load(tmp_path / "c", ebc), lambda: checkpoint.read(tmp_path / "c")):
                with pytest.raises((hotbed.CorruptError, hotbed.UnsupportedError)):  # or of another version
                    call()
        file.write_bytes(good)
    checkpoint.read(tmp_path / "c")


@pytest.mark.parametrize("old, new", [(b"len", b"l\xf2n"), (b"len", b"nel"), (b"bucket_bits", b"buckets")])
def test_a_manifest_without_a_number_is_an_error(old, new, tmp_path):
    ebc = collection()
    checkpoint.save(tmp_path / "c", ebc)
    manifest = tmp_path / "c" / "MANIFEST"
    assert old in manifest.read_bytes()
    manifest.write_bytes(manifest.read_bytes().replace(old, new))
    with pytest.raises(hotbed.CorruptError, match="MANIFEST"):
        checkpoint.load(tmp_path / "c", ebc)


def test_without_a_check_files_may_be_missing_or_damaged(tmp_path):
    pytest.importorskip("h5py")
    ebc = collection()
    checkpoint.save(tmp_path / "c", ebc)
    shard, index = tmp_path / "c" / "shard-00000-of-00001.h5", tmp_path / "c" / "index.h5"
    data = shard.read_bytes()
    at = data.index(ebc.weight("item")[0].numpy().tobytes())
    shard.write_bytes(data[:at] + bytes(4) + data[at + 4 :])
    assert checkpoint.read(tmp_path / "c", verify=False)["item"].weights[0, 0] == 0
    for file in (index, shard):
        file.rename(f"{file}.away")
        for verify in (False, True):
            with pytest.raises(hotbed.CorruptError):
                checkpoint.read(tmp_path / "c", verify=verify)


def test_a_collection_without_optimizer_loads_the_rows(tmp_path):
    first = collection()
    step(first)
    checkpoint.save(tmp_path / "c", first)
    tables = first.embedding_bag_configs()
    second = ht.EmbeddingBagCollection(tables, optimizer=None)
    checkpoint.load(tmp_path / "c", second)
    for name, rows in rows_of(first).items():
        assert torch.equal(rows, rows_of(second)[name])
    with pytest.raises(hotbed.StateError, match="the optimizer is adam in the checkpoint, sgd in the storage"):
        checkpoint.load(tmp_path / "c", ht.EmbeddingBagCollection(tables))
