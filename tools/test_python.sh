#!/usr/bin/env bash
# tools/test_python.sh - build the Python package's wheels, and test them in virtual environments of their own.
#
#   HOTBED_PYTHON_ASAN=LIBRARY   also fuzz the package over this libhotbed.so, which gcc built with AddressSanitizer
#   HOTBED_PYTHON_SHORT=1   without the wheel for other machines, and each example once, not on one and on two ranks
#   HOTBED_PYTHON_FULL=1   also test with two more versions of PyTorch, and run the tests that take minutes
#
# Virtual environments are kept in HOTBED_PYTHON_ENVS (default ~/.cache/hotbed-python), one per version of PyTorch, since
# PyTorch's wheels on PyPI take gigabytes: only the first run on a machine downloads them.
set -eu
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache
fi
cd "$(dirname "$0")/.."
root=$PWD
python=${PYTHON:-python3}
most="numpy pytest h5py pandas cffi"
checkers="scikit-build-core ruff mypy types-cffi cmake ninja"
frameworks="lightning==2.6.6 accelerate==1.15.0 safetensors==0.8.0" # of python/tests/test_frameworks.py, installed later
notebook="nbclient ipykernel matplotlib" # installed later, into an environment that exists
torchrecs="tensordict torchmetrics==1.0.3 tqdm pyre-extensions"
datagen=build/host/examples/train/hotbed-datagen
torchrec_case=build/host/tests/dist/torchrec_case

environment() { # directory, requirements: created again if they change
    local folder=$1
    shift
    if [ "$(cat "$folder/made-of" 2>/dev/null)" != "$*" ]; then
        rm -rf "$folder"
        "$python" -m venv "$folder"
        "$folder/bin/pip" install -q --disable-pip-version-check "$@"
        printf '%s' "$*" >"$folder/made-of"
    fi
}

tests() { # environment, wheel, tests
    "$1/bin/pip" install -q --disable-pip-version-check --force-reinstall --no-deps "$2"
    (cd build/python && "$1/bin/python" -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" \
        --rootdir "$root" "$root/$3")
}

environments=${HOTBED_PYTHON_ENVS:-${XDG_CACHE_HOME:-$HOME/.cache}/hotbed-python}
mkdir -p "$environments" build/python
main=$environments/torch-2.14.1
# shellcheck disable=SC2086 # lists
environment "$main" torch==2.14.1 $torchrecs $most $checkers
# TorchRec requires FBGEMM's CUDA build, which is large and needs a driver, so install the CPU build without checks.
"$main"/bin/python -c "import importlib.util as i, sys; sys.exit(i.find_spec('torchrec') is None)" ||
    "$main"/bin/pip install -q --disable-pip-version-check --no-deps torchrec==1.9.2 fbgemm-gpu-cpu==1.9.0
# shellcheck disable=SC2086 # a list
"$main"/bin/python -c "import importlib.util as i, sys; sys.exit(None in map(i.find_spec, sys.argv[1:]))" $notebook ||
    "$main"/bin/pip install -q --disable-pip-version-check $notebook
# shellcheck disable=SC2086 # a list
"$main"/bin/pip install -q --disable-pip-version-check $frameworks # does nothing where they are installed
rm -rf build/python/dist build/python/release
"$main"/bin/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w build/python/dist .
ls -l build/python/dist
"$main"/bin/ruff check .
"$main"/bin/ruff format --check .
"$main"/bin/mypy
tests "$main" build/python/dist/hotbed-*.whl python/tests
(cd build/python && "$main/bin/python" "$root/bench/bench_module.py" --device cpu --scale 0.0002 --steps 20 --batches 4 \
    --forwards 1000)
# Tests of the C library that CTest skips where its Python has no PyTorch or TorchRec.
if [ -x $torchrec_case ]; then
    "$main/bin/python" tests/dist/test_torchrec.py $torchrec_case
    "$main/bin/python" tests/storage/test_dlpack_python.py build/host/libhotbed.so
fi
# Python's own allocations are no leaks of the library, and PyTorch reports tensors that are too large by itself.
if [ -n "${HOTBED_PYTHON_ASAN:-}" ]; then
    (cd build/python && LD_PRELOAD=$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so) \
        ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1 HOTBED_LIBRARY=$HOTBED_PYTHON_ASAN "$main/bin/python" \
        -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" --rootdir "$root" "$root/python/tests/test_fuzz.py")
fi

# The wheel for other machines, which has another libhdf5.
status=0
if [ -n "${HOTBED_PYTHON_SHORT:-}" ]; then
    status=short
else
    HOTBED_PYTHON_ENVS=$environments tools/wheels.sh build/python/release || status=$?
fi
case $status in
short) ;;
0) tests "$main" build/python/release/hotbed-*.whl python/tests/test_checkpoint.py ;;
77) echo "the wheel for other machines is not tested" ;;
*) exit $status ;;
esac

# Run the program of README.md, the notebook, and the examples on logs that are generated here.
sed -n '/^```python$/,/^```$/p' README.md | sed '/^```/d' >build/python/readme.py
(cd build/python && "$main/bin/python" readme.py)
if grep -n '"output_type"\|"execution_count": [0-9]' examples/python/tables.ipynb; then
    echo "examples/python/tables.ipynb has outputs: clear them before a commit" >&2
    exit 1
fi
(cd build/python && "$main/bin/jupyter-execute" "$root/examples/python/tables.ipynb")
if [ -x $datagen ]; then
    $datagen --rows 4000 -o build/python/train.tsv
    [ -n "${HOTBED_PYTHON_SHORT:-}" ] ||
        (cd build/python && "$main/bin/python" "$root/examples/python/dlrm.py" train.tsv --batch 128 --steps 30)
    (cd build/python && "$main/bin/torchrun" --standalone --nproc-per-node 2 "$root/examples/python/dlrm.py" \
        train.tsv --batch 64 --steps 30)
    $datagen --rows 1000 --skip 4000 -o build/python/test.tsv
    (cd build/python && "$main/bin/python" "$root/examples/python/sequence.py" train.tsv test.tsv --batch 128 --steps 30)
    [ -n "${HOTBED_PYTHON_SHORT:-}" ] ||
        (cd build/python && "$main/bin/torchrun" --standalone --nproc-per-node 2 "$root/examples/python/sequence.py" \
            train.tsv test.tsv --batch 64 --steps 30)
fi

if [ -n "${HOTBED_PYTHON_FULL:-}" ]; then
    for version in 2.4.1 2.11.0 2.15.0; do
        # shellcheck disable=SC2086
        environment "$environments/torch-$version" torch==$version $most "numpy<2.3"
        tests "$environments/torch-$version" build/python/release/hotbed-*.whl python/tests
    done
fi
