#!/usr/bin/env python3
"""tools/check_circles.py - check that no source files depend on each other in a circle.

    check_circles.py BUILD      a build with the objects of the library and, with HOTBED_BENCH, of the benchmarks

A C file uses another of its module, or of bench/, if its object needs a symbol that the other one defines.  A module of
the Python package uses another one if it imports it, also in a function.  Prints each circle with a symbol or a line
for every arrow; exits with status 1 if there is one.
"""

import ast
import collections
import os
import pathlib
import subprocess
import sys
from typing import Dict, Iterator, List, Set, Tuple

# An arrow: a file, the file that it uses, and why.
Arrow = Tuple[str, str, str]


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


def objects_of(root: pathlib.Path) -> Iterator[Tuple[str, pathlib.Path]]:
    """Return the sources below a CMake object folder, and their objects."""
    for path in sorted(root.rglob("*.o")):
        yield os.path.relpath(path, root)[: -len(".o")], path


def of_objects(objects: List[Tuple[str, pathlib.Path]]) -> Iterator[Arrow]:
    """Return which source of a folder needs which symbol of another one."""
    defined: Dict[str, str] = {}
    needed: Dict[str, Set[str]] = collections.defaultdict(set)
    for source, path in objects:
        listed = subprocess.run(["nm", "-P", str(path)], capture_output=True, text=True, check=True).stdout
        for symbol, kind, *_ in (line.split() for line in listed.splitlines() if len(line.split()) >= 2):
            if kind == "U":
                needed[source].add(symbol)
            elif kind.isupper() and symbol != "main":
                defined[symbol] = source
    for source, symbols in needed.items():
        for symbol in sorted(symbols):
            to = defined.get(symbol, source)
            if to != source and to.split("/")[0] == source.split("/")[0]:
                yield source, to, symbol


def imported(name: str, package: bool, node: ast.AST) -> List[str]:
    """Return the modules that a statement of module `name` may import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    above = name.split(".")[: None if package and node.level == 1 else -(node.level - package)] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]


def of_python(root: pathlib.Path) -> Iterator[Arrow]:
    """Return which module of the package below `root` imports which other one, and where."""
    files = {".".join(path.relative_to(root).with_suffix("").parts): path for path in sorted(root.rglob("*.py"))}
    names = {name.removesuffix(".__init__"): path for name, path in files.items()}
    for name, path in names.items():
        package = path.name == "__init__.py"
        for node in ast.walk(ast.parse(path.read_text())):
            found = [other for other in imported(name, package, node) if other in names]
            for other in found[-1:] if package else found[1:] or found:  # of a package and a module of it, the module
                if other != name:
                    yield name, other, f"line {getattr(node, 'lineno', 0)}"


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    build = pathlib.Path(sys.argv[1])
    bench = [
        (f"bench/{source}", path)
        for root in sorted((build / "bench" / "CMakeFiles").glob("*.dir"))
        for source, path in objects_of(root)
    ]
    library = list(objects_of(build / "CMakeFiles" / "hotbed_objects.dir"))
    arrows = [*of_objects(library), *of_objects(bench)]
    arrows += of_python(pathlib.Path(__file__).resolve().parent.parent / "python")
    graph: Dict[str, Set[str]] = collections.defaultdict(set)
    why: Dict[Tuple[str, str], str] = {}
    for source, to, reason in arrows:
        graph[source].add(to)
        graph.setdefault(to, set())
        why.setdefault((source, to), reason)
    circles = strong(graph)
    for circle in circles:
        print("circle: " + " ".join(circle))
        for source in circle:
            for to in sorted(graph[source] & set(circle)):
                print(f"    {source} needs {why[source, to]} of {to}")
    print(f"{len(graph)} files, {len(circles)} circles")
    return 1 if circles or not library else 0


if __name__ == "__main__":
    sys.exit(main())
