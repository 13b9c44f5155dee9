#!/bin/sh
# tools/check_install.sh BUILD - install BUILD and move the installed tree; run its programs, and use
# the library from another project, with CMake and with pkg-config.
set -eu
cd "$(dirname "$0")/.."
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/moved" # nothing in it may depend on its first place
prefix=$work/moved
library=$(find "$prefix" -name 'libhotbed.so' | head -n 1)
[ -n "$library" ] || { echo "no libhotbed.so was installed"; exit 1; }
lib=$(dirname "$library")

# The library exports exactly the public functions.
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort >"$work/exported"
if grep -v '^hotbed_' "$work/exported"; then
    echo "exported, but not hotbed_*: see above"
    exit 1
fi
cat include/hotbed/*.h | tr '\n' ' ' | grep -oE 'HOTBED_API[^(;]*\(' | grep -oE 'hotbed_[a-z0-9_]+\($' |
    tr -d '(' | sort -u >"$work/declared"
if ! diff "$work/declared" "$work/exported" >"$work/diff"; then
    echo "declared in include/ (<) and exported (>) differ:"
    cat "$work/diff"
    exit 1
fi

if ! { cmake -S examples/consumer -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" &&
    cmake --build "$work/consumer"; } >"$work/log" 2>&1; then
    cat "$work/log"
    exit 1
fi
"$work/consumer/consumer" >"$work/out" || { cat "$work/out"; exit 1; }

# The programs, if the build has them, run from their new place.
if grep -q '^HOTBED_EXAMPLES:BOOL=ON$' "$build/CMakeCache.txt"; then
    "$prefix/bin/hotbed-datagen" --rows 500 -o "$work/rows.tsv" 2>"$work/log" &&
        "$prefix/bin/hotbed-train" --data "$work/rows.tsv" --backend host --capacity 1000 --json "$work/report.json" \
            2>"$work/log" || { cat "$work/log"; exit 1; }
    grep -q '"rows": 500,' "$work/report.json" || { echo "hotbed-train did not train 500 rows"; exit 1; }
fi

PKG_CONFIG_PATH="$lib/pkgconfig"
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # split on purpose
${CC:-cc} -std=c11 -Wall -Wextra -Werror -o "$work/by_pkg_config" examples/consumer/consumer.c \
    $(pkg-config --cflags --libs hotbed)
LD_LIBRARY_PATH="$lib" "$work/by_pkg_config" >"$work/out2" || { cat "$work/out2"; exit 1; }
cmp "$work/out" "$work/out2"

# The program in README.md does what the page says.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' README.md >"$work/readme.c"
# shellcheck disable=SC2046
${CC:-cc} -std=c11 -Wall -Wextra -Werror -Wno-dangling-else -o "$work/readme" "$work/readme.c" \
    $(pkg-config --cflags --libs hotbed)
said=$(sed -n 's|.*printf("%g %g.*/\* \(.*\): .*|\1|p' "$work/readme.c")
got=$(LD_LIBRARY_PATH="$lib" "$work/readme")
if [ "$got" != "$said" ]; then
    echo "README.md: its program prints '$got', not '$said'"
    exit 1
fi

# The line of the page that compiles it, with the library in ~/hotbed, makes a program that runs.
ln -s "$prefix" "$work/hotbed"
cp "$work/readme.c" "$work/program.c"
line=$(grep '^cc -std=c11 program.c ' README.md)
got=$(cd "$work" && HOME=$work sh -c "$line && ./a.out" 2>&1) || true
if [ "$got" != "$said" ]; then
    echo "README.md: the program that its line compiles prints '$got', not '$said'"
    exit 1
fi
echo "$(wc -l <"$work/exported") functions exported; find_package and pkg-config programs ran:"
sed 's/^/    /' "$work/out"
