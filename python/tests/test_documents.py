"""The programs of docs/python and docs/guide/sizing.md run: blocks that begin with ``import torch`` or ``tempfile``."""

import pathlib
import re
import runpy

import pytest
from conftest import run_ranks

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


def execute(path, rank, world):
    runpy.run_path(path, run_name="__main__")


@pytest.mark.parametrize("program", programs())
def test_a_program_runs(program, tmp_path):
    for module in ("torchrec", "h5py"):
        if f"import {module}" in program:
            pytest.importorskip(module)
    path = tmp_path / "program.py"
    path.write_text(program.replace(" 10_000_000\n", " 100_000\n"))  # a table that needs gigabytes
    run_ranks(tmp_path, 2 if "init_process_group" in program else 1, execute, str(path))
