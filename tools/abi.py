#!/usr/bin/env python3
# tools/abi.py - describe the ABI as text: sizes and offsets of structs, enumerators, functions.
"""usage: tools/abi.py [--write] LIBRARY [CC]

Compares the headers, and the functions that LIBRARY (libhotbed.so) exports, with tests/abi/hotbed.abi, and fails with
a diff if they differ; --write writes the table again.  Structs are read from the debug information that CC generates
for the headers, functions from the preprocessed headers.  Needs a compiler and binutils.
"""

import difflib
import pathlib
import re
import subprocess
import sys
import tempfile

from declarations import preprocessed

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "abi" / "hotbed.abi"


def functions(cc: str) -> dict[str, str]:
    """Prototypes of the functions that headers export, by name, in one form."""
    found = {}
    exported = r'__attribute__\(\(visibility\("default"\)\)\)(.*?);'
    for declaration in re.findall(exported, preprocessed(cc), re.S):
        text = re.sub(r"__attribute__\(\(\w+\)\)", "", declaration)
        text = re.sub(r"\s+", " ", text).strip()
        text = re.sub(r" ?\* ?", " *", text).replace("* *", "**").replace("( ", "(")
        found[re.match(r"[^(]*?(\w+)\(", text)[1]] = text
    return found


class Entry:
    """One entry of the debug information."""

    def __init__(self, depth: int, tag: str) -> None:
        self.depth, self.tag, self.children, self.values = depth, tag, [], {}


def debug_information(cc: str) -> list[Entry]:
    """The tree of all types that the headers declare."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = pathlib.Path(folder, "abi.c"), pathlib.Path(folder, "abi.o")
        source.write_text('#include "hotbed/hotbed.h"\n')
        subprocess.run(
            [
                cc,
                "-std=c11",
                "-g",
                "-gdwarf-4",
                "-fno-eliminate-unused-debug-types",
                f"-I{ROOT / 'include'}",
                "-c",
                str(source),
                "-o",
                str(made),
            ],
            check=True,
        )
        text = subprocess.run(
            ["readelf", "--wide", "--debug-dump=info", str(made)], check=True, capture_output=True, text=True
        ).stdout
    entries, stack = [], []
    for line in text.split("\n"):
        tag = re.match(r" *<(\d+)><([0-9a-f]+)>: Abbrev Number: \d+ \((DW_TAG_\w+)\)", line)
        if tag:
            entry = Entry(int(tag[1]), tag[3][7:])
            entries.append(entry)
            del stack[entry.depth :]
            if stack:
                stack[-1].children.append(entry)
            stack.append(entry)
            continue
        value = re.match(r" *<[0-9a-f]+> +DW_AT_(\w+) *: (.*)", line)
        if value and stack:
            words = re.sub(r"^(\([^()]*\) *)+:? *", "", value[2]).split()  # the words before it vary with binutils
            stack[-1].values[value[1]] = words[0] if words else ""
    return entries


def types(cc: str) -> list[str]:
    """Lines for structs with their fields, and for enums with their enumerators."""
    lines = []
    for entry in debug_information(cc):
        name = entry.values.get("name", "")
        if entry.tag == "structure_type" and name.startswith("hotbed_") and "byte_size" in entry.values:
            lines.append(f"struct {name} {entry.values['byte_size']}")
            lines += [
                f"struct {name} {field.values['data_member_location']} {field.values['name']}"
                for field in entry.children
                if field.tag == "member"
            ]
        elif entry.tag == "enumeration_type":
            lines += [
                f"enum {name or '-'} {value.values['name']} {value.values['const_value']}"
                for value in entry.children
                if value.values["name"].startswith("HOTBED_")
            ]
    return lines


def exported(library: str) -> set[str]:
    """The functions that the library exports."""
    text = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in text.split("\n") if " T " in line}


def main() -> int:
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    cc = arguments[1] if len(arguments) == 2 else "cc"
    declared = functions(cc)
    missing = sorted(set(declared) - exported(arguments[0]))
    if missing:
        print("declared, but not exported:", *missing, sep="\n  ")
        return 1
    hidden = sorted(exported(arguments[0]) - set(declared))
    if hidden:
        print("exported, but not declared in a public header:", *hidden, sep="\n  ")
        return 1
    lines = [
        "# The ABI of Hotbed on x86-64, written by tools/abi.py --write.",
        "# struct NAME BYTES; struct NAME OFFSET FIELD; enum NAME ENUMERATOR VALUE; function PROTOTYPE",
    ]
    lines += types(cc) + [f"function {declared[name]}" for name in sorted(declared)]
    if "--write" in sys.argv:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text("\n".join(lines) + "\n")
        return 0
    before = TABLE.read_text().split("\n")[:-1]
    names = ("tests/abi/hotbed.abi", "headers and library")
    differences = list(difflib.unified_diff(before, lines, *names, n=0, lineterm=""))
    if differences:
        print(*differences, sep="\n")
        print(
            "\nThe ABI has changed.  Fields of sized structs, enumerators and functions may be appended; nothing "
            "else may change after a release.  tools/abi.py --write LIBRARY accepts the change."
        )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
