"""On a GPU: the CPU's bytes, PyTorch's streams, captures, the caller's current device, ranks on one GPU."""

import gc
import subprocess
import sys

import pytest
import test_dynamicemb
import test_pipeline
import test_sharded
import torch
from conftest import batch

import hotbed
import hotbed.torch as ht
from hotbed._c import check, lib, new

pytestmark = pytest.mark.skipif(
    "cuda" not in hotbed.backends() or not torch.cuda.is_available(), reason="the library or PyTorch has no GPU"
)
ROWS, DIM, SAMPLES = 200, 16, 32


def collection(device, **more):
    tables = [
        ht.EmbeddingBagConfig(ROWS, DIM, "item", feature_names=["f", "g"]),
        ht.EmbeddingBagConfig(ROWS, DIM, "user", feature_names=["h"], use_virtual_table=True),
    ]
    return ht.EmbeddingBagCollection(tables, device=device, optimizer=ht.Adam(lr=0.1), seed=4, **more)


def rows_of(ebc):
    return [ebc.rows(name, torch.arange(ROWS)).cpu() for name in ("item", "user")]


def train(ebc, batches):
    for kjt in batches:
        ebc(kjt.to(ebc.device)).values().square().sum().backward()


def test_a_gpu_trains_to_the_bytes_of_the_cpu():
    batches = [batch(["f", "g", "h"], SAMPLES, ROWS) for _ in range(20)]
    host, device = collection("cpu"), collection("cuda")
    train(host, batches)
    train(device, batches)
    for a, b in zip(rows_of(host), rows_of(device)):
        assert torch.equal(a, b)
    assert torch.equal(host.weight("item"), device.weight("item").cpu())


def test_work_goes_to_the_current_stream():
    batches = [batch(["f", "g", "h"], SAMPLES, ROWS) for _ in range(6)]
    host, device, side = collection("cpu"), collection("cuda"), torch.cuda.Stream()
    train(host, batches)
    train(device, batches[:3])  # on the default stream
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        train(device, batches[3:])
    torch.cuda.current_stream().wait_stream(side)
    for a, b in zip(rows_of(host), rows_of(device)):
        assert torch.equal(a, b)


def test_a_backward_runs_on_the_stream_of_its_forward():
    batches = [batch(["f", "g", "h"], SAMPLES, ROWS) for _ in range(6)]
    host, device, side = collection("cpu"), collection("cuda"), torch.cuda.Stream()
    train(host, batches)
    moved = [kjt.to(torch.device("cuda")) for kjt in batches]
    side.wait_stream(torch.cuda.current_stream())
    for kjt in moved:
        with torch.cuda.stream(side):
            loss = device(kjt).values().square().sum()
        loss.backward()  # called while another stream is current
    torch.cuda.synchronize()
    for a, b in zip(rows_of(host), rows_of(device)):
        assert torch.equal(a, b)


def test_a_pipeline_gives_the_bytes_of_the_plain_loop():
    host, device = test_pipeline.Model(), test_pipeline.Model(device="cuda")
    device.top.load_state_dict(host.top.state_dict())
    clicks = test_pipeline.batches(steps=20)
    plain = test_pipeline.Model(device="cuda")
    plain.top.load_state_dict(host.top.state_dict())
    moved = [test_pipeline.moved(click) for click in clicks]
    expected = test_pipeline.plain(plain, moved, test_pipeline.adam(plain))
    results = list(ht.TrainPipeline(device, test_pipeline.adam(device))(clicks))
    test_pipeline.check_equal(results, expected, device, plain)


def test_calls_by_key_come_behind_lookups_on_other_streams():
    device, side = collection("cuda"), torch.cuda.Stream()
    kjt = batch(["f", "g", "h"], SAMPLES, ROWS).to(device.device)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(500_000_000)
        device.prefetch(kjt)
    assert torch.equal(device.keys("user"), kjt["h"].values().unique().cpu())


def test_a_captured_step_gives_the_same_bytes():
    samples = 16
    lengths = torch.ones(3 * samples, dtype=torch.int64)
    batches = [torch.randint(0, ROWS, (3 * samples,)) for _ in range(12)]
    host, device, side = collection("cpu"), collection("cuda"), torch.cuda.Stream()
    for keys in batches:
        kjt = ht.KeyedJaggedTensor(["f", "g", "h"], keys, lengths=lengths)
        host(kjt).values().square().sum().backward()
    keys = torch.empty(3 * samples, dtype=torch.int64, device="cuda")
    kjt = ht.KeyedJaggedTensor(["f", "g", "h"], keys, lengths=lengths.cuda())
    kjt.offsets()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for first in batches[:3]:
            keys.copy_(first)
            device(kjt).values().square().sum().backward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        device(kjt).values().square().sum().backward()
    for later in batches[3:]:
        keys.copy_(later)
        graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(rows_of(host), rows_of(device)):
        assert torch.equal(a, b)


def test_memory_does_not_grow_in_a_capture():
    device = collection("cuda")
    kjt = batch(["f", "g", "h"], SAMPLES, ROWS).to(torch.device("cuda"))
    kjt.offsets()
    torch.cuda.synchronize()
    with pytest.raises(hotbed.StateError, match="record"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        device(kjt)
    train(device, [kjt])


def test_a_bad_key_is_returned_by_a_later_call():
    device = collection("cuda")
    bad = torch.full((3,), ROWS + 5, device="cuda")
    good = torch.zeros(3, dtype=torch.int64, device="cuda")
    lengths = torch.ones(3, dtype=torch.int64, device="cuda")
    with pytest.raises(hotbed.KeyRangeError, match=f"key {ROWS + 5}"):
        for keys in (bad, good, good):
            device(ht.KeyedJaggedTensor(["f", "g", "h"], keys, lengths=lengths)).values().sum().backward()
            torch.cuda.synchronize()


def test_a_compiled_step_gives_the_same_bytes():
    batches = [batch(["f", "g", "h"], SAMPLES, ROWS) for _ in range(4)]
    eager, compiled = collection("cuda"), collection("cuda")
    train(eager, batches)
    call = torch.compile(
        lambda v, o: compiled(ht.KeyedJaggedTensor(["f", "g", "h"], v, offsets=o)).values(), fullgraph=True
    )
    for kjt in batches:
        moved = kjt.to(torch.device("cuda"))
        call(moved.values(), moved.offsets()).square().sum().backward()
    for a, b in zip(rows_of(eager), rows_of(compiled)):
        assert torch.equal(a, b)


def test_a_batch_from_the_cpu_trains_without_a_host_wait():
    """The host waits neither in the library nor in PyTorch, also where it needs each feature's number of keys."""
    tables = [ht.EmbeddingConfig(ROWS, DIM, name, feature_names=[name], use_virtual_table=True) for name in "fgh"]
    module = ht.EmbeddingCollection(tables, device="cuda", optimizer=ht.Adam(lr=0.1))
    batches = [batch(["f", "g", "h"], SAMPLES, ROWS).to(torch.device("cuda")) for _ in range(6)]

    def step(kjt):
        torch.cat([jagged.values() for jagged in module(kjt).values()]).square().sum().backward()

    for kjt in batches[:3]:  # allocates
        step(kjt)
    torch.cuda.synchronize()
    before = host_waits()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for kjt in batches[3:]:
            step(kjt)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert host_waits() == before


def counters():
    now = new("counters")
    check(lib.hotbed_counters_read(now))
    return now


def host_waits():
    return counters().host_waits


def test_a_storage_in_python_may_use_the_gpu():
    test_dynamicemb.check_storage("cuda")


def test_an_error_of_a_storage_in_python_is_the_cause_of_the_exception():
    test_dynamicemb.check_failure("cuda")


def test_memory_is_flat_over_ten_thousand_forwards_without_backward():
    device, kjt = collection("cuda"), batch(["f", "g", "h"], SAMPLES, ROWS).to(torch.device("cuda"))

    def used(forwards):
        for _ in range(forwards):
            device(kjt)
        torch.cuda.synchronize()
        now = counters()
        return now.allocations, now.allocated_bytes, now.host_waits, torch.cuda.memory_reserved()

    before = used(100)  # allocates
    assert used(10_000) == before


# --- ranks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", list(ht.Plan))
def test_ranks_on_one_gpu_train_to_the_rows_of_one_rank(plan):
    """Ranks that are threads of this process; see test_sharded.py, which has the same on the CPU."""
    options = ht.ShardedOptions(max_batch_size=2 * test_sharded.SAMPLES, max_keys=200, plan=plan)
    one = test_sharded.pooled()
    losses = test_sharded.train(one, None, 2)

    def body(comm):
        # A stream of this rank's thread, where its backwards run too.
        with torch.cuda.stream(torch.cuda.Stream()), torch.autograd.set_multithreading_enabled(False):
            ebc = test_sharded.pooled(comm, options, device="cuda")
            found = test_sharded.train(ebc, comm.rank, 2)
            rows = test_sharded.all_rows(ebc)
            return found, {n: {key: row.cpu() for key, row in table.items()} for n, table in rows.items()}

    results = test_sharded.well(test_sharded.on_threads(body))
    torch.testing.assert_close([sum(at) for at in zip(*(found for found, _ in results))], losses, rtol=1e-4, atol=1e-4)
    test_sharded.check_rows(test_sharded.merged([rows for _, rows in results]), test_sharded.all_rows(one))


def test_a_backward_on_pytorchs_thread_is_refused():
    def body(comm):
        ebc = test_sharded.pooled(comm, device="cuda", configs=test_sharded.tables()[:1])
        kjt = test_sharded.bags(comm.rank, features=("f", "g")).to(torch.device("cuda"))
        with pytest.raises(hotbed.StateError, match="set_multithreading_enabled"):
            ebc(kjt).values().sum().backward()

    test_sharded.well(test_sharded.on_threads(body))


def test_one_rank_over_nccl_trains_to_the_rows_of_one_rank(tmp_path):
    program(one_rank_over_nccl, str(tmp_path))


def program(function, *arguments):
    """Run a function of this file in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, function.__name__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    if b"UnsupportedError" in done.stdout:
        pytest.skip(done.stdout.decode().splitlines()[-1])
    assert done.returncode == 0, done.stdout.decode()


def one_rank_over_nccl(folder):
    """One rank of a torch.distributed group, which has a communicator of NCCL."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
    comm = hotbed.Comm.from_group(device="cuda:0")
    assert (comm.rank, comm.size, comm.transport) == (0, 1, "nccl")
    one = test_sharded.pooled()
    losses = test_sharded.train(one, None, 1)
    for plan in ht.Plan:
        options = ht.ShardedOptions(max_batch_size=2 * test_sharded.SAMPLES, max_keys=200, plan=plan)
        ebc = test_sharded.pooled(comm, options, device="cuda:0")
        torch.testing.assert_close(test_sharded.train(ebc, 0, 1), losses, rtol=1e-4, atol=1e-4)
        rows = test_sharded.all_rows(ebc)
        found = {name: {key: row.cpu() for key, row in table.items()} for name, table in rows.items()}
        test_sharded.check_rows(found, test_sharded.all_rows(one))
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_the_current_device_stays():
    kjt = batch(["f", "g", "h"], SAMPLES, ROWS)
    torch.cuda.set_device(0)
    device = collection("cuda:1")
    with torch.cuda.device(0):
        train(device, [kjt])
        device.stats("item")
        assert torch.cuda.current_device() == 0


# --- PyTorch's allocator ----------------------------------------------------------------------------


def test_tables_are_in_memory_of_pytorchs_allocator():
    program(tables_in_pytorchs_memory)


def tables_in_pytorchs_memory():
    """Tables come from PyTorch's allocator, train as before, go back to it, and can exhaust it."""
    ht.use_torch_allocator()
    batches = [batch(["f", "g", "h"], SAMPLES, ROWS) for _ in range(10)]
    host = collection("cpu")
    train(host, batches)
    before = torch.cuda.memory_allocated()
    device = collection("cuda")
    assert torch.cuda.memory_allocated() - before > 2 * 3 * ROWS * DIM * 4  # rows and Adam's states
    with pytest.raises(hotbed.StateError, match="allocations of cuda memory exist"):
        ht.use_torch_allocator()
    train(device, batches)
    for a, b in zip(rows_of(host), rows_of(device)):
        assert torch.equal(a, b)
    del device
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.001)
    with pytest.raises(hotbed.OutOfMemoryError, match="no memory for 10000000 rows of 64 bytes"):
        ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(10_000_000, DIM, "t", feature_names=["f"])], device="cuda")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
