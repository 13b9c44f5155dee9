#!/usr/bin/env python3
"""tools/sanitize.py - run the CTest entries of a GPU under the tools of compute-sanitizer.

usage: sanitize.py BUILD TOOL... [--rows REGEX] [--only REGEX] [--modes] [--apart] [--gpus N] [--jobs N]
                   [--ranks N] [--seconds N] [--within N] [--logs DIR] [--results FILE]

Several tests of an entry run in one process, since a process takes longer to start than most tests take.  It gets the
entry's environment, HOTBED_TEST_SMALL and HOTBED_TEST_TOOL.  If it does not end well, its tests run one by one; with
--apart they do so from the start.

Order: tests run in the order ORDER of the rows of docs/features.md that name the program, under all tools.  Entries
with a mode come last, and only with --modes.  Racecheck leaves out the kernels of CUB and NCCL, which are not part of
this project.

--jobs      processes that run at once (default: two per GPU), each on the GPU that has the fewest
--ranks     run the entries of N ranks over NCCL instead, each rank in a process of its own under the tool, one entry at
            a time on all GPUs.  Not under initcheck: with it NCCL cannot register windows
--gpus      use only the first N GPUs of CUDA_VISIBLE_DEVICES, or of all
--rows      run only rows whose number matches
--only      run only tests that match, e.g. test_index.cuda.pins_keep_keys
--seconds   stop and report a process that runs longer
--within    stop everything after so many seconds, and report what is left
--results   add a line for each result to FILE, and skip what FILE contains already.  So runs add up; of two remaining
            tests, the one that took longer under another tool runs first.

At the end each row is reported as complete or partial.  A test that makes no CUDA call has nothing to check ("no
CUDA"): the tool reports that as an error.  If the tool itself fails, and reports nothing else, the test runs once more
alone on its GPU, and then counts neither as clean nor as a finding ("tool failed").
Exit status 1: a finding, or a test that failed.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

FOUND = 99  # exit status of the tool for findings
SKIPPED = 77
TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
# Launches block: the tools keep memory on the GPU for each launch until it ends, initcheck misses writes if several
# threads launch, and racecheck's threads would wait for a lock of the driver.  Memcheck: tests make CUDA calls fail on
# purpose, and check the outcome.  Synccheck determines by itself how many mbarriers a block has, and fails a launch
# that has more: bulk copies use two per thread.
OPTIONS = {
    "memcheck": ["--report-api-errors", "no"],
    "racecheck": ["--kernel-name-exclude", "kns=3cub", "--kernel-name-exclude", "kns=nccl"],
    "initcheck": [],
    "synccheck": ["--num-cuda-barriers", "1024"],
}
SHARE = 30  # seconds of a process; when the time of --within is up, what running processes have done is lost
GUESS = 15  # seconds of a test without a result
CLEAN = ["clean", "no CUDA", "skipped"]
RESULTS = [*CLEAN, "did not end", "not begun", "tool failed", "FAILED"]
# Rows, the kernels of one storage first.
ORDER = ["S([12489]|1[0357]|2[123])", "S.*", "D.*", "C.*", "P.*", ".*"]
PASSED = re.compile(r"^[1-9]\d* passed, ", re.M)
ALL_SKIPPED = re.compile(r"^0 passed, [1-9]", re.M)
NO_CUDA = re.compile(r"^=+ Error: Target application terminated before first instrumented API call", re.M)
# Lines in which a tool reports its own failure, and lines without information.
OWN = re.compile(r"=+ .*(Internal error|Error in printing record|No attachable process found|timed-out)")
REST = re.compile(r"=+ *(Address 0x[0-9a-f]+|Default timeout .*|COMPUTE-SANITIZER|\w+ SUMMARY: .*)?$")
FEATURES = pathlib.Path(__file__).parent.parent / "docs" / "features.md"


def read_rows():
    """The rows of features.md, and the test programs that each row names."""
    rows = {}
    for line in FEATURES.read_text().splitlines():
        row = re.match(r"\| ([A-Z]\d+) \|", line)
        if row:
            rows[row[1]] = re.findall(r"`(test_\w+)`", line)
    return rows


def read_entries(build, ranks):
    """(name, command, environment) of the programs that run on one GPU, or as `ranks` processes.

    The command is the program, behind what starts it on all ranks.
    """
    chosen = ["-R", rf"^test_.*\.ncclp{ranks}$"] if ranks else ["-LE", "slow", "-R", "^test_"]
    shown = subprocess.run(
        ["ctest", "--test-dir", build, "-L", "gpu", *chosen, "--show-only=json-v1"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for test in json.loads(shown)["tests"]:
        command = test.get("command", [])
        environment = dict(os.environ)
        for p in test["properties"]:
            if p["name"] == "ENVIRONMENT":
                environment.update(e.split("=", 1) for e in p["value"])
        while command and re.search(r"(/|^)env$|^[A-Z_]+=", command[0]):
            if "=" in command[0]:
                environment.update([command[0].split("=", 1)])
            command = command[1:]
        if command and pathlib.Path(command[-1 if ranks else 0]).name.startswith("test_"):
            yield test["name"], command, environment


class Gpus:
    """The GPUs, and how many tests each has."""

    def __init__(self, most, together):
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if names == [""]:
            try:
                listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
            except FileNotFoundError:
                listed = ""
            names = [str(i) for i in range(most or max(1, len(re.findall("^GPU", listed, re.M))))]
        self.tests = dict.fromkeys([",".join(names[:most])] if together else names[:most], 0)
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def one(self):
        with self.lock:
            gpu = min(self.tests, key=self.tests.get)
            self.tests[gpu] += 1
        try:
            yield gpu
        finally:
            with self.lock:
                self.tests[gpu] -= 1


def judge(status, log):
    if status == SKIPPED:
        return "skipped"
    passed = PASSED.search(log)
    if status != 0 and NO_CUDA.search(log) and (passed or ALL_SKIPPED.search(log)):
        return "no CUDA" if passed else "skipped"
    said = [line for line in log.splitlines() if line.startswith("=====")]
    own = [line for line in said if OWN.match(line)]
    if passed and own and all(line in own or REST.match(line) for line in said):
        return "tool failed"
    return "clean" if status == 0 else "FAILED"


class Test:
    """One test of an entry under one tool."""

    def __init__(self, tool, entry, name, command, environment, place):
        self.tool, self.entry, self.place = tool, entry, place
        self.test, self.name = name, f"{entry}.{name}"
        launched = command[0].endswith("/launch.sh")  # with the number of ranks
        self.start, self.command = (command[:2], command[2:]) if launched else ([], command)
        self.environment = environment
        self.result = "not begun"


class Run:
    """Tests of one entry under one tool, in one process."""

    def __init__(self, tests):
        self.tests = tests

    def run(self, gpu, seconds, until, logs):
        first, left = self.tests[0], until - time.monotonic()
        if left <= 0:
            return "not begun"
        full = [
            *first.start,
            "compute-sanitizer",
            "--tool",
            first.tool,
            "--force-blocking-launches",
            *OPTIONS[first.tool],
            "--error-exitcode",
            str(FOUND),
            *first.command,
            *(t.test for t in self.tests),
        ]
        self.log = logs / f"{first.tool}-{first.name}.log"
        with open(self.log, "w") as out:
            process = subprocess.Popen(
                full,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **first.environment,
                    "CUDA_VISIBLE_DEVICES": gpu,
                    "HOTBED_TEST_SMALL": "1",
                    "HOTBED_TEST_TOOL": first.tool,
                },
            )
            try:
                return judge(process.wait(min(seconds, left)), self.log.read_text(errors="replace"))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the tool and the program that it runs
                process.wait()
                return "did not end" if left > seconds else "not begun"


def make_runs(tests, took):
    """Group tests, which are in order, by their entry, about SHARE seconds to a process."""
    runs, last, spent = [], {}, {}
    for test in tests:
        group, seconds = (test.tool, test.entry), took.get(test.name, GUESS)
        if group not in last or spent[group] + seconds > SHARE:
            last[group], spent[group] = Run([]), 0
            runs.append(last[group])
        last[group].tests.append(test)
        spent[group] += seconds
    return runs


@functools.cache
def list_tests(program):
    return subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()


def find_tests(entries, rows, tools, only, modes):
    for name, command, environment in entries:
        if name.count(".") > 1 and not modes:
            continue
        places = [
            i
            for i, regex in enumerate(ORDER)
            for row, programs in rows.items()
            if re.fullmatch(regex, row) and name.split(".")[0] in programs
        ]
        place = name.count(".") > 1, min(places, default=len(ORDER))
        for tool in tools:
            for test in list_tests(command[2] if command[0].endswith("/launch.sh") else command[0]):
                if re.search(only, f"{name}.{test}"):
                    yield Test(tool, name, test, command, environment, place)


def report(tests, rows):
    for tool in dict.fromkeys(t.tool for t in tests):
        for result in RESULTS:
            names = [t.name for t in tests if t.tool == tool and t.result == result]
            named = "" if result in CLEAN else "".join(f" {n}" for n in names)
            print(f"{tool}: {len(names)} {result}{':' if named else ''}{named}")
    for row, programs in rows.items():
        parts = []
        for tool in dict.fromkeys(t.tool for t in tests):
            of = [t.result in CLEAN for t in tests if t.tool == tool and t.entry.split(".")[0] in programs]
            if of:
                parts.append(f"{tool} whole, {len(of)}" if all(of) else f"{tool} {sum(of)} of {len(of)}")
        if parts:
            print(f"{row}: {'; '.join(parts)}")


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, usage="\n".join(__doc__.split("\n")[2:4])[7:])
    parser.add_argument("build")
    parser.add_argument("tools", nargs="+", choices=TOOLS)
    parser.add_argument("--rows", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--modes", action="store_true")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--within", type=float, default=float("inf"))
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("build/logs"))
    parser.add_argument("--results", type=pathlib.Path)
    o = parser.parse_args()
    if o.ranks and "initcheck" in o.tools:
        parser.error("initcheck runs without --ranks only: with it NCCL cannot register windows")
    until = time.monotonic() + o.within
    o.logs.mkdir(parents=True, exist_ok=True)
    rows = {row: programs for row, programs in read_rows().items() if re.fullmatch(o.rows or ".*", row)}
    named = {program for programs in rows.values() for program in programs}
    entries = [e for e in read_entries(o.build, o.ranks) if not o.rows or e[0].split(".")[0] in named]
    before, took = {}, collections.defaultdict(float)
    if o.results and o.results.exists():
        for tool, name, seconds, result in (line.split(maxsplit=3) for line in o.results.read_text().splitlines()):
            before[tool, name] = result
            took[name] = max(took[name], float(seconds))
    tests = sorted(
        find_tests(entries, rows, o.tools, o.only, o.modes), key=lambda test: (test.place, -took.get(test.name, GUESS))
    )
    if not tests:
        sys.exit(f"sanitize.py: of the entries of {o.build} for one GPU no test matches {o.rows or o.only!r}")
    gpus, lock = Gpus(o.gpus, together=o.ranks is not None), threading.Lock()

    def one(run, last):
        begun = time.monotonic()
        with gpus.one() as gpu:
            result = run.run(gpu, o.seconds, until, o.logs)
        if result == "not begun" or (result not in CLEAN and not last):
            return
        seconds = (time.monotonic() - begun) / len(run.tests)
        passed = run.log.read_text(errors="replace").splitlines()
        with lock:
            for test in run.tests:
                test.result = "skipped" if result == "clean" and f"ok   {test.test}" not in passed else result
                if o.results:
                    with open(o.results, "a") as out:
                        out.write(f"{test.tool} {test.name} {seconds:.1f} {test.result}\n")
            if result == "FAILED":
                print(f"{run.tests[0].tool} {run.tests[0].name}:")
                print("".join(open(run.log, errors="replace").readlines()[-30:]), flush=True)

    for test in tests:
        test.result = before.get((test.tool, test.name), test.result)
    # Run tests together first, then one by one the tests of processes that did not end well; a tool that failed may
    # succeed with a GPU to itself.
    for last, jobs in (False, o.jobs or (1 if o.ranks else 2) * len(gpus.tests)), (True, len(gpus.tests)):
        left = [t for t in tests if t.result == "not begun"]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            runs = [Run([t]) for t in left] if last or o.apart else make_runs(left, took)
            list(pool.map(one, runs, [last] * len(runs)))
    report(tests, rows)
    results = {t.result for t in tests}
    return 1 if "FAILED" in results or not results & {"clean", "no CUDA"} else 0


sys.exit(main())
