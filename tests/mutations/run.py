#!/usr/bin/env python3
"""tests/mutations/run.py - plant faults in a copy of the tree, one at a time, and see which test finds each.

usage: run.py [--first | --full] [--jobs N] [NAME...]   plant all faults, or those whose name contains a NAME
       run.py --check                                   whether every patch still applies, and is complete

A patch begins with three lines:

    Fault: what is wrong with it, as a sentence
    Tests: entries of CTest that are likely to find it, the likeliest first
    Build: the preset that they are run in: host, host-asan or host-tsan

The entries of the patch are built and run first.  Where none of them fails, everything that `./run test` runs in that
build follows, then in the other two, and with --full everything that `./run test full` runs in the three.  With --first
nothing follows.  A compiler that refuses the fault has found it.  The copy and its builds stay in build/mutations; a
second run is faster.
Status 0: the shorter run finds every fault; 1: it does not; 2: no patch has such a name, or one does not apply.
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
LEAST = 60  # patches
# What `./run test` leaves out of each build.
SHORT = {preset: CTEST[name] for name, preset in PRESETS.items()}
PROGRAMS = {  # of entries that are not named after their program
    "train_programs": ["hotbed-train", "hotbed-datagen"],
    "demo": ["hotbed-train", "hotbed-datagen"],
    "test_h5": ["sample_program"],
    "test_tool": ["sample_program", "hotbed-ckpt"],
    "test_tool_gc": ["sample_program", "hotbed-ckpt"],
    "test_strace": ["sample_program", "hotbed-ckpt"],
}


class Patch:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        text = path.read_text()

        def field(name):
            return (re.search(rf"^{name}: (.+)$", text, re.M) or [None, ""])[1]

        self.fault, self.tests, self.build = field("Fault"), field("Tests").split(), field("Build")
        self.files = re.findall(r"^\+\+\+ b/(\S+)", text, re.M)

    def apply(self, tree, *options):
        return subprocess.run(
            ["patch", "-p1", "-s", "-N", "-F2", "--no-backup-if-mismatch", *options, "-i", str(self.path)],
            cwd=tree,
            capture_output=True,
            text=True,
        )

    def problem(self):
        if not self.fault or not self.tests or not self.files:
            return "it needs Fault, Tests and a difference"
        if self.build not in BUILDS:
            return f"Build is '{self.build}', not one of {', '.join(BUILDS)}"
        for test in self.tests:
            if not any((ROOT / "tests").rglob(test.split(".")[0] + ".*")):
                return f"there is no test {test}"
        done = self.apply(ROOT, "--dry-run")
        return f"it does not apply: {(done.stdout + done.stderr).strip()}" if done.returncode else None


def check(patches):
    bad = [f"{patch.name}: {problem}" for patch in patches if (problem := patch.problem())]
    if len(patches) < LEAST:
        bad.append(f"{len(patches)} patches, fewer than {LEAST}")
    print("\n".join(bad) if bad else f"{len(patches)} planted faults apply")
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


def find(patch, jobs, first, full):
    """(which run found it, what found it); the run is 'first', 'short', 'full' or None."""
    built = compile_targets(patch.build, programs(patch.tests), jobs)
    if built.returncode:
        return "first", "the compiler"
    for test in patch.tests:
        if failed := run_tests(patch.build, named([test]), jobs, patch.build != "host"):
            return "first", failed[0]
    if first:
        return None, "nothing"
    for build in (patch.build, *(b for b in BUILDS if b != patch.build)):
        configure(build)
        if compile_targets(build, [], jobs).returncode:
            return "short", f"the compiler of {build}"
        if failed := run_tests(build, SHORT[build], jobs, build != "host"):
            return "short", f"{failed[0]} in {build}"
    for build in BUILDS if full else ():
        if failed := run_tests(build, [], jobs, False):
            return "full", f"{failed[0]} in {build}"
    return None, "nothing"


def baseline(patches, jobs):
    """Without a fault the patches' own entries pass; otherwise they would find everything."""
    for build in BUILDS:
        tests = sorted({t for p in patches if p.build == build for t in p.tests})
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
    patches = [Patch(path) for path in sorted(HERE.glob("*.patch"))]
    if options.check:
        return check(patches)
    if options.names:
        patches = [p for p in patches if any(name in p.name for name in options.names)]
    if not patches or any(problem := p.problem() for p in patches):
        print(problem if patches else "no patch has such a name")
        return 2
    copy_tree()
    baseline(patches, options.jobs)
    results, start = [], time.monotonic()
    for patch in sorted(patches, key=lambda p: (p.build, p.files)):
        before = {name: (TREE / name).read_bytes() for name in patch.files}
        begin = time.monotonic()
        try:
            patch.apply(TREE)
            run, by = find(patch, options.jobs, options.first, options.full)
        finally:
            for name, data in before.items():
                (TREE / name).write_bytes(data)
        results.append({"fault": patch.name, "run": run, "by": by})
        print(
            f"{patch.name}: {'found by ' + by if run else 'NOT FOUND'}"
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
