#!/usr/bin/env python3
"""tools/check_prose.py - find phrases that make text hard to read, in comments, messages and documents.

    check_prose.py [PATH...]      files or folders; the default is everything that must be free of findings

Reads comments of C, CUDA, Python, shell and CMake, string literals of C, and the text of Markdown outside of code.
Prints each finding with its place; exits with status 1 if there is one.  docs/glossary.md and docs/decisions/ may define or
quote any word.
"""
import os
import re
import subprocess
import sys
from typing import Iterator, List, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Paths that must be free of findings.
CLEAN = ["README.md", "docs", "include", "base", "checkpoint", "dist", "pipeline", "storage", "examples", "python", "tests",
         "bench", "tools"]
EXEMPT = ("docs/glossary.md", "docs/decisions/", "tools/check_prose.py")

# (pattern, what to write instead)
PATTERNS = [
    (r"\bwhat it (is|was|has|takes)\b", "name the thing"),
    (r"\b(that|those) of\b(?! the same\b)", "repeat the noun"),
    (r"\bthose (that|which|who)\b", "repeat the noun"),
    (r"\bone that (is|was|has|does|can)\b", "repeat the noun"),
    (r"\bwho (has|is|asks|can|sees|reads|waits|finds|wants|would|knows|needs)\b", "name the thread, rank or caller"),
    (r"\b(is|are|was|were|be) told\b", "receives, is reported"),
    (r"\b(is|are) there,", "exists"),
    (r"\bhas been seen\b", "was verified (date, commit)"),
    (r"\b[Ww]hich (it|one) is\b", "name the thing"),
    (r"\bwaits for nothing\b", "never blocks"),
    (r"\ban error of before\b", "an earlier error"),
    (r"\bput off\b", "deferred"),
    (r"\b(gives?|gave|giving) (a row |rows |keys? |it |them )?up\b(?! by| after| at| a rank)", "evicts, aborts"),
    (r"\b(takes?|taken|took) (a row |rows |it |them )?down\b", "demotes, writes back"),
    (r"\b(brings?|brought) (a row |rows |it |them )?up\b", "promotes, fetches"),
    (r"\bas (it|they) comes?\b", "immediately"),
    (r"\btogether with what\b", "name the thing"),
    (r"\bso to say\b", "drop"),
    (r"\b(the )?desks?\b", "scratch buffer"),
    (r"\b(a|the|its|their|each|no) home\b|\bhomes\b", "backing location"),
    (r"\b(dealt|deals?|dealing) (out|them|rows|keys)\b", "redistribute, assign"),
    (r"\bseal(s|ed|ing)?\b", "checksum"),
    (r"\bforgiv(e|es|en|ing)\b", "tolerate"),
    (r"\b(haul|nursery|victims?)\b", "the plain description (transfer, new rows, evicted row)"),
    (r"\bmeetings?\b|\bcomes? together\b", "rendezvous"),
    (r"\brooms?\b", "capacity, space"),
    (r"\bbox(es)?\b", "the plain description (bucket, rectangle, machine)"),
    (r"(?<!compare-and-)\bswap(s|ped|ping)?\b", "exchange, move, replace"),
]
COMPILED = [(re.compile(pattern), instead) for pattern, instead in PATTERNS]


def without(text: str, pattern: str) -> str:
    """The text with every match blanked, so that line numbers stay."""
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def prose_of(path: str, text: str) -> Iterator[Tuple[int, str]]:
    """(line number, prose) of a file."""
    if path.endswith(".md"):
        text = without(text, r"```.*?```")
        text = without(text, r"`[^`\n]*`")
        yield from enumerate(text.split("\n"), 1)
    elif path.endswith((".c", ".h", ".cu", ".cc", ".cuh")):
        kept = re.sub(
            r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|[^\n]',
            lambda m: m.group() if len(m.group()) > 1 else (m.group() if m.group() == "\n" else " "),
            text,
            flags=re.S,
        )
        yield from enumerate(kept.split("\n"), 1)
    elif path.endswith((".py", ".sh", ".cmake", ".txt")) or os.path.basename(path) == "run":
        doc = False
        for number, line in enumerate(text.split("\n"), 1):
            quotes = line.count('"""')
            if doc or quotes or line.lstrip().startswith("#"):
                yield number, line
            elif " # " in line:
                yield number, line.split(" # ", 1)[1]
            if quotes % 2:
                doc = not doc


def files_of(paths: List[str]) -> List[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--"] + paths,
        cwd=ROOT, capture_output=True, text=True, check=True,
    )
    return [p for p in listed.stdout.split("\n") if p and not p.startswith(EXEMPT)]


def main() -> int:
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    found = 0
    files = files_of(sys.argv[1:] or CLEAN)
    for path in files:
        full = os.path.join(ROOT, path)
        if not os.path.exists(full):
            continue
        try:
            with open(full, encoding="utf-8") as file:
                text = file.read()
        except UnicodeDecodeError:
            continue
        for number, line in prose_of(path, text):
            for pattern, instead in COMPILED:
                match = pattern.search(line)
                if match:
                    print(f"{path}:{number}: \"{match.group()}\": {instead}")
                    found += 1
    print(f"{len(files)} files, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
