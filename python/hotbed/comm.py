"""Communicators: the ranks that share the tables of a collection.

A program under ``torchrun`` makes one through its process group, beside which Hotbed uses connections of its own::

    torch.distributed.init_process_group("gloo")
    comm = hotbed.Comm.from_group()

Ranks can also be threads of one process, or processes that share a ``torch.distributed.Store``.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Union

from hotbed._c import check, detail_of, ffi, fields, lib, new, text
from hotbed.errors import ArgumentError, CommError, HotbedError, wrong

if TYPE_CHECKING:
    import torch

Device = Union[str, "torch.device"]

#: Names of reasons by the numbers of the C library.
_FAILURES = {
    getattr(lib, name): name[len("HOTBED_COMM_") :]
    for name in (
        "HOTBED_COMM_ABORTED",
        "HOTBED_COMM_LEFT",
        "HOTBED_COMM_DEADLINE",
        "HOTBED_COMM_MISMATCH",
        "HOTBED_COMM_TRANSPORT",
    )
}

#: What some reasons mean for a training program.
_MEANINGS = {
    "LEFT": "; its program ended or raised, or made fewer calls: see its log",
    "DEADLINE": "; it is slow, waits for something else, or makes fewer calls: all ranks train, evaluate, save and "
    "load together",
    "MISMATCH": "; the ranks make different calls, or in another order",
}

#: Parts of a tag, from the lowest bits: a storage's number, what it does, and the number of the batch.
_STORAGE_BITS, _BATCH_BITS = 14, 16
_STAGES = ("creation", "forward", "evaluation", "backward")


def tag_of(storage: int, stage: str, batch: int = 0) -> int:
    """Return the tag of a storage's calls, which ranks compare; ``stage`` is one of ``_STAGES``."""
    number = batch % (1 << _BATCH_BITS) * len(_STAGES) + _STAGES.index(stage)
    return number << _STORAGE_BITS | storage % (1 << _STORAGE_BITS)


class Comm:
    """One rank of a communicator: a process or a thread.  ``Comm()`` has a single rank.

    A failure is final: after a rank has aborted, left, died or missed the deadline, calls of every other rank raise
    :class:`~hotbed.CommError`.  Create a new communicator of the remaining ranks, and load the last checkpoint.

    If a communicator is used as a context manager, a block that raises aborts it, so that no rank waits for this one.

    Args:
        deadline_ms: the longest time that an operation waits for other ranks; 0: 30,000.
    """

    def __init__(self, deadline_ms: int = 0) -> None:
        out = ffi.new("hotbed_comm **")
        check(lib.hotbed_comm_create_self(new("comm_options", deadline_ms=deadline_ms), out))
        self._own(out[0])

    def _own(self, pointer: Any) -> None:
        self._c = pointer
        self.lock = threading.RLock()
        self._storages: List[str] = []  # names of their tables
        #: The process group whose ranks these are; None: unknown.  And its device meshes, by type of device.
        self.group: Any = None
        self.meshes: Dict[str, Any] = {}
        #: Whether every rank is the same in the default process group; None: the ranks have not compared it.
        self.is_world: Optional[bool] = None
        #: The last error that all ranks raised together; after it the ranks still agree.
        self.agreed: Optional[BaseException] = None
        weakref.finalize(self, lib.hotbed_comm_destroy, pointer)

    @classmethod
    def _of(cls, pointer: Any) -> Comm:
        comm = cls.__new__(cls)
        comm._own(pointer)
        return comm

    # --- making one -----------------------------------------------------------------------------

    @classmethod
    def threads(cls, n: int, deadline_ms: int = 0) -> List[Comm]:
        """Create one communicator for ``n`` threads of this process; element r is for the thread of rank r.

        Args:
            n: number of ranks, 1 to 1024.
            deadline_ms: as in the class.
        """
        out = ffi.new("hotbed_comm *[]", max(n, 1))
        check(lib.hotbed_comm_create_threads(new("comm_options", deadline_ms=deadline_ms), n, out))
        return [cls._of(pointer) for pointer in out]

    @classmethod
    def from_group(cls, group: Any = None, device: Device = "cpu", deadline_ms: int = 0) -> Comm:
        """Create one from the ranks of a process group.  All ranks call it together.

        The group carries one broadcast of the address where rank 0 listens.  Afterwards only state dicts use it: their
        tensors are DTensors of its ranks.

        Args:
            group: a ``ProcessGroup`` of ``torch.distributed``; None: the default group.
            device: the tables' device: "cpu", which uses TCP, or this rank's CUDA device, which uses NCCL.
            deadline_ms: as in the class.

        Raises:
            CommError: a rank did not connect within the deadline.
            UnsupportedError: ``device`` is a CUDA device, but the library was built without NCCL.
        """
        import torch.distributed as dist

        rank, world = dist.get_rank(group), dist.get_world_size(group)
        if rank < 0:
            raise ArgumentError("from_group: this process is not a rank of the group")
        first = 0 if group is None else dist.get_global_rank(group, 0)

        def broadcast(data: bytes) -> bytes:
            objects = [data]
            dist.broadcast_object_list(objects, src=first, group=group)
            return objects[0]

        comm = cls._connect(rank, world, broadcast, device, deadline_ms)
        comm.group = dist.group.WORLD if group is None else group
        return comm

    @classmethod
    def from_store(cls, store: Any, rank: int, world: int, device: Device = "cpu", deadline_ms: int = 0) -> Comm:
        """Create one from processes that share a store, without a process group.  All ranks call it together.

        Several communicators may use one store, if all ranks create them in the same order.

        Args:
            store: a store of ``torch.distributed``, such as ``TCPStore`` or ``FileStore``.  Keys begin with "hotbed/".
            rank: rank of this process.
            world: number of ranks.
            device: as in :meth:`from_group`.
            deadline_ms: as in the class.

        Raises:
            ArgumentError: a rank passes another ``world`` than rank 0; the text has both.
            CommError: a rank did not connect within the deadline.
        """
        number = store.add(f"hotbed/rank/{rank}", 1)

        def broadcast(data: bytes) -> bytes:
            key = f"hotbed/place/{number}"
            if rank == 0:
                store.set(key, data)
                return data
            return bytes(store.get(key))

        return cls._connect(rank, world, broadcast, device, deadline_ms)

    @classmethod
    def _connect(
        cls, rank: int, world: int, broadcast: Callable[[bytes], bytes], device: Device, deadline_ms: int
    ) -> Comm:
        if not 0 <= rank < world:
            raise wrong("rank", rank, f"is not in [0, {world}), where {world} is the number of ranks", world)
        raised: List[BaseException] = []

        def run(_: Any, data: Any, size: int) -> bool:
            try:
                memory = ffi.buffer(data, size)
                memory[:] = broadcast(bytes(memory))
            except BaseException as error:
                raised.append(error)
            return not raised

        call = ffi.callback("bool(void *, void *, uint64_t)", run)
        options = new("comm_options", deadline_ms=deadline_ms)
        rendezvous = new("rendezvous", rank=rank, world=world, broadcast=call)
        out = ffi.new("hotbed_comm **")
        status = lib.hotbed_comm_create_sockets(options, rendezvous, out)
        if raised:
            raise raised[0]
        check(status)
        comm = cls._of(out[0])
        number = _cuda_number(device)
        if number is None:
            return comm
        check(lib.hotbed_comm_create_nccl(options, number, comm.pointer, out))
        return cls._of(out[0])

    # --- properties -----------------------------------------------------------------------------

    @property
    def pointer(self) -> Any:
        """The ``hotbed_comm *``."""
        return self._c

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return int(lib.hotbed_comm_rank(self._c))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(lib.hotbed_comm_size(self._c))

    @property
    def transport(self) -> str:
        """How ranks are connected: "self", "threads", "sockets" or "nccl"."""
        return text(lib.hotbed_transport_name(lib.hotbed_comm_transport(self._c)))

    def failure(self) -> Optional[Dict[str, Any]]:
        """Return why the communicator failed; None if it has not.

        Returns:
            ``reason`` (ABORTED, LEFT, DEADLINE, MISMATCH or TRANSPORT), ``rank`` that caused it (-1: unknown),
            ``text``, and ``fields`` of the error for which the rank aborted.
        """
        fault = new("comm_fault")
        check(lib.hotbed_comm_failure(self._c, fault))
        if fault.reason == lib.HOTBED_COMM_WELL:
            return None
        reason = _FAILURES[fault.reason]
        tags = dict.fromkeys(int(tag) for tag in fault.tags if tag >= 0)
        stages = "".join(f"; tag {tag}: {self._stage(tag)}" for tag in tags)
        said = f"{text(fault.text)}{_MEANINGS.get(reason, '')}{stages}"
        return {"reason": reason, "rank": int(fault.rank), "text": said, "fields": fields(fault.error)}

    def _stage(self, tag: int) -> str:
        """Describe the calls that have a tag."""
        if tag == 0:
            return "in a save, a load or the creation of a collection"
        number, storage = tag >> _STORAGE_BITS, tag % (1 << _STORAGE_BITS)
        batch, stage = divmod(number, len(_STAGES))
        tables = self._storages[storage - 1] if 0 < storage <= len(self._storages) else "another collection"
        return f"in the {_STAGES[stage]} of {f'batch {batch} of ' if batch else ''}{tables}"

    def error(self) -> Optional[CommError]:
        """Return the exception of the failure, with this rank and the text; None if there is none."""
        failure = self.failure()
        if failure is None:
            return None
        rank = failure["rank"] if failure["rank"] >= 0 else None
        said = f"rank {self.rank} of {self.size}: {failure['text']}"
        return CommError(said, **{**failure["fields"], "cause": "COMM", "rank": rank})

    def abort(self, why: str = "", error: Optional[BaseException] = None) -> None:
        """Make the calls of all other ranks raise, with this reason.  May be called from any thread.

        Args:
            why: the reason in one line.
            error: the error that is the reason: ``why`` is its text, unless given, and the other ranks' errors have
                its fields.
        """
        if error is not None and not why:
            why = f"{type(error).__name__}: {error}"
        detail = detail_of(error) if isinstance(error, HotbedError) else ffi.NULL
        lib.hotbed_comm_abort(self._c, why.replace("\n", " ").encode() if why else ffi.NULL, detail)

    def __enter__(self) -> Comm:
        """Return the communicator."""
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        """Abort if the block raised."""
        if error is not None:
            self.abort(error=error)

    def __repr__(self) -> str:
        """Return rank, size and transport."""
        return f"Comm(rank={self.rank}, size={self.size}, transport={self.transport!r})"

    # --- for the package ------------------------------------------------------------------------

    def next_storage(self, tables: List[str]) -> int:
        """Return a number for the next storage; equal on all ranks, because they create storages in the same order."""
        self._storages.append(f"tables {', '.join(tables)} (storage {len(self._storages) + 1})")
        return len(self._storages)

    def calls(self, tag: int) -> _Calls:
        """Return a context manager for collective calls.

        It takes the lock and tags the calls, so that ranks can tell the calls of different collections, stages and
        batches apart.  If the block raises, the communicator is aborted, because the other ranks make the same calls.
        An error that all ranks raise together (``agreed``) does not abort it.
        """
        return _Calls(self, tag)


class _Calls:
    def __init__(self, comm: Comm, tag: int) -> None:
        self.comm, self.tag = comm, tag

    def __enter__(self) -> None:
        self.comm.lock.acquire()
        lib.hotbed_comm_set_tag(self.comm.pointer, self.tag)

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        lib.hotbed_comm_set_tag(self.comm.pointer, 0)
        self.comm.lock.release()
        if error is None or error is self.comm.agreed or self.comm.size == 1:
            return
        failed = self.comm.error()
        if failed is None:
            self.comm.abort(error=error)
        elif isinstance(error, CommError):
            raise failed from error


def _cuda_number(device: Device) -> Optional[int]:
    """Return the number of a CUDA device; None for the CPU."""
    import torch

    device = torch.device(device)
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise ArgumentError(f"device {device} is not cpu or cuda", parameter="device", value=device)
    return torch.cuda.current_device() if device.index is None else device.index


__all__ = ["Comm"]
