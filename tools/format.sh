#!/bin/sh
# tools/format.sh [--check] - clang-format 14 over all C, C++ and CUDA files; --check changes nothing.
# Comments, which it leaves alone, must fit into 120 columns.
set -eu
cd "$(dirname "$0")/.."
# Other versions format some lines differently.
for tool in clang-format-14 clang-format; do
    if command -v "$tool" >/dev/null && "$tool" --version | grep -q 'version 14\.'; then
        break
    fi
    tool=
done
if [ -z "$tool" ]; then
    echo "format: clang-format 14 not found: ./run setup installs it" >&2
    exit 1
fi
mode=-i
[ "${1:-}" != --check ] || mode="--dry-run -Werror"
# shellcheck disable=SC2086 # the mode is split on purpose
tools/sources.sh 'c|h|cc|cu|cuh' | xargs -r "$tool" $mode
tools/sources.sh 'c|h|cc|cu|cuh' | xargs -r awk '
    length > 120 { print FILENAME ":" FNR ": " length " columns, at most 120" > "/dev/stderr"; long = 1 }
    END { exit long }'
