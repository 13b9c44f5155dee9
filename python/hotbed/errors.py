"""Exceptions: one class for each status class of the C library, with the library's own text."""

from __future__ import annotations

import errno
import os
from typing import Dict, Type


class HotbedError(RuntimeError):
    """Base of all exceptions of this package.

    Attributes:
        status: the name of the C library's status class, as ``hotbed_status_name()`` gives it.
    """

    status = "UNKNOWN"


class ArgumentError(HotbedError, ValueError):
    """A value, type, shape or option that the call does not accept."""

    status = "ARGUMENT"


class OutOfMemoryError(HotbedError, MemoryError):
    """An allocation failed, in host or device memory."""

    status = "MEMORY"


class FullError(HotbedError):
    """A table had no slot for a key."""

    status = "FULL"


class UnsupportedError(HotbedError, NotImplementedError):
    """The build, the backend or the machine does not support the call."""

    status = "UNSUPPORTED"


class DeviceError(HotbedError):
    """CUDA reported an error."""

    status = "DEVICE"


class CommError(HotbedError, ConnectionError):
    """A rank failed, timed out or disagreed."""

    status = "COMM"


class FileError(HotbedError, OSError):
    """A file could not be opened, read or written.

    Attributes:
        errno: the number of the system's reason that the text has, such as ``errno.ENOSPC``; None if it has none.
    """

    status = "IO"

    def __init__(self, text: str = "") -> None:
        """Keep the text, and find its reason."""
        super().__init__(text)
        self.errno = next((code for code in errno.errorcode if f": {os.strerror(code)}" in text), None)


class CorruptError(HotbedError):
    """A file's contents are damaged, or were not written by Hotbed."""

    status = "CORRUPT"


class KeyRangeError(HotbedError, IndexError):
    """A key lies outside of a static table, or offsets are invalid."""

    status = "RANGE"


class StateError(HotbedError):
    """The object is not in a state that allows the call."""

    status = "STATE"


BY_STATUS: Dict[str, Type[HotbedError]] = {
    cls.status: cls
    for cls in (
        ArgumentError,
        OutOfMemoryError,
        FullError,
        UnsupportedError,
        DeviceError,
        CommError,
        FileError,
        CorruptError,
        KeyRangeError,
        StateError,
    )
}
