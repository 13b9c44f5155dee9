#!/usr/bin/env python3
"""bench/compare.py - list what is slower than in the committed results.

usage: compare.py [OUT]

Compares each JSON file of OUT (bench/results) with the committed file of the same name, figure by figure: times, and
rates of moving bytes.  Prints the figures that are more than 3 % slower, and how many are faster.  Limits, goals and
other libraries' figures are not compared, but the machine's own rate of copying is printed for both runs: a machine
that is slower itself explains slower figures.  Status 0, also if something is slower: one run on a busy machine proves
nothing.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOLERANCE = 0.03
# Of an entry of a list.
NAMES = (
    "name",
    "workload",
    "plan",
    "way",
    "engine",
    "warps",
    "sms",
    "row_bytes",
    "ranks",
    "curve",
    "value",
)
TIME, RATE = re.compile(r"_(ms|us)$"), re.compile(r"_gb_per_s$")
# Figures of the machine, of models and of other libraries.
OTHERS = re.compile(
    r"^(limit|floor|goal|predicted|dynamicemb|tbe|torch|baseline|copy|probe|huge_probe|cuda_copy)_|_own_ms$"
)


def figures(value, place=()):
    """Yield (place, field, number) for each time and rate of a result."""
    if isinstance(value, list):
        for number, entry in enumerate(value):
            if isinstance(entry, dict):
                names = [f"{entry[name]}" for name in NAMES if name in entry]
                yield from figures(entry, (*place, " ".join(names) or str(number)))
    elif isinstance(value, dict):
        if "real_time" in value:  # of Google Benchmark
            field = "median_us" if "median_us" in value else "real_time"
            yield place, field, value[field]
            return
        for field, entry in value.items():
            if isinstance(entry, (dict, list)):
                inner = () if field in ("results", "benchmarks", "plans") else (field,)
                yield from figures(entry, (*place, *inner))
            elif isinstance(entry, (int, float)) and not OTHERS.search(field):
                if TIME.search(field) or RATE.search(field):
                    yield place, field, entry


def limits(document):
    """Return the machine's rate of copying, in GB/s, as the run measured it; None: unknown."""
    found = re.search(r'"(?:limit_copy|copy|cuda_copy)_gb_per_s": "?([0-9.]+)', json.dumps(document))
    return float(found[1]) if found else None


def compare(new, old):
    """Compare two documents: ([(place, field, before, now, how many times slower)], number compared, number faster)."""
    before = {(place, field): number for place, field, number in figures(old)}
    slower, compared, faster = [], 0, 0
    for place, field, now in figures(new):
        then = before.get((place, field), 0)
        if then <= 0 or now <= 0:
            continue
        times = then / now if RATE.search(field) else now / then
        compared += 1
        faster += times < 1 - TOLERANCE
        if times > 1 + TOLERANCE:
            slower.append((" ".join(place), field, then, now, times))
    return sorted(slower, key=lambda row: -row[-1]), compared, faster


def committed(name):
    """Return the committed result file's text; None: there is none, or this is no clone."""
    shown = subprocess.run(["git", "show", f"HEAD:bench/results/{name}"], cwd=ROOT, capture_output=True, text=True)
    return shown.stdout if shown.returncode == 0 else None


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "bench/results")
    for path in sorted(out.glob("*.json")):
        text, old = path.read_text(encoding="utf-8"), committed(path.name)
        if old is None:
            print(f"{path.name}: no committed result to compare with")
            continue
        if text == old:
            continue
        new, old = json.loads(text), json.loads(old)
        slower, compared, faster = compare(new, old)
        rates = " and ".join(f"{rate:.0f} GB/s" if rate else "unknown" for rate in (limits(old), limits(new)))
        print(
            f"{path.name}: of {compared} figures {len(slower)} are slower than "
            f"{old.get('commit', 'the committed ones')} by more than {TOLERANCE:.0%}, {faster} faster; the machine "
            f"copied {rates}"
        )
        for place, field, then, now, times in slower:
            print(f"  {times:6.2f} times slower: {place} {field} {then:g} -> {now:g}")


if __name__ == "__main__":
    main()
