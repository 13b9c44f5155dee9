#!/usr/bin/env python3
"""tools/check_prose.py - find phrases that make text hard to read, in comments, messages and documents.

    check_prose.py [PATH...]      files or folders; the default is everything that must be free of findings

Reads comments and string literals of C, CUDA and Python, comments and quoted strings of shell and CMake, and the text
of Markdown outside of code.  A phrase is found across line ends and at the beginning of a sentence too.  Names of files
and identifiers are searched for words that the project does not use.  Prints each finding with its place; exits with
status 1 if there is one.  docs/glossary.md and docs/decisions/ may define or quote any word.
"""

import io
import os
import re
import subprocess
import sys
import tokenize
from typing import Iterator, List, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Paths that must be free of findings.
CLEAN = [
    "README.md",
    "docs",
    "include",
    "base",
    "checkpoint",
    "dist",
    "pipeline",
    "storage",
    "examples",
    "python",
    "tests",
    "bench",
    "tools",
    "cmake",
    "run",
]
EXEMPT = ("docs/glossary.md", "docs/decisions/", "tools/check_prose.py", "tests/support/test_check_prose.py")

# (pattern, what to write instead); case does not matter
PATTERNS = [
    (r"\bwhat it (is|was|has|takes)\b", "name the thing"),
    (r"\b(of|to|than|by|for|at|from|with|beside|into) what\b(?! orders?\b)(?! ranges?\b)", "name the thing"),
    (r"(^|[.;] )(?-i:What) (?!happens)(?![^.]*\?)", "name the thing"),
    (r"\b(that|those) of\b(?! the same\b)", "repeat the noun"),
    (r"\bthose (that|which|who)\b", "repeat the noun"),
    (r"\bone that (is|was|has|does|can)\b", "repeat the noun"),
    (
        r"\bwho (has|is|asks|can|sees|reads|waits|finds|wants|would|knows|needs)\b(?! Hotbed)",
        "name the thread, rank or caller",
    ),
    (r"(^|[.;] )(?-i:Who) (?![^.]*\?)", "name the thread, rank or caller"),
    (r"\btold\b", "receives, is reported"),
    (r"\b(is|are|was|were) there\b(?! (a|an|any|no)\b)", "exists"),
    (r"\bhas been seen\b(?! in one batch)", "was verified (date, commit)"),
    (r"\bwhich (it|one) is\b", "name the thing"),
    (r"\bwaits? for nothing\b", "never blocks"),
    (r"\b(error|fault|failure)s? of before\b", "an earlier error"),
    (r"\btakes the most\b", "is the largest"),
    (r"\brefus(es|ed) (none|nothing)\b", "accepts every"),
    (r"\bput off\b", "deferred"),
    (r"\b(gives?|gave|giving) (a row |rows |keys? |it |them )?up\b(?! by| after| at| a rank)", "evicts, aborts"),
    (r"\b(takes?|taken|took) (a row |rows |it |them )?down\b", "demotes, writes back"),
    (r"\b(brings?|brought) (a row |rows |it |them )?up\b", "promotes, fetches"),
    (r"\bas (it|they) comes?\b", "immediately"),
    (r"\btogether with what\b", "name the thing"),
    (r"\bso to say\b", "drop"),
    (r"\bdesks?\b", "scratch buffer"),
    (r"\bhomes? of\b|\b(a|the|its|their|each|no) home\b|\bhomes\b", "backing location"),
    (r"\b(dealt|deals?|dealing) (out|them|rows|keys)\b", "redistribute, assign"),
    (r"\bseal(s|ed|ing)?\b", "checksum"),
    (r"\bnotes? of (a|an|the|each) (row|key)\b", "metadata"),
    (r"\bforgiv(e|es|en|ing)\b", "tolerate"),
    (
        r"\b(haul|nursery|victim|team|rig|road)s?\b",
        "the plain description (transfer, new rows, evicted row, ranks, fixture, path)",
    ),
    (r"\bmeetings?\b|\bcomes? together\b", "rendezvous"),
    (r"\brooms?\b", "capacity, space"),
    (r"\bbox(es)?\b", "the plain description (bucket, rectangle, machine)"),
    (r"\bgrab(s|bed|bing)?\b", "take, reserve, read"),
    (r"(?<!compare-and-)\bswap(s|ped|ping)?\b", "exchange, move, replace"),
    (r"\b(stream|queue|worker)('s|s)? lanes?\b|\blanes? of (a|the) (host )?(stream|queue)", "worker thread"),
]
COMPILED = [(re.compile(pattern, re.I), instead) for pattern, instead in PATTERNS]
# Words that no name of a file and no identifier has.
NAMES = re.compile(r"(?<![a-z])(victim|nursery|desk|shop|team|rig|haul|forgive|told|grab|seal)s?(?![a-z])")

Run = Tuple[int, List[str]]


def runs_of_markdown(text: str) -> Iterator[Run]:
    """Paragraphs; a row of a table, a list item and a heading are one each."""
    text = re.sub(r"```.*?```|`[^`\n]*`", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    first = 0
    lines: List[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if lines and (not line.strip() or line.lstrip().startswith(("|", "- ", "#"))):
            yield first, lines
            lines = []
        if line.strip():
            first = first if lines else number
            lines.append(line)
    if lines:
        yield first, lines


def runs_of_c(text: str) -> Iterator[Run]:
    literal = r'"(?:\\.|[^"\\\n])*"'
    for m in re.finditer(rf"/\*.*?\*/|//[^\n]*|{literal}(?:\s*{literal})*", text, flags=re.S):
        lines = [re.sub(r"^\s*(/\*+|\*(?!/)|//|\")|(\*/|\")\s*$", "", line) for line in m.group().split("\n")]
        yield text.count("\n", 0, m.start()) + 1, lines


def runs_of_python(text: str) -> Iterator[Run]:
    strings = [tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)]
    comment: Run = (0, [])
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if comment[1] and comment[0] + len(comment[1]) == token.start[0]:
                comment[1].append(token.string[1:])
                continue
            yield comment
            comment = (token.start[0], [token.string[1:]])
        elif token.type in strings:
            yield token.start[0], re.sub(r"^[rfbu]*[\"']+|[\"']+$", "", token.string, flags=re.I).split("\n")
    yield comment


def runs_of_script(text: str) -> Iterator[Run]:
    comment: Run = (0, [])
    for number, line in enumerate(text.split("\n"), 1):
        m = re.match(r"\s*#(.*)", line) or re.search(r"\s#\s(.*)", line)
        if m and comment[1] and comment[0] + len(comment[1]) == number:
            comment[1].append(m.group(1))
        elif m:
            yield comment
            comment = (number, [m.group(1)])
        for quoted in re.findall(r'"([^"\n]*)"', line):
            yield number, [quoted]
    yield comment


def runs_of(path: str, text: str) -> Iterator[Run]:
    """(number of the first line, lines) of each piece of prose of a file."""
    if path.endswith(".md"):
        return runs_of_markdown(text)
    if path.endswith((".c", ".h", ".cu", ".cc", ".cuh")):
        return runs_of_c(text)
    if path.endswith(".py"):
        return runs_of_python(text)
    if path.endswith((".sh", ".cmake", ".txt")) or path == "run":
        return runs_of_script(text)
    return iter(())


def names_of(path: str, text: str) -> Iterator[Tuple[int, str]]:
    """(line, identifier) of each identifier of a file of code."""
    if not path.endswith((".c", ".h", ".cu", ".cc", ".py")):
        return
    text = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    for m in NAMES.finditer(text):
        yield text.count("\n", 0, m.start()) + 1, m.group()


def findings_of(path: str, text: str) -> Iterator[Tuple[int, str, str]]:
    """(line, phrase, what to write instead) of each finding in a file."""
    if NAMES.search(path):
        yield 1, path, "a name that says the purpose"
    for number, name in names_of(path, text):
        yield number, name, "a name that says the purpose"
    for first, lines in runs_of(path, text):
        joined = " ".join(line.strip() for line in lines)
        if not joined:
            continue
        for pattern, instead in COMPILED:
            for m in pattern.finditer(joined):
                at, number = m.start(), first
                for line in lines:
                    if at <= len(line.strip()):
                        break
                    at -= len(line.strip()) + 1
                    number += 1
                yield number, m.group().strip(" .;"), instead


def files_of(paths: List[str]) -> List[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
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
        for number, phrase, instead in findings_of(path, text):
            print(f'{path}:{number}: "{phrase}": {instead}')
            found += 1
    print(f"{len(files)} files, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
