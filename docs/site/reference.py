"""Write the pages of the C reference: one per public header, made from its comments and declarations."""

import pathlib
import re
import textwrap
from typing import Iterator, List, Tuple

NAME = r"\bhotbed_[a-z0-9_]+\b"


def comment_text(comment: str) -> str:
    """The text between the marks of a C comment."""
    inner = re.sub(r"^/\*|\*/$", "", comment.strip())
    lines = [re.sub(r"^ ?\* ?", "", line) if i else line.strip() for i, line in enumerate(inner.split("\n"))]
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def inline(text: str) -> str:
    """Prose as reStructuredText: names of functions become links, `code` becomes literal."""
    text = re.sub(r"(?<!\w)(\*\w[\w ]*\*)|([*|\\])", lambda m: m[1] or "\\" + m[2], text)
    parts = re.split(r"(`[^`]*`)", text)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = "``" + part[1:-1].replace("\\", "") + "``" if part[1:-1].strip() else part
        else:
            part = re.sub(rf"({NAME})\(\)", r":c:func:`\1`", part)
            parts[i] = re.sub(r"(\w)_(?=\W|$)", r"\1\\_", part)
    return "".join(parts)


def prose(text: str) -> List[str]:
    """Paragraphs, lists and indented blocks of a comment as lines of reStructuredText."""
    lines: List[str] = []
    for block in re.split(r"\n[ \t]*\n", text):
        rows = block.split("\n")
        listed = any(row.lstrip().startswith("- ") for row in rows)
        start = next((i for i, row in enumerate(rows) if row.startswith("  ")), None)
        if start is None or listed:
            if listed:
                first = next(i for i, row in enumerate(rows) if row.lstrip().startswith("- "))
                lines += [inline(row) for row in rows[:first]] + ([""] if first else [])
                for item in re.split(r"(?m)^ *- ", "\n".join(rows[first:]))[1:]:
                    lines.append("- " + inline(" ".join(item.split())))
            else:
                lines += inline("\n".join(rows)).split("\n")
        else:
            lines += [inline(row) for row in rows[:start]] + ([""] if start else [])
            code = textwrap.dedent("\n".join(rows[start:])).split("\n")
            statement = r"\s*(#include|const |static |for \(|if \(|do$|(hotbed_\w+|uint64_t|status|\w+\.\w+)[ (].*;)"
            language = "c" if any(re.match(statement, row) for row in code) else "text"
            lines += [f".. code-block:: {language}", ""] + ["   " + row for row in code]
        lines.append("")
    return lines


def declarations(text: str) -> Iterator[Tuple[str, str]]:
    """(comment, declaration) in order; a comment without a declaration is a heading or a remark."""
    text = re.sub(r"(?m)^#.*(?:\\\n.*)*$", lambda m: m.group() if m.group().startswith("#define HOTBED") else "", text)
    text = re.sub(r"^HOTBED_(BEGIN|END)_DECLS$", "", text, flags=re.M)
    place, comment = 0, ""
    while place < len(text):
        rest = text[place:]
        if match := re.match(r"\s+", rest):
            if match.group().count("\n") > 1 and comment:
                yield comment, ""
                comment = ""
        elif match := re.match(r"/\*.*?\*/", rest, re.S):
            if comment:
                yield comment, ""
            comment = match.group()
        elif match := re.match(r"#define[^\n]*", rest):
            yield comment, match.group()
            comment = ""
        else:
            depth, end = 0, 0
            for token in re.finditer(r'/\*.*?\*/|"(?:\\.|[^"])*"|[{};]', rest, re.S):
                if token.group() == "{":
                    depth += 1
                elif token.group() == "}":
                    depth -= 1
                    if depth == 0 and re.match(r"static inline", rest):
                        end = token.end()
                        break
                elif token.group() == ";" and depth == 0:
                    end = token.end()
                    tail = re.match(r"[ \t]*(/\*.*?\*/)", rest[end:], re.S)
                    end += tail.end() if tail else 0
                    break
            if not end:
                return
            yield comment, rest[:end]
            comment = ""
            place += end
            continue
        place += match.end()


def signature(declaration: str) -> str:
    """A function's declaration on one line, without attributes and body."""
    text = re.sub(r"\{.*\}\s*$", "", declaration, flags=re.S)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"\b(HOTBED_API|HOTBED_MUST_USE|static inline)\b|HOTBED_PRINTF\([^)]*\)", "", text)
    return re.sub(r"\s+", " ", text).strip().rstrip(";")


def page(header: pathlib.Path) -> str:
    """The page of one header."""
    text = header.read_text()
    top = re.match(r"/\*.*?\*/", text, re.S)
    intro = comment_text(top.group())
    first, _, rest = intro.partition("\n")
    title = re.sub(r"^(\S+) - ", r"\1: ", first).rstrip(".")
    head = title.split(":")[0]
    lines = [head, "=" * len(head), "", inline(title.partition(": ")[2].strip()) + ".", ""]
    lines += ["``#include <hotbed/" + header.name + ">``", "", *prose(rest.strip("\n"))]
    body = text[top.end() :]
    body = body[: body.rfind("#endif")]
    seen = set()
    for comment, declaration in declarations(body):
        said = comment_text(comment) if comment else ""
        section = re.match(r"-+ (.*?) -+$", said)
        if section:
            lines += ["", section[1].capitalize(), "-" * len(section[1]), ""]
            continue
        if not declaration:
            lines += prose(said)
            continue
        compound = re.match(r"typedef (struct|enum|union) (\w+) \{", declaration) or re.match(
            r"(struct|enum) (\w+) \{", declaration
        )
        if compound:
            kind, name = compound[1], compound[2]
            lines += [f".. c:{kind}:: {name}", ""]
            content = prose(said) + [".. code-block:: c", ""] + ["   " + row for row in declaration.split("\n")]
        elif declaration.startswith("#define"):
            name = re.match(r"#define (\w+(?:\([^)]*\))?)", declaration)[1]
            if not said or "HOTBED_H" in name:
                continue
            lines += [f".. c:macro:: {name}", ""]
            content = prose(said)
        elif re.match(r"typedef (struct|enum) (\w+) \2;", declaration) and re.search(
            rf"^(typedef )?(struct|enum) {declaration.split()[2].rstrip(';')} \{{", body, re.M
        ):
            continue  # its members follow
        elif declaration.startswith("typedef"):
            lines += [f".. c:type:: {signature(declaration)[len('typedef ') :]}", ""]
            note = re.search(r"/\*(.*?)\*/\s*$", declaration, re.S)
            content = prose(said) + (prose(comment_text(note.group())) if note else [])
        elif re.match(r"enum \{", declaration):
            lines += [".. code-block:: c", ""] + ["   " + row for row in declaration.split("\n")] + [""] + prose(said)
            continue
        else:
            shown = signature(declaration)
            if shown in seen or "(" not in shown:
                continue
            seen.add(shown)
            lines += [f".. c:function:: {shown}", ""]
            content = prose(said)
        lines += ["   " + row if row else "" for row in content] + [""]
    return "\n".join(lines) + "\n"


def write(include: pathlib.Path, out: pathlib.Path) -> None:
    """Write contents.rst and one page per header to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    headers = sorted(h for h in include.glob("*.h") if h.name != "hotbed.h")
    for header in headers:
        (out / f"{header.stem}.rst").write_text(page(header))
    title = "C reference"
    lines = [
        title,
        "=" * len(title),
        "",
        "One page for each public header; ``hotbed/hotbed.h`` includes them all.",
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
    ] + [f"   {header.stem}" for header in headers]
    (out / "contents.rst").write_text("\n".join(lines) + "\n")
