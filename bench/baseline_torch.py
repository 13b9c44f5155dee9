#!/usr/bin/env python3
"""bench/baseline_torch.py - workloads of hotbed-workloads in other libraries on this machine's processor.

Libraries: PyTorch's nn.EmbeddingBag(sparse=True), a module per table, trained by torch.optim; and
FBGEMM's CPU TBE (package fbgemm-gpu-cpu), all tables in one module, which updates in its backward.
Their tables are static: they do no hashing and insert no keys.  Keys, batches, the warm-up cycle and
the JSON are the same as in hotbed-workloads.

    bench/baseline_torch.py [--library torch|fbgemm] [--workload W1,...] [--scale 0.1] [--steps 20]
                            [--threads N] [--json FILE]
"""

import argparse
import datetime
import math
import os
import platform
import statistics
import sys
import time

import layout

try:
    import numpy as np
    import torch
except ImportError as error:
    print(f"baseline_torch: skipped: {error}")
    sys.exit(77)

DIM, ALPHA = 128, 1.05
# The tables of bench/workload_input.c: rows, and keys in a bag.
BAG_ROWS = (
    4000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 4000000, 3067956, 405282, 10,
    2209, 11938, 155, 4, 976, 14, 4000000, 4000000, 4000000, 590152, 12973, 108, 36,
)  # fmt: skip
BAG_KEYS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
# Optimizer, samples of W9 to W12, and whether their keys are uniform.
WORKLOADS = {
    "W1": ("adam", 0, False),
    "W2": ("sgd", 0, False),
    "W9": ("rowwise_adagrad", 8192, False),
    "W10": ("rowwise_adagrad", 8192, True),
    "W11": ("rowwise_adagrad", 8192, False),
    "W12": ("rowwise_adagrad", 1024, False),
    "W12-256": ("rowwise_adagrad", 256, False),
}


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


def uniform(first, count):
    """Random numbers first .. first+count-1 of the key stream, in [0, 1)."""
    numbers = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mix(numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def power_law(u, rows):
    g = 1.0 - ALPHA
    return np.floor((u * (float(rows) ** g - 1.0) + 1.0) ** (1.0 / g))


class Shape:
    """Sizes and keys of a workload, as in bench/workload_input.c."""

    def __init__(self, name, scale):
        self.optimizer, samples, self.even = WORKLOADS[name]
        self.half = name == "W11"
        self.pooled = samples > 0
        if self.pooled:
            self.samples = math.ceil(samples * scale)
            self.rows = [math.ceil(rows * scale) for rows in BAG_ROWS]
            self.bags, self.batches = list(BAG_KEYS), 20
        else:
            self.samples = int(104857 * scale)
            self.rows, self.bags, self.batches = [int(1677721 * scale)] * 10, [1] * 10, 100
        self.keys_a_step = self.samples * sum(self.bags)

    def keys(self, batch):
        """The keys of a batch, table by table: a tensor per table."""
        at, tables = batch * self.keys_a_step, []
        for rows, bag in zip(self.rows, self.bags):
            u = uniform(at, bag * self.samples)
            at += bag * self.samples
            if not self.pooled:
                keys = power_law(u, rows)
            elif self.even:
                keys = np.floor(u * rows)
            else:
                keys = power_law(u, rows) - 1.0
            tables.append(torch.from_numpy(np.minimum(keys, rows - 1).astype(np.int64)))
        return tables

    def gradients(self):
        generator = torch.Generator().manual_seed(1)
        return [torch.rand(self.samples, DIM, generator=generator) - 0.5 for _ in self.rows]


class EmbeddingBags:
    """A nn.EmbeddingBag per table."""

    name = f"PyTorch {torch.__version__}, nn.EmbeddingBag(sparse)"

    def __init__(self, shape):
        if shape.half:
            raise NotImplementedError("no float16 weights")
        self.tables = [torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True) for rows in shape.rows]
        weights = [table.weight for table in self.tables]
        if shape.optimizer == "adam":
            self.optimizer = torch.optim.SparseAdam(weights, lr=0.01)
        elif shape.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(weights, lr=0.01)
        else:  # PyTorch has no row-wise AdaGrad: this one has a state per element
            self.optimizer = torch.optim.Adagrad(weights, lr=0.01)
        self.trains = True
        self.offsets = [torch.arange(shape.samples) * bag for bag in shape.bags]
        self.gradients = shape.gradients()

    @staticmethod
    def batch(tables):
        return tables

    def forward(self, batch):
        return [t(keys, offsets) for t, keys, offsets in zip(self.tables, batch, self.offsets)]

    def backward(self, outputs):
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(outputs, self.gradients)
        self.optimizer.step()


class TableBatched:
    """FBGEMM's TBE for all tables."""

    def __init__(self, shape):
        import fbgemm_gpu
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self.name = f"FBGEMM {fbgemm_gpu.__version__}, CPU TBE, PyTorch {torch.__version__}"
        self.trains = shape.optimizer != "adam"  # the CPU's TBE has no Adam: forward and eval only
        rowwise = shape.optimizer == "rowwise_adagrad"
        self.module = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in shape.rows],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD if rowwise else EmbOptimType.EXACT_SGD,
            learning_rate=0.01,
            weights_precision=SparseType.FP16 if shape.half else SparseType.FP32,
            output_dtype=SparseType.FP32,
        )
        self.module.init_embedding_weights_uniform(-0.01, 0.01)
        lengths = [bag for bag in shape.bags for _ in range(shape.samples)]
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(lengths).cumsum(0)])
        self.gradient = torch.cat(shape.gradients(), dim=1)

    @staticmethod
    def batch(tables):
        return torch.cat(tables)

    def forward(self, batch):
        return self.module(batch, self.offsets)

    def backward(self, output):
        output.backward(self.gradient)


def train(model, batch):
    """Seconds of forward, of backward with the optimizer, and of both."""
    start = time.perf_counter()
    outputs = model.forward(batch)
    middle = time.perf_counter()
    if model.trains:
        model.backward(outputs)
    end = time.perf_counter()
    return middle - start, end - middle, end - start


def measure(library, name, scale, steps):
    shape = Shape(name, scale)
    model = library(shape)
    batches = [model.batch(shape.keys(b)) for b in range(shape.batches)]
    for batch in batches:
        train(model, batch)
    times = [train(model, batches[s % shape.batches]) for s in range(steps)]
    evals = []
    with torch.no_grad():
        for s in range(-1, steps):
            start = time.perf_counter()
            model.forward(batches[s % shape.batches])
            evals.append(time.perf_counter() - start)
    figures = {"forward": [t[0] for t in times], "eval": evals[1:]}
    if model.trains:
        figures["backward"] = [t[1] for t in times]
        figures["train"] = [t[2] for t in times]
    result = {
        "workload": name,
        "optimizer": shape.optimizer,
        "scale": scale,
        "tables": len(shape.rows),
        "rows": max(shape.rows),
        "dim": DIM,
        "keys_a_step": shape.keys_a_step,
        "batches": shape.batches,
        "steps": steps,
    }
    for phase in ("forward", "backward", "train", "eval"):
        if phase in figures:
            result[f"eager_{phase}_ms"] = round(statistics.median(figures[phase]) * 1e3, 6)
            result[f"least_{phase}_ms"] = round(min(figures[phase]) * 1e3, 6)
    return model.name, result


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--library", choices=["torch", "fbgemm"], default="torch")
    parser.add_argument("--workload", default="W1,W2")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    args = parser.parse_args()
    names = list(WORKLOADS) if args.workload == "all" else args.workload.split(",")
    torch.set_num_threads(args.threads)
    library = EmbeddingBags if args.library == "torch" else TableBatched
    results, title = [], ""
    for name in names:
        try:
            title, result = measure(library, name, args.scale, args.steps)
        except NotImplementedError as failure:
            print(f"{name}: skipped: {failure}")
            continue
        results.append(result)
        phases = " ".join(
            f"{phase} {result[f'eager_{phase}_ms']:.3f} (least {result[f'least_{phase}_ms']:.3f})"
            for phase in ("forward", "backward", "train", "eval")
            if f"eager_{phase}_ms" in result
        )
        print(f"{name} {args.library} {phases} ms")
    if args.json:
        document = {
            "format": "hotbed-baseline 1",
            "name": title,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "backend": "host",
            "device": f"{processor()}, {args.threads} threads",
            "driver": "",
            "command": f"baseline_torch.py --library {args.library} --workload {args.workload} "
            f"--scale {args.scale} --steps {args.steps} --threads {args.threads}",
            "results": results,
        }
        layout.write(args.json, document)


if __name__ == "__main__":
    main()
