#!/bin/sh
# tools/sources.sh EXTENSIONS [DIRECTORY...] - list the project's source files, e.g. tools/sources.sh 'c|h' base.
set -eu
cd "$(dirname "$0")/.."
extensions=$1
shift
[ $# -gt 0 ] || set -- include base storage dist pipeline checkpoint serve abi tests bench examples
for directory in "$@"; do
    [ ! -d "$directory" ] || find "$directory" -type f
done | grep -E "\.($extensions)\$" | sort
