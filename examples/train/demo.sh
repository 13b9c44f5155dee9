#!/usr/bin/env bash
# examples/train/demo.sh - the demonstration behind ./run demo.
#   demo.sh DIRECTORY-OF-THE-PROGRAMS [FOLDER]
# Makes click logs from a planted model, trains on them, compares the AUC on fresh rows with the planted
# model's own, then goes on from a checkpoint in the middle and compares the loss bit for bit.
# ROWS (400000) sets the number of training rows; FOLDER keeps the files.
set -u
programs=$(cd "${1:?usage: demo.sh DIRECTORY-OF-THE-PROGRAMS [FOLDER]}" && pwd) || exit 1
rows=${ROWS:-400000}
held_out=$((rows / 4))
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
train() {
    "$programs/hotbed-train" --data "$folder/train.tsv" --eval "$folder/held-out.tsv" --capacity 200000 "$@"
}

title "data: $rows rows to train on, $held_out fresh ones to test with"
"$programs/hotbed-datagen" --rows "$rows" -o "$folder/train.tsv" || { fail "hotbed-datagen" && finish; }
"$programs/hotbed-datagen" --rows "$held_out" --skip "$rows" -o "$folder/held-out.tsv" \
    --json "$folder/planted.json" || { fail "hotbed-datagen --skip" && finish; }

# Two checkpoints: about the middle, and the end.
steps=$(((rows + 4095) / 4096))
middle=$((steps / 2 + 1))
title "train: a factorisation machine, 39 tables, one pass, with a checkpoint after step $middle"
train --save "$folder/checkpoints" --save-every "$middle" --json "$folder/whole.json" --trace "$folder/trace.json" ||
    { fail "hotbed-train" && finish; }
planted=$(number "$folder/planted.json" auc)
auc=$(number "$folder/whole.json" auc)
line=$(awk -v a="$auc" -v p="$planted" 'BEGIN {
    printf "AUC %.4f on fresh rows; the planted model has %.4f: %.1f %% of what is above 0.5 (90 %% asked)",
        a, p, 100 * (a - 0.5) / (p - 0.5)
    exit !(a >= 0.5 + 0.9 * (p - 0.5)) }') && pass "$line" || fail "$line"
waits=$(number "$folder/whole.json" host_waits_per_step)
[ "$waits" = 0 ] && pass "no host wait in a step" || fail "$waits host waits a step"
speed="$(number "$folder/whole.json" rows_per_s | cut -d. -f1) rows/s on the $(sed -n 's/.*"backend": "\(.*\)".*/\1/p' "$folder/whole.json") backend"

title "go on: load the checkpoint of step $middle, and train the rest again"
checkpoint=$folder/checkpoints/$(printf 'step-%010d' "$middle")
du -sh "$checkpoint" | awk '{ print "checkpoint: " $1 }'
if train --load "$checkpoint" --json "$folder/resumed.json"; then
    first=$(number "$folder/resumed.json" first_step)
    after() { grep -E '^    \[[0-9]+, ' "$1" | tr -d ' []' | awk -F, -v s="$first" '$1 > s { print $1, $2 }'; }
    whole=$(after "$folder/whole.json")
    resumed=$(after "$folder/resumed.json")
    count=$(printf '%s\n' "$resumed" | grep -c .)
    if [ "$first" = "$middle" ] && [ "$count" -gt 0 ] && [ "$whole" = "$resumed" ]; then
        pass "loss after step $middle: $count points, equal bit for bit to the uninterrupted run's"
    else
        fail "the loss after step $middle is not that of the uninterrupted run"
        diff <(printf '%s\n' "$whole") <(printf '%s\n' "$resumed")
    fi
    again=$(number "$folder/resumed.json" auc)
    [ "$again" = "$auc" ] && pass "AUC after the load: the same, $again" || fail "AUC after the load: $again, not $auc"
else
    fail "hotbed-train --load"
fi
results+=("      $speed")
[ $# -lt 2 ] || results+=("      timeline for https://ui.perfetto.dev: $folder/trace.json")
finish
