#!/bin/sh
# tests/dist/comm_death.sh - run comm_death for one phase: all survivors must say so, in time.
# usage: comm_death.sh MPIRUN PROGRAM PHASE
set -u
ranks=3
start=$(date +%s)
out=$(PHASE=$3 timeout 20 "$1" --oversubscribe --enable-recovery -n $ranks "$2" 2>&1)
seconds=$(($(date +%s) - start))
echo "$out" | grep -E 'survivor|CHECK|failed'
said=$(echo "$out" | grep -cE "^survivor [02]: (left|end)\$")
echo "$3: $said of $((ranks - 1)) survivors in $seconds s"
[ "$said" -eq $((ranks - 1)) ] && [ "$seconds" -lt 15 ]
