"""Exceptions: one class for each status class of the C library, with the library's own text."""

from __future__ import annotations

from typing import Any, Dict, Optional, Type, Union


class HotbedError(RuntimeError):
    """Base of all exceptions of this package.

    The attributes are for programs; the text is for people, and its words may change.

    Attributes:
        status: the name of the C library's status class, as ``hotbed_status_name()`` gives it.
        cause: what happened, where the class does not say it: a name of ``hotbed_error_cause`` without
            ``HOTBED_CAUSE_``, such as "TABLE_FULL"; otherwise "OTHER".
        table: name of the table; None, here and below: the error has none, or it is not known.
        key: the key.
        feature: name of the feature; its number in the batch if the batch has no names.
        sample: number of the sample.
        rank: the rank that caused the error.
        parameter: the option or argument with a wrong value, by the name that the C library has for it.
        value: the wrong value: a number in errors of the C library, any object in errors of the package.
        limit: the bound that the value does not keep, or what there was too little of; in errors of the package
            also the value that it should equal, such as a shape.
        path: the file or directory.
        errno: the system's number, such as ``errno.ENOSPC``.
    """

    status = "UNKNOWN"
    cause: str = "OTHER"
    table: Optional[str] = None
    key: Optional[int] = None
    feature: Union[str, int, None] = None
    sample: Optional[int] = None
    rank: Optional[int] = None
    parameter: Optional[str] = None
    value: Any = None
    limit: Any = None
    path: Optional[str] = None
    errno: Optional[int] = None

    def __init__(
        self, text: str = "", parameter: Optional[str] = None, value: Any = None, limit: Any = None, **fields: Any
    ) -> None:
        """Keep the text, and set attributes."""
        super().__init__(text)
        for name, given in {"parameter": parameter, "value": value, "limit": limit, **fields}.items():
            if given is not None:
                setattr(self, name, given)


class ArgumentError(HotbedError, ValueError):
    """A value, type, shape or option that the call does not accept."""

    status = "ARGUMENT"


def wrong(
    parameter: str, value: Any, why: str, limit: Any = None, table: Optional[str] = None, where: str = ""
) -> ArgumentError:
    """Return the error for a wrong value: ``where`` or the table, then ``parameter value why``."""
    where = f"table {table!r}: " if table is not None else where
    return ArgumentError(f"{where}{parameter} {value!r} {why}", parameter, value, limit, table=table)


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
    """A file could not be opened, read or written."""

    status = "IO"


class CorruptError(HotbedError):
    """A file's contents are damaged, or were not written by Hotbed."""

    status = "CORRUPT"


class KeyRangeError(HotbedError, IndexError):
    """A key lies outside of a static table, or offsets are invalid."""

    status = "RANGE"


def wrong_end(last: int, keys: int) -> KeyRangeError:
    """Return the error of offsets that do not end with the keys."""
    return KeyRangeError(
        f"offsets: the last one, the sum of the lengths, is {last}, but there are {keys} keys", "offsets", last, keys
    )


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
