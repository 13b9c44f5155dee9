#!/usr/bin/env python3
"""usage: check_examples.py CC

Compile the examples of the public headers.  An example is an indented block of C in a comment; names that it uses
without declaring them are declared in example_names.h.  Fails with the compiler's messages, and if a header has no
example.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parent.parent / "include"


def blocks(header: str) -> list[str]:
    """The blocks of C in comments that begin a line: indented, after an empty line."""
    comments = re.findall(r"^(/\*.*?)\*/", header, re.M | re.S)
    lines = [re.sub(r"^(/\*| \*)", "", line) for line in "\n".join(comments).split("\n")]
    found: list[list[str]] = [[]]
    before = ""
    for line in lines:
        if found[-1] and not line.strip():
            found[-1].append("")
        elif line.startswith("     ") and (found[-1] or not before.strip()):
            found[-1].append(line[5:])
        elif found[-1]:
            found.append([])
        before = line
    texts = [textwrap.dedent("\n".join(block)) for block in found]
    return [text for text in texts if re.search(r"; *(//.*)?$", text, re.M)]


def program(name: str, block: str) -> str:
    """A translation unit: functions of the example at file scope, its statements in a function."""
    if "int main(" in block:
        return block + "\n"
    head = f'#define EXAMPLE_OF_{name}\n#include "{HERE / "example_names.h"}"\n'
    functions = "".join(re.findall(r"^static [^;=]*\{\n.*?^\}\n", block, re.M | re.S))
    return f"{head}{functions}void example(void) {{\n{block.replace(functions, '')}\n}}\n"


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    failed = []
    for header in sorted(INCLUDE.glob("hotbed/*.h")):
        found = blocks(header.read_text())
        if not found:
            failed.append(f"{header.name}: no example")
        for block in found:
            with tempfile.TemporaryDirectory() as folder:
                source = pathlib.Path(folder, "example.c")
                source.write_text(program(header.stem, block))
                made = subprocess.run(
                    [
                        sys.argv[1],
                        "-std=c11",
                        "-fsyntax-only",
                        "-Wall",
                        "-Werror",
                        "-Wno-unused-result",
                        "-Wno-unused-variable",
                        "-Wno-unused-value",
                        "-Wno-unused-but-set-variable",
                        f"-I{INCLUDE}",
                        str(source),
                    ],
                    capture_output=True,
                    text=True,
                )
                if made.returncode != 0:
                    failed.append(f"{header.name}:\n{made.stderr.replace(folder, '')}")
    print(*failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
