#!/usr/bin/env python3
"""tools/build.py - configure and build a preset with the options that this machine supports.

usage: tools/build.py [-j N] PRESET [TARGET...]

Presets are in CMakePresets.json.  The compilers' output goes to build/logs/build-PRESET.log, and its end is shown if
they fail.  Exit status 1: the build failed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import TextIO

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/logs"
JOBS = int(os.environ.get("JOBS") or os.cpu_count() or 2)

# CUDA's tools are often installed outside of PATH.
if not shutil.which("nvcc") and os.access("/usr/local/cuda/bin/nvcc", os.X_OK):
    os.environ["PATH"] += os.pathsep + "/usr/local/cuda/bin"


def output_of(*command: str) -> str:
    """What a command prints, or nothing if it fails or is missing."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def have_header(name: str) -> bool:
    """Whether the compiler finds a header."""
    command = ["c++", "-I/usr/include/hdf5/serial", "-E", "-x", "c++", "-"]
    try:
        return subprocess.run(command, input=f"#include <{name}>\n", text=True, capture_output=True).returncode == 0
    except OSError:
        return False


def have_gpu() -> bool:
    return any(line.startswith("GPU") for line in output_of("nvidia-smi", "-L").splitlines())


def switch(option: str, on: bool) -> str:
    return f"-D{option}={'ON' if on else 'OFF'}"


def python_option() -> str:
    """The Python that has h5py, with which some tests read checkpoints."""
    for python in ("python3", "/usr/bin/python3"):
        try:
            if subprocess.run([python, "-c", "import h5py"], capture_output=True).returncode == 0:
                return f"-DPython3_EXECUTABLE={shutil.which(python)}"
        except OSError:
            continue
    return f"-DPython3_EXECUTABLE={shutil.which('python3') or sys.executable}"


def linker_option() -> str:
    """Use gold, which links twice as fast as the default linker, if every compiler can."""
    compilers = {os.environ.get("CXX", "c++"), os.environ.get("CUDAHOSTCXX") or os.environ.get("CXX", "c++")}
    flags = os.environ.get("LDFLAGS", "")
    with tempfile.TemporaryDirectory() as folder:
        for compiler in compilers:
            command = [compiler, "-x", "c++", "-", "-fuse-ld=gold", "-o", f"{folder}/program"]
            try:
                works = subprocess.run(command, input="int main() {}\n", text=True, capture_output=True).returncode == 0
            except OSError:
                works = False
            if not works:
                return f"-DCMAKE_EXE_LINKER_FLAGS={flags}"
    return f"-DCMAKE_EXE_LINKER_FLAGS={' '.join(['-fuse-ld=gold', flags]).strip()}"


def rocksdb_option() -> str:
    return switch("HOTBED_ROCKSDB", have_header("rocksdb/c.h"))


def redis_option() -> str:
    """Rows in Redis, whose tests start a server."""
    found = all(map(have_header, ("xxhash.h", "hiredis/hiredis.h"))) and shutil.which("redis-server") is not None
    return switch("HOTBED_REDIS", found)


def peers_option() -> str:
    """The hash maps that the index is compared with in benchmarks."""
    return switch(
        "HOTBED_BENCH_PEERS", have_header("absl/container/flat_hash_map.h") and have_header("tsl/robin_map.h")
    )


def cuda_options(skips: list[str]) -> list[str]:
    """The options of preset cuda, on a machine that may lack libraries; what it lacks is added to `skips`."""
    options = []
    for option, headers, lost in (
        ("HOTBED_HDF5", ("hdf5.h", "xxhash.h"), "no libhdf5 or xxhash: checkpoints are left out"),
        ("HOTBED_SERVE", ("xxhash.h",), "no xxhash: publisher and reader are left out"),
        ("HOTBED_EXAMPLES", ("zlib.h",), "no zlib: the examples are left out"),
        ("HOTBED_BENCH_MICRO", ("benchmark/benchmark.h",), "no Google Benchmark: the microbenchmarks are left out"),
        ("HOTBED_ROCKSDB", ("rocksdb/c.h",), "no RocksDB: stores on disk are left out"),
    ):
        on = all(map(have_header, headers))
        options.append(switch(option, on))
        if not on:
            skips.append(f"cuda: {lost}")
    options.append(redis_option())
    # NCCL may be installed only as a Python package.
    nccl = output_of("python3", "-c", "import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])")
    toolkit = pathlib.Path(shutil.which("nvcc") or "/").parent.parent
    installed = [toolkit / "include/nccl_device.h", pathlib.Path("/usr/include/nccl_device.h")]
    if nccl and not any(map(os.path.exists, installed)) and os.path.exists(f"{nccl}/include/nccl_device.h"):
        options += [f"-DHOTBED_NCCL_INCLUDE={nccl}/include", f"-DHOTBED_NCCL_LIBRARY={nccl}/lib/libnccl.so.2"]
    return options


def options_of(preset: str, skips: list[str]) -> list[str]:
    options = [linker_option(), python_option()]
    if preset == "cuda":
        options += [switch("HOTBED_BENCH", True), *cuda_options(skips)]
        if have_gpu():
            # Build for this machine's GPU with the compiler that it has.
            capability = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").splitlines()[0]
            options += [
                f"-DCMAKE_CUDA_ARCHITECTURES={capability.replace('.', '').strip()}",
                switch("CMAKE_COMPILE_WARNING_AS_ERROR", False),
            ]
        else:
            # Hardly anything of this build runs here, so compile it faster.
            options.append("-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1")
            if "--Ofast-compile" in output_of("nvcc", "--help"):
                options.append("-DCMAKE_CUDA_FLAGS_RELWITHDEBINFO=--Ofast-compile=max")
    elif preset != "host-tsan":  # TSan cannot see the locks of a library that was compiled without it
        options += [rocksdb_option(), redis_option()]
    if preset == "host":
        options += [switch("HOTBED_BENCH", True), peers_option()]
    return options


def build(preset: str, targets: list[str], jobs: int, skips: list[str], shown: TextIO = sys.stdout) -> bool:
    """Configure and build; write the end of the output to `shown` if that fails."""
    for tool in ("cmake", "ninja"):
        if not shutil.which(tool):
            print(f"{tool} is missing: ./run setup", file=shown)
            return False
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"build-{preset}.log"
    chosen = ["--target", *targets] if targets else []
    commands = (
        ["cmake", "--preset", preset, *options_of(preset, skips)],
        ["cmake", "--build", "--preset", preset, "-j", str(jobs), *chosen, "--", "-k", "0"],
    )
    with open(log, "w") as out:
        for command in commands:
            out.write(f"{shlex.join(command)}\n")
            out.flush()
            if subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT).returncode != 0:
                break
        else:
            return True
    noise = re.compile(r"\[[0-9]+/[0-9]+\] (Building|Linking|Creating)|-- ")
    lines = [line for line in log.read_text(errors="replace").splitlines() if not noise.match(line)]
    print(*lines[-60:], f"build {preset} failed; all of it is in {log.relative_to(ROOT)}", sep="\n", file=shown)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-j", type=int, default=JOBS)
    parser.add_argument("preset")
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_args()
    return 0 if build(arguments.preset, arguments.targets, arguments.j, []) else 1


if __name__ == "__main__":
    sys.exit(main())
