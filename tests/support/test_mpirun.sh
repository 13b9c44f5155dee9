#!/bin/sh
# tests/support/test_mpirun.sh - mpirun.sh keeps its promises.
# usage: test_mpirun.sh MPIRUN
set -u
here=$(cd "$(dirname "$0")" && pwd)
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/hotbed-test-XXXXXX") || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# During a run, TMPDIR has one folder, the run's own, and mpirun has its session directory in there.
seen=$("$here/mpirun.sh" "$1" -n 2 sh -c 'ls "$TMPDIR"; ls "$TMPDIR"/hotbed-mpi-*' | sort -u | sed 's/-[A-Za-z0-9]*$/-X/')
echo "$seen"
[ "$(echo "$seen" | grep -cv '^$')" -eq 2 ] && echo "$seen" | grep -q '^hotbed-mpi-X$' || {
    echo "expected one folder, this run's own, with mpirun's session directory in it"
    exit 1
}
# Afterwards nothing is left, even of a run that failed, whose status is returned.
"$here/mpirun.sh" "$1" -n 1 sh -c 'exit 7' >"/dev/null" 2>&1
status=$?
[ $status -eq 7 ] || { echo "the status was $status instead of 7" && exit 1; }
[ -z "$(ls "$TMPDIR")" ] || { echo "left over: $(ls "$TMPDIR")" && exit 1; }
# No test calls mpirun directly.
bare=$(grep -rnE '(^|[^$./a-zA-Z_-])mpirun +-' "$here/.." | grep -v 'mpirun\.sh')
[ -z "$bare" ] || { echo "without mpirun.sh: $bare" && exit 1; }
echo "each run has a folder of its own"
