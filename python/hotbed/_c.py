"""The C API: cffi in ABI mode, with declarations that the build generated from the headers.

``ffi`` and ``lib`` are cffi's.  ``check()`` turns a status into an exception; ``new()`` creates a struct and sets its
``size``.  The library is ``libhotbed.so`` beside this file, unless the environment variable ``HOTBED_LIBRARY`` names
another one.
"""

from __future__ import annotations

import difflib
import os
import pathlib
from typing import Any, Dict, List, Union

from hotbed import errors

try:
    from hotbed._declarations import ffi as _ffi
except ModuleNotFoundError as error:
    if error.name != "hotbed._declarations":  # cffi, which the declarations import
        raise ImportError(f"hotbed needs the module {error.name}, which is not installed: pip install cffi") from error
    raise ImportError(
        "hotbed is not built: hotbed/_declarations.py is missing; run `pip install .` in the checkout, and import "
        "hotbed from elsewhere than its python folder"
    ) from error

ffi: Any = _ffi

_OWN = pathlib.Path(__file__).with_name("libhotbed.so")
_PATH = os.environ.get("HOTBED_LIBRARY", str(_OWN))


def _load(path: str) -> Any:
    try:
        return ffi.dlopen(path)
    except OSError as error:
        raise ImportError(f"the Hotbed library cannot be loaded: {error}") from error


lib: Any = _load(_PATH)


def _check_abi() -> None:
    """Compare every struct's size with the library's, so that a stale library raises an error instead of crashing."""
    for name in ffi.list_types()[0]:
        if not name.startswith("hotbed_"):
            continue
        if ffi.typeof(name).kind != "struct":
            continue
        try:
            declared = ffi.sizeof(name)
        except (ffi.error, ValueError):  # opaque
            continue
        known = lib.hotbed_struct_bytes(name.encode())
        if known != declared:
            raise ImportError(
                f"{_PATH} does not fit this package: {name} has {known} bytes in the library and {declared} in the "
                "declarations; install both from one version"
            )


_check_abi()

_CAUSES = {number: name[len("HOTBED_CAUSE_") :] for number, name in ffi.typeof("hotbed_error_cause").elements.items()}
#: The bits of the fields of a ``hotbed_error_detail`` that may be missing.
_HAS = {n: getattr(lib, f"HOTBED_HAS_{n.upper()}") for n in ("key", "feature", "sample", "value", "limit", "rank")}


def text(value: Any) -> str:
    """Return the text of a C string; "" for NULL."""
    return "" if value == ffi.NULL else ffi.string(value).decode("utf-8", "replace")


def last_error() -> str:
    """Return the text of this thread's last failed call."""
    return text(lib.hotbed_last_error())


def _number(value: Union[int, float]) -> Union[int, float]:
    return int(value) if isinstance(value, int) or value.is_integer() else value


def fields(detail: Any) -> Dict[str, Any]:
    """Return the fields of a ``hotbed_error_detail`` that are set, by the names of an exception's attributes."""
    found: Dict[str, Any] = {n: _number(getattr(detail, n)) for n, bit in _HAS.items() if detail.has & bit}
    if detail.key_type != lib.HOTBED_KEY_U64 and found.get("key", 0) >= 1 << 63:
        found["key"] -= 1 << 64
    if detail.os_error != 0:
        found["errno"] = int(detail.os_error)
    names = {name: text(getattr(detail, name)) for name in ("table", "parameter", "path")}
    cause = _CAUSES.get(int(detail.cause), "OTHER")
    return {"cause": cause, **found, **{name: said for name, said in names.items() if said}}


def detail_of(error: errors.HotbedError) -> Any:
    """Return a ``hotbed_error_detail`` with those fields of an exception that it has room for."""
    detail = new("error_detail", cause={name: number for number, name in _CAUSES.items()}.get(error.cause, 0))
    for name in ("key", "feature", "sample", "value", "limit"):
        value = getattr(error, name)
        if isinstance(value, (int, float) if name in ("value", "limit") else int):
            detail.has |= _HAS[name]
            setattr(detail, name, value % 2**64 if name == "key" else value)
    detail.key_type = lib.HOTBED_KEY_U64 if (error.key or 0) >= 1 << 63 else lib.HOTBED_KEY_I64
    detail.os_error = error.errno or 0
    for name in ("table", "parameter", "path"):
        value = (getattr(error, name) or "").encode()
        setattr(detail, name, value if len(value) < len(getattr(detail, name)) else b"")
    return detail


def failure(status: int) -> errors.HotbedError:
    """Return the exception for a failed call's status, with the text and the fields of the thread's last error."""
    kind = errors.BY_STATUS.get(text(lib.hotbed_status_name(status)), errors.HotbedError)
    return kind(last_error(), **fields(lib.hotbed_last_error_detail()))


def check(status: int) -> None:
    """Raise the exception for a status; do nothing for ``HOTBED_OK``.

    Raises:
        HotbedError: the subclass that belongs to ``status``.
    """
    if status != 0:
        raise failure(status)


def new(name: str, **fields: Any) -> Any:
    """Create a sized struct ``hotbed_<name>``: call its init function, if it has one, and then set fields.

    Raises:
        ArgumentError: the struct lacks a field, or the field's type cannot hold the value.
    """
    struct = ffi.new(f"hotbed_{name} *")
    init = getattr(lib, f"hotbed_{name}_init_sized", None)
    if init is not None:
        init(struct, ffi.sizeof(struct[0]))
    else:
        struct.size = ffi.sizeof(struct[0])
    for field, value in fields.items():
        names = [known for known, _ in ffi.typeof(struct).item.fields]
        if field not in names:
            near = difflib.get_close_matches(field, names)
            also = f"; did you mean {' or '.join(near)}?" if near else ""
            raise errors.ArgumentError(f"{name} has no field {field!r}{also}", parameter=field)
        try:
            setattr(struct, field, value)
        except (TypeError, OverflowError) as error:
            raise errors.ArgumentError(f"{name}: {field}={value!r}: {error}", parameter=field, value=value) from error
    return struct


def numbers(struct: Any) -> Dict[str, Any]:
    """Return the fields of a sized struct by name, without its size."""
    names = [name for name, _ in ffi.typeof(struct).item.fields if name not in ("size", "reserved")]
    return {name: getattr(struct, name) for name in names}


def version() -> str:
    """Return the library's version."""
    return text(lib.hotbed_version())


def backends() -> List[str]:
    """Return the backends that this build and machine can run: "host", and perhaps "cuda"."""
    found = []
    for number in (lib.HOTBED_BACKEND_HOST, lib.HOTBED_BACKEND_CUDA):
        if lib.hotbed_backend_probe(number) == 0:
            found.append(text(lib.hotbed_backend_name(number)))
    return found
