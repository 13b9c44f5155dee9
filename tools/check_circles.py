#!/usr/bin/env python3
"""tools/check_circles.py - check that no source files of one module depend on each other in a circle.

    check_circles.py BUILD      BUILD/libhotbed_testable.a has the object of each source

A file uses another if its object needs a symbol that the other one defines.  Prints each circle with a symbol for every
arrow; exits with status 1 if there is one.
"""

import collections
import os
import subprocess
import sys
from typing import Dict, List, Set

# Circles that are intended, each with the reason.
ALLOWED: Dict[str, str] = {}


def strong(graph: Dict[str, Set[str]]) -> List[List[str]]:
    """Strongly connected components of more than one node (Tarjan)."""
    index: Dict[str, int] = {}
    low: Dict[str, int] = {}
    stack: List[str] = []
    found: List[List[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in graph[node]:
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    objects = os.path.join(sys.argv[1], "CMakeFiles", "hotbed_objects.dir")
    defined: Dict[str, str] = {}
    needed: Dict[str, Set[str]] = collections.defaultdict(set)
    for where, _, names in os.walk(objects):
        for name in names:
            if not name.endswith(".o"):
                continue
            path = os.path.join(where, name)
            source = os.path.relpath(path, objects)[: -len(".o")]
            listed = subprocess.run(["nm", "-P", path], capture_output=True, text=True, check=True).stdout
            for line in listed.split("\n"):
                parts = line.split()
                if len(parts) < 2 or not parts[0].startswith("hotbed_"):
                    continue
                if parts[1] == "U":
                    needed[source].add(parts[0])
                elif parts[1].isupper():
                    defined[parts[0]] = source
    folders: Dict[str, Dict[str, Set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    why: Dict[str, str] = {}
    for source, symbols in needed.items():
        folder = source.split("/")[0]
        for symbol in sorted(symbols):
            to = defined.get(symbol)
            if to and to != source and to.split("/")[0] == folder:
                folders[folder][source].add(to)
                folders[folder].setdefault(to, set())
                why.setdefault(f"{source} {to}", symbol)
    status = 0
    for folder in sorted(folders):
        for circle in strong(folders[folder]):
            if " ".join(circle) in ALLOWED:
                continue
            status = 1
            print("circle: " + " ".join(circle))
            for source in circle:
                for to in sorted(folders[folder][source] & set(circle)):
                    print(f"    {source} needs {why[f'{source} {to}']} of {to}")
    print(f"{len(needed)} files, {'no circles' if status == 0 else 'circles'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
