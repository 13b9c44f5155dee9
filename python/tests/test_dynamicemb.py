"""hotbed.compat.dynamicemb without dynamicemb's checkout; tools/dynamicemb_tests.sh runs dynamicemb's own tests.

Started as a script, the file trains a sharded model in a fork per rank: ``RANKS DIRECTORY``.
"""

import ast
import copy
import dataclasses
import gc
import importlib.util
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys
import threading
import traceback
import warnings

import pytest
import torch

import hotbed
import hotbed.compat.dynamicemb as dynamicemb
from hotbed import checkpoint
from hotbed._c import ffi, lib
from hotbed.compat.dynamicemb import (
    DynamicEmbCheckMode,
    DynamicEmbInitializerArgs,
    DynamicEmbInitializerMode,
    DynamicEmbOptimType,
    DynamicEmbPoolingMode,
    DynamicEmbScoreStrategy,
    DynamicEmbTableOptions,
    EmbOptimType,
    EvictedItemMode,
    KVCounter,
    ReplayContent,
    ReplayStats,
    _external,
    batched_dynamicemb_tables,
)
from hotbed.compat.dynamicemb.incremental_dump import get_score, incremental_dump, replay_increment
from hotbed.compat.dynamicemb.key_value_table import flush_cache
from hotbed.compat.dynamicemb.optimizer import string_to_opt_type
from hotbed.compat.dynamicemb.types import CopyMode, MemoryType, Storage
from hotbed.compat.dynamicemb.utils import ranks_of_keys
from hotbed.errors import ArgumentError, FileError, FullError, StateError, UnsupportedError
from hotbed.torch import _storage

DIM, STEPS, SAMPLES = 4, 3, 8
TABLES = ("t0", "t1")
KEYS = [0, 1, 7, 99_999, 100_000, 2**40 + 3, 2**62 + 5, 2**63 - 1]


def options(**more):
    args = DynamicEmbInitializerArgs(mode=DynamicEmbInitializerMode.DEBUG)
    return DynamicEmbTableOptions(initializer_args=args, **more)


def module(
    tables=("t",), optimizer=EmbOptimType.SGD, pooling=DynamicEmbPoolingMode.NONE, dims=DIM, capacity=1024, **more
):
    each = [options(dim=dims, max_capacity=capacity, local_hbm_for_values=1 << 20, **more) for _ in tables]
    return dynamicemb.BatchedDynamicEmbeddingTablesV2(
        each, list(tables), pooling_mode=pooling, optimizer=optimizer, learning_rate=1.0, device="cpu"
    )


def test_explain_says_where_rows_are_or_raises(monkeypatch):
    tables = module()
    assert "a row of t" in tables.explain()
    monkeypatch.setattr(type(tables._hotbed), "pointer", property(lambda _: ffi.NULL))
    with pytest.raises(hotbed.ArgumentError, match="storage"):
        tables.explain()


def rows(tables, name="t"):
    keys, values = tables.export_keys_values(name, torch.device("cpu"))
    return {int(k): v.tolist() for k, v in zip(keys, values)}


# --- one rank -------------------------------------------------------------------------------------


def test_all_names_exist():
    assert all(hasattr(dynamicemb, name) for name in dynamicemb.__all__)


def test_views_of_tables_have_the_calls_of_dynamicemb(tmp_path):
    """Programs call them; nothing of the package does."""
    model, other = module(), module()
    view = model.tables
    model(torch.tensor([3, 5]), torch.tensor([0, 1, 2])).sum().backward()
    assert view.embedding_dims().tolist() == [DIM] and view.all_dims_vec4() == (DIM % 4 == 0)
    keys, values = view.incremental_dump(0, 0, None)
    assert {int(k): v.tolist() for k, v in zip(keys, values)} == rows(model)
    paths = [str(tmp_path / name) for name in ("meta.json", "keys", "values", "scores", "states")]
    view.dump(0, *paths)
    other.tables.load(0, *paths)
    assert rows(other) == rows(model)
    other.tables.erase(0, torch.tensor([3]))
    assert set(rows(other)) == {5}
    assert callable(flush_cache) and MemoryType("device") is MemoryType.DEVICE
    assert string_to_opt_type("exact_adagrad") is EmbOptimType.EXACT_ADAGRAD


def test_no_files_import_each_other_in_a_circle():
    folder, package = pathlib.Path(dynamicemb.__file__).parent, dynamicemb.__name__ + "."
    imports = {}
    for file in folder.glob("*.py"):
        found = [n.module for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
        imports[file.stem] = {m[len(package) :] for m in found if m is not None and m.startswith(package)}
    del imports["__init__"]
    while True:
        leaves = {name for name, used in imports.items() if not used & set(imports)}
        if not leaves:
            break
        imports = {name: used for name, used in imports.items() if name not in leaves}
    assert not imports


@pytest.mark.parametrize("pooling", list(DynamicEmbPoolingMode))
def test_a_step_of_sgd_subtracts_the_gradient(pooling):
    tables = module(pooling=pooling)
    keys, offsets = torch.tensor([3, 5, 3, 7]), torch.tensor([0, 1, 4])
    out = tables(keys, offsets)
    expected = keys.float().repeat(DIM, 1).T
    if pooling != DynamicEmbPoolingMode.NONE:
        expected = torch.stack([expected[:1].sum(0), expected[1:].sum(0)])
        if pooling == DynamicEmbPoolingMode.MEAN:
            expected[1] /= 3
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    part = 1 / 3 if pooling == DynamicEmbPoolingMode.MEAN else 1
    found = rows(tables)
    for key, gradient in ((3, 1 + part), (5, part), (7, part)):
        torch.testing.assert_close(torch.tensor(found[key]), torch.full((DIM,), float(key - gradient)))
    tables.eval()
    assert not tables(torch.tensor([11]), torch.tensor([0, 1])).any()  # a missing key, and it stays missing
    assert 11 not in rows(tables)


def test_a_state_dict_without_rows_is_no_secret():
    model = torch.nn.Sequential(module())
    for call in (model.state_dict, lambda: model.load_state_dict({})):
        with pytest.warns(UserWarning, match=r"no rows of the hash tables \['t'\]; save"):
            call()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_compiled_model_trains_as_an_eager_one(ahead):
    def step(tables, keys, offsets):
        if ahead:
            tables.prefetch(keys, offsets)
        return tables(keys, offsets) * 2

    results = []
    for call in (step, torch.compile(step, backend="eager")):
        tables = module(optimizer=EmbOptimType.ADAM)
        for _ in range(3):
            call(tables, torch.arange(5), torch.arange(6)).sum().backward()
        results.append(rows(tables))
    assert results[0] == results[1]


def test_converted_keys_are_recognized_without_a_comparison(monkeypatch):
    """A comparison waits for a GPU, and gives the same; so torch.equal() raises here."""

    def compare(a, b):
        raise AssertionError("compared")

    tables, offsets = module(), torch.arange(5)
    wide = torch.arange(8)
    batches = torch.tensor([1, 2, 3, 4], dtype=torch.int32), torch.tensor([5, 6, 7, 8], dtype=torch.int32), wide[::2]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "equal", compare)
        for _ in range(2):
            for keys in batches:
                tables.prefetch(keys, offsets)
            for keys in batches:
                assert tables(keys.view_as(keys), offsets)[:, 0].tolist() == keys.tolist()
        tables.prefetch(batches[0], offsets)
        for other in (batches[0].clone(), batches[1], batches[0].long()):
            with pytest.raises(AssertionError, match="compared"):
                tables(other, offsets)
        batches[0].add_(1)  # in the memory of the prefetch, but not its keys
        with pytest.raises(AssertionError, match="compared"):
            tables(batches[0], offsets)
    with pytest.raises(StateError, match="4 keys or their offsets are not the oldest prefetch's"):
        tables(batches[0], offsets)
    assert tables(torch.tensor([1, 2, 3, 4]), offsets)[:, 0].tolist() == [1, 2, 3, 4]


def test_a_forward_uses_only_the_batch_that_was_prefetched():
    tables, expected = module(), module()
    one, other, offsets = torch.arange(4), torch.arange(4) + 9, torch.arange(5)
    tables.prefetch(one, offsets)
    tables.prefetch(other.int(), offsets)
    with pytest.raises(StateError, match="4 keys or their offsets are not the oldest prefetch's"):
        tables(other, offsets)
    with pytest.raises(StateError, match="3 keys of 4 samples, not the oldest prefetch's 4 of 4"):
        tables(other[:3], torch.tensor([0, 1, 2, 3, 3]))
    for keys, again in ((one, one.view(2, 2).view(4)), (other, other.int())):  # a view, a copy
        tables(again, offsets.clone()).sum().backward()
        expected(keys, offsets).sum().backward()
    assert rows(tables) == rows(expected)


@pytest.mark.parametrize("other", [DynamicEmbCheckMode.IGNORE, DynamicEmbCheckMode.WARNING])
def test_the_strictest_check_of_a_modules_tables_applies(other):
    each = [
        options(dim=DIM, max_capacity=16, local_hbm_for_values=1 << 20, safe_check_mode=mode)
        for mode in (DynamicEmbCheckMode.ERROR, other)
    ]
    tables = dynamicemb.BatchedDynamicEmbeddingTablesV2(each, list(TABLES), device="cpu")
    with pytest.raises(FullError, match="table 't0'"):
        tables(torch.arange(1000), torch.tensor([0, 1000, 1000]))


def test_a_load_warns_of_tables_without_files(tmp_path):
    module().dump(str(tmp_path))
    with pytest.warns(UserWarning, match=rf"^{tmp_path} has no files of the tables \['other'\], which keep their rows"):
        module(("t", "other")).load(str(tmp_path))


def test_a_dump_is_loaded_with_states_and_scores(tmp_path):
    saved = module(optimizer=EmbOptimType.EXACT_ADAGRAD, score_strategy=DynamicEmbScoreStrategy.LFU)
    loaded = module(optimizer=EmbOptimType.EXACT_ADAGRAD, score_strategy=DynamicEmbScoreStrategy.LFU)
    keys, offsets = torch.tensor(KEYS + KEYS[:3]), torch.arange(len(KEYS) + 4)
    saved(keys, offsets).sum().backward()
    dynamicemb.DynamicEmbDump(str(tmp_path / "dump"), saved, optim=True)
    dynamicemb.DynamicEmbLoad(str(tmp_path / "dump"), loaded, optim=True)
    found = [[torch.cat(c) for c in zip(*m.tables.export_keys_values(torch.device("cpu")))] for m in (saved, loaded)]
    for theirs, ours in zip(*[[c[f[0].argsort()] for c in f] for f in found]):
        assert torch.equal(theirs, ours)
    scores = dict(zip(found[1][0].tolist(), found[1][3].tolist()))
    assert scores == {key: 2 if key in KEYS[:3] else 1 for key in KEYS}
    with pytest.raises(StateError, match="has files"):
        dynamicemb.DynamicEmbDump(str(tmp_path / "dump"), saved)


def test_a_dump_over_another_one_leaves_nothing_of_it(tmp_path):
    strategy = dynamicemb.FrequencyAdmissionStrategy(threshold=2, counter=KVCounter(capacity=64))

    def made():
        return module(optimizer=EmbOptimType.ADAM, admit_strategy=strategy)

    model, ends = made(), torch.arange(3)
    for _ in range(2):
        model(torch.tensor([3, 5]), ends).sum().backward()
    model(torch.tensor([7, 9]), ends)
    model.dump(str(tmp_path), optim=True, counter=True)
    name = "t_emb_opt_values.rank_0.world_size_1"
    states = (tmp_path / name).read_bytes()
    (tmp_path / "t_opt_values.rank_0.world_size_1").write_bytes(states)  # as of an older version
    model(torch.tensor([3, 5]), ends).sum().backward()
    model.dump(str(tmp_path))
    assert not [path.name for path in tmp_path.iterdir() if "counter" in path.name or "opt_values" in path.name]
    with pytest.warns(UserWarning, match="no optimizer states of adam are loaded"):
        made().load(str(tmp_path), optim=True)
    model.dump(str(tmp_path), optim=True, counter=True)
    other = made()
    other.load(str(tmp_path), optim=True, counter=True)
    model(torch.tensor([3, 7]), ends).sum().backward()
    other(torch.tensor([3, 7]), ends).sum().backward()
    assert rows(other) == rows(model) and set(rows(model)) == {3, 5, 7}


def test_adam_continues_from_a_dump_exactly(tmp_path):
    saved, loaded = (module(optimizer=EmbOptimType.ADAM) for _ in range(2))
    keys, offsets = torch.arange(50), torch.arange(51)
    for _ in range(5):
        saved(keys, offsets).sum().backward()
    dynamicemb.DynamicEmbDump(str(tmp_path), saved, optim=True)
    dynamicemb.DynamicEmbLoad(str(tmp_path), loaded, optim=True)
    clocks = [{n: v for n, v in m._hotbed.clock().items() if "power" in n} for m in (saved, loaded)]
    assert clocks[0] == clocks[1]
    for _ in range(20):
        for tables in (saved, loaded):
            tables(keys, offsets).sum().backward()
    assert rows(loaded) == rows(saved)


def test_a_dump_of_a_full_table_is_loaded(tmp_path):
    saved, loaded = (module(score_strategy=DynamicEmbScoreStrategy.STEP) for _ in range(2))
    for _ in range(6):
        keys = torch.randint(0, 2**62, (512,))
        saved(keys, torch.arange(513)).sum().backward()
    dynamicemb.DynamicEmbDump(str(tmp_path), saved)
    dynamicemb.DynamicEmbLoad(str(tmp_path), loaded)
    assert len(rows(saved)) > 1000 and rows(loaded) == rows(saved)


@pytest.mark.parametrize("dist_type", ["continuous", "roundrobin"])
def test_a_dump_of_two_ranks_is_loaded_by_one_if_keys_are_global(tmp_path, dist_type):
    saved, loaded = (module(dist_type=dist_type) for _ in range(2))
    saved(torch.tensor([1, 2]), torch.arange(3)).sum().backward()
    saved.dump(str(tmp_path))
    for file in tmp_path.glob("*.rank_0.world_size_1"):
        for rank in range(2):
            (tmp_path / file.name.replace("rank_0.world_size_1", f"rank_{rank}.world_size_2")).write_bytes(
                file.read_bytes() if rank == 0 else b""
            )
        file.unlink()
    if dist_type == "roundrobin":
        loaded.load(str(tmp_path))
        assert rows(loaded) == rows(saved)
        return
    with pytest.raises(UnsupportedError, match="table 't': the dump is of 2 ranks, and here are 1; with dist_type"):
        loaded.load(str(tmp_path))
    assert not rows(loaded)


def write_dump(folder, rank=0, world=1, meta=None, **columns):
    folder.mkdir(exist_ok=True)
    (folder / "t_opt_args.json").write_text(json.dumps(meta or {}))
    for item, column in columns.items():
        data = column.view(torch.int16) if column.dtype == torch.bfloat16 else column
        data.numpy().tofile(folder / f"t_{item}.rank_{rank}.world_size_{world}")


def columns_of(tables):
    keys, *others = zip(*tables.tables.export_keys_values(torch.device("cpu")))
    order = torch.cat(keys).argsort()
    return [None if c[0] is None else torch.cat(c)[order] for c in (keys, *others)]


def test_both_names_of_states_are_read(tmp_path):
    saved, loaded = (module(optimizer=EmbOptimType.EXACT_ADAGRAD) for _ in range(2))
    saved(torch.arange(5), torch.arange(6)).sum().backward()
    saved.dump(str(tmp_path), optim=True)
    newer = tmp_path / "t_emb_opt_values.rank_0.world_size_1"
    older = newer.rename(tmp_path / "t_opt_values.rank_0.world_size_1")
    loaded.load(str(tmp_path), optim=True)
    assert torch.equal(columns_of(saved)[2], columns_of(loaded)[2]) and columns_of(loaded)[2].any()
    newer.write_bytes(older.read_bytes())
    with pytest.raises(ValueError, match="are both states of table 't'"):
        loaded.load(str(tmp_path), optim=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["{}", "torch.{}"])
def test_rows_and_states_have_the_type_that_a_dump_says(tmp_path, dtype, name):
    says = name.format(str(dtype)[6:])
    meta = {"embedding_dtype": says, "embedding_dim": DIM, "optim_state_dtype": says, "opt_type": "exact_adagrad"}
    meta.update(lr=1.0, eps=1e-8, initial_accumulator_value=0.0)
    values = (torch.arange(5.0 * DIM).view(5, DIM) / 8).to(dtype)
    write_dump(tmp_path, meta=meta, emb_keys=torch.arange(5), emb_values=values, emb_opt_values=values + 1)
    for table in (torch.float32, dtype):
        loaded = module(optimizer=EmbOptimType.EXACT_ADAGRAD, embedding_dtype=table)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded.load(str(tmp_path), optim=True)
        _, found, states, _ = columns_of(loaded)
        assert torch.equal(found, values.float()) and torch.equal(states, (values + 1).float())


def test_a_dump_of_another_type_or_width_is_refused(tmp_path):
    half = torch.arange(10.0 * DIM).view(5, 2 * DIM).half()
    for meta, error in (
        ({}, "80 bytes are not 5 rows of 8 elements of 4 bytes"),
        ({"embedding_dtype": "float8_e5m2"}, "embedding_dtype is 'float8_e5m2', not one of"),
        (
            {"embedding_dtype": "float16", "embedding_dim": 2 * DIM},
            f"embedding_dim is {2 * DIM}, the table's dim {DIM}",
        ),
        ({"embedding_dtype": "float16"}, "80 bytes are not 5 rows of 4 elements of 2 bytes"),
    ):
        tables = module(embedding_dtype=torch.float16, dims=2 * DIM if not meta else DIM)
        write_dump(tmp_path, meta=meta, emb_keys=torch.arange(5), emb_values=half)
        with pytest.raises(ValueError, match=error):
            tables.load(str(tmp_path))
        assert not rows(tables)
    write_dump(tmp_path, emb_keys=torch.arange(5), emb_values=torch.full((5, DIM), 1 / 3))
    tables = module(embedding_dtype=torch.float16)
    with pytest.warns(UserWarning, match="table 't': 20 elements are rounded to torch.float16"):
        tables.load(str(tmp_path))


def test_a_row_wise_state_with_padding_is_read(tmp_path):
    meta = {"opt_type": "exact_row_wise_adagrad", "lr": 1.0, "eps": 1e-8, "initial_accumulator_value": 0.0}
    states = torch.tensor([[2.0, 9, 9, 9], [3.0, 9, 9, 9]])
    write_dump(tmp_path, meta=meta, emb_keys=torch.arange(2), emb_values=torch.ones(2, DIM), emb_opt_values=states)
    tables = module(optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD)
    tables.load(str(tmp_path), optim=True)
    assert columns_of(tables)[2][:, 0].tolist() == [2, 3]


def test_ftrl_trains_and_its_dumps_are_read(tmp_path):
    def ftrl():
        tables = [options(dim=DIM, max_capacity=64, local_hbm_for_values=1 << 20)]
        return dynamicemb.BatchedDynamicEmbeddingTablesV2(
            tables,
            ["t"],
            pooling_mode=DynamicEmbPoolingMode.NONE,
            optimizer=DynamicEmbOptimType.FTRL,
            learning_rate=0.5,
            learning_rate_power=-0.5,
            ftrl_beta=1.0,
            l1_reg=0.01,
            l2_reg=0.25,
            initial_accumulator_value=0.125,
            device="cpu",
        )

    saved, loaded = ftrl(), ftrl()
    before = saved(torch.arange(5), torch.arange(6)).detach().clone()
    saved(torch.arange(5), torch.arange(6)).backward(torch.full((5, DIM), 0.5))
    accum = torch.tensor(0.125 + 0.25)
    linear = 0.5 - (accum.sqrt() - 0.125**0.5) / 0.5 * before
    weights = -(linear - 0.01 * linear.sign()) / ((1.0 + accum.sqrt()) / 0.5 + 0.25)
    _, values, states, _ = columns_of(saved)
    torch.testing.assert_close(values, weights)
    torch.testing.assert_close(states, torch.cat([linear, accum.expand(5, DIM)], 1))
    saved.dump(str(tmp_path), optim=True)
    assert json.loads((tmp_path / "t_opt_args.json").read_text())["opt_type"] == "ftrl"
    loaded.load(str(tmp_path), optim=True)
    assert all(torch.equal(a, b) for a, b in zip(columns_of(saved)[:3], columns_of(loaded)[:3]))
    with pytest.raises(ArgumentError, match="learning_rate 0 of ftrl is not above 0"):
        loaded.set_learning_rate(0.0)
        loaded(torch.arange(5), torch.arange(6)).sum().backward()


def test_states_of_another_optimizer_are_not_loaded_with_a_warning(tmp_path):
    states = torch.ones(2, 2 * DIM)
    meta = {"opt_type": "madgrad"}
    write_dump(tmp_path, meta=meta, emb_keys=torch.arange(2), emb_values=torch.ones(2, DIM), emb_opt_values=states)
    tables = module(optimizer=EmbOptimType.ADAM)
    with pytest.warns(UserWarning, match="no optimizer states of adam are loaded; the dump's states are of madgrad"):
        tables.load(str(tmp_path), optim=True)
    assert not columns_of(tables)[2].any() and len(rows(tables)) == 2


def test_states_that_the_json_file_does_not_describe_are_refused_before_any_row_is_loaded(tmp_path):
    states = torch.ones(2, 2 * DIM)
    whole = {"opt_type": "adam", "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "iters": 9}
    tables = module(optimizer=EmbOptimType.ADAM)
    for absent in ("opt_type", "lr", "beta2", "iters"):
        meta = {name: value for name, value in whole.items() if name != absent}
        write_dump(tmp_path, meta=meta, emb_keys=torch.arange(2), emb_values=torch.ones(2, DIM), emb_opt_values=states)
        with pytest.raises(ValueError, match=f"no '{absent}'"):
            tables.load(str(tmp_path), optim=True)
        assert not rows(tables)
    tables.load(str(tmp_path), optim=False)
    assert len(rows(tables)) == 2 and not columns_of(tables)[2].any()


def test_a_key_that_occurs_twice_is_refused_before_any_row_is_loaded(tmp_path):
    tables = module(admit_strategy=dynamicemb.FrequencyAdmissionStrategy(2), admission_counter=KVCounter(64))
    keys = torch.arange(70_000)
    write_dump(tmp_path, 0, 2, emb_keys=keys, emb_values=torch.ones(70_000, DIM))
    write_dump(tmp_path, 1, 2, emb_keys=torch.tensor([-1, 3]), emb_values=torch.ones(2, DIM))
    with pytest.raises(ValueError, match="table 't': key 3 occurs twice"):
        tables.load(str(tmp_path))
    write_dump(tmp_path, 1, 2, emb_keys=torch.tensor([-1, -3]), emb_values=torch.ones(3, DIM))
    with pytest.raises(ValueError, match=r"rank_1\.world_size_2: 48 bytes are not 2 rows of 4 elements of 4 bytes"):
        tables.load(str(tmp_path))
    for rank, counted in ((0, [7, 8, 7]), (1, [])):
        write_dump(tmp_path, rank, 2, emb_keys=torch.tensor([rank]), emb_values=torch.ones(1, DIM))
        write_dump(tmp_path, rank, 2, counter_keys=torch.tensor(counted, dtype=torch.int64))
        write_dump(tmp_path, rank, 2, counter_frequencies=torch.ones(len(counted), dtype=torch.int64))
    with pytest.raises(ValueError, match=r"counter_keys.*: key 7 occurs twice"):
        tables.load(str(tmp_path), counter=True)
    with pytest.raises(ValueError, match="insert: table 't': key 5 occurs twice"):
        tables.tables.insert(torch.tensor([5, 6, 5]), torch.zeros(3, dtype=torch.int64), torch.ones(3, DIM))
    assert not rows(tables)


def test_a_negative_score_is_refused_before_any_row_is_loaded(tmp_path):
    tables = module()
    for rank, scores in ((0, [5, 9]), (1, [700, -2])):
        keys = torch.tensor([2 * rank, 2 * rank + 1])
        write_dump(tmp_path, rank, 2, emb_keys=keys, emb_values=torch.ones(2, DIM), emb_scores=torch.tensor(scores))
    with pytest.raises(hotbed.CorruptError, match=r"row 1 of table 't', key 3, has the score -2") as caught:
        tables.load(str(tmp_path))
    assert (caught.value.table, caught.value.key, caught.value.value) == ("t", 3, -2)
    assert not rows(tables)


@pytest.mark.parametrize("what", ["scores", "opt_values", "counter_keys"])
def test_a_rank_refuses_a_dump_of_which_another_ranks_files_are_missing(tmp_path, monkeypatch, what):
    tables = module(optimizer=EmbOptimType.EXACT_ADAGRAD)
    for rank in range(2):
        keys, values = torch.tensor([rank, 2 + rank]), torch.ones(2, DIM)
        columns = {"emb_scores": torch.ones(2, dtype=torch.int64), "emb_opt_values": values}
        columns.update(counter_keys=keys, counter_frequencies=torch.ones(2, dtype=torch.int64))
        write_dump(tmp_path, rank, 2, {"opt_type": "exact_adagrad"}, emb_keys=keys, emb_values=values, **columns)
    missing = f"t_{what if what == 'counter_keys' else 'emb_' + what}.rank_1.world_size_2"
    (tmp_path / missing).unlink()
    for rank in range(2):
        monkeypatch.setattr(batched_dynamicemb_tables, "_rank", lambda pg, rank=rank: (rank, 2))
        with pytest.raises(ValueError, match=f"{missing} does not exist: .* exist for some ranks only"):
            tables.load(str(tmp_path), optim=True, counter=True)
    assert not rows(tables)


def test_names_that_a_model_does_not_have_are_warned_of(tmp_path):
    tables = module()
    with pytest.warns(UserWarning, match="no collection 'model.a'"):
        dynamicemb.DynamicEmbDump(str(tmp_path / "a"), tables, {"model.a": ["t"]})
    with pytest.warns(UserWarning, match="'model' has no table 'u', only"):
        dynamicemb.DynamicEmbLoad(str(tmp_path / "a"), tables, {"model": ["u"]})
    with pytest.raises(hotbed.ArgumentError, match="'t' of 'model' is not a list of names"):
        dynamicemb.DynamicEmbDump(str(tmp_path / "b"), tables, {"model": "t"})


PAIR = (DynamicEmbScoreStrategy.TIMESTAMP, DynamicEmbScoreStrategy.LFU)


@pytest.mark.parametrize("strategy", [DynamicEmbScoreStrategy.TIMESTAMP, PAIR, PAIR[::-1]])
def test_thresholds_select_the_same_rows_after_a_load(tmp_path, strategy):
    saved, loaded = (module(score_strategy=strategy) for _ in range(2))
    for _ in range(3):
        saved(torch.arange(50), torch.arange(51)).sum().backward()
    saved._hotbed.set_time(saved._hotbed.now(0) + 10**9)  # it has run for 1000 s, and the last keys are gone
    threshold = saved.get_score()
    saved.dump(str(tmp_path))
    loaded.load(str(tmp_path))
    assert loaded.get_score() == threshold
    assert torch.equal(columns_of(loaded)[3], columns_of(saved)[3])
    keys = torch.tensor([3, 777, 40])
    loaded(keys, torch.arange(4)).sum().backward()
    dumped, _ = loaded.incremental_dump(threshold)
    assert sorted(dumped["t"][0].tolist()) == [3, 40, 777]


def test_a_dump_says_the_order_of_two_scores(tmp_path):
    saved, loaded = module(score_strategy=PAIR), module(score_strategy=PAIR[::-1])
    for n in (2, 5):
        saved(torch.arange(n), torch.arange(n + 1)).sum().backward()
    saved.dump(str(tmp_path))
    loaded.load(str(tmp_path))
    assert columns_of(loaded)[3].tolist() == [2, 2, 1, 1, 1]
    assert loaded._hotbed.rows(0, torch.arange(5), ["times"])["times"].tolist() == (
        saved._hotbed.rows(0, torch.arange(5), ["times"])["times"].tolist()
    )


def test_a_replica_goes_on_where_the_source_was():
    source, replica, other = (module(optimizer=EmbOptimType.ADAM) for _ in range(3))
    keys, ends = torch.tensor([3, 5]), torch.arange(3)
    for _ in range(5):
        source(keys, ends).sum().backward()
    delta = source.incremental_dump({"t": 0})
    replica.replay_increment(delta)
    other.replay_increment(delta, ReplayContent.EMBEDDING_ONLY)
    for tables in (source, replica, other):
        tables(keys, ends).sum().backward()  # Adam's bias correction depends on the number of steps
    assert rows(replica) == rows(source)
    assert [tables._hotbed.clock()["optimizer_steps"] for tables in (source, replica, other)] == [6, 6, 1]
    source.replay_increment(delta)
    assert source._hotbed.clock()["optimizer_steps"] == 6


def test_a_module_that_is_frozen_keeps_its_rows():
    """dynamicemb's module has a parameter, on which the gradient of its output depends."""
    tables = module()
    model = torch.nn.Sequential(tables, torch.nn.Linear(DIM, 1))
    tables(torch.tensor([3, 5]), torch.arange(3)).sum().backward()
    for frozen in (tables, model):
        before = rows(tables)
        frozen.requires_grad_(False)
        for _ in range(20):  # more than may wait for a backward
            out = tables(torch.tensor([3, 5, 7]), torch.arange(4))
            assert not out.requires_grad
        assert rows(tables).items() >= before.items() and set(rows(tables)) == {3, 5, 7}
        frozen.requires_grad_(True)
        before = rows(tables)
        tables(torch.tensor([3]), torch.arange(2)).sum().backward()
        assert rows(tables)[3] != before[3]
    assert not dict(tables.named_parameters()) and not tables.state_dict()


def test_what_cannot_be_a_batch_is_refused():
    model = module(score_strategy=DynamicEmbScoreStrategy.LFU)
    keys, ends = torch.tensor([3, 5]), torch.arange(3)
    for number in (-1.0, float("nan"), 2.0**31):
        with pytest.raises(ArgumentError, match=r"key 5 counts for .* occurrences, not for 0 to") as caught:
            model(keys, ends, torch.tensor([1.0, number]))
        assert (caught.value.key, caught.value.limit) == (5, 2**31 - 1)
    for given, text in (
        (([3, 5], ends), r"indices: \[3, 5\] is not a 1-D tensor"),
        ((keys.float(), ends), "indices: dtype torch.float32"),
        ((keys, None), "offsets: None is not a 1-D tensor"),
        ((keys, ends.float()), "offsets: dtype torch.float32"),
    ):
        with pytest.raises(ArgumentError, match=text):
            model(*given)
    model(keys, ends).sum().backward()
    for wrong in (torch.tensor([3.5]), [3]):
        with pytest.raises(ArgumentError, match="keys: "):
            model.erase("t", wrong)
    assert set(rows(model)) == {3, 5}


@pytest.mark.parametrize("pooling", [DynamicEmbPoolingMode.SUM, DynamicEmbPoolingMode.NONE])
def test_a_batch_may_have_no_samples(pooling):
    model = module(tables=("t", "u"), pooling=pooling)
    out = model(torch.empty(0, dtype=torch.int64), torch.tensor([0]))
    assert out.shape == (0, DIM if pooling == DynamicEmbPoolingMode.NONE else 2 * DIM)
    out.sum().backward()
    assert not rows(model)


def test_a_forward_with_other_bags_than_its_prefetch_is_refused():
    model = module(pooling=DynamicEmbPoolingMode.SUM)
    keys = torch.tensor([1, 2, 3])
    model.prefetch(keys, torch.tensor([0, 1, 3]))
    with pytest.raises(StateError, match="3 keys or their offsets are not the oldest prefetch's"):
        model(keys, torch.tensor([0, 2, 3]))
    model(keys, torch.tensor([0, 1, 3])).sum().backward()


def test_an_incremental_dump_has_what_was_trained_since():
    tables = module(score_strategy=DynamicEmbScoreStrategy.STEP)
    tables(torch.tensor([1, 2]), torch.arange(3)).sum().backward()
    threshold = tables.get_score()
    tables(torch.tensor([2, 3]), torch.arange(3)).sum().backward()
    dumped, following = tables.incremental_dump(threshold)
    assert sorted(dumped["t"][0].tolist()) == [2, 3] and following["t"] == threshold["t"] + 1


def test_admission_counts_keys_until_the_threshold():
    strategy = dynamicemb.FrequencyAdmissionStrategy(2)
    tables = module(admit_strategy=strategy, admission_counter=KVCounter(64))
    for keys in ([1, 2, 2], [3, 2, 1]):
        tables(torch.tensor(keys), torch.arange(4)).sum().backward()
    assert set(rows(tables)) == {1, 2}
    counter = tables._admission_counter
    counts = [
        (k.tolist(), s["frequency"].tolist()) for k, s, _ in counter.table_._batched_export_keys_scores([], "cpu", 0)
    ]
    assert counts == [([3], [1])] and counter.table_.size() == 1


def test_options_of_the_caller_stay_as_they_are():
    """Also what a module completes is of its own table, so tables and modules may share one object."""
    shared = options(dim=DIM, max_capacity=64, local_hbm_for_values=1 << 20)
    before = dataclasses.asdict(shared)
    tables = dynamicemb.BatchedDynamicEmbeddingTablesV2([shared, shared], list(TABLES), device="cpu")
    assert dataclasses.asdict(shared) == before
    assert [o.init_capacity for o in tables._dynamicemb_options] == [64, 64]


@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="needs TorchRec")
def test_tables_of_a_plan_may_share_options():
    from torchrec.modules.embedding_configs import EmbeddingConfig

    from hotbed.compat.dynamicemb.planner import complete_options

    shared = DynamicEmbTableOptions(global_hbm_for_values=1 << 20)
    before = dataclasses.asdict(shared)
    sizes = {"small": (100, 8), "large": (1_000_000, 16)}
    for name, (count, dim) in sizes.items():
        config = EmbeddingConfig(name=name, num_embeddings=count, embedding_dim=dim, feature_names=[name])
        made = complete_options(shared, config, 2)
        assert made.dim == dim and made.initializer_args.upper == count**-0.5
        assert count / 2 <= made.max_capacity == made.init_capacity < count / 2 + 128
    assert dataclasses.asdict(shared) == before


@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="needs TorchRec")
def test_a_planner_takes_configs_from_the_module_unless_it_has_them():
    import torchrec
    from torchrec.distributed.planner import Topology

    from hotbed.compat.dynamicemb.planner import DynamicEmbeddingShardingPlanner, DynamicEmbParameterConstraints
    from hotbed.compat.dynamicemb.shard import DynamicEmbeddingCollectionSharder
    from hotbed.errors import ArgumentError

    sizes = {"small": (100, 8), "large": (1000, 8)}
    configs = [
        torchrec.EmbeddingConfig(name=name, num_embeddings=count, embedding_dim=dim, feature_names=[name])
        for name, (count, dim) in sizes.items()
    ]
    model = torchrec.EmbeddingCollection(tables=configs, device=torch.device("meta"))
    shared = DynamicEmbTableOptions(global_hbm_for_values=1 << 20)
    limits = {n: DynamicEmbParameterConstraints(use_dynamicemb=True, dynamicemb_options=shared) for n in sizes}
    sharders = [DynamicEmbeddingCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD})]

    def plan(**given):
        topology = Topology(world_size=1, local_world_size=1, compute_device="cpu")
        return DynamicEmbeddingShardingPlanner(topology=topology, debug=False, **given).plan(model, sharders).plan[""]

    made = [plan(constraints=limits), plan(constraints=limits, eb_configs=configs)]
    for tables in made:
        assert {n: t.dynamicemb_options.max_capacity for n, t in tables.items()} == {"small": 128, "large": 1024}
        assert {n: t.dynamicemb_options.dim for n, t in tables.items()} == {"small": 8, "large": 8}
    with pytest.raises(ArgumentError, match=r"the module has the tables \['large', 'small'\], constraints \['small"):
        plan(constraints={"small": limits["small"]})


# --- increments -----------------------------------------------------------------------------------

STRATEGIES = [*DynamicEmbScoreStrategy, PAIR]


def scored(strategy, **more):
    tables = module(score_strategy=strategy, optimizer=EmbOptimType.EXACT_ADAGRAD, **more)
    if strategy == DynamicEmbScoreStrategy.CUSTOMIZED:
        tables.set_score({"t": 7})
    return tables


def step(tables, keys):
    tables(torch.tensor(keys), torch.arange(len(keys) + 1)).sum().backward()


def test_an_incremental_dump_has_the_newer_and_the_older_form():
    tables = module(score_strategy=PAIR[::-1], optimizer=EmbOptimType.ADAM)
    step(tables, [1, 2, 2])
    thresholds = get_score(tables)
    step(tables, [2, 3])
    deltas = incremental_dump(tables, thresholds)
    delta = deltas["model"]
    assert list(deltas.keys()) == ["model"] and delta.table_names == ["t"] and len(deltas) == 1
    order = delta.keys[0].argsort()
    assert delta.keys[0][order].tolist() == [2, 3] and delta.scores[0][order].tolist() == [[3, 1], [1, 1]]
    assert torch.equal(delta.values[0][order], torch.tensor([rows(tables)[2], rows(tables)[3]]))
    assert delta.optimizer_states[0].shape == (2, 2 * DIM)
    assert delta.evicted_keys == [None] and delta.erased_keys[0].numel() == 0
    assert delta.meta[0]["current_score"] == tables.get_score()["t"] and delta.meta[0]["num_scores"] == 2
    older, following = deltas
    assert older["model"]["t"] == (delta.keys[0], delta.values[0]) and following == get_score(tables)
    assert pickle.loads(pickle.dumps(deltas))["model"].keys[0].tolist() == delta.keys[0].tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_replayed_increments_give_the_tables_of_their_source(strategy):
    """Also in a table of another capacity, with keys that were erased, and with rows that are in several increments."""
    source = scored(strategy)
    replica = scored(strategy)
    replica_options = replica._dynamicemb_options[0]
    threshold, all_scores = 0, strategy in (DynamicEmbScoreStrategy.LFU, DynamicEmbScoreStrategy.NO_EVICTION)
    for keys, gone in (([1, 2, 3, 3], []), ([2, 4, -5], [1]), ([1, 6], [4, 99])):
        assert source.erase("t", torch.tensor(gone, dtype=torch.int64), EvictedItemMode.RETAIN_KEY) == len(
            [k for k in gone if k != 99]
        )
        step(source, keys)
        deltas = incremental_dump(source, threshold)
        if strategy != DynamicEmbScoreStrategy.CUSTOMIZED and not all_scores:
            threshold = deltas["model"].meta[0]["current_score"]
        stats = replay_increment(replica, deltas)["model"]["t"]
        assert stats.upserted == deltas["model"].keys[0].numel() and stats.skipped == 0
        assert stats.erased == len([k for k in gone if k != 99])
    empty = incremental_dump(source, 2**50)["model"]
    assert empty.keys[0].numel() == 0 and empty.scores[0].shape == (0, 2 if isinstance(strategy, tuple) else 1)
    assert replica.replay_increment(empty)["t"] == ReplayStats()
    for one, other in zip(columns_of(source), columns_of(replica)):
        assert torch.equal(one, other)
    assert source.get_score() == replica.get_score() and replica_options.score_strategy == strategy


def test_a_replay_writes_states_and_scores_on_request():
    source, replica = scored(DynamicEmbScoreStrategy.LFU), scored(DynamicEmbScoreStrategy.LFU)
    for _ in range(3):
        step(source, [1, 2])
    step(replica, [1])
    before = columns_of(replica)
    deltas = incremental_dump(source, 0)
    replay_increment(replica, deltas, ReplayContent.EMBEDDING_ONLY)
    keys, values, states, scores = columns_of(replica)
    assert keys.tolist() == [1, 2] and torch.equal(values, columns_of(source)[1])
    assert torch.equal(states[0], before[2][0]) and not states[1].any() and scores.tolist() == [1, 1]
    replay_increment(replica, deltas, ReplayContent.OPTIMIZER_STATE)
    assert torch.equal(columns_of(replica)[2], columns_of(source)[2]) and columns_of(replica)[3].tolist() == [1, 1]
    replay_increment(replica, deltas, ReplayContent.SCORE)
    assert columns_of(replica)[3].tolist() == [3, 3]


def test_a_replay_of_a_delta_that_does_not_fit_writes_nothing():
    source = module(TABLES, optimizer=EmbOptimType.EXACT_ADAGRAD)
    source(torch.arange(4), torch.tensor([0, 2, 4])).sum().backward()
    other = {"dims": 2 * DIM, "score_strategy": DynamicEmbScoreStrategy.LFU, "dist_type": "hash_roundrobin"}
    for what, error in (("dims", "dim"), ("score_strategy", "score_strategy"), ("dist_type", "dist_type")):
        replica = module(TABLES, optimizer=EmbOptimType.EXACT_ADAGRAD, **{what: other[what]})
        with pytest.raises(ValueError, match=f"table 't0': {error} mismatch: the delta has"):
            replay_increment(replica, incremental_dump(source, 0))
    replica = module(TABLES, optimizer=EmbOptimType.EXACT_ADAGRAD)
    for what, wrong, error in (
        ("optimizer_states", None, "table 't1': optimizer_states have the shape None, not \\(2, 4\\)"),
        ("values", torch.ones(3, DIM), "table 't1': values have the shape \\(3, 4\\), not \\(2, 4\\)"),
        ("scores", torch.ones(2, 2), "table 't1': scores have the shape"),
        ("keys", torch.tensor([3, 3]), "table 't1': key 3 occurs twice"),
        ("meta", {}, "table 't1': meta has no table_options"),
    ):
        deltas = incremental_dump(source, 0)
        getattr(deltas["model"], what)[1] = wrong
        with pytest.raises(ValueError, match=error):
            replay_increment(replica, deltas)
    assert not rows(replica, "t0") and not rows(replica, "t1")
    deltas = incremental_dump(source, 0)
    deltas["elsewhere"] = deltas["model"]
    with pytest.warns(UserWarning, match="no collection 'elsewhere'"):
        replay_increment(replica, deltas)
    with pytest.warns(UserWarning, match="collection 'model' has no table 't1'"):
        replay_increment(module(("t0",), optimizer=EmbOptimType.EXACT_ADAGRAD), incremental_dump(source, 0))


def test_a_rank_replays_the_keys_that_it_owns(monkeypatch):
    source, parts = module(), [module() for _ in range(3)]
    step(source, list(range(-10, 20)))
    source.erase("t", torch.arange(3), EvictedItemMode.RETAIN_KEY)
    deltas = incremental_dump(source, 0)
    for rank, part in enumerate(parts):
        step(part, [rank, 50 + rank])
        monkeypatch.setattr(batched_dynamicemb_tables, "_rank", lambda pg, rank=rank: (rank, 3))
        stats = replay_increment(part, deltas)["model"]["t"]
        owned = sum(key % 2**64 % 3 == rank for key in rows(source))
        assert stats.upserted == owned and stats.skipped == 27 - owned and stats.erased == 1
    merged = {}
    for rank, part in enumerate(parts):
        found = {key: row for key, row in rows(part).items() if key < 50}
        assert all(key % 2**64 % 3 == rank for key in found)
        merged.update(found)
    assert merged == rows(source)


def test_only_a_dump_with_a_group_communicates(monkeypatch):
    """Else a rank that dumps by itself would wait for the others; the time of a group is its latest."""
    tables = module()
    step(tables, [1, 2])
    calls = []

    def gather(out, mine, group):
        calls.append(mine)
        out[:] = [10**6, mine] if isinstance(mine, int) else [mine, mine[:0] if torch.is_tensor(mine) else mine]

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    alone = incremental_dump(tables, 0)["model"]
    assert not calls and alone.scores[0].tolist() == [[1], [1]]
    together = incremental_dump(tables, 0, "group")["model"]
    assert len(calls) == 3 and together.meta[0]["hotbed_time"] == 10**6 + 1
    assert together.scores[0].tolist() == [[10**6 + 1 - tables._hotbed.now(0)]] * 4
    assert together.meta[0]["current_score"] == alone.meta[0]["current_score"]


@pytest.mark.parametrize("strategy", [DynamicEmbScoreStrategy.STEP, DynamicEmbScoreStrategy.LFU])
def test_evicted_and_erased_keys_are_popped_once(strategy):
    """Against sets: a key that had a row after any batch, and has none now, was evicted."""
    tables = module(score_strategy=strategy, evicted_item_mode=EvictedItemMode.RETAIN_KEY, capacity=128)
    chance, had = random.Random(5), set()
    for i in range(12):
        keys = chance.sample(range(600), 60)
        out = tables(torch.tensor(keys), torch.arange(61))
        had |= set(rows(tables))
        out.sum().backward()
        if i % 3 == 2:
            gone = chance.sample(sorted(rows(tables)), 3)
            mode = EvictedItemMode.RETAIN_KEY if i > 6 else EvictedItemMode.DISCARD
            assert tables.erase("t", torch.tensor([*gone, 10**6]), mode) == 3
            had -= set(gone)
            assert tables.pop_erased_keys()["t"].tolist() == (sorted(gone) if mode else [])
            there = set(rows(tables))
            expected = sorted(had - there)
            popped = tables.pop_evicted_keys()["t"] if i % 2 else incremental_dump(tables, 0)["model"].evicted_keys[0]
            assert popped.tolist() == expected and expected
            assert tables.tables.pop_evicted_keys(0).numel() == 0
            had = there
    assert module().pop_evicted_keys() == {} and list(module().pop_erased_keys()) == ["t"]


def test_a_replica_that_is_larger_forgets_what_its_source_evicted():
    source = module(evicted_item_mode=EvictedItemMode.RETAIN_KEY, capacity=128)
    replica, threshold = module(), 0
    for i in range(6):
        step(source, list(range(i * 50, i * 50 + 60)))
        deltas = incremental_dump(source, threshold)
        threshold = deltas["model"].meta[0]["current_score"]
        replay_increment(replica, deltas)
        assert rows(replica) == rows(source)


def test_keys_of_a_batch_in_flight_are_not_erased():
    tables = module(evicted_item_mode=EvictedItemMode.RETAIN_KEY)
    step(tables, [3])
    out = tables(torch.tensor([1, 2]), torch.arange(3))
    with pytest.raises(StateError, match="table 't': 2 of 3 keys were not erased, the first is 1"):
        tables.tables.erase_keys(0, torch.tensor([1, 2, 3]), EvictedItemMode.RETAIN_KEY)
    out.sum().backward()
    assert tables.pop_erased_keys()["t"].tolist() == [3] and tables.pop_evicted_keys()["t"].numel() == 0
    assert tables.erase("t", torch.tensor([1, 2, 2])) == 2
    assert not rows(tables) and tables.pop_erased_keys()["t"].numel() == 0


def test_a_random_share_of_new_keys_is_admitted():
    tables = module(admit_strategy=dynamicemb.ProbabilisticAdmissionStrategy(0.25))
    step(tables, list(range(800)))
    first = len(rows(tables))
    assert 120 < first < 280  # of 800, 12 standard deviations around 200
    step(tables, list(range(800)))
    assert first < len(rows(tables))
    everything = module(admit_strategy=dynamicemb.ProbabilisticAdmissionStrategy(1.0))
    step(everything, list(range(800)))
    assert len(rows(everything)) == 800
    for wrong in (0, -0.5, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"is not in \(0, 1\]"):
            dynamicemb.ProbabilisticAdmissionStrategy(wrong)


def test_a_strategy_has_its_counter():
    strategy = dynamicemb.FrequencyAdmissionStrategy(2, counter=KVCounter(64))
    tables = module(("t", "u"), admit_strategy=strategy)
    tables(torch.tensor([1, 1, 2]), torch.tensor([0, 3, 3])).sum().backward()
    assert set(rows(tables)) == {1} and tables._admission_counter.table_.size() == 1
    assert options(admit_strategy=strategy) == options(
        admit_strategy=dynamicemb.FrequencyAdmissionStrategy(2, KVCounter(7))
    )
    assert options(admit_strategy=strategy) != options(admit_strategy=dynamicemb.FrequencyAdmissionStrategy(3))
    args = DynamicEmbInitializerArgs()
    assert dynamicemb.FrequencyAdmissionStrategy(2, args).get_initializer_args() is args  # the older order
    with pytest.raises(TypeError, match="counter 64 is no KVCounter"):
        dynamicemb.FrequencyAdmissionStrategy(2, counter=64)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [-3, 0, 2**64, 1.5])
def test_a_bad_score_is_refused_before_any_is_set(score):
    tables = module(("t", "bad"), score_strategy=DynamicEmbScoreStrategy.CUSTOMIZED)
    with pytest.raises(ValueError, match=rf"table 'bad': score {score} is not an integer in \[1, 2\*\*64 - 1\]"):
        tables.set_score({"t": 7, "bad": score})
    assert tables.get_score() == {"t": 0, "bad": 0}


def test_a_bad_dtype_is_refused_with_those_allowed():
    with pytest.raises(ValueError, match=r"table 't': embedding_dtype torch.int8 is not one of \[torch.float32, "):
        module(embedding_dtype=torch.int8)


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.deepcopy])
def test_modules_are_not_pickled_or_copied(attempt):
    with pytest.raises(UnsupportedError, match=r"cannot be pickled or copied, .* DynamicEmbDump\(\)"):
        attempt(module())


def test_errors_name_what_the_module_has():
    tables = module()
    outs = [tables(torch.arange(4), torch.arange(5)) for _ in range(17)]
    with pytest.raises(StateError, match="only the last 16 forwards may wait for their backward; run each") as raised:
        outs[0].sum().backward()
    assert "max_in_flight" not in str(raised.value)
    full = module(safe_check_mode=DynamicEmbCheckMode.ERROR)
    with pytest.raises(FullError, match="use a max_capacity of twice") as raised:
        full(torch.arange(5000), torch.tensor([0, 5000]))
    assert not any(name in str(raised.value) for name in ("num_embeddings", "max_embeddings", "cancel()"))


# --- a storage in Python --------------------------------------------------------------------------


class DictStorage(Storage):
    """Keeps rows in a dict, as tensors on the device on which they come; ``failure`` is raised by the next find."""

    failure = None

    def __init__(self, options, optimizer):
        self.rows, self.threads, self.devices = {}, set(), set()
        self.dim = max(o.dim for o in options)
        self.width = self.dim + max(optimizer.get_state_dim(o.dim) for o in options)

    def _called(self, *tensors):
        self.threads.add(threading.get_ident())
        self.devices |= {t.device.type for t in tensors}

    def find(self, unique_keys, table_ids, copy_mode, lfu_accumulated_frequency=None):
        self._called(unique_keys, table_ids)
        if self.failure is not None:
            raise self.failure
        names = list(zip(table_ids.tolist(), unique_keys.tolist()))
        width = self.dim if copy_mode == CopyMode.EMBEDDING else self.width
        values = torch.zeros(len(names), width, device=unique_keys.device)
        found = torch.tensor([n in self.rows for n in names], device=unique_keys.device)
        if bool(found.any()):
            values[found] = torch.stack([self.rows[n][:width] for n in names if n in self.rows])
        missing = found.logical_not().nonzero().flatten()
        return (len(missing), unique_keys[missing], missing, table_ids[missing], None, found, None, values)

    def insert(self, keys, table_ids, values, scores=None, preserve_existing=False):
        self._called(keys, table_ids, values, scores)
        for i, name in enumerate(zip(table_ids.tolist(), keys.tolist())):
            self.rows[name] = values[i].clone()

    def export_keys_values(self, device, batch_size=65536, table_id=0):
        return iter(())


def over_storage(device="cpu"):
    each = [
        options(dim=DIM, max_capacity=1 << 14, caching=True, local_hbm_for_values=1024, external_storage=DictStorage)
        for _ in TABLES
    ]
    return dynamicemb.BatchedDynamicEmbeddingTablesV2(
        each,
        list(TABLES),
        pooling_mode=DynamicEmbPoolingMode.NONE,
        optimizer=EmbOptimType.EXACT_ADAGRAD,
        learning_rate=1.0,
        device=device,
    )


def trained(tables, device, steps=12):
    for step in range(steps):
        keys = (torch.arange(600) * 7 + step % 3 * 1500).to(device)
        tables(keys, torch.arange(601, device=device)).sum().backward()
    tables.flush()
    out = tables.eval()(keys, torch.arange(601, device=device))
    tables.train()
    return out


def check_storage(device):
    tables = over_storage(device)
    out = trained(tables, device)
    # Each row was trained in four steps with gradients of 1: in step i Adagrad subtracts 1 / sqrt(i).
    keys = torch.arange(600) * 7 + 11 % 3 * 1500
    expected = (keys % 100_000).float() - sum(i**-0.5 for i in range(1, 5))
    torch.testing.assert_close(out.cpu(), expected.repeat(DIM, 1).T)
    store = tables.tables
    assert len(store.rows) > 1000
    assert store.threads == {threading.get_ident()} and store.devices == {torch.device(device).type}


def test_a_storage_is_called_on_the_thread_of_the_forward():
    check_storage("cpu")


def check_failure(device):
    tables = over_storage(device)
    trained(tables, device, 1)
    keys, offsets = torch.arange(50_000, 50_004, device=device), torch.arange(5, device=device)
    tables.tables.failure = ConnectionError("the database is away")
    with pytest.raises(FileError, match=r"find of 2 rows, table t[01], failed: ConnectionError: the data") as raised:
        tables(keys, offsets)
    assert raised.value.__cause__ is tables.tables.failure
    tables.tables.failure = None
    tables(keys, offsets).sum().backward()
    tables.tables.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        tables(keys + 100, offsets)


def test_an_error_of_a_storage_is_the_cause_of_the_exception():
    check_failure("cpu")


def test_garbage_collection_destroys_the_tables_before_their_storage(monkeypatch):
    gc.collect()  # tables of other tests
    destroyed = []

    class Recorded:
        def __getattr__(self, name):
            if name in ("hotbed_storage_destroy", "hotbed_external_destroy"):
                destroyed.append(name)
            return getattr(lib, name)

    monkeypatch.setattr(_storage, "lib", Recorded())
    monkeypatch.setattr(_external, "lib", Recorded())
    for _ in range(3):
        tables = over_storage()
        trained(tables, "cpu", 1)
        tables.itself = tables  # a cycle, in which Python orders finalizers as it likes
        del tables
        gc.collect()
    assert destroyed == ["hotbed_storage_destroy", "hotbed_external_destroy"] * 3


# --- keys and ranks -------------------------------------------------------------------------------


def murmur(key):
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        key = (key ^ key >> 33) * factor % 2**64
    return key ^ key >> 33


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_owners_of_keys_are_those_of_unsigned_arithmetic(world):
    keys = KEYS + [2**63, 2**64 - 1] + [random.getrandbits(64) for _ in range(200)]
    signed = torch.tensor([k - 2**64 if k >= 2**63 else k for k in keys])
    block = 50_000
    expected = {
        "roundrobin": [(k % world, k) for k in keys],
        "hash_roundrobin": [(murmur(k) % world, k) for k in keys],
        "continuous": [(k // block, k % block) if k < block * world else (k % world, k // world) for k in keys],
    }
    for dist_type, pairs in expected.items():
        ranks, stored = ranks_of_keys(signed, dist_type, world, block)
        assert list(zip(ranks.tolist(), [k % 2**64 for k in stored.tolist()])) == pairs, dist_type
    with pytest.raises(UnsupportedError, match="continuous"):
        ranks_of_keys(signed, "continuous", world)


# --- sharded by TorchRec --------------------------------------------------------------------------


def batch(rank, step):
    """Keys of both features, a rank's samples; rank 0's last batch is empty."""
    import torchrec

    chosen = random.Random(100 * rank + step)
    lengths = [0 if (rank, step) == (0, STEPS - 1) else chosen.randint(0, 3) for _ in range(len(TABLES) * SAMPLES)]
    keys = [chosen.choice(KEYS) for _ in range(sum(lengths))]
    return torchrec.KeyedJaggedTensor(
        ["f0", "f1"], torch.tensor(keys, dtype=torch.int64), lengths=torch.tensor(lengths)
    )


def sharded(pooling, dist_type, dedup):
    """Give a sharded model of bags, or of rows without pooling; t1 is a table of TorchRec's."""
    import torchrec
    from torchrec.distributed.model_parallel import DistributedModelParallel

    from hotbed.compat.dynamicemb.get_planner import get_planner
    from hotbed.compat.dynamicemb.shard import DynamicEmbeddingBagCollectionSharder, DynamicEmbeddingCollectionSharder

    kind = torchrec.EmbeddingBagConfig if pooling else torchrec.EmbeddingConfig
    more = {"pooling": torchrec.PoolingType[pooling]} if pooling else {}
    configs = [
        kind(name=t, embedding_dim=DIM, num_embeddings=512, feature_names=[f"f{i}"], **more)
        for i, t in enumerate(TABLES)
    ]
    each = options(
        global_hbm_for_values=1 << 20,
        dist_type=dist_type,
        score_strategy=DynamicEmbScoreStrategy.LFU,
        bucket_capacity=16,
    )
    params = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 1.0}
    if pooling:
        model = torchrec.EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        sharder = DynamicEmbeddingBagCollectionSharder(fused_params=params)
    else:
        model = torchrec.EmbeddingCollection(tables=configs, device=torch.device("meta"))
        sharder = DynamicEmbeddingCollectionSharder(fused_params=params, use_index_dedup=dedup)
    device = torch.device("cpu")
    planner = get_planner(configs, set(), {"t0": each}, device)
    plan = planner.collective_plan(model, [sharder])
    return DistributedModelParallel(model, device=device, sharders=[sharder], plan=plan)


def train(rank, ranks, pooling, dist_type, dedup):
    """Train a model, comparing its outputs with rows kept in a dictionary."""
    model = sharded(pooling, dist_type, dedup)
    kept, counts = {}, {}
    for step in range(STEPS):
        everyone = [batch(r, step) for r in range(ranks)]
        for kjt in everyone:  # TorchRec's table has 512 rows
            kjt.values()[kjt.offsets()[SAMPLES] :] %= 512
        mine = everyone[rank]
        out = model(mine)
        keys, lengths = mine["f0"].values().tolist(), mine["f0"].lengths()
        expected = torch.tensor([float(kept.get(k, k % 100_000)) for k in keys])
        if pooling:
            expected = torch.segment_reduce(expected, "sum", lengths=lengths)
            if pooling == "MEAN":
                expected /= lengths.clamp(min=1)
            got, loss = out["f0"], out.values().sum()
        else:
            got, loss = out["f0"].values(), torch.cat([v.values() for v in out.values()]).sum()
        torch.testing.assert_close(got.detach(), expected.repeat(DIM, 1).T)
        (loss * ranks).backward()
        for kjt in everyone:
            of_keys = kjt["f0"].lengths().repeat_interleave(kjt["f0"].lengths()).tolist()
            for key, length in zip(kjt["f0"].values().tolist(), of_keys):
                kept[key] = kept.get(key, key % 100_000) - (1 / length if pooling == "MEAN" else 1)
                counts[key] = counts.get(key, 0) + 1
    return model, kept, counts


def check_rank(rank, ranks, folder):
    """Train each kind of model, and dump the last one."""
    import torch.distributed as dist

    dynamicemb.install()
    from dynamicemb.dump_load import get_dynamic_emb_module

    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    for pooling, dist_type, dedup in (
        ("SUM", "roundrobin", False),
        ("MEAN", "roundrobin", False),
        (None, "roundrobin", True),
        (None, "hash_roundrobin", False),
    ):
        model, kept, counts = train(rank, ranks, pooling, dist_type, dedup)
        (tables,) = get_dynamic_emb_module(model)
        mine = {key for key in kept if int(ranks_of_keys(torch.tensor([key]), dist_type, ranks)[0]) == rank}
        found = {
            int(k): (v[0].item(), int(s))
            for keys, values, _, scores in tables.tables.export_keys_values(torch.device("cpu"))
            for k, v, s in zip(keys, values, scores)
        }
        assert {key: count for key, (_, count) in found.items()} == {key: counts[key] for key in mine}
        for key in mine:  # TorchRec's means are not exact
            assert found[key][0] == (pytest.approx(kept[key], abs=0.05) if pooling == "MEAN" else kept[key])
        model.fused_optimizer.param_groups[0]["lr"] = 0.5
        model.fused_optimizer.step()
        assert tables.optimizer.group["lr"] == 0.5
        with pytest.warns(UserWarning, match=r"no rows of the hash tables \['t0'"):
            state = model.state_dict()
        assert all(state[name].numel() == 0 for name in state if ".t0." in name)
        with pytest.warns(UserWarning, match=r"no rows of the hash tables \['t0'"):
            model.load_state_dict(state)
    dynamicemb.DynamicEmbDump(os.path.join(folder, "dump"), model)
    dist.destroy_process_group()


@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="without TorchRec")
def test_sharded_models_train_as_a_dictionary(tmp_path):
    done = subprocess.run([sys.executable, "-W", "ignore", __file__, "2", str(tmp_path)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    loaded = dynamicemb.BatchedDynamicEmbeddingTablesV2(
        [options(dim=DIM, max_capacity=1024, dist_type="hash_roundrobin", score_strategy=DynamicEmbScoreStrategy.LFU)],
        ["t0"],
        device="cpu",
    )
    dynamicemb.DynamicEmbLoad(str(tmp_path / "dump"), loaded)
    assert set(rows(loaded, "t0")) <= set(KEYS) and len(rows(loaded, "t0")) > len(KEYS) // 2


def main(ranks, folder):
    children = []
    torch.set_num_threads(1)
    import torchrec.distributed.model_parallel  # noqa: F401  once for all ranks

    for rank in range(ranks):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                check_rank(rank, ranks, folder)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(int(any(statuses)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])


def test_a_layer_is_saved_with_its_model(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tables, self.top = module(), torch.nn.Linear(DIM, 1)

    first, second = Model(), Model()
    try:
        checkpoint.save(tmp_path / "probe", first)
    except UnsupportedError:
        pytest.skip("the library was built without HDF5")
    keys = torch.tensor(KEYS)
    first.tables(keys, torch.arange(len(KEYS) + 1)).sum().backward()
    checkpoint.save(tmp_path / "c", first, step=3)
    loaded = checkpoint.load(tmp_path / "c", second)
    assert loaded.step == 3 and loaded.tables[0].loaded == len(KEYS)
    assert rows(second.tables) == rows(first.tables) != {}
    assert torch.equal(first.top.weight, second.top.weight)
