#!/usr/bin/env python3
"""tests/bench/test_report.py - bench/report.py writes the committed pages and figures; curves are drawn and
compared.
"""

import pathlib
import subprocess
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402
import report  # noqa: E402

checked = subprocess.run(
    [sys.executable, ROOT / "bench/report.py", "--check"], capture_output=True, text=True, check=False
)
assert checked.returncode == 0, checked.stdout + checked.stderr


def curves(backend, train_ms):
    """A result of hotbed-workloads --curves with two points a curve, of which the second is twice as far from its
    limit.
    """
    results = [
        {
            "curve": name,
            "value": value,
            "keys_a_step": 1000,
            "train_ms": train_ms * value,
            "limit_train_ms": 1.0,
            "train_to_limit": train_ms * value,
            "eval_ms": value,
            "limit_eval_ms": 0.5,
            "eval_to_limit": 2.0 * value,
        }
        for name in report.PARAMETERS
        for value in (1, 2)
    ]
    return {
        "backend": backend,
        "device": backend,
        "commit": "0123456789",
        "command": "hotbed-workloads --curves",
        "results": results,
    }


SVG = "{http://www.w3.org/2000/svg}"
figure, text = report.curves_figure({"curves": [curves("host", 5.0), curves("cuda", 3.0)]})
lines = xml.etree.ElementTree.fromstring(figure).findall(SVG + "polyline")
assert len(lines) == 4 * len(report.PARAMETERS), len(lines)
assert sum("stroke-dasharray" in line.attrib for line in lines) == len(lines) / 2
assert "| batch | 3.0 at 1 | 6.0 at 2 | 2.0 at 1 | 4.0 at 2 |" in text, text  # the GPU's
assert report.curves_figure({"curves": []})[0] is None

slower, compared, faster = compare.compare(curves("cuda", 3.3), curves("cuda", 3.0))
assert compared == 4 * len(report.PARAMETERS) and faster == 0, (compared, faster)  # train and eval, not the limits
assert len(slower) == 2 * len(report.PARAMETERS) and all(row[1] == "train_ms" for row in slower), slower
