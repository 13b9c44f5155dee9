#!/bin/sh
# tools/build_docs.sh - build the site with Sphinx, from PyPI, in a virtual environment that is kept.
set -eu
cd "$(dirname "$0")/.."
environment=${XDG_CACHE_HOME:-$HOME/.cache}/hotbed-docs
if ! cmp -s docs/site/requirements.txt "$environment/requirements.txt"; then
    rm -rf "$environment"
    python3 -m venv "$environment"
    "$environment/bin/pip" install -q --disable-pip-version-check -r docs/site/requirements.txt
    cp docs/site/requirements.txt "$environment/"
fi
"$environment/bin/python" docs/site/build.py build/docs
echo build/docs/html/index.html
