#!/usr/bin/env bash
# tools/dynamicemb_tests.sh - run dynamicemb's unit tests over hotbed.compat.dynamicemb.
#
#   tools/dynamicemb_tests.sh CHECKOUT [FILE...]
#
# CHECKOUT is a clone of NVIDIA/recsys-examples, FILE a shell script or a Python file below its corelib/dynamicemb/test;
# without one, all that are listed here. The shell scripts run as they are, with a torchrun and a pytest that
# python/tests/dynamicemb_runner.py provides; it records the result of each case. Nothing in the checkout is changed.
# PYTHON (python3) has torch, fbgemm-gpu, torchrec, pytest, click and this package installed. Without a GPU the tests run on
# the CPU; tests of more ranks than GPUs share the first GPU; see python/tests/dynamicemb_plugin.py. Each rank has one
# thread. Cases with more than DYNAMICEMB_RANKS ranks are left out, and cases that load what these would have written.
# DYNAMICEMB_JOBS (1) cases run at once; a case that loads waits for the one that saves.
#
# Prints the end of a failed case's log, then passed, failed and skipped by file, and each reason of
# python/tests/dynamicemb_known.txt with its cases. Exits with 1 if a case failed that the list does not have.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python3}")
theirs=$(cd "$1/corelib/dynamicemb" && pwd)
shift
if [ $# -eq 0 ]; then
    set -- unit_tests/incremental_dump/test_incremental_dump.sh test_batched_dynamic_embedding_tables_v2.py \
        unit_tests/test_sequence_embedding.sh unit_tests/test_pooled_embedding.sh unit_tests/test_lfu_scores.sh \
        unit_tests/test_embedding_admission.sh unit_tests/test_embedding_dump_load.sh unit_tests/test_twin_module.sh
fi

runner=$root/python/tests/dynamicemb_runner.py
work=$(mktemp -d)
mkdir "$work/bin" "$work/cwd"
ln -s "$theirs/test" "$work/cwd/test"
for program in torchrun pytest; do
    printf '#!/bin/sh\nexec "%s" "%s" ask "%s" %s "$@"\n' "$python" "$runner" "$work/socket" $program >"$work/bin/$program"
    chmod +x "$work/bin/$program"
done
touch "$work/results"
# The server must not start CUDA's driver before it forks: PyTorch asks NVML instead.
PYTHONPATH=$root/python/tests${PYTHONPATH:+:$PYTHONPATH} PYTORCH_NVML_BASED_CUDA_CHECK=1 OMP_NUM_THREADS=1 HOTBED_THREADS=1 \
    "$python" -W ignore "$runner" serve "$work/socket" "$work/results" "${DYNAMICEMB_JOBS:-1}" &
server=$!
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
until [ -S "$work/socket" ]; do
    kill -0 $server
    sleep 0.2
done

cd "$work/cwd"
for file in "$@"; do
    case $file in
    *.py) "$work/bin/pytest" "test/$file" ;;
    *.sh) PATH=$work/bin:$PATH bash "test/$file" >/dev/null ;;
    esac
done
"$python" "$runner" ask "$work/socket" stop
wait $server
"$python" "$runner" report "$work/results"
