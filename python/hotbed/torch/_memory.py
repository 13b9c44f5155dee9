"""Device memory from PyTorch's caching allocator."""

from __future__ import annotations

from typing import Any, List

import torch

from hotbed._c import check, ffi, lib, new

_kept: List[Any] = []  # the functions that the library calls


def use_torch_allocator() -> None:
    """Take the device memory of all tables from PyTorch's caching allocator.

    ``torch.cuda.memory_allocated()`` then counts the tables, and memory that PyTorch holds without using it serves them
    too.  Call it before the process creates its first collection or communicator on a GPU.

    Raises:
        StateError: memory of the GPUs is allocated already.
        UnsupportedError: the library was built without CUDA.
    """

    @ffi.callback("void *(void *, int, size_t, void *)")  # type: ignore[untyped-decorator]
    def allocate(_: Any, device: int, size: int, stream: Any) -> Any:
        try:
            data = torch.cuda.caching_allocator_alloc(size, device, int(ffi.cast("uintptr_t", stream)))
        except torch.cuda.OutOfMemoryError:
            return ffi.NULL
        return ffi.cast("void *", data)

    @ffi.callback("void(void *, int, void *, size_t)")  # type: ignore[untyped-decorator]
    def release(_: Any, device: int, data: Any, size: int) -> None:
        torch.cuda.caching_allocator_delete(int(ffi.cast("uintptr_t", data)))  # type: ignore[no-untyped-call]

    allocator = new("allocator", allocate=allocate, release=release)
    check(lib.hotbed_memory_set_allocator(lib.HOTBED_BACKEND_CUDA, allocator))
    _kept.extend((allocate, release))
