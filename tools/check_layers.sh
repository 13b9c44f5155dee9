#!/bin/sh
# tools/check_layers.sh - who may include whom.  Prints each offence; status 1 when there is one.
#
#   include/hotbed <- base <- storage <- dist <- pipeline; checkpoint uses base, storage and dist
#   a third-party header is included in the one file named below
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
allow storage "base/|storage/|$public|hotbed/(storage|index|flat_table|external|optimizer|stats|export|growth|dlpack)\.h$"
allow dist "base/|storage/|dist/|$public|hotbed/"
allow pipeline "base/|storage/|dist/|pipeline/|hotbed/"
allow checkpoint "base/|storage/|dist/(comm|route_core)\.h$|checkpoint/|hotbed/"
allow examples/consumer '$^'
allow examples 'hotbed/|examples/'
files base | grep -v '^base/tile\.h$' | while read -r f; do
    grep -Hn '"tests/' "$f" | sed 's/$/  (only base\/tile.h may)/'
done >>"$out"

# Public headers see C's own headers only, and only each other.
files include | while read -r f; do
    sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*<\([^>]*\)>.*/\1/p' "$f" |
        grep -vE '^(stdbool|stddef|stdint|string)\.h$' | sed "s|.*|$f: may not include <&>|"
done >>"$out"

# A third-party header belongs to one file; the CUDA runtime to the files of base/ that wrap it.
third() { # what, pattern of <headers>, pattern of files that may
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

# Differences between the compilers are in base/'s headers; kernels are in .cu files.
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

# The first line of a file says where it is and what it is for.
files include base storage dist pipeline checkpoint tests bench examples | while read -r f; do
    head -n 1 "$f" | grep -qF "/* ${f#include/} - " || echo "$f:1: the first line is not \"/* ${f#include/} - purpose\""
done >>"$out"

if [ -s "$out" ]; then
    cat "$out"
    exit 1
fi
