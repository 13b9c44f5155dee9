"""Checkpoints: saved, loaded, increments, and read with h5py alone."""

import concurrent.futures
import threading

import numpy as np
import pytest
import torch
from conftest import batch

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint

ROWS, DIM, SAMPLES = 40, 8, 6


def collection(seed=0):
    tables = [
        ht.EmbeddingBagConfig(ROWS, DIM, "item", feature_names=["f"]),
        ht.EmbeddingBagConfig(ROWS, DIM, "user.id", feature_names=["g"], use_virtual_table=True),
    ]
    return ht.EmbeddingBagCollection(tables, optimizer=ht.Adam(lr=0.1), seed=seed)


def step(ebc):
    ebc(batch(["f", "g"], SAMPLES, ROWS)).values().square().sum().backward()


def rows_of(ebc):
    return {name: ebc.rows(name, ebc.keys(name)) for name in ("item", "user.id")}


@pytest.fixture(scope="module", autouse=True)
def needs_hdf5(tmp_path_factory):
    try:
        checkpoint.save(tmp_path_factory.mktemp("probe") / "c", collection())
    except hotbed.UnsupportedError:
        pytest.skip("the library was built without HDF5")


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


def test_increments_follow_a_checkpoint(tmp_path):
    first, second, saved = collection(1), collection(2), checkpoint.Increments()
    for i in range(3):
        step(first)
        saved.save(tmp_path / str(i), first, step=i, extra=bytes([i]))
    loaded = checkpoint.load(saved.paths[0], second, saved.paths[1:])
    assert (loaded.step, loaded.extra) == (2, b"\x02")
    for name, rows in rows_of(first).items():
        assert torch.equal(rows, rows_of(second)[name])
    with pytest.raises(hotbed.StateError):
        checkpoint.load(saved.paths[0], second, saved.paths[2:])


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


def test_what_cannot_be_done_is_said(tmp_path):
    ebc = collection()
    checkpoint.save(tmp_path / "c", ebc)
    with pytest.raises(hotbed.StateError, match="exists"):
        checkpoint.save(tmp_path / "c", ebc)
    with pytest.raises(hotbed.FileError):
        checkpoint.tables(tmp_path / "none")
    with pytest.raises(hotbed.ArgumentError, match="no table 'other'"):
        checkpoint.read(tmp_path / "c", ["other"])
    out = ebc(batch(["f", "g"], SAMPLES, ROWS)).values()
    with pytest.raises(hotbed.StateError, match="ticket"):
        checkpoint.save(tmp_path / "d", ebc)
    out.sum().backward()
    data = bytearray((tmp_path / "c" / "MANIFEST").read_bytes())
    data[100] ^= 1
    (tmp_path / "c" / "MANIFEST").write_bytes(data)
    with pytest.raises(hotbed.CorruptError):
        checkpoint.load(tmp_path / "c", ebc)
