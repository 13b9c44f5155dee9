#!/usr/bin/env python3
"""tools/check_docs.py - check that documents name what exists.

In README.md, docs/ and bench/results/*.md: each relative link leads to a file, and to a heading if it names one; each
hotbed_... identifier is declared in include/ or used in the sources; each path of a source exists; each option that a
command passes to one of the project's programs occurs in the program's sources; each step of ./run exists; the table
of docs/guide/api.md names functions of its headers, as many as it says; and lines have at most 120 columns, but in
tables, code and results.  Prints each finding; exits with status 1 if there is one.
"""

import glob
import os
import re
import sys
from typing import Dict, List, Set

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODULES = "base|storage|dist|pipeline|checkpoint|serve|tests|bench|examples|include|tools|docs|cmake|python"
# Programs, and the files that define their options.
PROGRAMS = {
    "hotbed-train": "examples/train/*.c",
    "hotbed-datagen": "examples/train/*.c",
    "hotbed-ckpt": "checkpoint/tool/*.c",
    "hotbed-workloads": "bench/*.c",
    "hotbed-exchange": "bench/*.c",
    "hotbed-plans": "bench/*.c",
    "hotbed-serving": "bench/serving.c",
}


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def heading_ids(text: str) -> Set[str]:
    """Anchors of a page, as GitHub generates them."""
    ids = set()
    for title in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M):
        title = re.sub(r"[^\w\- ]", "", title.replace("`", "").lower())
        ids.add(title.replace(" ", "-"))
    return ids


def sources(patterns: List[str]) -> str:
    texts = []
    for pattern in patterns:
        for path in glob.glob(os.path.join(ROOT, pattern), recursive=True):
            texts.append(read(path))
    return "\n".join(texts)


def check_table_of_calls() -> List[str]:
    """Findings in docs/guide/api.md.  `_name` is the name before it with another verb: `hotbed_stream_create`,
    `_sync`.
    """
    page = "docs/guide/api.md"
    rows = re.findall(r"^\| `(\w+\.h)` \| (`hotbed_.*?) \|", read(os.path.join(ROOT, page)), re.M)
    found: List[str] = []
    calls = 0
    for header, cell in rows:
        before = ""
        declared = read(os.path.join(ROOT, "include/hotbed", header))
        for name in re.findall(r"`(\w+(?:\.h)?)`", cell):
            if name.endswith(".h"):  # the functions that follow are of another header
                declared = read(os.path.join(ROOT, "include/hotbed", name))
                continue
            words = before.split("_")
            whole = name.startswith("hotbed_")
            names = [name] if whole else ["_".join(words[:n]) + name for n in range(len(words), 1, -1)]
            known = [n for n in names if re.search(rf"\b{n}\(", declared)]
            if known:
                before = name if whole else before
                calls += 1
            else:
                found.append(f"{page}: {header} does not declare {name}")
    if (len(rows), calls) != (5, 60):
        found.append(f"{page}: the table has {len(rows)} headers and {calls} functions, not five and sixty")
    return found


def main() -> int:
    pages = [
        os.path.join(ROOT, "README.md"),
        *sorted(
            glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True)
            + glob.glob(os.path.join(ROOT, "bench", "results", "*.md"))
        ),
    ]
    code = sources(["include/**/*.h"]) + sources(
        [
            f"{m}/**/*.{e}"
            for m in "base storage dist pipeline checkpoint serve tests bench examples python".split()
            for e in ("c", "h", "cu", "cc", "cmake", "txt", "py")
        ]
    )
    known = set(re.findall(r"\bhotbed_\w+", code))
    run = read(os.path.join(ROOT, "run"))
    options: Dict[str, str] = {program: sources([where]) for program, where in PROGRAMS.items()}
    found = check_table_of_calls()
    for page in pages:
        name = os.path.relpath(page, ROOT)
        text = read(page)
        where = os.path.dirname(page)

        def report(what: str, at: int, text: str = text, name: str = name) -> None:
            found.append(f"{name}:{text.count(chr(10), 0, at) + 1}: {what}")

        plain = re.sub(r"```.*?```", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
        for match in re.finditer(r"\]\(([^)\s]+)\)", plain):
            target, _, anchor = match.group(1).partition("#")
            if "://" in target:
                continue
            path = os.path.normpath(os.path.join(where, target)) if target else page
            if not os.path.exists(path):
                report(f"there is no {target}", match.start())
            elif anchor and path.endswith(".md") and anchor not in heading_ids(read(path)):
                report(f"{target or name} has no heading #{anchor}", match.start())
        for match in re.finditer(r"^(?! *\|)(?=.*\S).{121,}$", "" if "results" in where else plain, re.M):
            report(f"{len(match.group())} columns, at most 120", match.start())
        for match in re.finditer(r"\bhotbed_\w*\w(?!\w|\.cmake)", text):
            identifier = match.group()
            if identifier.rstrip("_") in known or any(
                k.startswith(identifier) for k in known if identifier.endswith("_")
            ):
                continue
            report(f"{identifier} does not exist", match.start())
        for match in re.finditer(rf"`((?:{MODULES})/[\w./-]+\.(?:c|h|cu|py|sh|md|json))`", text):
            if not os.path.exists(os.path.join(ROOT, match.group(1))):
                report(f"there is no {match.group(1)}", match.start())
        for match in re.finditer(r"(hotbed-[a-z]+)((?:[^\n`|;#)]|\\\n)*)", text):
            program = match.group(1)
            if program not in options:
                continue
            for option in re.findall(r"(?<=\s)--([a-z][a-z-]+)", match.group(2)):
                if not re.search(rf'"(--)?{option}\b', options[program]) and f"--{option}" not in options[program]:
                    report(f"{program} has no option --{option}", match.start())
        for match in re.finditer(r"\./run ([a-z-]+)", text):
            if not re.search(rf"^{match.group(1)}( \|.*)?\)|^[a-z| ]*\b{match.group(1)}\b[^)]*\) ", run, re.M):
                report(f"./run has no command {match.group(1)}", match.start())
    for line in found:
        print(line)
    print(f"{len(pages)} pages, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
