"""The programs of docs/python and docs/guide/sizing.md run: blocks that begin with ``import torch`` or ``tempfile``."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"


def programs():
    """The programs of all pages; a page begins with one."""
    found = []
    for page in [*sorted((DOCS / "python").glob("*.md")), DOCS / "guide/sizing.md"]:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        assert blocks and blocks[0].startswith("import "), f"{page.name} does not begin with a program"
        for number, block in enumerate(blocks):
            if re.match(r"import (torch|tempfile)$", block, re.M):
                found.append(pytest.param(block, id=f"{page.stem}-{number}"))
    return found


@pytest.mark.parametrize("program", programs())
def test_a_program_runs(program, tmp_path):
    for module in ("torchrec", "h5py"):
        if f"import {module}" in program:
            pytest.importorskip(module)
    path = tmp_path / "program.py"
    path.write_text(program.replace(" 10_000_000\n", " 100_000\n"))  # a table that needs gigabytes
    command = [sys.executable, str(path)]
    if "init_process_group" in program:
        command[1:] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
