#!/bin/sh
# tools/check_map.sh - every hotbed_... name and file on the right of docs/torchrec-map.md is there.
set -eu
cd "$(dirname "$0")/.."
status=0
names=$(grep -o 'hotbed_[a-z0-9_]*[a-z0-9]' docs/torchrec-map.md | sort -u)
for name in $names; do
    grep -rqwF -- "$name" include || { echo "docs/torchrec-map.md: there is no $name" && status=1; }
done
for path in $(grep -oE '`(base|storage|dist|pipeline|checkpoint|tests)/[a-z0-9_/]+\.[ch]`' docs/torchrec-map.md | tr -d '`' | sort -u); do
    [ -e "$path" ] || { echo "docs/torchrec-map.md: there is no $path" && status=1; }
done
[ $status -eq 0 ] && echo "$(echo "$names" | wc -l) names"
exit $status
