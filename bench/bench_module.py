#!/usr/bin/env python3
"""bench/bench_module.py - W1 and W2 through hotbed.torch's modules, beside the same calls of the C library.

A step is a lookup of a batch and the update of its rows, without a model.  The C calls and the module work on one
storage and on the same batches, in turn.  Measured, with the limit in brackets:

  host      time in which the host enqueues a step, above the C calls (40 us), and the same in a model, a product and
            a sum, whose backward runs in any case (40 us).  Printed beside it, without a limit: the time of an empty
            step, an autograd function without content and with the same output and gradient; of the C calls in such
            a function, which no module in Python can undercut; all with the backward in the caller's thread, where
            PyTorch starts no work on its thread of the GPU; and a forward that returns a dict
  graph     device time of a step that torch.cuda.graph captured, above the C library's graph (2 %)
  waits     times the library waited for the device, and PyTorch's synchronizations, in all steps (0) after the first
            forwards: a forward that waits for its backward has a ticket, which is allocated once
  bytes     rows after steps by the C calls, by the module, compiled by torch.compile, and captured (equal)
  memory    growth of the device's and the host's memory in forwards without a backward (0, and 4 MiB)

Limits of time hold on a GPU only: on the host backend a step includes the work.  Exit status 1: a limit is missed.

    bench/bench_module.py [--device cuda|cpu] [--workload W1|W2|all] [--scale 1] [--steps 100] [--forwards 10000]
                          [--batches 100] [--json FILE]
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import layout
from baseline_torch import DIM, Shape, processor

import hotbed
import hotbed.torch as ht
from hotbed._c import check, ffi, lib, new

CHUNK = 20  # steps whose host time is taken at once: too few to fill the device's queue
HOST_US, GRAPH, GROWTH = 40.0, 0.02, 4 << 20
#: Kinds of steps: a method of Tables, whether PyTorch may run the backward on its own thread, and what is printed.
KINDS = {
    "c": ("by_c", True, "C calls"),
    "module": ("by_module", True, "module"),
    "empty": ("by_nothing", True, "empty step"),
    "function": ("by_function", True, "C calls in an autograd function"),
    "module_inline": ("by_module", False, "module, backward in the caller's thread"),
    "empty_inline": ("by_nothing", False, "empty step, likewise"),
    "function_inline": ("by_function", False, "C calls in a function, likewise"),
    "c_model": ("by_c_in_model", True, "C calls, in a model"),
    "module_model": ("by_module_in_model", True, "module, in a model"),
    "dict": ("by_dict", True, "module, dict of features"),
}
OPTIMIZERS = {"W1": ht.Adam(lr=0.01), "W2": ht.SGD(lr=0.01)}


class Empty(torch.autograd.Function):
    """An autograd function without content: the part of a step that is PyTorch's own."""

    @staticmethod
    def forward(ctx, anchor, out):
        return out.new_empty(out.shape)

    @staticmethod
    def backward(ctx, gradient):
        return None, None


class Calls(torch.autograd.Function):
    """The C calls in an autograd function, with arguments that were made before."""

    @staticmethod
    def forward(ctx, anchor, tables, batch):
        ctx.tables = tables
        out = torch.empty_like(tables.out)
        tables.look_up(batch, out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        ctx.tables.update(gradient)
        return None, None, None


class Tables:
    """The tables of a workload, and its steps by the module and by the C calls."""

    def __init__(self, name, scale, device, batches):
        self.device = torch.device(device)
        shape = Shape(name, scale)
        rows, samples, tables = shape.rows[0], shape.samples, len(shape.rows)
        configs = [
            ht.EmbeddingConfig(
                rows,
                DIM,
                f"t{t}",
                feature_names=[f"f{t}"],
                use_virtual_table=True,
                weight_init_min=-0.05,
                weight_init_max=0.05,
            )
            for t in range(tables)
        ]
        self.module = ht.EmbeddingCollection(configs, device=self.device, optimizer=OPTIMIZERS[name], seed=20)
        self.storage = self.module.storages[0]
        keys = torch.stack([torch.cat(shape.keys(batch)) for batch in range(batches)])
        lengths = torch.ones(tables * samples, dtype=torch.int64)
        features = [f"f{t}" for t in range(tables)]
        self.last_table = tables - 1
        self.batches = [ht.KeyedJaggedTensor(features, k, lengths=lengths).to(self.device) for k in keys]
        self.fixed = ht.KeyedJaggedTensor(features, keys[0].clone(), lengths=lengths).to(self.device)
        generator = torch.Generator().manual_seed(1)
        self.gradient = (torch.rand(keys.shape[1], DIM, generator=generator) - 0.5).to(self.device)
        self.parts = torch.split(self.gradient, samples)
        self.samples = samples
        self.out = torch.empty_like(self.gradient)
        self.weight = torch.rand(DIM, 1, generator=generator).to(self.device)
        self.anchor = torch.zeros(1, device=self.device, requires_grad=True)
        out = ffi.new("hotbed_ticket **")
        check(lib.hotbed_ticket_create(self.storage.pointer, keys.shape[1], samples, self.stream(), out))
        self.ticket = out[0]
        self.structs = {id(b): self._struct(b) for b in [*self.batches, self.fixed]}

    def _struct(self, batch):
        offsets = ffi.cast("int64_t *", batch.offsets().data_ptr())
        keys = ffi.cast("void *", batch.values().data_ptr())
        count = batch.values().shape[0]
        return new("batch", batch_size=self.samples, num_keys=count, keys=keys, offsets=offsets)

    def close(self):
        self.sync()
        lib.hotbed_ticket_destroy(self.ticket)

    def stream(self):
        """Hotbed's stream for PyTorch's current stream."""
        return self.storage.streams.current()

    def look_up(self, batch, out):
        args = self.structs[id(batch)], self.ticket, ffi.cast("void *", out.data_ptr()), DIM, self.stream()
        check(lib.hotbed_storage_prefetch_forward(self.storage.pointer, *args))

    def update(self, gradient):
        args = self.ticket, ffi.cast("void *", gradient.data_ptr()), DIM, self.stream()
        check(lib.hotbed_storage_backward(self.storage.pointer, *args))

    def by_c(self, batch):
        self.look_up(batch, self.out)
        self.update(self.gradient)

    def by_function(self, batch):
        Calls.apply(self.anchor, self, batch).backward(self.gradient)

    def by_module(self, batch):
        self.module.flat(batch).backward(self.gradient)

    def by_c_in_model(self, batch):
        rows = torch.empty_like(self.out)
        self.look_up(batch, rows)
        (rows.requires_grad_() @ self.weight).sum().backward()
        self.update(rows.grad)

    def by_module_in_model(self, batch):
        (self.module.flat(batch) @ self.weight).sum().backward()

    def by_nothing(self, batch):
        Empty.apply(self.anchor, self.out).backward(self.gradient)

    def fill_tickets(self):
        """Allocate what forwards without a backward need."""
        for _ in self.storage.slots:
            self.module.flat(self.fixed)
        self.module.cancel()

    def by_dict(self, batch):
        rows = [jagged.values() for jagged in self.module(batch).values()]
        torch.autograd.backward(rows, self.parts)

    def sync(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def rows(self, keys=1000):
        """Some rows of the first and of the last table."""
        return torch.cat([self.module.rows(f"t{t}", torch.arange(keys)).cpu() for t in (0, self.last_table)])

    def compiled(self, backend):
        """The module's step, compiled."""
        features = self.fixed.keys()

        def forward(values, offsets):
            return self.module.flat(ht.KeyedJaggedTensor(features, values, offsets=offsets))

        call = torch.compile(forward, fullgraph=True, backend=backend)
        return lambda batch: call(batch.values(), batch.offsets()).backward(self.gradient)

    def captured(self):
        """The module's step on the fixed batch, captured by torch.cuda.graph."""
        graph = torch.cuda.CUDAGraph()
        self.sync()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.by_module(self.fixed)
        return graph.replay

    def recorded(self):
        """The same step by the C calls, recorded by the C library."""
        out, stream = ffi.new("hotbed_graph **"), self.stream()
        check(lib.hotbed_graph_begin(stream))
        self.by_c(self.fixed)
        check(lib.hotbed_graph_end(stream, out))
        graph = ffi.gc(out[0], lib.hotbed_graph_destroy)
        return lambda: check(lib.hotbed_graph_launch(graph, stream))


def waits():
    counters = new("counters")
    lib.hotbed_counters_read(counters)
    return int(counters.host_waits)


def host_memory():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def no_synchronization(device):
    """Raise if PyTorch waits for the device."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def host_times(tables, steps):
    """Microseconds in which the host enqueues a step, by kind of step: the least and the median of the chunks."""
    found = {kind: [] for kind in KINDS}
    for at in range(-1, max(3, steps // CHUNK)):  # the first to warm up
        for kind, (step, on_own_thread, _) in KINDS.items():
            step = getattr(tables, step)
            batches = [tables.batches[(at * CHUNK + i) % len(tables.batches)] for i in range(CHUNK)]
            tables.sync()
            with no_synchronization(tables.device), torch.autograd.set_multithreading_enabled(on_own_thread):
                start = time.perf_counter()
                for batch in batches:
                    step(batch)
                end = time.perf_counter()
            if at >= 0:
                found[kind].append((end - start) / CHUNK * 1e6)
    tables.sync()
    return {kind: min(times) for kind, times in found.items()}, {k: statistics.median(t) for k, t in found.items()}


def graph_times(tables, steps):
    """Milliseconds of device time of a captured step, by kind of graph: medians."""
    for _ in range(3):
        tables.by_module(tables.fixed)
        tables.by_c(tables.fixed)
    graphs = {"c": tables.recorded(), "module": tables.captured()}
    marks = {kind: [] for kind in graphs}
    for s in range(steps):
        order = sorted(graphs, reverse=s % 2 == 1)
        for kind in order:
            tables.fixed.values().copy_(tables.batches[s % len(tables.batches)].values())
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs[kind]()
            end.record()
            marks[kind].append((begin, end))
    tables.sync()
    return {kind: statistics.median(b.elapsed_time(e) for b, e in pairs) for kind, pairs in marks.items()}


def bytes_agree(name, scale, device, backend):
    """The kinds of steps after which the rows differ from the rows after the C calls."""

    def run(kind):
        tables = Tables(name, scale, device, 4)
        for _ in range(3):
            tables.by_module(tables.fixed)
        if kind == "captured":
            replay = tables.captured()

            def step(batch):
                tables.fixed.values().copy_(batch.values())
                replay()
        elif kind == "compiled":
            step = tables.compiled(backend)
        else:
            step = {"C": tables.by_c, "module": tables.by_module, "dict": tables.by_dict}[kind]
        for batch in tables.batches:
            step(batch)
        rows = tables.rows()
        tables.close()
        return rows

    expected = run("C")
    kinds = ["module", "dict", "compiled"] + ["captured"] * (torch.device(device).type == "cuda")
    return [kind for kind in kinds if not torch.equal(run(kind), expected)]


def growth(tables, forwards):
    """Bytes by which the memory of the device and of the host grow in forwards without a backward."""

    def memory():
        tables.sync()
        device = 0
        if tables.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(tables.device)
            device = total - free
        return device, host_memory()

    def run(count):
        for i in range(count):
            tables.module.flat(tables.batches[i % len(tables.batches)])

    run(100)
    before = memory()
    with no_synchronization(tables.device):
        run(forwards)
    after = memory()
    tables.module.cancel()
    return after[0] - before[0], after[1] - before[1]


def measure(name, args):
    on_gpu = torch.device(args.device).type == "cuda"
    tables = Tables(name, args.scale, args.device, args.batches)
    for batch in tables.batches:  # every key has its row
        tables.by_module(batch)
    tables.by_dict(tables.batches[0])
    tables.fill_tickets()
    tables.sync()
    before = waits()
    least, median = host_times(tables, args.steps)
    grown = growth(tables, args.forwards)
    waited = waits() - before
    graphs = graph_times(tables, args.steps) if on_gpu else {}
    count = tables.batches[0].values().shape[0]
    tables.close()
    del tables
    differ = bytes_agree(name, args.scale, args.device, "inductor" if on_gpu else "aot_eager")
    extra, in_model = median["module"] - median["c"], median["module_model"] - median["c_model"]
    steps = (max(3, args.steps // CHUNK) + 1) * CHUNK * len(KINDS) + args.forwards + 100
    print(f"{name}, {count} keys a step, scale {args.scale}")
    for kind, (_, _, text) in KINDS.items():
        print(f"  host, {text:<39} {median[kind]:9.1f} us a step, least {least[kind]:9.1f}")
    for suffix, text in (("", ""), ("_inline", ", backward in the caller's thread")):
        own = median["module" + suffix] - median["function" + suffix]
        print(f"  host time above the C calls in an autograd function{text}: {own:.1f} us")
    checks = [
        (f"host time above the C calls{where} {us:.1f} us, limit {HOST_US:.0f}", not on_gpu or us <= HOST_US)
        for where, us in (("", extra), (" in a model", in_model))
    ]
    if on_gpu:
        print(f"  graph: C library {graphs['c']:.4f} ms, module {graphs['module']:.4f} ms")
        more = graphs["module"] / graphs["c"] - 1
        checks.append((f"device time of the graph {more:+.2%}, limit {GRAPH:.0%}", more <= GRAPH))
    checks += [
        (f"host waits {waited} in {steps} steps, limit 0", waited == 0),
        (f"other bytes than by the C calls: {', '.join(differ) or 'none'}", not differ),
        (f"device memory {grown[0]:+} bytes over {args.forwards} forwards, limit 0", grown[0] <= 0),
        (f"host memory {grown[1]:+} bytes over {args.forwards} forwards, limit {GROWTH}", grown[1] <= GROWTH),
    ]
    for text, is_met in checks:
        print(f"  {'ok    ' if is_met else 'MISSED'} {text}")
    result = {
        "workload": name,
        "scale": args.scale,
        "steps": args.steps,
        "keys_a_step": count,
        **{f"{kind}_host_us": value for kind, value in median.items()},
        **{f"{kind}_least_host_us": value for kind, value in least.items()},
        **{f"{kind}_graph_ms": value for kind, value in graphs.items()},
        "host_waits": waited,
        "different_bytes": differ,
        "forwards": args.forwards,
        "device_growth": grown[0],
        "host_growth": grown[1],
    }
    return result, all(is_met for _, is_met in checks)


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split("\n", maxsplit=1)[0])
    on_gpu = "cuda" in hotbed.backends() and torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--workload", choices=["W1", "W2", "all"], default="all")
    parser.add_argument("--scale", type=float, default=1.0 if on_gpu else 0.01)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--forwards", type=int, default=10000)
    parser.add_argument("--json")
    args = parser.parse_args()
    name = torch.cuda.get_device_name(args.device) if torch.device(args.device).type == "cuda" else processor()
    print(f"{name}, torch {torch.__version__}, hotbed {hotbed.__version__}")
    side = torch.cuda.stream(torch.cuda.Stream()) if torch.device(args.device).type == "cuda" else None
    with side or contextlib.nullcontext():  # the default stream cannot be captured
        results = [measure(w, args) for w in (["W1", "W2"] if args.workload == "all" else [args.workload])]
    if args.json:
        document = {"device": name, "torch": torch.__version__, "results": [r for r, _ in results]}
        layout.write(args.json, document)
    return 0 if all(good for _, good in results) else 1


if __name__ == "__main__":
    sys.exit(main())
