#!/bin/sh
# tests/dist/comm_death.sh - run comm_death for one phase: all survivors must report within SECONDS.
# usage: comm_death.sh PHASE RANKS SECONDS COMMAND...; COMMAND starts the ranks, and must end too
set -u
phase=$1 ranks=$2 most=$3
shift 3
start=$(date +%s)
out=$(PHASE=$phase timeout "$most" "$@" 2>&1)
ended=$?
seconds=$(($(date +%s) - start))
echo "$out" | grep -E 'survivor|CHECK|failed|skipped'
said=$(echo "$out" | grep -cE "^survivor [0-9]+: (left|end)\$")
echo "$phase: $said of $((ranks - 1)) survivors in $seconds s"
[ "$ended" -eq 124 ] && exit 1 # a process has not ended
[ "$said" -ne $((ranks - 1)) ] || exit 0
echo "$out" | grep -q ': skipped,' && exit 77
exit 1
