#!/usr/bin/env python3
"""bench/host.py - the host backend beside other libraries on the same cores.

Runs hotbed-workloads, both libraries of bench/baseline_torch.py and hotbed-bench (built with
HOTBED_BENCH_PEERS) in turn, several times, and keeps the fastest of each figure: other processes of
the machine disturb single runs.  bench/report.py makes bench/results/host.md of the JSON file.

    bench/host.py --build build/host --python PYTHON --json FILE [--workload W1,...] [--scale 0.02]
                  [--steps 10] [--finds REGEX] [--rounds 5] [--cores 0] [--commit TEXT]
"""

import argparse
import datetime
import json
import os
import subprocess
import tempfile

import layout

HERE = os.path.dirname(os.path.abspath(__file__))
PHASES = ("forward", "backward", "train", "eval")


def run(args, command, path):
    """Run a program on the chosen cores, and return the JSON that it wrote to `path`."""
    threads = str(len(args.cores.split(",")))
    environment = dict(os.environ, HOTBED_THREADS=threads, OMP_NUM_THREADS=threads)
    subprocess.run(["taskset", "-c", args.cores, *command], env=environment, stdout=subprocess.DEVNULL, check=True)
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def keep(into, name, values):
    """Keep the smaller ones of `values` and of those known under this name."""
    known = into.setdefault(name, {})
    for key, value in values.items():
        known[key] = min(value, known.get(key, value))


def phases(result):
    return {p: result[f"least_{p}_ms"] for p in PHASES if f"least_{p}_ms" in result}


def steps(args, folder, cases):
    """One round of the workloads; returns the device and the libraries' names."""
    path = os.path.join(folder, "steps.json")
    which = ["--workload", args.workload, "--scale", str(args.scale), "--steps", str(args.steps), "--json", path]
    program = os.path.join(args.build, "bench", "hotbed-workloads")
    document = run(args, [program, "--backend", "host", *which], path)
    for result in document["results"]:
        name, _, kind = result["workload"].partition(" ")
        keep(cases.setdefault(name, {}), f"Hotbed {kind or 'hash'}", phases(result))
    names = {}
    for library in ("torch", "fbgemm"):
        baseline = os.path.join(HERE, "baseline_torch.py")
        threads = str(len(args.cores.split(",")))
        other = run(args, [args.python, baseline, "--library", library, "--threads", threads, *which], path)
        names[library] = other["name"]
        for result in other["results"]:
            keep(cases[result["workload"]], library, phases(result))
    return document["device"], names


def finds(args, folder, cases):
    """One round of lookups in the index and in the hash maps."""
    path = os.path.join(folder, "finds.json")
    program = os.path.join(args.build, "bench", "hotbed-bench")
    command = [program, "--backend", "host", "--iterations", "10", f"--benchmark_out={path}"]
    document = run(args, [*command, f"--benchmark_filter={args.finds}"], path)
    for entry in document["benchmarks"]:
        parts = entry["name"].split("/")
        sizes = " ".join(p for p in parts[3:] if p.split(":")[0] in ("n", "slots", "load", "hits"))
        if "best_us" in entry:
            keep(cases, sizes, {parts[1]: entry["best_us"]})


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default="build/host")
    parser.add_argument("--python", default="python3", help="a Python with torch, numpy and fbgemm-gpu-cpu")
    parser.add_argument("--workload", default="W1,W2,W9,W10,W11,W12")
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--finds", default="index/alone_find/|peer/", help="which lookups to run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", default="0", help="list of cores, one thread for each")
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", required=True)
    args = parser.parse_args()
    document = {
        "format": "hotbed-host 1",
        "commit": args.commit,
        "command": f"host.py --workload {args.workload} --scale {args.scale} --steps {args.steps} "
        f"--finds '{args.finds}' --rounds {args.rounds} --cores {args.cores}",
        "threads": len(args.cores.split(",")),
        "least_ms": {},
        "least_find_us": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for at in range(2 * args.rounds):
            if at % 2 == 0:
                document["device"], document["libraries"] = steps(args, folder, document["least_ms"])
            else:
                finds(args, folder, document["least_find_us"])
            document["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            layout.write(args.json, document)  # each time: an interrupted run keeps its results


if __name__ == "__main__":
    main()
