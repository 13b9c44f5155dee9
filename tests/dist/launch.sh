#!/bin/sh
# tests/dist/launch.sh - run a program as N ranks that find each other by environment variables, as torchrun does.
# usage: launch.sh N PROGRAM [ARGUMENT...]; exits with the status of a failed rank, else 77 if a rank skipped, else 0.
set -u
n=$1
shift
export MASTER_ADDR=127.0.0.1 WORLD_SIZE="$n"
# A free port below the range from which the system assigns ports.
MASTER_PORT=$(python3 -c '
import os, socket
for port in range(20000 + os.getppid() * 7 % 10000, 31000):
    with socket.socket() as s:
        try:
            s.bind(("", port))
        except OSError:
            continue
    print(port)
    break') || exit 1
export MASTER_PORT
pids=
rank=0
while [ $rank -lt "$n" ]; do
    RANK=$rank LOCAL_RANK=$rank "$@" &
    pids="$pids $!"
    rank=$((rank + 1))
done
worst=0
for pid in $pids; do
    wait "$pid"
    status=$?
    if [ $status -ne 0 ] && { [ $worst -eq 0 ] || [ $worst -eq 77 ]; }; then
        worst=$status
    fi
done
exit $worst
