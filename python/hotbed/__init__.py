"""Embedding tables for training.

``hotbed.torch`` has PyTorch modules, ``hotbed.checkpoint`` saves and reads their rows, ``hotbed.Comm`` joins several
ranks, and ``hotbed.errors`` has the exceptions.  ``hotbed._c`` is the C API itself; the comments of
``include/hotbed/*.h`` document it.
"""

from hotbed._c import backends, version
from hotbed.comm import Comm
from hotbed.errors import (
    ArgumentError,
    CommError,
    CorruptError,
    DeviceError,
    FileError,
    FullError,
    HotbedError,
    KeyRangeError,
    OutOfMemoryError,
    StateError,
    UnsupportedError,
)

__version__ = version()

__all__ = [
    "ArgumentError",
    "Comm",
    "CommError",
    "CorruptError",
    "DeviceError",
    "FileError",
    "FullError",
    "HotbedError",
    "KeyRangeError",
    "OutOfMemoryError",
    "StateError",
    "UnsupportedError",
    "__version__",
    "backends",
    "version",
]
