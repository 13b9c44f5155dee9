#!/bin/bash
# tools/serve_demo.sh [OPTION...] - install the Python package in an environment of its own, and run
# examples/python/serving_demo.py with the options.
#
# The environment is in HOTBED_PYTHON_ENVS (default ~/.cache/hotbed-python).
set -eu
cd "$(dirname "$0")/.."
folder=${HOTBED_PYTHON_ENVS:-${XDG_CACHE_HOME:-$HOME/.cache}/hotbed-python}/serve-demo
if [ ! -x "$folder/bin/python" ]; then
    python3 -m venv "$folder"
fi
echo "serve-demo: installing PyTorch, aiohttp and this checkout in $folder"
"$folder/bin/pip" install -q --disable-pip-version-check torch numpy aiohttp
"$folder/bin/pip" install -q --disable-pip-version-check .
mkdir -p build
exec "$folder/bin/python" examples/python/serving_demo.py --picture build/lag.svg "$@"
