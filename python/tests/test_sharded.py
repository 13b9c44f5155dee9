"""Collections of several ranks: as threads of this process, under torchrun, and processes that share a store.

Run as a program, this file is one rank: ``test_sharded.py ROLE FOLDER``.
"""

import gc
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings

import pytest
import torch

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint

ROWS, DIM, SAMPLES, STEPS, RANKS = 41, 8, 6, 4, 2
MOST = ht.ShardedOptions(max_batch_size=2 * SAMPLES, max_keys=200, capacity=189, plan=ht.Plan.FIXED)


def bags(seed, rows=ROWS, features=("f", "g", "h"), weighted=False):
    """The batch of one rank and step; the features' bags have up to 4 keys."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (len(features) * SAMPLES,), generator=random)
    values = torch.randint(0, rows, (int(lengths.sum()),), generator=random)
    weights = torch.rand(values.shape[0], generator=random) if weighted else None
    return ht.KeyedJaggedTensor(list(features), values, weights, lengths=lengths)


def together(batches):
    """The batches of all ranks as one."""
    keys, lengths, values, weights = batches[0].keys(), [], [], []
    for key in keys:
        for kjt in batches:
            lengths.append(kjt[key].lengths())
            values.append(kjt[key].values())
            weights.append(kjt[key].weights_or_none())
    weights = None if weights[0] is None else torch.cat(weights)
    return ht.KeyedJaggedTensor(keys, torch.cat(values), weights, lengths=torch.cat(lengths))


def tables(pooling=ht.PoolingType.SUM):
    return [
        ht.EmbeddingBagConfig(ROWS, DIM, "item", feature_names=["f", "g"], pooling=pooling),
        ht.EmbeddingBagConfig(ROWS, DIM, "user", feature_names=["h"], use_virtual_table=True, pooling=pooling),
    ]


def pooled(comm=None, sharded=MOST, configs=None, **more):
    more.setdefault("optimizer", ht.Adam(lr=0.1))
    sharded = None if comm is None else sharded
    return ht.EmbeddingBagCollection(configs or tables(), seed=3, comm=comm, sharded=sharded, **more)


def on_threads(body, n=RANKS, **options):
    """Call ``body(comm)`` on a thread for each rank; give the results, and raise the first rank's exception."""
    comms, results = hotbed.Comm.threads(n, **options), [None] * n

    def run(rank):
        try:
            with comms[rank]:
                results[rank] = body(comms[rank])
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def well(results):
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def all_rows(ebc):
    return {name: dict(zip(ebc.keys(name).tolist(), ebc.rows(name, ebc.keys(name)))) for name in ("item", "user")}


def merged(results):
    """One dict of rows of all ranks; no key may be on two."""
    found = {}
    for result in results:
        for name, rows in result.items():
            table = found.setdefault(name, {})
            assert not set(table) & set(rows)
            table.update(rows)
    return found


def check_rows(found, expected):
    for name in ("item", "user"):
        assert set(found[name]) == set(expected[name])
        for key, row in expected[name].items():
            torch.testing.assert_close(found[name][key], row, rtol=1e-4, atol=1e-6)


def train(ebc, rank, world, steps=STEPS, weighted=False):
    """Train on this rank's batches, or on the batches of all ranks if ``rank`` is None; give the losses."""
    losses = []
    for step in range(steps):
        batches = [bags(100 * step + r, weighted=weighted) for r in range(world)]
        kjt = together(batches) if rank is None else batches[rank]
        loss = ebc(kjt.to(ebc.device)).values().square().sum()
        (loss if rank is None else loss * world).backward()  # gradients of ranks are averaged
        losses.append(float(loss.detach()))
    return losses


# --- the same as one rank ---------------------------------------------------------------------------

PLANS = {
    "auto": {},
    "fixed": {"plan": ht.Plan.FIXED},
    "two_phase": {"plan": ht.Plan.TWO_PHASE},
    "one_sided": {"plan": ht.Plan.ONE_SIDED},
    "replayed": {"capacity": 3},
}


@pytest.mark.parametrize("pooling", [ht.PoolingType.SUM, ht.PoolingType.MEAN])
@pytest.mark.parametrize("plan", PLANS)
def test_ranks_train_as_one(plan, pooling):
    sharded = ht.ShardedOptions(2 * SAMPLES, 200, **PLANS[plan])

    def body(comm):
        ebc = pooled(comm, sharded, tables(pooling))
        losses = train(ebc, comm.rank, comm.size)
        if plan == "replayed":
            assert ebc.overflowed()
        return losses, all_rows(ebc)

    one = pooled(configs=tables(pooling))
    expected = train(one, None, RANKS)
    results = well(on_threads(body))
    for step, loss in enumerate(expected):
        assert sum(r[0][step] for r in results) == pytest.approx(loss, rel=1e-5)
    check_rows(merged([r[1] for r in results]), all_rows(one))


@pytest.mark.parametrize(
    "optimizer", [ht.SGD(lr=0.1), ht.SGD(lr=0.1, max_gradient=1e-3), ht.Adagrad(lr=0.1), ht.RowWiseAdagrad(lr=0.1)]
)
def test_other_optimizers_and_weights(optimizer):
    def body(comm):
        ebc = pooled(comm, optimizer=optimizer, is_weighted=True)
        train(ebc, comm.rank, comm.size, weighted=True)
        return all_rows(ebc)

    one = pooled(optimizer=optimizer, is_weighted=True)
    train(one, None, 3, weighted=True)
    check_rows(merged(well(on_threads(body, 3))), all_rows(one))


# --- what travels for pooled tables -------------------------------------------------------------------

SENT = {"item": ht.PooledExchange.ROWS, "user": ht.PooledExchange.ROWS, "tag": ht.PooledExchange.SUMS}
NAMES = ("item", "user", "tag", "half")


def four(pooling=ht.PoolingType.SUM):
    """Tables of two kinds, dims and element types, for the features f, g, h and i."""
    more = {"pooling": pooling, "use_virtual_table": True}
    return [
        *tables(pooling),
        ht.EmbeddingBagConfig(ROWS, 4, "tag", feature_names=["f"], **more),
        ht.EmbeddingBagConfig(ROWS, 12, "half", feature_names=["g"], data_type=torch.float16, **more),
    ]


def own_bags(rank, world, step, weighted):
    """Bags whose keys no other rank has."""
    kjt = bags(100 * step + rank, rows=ROWS // world, weighted=weighted)
    return ht.KeyedJaggedTensor(kjt.keys(), kjt.values() * world + rank, kjt.weights_or_none(), lengths=kjt.lengths())


@pytest.mark.filterwarnings("ignore:.*rows are rounded")
@pytest.mark.parametrize("plan", [ht.Plan.FIXED, ht.Plan.TWO_PHASE, ht.Plan.ONE_SIDED])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pooling", [ht.PoolingType.SUM, ht.PoolingType.MEAN])
@pytest.mark.parametrize(
    "exchanges", [ht.PooledExchange.ROWS, ht.PooledExchange.SUMS, SENT], ids=["rows", "sums", "mixed"]
)
def test_bags_by_rows_have_the_bytes_of_one_process(exchanges, pooling, weighted, plan):
    def run(ebc, rank):
        found = []
        for step in range(STEPS):
            batches = [own_bags(r, RANKS, step, weighted) for r in range(RANKS)]
            out = ebc(together(batches) if rank is None else batches[rank]).values()
            (out.square().sum() * (1 if rank is None else RANKS)).backward()  # gradients of ranks are averaged
            found.append(out.detach())
        return found

    def body(comm):
        sharded = ht.ShardedOptions(plan=plan, exchanges=exchanges)
        ebc = pooled(comm, sharded, four(pooling), is_weighted=weighted)
        outputs = run(ebc, comm.rank)
        return outputs, {n: dict(zip(ebc.keys(n).tolist(), ebc.rows(n, ebc.keys(n)))) for n in NAMES}, str(ebc)

    one = pooled(configs=four(pooling), is_weighted=weighted)
    expected = run(one, None)
    results = well(on_threads(body))
    by_rows = exchanges is ht.PooledExchange.ROWS
    tolerance = {"rtol": 0, "atol": 0} if by_rows else {"rtol": 2e-3, "atol": 1e-4}
    for step, whole in enumerate(expected):
        outputs = torch.cat([result[0][step] for result in results])
        torch.testing.assert_close(outputs, whole, **tolerance)
    found = merged([result[1] for result in results])
    for name in NAMES:
        assert set(found[name]) == set(one.keys(name).tolist())
        rows = torch.stack([found[name][key] for key in one.keys(name).tolist()])
        torch.testing.assert_close(rows, one.rows(name, one.keys(name)), **tolerance)
    sent = exchanges if isinstance(exchanges, dict) else dict.fromkeys(NAMES, exchanges)
    for name, exchange in sent.items():
        assert re.search(rf"{name}=\(41, \d+\)( hash)? by {exchange.name.lower()}\b", results[0][2])


def test_the_rule_chooses_what_travels_from_the_options():
    def chosen(comm, **options):
        features = {"single": [f"f{i}" for i in range(8)], "bags": ["bags"], "small": ["small"]}
        tables = [
            ht.EmbeddingBagConfig(rows, 256, name, feature_names=features[name], use_virtual_table=True)
            for name, rows in (("single", 10**5), ("bags", 10**5), ("small", 10))
        ]
        ebc = ht.EmbeddingBagCollection(tables, comm=comm, sharded=ht.ShardedOptions(**options))
        return "".join(storage.exchanges[t].name[0] for storage in ebc.storages for t in range(3))

    long_bags = {"bags": 100, "small": 100}

    def body(comm):
        return [
            chosen(comm),
            chosen(comm, pooling_factors=long_bags),
            chosen(comm, pooling_factors=long_bags, max_batch_size=64, max_keys=64 * 208),  # one exchange is as good
            chosen(comm, pooling_factors=long_bags, plan=ht.Plan.FIXED),
            chosen(comm, exchanges=ht.PooledExchange.SUMS),
            chosen(comm, exchanges={"single": ht.PooledExchange.SUMS, "bags": ht.PooledExchange.ROWS}),
        ]

    for found in well(on_threads(body)):
        assert found == ["RRR", "RSR", "SSS", "SSS", "SSS", "SRR"]
    (alone,) = well(on_threads(chosen, n=1))
    assert alone == "AAA"  # nothing travels


def test_bags_that_are_longer_than_expected_are_a_warning():
    def body(comm, **options):
        item = ht.EmbeddingBagConfig(ROWS, DIM, "item", feature_names=["f"])
        kjt = ht.KeyedJaggedTensor(["f"], torch.arange(40), lengths=torch.full((4,), 10))
        sharded = ht.ShardedOptions(plan=ht.Plan.TWO_PHASE, **options)
        ebc = pooled(comm, sharded, [item])
        with torch.no_grad():
            ebc(kjt)

    def known(comm):
        body(comm, pooling_factors={"f": 10})
        body(comm, exchanges=ht.PooledExchange.ROWS)

    with pytest.warns(UserWarning, match=r"tables \['item'\]: .* have 10\.0 keys on average; give pooling_factors"):
        well(on_threads(body))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        well(on_threads(known))


def test_a_collection_with_rows_and_sums_is_saved_as_any_other(tmp_path, needs_hdf5):
    mixed = ht.ShardedOptions(exchanges={"item": ht.PooledExchange.ROWS, "other": ht.PooledExchange.SUMS})

    def configs():  # of one routing rule
        return [
            ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=[f]) for name, f in (("item", "f"), ("other", "g"))
        ]

    def rows(ebc):
        return {n: dict(zip(ebc.keys(n).tolist(), ebc.weight(n).clone())) for n in ("item", "other")}

    def save(comm):
        ebc = pooled(comm, mixed, configs())
        train(ebc, comm.rank, comm.size)
        checkpoint.save(tmp_path / "ck", ebc)
        train(ebc, comm.rank, comm.size)
        trained = rows(ebc)
        again = pooled(comm, ht.ShardedOptions(exchanges=ht.PooledExchange.SUMS), configs())
        checkpoint.load(tmp_path / "ck", again)
        train(again, comm.rank, comm.size)
        other = pooled(comm, mixed, configs())
        other.load_state_dict(ebc.state_dict())
        other.fused_optimizer.load_state_dict(ebc.fused_optimizer.state_dict())
        assert other.fused_optimizer.steps == 2 * STEPS
        train(ebc, comm.rank, comm.size, steps=1)
        train(other, comm.rank, comm.size, steps=1)
        for name in ("item", "other"):
            assert torch.equal(ebc.weight(name), other.weight(name))
        return trained, rows(again)

    results = well(on_threads(save))
    trained, again = (merged([result[i] for result in results]) for i in range(2))
    one = pooled(configs=configs())
    checkpoint.load(tmp_path / "ck", one)
    train(one, None, RANKS)
    for name in ("item", "other"):
        for key in range(ROWS):
            torch.testing.assert_close(trained[name][key], one.weight(name)[key], rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(again[name][key], one.weight(name)[key], rtol=1e-4, atol=1e-6)


# --- sequences, sizes and prefetches ----------------------------------------------------------------


@pytest.mark.parametrize("dedup", list(ht.Dedup))
def test_rows_of_keys(dedup):
    configs = [
        ht.EmbeddingConfig(ROWS, DIM, "item", feature_names=["f", "g"]),
        ht.EmbeddingConfig(ROWS, DIM, "user", feature_names=["h"], use_virtual_table=True),
    ]
    sharded = ht.ShardedOptions(2 * SAMPLES, 200, dedup=dedup)

    def run(rank, comm=None):
        given = {} if comm is None else {"comm": comm, "sharded": sharded}
        ec = ht.EmbeddingCollection(configs, optimizer=ht.Adam(lr=0.1), seed=3, **given)
        for step in range(STEPS):
            batches = [bags(10 * step + r) for r in range(RANKS)]
            found = ec(together(batches) if rank is None else batches[rank])
            assert list(found) == ["f", "g", "h"]
            loss = torch.cat([found[f].values() for f in "fgh"]).square().sum()
            (loss if rank is None else loss * RANKS).backward()
        return all_rows(ec)

    check_rows(merged(well(on_threads(lambda comm: run(comm.rank, comm)))), run(None))


def test_gradients_are_scaled_and_ranks_may_have_no_samples():
    def body(comm):
        sharded = ht.ShardedOptions(SAMPLES, 200, gradient_scale=0.5)
        ebc = pooled(comm, sharded, optimizer=ht.SGD(lr=1.0))
        before, none = ebc.rows("item", torch.arange(ROWS)), torch.zeros(0, dtype=torch.int64)
        kjt = ht.KeyedJaggedTensor(list("fgh"), none, lengths=none)
        if comm.rank == 0:
            kjt = ht.KeyedJaggedTensor(list("fgh"), torch.tensor([40]), lengths=torch.tensor([1, 0, 0]))
        out = ebc(kjt).values()
        assert out.shape == (1 - comm.rank, 3 * DIM)
        out.sum().backward()
        return before - ebc.rows("item", torch.arange(ROWS))

    changes = sum(well(on_threads(body)))
    torch.testing.assert_close(changes[40], torch.full((DIM,), 0.25))  # half of the ranks' mean
    assert torch.equal(changes[:40], torch.zeros(40, DIM))


def test_prefetch_and_evaluation():
    def run(comm, ahead):
        ebc = pooled(comm, configs=tables()[:1])
        batches = [bags(10 * step + comm.rank).permute([0, 1]) for step in range(STEPS)]
        for kjt in batches:
            kjt.offsets()
        for i, kjt in enumerate(batches):
            if ahead and i == 0:
                ebc.prefetch(kjt)
            out = ebc(kjt).values()
            if ahead and i + 1 < len(batches):
                ebc.prefetch(batches[i + 1])
            out.square().sum().backward()
            with torch.no_grad():
                before = ebc.weight("item").clone()
                ebc(kjt)
                assert torch.equal(before, ebc.weight("item"))
        return ebc.weight("item").clone()

    plain, ahead = (well(on_threads(lambda comm, a=a: run(comm, a))) for a in (False, True))
    for a, b in zip(plain, ahead):
        assert torch.equal(a, b)


def test_evaluation_adds_no_keys():
    def body(comm):
        ebc = pooled(comm)
        with torch.no_grad():
            assert torch.equal(ebc(bags(comm.rank)).values()[:, 2 * DIM :], torch.zeros(SAMPLES, DIM))
        return len(ebc.keys("user"))

    assert well(on_threads(body)) == [0, 0]


def test_reported_overflows_read_as_zeros():
    def body(comm):
        sharded = ht.ShardedOptions(SAMPLES, 200, capacity=2, overflow=ht.Overflow.REPORT)
        ebc = pooled(comm, sharded)
        with pytest.raises(hotbed.StateError, match="no forward"):
            ebc.overflowed()
        out = ebc(bags(comm.rank)).values()
        assert ebc.overflowed() and not out.any()
        out.sum().backward()

    well(on_threads(body))


@pytest.mark.parametrize("plan", list(ht.Plan))
def test_sizes_follow_the_batches(plan):
    def body(comm):
        sharded, losses = ht.ShardedOptions(plan=plan), []
        ebc = pooled(comm, sharded)
        for step, batches in enumerate(every):
            kjt = batches[comm.rank]
            loss = ebc(kjt).values().square().sum()
            (loss * comm.size).backward()
            losses.append(float(loss.detach()))
            with torch.no_grad():
                ebc(together(every[step]))  # twice as large
        chosen = {ht.Plan.AUTO: "one-sided", ht.Plan.TWO_PHASE: "two-phase"}.get(
            plan, plan.name.lower().replace("_", "-")
        )
        assert all(f"plan {chosen}" in storage.describe() for storage in ebc.storages)
        return losses, all_rows(ebc)

    every = []
    for samples in [3, 3, 9, 2, 30]:  # of rank 0; the others have fewer
        lengths = [torch.randint(0, 5, (3 * (samples if rank == 0 else 2),)) for rank in range(RANKS)]
        every.append(
            [ht.KeyedJaggedTensor(["f", "g", "h"], torch.randint(0, ROWS, (int(n.sum()),)), lengths=n) for n in lengths]
        )
    one = pooled()
    expected = []
    for batches in every:
        loss = one(together(batches)).values().square().sum()
        loss.backward()
        expected.append(float(loss.detach()))
    results = well(on_threads(body))
    for step, loss in enumerate(expected):
        assert sum(losses[step] for losses, _ in results) == pytest.approx(loss, rel=1e-5)
    check_rows(merged([rows for _, rows in results]), all_rows(one))


@pytest.mark.parametrize("plan", [ht.Plan.FIXED, ht.Plan.ONE_SIDED, ht.Plan.TWO_PHASE])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("large", [(True, True), (True, False), (False, True)])
def test_prefetched_batches_that_do_not_fit_are_looked_up_in_order(plan, waiting, large):
    few = ht.KeyedJaggedTensor(["f", "g", "h"], torch.tensor([1, 2, 3]), lengths=torch.ones(3, dtype=torch.int64))
    many = [[bags(10 * step + rank) if large[step] else few for rank in range(RANKS)] for step in range(2)]

    def body(comm):
        ebc = pooled(comm, ht.ShardedOptions(plan=plan))
        losses, outputs = [], []

        def learn(out):
            loss = out.values().square().sum()
            (loss * RANKS).backward()
            losses.append(float(loss.detach()))

        learn(ebc(few))  # messages have room for little more than such a batch
        held = ebc(few) if waiting else None  # its context is in use while messages should grow
        ebc.prefetch(many[0][comm.rank])
        ebc.prefetch(many[1][comm.rank])
        if held is not None:
            learn(held)
        for step in range(2):
            out = ebc(many[step][comm.rank])
            outputs.append(out.values().detach().clone())
            learn(out)
        return losses, all_rows(ebc), outputs, ebc.exchange_stats()["overflows"]

    one = pooled()
    expected = []
    for each in [[few] * RANKS] * (2 if waiting else 1) + many:
        loss = one(together(each)).values().square().sum()
        loss.backward()
        expected.append(float(loss.detach()))
    results = well(on_threads(body))
    for step, loss in enumerate(expected):
        assert sum(r[0][step] for r in results) == pytest.approx(loss, rel=1e-5)
    check_rows(merged([r[1] for r in results]), all_rows(one))
    assert all(bool(out.any()) for r in results for out in r[2])
    assert all((r[3] > 0) == (plan is not ht.Plan.TWO_PHASE) for r in results)


def test_sizes_that_cannot_follow():
    def body(comm):
        ebc = pooled(comm, ht.ShardedOptions(max_keys=5))
        with pytest.raises(hotbed.ArgumentError, match="max_keys=5"):
            ebc(bags(comm.rank))
        assert comm.failure() is None
        ebc = pooled(comm, ht.ShardedOptions())
        waits = ebc(bags(comm.rank)).values()
        with pytest.raises(hotbed.StateError, match="waits for its backward"):
            ebc(together([bags(s) for s in range(6)]))
        waits.sum().backward()

    well(on_threads(body))
    with pytest.raises(hotbed.ArgumentError, match=r"cannot follow the batches with Overflow\.REPORT"):
        ht.ShardedOptions(overflow=ht.Overflow.REPORT)


def test_sizes_do_not_follow_in_a_graph(monkeypatch):
    def body(comm):
        ebc = pooled(comm, ht.ShardedOptions())
        train(ebc, comm.rank, comm.size)
        for storage in ebc.storages:
            monkeypatch.setattr(storage, "_captures", lambda: True)
        with pytest.raises(hotbed.StateError, match="graph cannot follow the sizes of batches: give max_batch_size"):
            ebc(bags(comm.rank))

    well(on_threads(body))


def test_rows_of_a_static_table_are_dealt_in_turn():
    sharded = ht.ShardedOptions(2 * SAMPLES, 200, routes={"item": ht.Route.ROUND_ROBIN})

    def body(comm):
        ebc = pooled(comm, sharded)
        losses = train(ebc, comm.rank, comm.size)
        mine = torch.arange(comm.rank, ROWS, comm.size)
        assert torch.equal(ebc.keys("item"), mine) and torch.equal(ebc.rows("item", mine), ebc.weight("item"))
        return losses, all_rows(ebc)

    one = pooled()
    expected = train(one, None, RANKS)
    results = well(on_threads(body))
    for step, loss in enumerate(expected):
        assert sum(losses[step] for losses, _ in results) == pytest.approx(loss, rel=1e-5)
    check_rows(merged([rows for _, rows in results]), all_rows(one))


def test_bytes_and_overflows_are_counted():
    def body(comm):
        ebc = pooled(comm, ht.ShardedOptions(SAMPLES, 200, capacity=200))
        train(ebc, comm.rank, comm.size, steps=2)
        return ebc.exchange_stats()

    for stats in well(on_threads(body)):
        assert stats["batches"] == 4 and stats["overflows"] == 0  # two poolings or rules, two steps
        assert 0 < stats["rows_sent"] <= 2 * SAMPLES * 3 * DIM * 4  # bags with a key on the other rank
        assert stats["gradients_sent"] == stats["rows_received"]
        assert stats["gradients_received"] == stats["rows_sent"] and stats["keys_sent"] > 0
    with pytest.raises(hotbed.StateError, match="without comm="):
        pooled().exchange_stats()


@pytest.mark.parametrize(
    "overflow, effect", [(ht.Overflow.REPLAY, "sent again"), (ht.Overflow.REPORT, "read as zeros")]
)
def test_an_overflow_that_repeats_is_a_warning(overflow, effect):
    def body(comm):
        ebc = pooled(comm, ht.ShardedOptions(SAMPLES, 200, capacity=2, overflow=overflow))
        for step in range(8):
            ebc(bags(step)).values().sum().backward()
            ebc.exchange_stats()  # waits: a warning is about batches that have arrived
        return ebc.exchange_stats()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for stats in well(on_threads(body)):
            assert stats["overflows"] == stats["batches"] == 16
    texts = [str(w.message) for w in caught if "batches in a row" in str(w.message)]
    assert len(texts) == 2 * RANKS  # of each storage
    assert all(effect in text and "raise capacity" in text for text in texts)


# --- state dicts and checkpoints --------------------------------------------------------------------


@pytest.mark.parametrize("route, warned", [(ht.Route.CONTINUOUS, RANKS), (ht.Route.ROUND_ROBIN, 0)])
def test_a_rank_that_has_most_keys_is_a_warning(route, warned):
    keys = torch.arange(6000)  # of 20,000: the frequent rows are the first

    def body(comm):
        config = ht.EmbeddingBagConfig(20000, DIM, "item", feature_names=["f"])
        ebc = pooled(comm, ht.ShardedOptions(routes={"item": route}), [config])
        for _ in range(2):
            ebc(ht.KeyedJaggedTensor(["f"], keys, lengths=torch.ones_like(keys)))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        well(on_threads(body))
    texts = [str(w.message) for w in caught if "distinct keys of a batch" in str(w.message)]
    assert len(texts) == warned
    assert all("of 6000 distinct keys of a batch, 6000 belong to rank 0 of 2" in text for text in texts)


@pytest.mark.parametrize("call", ["save", "async_save", "load"])
def test_a_bad_argument_on_one_rank_is_an_error_on_all(tmp_path, call):
    def body(comm):
        ebc, bad = pooled(comm), comm.rank == 1
        if call == "load":
            checkpoint.save(tmp_path / "c", ebc)
        try:  # a rank that leaves its communicator by an exception would tell the others
            if call == "load":
                return checkpoint.load(tmp_path / "c", ebc, "one path" if bad else [])
            return getattr(checkpoint, call)(tmp_path / "c", ebc, extra="text" if bad else b"")
        except hotbed.HotbedError as error:
            return error

    first, second = on_threads(body)
    text = "increments: 'one path'" if call == "load" else "extra: 'text' is not bytes"
    assert isinstance(second, hotbed.ArgumentError) and text in str(second)
    assert isinstance(first, hotbed.CommError) and text in str(first)


def test_a_state_dict_has_all_rows_where_ranks_have_no_process_group():
    one = pooled()
    train(one, None, RANKS)
    whole, states = one.state_dict(), one.fused_optimizer.state_dict()

    def body(comm):
        ebc, again = pooled(comm, optimizer=ht.Adam(lr=0.1)), pooled(comm)
        ebc.load_state_dict(whole)  # each rank takes its rows
        ebc.fused_optimizer.load_state_dict(states)
        again.load_state_dict(ebc.state_dict())
        again.fused_optimizer.load_state_dict(ebc.fused_optimizer.state_dict())
        with pytest.raises(RuntimeError, match=f"shape .5, {DIM}., but the table has {ROWS} rows"):
            again.load_state_dict({**whole, "embedding_bags.item.weight": torch.ones(5, DIM)})
        return all_rows(again), again.state_dict(), again.fused_optimizer.state_dict()

    results = well(on_threads(body, 3))
    check_rows(merged([r[0] for r in results]), all_rows(one))
    for _, rows, found in results:
        assert list(rows) == list(whole) and all(torch.equal(rows[name], whole[name]) for name in whole)
        assert found["clocks"] == states["clocks"]
        for table, parts in states["state"].items():
            assert all(torch.equal(found["state"][table][name], part) for name, part in parts.items())


@pytest.mark.parametrize(
    "save",
    [
        lambda ebc, path: ebc.fused_optimizer.state_dict(),
        lambda ebc, path: checkpoint.save(path, ebc),
        lambda ebc, path: checkpoint.async_save(path, ebc).wait(),
    ],
    ids=["state_dict", "save", "async_save"],
)
def test_a_save_compares_the_learning_rates_of_ranks(tmp_path, save):
    def body(comm, apart):
        ebc = pooled(comm)
        for group in ebc.fused_optimizer.param_groups:
            group["lr"] = 0.5 + apart * comm.rank
        save(ebc, tmp_path / f"ckpt{apart}")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        well(on_threads(lambda comm: body(comm, 0)))
    with pytest.warns(
        UserWarning, match=r"different learning rates: rank 0 with 0\.5, rank 1 with 0\.75; set the same"
    ):
        well(on_threads(lambda comm: body(comm, 0.25)))


def test_a_state_dict_of_another_rank_is_refused():
    """Both ranks raise, and their rows stay."""
    parts = [None] * RANKS

    def own(ebc, keys):
        names = ("weight_id", "metadata", "weight")
        values = (keys, torch.ones(len(keys), dtype=torch.int64), ebc.rows("user", keys))
        return {f"embedding_bags.user.{name}": value for name, value in zip(names, values)}

    def save(comm):
        ebc = halves(comm, 20)
        parts[comm.rank] = own(ebc[0], ebc[0].keys("user"))
        assert ebc[0].load_state_dict(parts[comm.rank], strict=False).missing_keys == ["embedding_bags.item.weight"]
        assert torch.equal(ebc[0].keys("user"), parts[comm.rank]["embedding_bags.user.weight_id"])

    def load(comm):
        ebc = halves(comm, 1)[0]
        with pytest.raises(RuntimeError, match=r"weight: \d+ rows of rank 0's state dict belong to other ranks"):
            ebc.load_state_dict(parts[1 - comm.rank], strict=False)
        only = parts[0] if comm.rank == 0 else {}
        with pytest.raises(RuntimeError, match="ranks 0 and 1 load state dicts that differ in the entry"):
            ebc.load_state_dict(only, strict=False)
        wrong = {"embedding_bags.user.weight": torch.ones(1, DIM + 1)} if comm.rank == 1 else {}
        said = "user.weight: not loaded, since rank 1 has an error" if comm.rank == 0 else "weight is shape"
        with pytest.raises(RuntimeError, match=said):
            ebc.load_state_dict({**parts[comm.rank], **wrong}, strict=False)
        states = {"keys": parts[1 - comm.rank]["embedding_bags.user.weight_id"]}
        states.update({name: torch.ones(len(states["keys"]), DIM) for name in ("exp_avg", "exp_avg_sq")})
        whole = ebc.fused_optimizer.state_dict()
        whole["state"]["user"] = states
        with pytest.raises(hotbed.ArgumentError, match="belong to other ranks"):
            ebc.fused_optimizer.load_state_dict(whole)
        return ebc.keys("user").tolist()

    well(on_threads(save))
    assert sorted(well(on_threads(load)), key=len) == [[], [0]]


def halves(comm, keys=0):
    """A static table whose parts have equal shapes, and a hash table with the keys 0 to ``keys``."""
    configs = [
        ht.EmbeddingBagConfig(40, DIM, "item", feature_names=["f"]),
        ht.EmbeddingBagConfig(100, DIM, "user", feature_names=["h"], use_virtual_table=True),
    ]
    ebc = pooled(comm, configs=configs)
    ebc.set_rows("user", torch.arange(keys), torch.ones(keys, DIM))
    return torch.nn.Sequential(ebc)


def test_rows_that_do_not_fit_are_counted_on_each_rank():
    """Threads share the filters of warnings, so one rank sets rows at a time."""
    configs = [
        ht.EmbeddingBagConfig(100, DIM, "user", feature_names=["h"], use_virtual_table=True, evict=ht.Evict.LOWEST)
    ]
    keys = torch.arange(2000)

    def body(comm, rank):
        ebc = pooled(comm, configs=configs)
        if comm.rank == rank:
            mine = int((ebc.storages[0].owners(0, keys) == rank).sum())
            with pytest.warns(UserWarning, match=f"table 'user': \\d+ of {mine} rows fit"):
                ebc.set_rows("user", keys, torch.ones(2000, DIM), fill=True)

    for rank in range(RANKS):
        well(on_threads(lambda comm, rank=rank: body(comm, rank)))


def test_rows_by_key_are_those_of_this_rank():
    def body(comm):
        ebc, keys = pooled(comm), torch.arange(ROWS)
        ebc.set_rows("item", keys, torch.ones(ROWS, DIM))
        ebc.set_rows("user", keys - 20, torch.ones(ROWS, DIM))
        assert ebc.rows("item", keys).sum(1).nonzero().flatten().tolist() == ebc.keys("item").tolist()
        with pytest.raises(hotbed.KeyRangeError, match=f"keys 0 to {ROWS}"):
            ebc.rows("item", torch.tensor([0, ROWS]))
        return ebc.keys("item").tolist(), ebc.keys("user").tolist()

    results = well(on_threads(body, 3))
    assert [key for r in results for key in r[0]] == list(range(ROWS))
    assert sorted(key for r in results for key in r[1]) == list(range(-20, ROWS - 20))


@pytest.fixture(scope="module")
def needs_hdf5(tmp_path_factory):
    try:
        checkpoint.save(tmp_path_factory.mktemp("probe") / "c", pooled())
    except hotbed.UnsupportedError:
        pytest.skip("the library was built without HDF5")


@pytest.mark.parametrize("saving, loading", [(2, 3), (3, 1), (1, 2)])
def test_checkpoints_are_loaded_by_other_numbers_of_ranks(saving, loading, tmp_path, needs_hdf5):
    def save(comm):
        ebc, saved = pooled(comm), checkpoint.Increments()
        train(ebc, comm.rank, comm.size)
        saved.save(tmp_path / "0", ebc, step=1)
        train(ebc, comm.rank, comm.size, 1)
        saved.save(tmp_path / "1", ebc, step=2, extra=b"dense of rank %d" % comm.rank)
        with pytest.raises(hotbed.HotbedError, match="exists"):
            checkpoint.save(tmp_path / "0", ebc)
        return all_rows(ebc)

    def load(comm):
        ebc = pooled(comm)
        with pytest.raises(hotbed.HotbedError, match="no checkpoint"):
            checkpoint.load(tmp_path / "none", ebc)
        loaded = checkpoint.load(tmp_path / "0", ebc, [tmp_path / "1"])
        assert (loaded.step, loaded.extra) == (2, b"dense of rank 0")
        return all_rows(ebc)

    expected = merged(well(on_threads(save, saving)))
    found = merged(well(on_threads(load, loading)))
    for name in expected:
        assert set(found[name]) == set(expected[name])
        assert all(torch.equal(found[name][key], row) for key, row in expected[name].items())


@pytest.mark.filterwarnings("ignore:.*was removed or replaced")
@pytest.mark.parametrize("routes", [1, 2])
def test_ranks_agree_that_an_increment_has_lost_its_chain(routes, tmp_path, needs_hdf5):
    def save(comm):
        ebc, saved = pooled(comm, configs=tables()[:routes]), checkpoint.Increments()
        for name in "0123":
            ebc(bags(comm.rank, features=("f", "g", "h")[: routes + 1])).values().sum().backward()
            if name == "2" and comm.rank == 0:  # before rank 0 joins the save, but maybe after rank 1 has begun it
                shutil.rmtree(tmp_path / "0")
            saved.save(tmp_path / name, ebc)
        return [p[-1] for p in saved.paths]

    assert well(on_threads(save)) == [["2", "3"]] * 2
    checkpoint.load(tmp_path / "2", pooled(hotbed.Comm(), configs=tables()[:routes]), [tmp_path / "3"])


def test_ranks_that_load_different_checkpoints(tmp_path, needs_hdf5):
    """As when each rank looks for the newest one itself, or reads a disk of its own."""

    def body(comm):
        ebc, saved = pooled(comm, configs=tables()[:1]), checkpoint.Increments()
        for i in range(2):
            ebc(bags(comm.rank, features=("f", "g"))).values().sum().backward()
            saved.save(tmp_path / str(i), ebc, step=i)
            checkpoint.save(tmp_path / f"full{i}", ebc, step=i)
        with pytest.raises(hotbed.StateError, match=f"0 and 1 load different .* here it is '.*full{comm.rank}'"):
            checkpoint.load(tmp_path / f"full{comm.rank}", ebc)
        with pytest.raises(hotbed.StateError, match=f"different checkpoints or increments; .* and {comm.rank} incr"):
            checkpoint.load(tmp_path / "0", ebc, [tmp_path / "1"][: comm.rank])
        assert checkpoint.load(tmp_path / "full1", ebc).step == 1  # the communicator goes on

    well(on_threads(body))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("routes", [1, 2])
def test_ranks_that_save_to_different_paths(routes, is_async, tmp_path, needs_hdf5):
    """As when each rank puts its rank or its time into the name."""

    def body(comm):
        ebc, saved = pooled(comm, configs=tables()[:routes]), checkpoint.Increments()
        save = saved.async_save if is_async else saved.save
        with pytest.raises(hotbed.ArgumentError, match=r"rank 1 saves to '.*/c1', rank 0 to '.*/c0'"):
            save(tmp_path / f"c{comm.rank}", ebc)
        with pytest.raises(
            hotbed.FileError, match=r"rank 1 saves to 'here/none/c', whose dir.*, rank 0 to '.*/c'; pass"
        ):
            save(tmp_path / "c" if comm.rank == 0 else "here/none/c", ebc)
        with pytest.raises(hotbed.HotbedError, match=r"step.* 1 .*0|step.* 0 .*1"):
            saving = save(tmp_path / "c", ebc, step=comm.rank)
            saving.wait()
        assert saved.paths == []
        same = tmp_path / "c" if comm.rank == 0 else tmp_path / ".." / tmp_path.name / "c"
        saving = save(same, ebc)  # the communicator goes on
        if is_async:
            saving.wait()
        return len(saved.paths)

    assert well(on_threads(body)) == [1, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_ranks_save_together_while_they_train(tmp_path, needs_hdf5):
    def save(comm):
        ebc, saved = pooled(comm), checkpoint.Increments()
        for i in range(2):
            train(ebc, comm.rank, comm.size, i + 1)
            saving = saved.async_save(tmp_path / str(i), ebc, step=i, extra=b"dense of rank %d" % comm.rank)
            rows = {name: {k: r.clone() for k, r in table.items()} for name, table in all_rows(ebc).items()}
        train(ebc, comm.rank, comm.size)
        assert not (tmp_path / "1").exists()
        saving.wait()
        with pytest.raises(hotbed.HotbedError, match="exists"):
            checkpoint.async_save(tmp_path / "1", ebc)
        train(ebc, comm.rank, comm.size)  # the communicator goes on after an error that all ranks raise
        return rows

    def load(comm):
        ebc = pooled(comm)
        loaded = checkpoint.load(tmp_path / "0", ebc, [tmp_path / "1"])
        assert (loaded.step, loaded.extra) == (1, b"dense of rank 0")
        return all_rows(ebc)

    expected, found = merged(well(on_threads(save))), merged(well(on_threads(load, 3)))
    for name in expected:
        assert set(found[name]) == set(expected[name])
        assert all(torch.equal(found[name][key], row) for key, row in expected[name].items())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize("routes", [1, 2])
def test_a_rank_that_cannot_write_ends_the_save_of_all(routes, tmp_path, needs_hdf5):
    def save(comm):
        ebc, saved = pooled(comm, configs=tables()[:routes]), checkpoint.Increments()
        saved.save(tmp_path / "0", ebc)
        saving = saved.async_save(tmp_path / "1" if comm.rank == 0 else "/dev/null/1", ebc)
        with pytest.raises(hotbed.FileError if comm.rank == 1 else hotbed.CommError, match="/dev/null") as raised:
            saving.wait()
        assert raised.value.path is not None and raised.value.path.startswith("/dev/null")
        assert raised.value.errno is not None and raised.value.rank == (None if comm.rank == 1 else 1)
        saved.save(tmp_path / "2", ebc)
        return len(saved.paths)

    assert well(on_threads(save)) == [2, 2]  # the next one is an increment of the first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "2"]


@pytest.mark.parametrize(("saving", "loading"), [("ROUND_ROBIN", "ROUND_ROBIN"), ("ROUND_ROBIN", "CONTINUOUS")])
def test_static_rows_that_are_dealt_are_loaded_by_any_ranks(saving, loading, tmp_path, needs_hdf5):
    def dealing(route):
        return ht.ShardedOptions(2 * SAMPLES, 200, routes={"item": ht.Route[route]})

    def save(comm):
        ebc = pooled(comm, dealing(saving))
        train(ebc, comm.rank, comm.size)
        checkpoint.save(tmp_path / "c", ebc)
        return all_rows(ebc)

    def load(comm):
        ebc = pooled(comm, dealing(loading))
        assert all(t.loaded == t.saved for t in checkpoint.load(tmp_path / "c", ebc).tables)
        return all_rows(ebc)

    expected = merged(well(on_threads(save)))
    for n in (3, 2, 1):
        found = merged(well(on_threads(load, n)))
        for name in expected:
            assert set(found[name]) == set(expected[name])
            assert all(torch.equal(found[name][key], row) for key, row in expected[name].items())
    alone = pooled()  # without a communicator
    checkpoint.load(tmp_path / "c", alone)
    assert all(torch.equal(all_rows(alone)["item"][key], row) for key, row in expected["item"].items())


def test_one_rank_loads_a_checkpoint_of_two(tmp_path, needs_hdf5):
    def configs():  # of one routing rule, so that the checkpoint is one directory
        return tables()[:1]

    def save(comm):
        ebc = pooled(comm, configs=configs())
        ebc(bags(comm.rank).permute([0, 1])).values().sum().backward()
        checkpoint.save(tmp_path / "c", ebc)
        return ebc.weight("item").clone()

    saved = torch.cat(well(on_threads(save)))
    one = pooled(configs=configs())
    checkpoint.load(tmp_path / "c", one)
    assert torch.equal(one.weight("item"), saved)


def test_tables_of_two_routes_are_one_checkpoint(tmp_path, needs_hdf5):
    def save(comm):
        ebc = pooled(comm)
        train(ebc, comm.rank, comm.size)
        checkpoint.save(tmp_path / "c", ebc)
        return all_rows(ebc)

    expected = merged(well(on_threads(save)))
    for loaded in (pooled(), pooled(hotbed.Comm())):  # hash and static tables, with a communicator and without
        checkpoint.load(tmp_path / "c", loaded)
        check_rows(all_rows(loaded), expected)


class Parts(torch.nn.Module):
    """Sums, means and sequences, hash and static, and a dense part."""

    def __init__(self, comm, pooling=ht.PoolingType.SUM, rows=ROWS):
        super().__init__()
        more = {} if comm is None else {"comm": comm, "sharded": MOST}
        more["optimizer"] = ht.Adam(lr=0.1)
        self.sums = ht.EmbeddingBagCollection(
            [
                ht.EmbeddingBagConfig(rows, 8, "item", feature_names=["f"], pooling=pooling),
                ht.EmbeddingBagConfig(ROWS, 8, "user", feature_names=["g"], use_virtual_table=True),
            ],
            **more,
        )
        means = ht.EmbeddingBagConfig(ROWS, 8, "tag", feature_names=["f"], pooling=ht.PoolingType.MEAN)
        self.means = ht.EmbeddingBagCollection([means], **more)
        words = ht.EmbeddingConfig(ROWS, 8, "word", feature_names=["h"], use_virtual_table=True)
        self.words = ht.EmbeddingCollection([words], **more)
        self.top = torch.nn.Linear(8, 1)

    def rows(self):
        places = {"item": self.sums, "user": self.sums, "tag": self.means, "word": self.words}
        return {n: dict(zip(c.keys(n).tolist(), c.rows(n, c.keys(n)))) for n, c in places.items()}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_model_of_three_ranks_is_loaded_by_one_and_by_five(is_async, tmp_path, needs_hdf5):
    def save(comm):
        model = Parts(comm)
        torch.nn.init.constant_(model.top.weight, 0.25)  # ranks are threads, which share PyTorch's generator
        optimizer = torch.optim.Adam(model.top.parameters())
        kjt, saved = bags(comm.rank), checkpoint.Increments()
        for step in range(2):
            model.sums(kjt).values().square().sum().backward()
            model.means(kjt).values().square().sum().backward()
            sum(part.values().square().sum() for part in model.words(kjt).values()).backward()
            model.top(torch.ones(1, 8)).sum().backward()
            optimizer.step()
            if is_async:
                saved.async_save(tmp_path / str(step), model, optimizer, step=step).wait()
            else:
                saved.save(tmp_path / str(step), model, optimizer, step=step)
        return model.rows(), model.top.weight.detach().clone()

    results = well(on_threads(save, 3))
    expected = merged([rows for rows, _ in results])

    def load(comm):
        model = Parts(comm, ht.PoolingType.MEAN, ROWS + 9)
        optimizer = torch.optim.Adam(model.top.parameters())
        loaded = checkpoint.load(tmp_path / "0", model, [tmp_path / "1"], optimizer=optimizer)
        assert loaded.step == 1 and len(optimizer.state) == 2
        assert torch.equal(model.top.weight, results[0][1])
        assert all(t.taken == "yes" and t.loaded == t.saved for t in loaded.tables)  # on all ranks together
        return model.rows()

    for found in ([load(None)], well(on_threads(load, 1)), well(on_threads(load, 5))):
        table = merged(found)
        for name, rows in expected.items():
            assert set(rows) <= set(table[name]) and (name == "item" or len(rows) == len(table[name]))
            assert all(torch.equal(table[name][key], row) for key, row in rows.items())


def test_ranks_report_rows_that_do_not_fit(tmp_path, needs_hdf5):
    def make(comm, rows):
        user = ht.EmbeddingBagConfig(
            rows, 8, "user", feature_names=["g"], use_virtual_table=True, evict=ht.Evict.LOWEST, score=ht.Score.LFU
        )
        return pooled(comm, configs=[user])

    whole = make(None, 2000)
    whole.set_rows("user", torch.arange(1500), torch.ones(1500, 8))
    checkpoint.save(tmp_path / "c", whole)

    def load(comm):
        ebc = make(comm, 200)
        return checkpoint.load(tmp_path / "c", ebc).tables[0], len(ebc.keys("user"))

    with pytest.warns(UserWarning, match=r"c: table 'user': \d+ of 1500 rows fit"):
        results = well(on_threads(load))
    kept = sum(n for _, n in results)
    assert all((table.saved, table.loaded) == (1500, kept) for table, _ in results) and kept < 1500


@pytest.mark.parametrize("rows, keys, most", [(64, 1, 200), (1000, 64, 12000), (64, 500, 80000)])
def test_hash_tables_grow_before_they_are_full(rows, keys, most):
    def body(comm):
        tables = [
            ht.EmbeddingBagConfig(
                rows if name == "user" else 64,
                DIM,
                name,
                feature_names=[name],
                use_virtual_table=True,
                max_embeddings=most,
            )
            for name in ("user", "other")
        ]
        ebc = pooled(comm, ht.ShardedOptions(max_batch_size=512, max_keys=1024), configs=tables)
        steps = 40
        for step in range(steps):
            first = (2 * step + comm.rank) * keys
            kjt = ht.KeyedJaggedTensor(
                ["user", "other"], torch.arange(first, first + keys), lengths=torch.tensor([1] * keys + [0] * keys)
            )
            ebc(kjt).values().sum().backward()
        table = ebc.storages[0].info(1)
        return ebc.stats("user")["refused"], len(ebc.keys("user")), table.capacity

    results = well(on_threads(body))
    assert [r[0] for r in results] == [0, 0]
    assert sum(r[1] for r in results) == 80 * keys
    assert all(r[2] < 400 for r in results)  # a table that gets no keys does not grow with the others


# --- errors -----------------------------------------------------------------------------------------


def test_an_error_on_one_rank_is_raised_on_all():
    def body(comm, culprit=1):
        ebc, kjt = pooled(comm), bags(comm.rank)
        ebc(kjt).values().sum().backward()
        if comm.rank == culprit:
            kjt = ht.KeyedJaggedTensor(kjt.keys(), kjt.values().float(), lengths=kjt.lengths())
        ebc(kjt)

    results = on_threads(body, 3)
    assert isinstance(results[1], hotbed.ArgumentError)
    for rank in (0, 2):
        assert isinstance(results[rank], hotbed.CommError)
        assert str(results[rank]).startswith(
            f"rank {rank} of 3: rank 1 aborted: ArgumentError: keys: dtype torch.float32"
        )
        assert (results[rank].parameter, results[rank].rank, results[rank].cause) == ("keys", 1, "COMM")


class Uncounted(ht.KeyedJaggedTensor):
    """A batch that raises when an output is made, after the ranks have exchanged its keys."""

    def offset_per_key(self):
        raise ValueError("cannot count")


def test_an_error_after_the_lookup_is_raised_on_all_ranks():
    def body(comm):
        configs = [ht.EmbeddingConfig(ROWS, DIM, name="item", feature_names=["f"])]
        ec = ht.EmbeddingCollection(configs, optimizer=ht.SGD(lr=1.0), comm=comm, sharded=MOST)
        kind = Uncounted if comm.rank == 1 else ht.KeyedJaggedTensor
        ec(kind(["f"], torch.arange(3), lengths=torch.ones(3, dtype=torch.int64)))["f"].values().sum().backward()

    results = on_threads(body)
    assert str(results[1]) == "cannot count"
    assert isinstance(results[0], hotbed.CommError) and "rank 1 aborted: ValueError: cannot count" in str(results[0])


def test_a_bad_key_is_named_by_the_rank_that_stores_it():
    def body(comm):
        ebc = pooled(comm)
        kjt = ht.KeyedJaggedTensor(list("fgh"), torch.tensor([ROWS + 3]), lengths=torch.tensor([1, 0, 0]))
        for _ in range(2):
            ebc(kjt if comm.rank == 1 else bags(0)).values().sum().backward()

    results = on_threads(body)
    assert isinstance(results[0], hotbed.KeyRangeError)
    assert str(results[0]) == f"table 'item': key {ROWS + 3} is not in [0, {ROWS})"
    assert isinstance(results[1], hotbed.CommError) and f"key {ROWS + 3}" in str(results[1])
    assert (results[1].table, results[1].key, results[1].limit, results[1].rank) == ("item", ROWS + 3, ROWS, 0)


def test_a_full_table_is_named():
    configs = [
        ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=[name], pooling=pooling, use_virtual_table=True)
        for name, pooling in (("sums", ht.PoolingType.SUM), ("means", ht.PoolingType.MEAN))
    ]

    def body(comm):
        keys = torch.arange(400)
        kjt = ht.KeyedJaggedTensor(["sums", "means"], keys, lengths=torch.tensor([0, 400]))
        pooled(comm, ht.ShardedOptions(max_batch_size=1, max_keys=400), configs)(kjt)

    results = on_threads(body)
    for result in results:
        assert "table 'means' is full: no slot for key" in str(result)
    assert any(isinstance(result, hotbed.FullError) for result in results)


def test_a_backward_on_pytorchs_thread_is_refused():
    """On a GPU PyTorch runs the backwards of all threads on one thread, where ranks would wait for each other."""

    def body(comm):
        ebc = pooled(comm, configs=tables()[:1])
        ebc.storages[0]._runs_on_threads = True  # as on a GPU
        loss, errors = ebc(bags(comm.rank, features=("f", "g"))).values().sum(), []

        def backward():
            try:
                loss.backward()
            except hotbed.StateError as error:
                errors.append(str(error))

        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
        assert "set_multithreading_enabled(False)" in errors[0]
        ebc(bags(comm.rank, features=("f", "g"))).values().sum().backward()

    well(on_threads(body))


def test_ranks_that_make_different_calls(tmp_path, needs_hdf5):
    def body(comm):
        ebc = pooled(comm)
        if comm.rank == 0:
            checkpoint.save(tmp_path / "c", ebc)
        else:
            ebc(bags(0))

    for result in on_threads(body):
        assert isinstance(result, hotbed.CommError) and "; the ranks make different calls" in str(result)


def test_ranks_that_call_backward_in_another_order():
    """The messages have the same sizes, so without a check the gradients would go to the rows of another batch."""

    def body(comm):
        ebc = pooled(comm, configs=tables()[:1])
        first, second = (ebc(bags(seed, features=("f", "g"))).values().sum() for seed in (0, 1))
        for loss in (first, second) if comm.rank == 0 else (second, first):
            loss.backward()

    for result in on_threads(body):
        assert isinstance(result, hotbed.CommError)
        assert "in the backward of batch 1 of tables item (storage 1)" in str(result)
        assert "in the backward of batch 2 of tables item (storage 1)" in str(result)


def test_a_rank_that_evaluates_while_another_trains():
    def body(comm):
        ebc = pooled(comm, configs=tables()[:1])
        with torch.set_grad_enabled(comm.rank == 1):
            ebc(bags(0, features=("f", "g")))

    for result in on_threads(body):
        assert isinstance(result, hotbed.CommError)
        assert ": in the evaluation of tables item (storage 1)" in str(result)


def test_calls_after_a_rank_has_left():
    comms = hotbed.Comm.threads(2)

    def leave(comm):
        pooled(comm)
        comms.clear()

    leaving = threading.Thread(target=leave, args=(comms[1],))
    comm = comms[0]
    leaving.start()
    ebc = pooled(comm)
    leaving.join()
    gc.collect()
    for call in (lambda: ebc(bags(0)), lambda: ebc.rows("item", torch.arange(3))):
        with pytest.raises(hotbed.CommError, match=r"rank 0 of 2: .*rank 1 destroyed.*its program ended or raised"):
            call()


def test_a_rank_that_raises_elsewhere_does_not_hang_the_others():
    def body(comm):
        ebc = pooled(comm)
        if comm.rank == 1:
            raise ValueError("the data ends here")
        ebc(bags(0))

    results = on_threads(body)
    assert isinstance(results[0], hotbed.CommError)
    assert "rank 1 aborted: ValueError: the data ends here" in str(results[0])


def test_a_rank_that_does_not_come_is_named():
    def body(comm):
        ebc = pooled(comm)
        if comm.rank == 0:
            ebc(bags(0))

    results = on_threads(body, deadline_ms=200)
    assert isinstance(results[0], hotbed.CommError) and "rank 1 did not come within 200 ms; it is" in str(results[0])


def test_ranks_with_different_arguments():
    def body(comm):
        with pytest.raises(hotbed.ArgumentError) as caught:
            pooled(comm, optimizer=ht.SGD(lr=0.5 + comm.rank))
        pooled(comm)(bags(0))  # all ranks have raised, so the communicator works
        return str(caught.value)

    for result in well(on_threads(body)):
        assert "learning_rate of optimizer sgd is 1.5 on rank 1, but 0.5 on rank 0" in result


def test_ranks_with_different_arguments_of_the_package():
    def body(comm):
        with pytest.raises(hotbed.ArgumentError) as caught:
            pooled(comm, max_in_flight=2 + comm.rank)
        pooled(comm)(bags(0))
        return str(caught.value)

    for rank, result in enumerate(well(on_threads(body))):
        assert f"ranks 0 and 1 make collections that differ in max_in_flight; here it is {2 + rank}" in result


def test_arguments_are_checked():
    comm = hotbed.Comm()
    assert (comm.rank, comm.size, comm.transport, comm.failure()) == (0, 1, "self", None)
    with pytest.raises(hotbed.ArgumentError, match="comm= needs sharded="):
        ht.EmbeddingBagCollection(tables(), comm=comm)
    with pytest.raises(hotbed.ArgumentError, match="sharded= needs comm="):
        ht.EmbeddingBagCollection(tables(), sharded=MOST)
    with pytest.raises(hotbed.ArgumentError, match="static table is routed CONTINUOUS or ROUND_ROBIN, not hash"):
        pooled(comm, ht.ShardedOptions(SAMPLES, 10, routes={"item": ht.Route.HASH_ROUND_ROBIN}))
    with pytest.raises(hotbed.ArgumentError, match=r"32 keys; ShardedOptions allow max_batch_size=6 and max_keys=10"):
        pooled(comm, ht.ShardedOptions(SAMPLES, 10), tables()[:1])(bags(1).permute([0, 1]))
    with pytest.raises(hotbed.ArgumentError, match="0 ranks"):
        hotbed.Comm.threads(0)
    with pytest.raises(hotbed.ArgumentError, match=r"rank -1 is not in \[0, 2\)"):
        hotbed.Comm.from_store(torch.distributed.HashStore(), -1, 2)
    for name, given in (("comm", "x"), ("sharded", {"max_keys": 10})):
        with pytest.raises(hotbed.ArgumentError, match=f"{name} .* is not a {'Comm' if name == 'comm' else 'Sharded'}"):
            ht.EmbeddingBagCollection(tables(), **{"comm": comm, "sharded": MOST, name: given})
    with pytest.raises(hotbed.ArgumentError, match="no field 'hbm_byte'; did you mean hbm_bytes"):
        pooled(options={"hbm_byte": 1})
    with pytest.raises(hotbed.StateError, match="made without comm="):
        pooled().overflowed()


@pytest.mark.parametrize(
    ("field", "given", "text"),
    [
        ("plan", "TWO_PHASE", r"plan 'TWO_PHASE' is not one of Plan\.FIXED, Plan\.TWO_PHASE, Plan\.ONE_SIDED"),
        ("overflow", 1, r"overflow 1 is not one of Overflow\.REPLAY, Overflow\.REPORT"),
        ("dedup", ht.Plan.FIXED, r"dedup <Plan\.FIXED: 0> is not one of Dedup\.AUTO"),
        ("max_keys", 1.5, r"max_keys 1\.5 is not an integer in \[0, 4294967296\)"),
        ("capacity", -1, r"capacity -1 is not an integer in"),
        ("gradient_scale", float("nan"), "gradient_scale nan is not a finite number"),
        ("gradient_scale", "mean", "gradient_scale 'mean' is not a finite number"),
        ("routes", "x", "routes 'x' is not a dict of table names and Routes"),
        ("routes", {"item": 1}, r"route of table 'item' 1 is not one of Route\.HASH_ROUND_ROBIN"),
    ],
)
def test_types_of_sharded_options_are_checked(field, given, text):
    with pytest.raises(hotbed.ArgumentError, match="ShardedOptions: " + text):
        ht.ShardedOptions(**{"max_batch_size": SAMPLES, "max_keys": 200, field: given})


def test_a_forward_drops_the_oldest_on_all_ranks():
    def body(comm):
        ebc = pooled(comm, max_in_flight=2)
        outs = [ebc(bags(step)).values().sum() for step in range(3)]
        for out in outs[1:]:
            out.backward()
        with pytest.raises(hotbed.StateError, match="max_in_flight=2"):
            outs[0].backward()
        with pytest.raises(hotbed.HotbedError):  # an exception in a call ends the communicator
            ebc(bags(0))

    well(on_threads(body))


# --- processes --------------------------------------------------------------------------------------


def under_torchrun(folder):
    """One of two ranks that torchrun starts: Hotbed's sockets beside gloo."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    comm = hotbed.Comm.from_group()
    assert (comm.rank, comm.size, comm.transport) == (dist.get_rank(), 2, "sockets")
    torch.manual_seed(7)
    ebc, top = pooled(comm, ht.ShardedOptions(SAMPLES, 200)), torch.nn.Linear(3 * DIM, 1)
    model = torch.nn.parallel.DistributedDataParallel(top)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(STEPS):
        loss = model(ebc(bags(100 * step + comm.rank)).values()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(every := loss.detach() / comm.size)
        losses.append(float(every))
    with pytest.raises(hotbed.UnsupportedError, match=r"sockets have no windows, .* use Plan\.FIXED"):
        pooled(comm, ht.ShardedOptions(SAMPLES, 10, plan=ht.Plan.ONE_SIDED))
    torch.save((losses, all_rows(ebc)), folder / f"rank{comm.rank}")
    checkpoint.save(folder / "c", ebc, step=STEPS)
    kjt = bags(0)
    try:  # the error of rank 1 ends the call of rank 0
        ebc(kjt if comm.rank == 0 else ht.KeyedJaggedTensor(["f"], kjt.values(), lengths=kjt.lengths()))
    except hotbed.HotbedError as error:
        (folder / f"error{comm.rank}").write_text(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()


def killed(folder):
    """Two ranks that share a store; rank 1 dies while rank 0 waits for it."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = int(os.fork() == 0)  # before the library has started anything
    comm = hotbed.Comm.from_store(dist.FileStore(str(folder / "store"), 2), rank, 2)
    ebc = pooled(comm)
    ebc(bags(rank)).values().sum().backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hotbed.CommError, match="rank 1 is gone: its process ended without a word"):
        ebc(bags(rank))
    assert comm.failure()["reason"] == "LEFT"


def reordered(folder):
    """Three ranks in the reverse order of the process group: only rank 1 is the same in both."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    comm = hotbed.Comm.from_store(dist.FileStore(str(folder / "store"), 3), 2 - dist.get_rank(), 3)
    ebc = pooled(comm)
    ebc(bags(comm.rank)).values().sum().backward()
    rows = ebc.state_dict()["embedding_bags.item.weight"]
    assert type(rows) is torch.Tensor and rows.shape == (ROWS, DIM)
    dist.destroy_process_group()


def run(*command):
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    assert done.returncode == 0, done.stdout.decode()


def test_ranks_may_have_another_order_than_the_process_group(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    run(*launcher, __file__, "reordered", str(tmp_path))


def test_torchrun(tmp_path, needs_hdf5):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run(*launcher, __file__, "under_torchrun", str(tmp_path))
    torch.manual_seed(7)
    one, top, losses = pooled(), torch.nn.Linear(3 * DIM, 1), []
    tables = {name: torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True) for name in ("item", "user")}
    for name, table in tables.items():
        table.weight.data = one.rows(name, torch.arange(ROWS))
    optimizer = torch.optim.SGD(top.parameters(), lr=0.1)
    for step in range(STEPS):
        kjt = together([bags(100 * step + r) for r in range(2)])
        out = one(kjt).values()
        if step == 0:  # rows of the hash table exist from here on
            tables["user"].weight.data = one.rows("user", torch.arange(ROWS))
            tables["item"].weight.data = one.rows("item", torch.arange(ROWS))
            pooled_rows = [
                tables[t](kjt[f].values(), kjt[f].offsets()) for t, f in zip(("item", "item", "user"), "fgh")
            ]
            torch.testing.assert_close(torch.cat(pooled_rows, 1), out)
        loss = top(out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    ranks = [torch.load(tmp_path / f"rank{r}", weights_only=False) for r in range(2)]
    for found, _ in ranks:
        assert found == pytest.approx(losses, rel=1e-5)
    check_rows(merged([rows for _, rows in ranks]), all_rows(one))
    loaded = pooled(hotbed.Comm())
    assert checkpoint.load(tmp_path / "c", loaded).step == STEPS
    check_rows(all_rows(loaded), all_rows(one))
    assert (tmp_path / "error1").read_text().startswith("ArgumentError: features ['g'] are not in the batch")
    assert (
        (tmp_path / "error0")
        .read_text()
        .startswith("CommError: rank 0 of 2: rank 1 aborted: ArgumentError: features ['g'] are not in the batch")
    )


def test_a_killed_rank_is_noticed(tmp_path):
    run(__file__, "killed", str(tmp_path))


if __name__ == "__main__":
    {"under_torchrun": under_torchrun, "killed": killed, "reordered": reordered}[sys.argv[1]](pathlib.Path(sys.argv[2]))
