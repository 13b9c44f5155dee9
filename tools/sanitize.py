#!/usr/bin/env python3
"""tools/sanitize.py - the CTest entries of a GPU under a tool of compute-sanitizer, test by test.

usage: sanitize.py BUILD TOOL [--only REGEX] [--jobs N] [--seconds N] [--within N] [--logs DIR]

An entry's program runs once for each of its tests, with the entry's environment, several at a time.  Tests that
launch thousands of kernels do not end under some tools: they are stopped after --seconds and named.  After
--within seconds no more are begun, and those left are named.  Status 1: a finding, or a test that failed.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

FOUND = 99  # exit status of the tool for findings
SKIPPED = 77


def entries(build, only):
    """(name, command, environment) of the programs that run on one GPU, or on several in one process."""
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
        if command and pathlib.Path(command[0]).name.startswith("test_") and re.search(only, test["name"]):
            yield test["name"], command, environment


def tests(build, only):
    for name, command, environment in entries(build, only):
        listed = subprocess.run(command[:1] + ["--list"], capture_output=True, text=True, check=True).stdout
        for test in listed.split():
            yield f"{name}.{test}", command + [test], environment


def run(tool, seconds, logs, name, command, environment):
    # Tests make calls of CUDA fail on purpose, and check what becomes of it.
    quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
    full = ["compute-sanitizer", "--tool", tool, *quiet, "--error-exitcode", str(FOUND), *command]
    log = logs / f"{tool}-{name}.log"
    with open(log, "w") as out:
        try:
            return subprocess.run(
                full, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            return None


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2][7:])
    parser.add_argument("build")
    parser.add_argument("tool", choices=["memcheck", "racecheck", "initcheck", "synccheck"])
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--within", type=float, default=float("inf"))
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("build/logs"))
    o = parser.parse_args()
    o.logs.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + o.within
    seen = {"clean": [], "skipped": [], "did not end": [], "not begun": [], "FAILED": []}

    def one(test):
        if time.monotonic() > until:
            return "not begun", test[0]
        status = run(o.tool, o.seconds, o.logs, *test)
        return {0: "clean", SKIPPED: "skipped", None: "did not end"}.get(status, "FAILED"), test[0]

    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        for what, name in pool.map(one, tests(o.build, o.only)):
            seen[what].append(name)
            if what == "FAILED":
                print(f"{o.tool} {name}:")
                print("".join(open(o.logs / f"{o.tool}-{name}.log").readlines()[-30:]), flush=True)
    for what, names in seen.items():
        named = "" if what in ("clean", "skipped") else "".join(f" {n}" for n in names)
        print(f"{o.tool}: {len(names)} {what}{':' if named else ''}{named}")
    return 1 if seen["FAILED"] or not seen["clean"] else 0


sys.exit(main())
