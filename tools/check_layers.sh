#!/bin/sh
# tools/check_layers.sh - which files may include which.  Prints each violation; exits with status 1 if there is one.
#
#   include/hotbed <- base <- storage <- dist <- pipeline; checkpoint uses base, storage and dist; abi describes include
#   a third-party header is included only by the file named below
#   a core (x_core.h) includes only what both compilers understand
set -u
cd "$(dirname "$0")/.." || exit 1
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT

files() {
    tools/sources.sh 'c|h|cc|cu|cuh' "$@"
}

# allow DIRECTORY QUOTED-PREFIXES: every #include "..." in it begins with one of the prefixes
allow() {
    files "$1" | while read -r f; do
        sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$f" |
            grep -vE "^($2)" | sed "s|.*|$f: may not include \"&\"|"
    done >>"$out"
}
public='hotbed/(status|stream|types|version)\.h$'
allow include 'hotbed/'
allow base "base/|$public|tests/support/emulate\.h$"
allow storage "base/|storage/|$public|hotbed/(storage|index|flat_table|external|optimizer|stats|export|dlpack)\.h$"
allow dist "base/|storage/([a-z_]*_core|dedup|scatter|types)\.h$|dist/|$public|hotbed/"
allow abi "base/options\.h$|hotbed/"
allow pipeline "base/|storage/|dist/|pipeline/|hotbed/"
allow checkpoint "base/|storage/|dist/(comm|route_core)\.h$|checkpoint/|hotbed/"
allow examples/consumer '$^'
allow examples 'hotbed/|examples/'
files base | grep -v '^base/tile\.h$' | while read -r f; do
    grep -Hn '"tests/' "$f" | sed 's/$/  (only base\/tile.h may)/'
done >>"$out"

# Public headers include only each other and the headers of standard C.
files include | while read -r f; do
    sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*<\([^>]*\)>.*/\1/p' "$f" |
        grep -vE '^(stdbool|stddef|stdint|string)\.h$' | sed "s|.*|$f: may not include <&>|"
done >>"$out"

# One file includes each third-party header; the files of base/ that wrap the CUDA runtime include it.
third() { # name, pattern of <headers>, pattern of allowed files
    files base storage dist pipeline checkpoint | grep -vE "$3" | while read -r f; do
        grep -HnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($2)" "$f" |
            awk -v why="  ($1 belongs to $3)" '{ print $0 why }'
    done >>"$out"
}
third CUB 'cub/|thrust/' '^base/sort\.cu$'
third HDF5 'hdf5' '^checkpoint/h5\.c$'
third MPI 'mpi\.h' '^dist/comm_mpi\.c$'
third NCCL 'nccl' '^dist/comm_nccl\.(c|cu)$'
third NVTX 'nvtx' '^pipeline/nvtx\.c$'
third RocksDB 'rocksdb' '^storage/external_rocksdb\.c$'
third Abseil 'absl/' '^bench/bench_peer\.cc$'
third tsl 'tsl/' '^bench/bench_peer\.cc$'
third xxHash 'xxhash' '^checkpoint/digest\.[ch]$'
third CUDA 'cuda|cooperative_groups' '^base/.*cuda.*\.(c|h|cu)$|^base/sort\.cu$'

# Cores: the common subset of C11 and C++17.
files base storage dist | grep '_core\.h$' | while read -r f; do
    sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*\([<"][^>"]*[>"]\).*/\1/p' "$f" |
        grep -vE '^<(math|stdbool|stddef|stdint|string)\.h>$' |
        grep -vE '^"(base/(port|tile|float|philox|fault)\.h|[a-z]+/[a-z0-9_]+_core\.h|hotbed/(types|status|storage|index|optimizer|route)\.h)"$' |
        sed "s|.*|$f: a core may not include &|"
done >>"$out"

# Only headers of base/ distinguish the compilers; kernels are in .cu files.
files storage dist pipeline checkpoint | while read -r f; do
    grep -HnE '__CUDA_ARCH__|__CUDACC__' "$f" | sed 's/$/  (belongs to base\/port.h)/'
done >>"$out"
files base storage dist pipeline checkpoint | grep -vE '\.cu$' | while read -r f; do
    grep -HnE '__global__|<<<' "$f" | grep -vE ':[0-9]+: ?(/?\*| \*)' |
        sed 's/$/  (kernels live in .cu files)/'
done | grep -v 'base/host_launch\.[ch]:' >>"$out"

# The library never prints, exits or aborts.
files base storage dist pipeline checkpoint | while read -r f; do
    grep -HnE '(^|[^_a-zA-Z])(printf|fprintf|puts|fputs|perror|exit|_Exit|abort)[[:space:]]*\(' "$f" |
        grep -vE '^checkpoint/tool' | sed 's/$/  (the library never prints, exits or aborts)/'
done | grep -v 'format(printf' >>"$out"

# A message about a failed system call has the system's error text (hotbed_reason()), never a bare number: if a
# format has %d, no argument may be an error number.
files base storage dist pipeline checkpoint | grep -vE '^(base/error\.c|checkpoint/tool)' | while read -r f; do
    awk -v RS=';' -v file="$f" '
        { at = line + 1; line += gsub(/\n/, " "); call = $0 }
        /strerror/ { print file ":" at ": strerror() is for programs, the library has hotbed_reason()" }
        match(call, /([a-z_]*fail[a-z_]*|[a-z_]*fault|snprintf) *\(.*"/) {
            call = substr(call, RSTART)
            sub(/^[a-z_]* *\(/, "", call)
            while (gsub(/[A-Za-z_0-9]+ *\([^()]*\)/, "", call)) continue
            if (call ~ /%[0-9]*[di]/ && call ~ /[^a-zA-Z_.]-?(errno|error)[ ,)]/)
                print file ":" at ": a message with a bare error number: hotbed_reason()"
        }' "$f"
done >>"$out"

# Numbers with a fraction have a decimal point in every locale: only base/text.c formats and parses them. The programs
# never call setlocale().
files base storage dist pipeline checkpoint | grep -vE '^(base/text\.c|checkpoint/tool)' | while read -r f; do
    grep -HnE '(^|[^_a-zA-Z])(vsnprintf|vfprintf|strto(d|f|ld)|atof|sscanf)[[:space:]]*\(' "$f" |
        sed 's/$/  (hotbed_vformat() and hotbed_parse_number() of base\/text.h)/'
    awk -v RS=';' -v file="$f" '
        { at = line + 1; line += gsub(/\n/, " ") }
        /[^_a-z]snprintf *\(.*%[-+ #0-9.*]*[aefgAEFG]/ {
            print file ":" at ": a number with a fraction: hotbed_format() of base/text.h"
        }' "$f"
done >>"$out"
files include base storage dist pipeline checkpoint examples bench | while read -r f; do
    grep -HnE '(^|[^_a-zA-Z])(setlocale)[[:space:]]*\(' "$f" | sed 's/$/  (changes numbers in text)/'
done >>"$out"

# No descriptor outlives an exec of another thread: all are opened with O_CLOEXEC.
files base storage dist pipeline checkpoint examples bench | while read -r f; do
    grep -HnE '(^|[^_a-zA-Z>.])(creat|dup|dup2|pipe|mkstemp|memfd_create|epoll_create|eventfd|popen|system|tmpfile)[[:space:]]*\(' "$f" |
        sed 's/$/  (a form with O_CLOEXEC)/'
    awk -v RS=';' -v file="$f" '
        { at = line + 1; line += gsub(/\n/, " ") }
        /[^_a-zA-Z>.]fopen *\([^)]*"[rwa]b?\+?"/ { print file ":" at ": fopen() without \"e\"" }
        /[^_a-zA-Z>.]open(at)? *\([^)]*O_[A-Z]+/ && !/O_CLOEXEC/ { print file ":" at ": open() without O_CLOEXEC" }
' "$f"
done >>"$out"

# The first line of a file has its path and its purpose.
files include base storage dist pipeline checkpoint tests bench examples | while read -r f; do
    head -n 1 "$f" | grep -qF "/* ${f#include/} - " || echo "$f:1: the first line is not \"/* ${f#include/} - purpose\""
done >>"$out"

if [ -s "$out" ]; then
    cat "$out"
    exit 1
fi
