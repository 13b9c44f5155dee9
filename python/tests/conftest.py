"""Fixtures: seeds, batches of random bags, and processes that are ranks."""

import multiprocessing
import os

import pytest
import torch

import hotbed
import hotbed.checkpoint
import hotbed.torch as ht


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20)
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def needs_hdf5(tmp_path_factory):
    tables = [ht.EmbeddingBagConfig(1, 1, "t", feature_names=["f"])]
    try:
        hotbed.checkpoint.save(tmp_path_factory.mktemp("probe") / "c", ht.EmbeddingBagCollection(tables, device="cpu"))
    except hotbed.UnsupportedError:
        pytest.skip("the library was built without HDF5")


def batch(features, samples, rows, most=5, weighted=False, index=torch.int64):
    """Bags of up to `most` keys below `rows`, some of them empty."""
    lengths = torch.randint(0, most + 1, (len(features) * samples,))
    values = torch.randint(0, rows, (int(lengths.sum()),))
    weights = torch.rand(values.shape[0]) if weighted else None
    return ht.KeyedJaggedTensor(features, values.to(index), weights, lengths=lengths.to(index))


class Interrupted:
    """The library, but Ctrl-C arrives right after some call."""

    def __init__(self, lib, call):
        self.lib, self.call = lib, call

    def __getattr__(self, name):
        found = getattr(self.lib, name)
        if name != self.call:
            return found

        def run(*arguments):
            found(*arguments)
            raise KeyboardInterrupt

        return run


# Processes are forked from one that has imported these, which takes seconds of each process otherwise.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["pytest", "hotbed.torch.dcp", "torchrec.distributed.model_parallel", "hotbed.torch.torchrec"]
)


def be_rank(folder, environment, function, arguments):
    os.environ.update(environment)
    os.chdir(folder)
    log = os.open(f"log.{environment['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    function(*arguments)


def run_ranks(folder, world, function, *arguments):
    """Run function(*arguments, rank, world) on each rank, a process in `folder` with torchrun's variables."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    processes = []
    for rank in range(world):
        named = {**shared, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        environment = {name: str(value) for name, value in named.items()}
        parts = (str(folder), environment, function, (*arguments, rank, world))
        processes.append(FORKS.Process(target=be_rank, args=parts))
        processes[-1].start()
    for process in processes:
        process.join()
    said = "\n".join((folder / f"log.{rank}").read_text()[-3000:] for rank in range(world))
    assert not any(process.exitcode for process in processes), said
