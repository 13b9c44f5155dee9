#!/usr/bin/env python3
"""tools/api_calls.py - each call of include/hotbed is stable or experimental, and docs/guide/api.md lists them.

The second paragraph of a header says it, in one of the forms

    Stable: all calls.
    Experimental: all calls.
    Stable: hotbed_a(), hotbed_b(). Experimental: all other calls.
    Experimental: hotbed_a(), hotbed_b(). Stable: all other calls.

usage: tools/api_calls.py           check the headers and the page
       tools/api_calls.py --write   write the lists of the page
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/guide/api.md"
KINDS = ("Stable", "Experimental")
MARKS = ("<!-- tools/api_calls.py writes from here -->", "<!-- to here -->")


def calls_of(text: str) -> list[str]:
    """The functions of a header, in order; an init function under the name that C programs call."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    names = re.findall(r"HOTBED_API\b[^;]*?\b(hotbed_\w+)\s*\(", text)
    return [re.sub(r"_init_sized$", "_init", name) for name in names]


def marked(text: str, calls: list[str]) -> dict[str, list[str]]:
    """The calls of each kind, as the header's first comment has them; ValueError if it is not clear."""
    head = re.sub(r"\s*\n \*\s*", " ", text[: text.index("*/")])
    said = {kind: match[1] for kind in KINDS if (match := re.search(rf"\b{kind}: ([^.]*)\.", head))}
    if list(said.values()) == ["all calls"]:
        return {kind: calls if kind in said else [] for kind in KINDS}
    rest = [kind for kind in said if said[kind] == "all other calls"]
    if len(said) != 2 or len(rest) != 1:
        raise ValueError('neither "all calls" of one kind, nor a list and "all other calls"')
    listed = re.split(r",\s*", said[KINDS[rest[0] == KINDS[0]]])
    for name in listed:
        if name.removesuffix("()") not in calls or not name.endswith("()"):
            raise ValueError(f"{name!r} is no call of this header")
    names = [name.removesuffix("()") for name in listed]
    return {kind: [c for c in calls if (c in names) == (kind != rest[0])] for kind in KINDS}


def lists() -> tuple[str, list[str]]:
    """The lists of the page, and what is wrong with the headers."""
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    wrong = []
    for header in sorted((ROOT / "include/hotbed").glob("*.h")):
        text = header.read_text()
        calls = calls_of(text)
        if not calls:
            continue
        try:
            for kind, names in marked(text, calls).items():
                if names:
                    line = f"- `{header.name}`: " + ", ".join(f"`{name}`" for name in names)
                    kinds[kind] += textwrap.wrap(line, 120, subsequent_indent="  ", break_on_hyphens=False)
        except ValueError as error:
            wrong.append(f"{header.relative_to(ROOT)}: Stable and Experimental: {error}")
    parts = [f"### {kind}\n\n" + "\n".join(kinds[kind]) + "\n" for kind in KINDS]
    return "\n".join(parts), wrong


def main() -> None:
    text, wrong = lists()
    page = PAGE.read_text()
    begin, end = page.index(MARKS[0]) + len(MARKS[0]), page.index(MARKS[1])
    new = f"{page[:begin]}\n{text}{page[end:]}"
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(new)
    elif not wrong and new != page:
        wrong.append(f"{PAGE.relative_to(ROOT)}: differs from the headers; tools/api_calls.py --write corrects it")
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
