#!/usr/bin/env python3
"""tests/mutations/run.py - plant faults in a copy of the tree, one at a time, and see which test finds each.

usage: run.py [--first | --full] [--jobs N] [NAME...]   plant all faults, or those whose name contains a NAME
       run.py --check                                   whether the code still has every line that a fault replaces

Faults are in faults.txt, ordered by name:

    == NAME
    what is wrong, as a sentence
    BUILD: entries of CTest that are likely to find it, the likeliest first
    path/of/a/file
     a line that stays, if the others occur more than once
    -a line of the code
    +the line instead of it

BUILD is the preset that the entries are run in: host, host-asan or host-tsan.  The lines ' ' and '-' follow each other
in the file, once.  A path may follow again, for another place.

The fault's entries are built and run first.  Where none of them fails, everything that `./run test` runs in that
build follows, then in the other two, and with --full everything that `./run test full` runs in the three.  With --first
nothing follows.  A compiler that refuses the fault has found it.  The copy and its builds stay in build/mutations; a
second run is faster.
Status 0: the shorter run finds every fault; 1: it does not; 2: no fault has such a name, or one does not apply.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from test import CTEST, PRESETS  # noqa: E402

WORK = ROOT / "build/mutations"
TREE = WORK / "tree"
BUILDS = ("host", "host-asan", "host-tsan")
LEAST = 60  # faults
# What `./run test` leaves out of each build.
SHORT = {preset: CTEST[name] for name, preset in PRESETS.items()}
PROGRAMS = {  # of entries that are not named after their program
    "train_programs": ["hotbed-train", "hotbed-datagen"],
    "demo": ["hotbed-train", "hotbed-datagen"],
    "test_h5": ["sample_program"],
    "test_tool": ["sample_program", "hotbed-ckpt", "gc_beside"],
    "test_tool_gc": ["sample_program", "hotbed-ckpt"],
    "test_strace": ["sample_program", "hotbed-ckpt"],
}


class Fault:
    def __init__(self, text):
        self.name, self.fault, tests, *lines = [*text.rstrip("\n").split("\n"), "", ""]
        self.build, _, entries = tests.partition(": ")
        self.tests, self.places = entries.split(), []  # places: path, lines of the code, lines instead of them
        for line in filter(None, lines):
            if line[0] not in " -+":
                self.places.append((line, [], []))
            elif self.places:
                for sign, part in zip("-+", self.places[-1][1:]):
                    part.extend([line[1:]] if line[0] in (" ", sign) else [])
        self.files = sorted({path for path, _, _ in self.places})

    def planted(self, tree):
        """The texts of the changed files, by path.  Raises ValueError if a place is not there, or not once."""
        texts = {path: (tree / path).read_text() for path in self.files if (tree / path).is_file()}
        for path, old, new in self.places:
            if path not in texts:
                raise ValueError(f"there is no file {path}")
            if not old or old == new:
                raise ValueError(f"it replaces nothing in {path}")
            before, after = ("".join(f"\n{line}" for line in lines) + "\n" for lines in (old, new))
            text = "\n" + texts[path]
            if (found := len(re.findall(f"(?={re.escape(before)})", text))) != 1:
                raise ValueError(f"{path} has these lines {found} times, not once:{before.rstrip()}")
            texts[path] = text.replace(before, after)[1:]
        return texts

    def problem(self):
        if not self.fault or not self.tests or not self.places:
            return "it needs a sentence, tests and lines"
        if self.build not in BUILDS:
            return f"its build is '{self.build}', not one of {', '.join(BUILDS)}"
        for test in self.tests:
            if not any((ROOT / "tests").rglob(test.split(".")[0] + ".*")):
                return f"there is no test {test}"
        try:
            self.planted(ROOT)
        except ValueError as error:
            return str(error)
        return None


def read_faults():
    return [Fault(text) for text in re.split(r"^== ", (HERE / "faults.txt").read_text(), flags=re.M)[1:]]


def check(faults):
    bad = [f"{path.name}: faults belong in faults.txt" for path in sorted(HERE.glob("*.patch"))]
    names = [fault.name for fault in faults]
    bad += [f"{b}: it is below {a}, but faults are ordered by name" for a, b in zip(names, names[1:]) if a >= b]
    bad += [f"{fault.name}: {problem}" for fault in faults if (problem := fault.problem())]
    if len(faults) < LEAST:
        bad.append(f"{len(faults)} faults, fewer than {LEAST}")
    print("\n".join(bad) if bad else f"{len(faults)} planted faults apply")
    return 2 if bad else 0


def copy_tree():
    """Bring the copy up to date; files that did not change keep their times, so that builds stay warm."""
    TREE.mkdir(parents=True, exist_ok=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, TREE / name
        if not source.is_file():
            continue
        data = source.read_bytes()
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(source.stat().st_mode)


def configure(build):
    if (TREE / "build" / build / "build.ninja").exists():  # new tests since the last run
        subprocess.run(["ninja", "-C", f"build/{build}", "build.ninja"], cwd=TREE, check=True, capture_output=True)
        return
    options = [
        "-DHOTBED_BENCH=OFF",
        "-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF",
        "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1",  # most of the time is the compiler's
    ]
    for python in ("python3", "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import h5py"], capture_output=True).returncode == 0:
            options.append(f"-DPython3_EXECUTABLE={python}")
            break
    subprocess.run(["cmake", "--preset", build, *options], cwd=TREE, check=True, capture_output=True)


def programs(tests):
    return sorted({p for t in tests for p in PROGRAMS.get(t.split(".")[0], [t.split(".")[0]])})


def compile_targets(build, targets, jobs):
    return subprocess.run(
        ["ninja", "-C", f"build/{build}", f"-j{jobs}", *targets], cwd=TREE, capture_output=True, text=True
    )


def run_tests(build, options, jobs, small):
    """The entries that failed."""
    command = ["ctest", "--preset", build, "-j", str(jobs), "--timeout", "300", "--stop-on-failure", *options]
    if build == "host-tsan":
        command = ["setarch", os.uname().machine, "-R", *command]
    environment = dict(os.environ, **({"HOTBED_TEST_SMALL": "1"} if small else {}))
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, errors="replace", env=environment)
    text = done.stdout + done.stderr
    return (
        re.findall(r"^\s*\d+ - (\S+) \(", text.split("The following tests FAILED:")[-1], re.M)
        if "tests FAILED" in text
        else ([] if done.returncode == 0 else [f"ctest: {text.strip()[-200:]}"])
    )


def named(tests):
    return ["-R", "^(" + "|".join(map(re.escape, tests)) + ")$"]


def find(fault, jobs, first, full):
    """(which run found it, what found it); the run is 'first', 'short', 'full' or None."""
    built = compile_targets(fault.build, programs(fault.tests), jobs)
    if built.returncode:
        return "first", "the compiler"
    for test in fault.tests:
        if failed := run_tests(fault.build, named([test]), jobs, fault.build != "host"):
            return "first", failed[0]
    if first:
        return None, "nothing"
    for build in (fault.build, *(b for b in BUILDS if b != fault.build)):
        configure(build)
        if compile_targets(build, [], jobs).returncode:
            return "short", f"the compiler of {build}"
        if failed := run_tests(build, SHORT[build], jobs, build != "host"):
            return "short", f"{failed[0]} in {build}"
    for build in BUILDS if full else ():
        if failed := run_tests(build, [], jobs, False):
            return "full", f"{failed[0]} in {build}"
    return None, "nothing"


def baseline(faults, jobs):
    """Without a fault their own entries pass; otherwise they would find everything."""
    for build in BUILDS:
        tests = sorted({t for p in faults if p.build == build for t in p.tests})
        if not tests:
            continue
        configure(build)
        listed = subprocess.run(["ctest", "--preset", build, "-N"], cwd=TREE, capture_output=True, text=True).stdout
        if missing := set(tests) - set(re.findall(r"^ *Test +#\d+: (\S+)$", listed, re.M)):
            sys.exit(f"{build} has no entry {', '.join(sorted(missing))}")
        built = compile_targets(build, programs(tests), jobs)
        if built.returncode:
            sys.exit(f"{build} cannot be built without a fault:\n{built.stdout[-3000:]}")
        if failed := run_tests(build, named(tests), jobs, build != "host"):
            sys.exit(f"without a fault {failed[0]} fails in {build}")
        print(f"{build}: {len(tests)} entries pass without a fault", flush=True)


def main():
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    faults = read_faults()
    if options.check:
        return check(faults)
    if options.names:
        faults = [p for p in faults if any(name in p.name for name in options.names)]
    problems = [f"{p.name}: {problem}" for p in faults if (problem := p.problem())]
    if not faults or problems:
        print("\n".join(problems) if faults else "no fault has such a name")
        return 2
    copy_tree()
    baseline(faults, options.jobs)
    results, start = [], time.monotonic()
    for fault in sorted(faults, key=lambda p: (p.build, p.files)):
        before = {name: (TREE / name).read_text() for name in fault.files}
        begin = time.monotonic()
        try:
            for name, text in fault.planted(TREE).items():
                (TREE / name).write_text(text)
            run, by = find(fault, options.jobs, options.first, options.full)
        finally:
            for name, text in before.items():
                (TREE / name).write_text(text)
        results.append({"fault": fault.name, "run": run, "by": by})
        print(
            f"{fault.name}: {'found by ' + by if run else 'NOT FOUND'}"
            f"{'' if run in ('first', None) else ', by the ' + run + ' run'} ({time.monotonic() - begin:.0f} s)",
            flush=True,
        )
    (WORK / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    missed = [r["fault"] for r in results if r["run"] not in ("first", "short")]
    print(
        f"{len(results) - len(missed)} of {len(results)} faults found by the shorter run, "
        f"in {time.monotonic() - start:.0f} s" + (f"; not: {' '.join(missed)}" if missed else "")
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
