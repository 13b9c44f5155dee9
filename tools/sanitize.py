#!/usr/bin/env python3
"""tools/sanitize.py - the CTest entries of a GPU under tools of compute-sanitizer, test by test.

usage: sanitize.py BUILD TOOL... [--rows REGEX] [--only REGEX] [--jobs N] [--seconds N] [--within N]
                   [--logs DIR] [--results FILE]

An entry's program runs once for each of its tests, with the entry's environment, several at a time, in the order of
the rows of docs/features.md that name the program: first the entries without a mode under all tools, then those with
one.  --rows leaves only rows whose number matches, --only only tests, as in test_index.cuda.pins_keep_keys.
Tests that launch thousands of kernels do not end under some tools: they are stopped after --seconds and named.  After
--within seconds all is stopped, and what is left is named.  --results keeps what ended, a line each, and what is in
it already does not run again: runs add up.  In the end each row is told to be whole or in part.
Status 1: a finding, or a test that failed.
"""
import argparse
import concurrent.futures
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
FEATURES = pathlib.Path(__file__).parent.parent / "docs" / "features.md"


def read_rows():
    """The rows of features.md, and the test programs that each names."""
    rows = {}
    for line in FEATURES.read_text().splitlines():
        row = re.match(r"\| ([A-Z]\d+) \|", line)
        if row:
            rows[row[1]] = re.findall(r"`(test_\w+)`", line)
    return rows


def read_entries(build):
    """(name, command, environment) of the programs that run on one GPU, or on several threads of it."""
    shown = subprocess.run(
        ["ctest", "--test-dir", build, "-L", "gpu", "-LE", "slow", "-R", "^test_", "--show-only=json-v1"],
        check=True, capture_output=True, text=True).stdout
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
        if command and pathlib.Path(command[0]).name.startswith("test_"):
            yield test["name"], command, environment


class Test:
    """One test of an entry under one tool."""

    def __init__(self, tool, entry, name, command, environment):
        self.tool, self.entry, self.name = tool, entry, f"{entry}.{name}"
        self.command, self.environment = command + [name], environment
        self.result = "not begun"

    def run(self, seconds, until, logs):
        left = until - time.monotonic()
        if left <= 0:
            return
        # Tests make calls of CUDA fail on purpose, and check what becomes of it.
        quiet = ["--report-api-errors", "no"] if self.tool == "memcheck" else []
        full = ["compute-sanitizer", "--tool", self.tool, *quiet, "--error-exitcode", str(FOUND), *self.command]
        self.log = logs / f"{self.tool}-{self.name}.log"
        with open(self.log, "w") as out:
            process = subprocess.Popen(
                full, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=self.environment,
                start_new_session=True)
            try:
                status = process.wait(min(seconds, left))
                self.result = {0: "clean", SKIPPED: "skipped"}.get(status, "FAILED")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the tool, and the program that it runs
                process.wait()
                if left > seconds:
                    self.result = "did not end"


@functools.lru_cache(maxsize=None)
def list_tests(program):
    return subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()


def find_tests(entries, rows, tools, only):
    """In the order in which they run."""
    order = [program for programs in rows.values() for program in programs]

    def place(entry):
        program = entry[0].split(".")[0]
        return entry[0].count(".") > 1, order.index(program) if program in order else len(order)

    for name, command, environment in sorted(entries, key=place):
        for tool in tools:
            for test in list_tests(command[0]):
                if re.search(only, f"{name}.{test}"):
                    yield Test(tool, name, test, command, environment)


def report(tests, rows):
    for tool in dict.fromkeys(t.tool for t in tests):
        for result in ["clean", "skipped", "did not end", "not begun", "FAILED"]:
            names = [t.name for t in tests if t.tool == tool and t.result == result]
            named = "" if result in ("clean", "skipped") else "".join(f" {n}" for n in names)
            print(f"{tool}: {len(names)} {result}{':' if named else ''}{named}")
    for row, programs in rows.items():
        parts = []
        for tool in dict.fromkeys(t.tool for t in tests):
            of = [t.result in ("clean", "skipped") for t in tests
                  if t.tool == tool and t.entry.split(".")[0] in programs]
            if of:
                parts.append(f"{tool} whole, {len(of)}" if all(of) else f"{tool} {sum(of)} of {len(of)}")
        if parts:
            print(f"{row}: {'; '.join(parts)}")


def main():
    parser = argparse.ArgumentParser(usage="\n".join(__doc__.split("\n")[2:4])[7:])
    parser.add_argument("build")
    parser.add_argument("tools", nargs="+", choices=TOOLS)
    parser.add_argument("--rows", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--within", type=float, default=float("inf"))
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("build/logs"))
    parser.add_argument("--results", type=pathlib.Path)
    o = parser.parse_args()
    until = time.monotonic() + o.within
    o.logs.mkdir(parents=True, exist_ok=True)
    rows = {row: programs for row, programs in read_rows().items() if re.fullmatch(o.rows or ".*", row)}
    named = {program for programs in rows.values() for program in programs}
    entries = [e for e in read_entries(o.build) if not o.rows or e[0].split(".")[0] in named]
    tests = list(find_tests(entries, rows, o.tools, o.only))
    before = {}
    if o.results and o.results.exists():
        before = {(tool, name): result for tool, name, _, result in
                  (line.split(maxsplit=3) for line in o.results.read_text().splitlines())}
    lock = threading.Lock()

    def one(test):
        begun = time.monotonic()
        test.run(o.seconds, until, o.logs)
        with lock:
            if o.results and test.result != "not begun":
                with open(o.results, "a") as out:
                    out.write(f"{test.tool} {test.name} {time.monotonic() - begun:.1f} {test.result}\n")
            if test.result == "FAILED":
                print(f"{test.tool} {test.name}:")
                print("".join(open(test.log, errors="replace").readlines()[-30:]), flush=True)

    for test in tests:
        test.result = before.get((test.tool, test.name), test.result)
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        list(pool.map(one, [t for t in tests if t.result == "not begun"]))
    report(tests, rows)
    results = {t.result for t in tests}
    return 1 if "FAILED" in results or "clean" not in results else 0


sys.exit(main())
