"""tests/storage/test_dlpack_python.py - exchange of tensors with PyTorch and NumPy through DLPack, in both directions.

usage: test_dlpack_python.py LIBHOTBED

Host memory only.  Exit status 77: Python has neither PyTorch nor NumPy.
"""

import ctypes
import gc
import os
import sys
from ctypes import byref, c_bool, c_char_p, c_int, c_uint32, c_uint64, c_void_p, py_object, sizeof

try:
    import torch
except ImportError:
    torch = None
try:
    import numpy
except ImportError:
    numpy = None
if torch is None and numpy is None:
    system = "/usr/bin/python3"  # a distribution's NumPy is installed for its own Python
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system, *sys.argv])
    print("skipped: Python has neither PyTorch nor NumPy")
    sys.exit(77)

ARGUMENT = 1
F32, F16, BF16, I64, U64, KEY, U32, U8 = range(1, 9)
hotbed = ctypes.CDLL(sys.argv[1])
hotbed.hotbed_last_error.restype = c_char_p
api = ctypes.pythonapi
api.PyCapsule_New.restype = py_object
api.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
api.PyCapsule_GetPointer.restype = c_void_p
api.PyCapsule_GetPointer.argtypes = [py_object, c_char_p]


class Want(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("element", c_int),
        ("rank", c_uint32),
        ("writable", c_bool),
        ("dense", c_bool),
        ("rows", c_uint64),
        ("columns", c_uint64),
        ("name", c_char_p),
    ]


class Array(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("rows", c_uint64), ("columns", c_uint64), ("stride", c_uint64)]


RELEASE = ctypes.CFUNCTYPE(None, c_void_p)


class View(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("element", c_int),
        ("rank", c_uint32),
        ("memory", c_int),
        ("data", c_void_p),
        ("rows", c_uint64),
        ("columns", c_uint64),
        ("stride", c_uint64),
        ("read_only", c_bool),
        ("release", RELEASE),
        ("argument", c_void_p),
    ]


def check(status, expected=0):
    assert status == expected, (status, hotbed.hotbed_last_error().decode())


stream = c_void_p()
check(hotbed.hotbed_stream_create(1, 0, byref(stream)))


class Lent:
    """A tensor exported by Hotbed, with the methods that other libraries call; counts how often it was released."""

    def __init__(self, element, data, rows, columns, stride, versioned):
        self.released = 0
        self.callback = RELEASE(self.release)
        self.versioned = versioned
        view = View(
            sizeof(View), element, 2, 0, ctypes.addressof(data), rows, columns, stride, False, self.callback, None
        )
        self.tensor = c_void_p()
        export = hotbed.hotbed_dl_export_versioned if versioned else hotbed.hotbed_dl_export
        check(export(byref(view), stream, byref(self.tensor)))

    def release(self, _):
        self.released += 1

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return api.PyCapsule_New(self.tensor, name, None)  # the consumer renames the capsule


def read(tensor, element, rank, expected=0, **more):
    """Read a tensor of another library with hotbed_dl_read()."""
    try:
        capsule = tensor.__dlpack__(max_version=(1, 0))
        pointer, call = b"dltensor_versioned", hotbed.hotbed_dl_read_versioned
        pointer = api.PyCapsule_GetPointer(capsule, pointer)
    except (TypeError, ValueError):
        capsule = tensor.__dlpack__()
        pointer, call = api.PyCapsule_GetPointer(capsule, b"dltensor"), hotbed.hotbed_dl_read
    want = Want(sizeof(Want), element, rank, **more)
    array = Array()
    check(call(c_void_p(pointer), byref(want), stream, byref(array)), expected)
    return array


def tensors_go_out(take, is_new):
    for versioned in [False, True] if is_new else [False]:
        memory = (ctypes.c_float * 24)(*range(24))
        lent = Lent(F32, memory, 3, 5, 8, versioned)
        seen = take(lent)
        assert tuple(seen.shape) == (3, 5) and float(seen[2, 4]) == 20.0
        memory[9] = 100.0  # not a copy: each side sees the other's writes
        assert float(seen[1, 1]) == 100.0
        if not hasattr(seen, "flags") or seen.flags.writeable:
            seen[0, 0] = -1.0
            assert memory[0] == -1.0
        assert lent.released == 0
        del seen
        gc.collect()
        assert lent.released == 1


def with_torch():
    tensors_go_out(torch.from_dlpack, is_new_torch())
    keys = torch.arange(10)
    array = read(keys, KEY, 1, rows=10)
    assert (array.data, array.rows, array.stride) == (keys.data_ptr(), 10, 1)
    output = torch.zeros(4, 12)[:, 3:9]  # a slice, with its own address and stride
    array = read(output, F32, 2, writable=True, columns=6)
    assert (array.data, array.rows, array.columns, array.stride) == (output.data_ptr(), 4, 6, 12)
    for dtype, element in [
        (torch.float16, F16),
        (torch.bfloat16, BF16),
        (torch.bool, U8),
        (torch.uint8, U8),
        (torch.int64, I64),
    ]:
        assert read(torch.zeros(3, dtype=dtype), element, 1).rows == 3
    assert read(torch.zeros(0, dtype=torch.int64), KEY, 1).rows == 0
    read(keys.int(), KEY, 1, ARGUMENT)
    read(keys[::2], KEY, 1, ARGUMENT)
    read(torch.zeros(4, 6).t(), F32, 2, ARGUMENT)
    read(output, F32, 2, ARGUMENT, dense=True)
    read(output, F32, 1, ARGUMENT)
    read(torch.zeros(1, 6).expand(4, 6), F32, 2, ARGUMENT)


def is_new_torch():
    """Whether this PyTorch supports DLPack 1."""
    try:
        torch.zeros(1).__dlpack__(max_version=(1, 0))
        return True
    except TypeError:
        return False


def with_numpy():
    is_new = int(numpy.__version__.split(".")[0]) >= 2
    if is_new or hasattr(numpy, "from_dlpack"):
        tensors_go_out(numpy.from_dlpack, is_new)
    keys = numpy.arange(10, dtype=numpy.uint64)
    array = read(keys, KEY, 1)
    assert (array.data, array.rows) == (keys.ctypes.data, 10)
    read(keys.astype(numpy.float64), KEY, 1, ARGUMENT)
    read(numpy.zeros((4, 6), numpy.float32).T, F32, 2, ARGUMENT)
    if is_new:
        keys.flags.writeable = False
        read(keys, U64, 1)
        read(keys, U64, 1, ARGUMENT, writable=True)


if torch is not None:
    with_torch()
    print("PyTorch", torch.__version__)
if numpy is not None:
    with_numpy()
    print("NumPy", numpy.__version__)
hotbed.hotbed_stream_destroy(stream)
