"""On a GPU: the CPU's bytes, PyTorch's streams, captures, the caller's current device."""

import pytest
import torch
from conftest import batch

import hotbed
import hotbed.torch as ht

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


def test_a_bad_key_is_told_by_a_later_call():
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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_the_current_device_stays():
    kjt = batch(["f", "g", "h"], SAMPLES, ROWS)
    torch.cuda.set_device(0)
    device = collection("cuda:1")
    with torch.cuda.device(0):
        train(device, [kjt])
        device.stats("item")
        assert torch.cuda.current_device() == 0
