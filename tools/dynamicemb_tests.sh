#!/usr/bin/env bash
# tools/dynamicemb_tests.sh - run dynamicemb's unit tests over hotbed.compat.dynamicemb.
#
#   tools/dynamicemb_tests.sh CHECKOUT [FILE...]
#
# CHECKOUT is a clone of NVIDIA/recsys-examples, FILE a test below its corelib/dynamicemb/test; without one, all that are
# listed here. Python files run under pytest, with one rank; shell files run with a torchrun of ours, which records each of
# their cases. Nothing of the checkout is copied or changed. PYTHON (python3) has torch, fbgemm-gpu, torchrec, pytest and
# this package installed. Without a GPU the tests run on the CPU, see python/tests/dynamicemb_plugin.py.
#
# Prints passed, failed and skipped by file, and each reason of python/tests/dynamicemb_known.txt with its cases. Exits with
# 1 if a case failed that the list does not have.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python3}")
theirs=$(cd "$1/corelib/dynamicemb" && pwd)
shift
if [ $# -eq 0 ]; then
    set -- unit_tests/incremental_dump/test_batched_dynamicemb_tables.py \
        unit_tests/incremental_dump/test_distributed_dynamicemb.py \
        test_batched_dynamic_embedding_tables_v2.py unit_tests/test_sequence_embedding.sh unit_tests/test_pooled_embedding.sh \
        unit_tests/test_lfu_scores.sh unit_tests/test_embedding_admission.sh unit_tests/test_embedding_dump_load.sh \
        unit_tests/test_twin_module.py
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOTBED_DYNAMICEMB_RESULTS=$work/results
touch "$HOTBED_DYNAMICEMB_RESULTS"
plugin=$root/python/tests/dynamicemb_plugin.py
printf '#!/bin/sh\nexec "%s" "%s" --case "$@"\n' "$python" "$plugin" >"$work/torchrun"
chmod +x "$work/torchrun"

cd "$theirs"
for file in "$@"; do
    echo "$file"
    case $file in
    *.py)
        RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 PYTHONPATH=$root/python/tests \
            "$python" -m pytest -q -p dynamicemb_plugin -p no:cacheprovider -c /dev/null --rootdir "$theirs/test" \
            -W ignore --tb=no --no-summary --show-capture=no "test/$file" || true
        ;;
    *.sh)
        PATH=$work:$PATH bash "test/$file" >/dev/null
        ;;
    esac
done
"$python" "$plugin" --report "$HOTBED_DYNAMICEMB_RESULTS"
