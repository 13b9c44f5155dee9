#!/usr/bin/env python3
# tools/declarations.py - the preprocessed declarations of the public headers, for tools/abi.py and the Python package.
"""usage: tools/declarations.py OUTPUT.py [CC]

Writes cffi's declarations of the public headers, in ABI mode: one Python file, no compiled code.  Needs a C compiler,
and cffi.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def preprocessed(cc: str) -> str:
    """The declarations of the public headers, without other headers."""
    text = subprocess.run(
        [cc, "-E", "-std=c11", f"-I{ROOT / 'include'}", str(ROOT / "include/hotbed/hotbed.h")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    ours, lines = False, []
    for line in text.split("\n"):
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            ours = str(ROOT / "include/hotbed/") in marker[1]
        elif ours:
            lines.append(line)
    return "\n".join(lines)


def declarations(cc: str) -> str:
    """The same declarations as cffi understands them: without attributes and inline functions."""
    text = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", preprocessed(cc))
    text = re.sub(r"static inline [^;{]*\{.*?\n\}", "", text, flags=re.S)
    version = re.search(r'#define HOTBED_VERSION +"([^"]+)"', (ROOT / "include/hotbed/version.h").read_text())[1]
    return f"{text}\n#define HOTBED_VERSION_{version.replace('.', '_')} 1\n"


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations(sys.argv[2] if len(sys.argv) == 3 else "cc"))
    ffi.set_source("hotbed._declarations", None)
    ffi.emit_python_code(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
