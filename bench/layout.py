#!/usr/bin/env python3
"""bench/layout.py - write JSON with one result a line, so that files of results are short, and a change of one is too.

usage: layout.py FILE...   rewrite the files
"""

import json
import pathlib
import sys
from typing import Any, List, Union


def nested(value: Any) -> int:
    """How deep lists and objects are nested in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(nested, inner), default=0)


def lines(value: Any, margin: str = "") -> str:
    """The text of a value: objects of numbers and of such objects are one line, except the document itself."""
    if margin and nested(value) < (3 if isinstance(value, dict) else 2):
        return json.dumps(value, ensure_ascii=False)
    inner = margin + " "
    if isinstance(value, dict):
        entries = [f"{json.dumps(key)}: {lines(entry, inner)}" for key, entry in value.items()]
    else:
        entries = [lines(entry, inner) for entry in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return f"{start}\n{inner}" + f",\n{inner}".join(entries) + f"\n{margin}{end}"


def write(path: Union[str, pathlib.Path], document: Any) -> None:
    """Write a document as JSON."""
    pathlib.Path(path).write_text(lines(document) + "\n", encoding="utf-8")


def main(names: List[str]) -> None:
    for name in names:
        write(name, json.loads(pathlib.Path(name).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(sys.argv[1:])
