"""Runs ``hotbed-ckpt``, the tool for checkpoints, which is installed beside the package's modules."""

import os
import pathlib
import sys


def main() -> None:
    """Replace this process by the tool, with the same arguments."""
    tool = pathlib.Path(__file__).with_name("hotbed-ckpt")
    if not tool.exists():
        print("hotbed-ckpt: the package was built without HDF5, so it has no checkpoints", file=sys.stderr)
        sys.exit(2)
    os.execv(tool, ["hotbed-ckpt", *sys.argv[1:]])
