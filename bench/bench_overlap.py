#!/usr/bin/env python3
"""bench/bench_overlap.py - how much of the lookup and the exchange a train pipeline hides, on several ranks.

A step trains a model with the tables and bags of MLPerf's DLRM-DCNv2 and a dense part.  Measured, in milliseconds of
the slowest rank:

  dense        the dense part alone, with embeddings that are there already
  loop         TorchRec's DistributedModelParallel over Hotbed's sharders, one batch after the other
  sparse_dist  the same under TorchRec's TrainPipelineSparseDist
  prefetch     the same under TorchRec's PrefetchTrainPipelineSparseDist; left out on the CPU
  own_loop     a collection of hotbed.torch, one batch after the other
  own          the same under hotbed.torch.TrainPipeline

*Exposed* is a step less the dense part.  All ways have to give the same losses; exit status 1 if they do not.
Without TorchRec its three ways are left out.  --plans measures collections alone instead, a lookup and an update a
step: of these tables and of ten tables of one key a sample and feature (W1), with the default options, with each plan
that works between the ranks, and as a graph that torch.cuda.graph captured.  --picture draws two steps of each way as
SVG: on a GPU the kernels and copies by stream, on the CPU lookups, updates and products of matrices by thread.

    torchrun --standalone --nproc-per-node 2 bench/bench_overlap.py [--device cuda|cpu] [--samples 8192] [--scale 1]
             [--width 1024] [--layers 6] [--steps 50] [--ways NAMES] [--json FILE] [--picture FILE]
             [--plans]
"""

import argparse
import datetime
import html
import math
import os
import pathlib
import re
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import layout
import plots

import hotbed
import hotbed.torch as ht

try:
    import torchrec
except ModuleNotFoundError:
    torchrec = None

DIM = 128
ROWS = [
    *(4000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 4000000, 3067956, 405282, 10),
    *(2209, 11938, 155, 4, 976, 14, 4000000, 4000000, 4000000, 590152, 12973, 108, 36),
]
BAGS = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
FEATURES = [f"f{i}" for i in range(len(ROWS))]
WAYS = ["dense", "loop", "sparse_dist", "prefetch", "own_loop", "own"]
TORCHRECS = ("loop", "sparse_dist", "prefetch")
BATCHES = 8


class Batch:
    """Keys and labels, as TorchRec's pipelines take them."""

    def __init__(self, features, labels):
        self.features, self.labels = features, labels

    def to(self, device, non_blocking=False):
        return Batch(self.features.to(device, non_blocking), self.labels.to(device, non_blocking=non_blocking))

    def record_stream(self, stream):
        self.features.record_stream(stream)
        self.labels.record_stream(stream)

    def pin_memory(self):
        return Batch(self.features.pin_memory(), self.labels.pin_memory())


class Dense(torch.nn.Module):
    """A multilayer perceptron over the pooled rows; the same on all ranks."""

    def __init__(self, width, layers, device):
        super().__init__()
        torch.manual_seed(1)
        sizes = [len(FEATURES) * DIM] + [width] * layers + [1]
        parts = []
        for wide, narrow in zip(sizes, sizes[1:]):
            parts += [torch.nn.Linear(wide, narrow, device=device), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*parts[:-1])

    def forward(self, pooled, labels):
        return (self.layers(pooled) - labels).square().mean()


class Model(torch.nn.Module):
    """The tables and the dense part; its result is what TorchRec's pipelines expect."""

    def __init__(self, tables, dense):
        super().__init__()
        self.tables, self.dense = tables, dense

    def forward(self, batch):
        loss = self.dense(self.tables(batch.features).values(), batch.labels)
        return loss, loss.detach()


def configs(kind, scale):
    return [
        kind(
            num_embeddings=max(1, math.ceil(rows * scale)), embedding_dim=DIM, name=f"t{i}", feature_names=[FEATURES[i]]
        )
        for i, rows in enumerate(ROWS)
    ]


def make_batches(kjt, args, rank):
    """Make batches whose keys follow a power law, hot keys first, in pinned memory if there is a GPU."""
    random = torch.Generator().manual_seed(10 + rank)
    made = []
    for _ in range(BATCHES):
        keys = []
        for rows, bag in zip(ROWS, BAGS):
            n = max(1, math.ceil(rows * args.scale))
            u = torch.rand(args.samples * bag, generator=random, dtype=torch.float64)
            drawn = ((u * (n**-0.05 - 1) + 1) ** (1 / -0.05)).floor() - 1
            keys.append(drawn.clamp(0, n - 1).to(torch.int64))
        lengths = torch.tensor(BAGS).repeat_interleave(args.samples)
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))  # TorchRec's own sum on a GPU needs FBGEMM's build
        features = kjt(FEATURES, torch.cat(keys), lengths=lengths, offsets=offsets)
        batch = Batch(features, torch.rand(args.samples, 1, generator=random))
        made.append(batch.pin_memory() if args.device == "cuda" else batch)
    return made


# --- ways: each yields a loss a step ------------------------------------------------------------------


def plain(model, optimizer, batches, device):
    for batch in batches:
        optimizer.zero_grad()
        loss, shown = model(batch.to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
        yield shown


def piped(pipeline, batches):
    while True:
        try:
            yield pipeline.progress(batches)
        except StopIteration:
            return


def dense_alone(dense, optimizer, batches, device):
    pooled = None
    for batch in batches:
        if pooled is None:
            pooled = torch.rand(batch.labels.shape[0], len(FEATURES) * DIM, device=device, requires_grad=True)
        optimizer.zero_grad()
        pooled.grad = None
        loss = dense(pooled, batch.labels.to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
        yield loss.detach()


def averaged(dense, device, world):
    """Wrap the dense part so that its gradients are averaged."""
    if world == 1:
        return dense
    return torch.nn.parallel.DistributedDataParallel(
        dense, device_ids=[device.index] if device.type == "cuda" else None
    )


def prepare(way, args, device, rank, world):
    """Return a function that trains on an iterator of batches, and the batches."""
    dense = Dense(args.width, args.layers, device)
    optimizer = ht.RowWiseAdagrad(lr=0.01)
    sharded = ht.ShardedOptions(
        pooling_factors=dict(zip(FEATURES, BAGS)), routes=dealt(f"t{i}" for i in range(len(ROWS)))
    )
    if way == "dense":
        dense = averaged(dense, device, world)
        adam = torch.optim.Adam(dense.parameters(), lr=1e-3)
        batches = make_batches(ht.KeyedJaggedTensor, args, rank)
        return lambda source: dense_alone(dense, adam, source, device), batches
    if way.startswith("own"):
        comm = hotbed.Comm.from_group(device=device)
        tables = ht.EmbeddingBagCollection(
            configs(ht.EmbeddingBagConfig, args.scale),
            device=device,
            optimizer=optimizer,
            comm=comm,
            sharded=sharded,
        )
        model = Model(tables, averaged(dense, device, world))
        adam = torch.optim.Adam(dense.parameters(), lr=1e-3)
        batches = make_batches(ht.KeyedJaggedTensor, args, rank)
        if way == "own":
            pipeline = ht.TrainPipeline(model, adam)
            return lambda source: (shown for _, shown in pipeline(source)), batches
        return lambda source: plain(model, adam, source, device), batches
    return prepare_torchrec(way, args, device, rank, dense, optimizer, sharded)


def prepare_torchrec(way, args, device, rank, dense, optimizer, sharded):
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.train_pipeline import PrefetchTrainPipelineSparseDist, TrainPipelineSparseDist
    from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
    from torchrec.optim.optimizers import in_backward_optimizer_filter
    from torchrec.streamable import Pipelineable

    from hotbed.torch.torchrec import sharders

    Pipelineable.register(Batch)  # which is no subclass, so that it needs no TorchRec
    tables = torchrec.EmbeddingBagCollection(
        tables=configs(torchrec.EmbeddingBagConfig, args.scale), device=torch.device("meta")
    )
    model = DistributedModelParallel(
        Model(tables, dense), device=device, sharders=sharders(sharded, optimizer=optimizer)
    )
    dense_part = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())), lambda p: torch.optim.Adam(p, lr=1e-3)
    )
    both = CombinedOptimizer([model.fused_optimizer, dense_part])
    batches = make_batches(torchrec.KeyedJaggedTensor, args, rank)
    if way == "loop":
        return lambda source: plain(model, both, source, device), batches
    kind = TrainPipelineSparseDist if way == "sparse_dist" else PrefetchTrainPipelineSparseDist
    pipeline = kind(model, both, device, execute_all_batches=True)
    return lambda source: piped(pipeline, source), batches


# --- collections alone --------------------------------------------------------------------------------


def dealt(names):
    """Return routes that deal rows in turn, since the small keys of a power law are the frequent ones."""
    return dict.fromkeys(names, ht.Route.ROUND_ROBIN)


def make_rows(args, device, comm, **sharded):
    """Make W1's collection of rows and two of its batches."""
    rows, samples = math.ceil(1677721 * args.scale), math.ceil(104857 * args.samples / 8192)
    names, random = [f"f{i}" for i in range(10)], torch.Generator().manual_seed(20 + comm.rank)
    tables = ht.EmbeddingCollection(
        [
            ht.EmbeddingConfig(num_embeddings=rows, embedding_dim=DIM, name=f"t_{name}", feature_names=[name])
            for name in names
        ],
        device=device,
        optimizer=ht.Adam(lr=0.001),
        comm=comm,
        sharded=ht.ShardedOptions(routes=dealt(f"t_{name}" for name in names), **sharded),
    )
    batches = []
    for _ in range(2):
        u = torch.rand(len(names) * samples, generator=random, dtype=torch.float64)
        keys = ((u * (rows**-0.05 - 1) + 1) ** (1 / -0.05)).floor().sub(1).clamp(0, rows - 1).to(torch.int64)
        batches.append(ht.KeyedJaggedTensor(names, keys, lengths=torch.ones_like(keys)).to(device))
    return tables, tables.flat, batches


def make_bags(args, device, comm, **sharded):
    """Make W9's collection of bags and two of its batches."""
    tables = ht.EmbeddingBagCollection(
        configs(ht.EmbeddingBagConfig, args.scale),
        device=device,
        optimizer=ht.RowWiseAdagrad(lr=0.01),
        comm=comm,
        sharded=ht.ShardedOptions(
            pooling_factors=dict(zip(FEATURES, BAGS)), routes=dealt(f"t{i}" for i in range(len(ROWS))), **sharded
        ),
    )
    batches = make_batches(ht.KeyedJaggedTensor, args, comm.rank)[:2]
    return tables, lambda features: tables(features).values(), [batch.features.to(device) for batch in batches]


def captured(look_up, batches, gradient):
    """Capture a step of each batch, and return a function that replays the one of a number."""
    graphs, side = [], torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for batch in 2 * batches:
            look_up(batch).backward(gradient)
    torch.cuda.synchronize()
    for batch in batches:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            look_up(batch).backward(gradient)
        graphs.append(graph)
    return lambda step: graphs[step % len(graphs)].replay()


def time_steps(call, steps, device):
    """Return milliseconds a step of the slowest rank."""
    for step in range(steps + BATCHES):
        if step == BATCHES:  # the others warm up
            wait(device)
            dist.barrier()
            start = time.monotonic()
        call(step)
    wait(device)
    spent = torch.tensor([(time.monotonic() - start) / steps * 1e3], device=device)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent)


def measure_plans(args, device):
    """Return milliseconds a step of the slowest rank, by collection and plan, and as a graph."""
    comm, times = hotbed.Comm.from_group(device=device), {}
    for name, make in (("W1", make_rows), ("W9", make_bags)):
        sizes = {}
        for way in ("auto", "one_sided", "fixed", "two_phase", "graph"):
            if way == "graph" and device.type == "cpu":
                continue
            plan = ht.Plan.AUTO if way == "graph" else ht.Plan[way.upper()]
            try:
                tables, look_up, batches = make(args, device, comm, plan=plan, **(sizes if way == "graph" else {}))
            except hotbed.UnsupportedError:  # on all ranks
                continue
            gradient = torch.rand_like(look_up(batches[0]))

            def call(step, look_up=look_up, batches=batches, gradient=gradient):
                look_up(batches[step % 2]).backward(gradient)

            if way == "graph":
                call = captured(look_up, batches, gradient)
            spent = times[f"{name} {way}"] = time_steps(call, args.steps, device)
            if comm.rank == 0:
                print(f"{comm.size} ranks, {name}, {way}: step {spent:.3f} ms", flush=True)
            if way == "auto":  # what the batches needed
                most = [max(sizes) for sizes in zip(*(storage._sizes for storage in tables.storages))]
                sizes = dict(zip(("max_batch_size", "max_keys", "capacity"), most), overflow=ht.Overflow.REPORT)
            del tables, look_up, call
    return times


# --- time ---------------------------------------------------------------------------------------------


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def again(batches, steps):
    return iter([batches[i % len(batches)] for i in range(steps)])


def measure(way, args, device, rank, world, pictures):
    """Return milliseconds a step of the slowest rank, and the losses of all steps."""
    train, batches = prepare(way, args, device, rank, world)
    losses = list(train(again(batches, BATCHES)))  # which warms up
    wait(device)
    dist.barrier()
    start = time.monotonic()
    losses += train(again(batches, args.steps))
    wait(device)
    spent = torch.tensor([(time.monotonic() - start) / args.steps * 1e3], device=device)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    if args.picture:
        pictures[way] = profile(train, batches, device)
    return float(spent), [float(loss) for loss in losses]


def profile(train, batches, device):
    """Return what ran in two steps in the middle of six: (stream or thread, begin, length, name)."""
    activity, of_gpu = torch.profiler.ProfilerActivity, device.type == "cuda"
    with torch.profiler.profile(activities=[activity.CPU, *([activity.CUDA] if of_gpu else [])]) as profiler:
        for step, _ in enumerate(train(again(batches, 6))):
            if step in (2, 4):
                wait(device)
    spans = []
    for event in profiler.profiler.kineto_results.events():
        name = event.name()
        if (event.device_type() == torch.autograd.DeviceType.CUDA) != of_gpu or event.duration_ns() == 0:
            continue
        if event.is_user_annotation() if of_gpu else not name.startswith(("hotbed::", "aten::addmm", "aten::mm")):
            continue
        row = event.device_resource_id() if of_gpu else event.start_thread_id()
        spans.append((row, event.start_ns() / 1e6, event.duration_ns() / 1e6, name))
    if not spans:
        return []
    first, last = min(s[1] for s in spans), max(s[1] + s[2] for s in spans)
    begin, end = first + (last - first) / 3, first + 2 * (last - first) / 3
    return [(stream, at - begin, length, name) for stream, at, length, name in spans if begin <= at < end]


def colour(name):
    if "hotbed" in name.lower() or re.match(r"(void )?[a-z0-9_]+_kernel\b(?!::)", name):
        return plots.COLOURS[0]
    if "nccl" in name.lower():
        return plots.COLOURS[2]
    is_product = any(word in name.lower() for word in ("gemm", "cutlass", "nvjet", "addmm", "::mm"))
    return plots.COLOURS[1 if is_product else 5]


def joined(spans, pixel):
    """Return (begin, end, colour, title) of a stream's spans, those of a colour that touch as one."""
    rects = []
    for _, at, length, name in sorted(spans, key=lambda s: s[1]):
        if rects and rects[-1][2] == colour(name) and at - rects[-1][1] < pixel / 2:
            rects[-1] = (rects[-1][0], max(rects[-1][1], at + length), rects[-1][2], "several")
        else:
            rects.append((at, at + length, colour(name), name.split("(")[0]))
    return rects


def draw(pictures):
    """Draw the streams of each way below each other, on one axis of time."""
    longest = max((at + length for spans in pictures.values() for _, at, length, _ in spans), default=1.0)
    wide, row, y, body = plots.WIDTH - plots.LEFT - 20, 16, 50, []
    for way, spans in pictures.items():
        body.append(f'<text x="10" y="{y}" class="title">{html.escape(way)}</text>')
        y += 8
        for stream in sorted({s[0] for s in spans}):
            body.append(f'<text x="{plots.LEFT - 10}" y="{y + 11}" class="name">stream {stream}</text>')
            for at, end, fill, title in joined([s for s in spans if s[0] == stream], longest / wide):
                body.append(
                    f'<rect x="{plots.LEFT + at / longest * wide:.1f}" y="{y}" '
                    f'width="{max(0.3, (end - at) / longest * wide):.1f}" height="{row - 4}" fill="{fill}">'
                    f"<title>{html.escape(title)}: {end - at:.3f} ms</title></rect>"
                )
            y += row
        y += 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{plots.WIDTH}" height="{y}"><style>{plots.STYLE}</style>'
        f'<text x="10" y="20">{longest:.2f} ms; Hotbed\'s kernels, NCCL\'s, products of matrices, others</text>'
    )
    for i, c in enumerate((0, 2, 1, 5)):
        head += f'<rect x="{10 + 14 * i}" y="26" width="12" height="8" fill="{plots.COLOURS[c]}"/>'
    return head + "".join(body) + "</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the tables' rows")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json")
    parser.add_argument("--picture")
    parser.add_argument("--plans", action="store_true")
    args = parser.parse_args()
    device = (
        torch.device(args.device, int(os.environ.get("LOCAL_RANK", 0)))
        if args.device == "cuda"
        else torch.device("cpu")
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=datetime.timedelta(seconds=300)
    )
    rank, world = dist.get_rank(), dist.get_world_size()
    times, losses, pictures = {}, {}, {}
    ways, plans = args.ways.split(","), {}
    if args.plans:
        ways, plans = [], measure_plans(args, device)
    if torchrec is None:
        ways = [way for way in ways if way not in TORCHRECS]
    if device.type == "cpu" and "prefetch" in ways:
        ways.remove("prefetch")  # TorchRec's pipeline needs streams of a GPU
    for way in ways:
        try:
            times[way], losses[way] = measure(way, args, device, rank, world, pictures)
        except NotImplementedError as error:  # on all ranks: FBGEMM's build for the CPU lacks kernels of TorchRec
            print(f"rank {rank}, {way}: left out: {str(error).splitlines()[0]}", flush=True)
            continue
        if rank == 0:
            exposed = f", exposed {times[way] - times['dense']:.3f} ms" if "dense" in times and way != "dense" else ""
            print(f"{world} ranks, {way}: step {times[way]:.3f} ms{exposed}", flush=True)
    trained = {way: given for way, given in losses.items() if way != "dense"}
    same = len({tuple(given) for given in trained.values()}) <= 1
    if rank == 0 and not same:
        print("the losses differ: " + ", ".join(f"{way} ends at {given[-1]!r}" for way, given in trained.items()))
    if rank == 0 and args.json:
        document = {
            "format": "hotbed-overlap 1",
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "ranks": world,
            "command": " ".join(sys.argv),
            "step_ms": times,
            "plans_ms": plans,
            "exposed_ms": {way: ms - times["dense"] for way, ms in times.items() if way != "dense"}
            if "dense" in times
            else {},
        }
        layout.write(args.json, document)
    if rank == 0 and pictures:
        pathlib.Path(args.picture).write_text(draw(pictures))
    dist.destroy_process_group()
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
