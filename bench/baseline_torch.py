#!/usr/bin/env python3
"""bench/baseline_torch.py - W1 and W2 in plain PyTorch on this machine's processor, for comparison.

Each table is an nn.EmbeddingBag(sparse=True), trained by SparseAdam (W1) or SGD (W2).  The keys, the
batches, the warm-up cycle and the JSON are the same as in hotbed-workloads; bench/report.py compares
the two.  The tables are static, so PyTorch does no hashing and inserts no keys.

    bench/baseline_torch.py [--workload W1|W2|all] [--scale 0.1] [--steps 20] [--json FILE]
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time

try:
    import numpy as np
    import torch
except ImportError as error:
    print(f"baseline_torch: skipped: {error}")
    sys.exit(77)

TABLES, DIM, BATCHES, ALPHA = 10, 128, 100, 1.05
OPTIMIZERS = {"W1": "adam", "W2": "sgd"}


def processor():
    """The processor's name, as /proc/cpuinfo has it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


def mix(x):
    """splitmix64's finalizer, on arrays of uint64."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def make_keys(rows, samples, batches=BATCHES):
    """The key stream of bench/workload_input.c: [batches, TABLES, samples]."""
    count = batches * TABLES * samples
    numbers = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    uniform = (mix(numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    g = 1.0 - ALPHA
    keys = np.floor((uniform * (float(rows) ** g - 1.0) + 1.0) ** (1.0 / g)).astype(np.int64)
    return torch.from_numpy(np.minimum(keys, rows - 1).reshape(batches, TABLES, samples))


class Model:
    """The tables of one workload, and its steps."""

    def __init__(self, workload, rows, samples):
        self.tables = [
            torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True) for _ in range(TABLES)
        ]
        weights = [table.weight for table in self.tables]
        if workload == "W1":
            self.optimizer = torch.optim.SparseAdam(weights, lr=0.01)
        else:
            self.optimizer = torch.optim.SGD(weights, lr=0.01)
        self.bags = torch.arange(samples)
        generator = torch.Generator().manual_seed(1)
        self.gradients = [
            torch.rand(samples, DIM, generator=generator) - 0.5 for _ in range(TABLES)
        ]

    def forward(self, keys):
        return [table(keys[t], self.bags) for t, table in enumerate(self.tables)]

    def backward(self, outputs):
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(outputs, self.gradients)
        self.optimizer.step()

    def step(self, keys):
        """Seconds of forward, and of backward with the optimizer."""
        start = time.perf_counter()
        outputs = self.forward(keys)
        middle = time.perf_counter()
        self.backward(outputs)
        return middle - start, time.perf_counter() - middle


def measure(workload, scale, steps):
    rows, samples = int(1677721 * scale), int(104857 * scale)
    keys = make_keys(rows, samples)
    model = Model(workload, rows, samples)
    for batch in range(BATCHES):
        model.step(keys[batch])
    times = [model.step(keys[s % BATCHES]) for s in range(steps)]
    evals = []
    with torch.no_grad():
        for s in range(steps):
            start = time.perf_counter()
            model.forward(keys[s % BATCHES])
            evals.append(time.perf_counter() - start)
    unique = sum(len(torch.unique(keys[0, t])) for t in range(TABLES))

    def median(values):
        return round(statistics.median(values) * 1e3, 6)

    return {
        "workload": workload,
        "optimizer": OPTIMIZERS[workload],
        "scale": scale,
        "tables": TABLES,
        "rows": rows,
        "dim": DIM,
        "keys_a_step": TABLES * samples,
        "unique_a_step": unique,
        "batches": BATCHES,
        "steps": steps,
        "eager_forward_ms": median([f for f, _ in times]),
        "eager_backward_ms": median([b for _, b in times]),
        "eager_train_ms": median([f + b for f, b in times]),
        "eager_eval_ms": median(evals),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workload", choices=["W1", "W2", "all"], default="all")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json")
    args = parser.parse_args()
    names = ["W1", "W2"] if args.workload == "all" else [args.workload]
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    results = [measure(name, args.scale, args.steps) for name in names]
    for r in results:
        print(
            f"{r['workload']} {r['optimizer']:<4} torch {torch.__version__} "
            f"fwd {r['eager_forward_ms']:.3f} bwd {r['eager_backward_ms']:.3f} "
            f"train {r['eager_train_ms']:.3f} eval {r['eager_eval_ms']:.3f} ms"
        )
    if args.json:
        document = {
            "format": "hotbed-baseline 1",
            "name": f"PyTorch {torch.__version__}, nn.EmbeddingBag(sparse)",
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "backend": "host",
            "device": f"{processor()}, {threads} threads",
            "driver": "",
            "command": f"baseline_torch.py --workload {args.workload} --scale {args.scale} "
            f"--steps {args.steps}",
            "results": results,
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
