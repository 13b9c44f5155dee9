"""A fuzz of the package: random arguments in every place give a result or an exception with a reason, never a crash.

`tools/test_python.sh` runs it on the library built with AddressSanitizer too, where there is one.
"""

import contextlib
import functools
import os

import pytest
import torch
from conftest import batch

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint
from hotbed.torch import _ops

ROWS, DIM, SAMPLES = 40, 8, 6
CALLS = 5000 if "HOTBED_PYTHON_FULL" in os.environ else 400
# Exceptions that a bad argument may raise: the package's exceptions, or Python's and PyTorch's for a type or value.
REASONS = (hotbed.HotbedError, TypeError, ValueError, RuntimeError, OverflowError)

VECTORS = [
    torch.zeros(0, dtype=torch.int64),
    torch.tensor([0, 1, 2]),
    torch.tensor([0, 2, 1]),
    torch.tensor([0, 2**62, -1]),
    torch.tensor([-(2**63), 2**63 - 1]),
    torch.arange(20)[::2],
    torch.arange(13),
    torch.arange(3, dtype=torch.int32),
    torch.arange(13, dtype=torch.int32),
    torch.tensor(5),
    torch.zeros(2, 2, dtype=torch.int64),
    torch.tensor([0.0, float("nan"), 2.5]),
    torch.zeros(3, dtype=torch.bool),
    torch.zeros(3, dtype=torch.int64, device="meta"),
    torch.zeros(3, dtype=torch.complex64),
]
MATRICES = [torch.ones(n, d) for n in (0, 1, 3, ROWS) for d in (1, DIM, 2 * DIM)]
MATRICES += [
    torch.ones(DIM, 3).t(),
    torch.ones(3, DIM).half(),
    torch.full((3, DIM), float("inf")),
    torch.ones(3, DIM, 2),
]
OTHERS = [None, 0, -1, 2**40, 2**64, 1.5, float("nan"), "", "a", "f", "é", "a\0b", b"a", [], ["f", "g"], {}, object()]


class Random:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def below(self, n):
        return int(torch.randint(0, n, (1,), generator=self.generator))

    def one(self, *choices):
        return choices[self.below(len(choices))]

    def near(self, good, bad, one_in=4):
        """Mostly what is right, and one time in `one_in` anything."""
        return good if self.below(one_in) > 0 else self.one(*bad)


def collection(hashed):
    table = ht.EmbeddingBagConfig(ROWS, DIM, "a", feature_names=["f", "g"], use_virtual_table=hashed)
    return ht.EmbeddingBagCollection([table], optimizer=ht.Adam(lr=0.1), seed=1)


def lookup(ebc, r, folder):
    storage = ebc.storages[0]
    out = _ops.lookup(
        torch.zeros(0),
        r.near(torch.tensor([0, 2, 1]), VECTORS),
        r.near(torch.tensor([0, 2, 3]), VECTORS),
        r.near(None, [torch.ones(3), *VECTORS]),
        r.near(storage.handle, [0, -1, 2**40]),
        r.near(1, [0, 2, -1, 2**40]),
        r.near(2 * DIM, [1, 0, -3]),
        r.near(True, [False]),
        r.one(True, False),
        r.near(torch.float32, [torch.float16, torch.int64]),
    )
    r.token = out[1]


def update(ebc, r, folder):
    token = r.near(getattr(r, "token", torch.zeros(1, dtype=torch.int64)), [torch.tensor([2**62]), *VECTORS])
    _ops.update(r.near(torch.ones(1, 2 * DIM), MATRICES), token, r.near(ebc.storages[0].handle, [0, -1, 2**40]))


def kjt(r):
    lengths = r.near(torch.ones(4, dtype=torch.int64), VECTORS)
    return ht.KeyedJaggedTensor(
        r.near(["f", "g"], [["f"], ["g", "f", "h"], [], ["f", "f"], "fg", None]),
        r.near(torch.arange(4), VECTORS),
        r.near(None, [torch.ones(4), *VECTORS]),
        **{r.near("lengths", ["offsets"]): lengths},
    )


def forward(ebc, r, folder):
    out = ebc(r.near(kjt(r), OTHERS)).values()
    if r.one(True, False):
        out.sum().backward()


def prefetch(ebc, r, folder):
    ebc.prefetch(r.near(kjt(r), OTHERS))


def read_rows(ebc, r, folder):
    ebc.rows(r.near("a", OTHERS), r.one(*VECTORS, *OTHERS))
    r.one(ebc.keys, ebc.stats, ebc.weight)(r.near("a", OTHERS))


def write_rows(ebc, r, folder):
    keys, rows = r.near(torch.tensor([0, 1, 2]), [*VECTORS, *OTHERS]), r.near(torch.ones(3, DIM), [*MATRICES, *OTHERS])
    ebc.set_rows(r.near("a", OTHERS), keys, rows)


def load_state(ebc, r, folder):
    state = ebc.state_dict()
    name = r.one(*state)
    change = r.below(3)
    if change == 0:
        state[name] = r.one(*VECTORS, *MATRICES, *OTHERS)
    elif change == 1:
        del state[name]
    ebc.load_state_dict(state)


def load_optimizer(ebc, r, folder):
    state = ebc.fused_optimizer.state_dict()
    tables = state["state"]["a"]
    if r.one(True, False):
        tables[r.one(*tables, "other")] = r.one(*VECTORS, *MATRICES, *OTHERS)
    ebc.fused_optimizer.load_state_dict(r.near(state, OTHERS))


def learning_rate(ebc, r, folder):
    ebc.fused_optimizer.param_groups[0]["lr"] = r.one(0.1, *OTHERS)
    try:
        forward(ebc, r, folder)
    finally:
        ebc.fused_optimizer.param_groups[0]["lr"] = 0.1


def make(ebc, r, folder):
    near = functools.partial(r.near, one_in=12)  # there are ten of them
    table = ht.EmbeddingBagConfig(
        near(ROWS, [0, -1, 2**62, 2**64, 1.5, None, "4"]),
        near(DIM, [0, -1, 3, 2**31, 2**62, 1.5, None]),
        near("a", ["", "a/b", "a\0b", "é", None, 3]),
        feature_names=near(["f"], [[], ["f", "f"], [""], None, "f", [3]]),
        use_virtual_table=r.one(True, False),
    )
    ht.EmbeddingBagCollection(
        near([table], [[table, table], [], None, table]),
        optimizer=near(ht.SGD(), [ht.SGD(lr=float("nan")), ht.SGD(lr=-1), ht.Adam(eps=-1.0), 3, "sgd"]),
        max_in_flight=near(4, [0, -1, 2**40, None]),
        seed=near(1, [-1, 2**64, None, 1.5]),
        device=near("cpu", ["meta", "cuda:99", "", 3, None]),
        options=near({}, [{"hbm_bytes": -1}, {"hbm_bytes": 2**64}, {"none": 1}, {"hbm_bytes": "1"}, 3]),
    )


def save(ebc, r, folder):
    path = r.near(folder / str(r.below(10)), [folder / "a\0b", folder, "", "/dev/null/x", *OTHERS])
    arguments = {"step": r.near(1, [-1, 2**64, None, 1.5]), "extra": r.near(b"x", [None, "x", 3, b""])}
    if r.one(True, False):
        checkpoint.save(path, ebc, **arguments)
    else:
        checkpoint.async_save(path, ebc, **arguments).wait()


def load(ebc, r, folder):
    path = r.near(folder / str(r.below(10)), [folder, "", *OTHERS])
    r.one(checkpoint.tables, checkpoint.read, lambda p: checkpoint.load(p, ebc, r.near([], [[path], [None], 3])))(path)


ACTIONS = [
    lookup,
    update,
    forward,
    prefetch,
    read_rows,
    write_rows,
    load_state,
    load_optimizer,
    learning_rate,
    make,
    save,
    load,
]


@pytest.mark.parametrize("hashed", [False, True])
def test_random_calls_do_no_harm(hashed, tmp_path):
    os.chdir(tmp_path)  # of relative paths
    r = Random(5 + hashed)
    ebc, results = collection(hashed), dict.fromkeys((action.__name__ for action in ACTIONS), 0)
    for _ in range(CALLS):
        action = r.one(*ACTIONS)
        with contextlib.suppress(*REASONS):
            action(ebc, r, tmp_path)
            results[action.__name__] += 1
    rare = {"load", "save"}  # need HDF5
    assert all(n > 0 for name, n in results.items() if name not in rare), results
    ebc.cancel()
    ebc(batch(["f", "g"], SAMPLES, ROWS)).values().sum().backward()
    assert ebc.rows("a", torch.arange(ROWS)).shape == (ROWS, DIM)
