#!/usr/bin/env bash
# tests/examples/train_programs.sh - run hotbed-datagen and hotbed-train end to end, and compare losses, AUC and files.
#   train_programs.sh DIRECTORY-OF-THE-PROGRAMS host|cuda [few]
# few: only some plans, numbers of ranks and optimizers, for builds with slow steps.
# Status 77: this machine or build cannot run the backend.
set -u
programs=$(cd "$1" && pwd) || exit 1
tests=$(cd "$(dirname "$0")/.." && pwd) || exit 1
backend=$2
pipelines="none sparse-dist prefetch jagged-prefetch jagged-prefetch-async sw-serial sw-pipelined sw-auto"
cached="sparse-dist sw-pipelined sw-auto" worlds="2 3 5" optimizers="sgd adam adagrad rowwise-adagrad ftrl lamb"
growths="none prefetch sw-pipelined sw-auto" growing_worlds="2 4" loading_worlds="2 3"
if [ "${3-}" = few ]; then
    pipelines="none prefetch sw-auto" cached=sw-pipelined worlds=2 optimizers=rowwise-adagrad
    growths=sw-pipelined growing_worlds=2
fi
if [ "$backend" = cuda ]; then # each rank needs its own GPU
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
    [ -z "${CUDA_VISIBLE_DEVICES-}" ] || gpus=$(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | wc -l)
    [ "$gpus" -ge 2 ] && worlds=2 || worlds=
    [ "$gpus" -lt 4 ] || worlds="2 4"
    growing_worlds=$worlds loading_worlds=$worlds
fi
folder=$(mktemp -d "${TMPDIR:-/tmp}/hotbed-train-XXXXXX") || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
datagen=$programs/hotbed-datagen

die() {
    printf 'FAILED: %s\n' "$*"
    [ ! -f err ] || cat err
    exit 1
}
ok() { printf 'ok   %s\n' "$*"; }
train() { "$programs/hotbed-train" --backend "$backend" --capacity 2000 --batch 500 --dim 4 "$@" 2>err; }
points() { grep -E '^    \[[0-9]+, ' "$1" | tr -d ' []' | sed 's/,$//'; }
number() { sed -n "s/^  \"$2\": \([^,]*\),*\$/\1/p" "$1"; }
# says CODE TEXT ARGUMENTS...: hotbed-train exits with CODE and prints TEXT
says() {
    local code=$1 text=$2 got
    shift 2
    train "$@"
    got=$?
    [ $got -eq "$code" ] || die "status $got, not $code: hotbed-train $*"
    grep -qF -- "$text" err || die "no '$text' from hotbed-train $*"
}

# --- data: a function of the seed and the row number -----------------------------------------------
"$datagen" --rows 12000 --vocab 1000 --seed 3 -o train.tsv --json planted.json 2>/dev/null || die "datagen"
"$datagen" --rows 4000 --skip 12000 --vocab 1000 --seed 3 -o eval.tsv 2>/dev/null || die "datagen --skip"
"$datagen" --rows 16000 --vocab 1000 --seed 3 2>/dev/null | cmp - <(cat train.tsv eval.tsv) ||
    die "rows depend on where one begins"
"$datagen" --rows 12000 --vocab 1000 --seed 3 --threads 5 --json planted-5.json 2>/dev/null | cmp - train.tsv ||
    die "rows depend on the number of threads"
cmp planted.json planted-5.json || die "the planted model depends on the number of threads"
"$datagen" --rows 12000 --vocab 1000 --seed 4 2>/dev/null | cmp -s - train.tsv && die "the seed does nothing"
grep -q '"auc": 0\.[78]' planted.json || die "planted AUC: $(cat planted.json)"
gzip -k train.tsv
ok "datagen: the same rows from any first row, with any number of threads"

# --- invalid options --------------------------------------------------------------------------------
"$datagen" 2>/dev/null
[ $? -eq 2 ] || die "datagen without --rows"
"$datagen" --rows 5 --alpha 0 2>/dev/null
[ $? -eq 2 ] || die "datagen with a bad --alpha"
"$datagen" --rows 5 -o /nonexistent/x 2>/dev/null
[ $? -eq 1 ] || die "datagen to a bad file"
says 2 "--data is missing"
says 2 "'0' is not a value of --dim" --data train.tsv --dim 0
says 2 "'x' is not a value of --lr" --data train.tsv --lr x
says 2 "'gpu' is not a value of --backend" --data train.tsv --backend gpu
says 2 "'fast' is not a value of --mode" --data train.tsv --mode fast
says 2 "'fast' is not a value of --pipeline" --data train.tsv --pipeline fast
says 2 "'shampoo' is not a value of --optimizer, which takes a name that --help lists" --data train.tsv --optimizer shampoo
says 2 "--nonsense" --data train.tsv --nonsense
says 2 "unexpected 'more'" --data train.tsv more
says 2 "--epochs needs a file" --data - --epochs 2
says 2 "--save-every needs --save" --data train.tsv --save-every 5
says 2 "--store needs --mode cache" --data train.tsv --store db
says 2 "--max-capacity 1999 is below --capacity 2000" --data train.tsv --max-capacity 1999
says 2 "--max-capacity is not for --store" --data train.tsv --max-capacity 2000 --mode cache --store db
says 2 "'0' is not a value of --growth-every" --data train.tsv --growth-every 0
says 2 "--growth-every needs --max-capacity" --data train.tsv --growth-every 4
says 2 "--mode hbm has no lower tier" --data train.tsv --mode hbm --lower-index host
says 2 "'0' is not a value of --parse-threads" --data train.tsv --parse-threads 0
says 2 "--mode cache and --mode default need --hbm-mb" --data train.tsv --mode cache
says 2 "--mode cache and --mode default need --hbm-mb" --data train.tsv --mode default
OMPI_COMM_WORLD_SIZE=2 says 2 "--ranks 2 makes threads of one process the ranks" --data train.tsv --ranks 2
says 2 "goes without --lower-index" --data train.tsv --mode cache --store db --lower-index host
says 2 "'f8' is not a value of --dtype" --data train.tsv --dtype f8
says 2 "'up' is not a value of --rounding" --data train.tsv --rounding up
says 2 "'pinned' is not a value of --lower-index" --data train.tsv --lower-index pinned
"$programs/hotbed-train" --help | grep -q -- '--skip-bad N' || die "--help"
for words in "hotbed-train --dat=x" "hotbed-train --data x --epo 2" "hotbed-datagen --row 5"; do
    said=$("$programs/"$words 2>&1) && die "$words: an abbreviation was accepted"
    echo "$said" | grep -q "unrecognized option '--[a-z]*.*did you mean --" || die "$words: $said"
done
"$programs/hotbed-train" --version | grep -q '^hotbed-train [0-9]' || die "--version"
for program in hotbed-train hotbed-datagen; do
    for about in --help --version; do
        "$programs/$program" $about >/dev/full 2>err
        [ $? -eq 2 ] || die "$program $about on a full disk"
        grep -q "^$program: cannot write to the standard output" err || die "$program $about: no message"
    done
done
# Of every option, the values that a message names are accepted, and the numbers beside them are not.
# refused PROGRAM OPTION VALUE: the message says what the option takes; --nonsense ends the program if the value is accepted
refused() {
    "$programs/$1" "$2=$3" --nonsense 2>err >/dev/null
    grep -q "^$1: '$3' is not a value of $2, which takes ." err
}
for program in hotbed-train hotbed-datagen; do
    options=$("$programs/$program" --help | sed -n 's/^  \(--[a-z-]*\) [A-Z].*/\1/p')
    [ "$(wc -w <<<"$options")" -gt 5 ] || die "the options of $program: $options"
    for option in $options; do
        refused $program "$option" '' || die "$program $option= has no message"
        values=$(sed 's/.*which takes //' err) right= wrong=
        if [[ $values =~ ^([0-9]+)\ to\ ([0-9]+)$ ]]; then
            right="${BASH_REMATCH[1]} ${BASH_REMATCH[2]}" wrong="${BASH_REMATCH[2]}0"
            [ "${BASH_REMATCH[1]}" = 0 ] || wrong+=" $((BASH_REMATCH[1] - 1))"
            [ ${#BASH_REMATCH[2]} -gt 18 ] || wrong+=" $((BASH_REMATCH[2] + 1))"
        elif [[ $values != a\ * ]]; then
            right=$(sed 's/,//g; s/ or / /' <<<"$values") wrong=auto-
        fi
        for value in $right; do
            refused $program "$option" "$value" && die "$program $option=$value is refused"
        done
        for value in $wrong; do
            refused $program "$option" "$value" || die "$program $option=$value has no message"
        done
    done
done
ok "options: each message names the values that are accepted"
if command -v python3 >/dev/null; then
    # A pipe with O_DIRECT keeps writes apart.
    python3 - "$programs/hotbed-train" "$programs/hotbed-datagen" <<'PY' || die "a message is more than one write"
import os, subprocess, sys
for program in sys.argv[1:]:
    ours, theirs = os.pipe2(os.O_DIRECT)
    subprocess.run([program, "--seed=x"], stderr=theirs)
    said = os.read(ours, 4096)
    assert said.startswith(b"hotbed-") and said.endswith(b"\n"), said
PY
    ok "messages are one write, so messages of other ranks do not mix with them"
fi
says_backend=$("$programs/hotbed-train" --backend "$backend" --data train.tsv --quiet --batch 12000 --capacity 4000 2>&1) ||
    case $says_backend in
    *UNSUPPORTED*) echo "skipped: $says_backend" && exit 77 ;;
    *) die "$says_backend" ;;
    esac
says 1 "--data none.tsv: cannot read: No such file" --data none.tsv
says 1 "--eval none.tsv: cannot read: No such file" --data train.tsv --eval none.tsv
# refuses TEXT ARGUMENTS...: hotbed-train exits with 1 and prints TEXT before it trains
refuses() { says 1 "$@" && ! grep -q trained err || die "hotbed-train ${*:2}: trained first"; }
refuses "--data .: is a directory, not a file" --data .
refuses "--eval .: is a directory, not a file" --data train.tsv --eval .
: >nothing
refuses "--eval nothing: is empty" --data train.tsv --eval nothing
refuses "--save /proc/.hotbed-train.lock: cannot make the lock: No such file" --data train.tsv --save /proc
refuses "--save /proc/none: cannot make the directory: No such file" --data train.tsv --save /proc/none
says 1 "--json /nonexistent/j: cannot write: No such file" --data train.tsv --json /nonexistent/j
says 1 "--trace /nonexistent/t: cannot write: No such file" --data train.tsv --trace /nonexistent/t
says 1 "no rows" --data /dev/null
says 1 "is not finite" --data train.tsv --optimizer sgd --lr 1000
if { (ulimit -v 20000000 && exec "$programs/hotbed-train" --version); } >/dev/null 2>&1; then # not with ASan's address space
    (ulimit -v 20000000 && says 1 "no memory for batches of 1048576 rows of --dim 256: give a smaller --batch" \
        --data train.tsv --dim 256 --batch 1048576 --backend host) || exit 1
fi
ok "invalid options: a message and status 2, or 1"

# --- malformed lines -----------------------------------------------------------------------------------
{
    head -n 700 train.tsv
    printf '1\t2\tabc\t'
    tail -n 1 train.tsv | cut -f4-
    tail -n +701 train.tsv
} >bad.tsv
says 1 "bad.tsv:701: field 3 (i02): 'abc' is not a 64-bit integer" --data bad.tsv
train --data bad.tsv --skip-bad 1 --json bad.json --quiet || die "--skip-bad 1"
train --data train.tsv --json a.json --trace trace.json --picture steps.svg --quiet || die "plain training"
[ "$(number bad.json bad_lines)" = 1 ] || die "bad_lines is $(number bad.json bad_lines)"
diff <(points bad.json) <(points a.json) >/dev/null || die "a skipped line changes the loss"
ok "malformed lines: named, or skipped"

# --- the loss does not depend on how the log is read --------------------------------------------------
[ "$(points a.json | wc -l)" -eq 2 ] || die "the loss curve has $(points a.json | wc -l) points"
train --data train.tsv.gz --json b.json --quiet || die "gzip"
diff <(points a.json) <(points b.json) >/dev/null || die "gzip changes the loss"
for threads in 1 3; do
    train --data train.tsv --json b.json --quiet --parse-threads $threads || die "--parse-threads $threads"
    diff <(points a.json) <(points b.json) >/dev/null || die "--parse-threads $threads changes the loss"
    [ "$(number b.json parse_threads)" = $threads ] || die "parse_threads is $(number b.json parse_threads)"
done
{ cat train.tsv.gz && echo garbage; } >garbage.gz
says 1 "garbage.gz:12001: the gzip data ends at byte $(stat -c %s train.tsv.gz), and something else follows" --data garbage.gz
train --data - --json b.json --quiet <train.tsv || die "standard input"
diff <(points a.json) <(points b.json) >/dev/null || die "standard input changes the loss"
train --data train.tsv --json b.json --quiet --backend host || die "host"
diff <(points a.json) <(points b.json) >/dev/null || die "$backend and host differ"
ok "file, gzip, standard input, host backend, any number of parsing threads: the same loss, bit for bit"

# --- nor on the pipeline -----------------------------------------------------------------------------
# sw-auto changes its plan after 12 steps, in the middle of the data.
train --data train.tsv --eval eval.tsv --json none.json --quiet --pipeline none || die "--pipeline none"
diff <(points a.json) <(points none.json) >/dev/null || die "--pipeline none changes the loss"
for pipeline in $pipelines; do
    train --data train.tsv --eval eval.tsv --json b.json --quiet --pipeline $pipeline --trace b.trace ||
        die "--pipeline $pipeline"
    diff <(points none.json) <(points b.json) >/dev/null || die "--pipeline $pipeline changes the loss"
    [ "$(number b.json train_logloss)" = "$(number none.json train_logloss)" ] || die "--pipeline $pipeline: train_logloss"
    [ "$(number b.json auc)" = "$(number none.json auc)" ] || die "--pipeline $pipeline changes the AUC"
    [ "$(number b.json pipeline)" = "\"$pipeline\"" ] || die "pipeline is $(number b.json pipeline)"
    [ "$(number b.json host_waits_per_step)" = 0 ] || die "--pipeline $pipeline waits"
    [ "$(number b.json allocations_per_step)" = 0 ] || die "--pipeline $pipeline allocates"
    grep -qE '"name":"(copy_batch_to_gpu|H2DAndShuffle)"' b.trace || die "--pipeline $pipeline: the trace has no copies"
done
for pipeline in $cached; do
    train --data train.tsv --json b.json --quiet --pipeline $pipeline --mode cache --hbm-mb 1 || die "--pipeline $pipeline, cached"
    diff <(points none.json) <(points b.json) >/dev/null || die "--pipeline $pipeline, cached, changes the loss"
done
ok "every pipeline: the loss of pipeline none, bit for bit"

# --- nor on the memory that holds rows ------------------------------------------------------------------
for mode in cache default auto; do
    train --data train.tsv --json b.json --quiet --mode $mode --hbm-mb 1 || die "--mode $mode"
    diff <(points a.json) <(points b.json) >/dev/null || die "--mode $mode changes the loss"
    [ "$(number b.json host_waits_per_step)" = 0 ] || die "--mode $mode waits"
    [ "$(number b.json allocations_per_step)" = 0 ] || die "--mode $mode allocates"
    train --data train.tsv --json b.json --quiet --mode $mode --hbm-mb 1 --lower-index host || die "--lower-index host"
    diff <(points a.json) <(points b.json) >/dev/null || die "--mode $mode --lower-index host changes the loss"
done
ok "a budget of 1 MiB, cached or not, any index: the same loss, bit for bit"

# --- rows in a database ----------------------------------------------------------------------------------
train --data train.tsv --json b.json --quiet --mode cache --hbm-mb 1 --store db
case $?:$(cat err) in
*"HOTBED_ROCKSDB is OFF"*) ok "a database: not in this build" ;;
0:*)
    diff <(points a.json) <(points b.json) >/dev/null || die "--store changes the loss"
    [ "$(number b.json host_waits_per_step)" = 0 ] || die "--store blocks the caller"
    [ "$(number b.json allocations_per_step)" = 0 ] || die "--store allocates"
    train --data train.tsv --json c.json --quiet --mode cache --hbm-mb 1 --store db || die "a second --store"
    paste <(points a.json) <(points c.json) | tr ',' '\t' | head -1 |
        awk 'END { exit !($4 < $2) }' || die "rows of the first run are not in the database"
    ok "a database: the same loss, bit for bit, and the next run finds the rows"
    ;;
*) die "--store" ;;
esac

# --- reports ---------------------------------------------------------------------------------------------
[ "$(number a.json host_waits_per_step)" = 0 ] || die "host waits a step: $(number a.json host_waits_per_step)"
[ "$(number a.json allocations_per_step)" = 0 ] || die "allocations a step: $(number a.json allocations_per_step)"
case $(number a.json bound) in
'"reading"' | '"parsing"' | '"link"' | '"compute"') ;;
*) die "bound: $(number a.json bound)" ;;
esac
for stage in reading parsing link compute; do
    awk -v w="$(number a.json ${stage}_waits)" 'BEGIN { exit !(w != "" && w >= 0 && w <= 1) }' ||
        die "${stage}_waits: $(number a.json ${stage}_waits)"
done
[ "$(number a.json rows)" = 12000 ] || die "rows: $(number a.json rows)"
if command -v python3 >/dev/null; then
    python3 - <<'PY' || die "JSON"
import json
report = json.load(open("a.json"))
assert len(report["tables"]) == 39 and report["auc"] is None, report
assert all(t["keys"] == 12000 for t in report["tables"]), report
events = json.load(open("trace.json"))["traceEvents"]
slices = [e for e in events if e["ph"] == "X"]
for name in "copy_batch_to_gpu", "prefetch", "forward", "backward", "optimizer":
    for place in "host", "device":
        steps = sorted(e["args"]["iteration"] for e in slices if (e["name"], e["cat"]) == (name, place))
        assert steps[-1] == 23 and len(steps) > 20 and len(set(steps)) == len(steps), (name, place, steps)
for tid in {e["tid"] for e in slices}:  # tasks of a host thread or a stream do not overlap
    times = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == tid)
    assert all(a[1] <= b[0] + 0.002 for a, b in zip(times, times[1:])), times
picture = open("steps.svg").read()
assert picture.startswith("<svg") and "backward 23" in picture, picture[:300]
PY
fi
ok "reports: counts, no host waits in a step, JSON and trace are well-formed"

# --- a full table ----------------------------------------------------------------------------------------
train --data train.tsv --json full.json --capacity 100 || die "training with full tables"
grep -qE 'warning: table c[0-9]{2} is full: .*--capacity' err || die "no warning about full tables"
grep -q '"refused": [1-9]' full.json || die "no key was refused"
ok "full tables: a warning, and training goes on"

# --- tables that grow --------------------------------------------------------------------------------------
# total FILE NAME: sum over all tables
total() { grep -o "\"$2\": [0-9]*" "$1" | awk '{ n += $2 } END { print n }'; }
# Until a poll reports new keys, they fit in the free half of the capacity: at most 12 batches of 250 rows.
growing() { train --data train.tsv --eval eval.tsv --batch 250 --max-capacity 2000 --growth-every 1 --quiet "$@"; }
# grown FILE: the tables have grown, and no key was refused
grown() { [ "$(total "$1" growths)" -gt 0 ] && [ "$(total "$1" refused)" = 0 ]; }
train --data train.tsv --eval eval.tsv --batch 250 --json large.json --quiet || die "large tables"
[ "$(total large.json growths)" = 0 ] || die "tables without --max-capacity have grown"
train --data train.tsv --batch 250 --capacity 700 --json small.json --quiet || die "small tables"
[ "$(total small.json refused)" -gt 0 ] || die "small tables hold all keys"
for how in $growths cache; do
    options="--pipeline $how"
    [ "$how" != cache ] || options="--mode cache --hbm-mb 1"
    # shellcheck disable=SC2086 # words
    growing --capacity 700 --json b.json $options || die "tables that grow, $how"
    grown b.json || die "$how: $(total b.json growths) growths, $(total b.json refused) keys refused"
    [ "$(number b.json host_waits_per_step)" = 0 ] || die "$how: a growth waits"
    diff <(points large.json) <(points b.json) >/dev/null || die "$how: growth changes the loss"
    [ "$(number b.json auc)" = "$(number large.json auc)" ] || die "$how: growth changes the AUC"
done
grep -q '"name": "c19".*"capacity": 700, "max_capacity": 2000, "grown_capacity": 2000, "growths": 2, ' b.json ||
    die "c19 has not grown to 2000: $(grep c19 b.json)"
ok "tables that grow: the loss of large tables, bit for bit, and no host wait"

# --- ranks -----------------------------------------------------------------------------------------------
# near NAME FILE FILE: the numbers differ by at most a millionth. Ranks add the dense part's gradients in another order,
# so that even the scores of two rows may change places
near() {
    awk -v a="$(number "$2" "$1")" -v b="$(number "$3" "$1")" 'BEGIN { d = a - b; exit !(d * d <= 1e-12 * a * a) }'
}
# close FILE FILE: the losses and the AUC are near
close() {
    near auc "$1" "$2" && near logloss "$1" "$2" || return 1
    paste -d, <(points "$1") <(points "$2") |
        awk -F, '{ d = $2 > $4 ? $2 - $4 : $4 - $2; if ($1 != $3 || d > 1e-6 * $2) exit 1 }'
}
train --data train.tsv --eval eval.tsv --json one.json --quiet || die "one rank"
says 2 "--ranks needs a file" --data - --ranks 2
if [ "$backend" = cuda ] && [ -n "$worlds" ] && ! train --data train.tsv --ranks 2 --quiet; then
    grep -q 'NCCL is not in this build' err || die "2 ranks, a GPU each"
    worlds=
fi
if [ -z "$worlds" ]; then
    echo "skipped: ranks: this needs two GPUs and a build with NCCL"
else
    for ranks in $worlds; do
        for plan in two-phase fixed one-sided; do
            train --data train.tsv --eval eval.tsv --json $plan.json --quiet --ranks $ranks --plan $plan ||
                die "$ranks ranks, $plan"
            close one.json $plan.json || die "$ranks ranks, $plan: another loss or AUC"
            [ "$(number $plan.json allocations_per_step)" = 0 ] || die "$ranks ranks, $plan: allocations in steps"
            for phase in key row gradient; do
                sent=$(number $plan.json ${phase}_bytes_sent)
                [ "$sent" != 0 ] && [ "$sent" = "$(number $plan.json ${phase}_bytes_received)" ] ||
                    die "$ranks ranks, $plan: $sent ${phase}_bytes_sent, $(number $plan.json ${phase}_bytes_received) received"
            done
            diff <(points two-phase.json) <(points $plan.json) >/dev/null || die "$plan changes the loss"
        done
    done
    train --data train.tsv --eval eval.tsv --json none.json --quiet --ranks 2 --pipeline none || die "2 ranks, none"
    for pipeline in $pipelines; do
        train --data train.tsv --eval eval.tsv --json b.json --quiet --ranks 2 --pipeline $pipeline ||
            die "2 ranks, $pipeline"
        diff <(points none.json) <(points b.json) >/dev/null || die "2 ranks: --pipeline $pipeline changes the loss"
        [ "$(number b.json auc)" = "$(number none.json auc)" ] || die "2 ranks: --pipeline $pipeline changes the AUC"
        [ "$(number b.json allocations_per_step)" = 0 ] || die "2 ranks: --pipeline $pipeline allocates"
    done
    for ranks in $growing_worlds; do
        train --data train.tsv --eval eval.tsv --batch 250 --json b.json --quiet --ranks $ranks || die "$ranks ranks"
        growing --capacity 560 --ranks $ranks --json c.json || die "$ranks ranks that grow"
        grown c.json || die "$ranks ranks: $(total c.json growths) growths, $(total c.json refused) keys refused"
        diff <(points b.json) <(points c.json) >/dev/null || die "$ranks ranks: growth changes the loss"
        [ "$(number b.json auc)" = "$(number c.json auc)" ] || die "$ranks ranks: growth changes the AUC"
    done
    ok "$growing_worlds ranks whose tables grow: the loss of large tables, bit for bit"
    says 1 "none.tsv: cannot read: No such file" --data none.tsv --ranks 2
    says 1 "bad.tsv:701: field 3" --data bad.tsv --ranks 2
    says 1 "is not finite" --data train.tsv --optimizer sgd --lr 1000 --ranks 2
    ok "2 ranks: every pipeline has the loss of pipeline none, bit for bit"
    ok "$worlds ranks have the loss of one rank, and every exchange plan gives the same bytes"
    # MPI itself leaks memory.
    mpi() { ASAN_OPTIONS=detect_leaks=0 "$tests/support/mpirun.sh" mpirun -n "$1" "$programs/hotbed-train" --backend "$backend" --capacity 2000 --batch 500 --dim 4 "${@:2}" 2>err; }
    if ! command -v mpirun >/dev/null; then
        echo "skipped: processes over MPI: no mpirun"
    elif mpi ${loading_worlds##* } --data train.tsv --eval eval.tsv --json mpi.json --quiet; then
        close one.json mpi.json || die "${loading_worlds##* } processes: another loss or AUC"
        ok "${loading_worlds##* } processes over MPI have the loss of one rank"
        # Rank 1 is killed while it waits for rows.
        cat >one_dies.sh <<'SH'
[ "$OMPI_COMM_WORLD_RANK" = 1 ] || exec "$@" --data train.tsv
"$@" --data - <feed &
exec 3>feed
head -n 3000 train.tsv >&3
kill -9 $!
SH
        rm -f feed && mkfifo feed
        ASAN_OPTIONS=detect_leaks=0 "$tests/support/mpirun.sh" mpirun --enable-recovery -n 2 bash one_dies.sh \
            "$programs/hotbed-train" --backend "$backend" --capacity 2000 --batch 500 --dim 4 --quiet 2>err
        grep -q '^hotbed-train: rank 0: rank 1 is gone: ' err || die "rank 0 does not say first that rank 1 is gone"
        ok "rank 0 first reports that rank 1 was killed"
    else
        grep -q 'MPI is not in this build' err || die "${loading_worlds##* } processes"
        echo "skipped: processes over MPI: this build has none"
    fi
fi

# --- every optimizer, evaluation -----------------------------------------------------------------------------
for optimizer in $optimizers; do
    train --data train.tsv --eval eval.tsv --epochs 2 --optimizer $optimizer --json o.json --quiet || die "$optimizer"
    number o.json auc | grep -qE '^0\.[6-9]' || die "$optimizer: AUC $(number o.json auc)"
done
ok "optimizers learn: $optimizers"

# --- save and load ----------------------------------------------------------------------------------------
if ! train --data train.tsv --save ck --save-every 14 --epochs 2 --eval eval.tsv --json whole.json --quiet; then
    grep -q UNSUPPORTED err || die "--save"
    echo "skipped: this build has no checkpoints"
    exit 0
fi
ls ck | tr '\n' ' ' | grep -q '^step-0000000014 step-0000000028 step-0000000042 step-0000000048 $' || die "checkpoints: $(ls ck)"
for at in 14 28; do # an epoch has 24 steps
    train --data train.tsv --load "ck/step-$(printf %010d $at)" --epochs 2 --eval eval.tsv --json part.json --quiet ||
        die "--load at $at"
    diff <(points whole.json | tail -n $((4 - at / 10))) <(points part.json) >/dev/null || die "the loss after step $at differs"
    [ "$(number part.json auc)" = "$(number whole.json auc)" ] || die "the AUC after a load at $at differs"
    [ "$(number part.json first_step)" = "$at" ] || die "first step: $(number part.json first_step)"
done
# The mean loss counts the rows of this run only, steps 29 to 48, so it is lower than the loss of steps 31 to 40, not higher.
train --data train.tsv --load ck/step-0000000028 --epochs 2 --json part.json || die "--load at 28"
mean=$(sed -n 's/.*steps, mean loss \([0-9.]*\),.*/\1/p' err)
points part.json | awk -F, -v mean="$mean" '$1 == 40 { exit !(mean > 0 && mean < $2) }' ||
    die "mean loss $mean after --load, the points are $(points part.json | tr '\n' ' ')"
for pipeline in none sw-auto; do # from step 14; sw-auto makes its plan at step 26, between checkpoints
    rm -rf ck3
    train --data train.tsv --load ck/step-0000000014 --save ck3 --save-every 12 --epochs 2 --eval eval.tsv --json part.json \
        --quiet --pipeline $pipeline || die "--load, --pipeline $pipeline"
    ls ck3 | tr '\n' ' ' | grep -q '^step-0000000024 step-0000000036 step-0000000048 $' || die "checkpoints: $(ls ck3)"
    diff <(points whole.json | tail -n 3) <(points part.json) >/dev/null || die "--load, --pipeline $pipeline: another loss"
    [ "$(number part.json auc)" = "$(number whole.json auc)" ] || die "--load, --pipeline $pipeline: another AUC"
done
train --data train.tsv --load ck --epochs 2 --eval eval.tsv --json part.json --quiet || die "--load of the newest"
[ "$(number part.json auc)" = "$(number whole.json auc)" ] || die "the AUC of the loaded tables differs"
[ "$(number part.json steps)" = 0 ] || die "nothing was left to train"
says 1 "ck/step-0000000048 is of an earlier run: continue from it with --resume, move it away, or save to another directory" \
    --data train.tsv --save ck
refuses "--save ck/step-0000000048/: is a checkpoint, not a directory of checkpoints" --data train.tsv --save ck/step-0000000048/
rm -rf ck3 && mkdir ck3 && cp -r ck/step-0000000014 ck3
says 1 "ck3/step-0000000014 is of an earlier run" --data train.tsv --load ck/step-0000000014 --save ck3
says 1 "neither a checkpoint nor a directory of them" --data train.tsv --load .
says 1 "--load none: cannot read: No such file" --data train.tsv --load none
deep=$(printf "%0200d/" {1..10})
mkdir -p "$deep/step-0000000005" && : >"$deep/step-0000000005/MANIFEST"
says 1 "--load: ${deep}step-0000000005: CORRUPT: ..." --data train.tsv --load "${deep}step-0000000005"
grep -q '0010/step-0000000005/MANIFEST[ :].*: restore the file' err || die "a long path hides the reason"
mkdir deep && mv "${deep%%/*}" deep && cd deep
says 1 "${deep}step-0000000005 is damaged, and was renamed to ${deep}step-0000000005.damaged: ..." --data ../train.tsv --save "${deep%/}" --resume
cd .. && rm -r deep
says 1 "it was saved with --dim 4" --data train.tsv --load ck --dim 9
says 1 "it was saved with --optimizer adagrad" --data train.tsv --load ck --optimizer rowwise-adagrad
says 1 "it was saved with --dtype f32: give this, or convert the checkpoint into another directory with 'hotbed-ckpt convert --dtype f16'" \
    --data train.tsv --load ck --dtype f16
says 1 "it was saved with --state-dtype f32: give this, or convert" --data train.tsv --load ck --state-dtype bf16
says 1 "--load: ck/step-0000000048: FULL: table c" --data train.tsv --load ck --capacity 20
says 1 " rows: give a larger --capacity or --max-capacity" --data train.tsv --save ck --resume --capacity 20
rows=$(sed -n 's/.*the largest table of the checkpoint has \([0-9]*\) rows: .*/\1/p' err)
says 0 "loaded ck/step-0000000048: step 48" --data train.tsv --load ck --epochs 2 --capacity "$rows"
says 2 "--resume needs --save" --data train.tsv --resume
says 0 "was saved with seed 1, but the storage has seed 9" \
    --data train.tsv --load ck/step-0000000028 --epochs 2 --seed 9 --quiet
grep -q 'warning.*--batch' err && die "--load: a warning without a reason"
says 0 "warning: ck/step-0000000048 was saved with --batch 500, and this run has --batch 600" \
    --data train.tsv --load ck --epochs 2 --batch 600 --quiet
says 0 "warning: ck/step-0000000048 was saved with --lr 0.015, and this run has --lr 0.02" \
    --data train.tsv --load ck --epochs 2 --lr 0.02 --quiet
head -n 1 train.tsv >one-line.tsv
says 1 "one-line.tsv: has 1 line, but the checkpoint was saved after line" --data one-line.tsv --load ck --epochs 2
train --data train.tsv --save fresh --resume --quiet || die "--resume without a checkpoint"
[ ! -s err ] || die "--resume without a checkpoint is not quiet"
cp -r fresh/step-0000000024 fresh/copy
printf x >>fresh/step-0000000024/MANIFEST
says 1 "--load: fresh/step-0000000024: CORRUPT: fresh/step-0000000024/MANIFEST" --data train.tsv --load fresh/step-0000000024
grep -q 'restore the file, or load an older checkpoint' err || die "--load of a damaged checkpoint: no advice"
says 1 "fresh/step-0000000024 is damaged, and is not loaded: fresh/step-0000000024/MANIFEST" --data train.tsv --load fresh
grep -q 'it has no whole checkpoint of this run, but .*step-0000000024' err || die "--load names no damaged checkpoint"
for again in 1 2; do # a run never begins at step 0 beside checkpoints
    says 1 "--resume fresh: it has no whole checkpoint of this run, but " --data train.tsv --save fresh --resume --quiet
    [[ "$(cat err)" =~ "but "(copy, step-0000000024.damaged|step-0000000024.damaged, copy)": restore one" ]] ||
        die "--resume names no damaged checkpoint, time $again"
done
mv fresh/copy fresh/step-0000000024
says 0 "loaded fresh/step-0000000024" --data train.tsv --save fresh --resume
rm -r fresh
says 0 "fresh has no checkpoint: training begins at step 0" --data train.tsv --save fresh --resume
# Only step-N of the step N counts, although other directories have newer checkpoints.
cp -r ck/step-0000000028 fresh/backup
cp -r ck/step-0000000048 fresh/step-48
cp -r ck/step-0000000028 fresh/step-0000000042
train --data train.tsv --load fresh --epochs 2 --json part.json --quiet || die "--load beside copies"
grep -q "fresh/step-0000000042 is damaged, and is not loaded: it was saved at step 28" err || die "--load of a renamed checkpoint"
train --data train.tsv --save fresh --resume --epochs 2 --json part.json --quiet || die "--resume beside copies"
[ "$(number part.json first_step)" = 24 ] || die "--resume beside copies: first step $(number part.json first_step)"
for text in "fresh/step-0000000042 is damaged, and was renamed to fresh/step-0000000042.damaged: it was saved at step 28" \
    "loaded fresh/step-0000000024 instead: step 24" \
    "warning: fresh/backup, saved at step 28, is not one of this run's checkpoints: ignored" \
    "warning: fresh/step-48, saved at step 48, is not one of this run's checkpoints: ignored"; do
    [ "$(grep -cF "$text" err)" = 1 ] || die "--resume beside copies: no '$text'"
done
tool=$programs/../../checkpoint/hotbed-ckpt
if [ -x "$tool" ]; then
    ("$tool" convert ck/step-0000000028 npy --to npy && "$tool" convert npy made --from npy --optimizer adagrad) >/dev/null ||
        die "hotbed-ckpt convert"
    says 1 "made has no position in the data, so hotbed-train cannot continue from it: it was made from other files" \
        --data train.tsv --load made
    rm -r npy made
fi
cp fresh/step-0000000024/MANIFEST fresh/step-0000000048
says 0 "fresh/step-0000000048 is damaged, and was renamed" --data train.tsv --save fresh --resume --epochs 2 --quiet
rm -r fresh
rm -r ck/step-0000000048
printf x >>ck/step-0000000042/MANIFEST
train --data train.tsv --save ck --resume --epochs 2 --eval eval.tsv --json part.json || die "--resume"
grep -q "ck/step-0000000042 is damaged, and was renamed to ck/step-0000000042.damaged: ck/step-0000000042/MANIFEST" err ||
    die "--resume does not say what is damaged"
[ "$(number part.json first_step)" = 28 ] || die "--resume: first step $(number part.json first_step)"
[ "$(number part.json auc)" = "$(number whole.json auc)" ] || die "the AUC after --resume differs"
[ -d ck/step-0000000048 ] && [ -d ck/step-0000000042.damaged ] || die "after --resume: $(ls ck)"
# Steps that lack the MANIFEST or the shard; step 42 is renamed a second time.
mkdir ck/step-0000000050
cp ck/step-0000000048/*.h5 ck/step-0000000050
rm ck/step-0000000048/*.h5
cp -r ck/step-0000000042.damaged ck/step-0000000042
train --data train.tsv --save ck --resume --epochs 2 --eval eval.tsv --json part.json || die "--resume beside incomplete checkpoints"
[ "$(grep -c 'is damaged, and was renamed to' err)" = 3 ] || die "--resume does not name three damaged checkpoints"
[ "$(number part.json first_step)" = 28 ] || die "--resume beside incomplete checkpoints: first step $(number part.json first_step)"
[ "$(number part.json auc)" = "$(number whole.json auc)" ] || die "the AUC after --resume beside incomplete checkpoints differs"
[ -d ck/step-0000000042.damaged-2 ] || die "after --resume beside incomplete checkpoints: $(ls ck)"
ok "save and load: the same loss and AUC, bit for bit, from every checkpoint"

# --- a limit of the size of files ------------------------------------------------------------------------
(ulimit -f 100 && says 1 "File too large" --data train.tsv --save small --quiet) || exit 1
[ -z "$(ls -A small)" ] || die "a save that fails leaves files: $(ls -A small)"
ok "a file over the limit of the shell: a message, and no files"

# --- names step-N that --resume cannot use ---------------------------------------------------------------
mkdir odd
cp -r ck/step-0000000014 odd
ln -s /nonexistent/there odd/step-0000000300
refuses "odd/step-0000000300: it is a symbolic link to /nonexistent/there: mount" \
    --data train.tsv --save odd --resume
refuses "it is a symbolic link to /nonexistent/there: mount" --data train.tsv --load odd
[ -L odd/step-0000000300 ] || die "--resume renames a dangling link: $(ls odd)"
rm odd/step-0000000300
mkfifo odd/step-0000000300
refuses "it is a pipe, not a checkpoint: rename or remove it" --data train.tsv --save odd --resume
refuses "it is a pipe, not a checkpoint: rename or remove it" --data train.tsv --load odd
rm odd/step-0000000300
: >odd/step-0000000300
refuses "it is a plain file, not a checkpoint: rename or remove it" --data train.tsv --save odd --resume
[ -f odd/step-0000000300 ] || die "--resume renames a plain file: $(ls odd)"
rm odd/step-0000000300
mkdir odd/step-0000000300
refuses "odd/step-0000000300: it has no MANIFEST, so it is not a checkpoint: rename or remove it" --data train.tsv --save odd --resume
rmdir odd/step-0000000300
cp -r "$tests/golden/checkpoint-1-delta" odd/step-0000000300
refuses "odd/step-0000000300 is an increment: make it a full checkpoint with 'hotbed-ckpt compact', or remove it" \
    --data train.tsv --save odd --resume
refuses "odd/step-0000000300 is an increment: make it a full checkpoint with 'hotbed-ckpt compact'" \
    --data train.tsv --load odd/step-0000000300
grep -q '`' err && die "--load: a name of the C interface: $(cat err)"
rm -r odd/step-0000000300
# What cannot be examined may be a checkpoint. A link to itself fails for root, too, whom permissions do not stop.
mkdir odd/step-0000000300 && ln -s MANIFEST odd/step-0000000300/MANIFEST
for option in "--save odd --resume" "--load odd" "--load odd/step-0000000300"; do
    refuses "odd/step-0000000300: cannot find out whether it is a checkpoint: Too many levels" --data train.tsv $option
done
rm -r odd/step-0000000300 && ln -s step-0000000300 odd/step-0000000300
refuses "odd/step-0000000300: cannot find out whether it is a checkpoint: Too many levels" --data train.tsv --save odd --resume
grep -q remove err && die "--resume: advice to remove what it has not seen"
rm odd/step-0000000300 && ln -s copy odd/copy
says 0 "warning: odd/copy: cannot find out whether it is a checkpoint: Too many levels" --data train.tsv --save odd --resume --quiet
rm -r odd/step-*
for option in "--save odd --resume" "--load odd"; do
    refuses "odd/copy: cannot find out whether it is a checkpoint: Too many levels" --data train.tsv $option
done
rm odd/copy && ln -s lost+found odd/lost+found # on a disk of its own: not for users
says 0 "odd has no checkpoint: training begins at step 0" --data train.tsv --save odd --resume
ok "--resume names what it finds in place of a checkpoint"

# --- one run at a time in a directory ------------------------------------------------------------------
# begin COMMAND...: start a run that has locked the directory, read what is in it, and waits for rows from file descriptor 3
begin() {
    rm -rf feed shared
    mkfifo feed
    "$@" "$programs/hotbed-train" --backend "$backend" --capacity 2000 --batch 500 --dim 4 --data - --save shared --quiet \
        <feed 2>first &
    first=$!
    exec 3>feed
    until [ -s shared/.hotbed-train.lock ]; do kill -0 $first 2>/dev/null || die "the first run: $(cat first)"; done
    head -n 6000 train.tsv >&3 # more than a pipe holds, so that it ends when the run reads rows
}
begin env
grep -qx "process $first on $(hostname)" shared/.hotbed-train.lock || die "the lock: $(cat shared/.hotbed-train.lock)"
refuses "--save shared: process $first on $(hostname) saves there" --data train.tsv --save shared
refuses "process $first on $(hostname) saves there" --data train.tsv --save shared --resume
mkdir shared/step-0000000024 # as by a program that ignores the lock
tail -n +6001 train.tsv >&3
exec 3>&-
wait $first && die "a run takes another program's checkpoint for its own"
grep -q 'step-0000000024 exists already' first || die "the first run: $(cat first)"
[ -e shared/.hotbed-train.lock ] && die "a run that has failed leaves its lock"
begin env
{ kill -9 $first && wait $first; } 2>/dev/null
exec 3>&-
[ -e shared/.hotbed-train.lock ] || die "a run that is killed removes its lock"
train --data train.tsv --save shared --quiet || die "a dead run's lock is not taken over"
[ -e shared/.hotbed-train.lock ] && die "a run leaves its lock"
for signal in HUP TERM; do
    begin env
    kill -$signal $first
    wait $first 2>/dev/null
    status=$?
    exec 3>&-
    [ $status = $((128 + $(kill -l $signal))) ] || die "status $status after SIG$signal"
    [ -e shared/.hotbed-train.lock ] && die "a run leaves its lock after SIG$signal"
done
begin env # ... but not another run's lock
echo 'process 1 on elsewhere' >other
mv other shared/.hotbed-train.lock
kill -TERM $first
wait $first 2>/dev/null
exec 3>&-
[ "$(cat shared/.hotbed-train.lock)" = 'process 1 on elsewhere' ] || die "SIGTERM removes another run's lock"
echo 'process 1 on elsewhere' >shared/.hotbed-train.lock
refuses "process 1 on elsewhere may be saving there: if it has ended, remove that file" --data train.tsv --save shared --resume
echo precious >precious
ln -sf ../precious shared/.hotbed-train.lock
refuses "--save shared/.hotbed-train.lock: is a symbolic link, not a lock: remove it" --data train.tsv --save shared
[ "$(cat precious)" = precious ] || die "a link in place of the lock destroys its target"
rm shared/.hotbed-train.lock
# lost COMMAND TEXT: a run whose lock is lost by COMMAND saves nothing, prints TEXT, and leaves the lock of another run
lost() {
    rm -rf renamed
    begin env
    eval "$1"
    tail -n +6001 train.tsv >&3
    exec 3>&-
    wait $first && die "a run saves after: $1"
    grep -qF -- "--save: step 24 was not saved: $2" first || die "after $1: $(cat first)"
    [ "$(ls -A shared renamed 2>/dev/null | grep -c step)" = 0 ] || die "after $1: $(ls -A shared renamed)"
}
other="echo 'process 1 on elsewhere' >shared/.hotbed-train.lock"
taken="shared/.hotbed-train.lock is not this run's lock any more"
gone="the directory shared is gone: if it was moved, its checkpoints are where it is now, and the run can resume there"
lost "rm shared/.hotbed-train.lock" "$taken"
lost "mv shared renamed" "$gone"
[ ! -e shared ] || die "a run makes a directory that was renamed"
if strace -qq -o /dev/null true 2>/dev/null; then # the directory is moved during a save, which strace stops
    rm -rf renamed
    begin env ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0" \
        strace -f -qq -o /dev/null -e trace=fsync -e inject=fsync:signal=SIGSTOP
    process=$(sed -n 's/process \([0-9]*\) .*/\1/p' shared/.hotbed-train.lock)
    tail -n +6001 train.tsv >&3
    exec 3>&-
    until compgen -G 'shared/.tmp-*' >/dev/null; do kill -0 $first || die "the first run: $(cat first)"; done
    mv shared renamed
    while kill -CONT "$process" 2>/dev/null; do sleep 0.1; done
    wait $first && die "a run saves to a directory that is moved meanwhile"
    grep -qF "$gone" first || die "moved during a save: $(cat first)"
fi
for how in "mv shared renamed && mkdir shared" "rm shared/.hotbed-train.lock"; do
    lost "$how && $other" "$taken"
    [ "$(cat shared/.hotbed-train.lock)" = 'process 1 on elsewhere' ] || die "after $how: the other run's lock is gone"
    rm -r shared
done
mkdir shared
: >shared/.hotbed-train.lock # truncated by a crash of the machine
train --data train.tsv --save shared --resume --quiet || die "an empty lock is not taken over"
ok "one run at a time in a directory of checkpoints"

# --- other numbers of ranks --------------------------------------------------------------------------------
[ -n "$worlds" ] || exit 0
last=${loading_worlds##* }
train --data train.tsv --save ck2 --save-every 10 --ranks 2 --quiet || die "--save of 2 ranks"
ls ck2 | tr '\n' ' ' | grep -q '^step-0000000010 step-0000000020 step-0000000024 $' || die "checkpoints: $(ls ck2)"
for ranks in 1 $loading_worlds; do
    train --data train.tsv --load ck2/step-0000000010 --eval eval.tsv --json part.json --quiet --ranks $ranks ||
        die "--load on $ranks ranks"
    [ "$(number part.json first_step)" = 10 ] || die "first step: $(number part.json first_step)"
    paste -d, <(points one.json | tail -n 1) <(points part.json | tail -n 1) |
        awk -F, '{ d = $2 > $4 ? $2 - $4 : $4 - $2; exit !($1 == $3 && d <= 1e-6 * $2) }' ||
        die "the loss on $ranks ranks after a load differs"
    near auc one.json part.json || die "the AUC on $ranks ranks after a load differs"
done
ok "save on 2 ranks, continue on 1 $loading_worlds"
printf x >>ck2/step-0000000024/MANIFEST
shard=ck2/step-0000000020/shard-00001-of-00002.h5
printf '\377' | dd of=$shard bs=1 seek=$(($(stat -c %s $shard) - 2)) conv=notrunc status=none
train --data train.tsv --save ck2 --resume --eval eval.tsv --json part.json --ranks $last || die "--resume on $last ranks"
[ "$(number part.json first_step)" = 10 ] || die "--resume on $last ranks: first step $(number part.json first_step)"
near auc one.json part.json || die "the AUC after --resume on $last ranks differs"
grep -q "step-0000000020 is damaged, .*shard-00001-of-00002.h5: .*block .* is damaged" err || die "--resume on $last ranks: no block"
ls ck2 | tr '\n' ' ' | grep -q '^step-0000000010 step-0000000020.damaged step-0000000024 step-0000000024.damaged $' ||
    die "after --resume on $last ranks: $(ls ck2)"
ok "--resume on other ranks skips damaged checkpoints"
growing --capacity 560 --ranks 2 --save ck4 --save-every 20 --json whole.json || die "--save of 2 ranks that grow"
for ranks in 1 $growing_worlds; do
    growing --capacity 560 --ranks $ranks --load ck4/step-0000000020 --json part.json || die "--load on $ranks ranks that grow"
    grown part.json || die "--load on $ranks ranks: $(total part.json growths) growths, $(total part.json refused) keys refused"
    paste -d, <(points whole.json | tail -n 2) <(points part.json) |
        awk -F, '{ d = $2 > $4 ? $2 - $4 : $4 - $2; if ($1 != $3 || d > 1e-6 * $2) exit 1; n++ } END { exit n != 2 }' ||
        die "the loss on $ranks ranks that grow after a load differs"
    near auc whole.json part.json ||
        die "the AUC on $ranks ranks that grow after a load differs"
    [ $ranks != 2 ] || diff <(points whole.json | tail -n 2) <(points part.json) >/dev/null || die "as many ranks, another loss"
done
ok "save on 2 ranks whose tables have grown, continue on 1 $growing_worlds"
