#!/usr/bin/env python3
"""usage: build.py OUT

Build the documentation site in OUT/html.  Needs Sphinx with the extensions of conf.py.  The pages keep their places in
the tree, so links between files are links between pages; a link into include/hotbed/ goes to the page of the header.
"""

import pathlib
import re
import shutil
import subprocess
import sys

import reference

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

INDEX = """# Hotbed

```{include} README.md
:start-line: 1
:end-before: "## Builds"
```

```{toctree}
:hidden:
:caption: Start
docs/getting-started
docs/concepts
docs/glossary
```

```{toctree}
:hidden:
:caption: Python
docs/python/install
docs/python/train
docs/python/ranks
docs/python/checkpoints
docs/python/torchrec
docs/python/dynamicemb
docs/python/errors
python/hotbed/index
```

```{toctree}
:hidden:
:caption: Guides
GUIDES
docs/tool
```

```{toctree}
:hidden:
:caption: Reference
reference/contents
docs/platforms
docs/features
docs/formats
docs/performance
```

```{toctree}
:hidden:
:caption: For maintainers
docs/README
docs/design/README
DESIGN
docs/decisions/README
DECISIONS
docs/conventions
docs/testing
RESULTS
```
"""


def stage(source: pathlib.Path) -> None:
    """Copy the pages, with links to headers turned into links to their reference."""
    shutil.rmtree(source, ignore_errors=True)
    for pattern in ("README.md", "docs/**/*", "bench/results/*.md", "bench/results/*.json"):
        for path in ROOT.glob(pattern):
            name = path.relative_to(ROOT)
            if path.is_dir() or name.parts[:2] == ("docs", "site"):
                continue
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if path.suffix != ".md":
                shutil.copy(path, source / name)
                continue
            up = "../" * (len(name.parts) - 1)
            text = re.sub(r"\]\((?:\.\./)*include/hotbed/(\w+)\.h", rf"]({up}reference/\1.rst", path.read_text())
            (source / name).write_text(text)
    reference.write(ROOT / "include/hotbed", source / "reference")
    index = INDEX
    for word, folder in (
        ("GUIDES", "docs/guide"),
        ("DESIGN", "docs/design"),
        ("DECISIONS", "docs/decisions"),
        ("RESULTS", "bench/results"),
    ):
        pages = sorted(p for p in ROOT.glob(folder + "/*.md") if p.name != "README.md")
        index = index.replace(word, "\n".join(str(p.relative_to(ROOT).with_suffix("")) for p in pages))
    (source / "index.md").write_text(index)


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    out = pathlib.Path(sys.argv[1]).resolve()
    stage(out / "source")
    return subprocess.call(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            "-c",
            str(HERE),
            "-d",
            str(out / "doctrees"),
            str(out / "source"),
            str(out / "html"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
