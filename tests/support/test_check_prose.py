#!/usr/bin/env python3
"""tests/support/test_check_prose.py - tools/check_prose.py finds each phrase that it should, wherever it stands."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import check_prose  # noqa: E402

BAD = """
Which it is depends on the last eval
rows that of the oldest iteration
Those that share a bucket
to who has seen the reason
a list of what exists
the ranks are told of it
told of both
the row is there.
it has been seen on one machine
this one takes the most
it refuses none
an error of before
As it comes.
the desk of a call
the home of a row
deal rows to ranks
a meeting of threads
the threads come together
seal a block
the note of a row
forgive a fault
the haul of rows
the nursery
a victim
the road to the disk
one team of ranks
put off until later
it gives up a row
it takes a row down
it brings rows up
it swaps them
it waits for nothing
room for a row
a box of rows
grab a slot
the stream's lane
the lane of a host stream
""".strip().split("\n")
GOOD = """
What happens if the disk is full
There is a rank that waits.
say what the call does
For people who know CUDA
What does a step cost?
a compare-and-swap on the meta
in what order they add numbers
""".strip().split("\n")
# Where prose stands in files: (name, before each line, after it).
PLACES = [
    ("x.md", "", ""),
    ("x.c", "/* ", " */"),
    ("x.h", "// ", ""),
    ("x.cu", 'fail("', '");'),
    ("x.py", "# ", ""),
    ("x.py", 'print("', '")'),
    ("x.sh", "# ", ""),
    ("x.sh", 'echo "', '"'),
    ("x.cmake", "# ", ""),
]


def main() -> int:
    failed = 0
    for text, bad in [(text, True) for text in BAD] + [(text, False) for text in GOOD]:
        for name, before, after in PLACES:
            if bool(list(check_prose.findings_of(name, before + text + after))) != bad:
                print(f"{name}: {before + text + after}: {'not found' if bad else 'found'}")
                failed += 1
        words = text.split()
        broken = "/* " + "\n * ".join(words) + " */"
        if bool(list(check_prose.findings_of("x.c", broken))) != bad:
            print(f"x.c, a word a line: {text}: {'not found' if bad else 'found'}")
            failed += 1
    for name, text in [("x.c", "int victim_row;"), ("x.py", "def told(): pass"), ("team.h", "")]:
        if not list(check_prose.findings_of(name, text)):
            print(f"{name}: {text}: not found")
            failed += 1
    where = [number for number, _, _ in check_prose.findings_of("x.c", "int x;\n/* one\n * the\n * desk */")]
    if where != [4]:
        print(f"a finding of line 4 has the lines {where}")
        failed += 1
    print(f"{failed} checks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
