#!/usr/bin/env python3
"""tests/bench/test_compare.py - bench/compare.py lists exactly the figures that are slower, in files of every kind.

All committed results have the layout of bench/layout.py.
"""

import copy
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402
import layout  # noqa: E402


def replace(value, old, new):
    """Replace the number `old`, which occurs once, by `new`."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in items:
        if isinstance(entry, (dict, list)):
            replace(entry, old, new)
        elif isinstance(entry, float) and entry == old:
            value[key] = new


files = sorted((ROOT / "bench/results").glob("*.json"))
kinds = set()
for path in files:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert path.read_text(encoding="utf-8") == layout.lines(document) + "\n", f"bench/layout.py {path} rewrites it"
    if document.get("format", "").startswith(
        ("hotbed-baseline", "hotbed-deltas", "hotbed-host", "hotbed-verification")
    ):
        continue
    all_figures = list(compare.figures(document))
    kinds.add(document.get("format", "benchmark"))
    assert all_figures, path
    assert len({(place, field) for place, field, _ in all_figures}) == len(all_figures), (
        f"{path}: two figures of a name"
    )
    slower, compared, faster = compare.compare(document, document)
    assert (slower, faster) == ([], 0) and 0 < compared <= len(all_figures), path
    values = [number for _, _, number in all_figures]
    place, field, number = next(f for f in all_figures if f[2] > 0 and values.count(f[2]) == 1)
    for factor, expected in ((1.02, (0, 0)), (1.1, (1, 0)), (0.9, (0, 1))):
        changed = copy.deepcopy(document)
        replace(changed, number, number * (1 / factor if compare.RATE.search(field) else factor))
        slower, _, faster = compare.compare(changed, document)
        assert (len(slower), faster) == expected, (path, place, field, factor, slower, faster)
        if slower:
            assert slower[0][:2] == (" ".join(place), field) and abs(slower[0][4] - factor) < 1e-6, slower
assert len(kinds) >= 4, kinds
