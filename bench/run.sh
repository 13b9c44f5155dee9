#!/usr/bin/env bash
# bench/run.sh - run the workloads and the microbenchmarks of a build, and write their results as JSON, one a line.
#
#   bench/run.sh BINARIES host|cuda OUT [quick]
#
# BENCH selects parts; all are BENCH="workloads curves replay plans digest exchange micro checkpoint".
# WORKLOADS=W1,W5 and INSERTION=plain or probation select among the timed workloads.
# Results go to OUT/workloads-<device>.json, curves-<device>.json, plans-<device>.json with two timelines, exchange-<device>.json,
# micro-<device>.json and checkpoint-<device>.json.  The checkpoint benchmark writes to
# TMPDIR or /tmp.  On the host the workloads have a tenth of their size.  At the end bench/compare.py lists what
# is slower than in the committed results.  Exit status 1: a check failed.
set -u
if [ $# -lt 3 ]; then
    sed -n '2,11p' "$0" >&2
    exit 2
fi
binaries=$1 backend=$2 out=$3 quick=${4:-}
status=0
commit=$(git describe --always --dirty --abbrev=12 2>/dev/null || echo "${COMMIT:-unknown}")
mkdir -p "$out"

case $backend in
cuda)
    device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
    scale=1 steps=100 curve_scale=1 replay_scale=0.05 replays=1000 plans=()
    ;;
host)
    device=host-$(nproc)-cores
    scale=0.1 steps=20 curve_scale=0.02 replay_scale=0.01 replays=1000 plans=(env HOTBED_THREADS=1)
    ;;
*)
    echo "bench/run.sh: no backend '$backend'" >&2
    exit 2
    ;;
esac
device=$(printf '%s' "${device:-gpu}" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9.-')
iterations=() short=()
if [ "$quick" = quick ]; then
    scale=0.01 steps=5 curve_scale=0.002 replay_scale=0.002 replays=100 iterations=(--iterations 2)
    short=(--scale 0.005 --rounds 2 --steps 6)
fi

parts=" ${BENCH:-workloads curves replay plans digest exchange micro checkpoint} "
wants() { [[ $parts == *" $1 "* ]]; }

run() { # part, then the command
    wants "$1" || return 0
    shift
    echo "-- $*"
    "$@" || status=1
}

workloads=$binaries/hotbed-workloads
run workloads "$workloads" --backend "$backend" --workload "${WORKLOADS:-all}" --scale "$scale" --steps "$steps" \
    --insertion "${INSERTION:-both}" --overlap --check --commit "$commit" --json "$out/workloads-$device.json"
run curves "$workloads" --curves --backend "$backend" --scale "$curve_scale" --steps 20 --commit "$commit" \
    --json "$out/curves-$device.json"
run replay "$workloads" --backend "$backend" --scale "$replay_scale" --replay "$replays"
# On the host one thread for each stream: exchange and prefetch then have a core of their own.
run plans "${plans[@]}" "$binaries/hotbed-plans" --backend "$backend" --commit "$commit" "${short[@]}" \
    --json "$out/plans-$device.json" --pictures "$out/plans-$device"
if [ "$backend" = cuda ]; then
    run digest "$workloads" --backend both --scale 0.05 --steps 70 --digest --insertion both
fi
# Exchanges between ranks: on the host, or with several GPUs.
exchange() { # file, then the command
    wants exchange || return 0
    local out=$out/exchange-$1.json
    shift
    echo "-- $* --json $out"
    "$@" --commit "$commit" --json "$out"
    case $? in
    0 | 77) ;;
    *) status=1 ;;
    esac
}
as_root="env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
sizes="--scale $scale --steps $steps"
# shellcheck disable=SC2086 # several words
if [ "$backend" = host ]; then
    exchange "$device" "$binaries/hotbed-exchange" --transport threads --ranks 1,2,4 $sizes
    if command -v mpirun >/dev/null 2>&1; then
        exchange "$device-mpi" $as_root mpirun --oversubscribe -n 2 "$binaries/hotbed-exchange" --transport mpi $sizes
    fi
elif [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge 4 ]; then
    exchange "4-$device" env NCCL_NVLS_ENABLE=0 "$binaries/hotbed-exchange" --transport nccl --ranks 1,2,4 $sizes
elif [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge 2 ]; then
    exchange "2-$device" env NCCL_NVLS_ENABLE=0 "$binaries/hotbed-exchange" --transport nccl --ranks 1,2 $sizes
else
    echo "-- exchanges between ranks are skipped: they need two GPUs"
fi
if [ -x "$binaries/hotbed-bench" ]; then
    run micro "$binaries/hotbed-bench" --backend "$backend" --commit "$commit" "${iterations[@]}" \
        --benchmark_filter=-checkpoint/ --benchmark_out="$out/micro-$device.json" --benchmark_out_format=json
    run checkpoint "$binaries/hotbed-bench" --backend "$backend" --commit "$commit" "${iterations[@]}" \
        --benchmark_filter=checkpoint/ --benchmark_out="$out/checkpoint-$device.json" \
        --benchmark_out_format=json
    if [ "$backend" = host ]; then # compare the index with other hash maps, on one thread
        run micro env HOTBED_THREADS=1 "$binaries/hotbed-bench" --backend host --commit "$commit" "${iterations[@]}" \
            --benchmark_filter='index/alone_find/|peer/' --benchmark_out="$out/micro-$device-1-thread.json" \
            --benchmark_out_format=json
    fi
else
    echo "-- no hotbed-bench: this build lacks Google Benchmark"
fi
python3 "$(dirname "$0")/layout.py" "$out"/*.json || status=1
if [ "$quick" != quick ]; then
    python3 "$(dirname "$0")/compare.py" "$out" || status=1
fi
exit $status
