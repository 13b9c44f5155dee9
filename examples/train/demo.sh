#!/usr/bin/env bash
# examples/train/demo.sh - the demonstration behind ./run demo.
#   demo.sh DIRECTORY-OF-THE-PROGRAMS [FOLDER]
# Makes click logs from a planted model, trains on them through cached tables, and compares the AUC on fresh rows
# with the planted model's own AUC.  Then continues from a checkpoint of the middle: on one rank, where the loss must
# be the same bit for bit, and on two ranks, where it may differ by a millionth, since the gradients that a key gets
# from both ranks are added in another order.
# ROWS (400000) sets the number of training rows; FOLDER keeps the files.
set -u
programs=$(cd "${1:?usage: demo.sh DIRECTORY-OF-THE-PROGRAMS [FOLDER]}" && pwd) || exit 1
rows=${ROWS:-400000}
case $rows in
*[!0-9]* | ????????????*) rows=0 ;;
esac
if [ "$rows" -lt 50000 ]; then
    echo "demo: ROWS is '${ROWS:-}', and at least 50000: fewer rows cannot show 90 % of the planted model" >&2
    exit 2
fi
held_out=$((rows / 4))
batch=$((rows / 97)) # a hundred steps, or more
[ $batch -le 4096 ] || batch=4096
if [ $# -gt 1 ]; then
    mkdir -p "$2" && folder=$(cd "$2" && pwd) || exit 1
    rm -rf "$folder/checkpoints"
else
    folder=$(mktemp -d "${TMPDIR:-/tmp}/hotbed-demo-XXXXXX") || exit 1
    trap 'rm -rf "$folder"' EXIT
fi
begin=$SECONDS
results=()
failures=0

title() { printf '\n== %s\n' "$*"; }
pass() { results+=("PASS  $*"); }
fail() {
    results+=("FAIL  $*")
    failures=$((failures + 1))
}
finish() {
    title "summary"
    printf '%s\n' "${results[@]}"
    if [ "$failures" -gt 0 ]; then
        printf 'demo: FAIL, after %d s\n' $((SECONDS - begin))
        exit 1
    fi
    printf 'demo: PASS, in %d s\n' $((SECONDS - begin))
    exit 0
}
number() { sed -n "s/.*\"$2\": \([-0-9.e+]*\).*/\1/p" "$1" | head -n 1; }
# total FILE NAME: print the sum over all tables
total() { grep -o "\"$2\": [0-9]*" "$1" | awk '{ n += $2 } END { print n }'; }
train() {
    "$programs/hotbed-train" --data "$folder/train.tsv" --eval "$folder/held-out.tsv" --capacity 200000 \
        --batch "$batch" "$@"
}
# Keep a few MiB of rows in device memory and the others in the lower tier; fetch the next batch's rows ahead.
cached=(--mode cache --hbm-mb 8 --pipeline prefetch)

title "data: $rows rows to train on, $held_out fresh ones to test with"
"$programs/hotbed-datagen" --rows "$rows" -o "$folder/train.tsv" || { fail "hotbed-datagen" && finish; }
"$programs/hotbed-datagen" --rows "$held_out" --skip "$rows" -o "$folder/held-out.tsv" \
    --json "$folder/planted.json" || { fail "hotbed-datagen --skip" && finish; }

# Two checkpoints: near the middle and at the end.
steps=$(((rows + batch - 1) / batch))
middle=$((steps / 2 + 1))
title "train: a factorisation machine, 39 cached tables, one pass, with a checkpoint after step $middle"
train "${cached[@]}" --save "$folder/checkpoints" --save-every "$middle" --json "$folder/whole.json" \
    --trace "$folder/trace.json" || { fail "hotbed-train" && finish; }
planted=$(number "$folder/planted.json" auc)
auc=$(number "$folder/whole.json" auc)
line=$(awk -v a="$auc" -v p="$planted" 'BEGIN {
    printf "AUC %.4f on fresh rows; the planted model has %.4f: %.1f %% of the difference from 0.5 (at least 90 %%)",
        a, p, 100 * (a - 0.5) / (p - 0.5)
    exit !(a >= 0.5 + 0.9 * (p - 0.5)) }') && pass "$line" || fail "$line"
line="$(total "$folder/whole.json" keys_stored) rows; $(total "$folder/whole.json" fetches) times one came up into the cache"
[ "$(total "$folder/whole.json" fetches)" -gt 0 ] && pass "$line" || fail "$line"
waits=$(number "$folder/whole.json" host_waits_per_step)
[ "$waits" = 0 ] && pass "no host wait in a step" || fail "$waits host waits a step"
speed="$(number "$folder/whole.json" rows_per_s | cut -d. -f1) rows/s on the $(sed -n 's/.*"backend": "\(.*\)".*/\1/p' "$folder/whole.json") backend"

checkpoint=$folder/checkpoints/$(printf 'step-%010d' "$middle")
# points FILE: print the loss curve after the step of the checkpoint
points() { grep -E '^    \[[0-9]+, ' "$1" | tr -d ' []' | awk -F, -v s="$middle" '$1 > s { print $1, $2 }'; }
# differ FILE FILE: print the largest relative difference of two loss curves; nothing if points are missing
differ() {
    paste -d ' ' <(points "$1") <(points "$2") | awk '
        NF != 4 || $1 != $3 { exit 1 }
        { d = $2 > $4 ? $2 - $4 : $4 - $2; if (d > $2 * most) most = d / $2 }
        END { if (NR > 0) printf "%.1g", most }'
}
# resumed NAME MOST OPTIONS...: continue from the checkpoint; the loss may differ by the fraction MOST
resumed() {
    local name=$1 most=$2 json=$folder/$1.json count difference again
    shift 2
    train --load "$checkpoint" --json "$json" "$@" || { fail "hotbed-train --load, on $name" && return; }
    count=$(points "$json" | grep -c .)
    difference=$(differ "$folder/whole.json" "$json")
    if [ "$(number "$json" first_step)" != "$middle" ] || [ -z "$difference" ]; then
        fail "on $name it did not go on from step $middle to the end"
    elif awk -v d="$difference" -v m="$most" 'BEGIN { exit !(d <= m) }'; then
        pass "loss after step $middle on $name: $count points, off by $difference of the uninterrupted run's ($most allowed)"
    else
        fail "loss after step $middle on $name: off by $difference of the uninterrupted run's ($most allowed)"
        diff <(points "$folder/whole.json") <(points "$json")
    fi
    again=$(number "$json" auc)
    awk -v a="$again" -v b="$auc" -v m="$most" 'BEGIN { d = a - b; exit !(d <= 10 * m && -d <= 10 * m) }' &&
        pass "AUC after that: $again" || fail "AUC after that: $again, not $auc"
}

title "go on: load the checkpoint of step $middle, and train the rest again"
du -sh "$checkpoint" | awk '{ print "checkpoint: " $1 }'
resumed one-rank 0 --mode hbm

title "go on with two ranks: each has half of the rows of every table, and trains half of each batch"
# On the host backend, since there may be only one GPU.
resumed two-ranks 1e-6 --ranks 2 --backend host "${cached[@]}"

results+=("      $speed")
[ $# -lt 2 ] || results+=("      timeline for https://ui.perfetto.dev: $folder/trace.json")
finish
