"""Sphinx's configuration: the documents, the C reference made from the headers, and the Python reference."""

import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


project = "Hotbed"
author = "The Hotbed authors"
copyright = author
release = re.search(r'HOTBED_VERSION +"([^"]+)"', (ROOT / "include/hotbed/version.h").read_text())[1]

extensions = ["myst_parser", "autoapi.extension", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["hotbed.css"]
html_title = f"Hotbed {release}"
exclude_patterns = ["docs/site", "examples", "bench/results/archive"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# Tables of results begin at the third level; tools/check_docs.py checks links; classes of errors have two names.
suppress_warnings = ["myst.header", "myst.xref_missing", "ref.python"]
napoleon_use_ivar = True
nitpicky = False
c_id_attributes = ["HOTBED_API", "HOTBED_MUST_USE"]

autoapi_dirs = [str(ROOT / "python/hotbed")]
autoapi_root = "python"
autoapi_options = ["members", "undoc-members", "show-inheritance", "show-module-summary", "imported-members"]
autoapi_ignore = ["*/compat/*"]
autoapi_add_toctree_entry = False
autoapi_keep_files = False
