"""Collections of several ranks: as threads of this process, under torchrun, and processes that share a store.

Run as a program, this file is one rank: ``test_sharded.py ROLE FOLDER``.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
import torch

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint

ROWS, DIM, SAMPLES, STEPS, RANKS = 41, 8, 6, 4, 2
MOST = ht.ShardedOptions(max_batch_size=2 * SAMPLES, max_keys=200)


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
    """Train on this rank's batches, or on those of all ranks if ``rank`` is None; give the losses."""
    losses = []
    for step in range(steps):
        batches = [bags(100 * step + r, weighted=weighted) for r in range(world)]
        kjt = together(batches) if rank is None else batches[rank]
        loss = ebc(kjt).values().square().sum()
        loss.backward()
        losses.append(float(loss.detach()))
    return losses


# --- the same as one rank ---------------------------------------------------------------------------

PLANS = {
    "fixed": {},
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


@pytest.mark.parametrize("optimizer", [ht.SGD(lr=0.1), ht.Adagrad(lr=0.1), ht.RowWiseAdagrad(lr=0.1)])
def test_other_optimizers_and_weights(optimizer):
    def body(comm):
        ebc = pooled(comm, optimizer=optimizer, is_weighted=True)
        train(ebc, comm.rank, comm.size, weighted=True)
        return all_rows(ebc)

    one = pooled(optimizer=optimizer, is_weighted=True)
    train(one, None, 3, weighted=True)
    check_rows(merged(well(on_threads(body, 3))), all_rows(one))


@pytest.mark.parametrize("dedup", list(ht.Dedup))
def test_rows_of_keys(dedup):
    configs = [
        ht.EmbeddingConfig(ROWS, DIM, "item", feature_names=["f", "g"]),
        ht.EmbeddingConfig(ROWS, DIM, "user", feature_names=["h"], use_virtual_table=True),
    ]
    sharded = ht.ShardedOptions(2 * SAMPLES, 200, dedup=dedup)

    def run(ec, rank, world):
        for step in range(STEPS):
            batches = [bags(10 * step + r) for r in range(world)]
            found = ec(together(batches) if rank is None else batches[rank])
            assert list(found) == ["f", "g", "h"]
            torch.cat([found[f].values() for f in "fgh"]).square().sum().backward()
        return all_rows(ec)

    def body(comm):
        return run(ht.EmbeddingCollection(configs, ht_device(), ht.Adam(lr=0.1), 3, comm=comm, sharded=sharded), comm.rank, RANKS)

    expected = run(ht.EmbeddingCollection(configs, ht_device(), ht.Adam(lr=0.1), 3), None, RANKS)
    check_rows(merged(well(on_threads(body))), expected)


def ht_device():
    return "cpu"
