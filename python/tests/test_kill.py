"""A save of a model on three ranks, of which one is killed at a file operation, leaves the whole checkpoint or none.

Each HOTBED_TEST_EVERY-th operation of each rank is tried, 11 if it is not set; 1 takes minutes.  Run as a program, this
file forks the ranks of all tries: ``test_kill.py FOLDER``.
"""

import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import traceback

import pytest
import test_sharded
import torch
import torch.distributed as dist

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint

RANKS = 3
EVERY = int(os.environ.get("HOTBED_TEST_EVERY", "11"))

#: Kills the process before the n-th of the calls by which the library changes and closes files.
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

static atomic_long left;

void kill_at(long n) { atomic_store(&left, n); }

static void count(void) {
    if (atomic_load(&left) > 0 && atomic_fetch_sub(&left, 1) == 1)
        raise(SIGKILL);
}

#define CALL(type, name, parameters, ...)                                                          \\
    type name parameters {                                                                         \\
        type(*real) parameters = (type(*) parameters)dlsym(RTLD_NEXT, #name);                      \\
        count();                                                                                   \\
        return real(__VA_ARGS__);                                                                  \\
    }

CALL(int, openat, (int d, const char *path, int flags, unsigned mode), d, path, flags, mode)
CALL(int, openat64, (int d, const char *path, int flags, unsigned mode), d, path, flags, mode)
CALL(int, mkdirat, (int d, const char *path, unsigned mode), d, path, mode)
CALL(long, pwrite, (int f, const void *data, size_t n, long at), f, data, n, at)
CALL(long, pwrite64, (int f, const void *data, size_t n, long at), f, data, n, at)
CALL(int, posix_fallocate, (int f, long at, long n), f, at, n)
CALL(int, posix_fallocate64, (int f, long at, long n), f, at, n)
CALL(int, fsync, (int f), f)
CALL(int, close, (int f), f)
CALL(int, renameat2, (int d, const char *path, int e, const char *to, unsigned f), d, path, e, to, f)
CALL(int, unlinkat, (int d, const char *path, int flags), d, path, flags)
"""


def make(comm, **more):
    """A model of three collections and a dense part, and the dense part's optimizer."""
    torch.manual_seed(1)
    model = test_sharded.Parts(comm, **more)
    return model, torch.optim.Adam(model.top.parameters(), lr=0.1)


def train(model, optimizer, rank):
    kjt = test_sharded.bags(rank)
    model.sums(kjt).values().square().sum().backward()
    model.means(kjt).values().square().sum().backward()
    sum(part.values().square().sum() for part in model.words(kjt).values()).backward()
    optimizer.zero_grad()
    model.top(torch.ones(1, 8)).sum().backward()
    optimizer.step()


def state(model, optimizer):
    """What a rank has: rows by table and key, the dense part, the optimizer."""
    dense = {name: value.clone() for name, value in model.top.state_dict().items()}
    moments = {f"{i}.{n}": v.clone() for i, s in optimizer.state_dict()["state"].items() for n, v in s.items()}
    return model.rows(), {**dense, **moments}


def check_equal(found, folder, version):
    """Compare what ranks have with what the ranks that trained had."""
    wanted = [torch.load(folder / f"state{version}.{rank}") for rank in range(RANKS)]
    tables = test_sharded.merged([rows for rows, _ in found])
    for name, rows in test_sharded.merged([rows for rows, _ in wanted]).items():
        assert set(rows) <= set(tables[name]) and (name == "item" or len(rows) == len(tables[name]))
        assert all(torch.equal(tables[name][key], row) for key, row in rows.items()), name
    for _, dense in found:
        assert all(torch.equal(dense[name], value) for name, value in wanted[0][1].items())


# --- what a rank does -------------------------------------------------------------------------------


def begin(folder, comm):
    """Save an older checkpoint, and one of the next step."""
    model, optimizer = make(comm)
    for version, name in enumerate(("old", "next")):
        train(model, optimizer, comm.rank)
        checkpoint.save(folder / name, model, optimizer, step=version)
        torch.save(state(model, optimizer), folder / f"state{version}.{comm.rank}")


def save(folder, comm, rank, n):
    model, optimizer = make(comm)
    checkpoint.load(folder / "next", model, optimizer=optimizer)
    if comm.rank == rank:
        ctypes.CDLL(None).kill_at(ctypes.c_long(n))
    try:
        checkpoint.save(folder / "new", model, optimizer, step=1)
    except hotbed.HotbedError:
        assert comm.rank != rank
    if comm.rank == rank:
        ctypes.CDLL(None).kill_at(ctypes.c_long(0))


def look(folder, comm):
    """Load what there is: the older checkpoint, and the new one if it exists."""
    for name in ("old", "new"):
        if (folder / name).exists():
            model, optimizer = make(comm)
            version = checkpoint.load(folder / name, model, optimizer=optimizer).step
            assert version == ("old", "new").index(name)
            check_equal([state(model, optimizer)], folder, version)


def load(folder, comm):
    """Load into another pooling and size, on any number of ranks."""
    model, optimizer = make(comm, pooling=ht.PoolingType.MEAN, rows=test_sharded.ROWS + 9)
    loaded = checkpoint.load(folder / "new", model, optimizer=optimizer)
    assert all(table.taken == "yes" and table.loaded == table.saved for table in loaded.tables)
    torch.save(state(model, optimizer), folder / f"loaded{comm.rank if comm else 0}")


# --- the program: it creates no table, so that it can fork ------------------------------------------


def ranks(folder, body, world, *arguments):
    """Run a body on ranks that are processes, and return the exit statuses; negative: a signal."""
    store, children = folder / "store", []
    store.unlink(missing_ok=True)
    for rank in range(world):
        child = os.fork()
        if child == 0:
            try:
                several = world > 1
                comm = hotbed.Comm.from_store(dist.FileStore(str(store), world), rank, world) if several else None
                body(folder, comm, *arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def campaign(folder):
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    torch.optim.Adam([parameter]).step()  # imports modules for all children, which takes seconds
    assert ranks(folder, begin, RANKS) == [0] * RANKS
    outcomes = set()
    for rank in range(RANKS):
        n, status = 1 + rank, -signal.SIGKILL
        while status == -signal.SIGKILL:
            statuses = ranks(folder, save, RANKS, rank, n)
            status = statuses.pop(rank)
            assert status in (0, -signal.SIGKILL) and statuses == [0] * (RANKS - 1), (rank, n, status, statuses)
            exists = (folder / "new").exists()
            outcomes.add((status != 0, exists))
            assert exists or status != 0
            assert ranks(folder, look, 1) == [0], (rank, n)
            for left in [path for path in folder.iterdir() if path.name.startswith(".tmp-")]:
                shutil.rmtree(left)
            if exists and status != 0:
                shutil.move(folder / "new", folder / f"killed{rank}.{n}")
            elif exists and rank < RANKS - 1:
                shutil.rmtree(folder / "new")
            n += EVERY
        assert n > 20, f"rank {rank} ended after {n} file operations"
    assert {(True, False), (False, True)} <= outcomes
    for world in (1, 5):
        assert ranks(folder, load, world) == [0] * world
        check_equal([torch.load(folder / f"loaded{rank}") for rank in range(world)], folder, 1)


def test_a_save_of_three_ranks_is_killed_at_file_operations(tmp_path):
    try:
        checkpoint.save(
            tmp_path / "probe", ht.EmbeddingCollection([ht.EmbeddingConfig(2, 4, "t", feature_names=["f"])])
        )
    except hotbed.UnsupportedError:
        pytest.skip("the library was built without HDF5")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(tmp_path / "run")],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout.decode()[-5000:]


if __name__ == "__main__":
    campaign(pathlib.Path(sys.argv[1]))
