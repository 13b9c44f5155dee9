#!/bin/sh
# tools/check_features.sh - the tests that docs/features.md names exist, and each finished feature names one.
#
# In a row, "`test_x`: one, another;" names the tests `one` and `another` of tests/*/test_x.c, and
# "`python/tests/test_x.py`: test_one, test_another;" those of a module in Python.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk -F '|' '
function report(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; bad = 1 }
!/^\| [A-Z]+[0-9]+ \|/ { next }
{
    line = $0
    named = 0
    while (match(line, /`(test|train|workloads|header)[a-z0-9_.*]+`(: [^;|]*)?/)) {
        part = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        named = 1
        split(part, at, "`")
        print FILENAME ":" FNR, at[2] >"'"$work/programs"'"
        n = split(at[3], words, /[^a-z0-9_]+/)
        for (w = 1; w <= n; w++)
            if (words[w] ~ /_.*_/ && at[2] ~ /^test_/)
                print FILENAME ":" FNR, at[2], words[w] >"'"$work/tests"'"
    }
    line = $0
    while (match(line, /`python\/tests\/[a-z0-9_]+\.py`(: [^;|]*)?/)) {
        part = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        named = 1
        split(part, at, "`")
        print FILENAME ":" FNR, at[2], "-" >"'"$work/python"'"
        n = split(at[3], words, /[^a-z0-9_]+/)
        for (w = 1; w <= n; w++)
            if (words[w] ~ /^test_/)
                print FILENAME ":" FNR, at[2], words[w] >"'"$work/python"'"
    }
    if (/\| (done|host)/ && !named && !/\.ci\/run/)
        report($2 "is done without a test")
}
END { exit bad }' docs/features.md

status=0
while read -r line program; do
    name=${program%.host}
    name=${name%.cuda}
    case $name in
    header.*) continue ;;
    esac
    # test_fuzz_x is built from fuzz_x.c
    ls tests/*/"$name".* >/dev/null 2>&1 || ls tests/*/"${name#test_}".* >/dev/null 2>&1 || grep -qrw "$name" bench/CMakeLists.txt ||
        { echo "$line: there is no $program" && status=1; }
done <"$work/programs"
while read -r line program test; do
    grep -qs "{TEST($test)}" tests/*/"$program".c || grep -qs "^def $test(" tests/*/"$program".py ||
        { echo "$line: $program has no test $test" && status=1; }
done <"$work/tests"
while read -r line module test; do
    if [ ! -f "$module" ]; then
        echo "$line: there is no $module" && status=1
    elif [ "$test" != - ]; then
        grep -q "^def $test(" "$module" || { echo "$line: $module has no $test" && status=1; }
    fi
done <"$work/python"
[ $status -eq 0 ] && echo "$(wc -l <"$work/tests") tests named"
exit $status
