"""What tools/sanitize.py makes of the reports that a fake compute-sanitizer prints.

Tests are named after what happens: "found" has a finding, "found_in_company" only if its process runs others too.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "sanitize.py"

ENTRY = """#!/bin/sh
[ "$1" = --list ] && cat "$0.tests"
"""

CTEST = """#!/bin/sh
cat "$(dirname "$0")/entries.json"
"""

SANITIZER = """#!/usr/bin/env python3
import os, signal, sys
tests = sys.argv[sys.argv.index("--backend") + 2:]
with open(os.path.join(os.path.dirname(sys.argv[0]), "runs"), "a") as runs:
    runs.write(" ".join([sys.argv[sys.argv.index("--tool") + 1], *tests]) + "\\n")
print("========= COMPUTE-SANITIZER")
finding = "========= Uninitialized __global__ memory read of size 4 bytes\\n========= ERROR SUMMARY: 1 error"
if "hangs" in tests:
    signal.pause()
if "found" in tests or ("found_in_company" in tests and len(tests) > 1):
    print(finding)
    status = 99
elif tests == ["fails"]:
    print("1 == 2")
    sys.exit(1)
elif tests == ["tool_fails"]:
    print("ok   tool_fails\\n1 passed, 0 skipped\\n========= Internal error")
    sys.exit(99)
elif tests == ["no_cuda"]:
    print("ok   no_cuda\\n1 passed, 0 skipped")
    print("========= Error: Target application terminated before first instrumented API call")
    sys.exit(99)
elif tests == ["skipped"]:
    print("skip skipped\\n0 passed, 1 skipped")
    print("========= Error: Target application terminated before first instrumented API call")
    sys.exit(99)
else:
    status = 99 if {"fails", "tool_fails"} & set(tests) else 0
for test in tests:
    print(("skip " if test == "skipped" else "ok   ") + test)
print(f"{len(tests)} passed, 0 skipped")
sys.exit(status)
"""


class Sanitize(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)
        for name, text in (("test_fake", ENTRY), ("ctest", CTEST), ("compute-sanitizer", SANITIZER)):
            (self.at / name).write_text(text)
            (self.at / name).chmod(0o755)
        entry = {
            "name": "test_fake.cuda",
            "command": ["env", "A=1", str(self.at / "test_fake"), "--backend", "cuda"],
            "properties": [],
        }
        (self.at / "entries.json").write_text(json.dumps({"tests": [entry]}))

    def run_tests(self, *tests, options=()):
        (self.at / "test_fake.tests").write_text("\n".join(tests) + "\n")
        (self.at / "runs").write_text("")
        done = subprocess.run(
            [sys.executable, TOOL, self.at, "initcheck", "--logs", self.at / "logs", *options],
            env={**os.environ, "PATH": f"{self.at}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0"},
            capture_output=True,
            text=True,
        )
        self.runs = (self.at / "runs").read_text().splitlines()
        return done.returncode, done.stdout + done.stderr

    def test_clean_tests_share_a_process(self):
        status, out = self.run_tests("a", "b")
        self.assertEqual((status, self.runs), (0, ["initcheck a b"]))
        self.assertIn("initcheck: 2 clean", out)

    def test_a_finding_counts_if_the_test_alone_has_it(self):
        status, out = self.run_tests("a", "found")
        self.assertEqual((status, self.runs), (1, ["initcheck a found", "initcheck a", "initcheck found"]))
        self.assertIn("1 clean", out)
        self.assertIn("1 FAILED: test_fake.cuda.found", out)
        self.assertIn("Uninitialized", out)
        status, out = self.run_tests("a", "found_in_company")
        self.assertEqual(status, 0)
        self.assertIn("initcheck: 2 clean", out)

    def test_other_ends_are_told_apart(self):
        status, out = self.run_tests("a", "fails", "tool_fails", "no_cuda", "skipped")
        self.assertEqual(status, 1)
        for line in (
            "1 clean",
            "1 no CUDA",
            "1 skipped",
            "1 tool failed: test_fake.cuda.tool_fails",
            "1 FAILED: test_fake.cuda.fails",
        ):
            self.assertIn(f"initcheck: {line}\n", out)

    def test_a_test_skipped_in_company_is_not_clean(self):
        status, out = self.run_tests("a", "skipped")
        self.assertEqual(status, 0)
        self.assertIn("initcheck: 1 clean", out)
        self.assertIn("initcheck: 1 skipped", out)

    def test_a_test_that_hangs_is_stopped(self):
        status, out = self.run_tests("hangs", options=("--seconds", "1"))
        self.assertEqual(status, 1)
        self.assertIn("1 did not end: test_fake.cuda.hangs", out)

    def test_results_add_up(self):
        results = self.at / "results"
        options = ("--results", results)
        self.run_tests("a", options=options)
        status, out = self.run_tests("a", "b", options=options)
        self.assertEqual((status, self.runs), (0, ["initcheck b"]))
        self.assertIn("initcheck: 2 clean", out)
        status, out = self.run_tests("a", "b", options=("--within", "0"))
        self.assertEqual((status, self.runs), (1, []))
        self.assertIn("2 not begun: test_fake.cuda.a test_fake.cuda.b", out)

    def test_no_match_is_an_error(self):
        status, out = self.run_tests("a", options=("--only", "nothing"))
        self.assertEqual(status, 1)
        self.assertIn("no test matches 'nothing'", out)


if __name__ == "__main__":
    unittest.main()
