#!/usr/bin/env python3
"""tools/test.py - the checks of ./run test and ./run gpu.

usage: tools/test.py test [quick | full] [STEP...]     every check that this machine supports, or only the named steps
       tools/test.py gpu [STEP...]                     on a machine with a GPU; ./run help lists the steps

A step of `test` consists of jobs.  Up to two jobs run side by side, in the order of the list, each after the jobs that
it needs; the last ones are short, so that both lanes end at about the same time.  A job writes its output to
build/logs/JOB.log.  Exit status 1: a check failed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Callable, TextIO

import build
from build import JOBS, LOGS, ROOT, have_gpu, output_of, switch

# Entries with label "once" (the trainer's programs, checks of the tree) have the same result in every build and run
# in the host build only.  The other builds run tests again, shortened, for the errors that only they find:
#   clang   other code for the same source: arithmetic, vectors, atomics, and each module once
#   asan    memory faults and undefined behaviour, which show in few steps; the number of processes changes nothing, so
#           three; the modes, without programs whose work on rows is the same in each (init, unique, ...)
#   tsan    races, in programs without label "serial"; three processes; of the modes, the ones with different moves of
#           rows (CACHE, DEFAULT by score, an external store)
ALIKE = r"^test_storage_(init|unique|accumulate|optimizer)\.[a-z]+\.host$"  # modes that run the same code
SMOKE = (
    "float philox sort stream abi index_core index_model index_race host_sets step_core eval_core score_core"
    " optimizer_rows storage_contract storage_step storage_accumulate storage_optimizer storage_programs storage_race"
    " storage_tiers storage_tickets storage_eval storage_rows storage_external kjt comm sharded balance golden"
    " checkpoint checkpoint_snapshot manifest engine train train_shortcut model criteo"
).split()
# Without a GPU these test the code that chooses between backends.
CHOOSING = "stream memory launch dist comm index storage_contract storage_step storage_tiers".split()
CTEST = {
    "host": [],
    "clang": ["-R", rf"^test_({'|'.join(SMOKE)})\.host$"],
    "asan": ["-LE", "once|compiler", "-E", ALIKE + r"|\.(mpi[24]|tcp2)$|^comm_death\.[a-z]+$"],
    "tsan": ["-LE", "once|compiler|serial", "-E", ALIKE + r"|\.(hash|([a-z]+_)?pinned)\.host$|\.tcp2$"],
    "cuda": ["-R", rf"^(sources_have_no_circular_dependencies|test_({'|'.join(CHOOSING)})\.host)$"],
}
# What is built for these tests, instead of all: clang-tidy shows clang's warnings in the rest, and the rest has no CUDA
# code of its own.
TARGETS = {
    "clang": ["hotbed", *(f"test_{name}" for name in SMOKE)],
    "cuda": ["cuda_code", *(f"test_{name}" for name in CHOOSING)],
}
PRESETS = {"host": "host", "clang": "host-clang", "asan": "host-asan", "tsan": "host-tsan", "cuda": "cuda"}
TIDY_PARTS = 8
TIDY = ["tidy-configure", *(f"tidy-{part}" for part in range(1, TIDY_PARTS + 1))]
STEPS = {
    "format": ["format"],
    "layers": ["layers"],
    "apidocs": ["apidocs"],
    "mutations": ["mutations"],
    "host": ["build-host", "tests-host"],
    "asan": ["build-asan", "tests-asan"],
    "tsan": ["build-tsan", "tests-tsan"],
    "cuda": ["build-cuda", "tests-cuda"],
    "clang": ["build-clang", "tests-clang"],
    "python": ["python"],
    "docs": ["docs"],
    "bare": ["bare"],
    "install": ["build-host", "install"],
    "tidy": TIDY,
}
NEEDS = {
    **{f"tests-{name}": [f"build-{name}"] for name in PRESETS},
    **{job: ["tidy-configure"] for job in TIDY[1:]},
    "install": ["build-host"],
    "python": ["build-host", "build-asan"],
}
SHOWN = 150  # lines of a failed job's output


class Skipped(Exception):  # noqa: N818
    """The reason why a job does not run on this machine."""


@dataclasses.dataclass
class Job:
    """A job, its output and its counts.  Its function returns whether it passed, or raises Skipped."""

    name: str
    depth: str = "short"
    width: int = JOBS  # parallel jobs of the compiler and of ctest
    skips: list[str] = dataclasses.field(default_factory=list)
    passed: int = 0
    failed: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    state: str = "waiting"  # then running, and passed, failed or skipped
    seconds: float = 0
    log: TextIO = sys.stdout

    @property
    def full(self) -> bool:
        return self.depth == "full"

    def run(self, *command: object, **environment: str) -> bool:
        """Run a command of the project; its output goes to the job's log."""
        words = [str(word) for word in command]
        changed = {**self.environment, **environment}
        self.log.write(" ".join([*(f"{k}={v}" for k, v in changed.items()), shlex.join(words)]) + "\n")
        self.log.flush()
        try:
            with start(words, stdout=self.log, env={**os.environ, **changed}) as process:
                return process.wait() == 0
        except OSError as error:
            self.log.write(f"{error}\n")
            return False

    def say(self, text: str) -> None:
        self.log.write(text + "\n")

    def build(self, preset: str, targets: list[str]) -> bool:
        return build.build(preset, targets, self.width, self.skips, self.log)

    def ctest(self, preset: str, *options: str, **environment: str) -> bool:
        """Run tests, and count them, instead of the job."""
        wrap = []
        # TSan of gcc 12 needs an address randomization that it supports.
        if preset == "host-tsan" and output_of("setarch", os.uname().machine, "-R", "echo", "1"):
            wrap = ["setarch", os.uname().machine, "-R"]
        begin = self.log.tell()
        good = self.run(*wrap, "ctest", "--preset", preset, "-j", self.width, *options, **environment)
        self.log.flush()
        with open(self.log.name, errors="replace") as log:
            log.seek(begin)
            text = log.read()
        # CMake 4 leaves out "0 tests failed".
        counts = re.findall(r"tests passed(?:, (\d+) tests failed)? out of (\d+)", text)
        if not counts:
            return good
        failed, whole, skipped = int(counts[-1][0] or 0), int(counts[-1][1]), text.count("***Skipped")
        self.passed += whole - failed - skipped - 1  # with the job itself
        self.failed += failed
        if failed:
            self.failures.append(f"tests of {preset}")
        reasons = skipped_tests(ROOT / "build" / preset / "Testing/Temporary/LastTest.log")
        (LOGS / f"skipped-{preset}.log").write_text("".join(f"{entry}: {reason}\n" for entry, reason in reasons))
        self.skips += [reason for _, reason in reasons]
        return True


def skipped_tests(log: pathlib.Path) -> list[tuple[str, str]]:
    """Entries of CTest that skipped tests, with the reasons."""
    found, entry = [], ""
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if match := re.match(r"\d+/\d+ Testing: (\S+)", line):
            entry = match[1]
        elif re.search(r"^skipped: |: skipped, |UNSUPPORTED: backend", line):
            reason = re.sub(r"^skipped: |^[A-Za-z0-9_.]+: skipped, ", "", line.strip())
            found.append((entry, re.sub(r".*UNSUPPORTED: ", "", reason)))
    return found


children: set[subprocess.Popen] = set()


@contextlib.contextmanager
def start(words: list[str], **options):
    """Start a command in a process group of its own, which ends with this program."""
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.STDOUT, start_new_session=True, **options)
    children.add(process)
    try:
        yield process
    finally:
        children.discard(process)


def end_all(*_: object) -> None:
    for process in list(children):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    os._exit(130)


# --- jobs ---------------------------------------------------------------------------------------


def build_job(job: Job, name: str) -> bool:
    if name == "cuda" and not shutil.which("nvcc"):
        raise Skipped("no nvcc on this machine: the CUDA sources are not compiled")
    if name == "host":
        for found, what in (
            (build.have_header("rocksdb/c.h"), "no RocksDB: stores on disk are left out of the host build"),
            (shutil.which("mpirun"), "no MPI: ranks over MPI are left out of the host build"),
            (build.have_header("tsl/robin_map.h"), "no Abseil or tsl: no hash maps beside the index in benchmarks"),
        ):
            if not found:
                job.skips.append(what)
    whole = job.full or (name == "cuda" and have_gpu())
    return job.build(PRESETS[name], [] if whole else TARGETS.get(name, []))


def tests_job(job: Job, name: str) -> bool:
    preset = PRESETS[name]
    longer = {  # more random programs, and a kill at every system call
        "HOTBED_TEST_SECONDS": os.environ.get("HOTBED_TEST_SECONDS", "180"),
        "HOTBED_TEST_EVERY": os.environ.get("HOTBED_TEST_EVERY", "1"),
    }
    if job.full:
        return job.ctest(preset, **(longer if name in ("host", "asan") else {}))
    if name == "host":
        return job.ctest(preset, *(["-LE", "slow"] if job.depth == "quick" else []))
    if name == "cuda" and have_gpu():
        return job.ctest(preset, "-L", "gpu")
    if name == "cuda":
        job.skips.append("no GPU on this machine: tests with label gpu are not run")
    return job.ctest(preset, *CTEST[name], HOTBED_TEST_SMALL="1")


def tidy(job: Job, files: list[str]) -> bool:
    """Run clang-tidy.  Its analyzer takes twelve times as long as all other checks together."""
    program = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    if not program:
        job.say("clang-tidy is missing: ./run setup")
        return False
    checks = [] if job.full else ["--checks=-clang-analyzer-*"]
    command = ["xargs", "-r", "-P", job.width, "-n", "2", program, "--quiet", "-p", "build/tidy", *checks]
    listed = LOGS / f"{job.name}.files"
    listed.write_text("\n".join(files))
    return job.run("sh", "-c", f'"$@" <{shlex.quote(str(listed))}', "sh", *command)


def tidy_job(job: Job, part: int) -> bool:
    """Every eighth file that the compiler is told of."""
    commands = (ROOT / "build/tidy/compile_commands.json").read_text()
    modules = "base storage dist pipeline checkpoint serve examples bench tests".split()
    files = [name for name in output_of("tools/sources.sh", "c", *modules).split() if f'/{name}"' in commands]
    return tidy(job, files[part % TIDY_PARTS :: TIDY_PARTS])


def tidy_configure(job: Job) -> bool:
    options = [switch("HOTBED_BENCH", True), build.rocksdb_option(), build.redis_option(), build.peers_option()]
    if not job.run("cmake", "--preset", "host", "-B", "build/tidy", *options):  # for compile_commands.json
        return False
    # A fault must fail a part.
    planted = "build/tidy/planted.c"
    (ROOT / planted).write_text("int planted(void);\nint planted(void);\nint planted(void) { return 1; }\n")
    if tidy(job, [planted]):
        job.say(f"clang-tidy finds nothing in {planted}")
        return False
    return True


def bare_job(job: Job) -> bool:
    """The library alone: it must not need anything that is OFF."""
    parts = ("HOTBED_HDF5", "HOTBED_SERVE", "HOTBED_MPI", "HOTBED_EXAMPLES", "BUILD_TESTING")
    off = [switch(name, False) for name in parts]
    if not job.run("cmake", "--preset", "host", "-B", "build/bare", "-DCMAKE_BUILD_TYPE=Debug", *off):
        return False
    if not job.run("cmake", "--build", "build/bare", "-j", job.width):
        return False
    needed = [line for line in output_of("readelf", "-d", "build/bare/libhotbed.so").splitlines() if "NEEDED" in line]
    wrong = [line for line in needed if re.search("hdf5|rocksdb|hiredis|mpi", line)]
    job.say("\n".join(wrong))
    return bool(needed) and not wrong


def need_venv(what: str) -> None:
    if subprocess.run(["python3", "-c", "import venv, ensurepip"], capture_output=True).returncode != 0:
        raise Skipped(f"no python3-venv: {what}")


def python_job(job: Job, built: Callable[[str], bool]) -> bool:
    """The Python package, in virtual environments of its own."""
    need_venv("the Python package is not tested")
    if not job.full and not os.environ.get("HOTBED_PYTHON_FULL"):
        job.environment["HOTBED_PYTHON_SHORT"] = "1"
    if built("build-asan"):
        job.environment["HOTBED_PYTHON_ASAN"] = str(ROOT / "build/host-asan/libhotbed.so")
    return job.run("tools/test_python.sh")


def docs_job(job: Job) -> bool:
    """The site, without a warning."""
    need_venv("the documentation site is not built")
    return job.run("tools/build_docs.sh")


def functions(built: Callable[[str], bool]) -> dict[str, Callable[[Job], bool]]:
    """The function of each job."""
    simple = {
        "format": ["tools/format.sh", "--check"],
        "layers": ["tools/check_layers.py"],
        "apidocs": ["tools/check_api_docs.sh"],
        "mutations": ["tests/mutations/run.py", "--check"],
        "install": ["tools/check_install.sh", "build/host"],
    }
    table: dict[str, Callable[[Job], bool]] = {
        "bare": bare_job,
        "python": functools.partial(python_job, built=built),
        "docs": docs_job,
        "tidy-configure": tidy_configure,
    }
    for name, command in simple.items():
        table[name] = functools.partial(lambda job, command: job.run(*command), command=command)
    for name in PRESETS:
        table[f"build-{name}"] = functools.partial(build_job, name=name)
        table[f"tests-{name}"] = functools.partial(tests_job, name=name)
    for part in range(1, TIDY_PARTS + 1):
        table[f"tidy-{part}"] = functools.partial(tidy_job, part=part)
    return table


def do(job: Job, function: Callable[[Job], bool]) -> None:
    """Run one job, and count it."""
    begin = time.monotonic()
    with open(LOGS / f"{job.name}.log", "w+", buffering=1) as job.log:
        try:
            good = function(job)
            job.state = "passed" if good and not job.failures else "failed"
            job.passed += good
            if not good:
                job.failed += 1
                job.failures.append(job.name)
        except Skipped as reason:
            job.skips.append(str(reason))
            job.state = "skipped"
        except Exception as error:
            job.say(f"{type(error).__name__}: {error}")
            job.failed += 1
            job.failures.append(job.name)
            job.state = "failed"
    job.seconds = time.monotonic() - begin


def show(job: Job) -> None:
    """Show the counts of a job, and its output if it failed."""
    if job.failures:
        noise = re.compile(r" *\d+/\d+ Test +#\d+: .* (Passed|\*\*\*Skipped)|\[\d+/\d+\] | *Start +\d+:")
        log = LOGS / f"{job.name}.log"
        lines = [line for line in log.read_text(errors="replace").splitlines() if not noise.match(line)]
        print(f"== {job.name}", *lines[-SHOWN:], f"all of it is in {log.relative_to(ROOT)}", sep="\n")
    print(f"-- {job.name}: {job.seconds:.0f} s, {job.passed} passed, {job.failed} failed", flush=True)


def pool(jobs: list[Job]) -> None:
    """Run all jobs, each after the jobs that it needs."""
    state = {job.name: job for job in jobs}
    table = functions(lambda name: name in state and state[name].state == "passed")
    lanes = 2 if JOBS >= 2 and len(jobs) > 3 else 1
    changed = threading.Condition()
    running: list[Job] = []

    def lane(job: Job) -> None:
        do(job, table[job.name])
        with changed:
            running.remove(job)
            show(job)
            changed.notify()

    with changed:
        while running or any(job.state == "waiting" for job in jobs):
            for job in jobs:
                if job.state != "waiting":
                    continue
                needs = [state[name].state for name in NEEDS.get(job.name, []) if name in state]
                if "failed" in needs or "skipped" in needs:
                    job.state = "skipped"
                elif len(running) < lanes and not {"waiting", "running"} & set(needs):
                    job.state, job.width = "running", max(1, JOBS // lanes)
                    running.append(job)
                    threading.Thread(target=lane, args=(job,), daemon=True).start()
            if running:
                changed.wait()


def summary(jobs: list[Job]) -> bool:
    """Print the reasons of skips, the failures, and the counts."""
    for reason, times in collections.Counter(reason for job in jobs for reason in job.skips).most_common():
        print(f"skipped: {f'{times} x ' if times > 1 else ''}{reason}")
    if any(job.skips for job in jobs):
        print(f"the tests are listed in {LOGS.relative_to(ROOT)}/skipped-*.log")
    for failure in (failure for job in jobs for failure in job.failures):
        print(f"FAILED: {failure}")
    failed = sum(job.failed for job in jobs)
    print(f"{sum(job.passed for job in jobs)} passed, {failed} failed")
    return failed == 0


@contextlib.contextmanager
def memory_files():
    """Put temporary files into memory if 4 GiB are free there: on a disk, tests of checkpoints wait for its syncs."""
    shared = "/dev/shm"
    if os.environ.get("TMPDIR") or not os.access(shared, os.W_OK) or shutil.disk_usage(shared).free < 4 << 30:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="hotbed-run-", dir=shared, ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder
        yield


def test(words: list[str]) -> bool:
    depth = words.pop(0) if words and words[0] in ("quick", "full") else "short"
    steps = ["host"] if depth == "quick" else words or list(STEPS)
    for step in steps:
        if step not in STEPS:
            sys.exit(f"run: no step '{step}'; ./run help lists them")
    names = dict.fromkeys(name for step in steps for name in STEPS[step])
    jobs = [Job(name, depth) for name in names]
    begin = time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    for old in LOGS.glob("skipped-*.log"):
        old.unlink()
    with memory_files():
        pool(jobs)
    print(f"\n== summary, after {time.monotonic() - begin:.0f} s")
    return summary(jobs)


# --- a machine with a GPU -----------------------------------------------------------------------

CHECKS = ["memcheck", "racecheck", "initcheck", "synccheck"]


def gpu_python(job: Job, out: str) -> bool:
    """Test the package over build/cuda's library, with the Python that has PyTorch, cffi, numpy and pytest."""
    package = ROOT / "build/cuda/package"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "python/hotbed", package / "hotbed")
    declarations = package / "hotbed/_declarations.py"
    if not job.run("python3", "tools/declarations.py", declarations, os.environ.get("CC", "cc")):
        return False
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    job.environment.update(PYTHONPATH=path, HOTBED_LIBRARY=str(ROOT / "build/cuda/libhotbed.so"))
    files = shlex.split(os.environ.get("PYTESTS", "python/tests/test_cuda.py"))
    device = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()[0]
    device = re.sub("[^a-z0-9.-]", "", device.lower().replace(" ", "-"))
    good = job.run("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", *files)
    return job.run("python3", "bench/bench_module.py", "--json", f"{out}/module-{device}.json") and good


def gpu_step(job: Job, out: str) -> bool:
    options = {name: shlex.split(os.environ.get(name, "")) for name in ("TESTS", "SANITIZE", "BENCH")}
    if job.name == "test":
        return job.ctest("cuda", *options["TESTS"])
    if job.name == "bench":
        return job.run("bench/run.sh", "build/cuda/bench", "cuda", out, *options["BENCH"])
    if job.name == "python":
        return gpu_python(job, out)
    if not shutil.which("compute-sanitizer"):
        raise Skipped(f"{job.name}: no compute-sanitizer on this machine")
    checks = CHECKS if job.name == "sanitize" else [job.name]
    return job.run("tools/sanitize.py", "build/cuda", *checks, "--logs", LOGS, *options["SANITIZE"])


def gpu(words: list[str]) -> bool:
    steps = words or ["test", *CHECKS, "bench"]
    known = ["test", "bench", "python", "sanitize", *CHECKS]
    if wrong := [step for step in steps if step not in known]:
        sys.exit(f"run: gpu: no step '{wrong[0]}': {' '.join(known)}")
    if not shutil.which("nvcc"):
        sys.exit("run: gpu: no nvcc on this machine")
    if not have_gpu():
        sys.exit("run: gpu: no GPU on this machine (nvidia-smi -L shows none)")
    print(output_of("nvidia-smi", "-L"), flush=True)
    # Tests share the memory of the GPU, so no more than eight run at once.
    jobs = [Job(step, width=min(JOBS, 8)) for step in steps]
    if not build.build("cuda", ["hotbed"] if steps == ["python"] else [], JOBS, jobs[0].skips):
        return False
    out = os.environ.get("OUT", "bench/results")
    os.makedirs(out, exist_ok=True)
    for job in jobs:
        print(f"== {job.name}", flush=True)
        log = LOGS / f"{job.name}.log"
        log.write_text("")
        with subprocess.Popen(["tail", "-f", log]) as shown:  # a run that is stopped has shown what it did
            do(job, functools.partial(gpu_step, out=out))
            time.sleep(1)
            shown.terminate()
    return summary(jobs)


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["test", "gpu"])
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_all)
    return 0 if {"test": test, "gpu": gpu}[arguments.command](arguments.words) else 1


if __name__ == "__main__":
    sys.exit(main())
