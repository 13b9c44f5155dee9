"""State dicts: the tensors that hold a table's rows, on one rank or on several.

On several ranks that are the ranks of a process group, a state dict has a ``DTensor`` for each tensor.  ``DTensor``
gives each rank a chunk of equal size, as the route of static tables in blocks does.  The rows of hash tables, and of
static tables that are dealt in turn, belong to other ranks, so they travel: to the ranks of their chunks when a state
dict is made, and to their owners when one is loaded.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import struct
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from hotbed._c import check, ffi, lib
from hotbed.errors import ArgumentError, UnsupportedError
from hotbed.torch._sharded import ShardedStorage, gather
from hotbed.torch._storage import Storage, indices
from hotbed.torch.sparse import described

_RECORD = struct.Struct("4q")  # what ranks compare: kind of the entry, tensors, keys, digest of the keys
_BAD, _ABSENT, _PLAIN, _SHARDED = range(4)
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


@functools.cache
def dtensors() -> Any:
    """Return PyTorch's ``DTensor`` module."""
    try:
        import torch.distributed.tensor as module

        module.DTensor  # noqa: B018
    except (ImportError, AttributeError):  # before PyTorch 2.5
        import torch.distributed._tensor as module  # type: ignore[no-redef]
    return module


@functools.cache
def _rows_type() -> Any:
    """Return the class of a sharded state dict's tensors."""
    base = dtensors().DTensor

    class ShardedRows(base):  # type: ignore[misc, valid-type]
        """A ``DTensor`` of rows that refuses to be pickled: a rank's file would have its chunk of the rows only."""

        def __reduce_ex__(self, protocol: Any) -> Any:
            world, rank = self.device_mesh.size(), self.device_mesh.get_local_rank()
            raise UnsupportedError(
                f"the state dict has rank {rank}'s chunk of the rows, one of {world}, so torch.save() of it would lose "
                "the others; call hotbed.torch.full_state_dict() on all ranks and save its result on one, or save by "
                "torch.distributed.checkpoint or hotbed.checkpoint on all ranks",
                rank=rank,
            )

        def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
            return self.clone()

        def clone(self, *arguments: Any, **named: Any) -> Any:
            return _own(super().clone(*arguments, **named), self)

        def detach(self) -> Any:
            return _own(super().detach(), self)

        def to(self, *arguments: Any, **named: Any) -> Any:
            return _own(super().to(*arguments, **named), self)

        def cpu(self, *arguments: Any, **named: Any) -> Any:
            return _own(super().cpu(*arguments, **named), self)

    return ShardedRows


def _is_sharded(value: torch.Tensor) -> bool:
    """Whether a tensor is a ``DTensor``; does not import its module, which takes a second, for other tensors."""
    return type(value) not in _PLAIN_TYPES and dist.is_available() and isinstance(value, dtensors().DTensor)


def _own(tensor: Any, like: Any) -> Any:
    """Make a ``DTensor`` one of a state dict of tables, sized by a checkpoint if ``like`` is."""
    tensor.__class__ = _rows_type()
    return _mark(tensor) if is_sized_by_checkpoint(like) else tensor


def _mark(tensor: torch.Tensor) -> torch.Tensor:
    tensor._hotbed_sized_by_checkpoint = True  # type: ignore[attr-defined]
    return tensor


def is_sized_by_checkpoint(tensor: Any) -> bool:
    """Whether a tensor of a state dict belongs to a hash table, so that a load determines its number of rows."""
    return getattr(tensor, "_hotbed_sized_by_checkpoint", False)


def resized(tensor: Any, rows: int) -> torch.Tensor:
    """Return a tensor like one of a hash table in a state dict, with another number of rows."""
    if not _is_sharded(tensor):
        return _mark(tensor.new_zeros((rows, *tensor.shape[1:])))
    mesh = tensor.device_mesh
    chunk = _chunk(rows, mesh.size())
    mine = max(0, min(chunk, rows - chunk * mesh.get_local_rank()))
    return _mark(_sharded(tensor.to_local().new_zeros((mine, *tensor.shape[1:])), rows, mesh))


def _chunk(rows: int, world: int) -> int:
    """Return the number of rows of a rank's chunk; the last chunks have fewer."""
    return max(1, -(-rows // world))


def _sharded(part: torch.Tensor, rows: int, mesh: Any) -> Any:
    module = dtensors()
    shape = torch.Size((rows, *part.shape[1:]))
    stride = part.stride() if part.dim() == 1 else (part.shape[1], 1)
    made = module.DTensor.from_local(part, mesh, [module.Shard(0)], run_check=False, shape=shape, stride=stride)
    made.__class__ = _rows_type()
    return made


def _mesh(storage: ShardedStorage) -> Any:
    """Return the device mesh of a storage's ranks; None if they are not the ranks of a process group.

    All ranks call it together.
    """
    comm = storage.comm
    if not dist.is_available() or not dist.is_initialized():
        return None
    group = comm.group
    if group is None and comm.transport != "threads":
        if comm.is_world is None:
            same = (dist.get_rank(), dist.get_world_size()) == (comm.rank, comm.size)
            comm.is_world = all(map(any, gather(comm, storage.device, storage.streams.current(), bytes([same]))))
        group = dist.group.WORLD if comm.is_world else None
    if group is None:
        return None
    kind = storage.device.type
    known = comm.meshes.get(kind)
    if known is None or known[0] is not group:
        from torch.distributed.device_mesh import DeviceMesh

        known = comm.meshes[kind] = (group, DeviceMesh.from_group(group, kind))
    return known[1]


def _exchange(
    storage: ShardedStorage, to: Optional[torch.Tensor], parts: Mapping[str, torch.Tensor]
) -> Dict[str, torch.Tensor]:
    """Send row i of all parts to rank ``to[i]``, or to every rank if ``to`` is None; return the received rows.

    They are in the order of the ranks that sent them, and within a rank in the order there.
    """
    comm, stream = storage.comm, storage.streams.current()
    order, counts = None, [parts["keys"].shape[0]] * comm.size
    if to is not None:
        if not bool((to[1:] >= to[:-1]).all()):
            order = torch.argsort(to, stable=True).to(storage.device)
        counts = torch.bincount(to, minlength=comm.size).tolist()
    record = struct.Struct(f"{comm.size}Q")
    every = gather(comm, storage.device, stream, record.pack(*counts))
    received = [record.unpack(words)[comm.rank] for words in every]
    found: Dict[str, torch.Tensor] = {}
    kept = []  # until the exchange is over
    with comm.calls(0):
        for name, part in parts.items():
            send = part.to(storage.device)
            send = (send if order is None else send[order]).contiguous()
            out = found[name] = send.new_empty((sum(received), *send.shape[1:]))
            size = send.element_size() * (send.shape[1] if send.dim() == 2 else 1)
            exchange = ffi.new("hotbed_exchange *")
            sent = ffi.new("uint64_t[]", [n * size for n in counts])
            got = ffi.new("uint64_t[]", [n * size for n in received])
            at = ffi.new("uint64_t[]", comm.size)  # zeros: every rank gets the same rows
            exchange.send, exchange.recv = (ffi.cast("void *", t.data_ptr()) for t in (send, out))
            exchange.send_bytes, exchange.recv_bytes = sent, got
            exchange.send_offsets = at if to is None else ffi.NULL
            kept.append((send, exchange, sent, got, at))
            check(lib.hotbed_comm_exchange(comm.pointer, 1, exchange, stream))
        check(lib.hotbed_stream_sync(stream))
    return found


# --- saving -----------------------------------------------------------------------------------------


def parts_of(storage: Storage, number: int, wanted: Sequence[str]) -> Dict[str, torch.Tensor]:
    """Return parts of all rows of a table for a state dict: contiguous tensors by name, with "keys" of a hash table.

    On several ranks they are DTensors; if the ranks are not those of a process group, the rows of all ranks.  All
    ranks call it together.
    """
    keys, names, hashed = storage.keys(number), storage.state_names(), storage.tables[number].is_hash
    if storage.is_direct(number):
        parts = {
            name: storage.view(number, -1 if name == "weight" else names.index(name)).contiguous() for name in wanted
        }
    else:
        parts = storage.rows(number, keys, wanted)
    if isinstance(storage, ShardedStorage) and storage.comm.size > 1:
        parts = _spread(storage, number, keys, parts)
    elif hashed:
        parts["keys"] = keys
    return {name: _mark(part) for name, part in parts.items()} if hashed else parts


def _spread(
    storage: ShardedStorage, number: int, keys: torch.Tensor, parts: Dict[str, torch.Tensor]
) -> Dict[str, torch.Tensor]:
    comm, table, mesh = storage.comm, storage.tables[number], _mesh(storage)
    parts["keys"] = keys.to(storage.device)
    rows, places = table.rows, None
    if table.is_hash and mesh is not None:  # rows are numbered by rank, and on a rank by key
        words = gather(comm, storage.device, storage.streams.current(), struct.pack("Q", keys.shape[0]))
        counts = [struct.unpack("Q", word)[0] for word in words]
        rows, first = sum(counts), sum(counts[: comm.rank])
        places = (torch.arange(keys.shape[0], device="cpu") + first) // _chunk(rows, comm.size)
    elif storage.is_dealt(number) and mesh is not None:
        places = torch.div(keys, _chunk(rows, comm.size), rounding_mode="floor")
    if places is not None or mesh is None:
        parts = _exchange(storage, places, parts)
    if mesh is None or storage.is_dealt(number):  # in the order that one rank has
        order = torch.argsort(parts["keys"])
        parts = {name: part[order] for name, part in parts.items()}
        parts["keys"] = parts["keys"].cpu()
    if not table.is_hash:
        del parts["keys"]
    return parts if mesh is None else {name: _sharded(part, rows, mesh) for name, part in parts.items()}


# --- loading ----------------------------------------------------------------------------------------


def own_rows(
    storage: Storage, number: int, name: str, given: Optional[Mapping[str, Any]], error: Optional[ArgumentError] = None
) -> Optional[Tuple[torch.Tensor, Dict[str, torch.Tensor]]]:
    """Return the keys and parts of this rank's rows of a table in a state dict.  All ranks call it together.

    Args:
        storage: the storage.
        number: number of the table.
        name: name of the table's entry.
        given: tensors by part, with "keys" for a hash table; None if the state dict does not have the table.
        error: what is wrong with the entry.

    Returns:
        Keys and parts; None if no rank has the table.

    Raises:
        ArgumentError: the entry is wrong on this rank or on another one, or rows would be lost.  The text begins with
            ``name``, unless it is ``error``.
    """
    kind, keys = _ABSENT, torch.empty(0, dtype=torch.int64)
    parts: Dict[str, torch.Tensor] = {}
    if error is None and given is not None:
        try:
            kind, keys, parts = _look(storage, number, name, given)
        except ArgumentError as raised:
            error = raised
    if isinstance(storage, ShardedStorage) and storage.comm.size > 1:
        _agree(storage, number, name, _BAD if error is not None else kind, keys, len(parts), error)
        if kind == _SHARDED and (storage.tables[number].is_hash or storage.is_dealt(number)):
            found = _exchange(storage, storage.owners(number, keys), {**parts, "keys": keys})
            keys, parts = found.pop("keys"), found
    if error is not None:
        raise error
    return None if kind == _ABSENT else (keys, parts)


def _look(
    storage: Storage, number: int, name: str, given: Mapping[str, Any]
) -> Tuple[int, torch.Tensor, Dict[str, torch.Tensor]]:
    """Return the kind of a state dict's tensors, and the keys and parts that this process has."""
    table = storage.tables[number]
    for part in given.values():
        if not isinstance(part, torch.Tensor):
            raise ArgumentError(f"{name}: {described(part)} is not a tensor", parameter=name, value=part)
        if hasattr(part, "local_shards"):
            raise ArgumentError(
                f"{name}: a ShardedTensor, as of TorchRec's own tables, cannot be loaded as it is; save it by "
                "torch.distributed.checkpoint, which loads it into a state dict of this model",
                parameter=name,
                value=type(part),
            )
    sharded = [_is_sharded(part) for part in given.values()]
    if any(sharded) and not all(sharded):
        raise ArgumentError(f"{name}: some of {sorted(given)} are DTensors, and the others are not", parameter=name)
    shapes = {tuple(part.shape[:1]) for part in given.values()}
    if not table.is_hash and shapes != {(table.rows,)}:
        shape = tuple(next(iter(given.values())).shape)
        raise ArgumentError(f"{name}: shape {shape}, but the table has {table.rows} rows", name, shape, table.rows)
    parts, start = dict(given), 0
    if all(sharded):
        start = _start_of(storage, name, given)
        parts = {part: tensor.to_local() for part, tensor in given.items()}
    try:
        if table.is_hash:
            keys = indices("keys", parts.pop("keys"))
        else:
            keys = torch.arange(next(iter(parts.values())).shape[0], device="cpu") + start
        storage.check_rows(number, keys, parts)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}", **{**vars(error), "parameter": name}) from error
    return (_SHARDED if all(sharded) else _PLAIN), keys, parts


def _start_of(storage: Storage, name: str, given: Mapping[str, Any]) -> int:
    """Return the number of the first row of this rank's chunk.

    Raises:
        ArgumentError: the tensors are sharded otherwise than this package's.
    """
    for part in given.values():
        mesh, placements = part.device_mesh, part.placements
        if tuple(placements) != (dtensors().Shard(0),) or (mesh.get_local_rank(), mesh.size()) != storage.share:
            raise ArgumentError(
                f"{name}: a DTensor with {placements} on {mesh}; the rows of this table are sharded over "
                f"{storage.share[1]} ranks; load a full state dict",
                parameter=name,
            )
    part = next(iter(given.values()))
    return _chunk(part.shape[0], storage.share[1]) * storage.share[0]


def _agree(
    storage: ShardedStorage,
    number: int,
    name: str,
    kind: int,
    keys: torch.Tensor,
    parts: int,
    error: Optional[ArgumentError],
) -> None:
    """Raise on all ranks if one has an error, or if rows of a hash table belong to no rank that has them."""
    comm, keys = storage.comm, indices("keys", keys).cpu()
    digest, mine = 0, keys.shape[0]
    if kind == _PLAIN and storage.tables[number].is_hash:
        mine = int((storage.owners(number, keys) == comm.rank).sum())
        memory = ffi.buffer(ffi.cast("char *", keys.data_ptr()), keys.shape[0] * 8)
        (digest,) = struct.unpack("q", hashlib.sha256(memory).digest()[:8])
    words = _RECORD.pack(kind, parts, digest, keys.shape[0] - mine)
    every = [_RECORD.unpack(w) for w in gather(comm, storage.device, storage.streams.current(), words)]
    bad = [rank for rank, record in enumerate(every) if record[0] == _BAD]
    if error is None and bad:
        raise ArgumentError(
            f"{name}: not loaded, since rank {bad[0]} has an error in its state dict", parameter=name, rank=bad[0]
        )
    for what, field in (("the entry", 0), ("its parts", 1)):
        different = [rank for rank, record in enumerate(every) if record[field] != every[0][field]]
        if different and not bad:
            raise ArgumentError(
                f"{name}: ranks 0 and {different[0]} load state dicts that differ in {what}", name, rank=different[0]
            )
    different = [rank for rank, record in enumerate(every) if record[2] != every[0][2]]
    losing = [rank for rank, record in enumerate(every) if record[3] > 0]
    if different and losing and not bad:
        raise ArgumentError(
            f"{name}: {every[losing[0]][3]} rows of rank {losing[0]}'s state dict belong to other ranks, and rank "
            f"{different[0]} loads other keys than rank 0, so rows would be lost; load the same full state dict on all "
            "ranks, or torch.distributed.checkpoint's with hotbed.torch.dcp.LoadPlanner",
            parameter=name,
            rank=losing[0],
            value=every[losing[0]][3],
        )


# --- the full state dict ----------------------------------------------------------------------------


def full_state_dict(owner: Any, rank: Optional[int] = None) -> Dict[str, Any]:
    """Return a state dict that has the rows of all ranks as plain tensors.  All ranks call it together.

    It can be saved by one rank with ``torch.save()``, and ``load_state_dict()`` accepts it on any number of ranks: each
    takes its own rows.  Sharded tensors of the dense part are gathered too.

    Args:
        owner: a module, or an optimizer such as ``fused_optimizer``.
        rank: the rank of the process group that gets it, the others get an empty dict; None: all ranks.

    Returns:
        The state dict; gathered tensors are on the CPU.

    Raises:
        UnsupportedError: it has a ``ShardedTensor``.
    """
    state = owner.state_dict()
    full = _full(state, rank, "")
    is_wanted = rank is None or not dist.is_available() or not dist.is_initialized() or dist.get_rank() == rank
    return full if is_wanted else {}


def _full(value: Any, rank: Optional[int], path: str) -> Any:
    """Gather the sharded tensors in a value; inside of a state dict, a container without one is returned as it is."""
    if isinstance(value, Mapping):
        made: Any = collections.OrderedDict() if isinstance(value, collections.OrderedDict) else {}
        for name, part in value.items():
            made[name] = _full(part, rank, f"{path}.{name}" if path else str(name))
        if path and all(made[name] is part for name, part in value.items()):
            return value
        if hasattr(value, "_metadata"):
            made._metadata = value._metadata
        return made
    if isinstance(value, (list, tuple)):
        parts = [_full(part, rank, f"{path}.{i}") for i, part in enumerate(value)]
        if all(made is part for made, part in zip(parts, value)):
            return value
        if hasattr(value, "_make"):  # a named tuple
            return value._make(parts)
        return tuple(parts) if isinstance(value, tuple) else parts
    if not isinstance(value, torch.Tensor) or type(value) in _PLAIN_TYPES or not dist.is_available():
        return value
    if _is_sharded(value):
        return _gathered(value, rank) if isinstance(value, _rows_type()) else value.full_tensor().cpu()  # type: ignore[attr-defined]
    from torch.distributed._shard.sharded_tensor import ShardedTensor  # type: ignore[attr-defined]

    if isinstance(value, ShardedTensor):
        raise UnsupportedError(
            f"full_state_dict: {path} is a ShardedTensor, which only torch.distributed can gather", parameter=path
        )
    return value


def _gathered(value: Any, rank: Optional[int]) -> Optional[torch.Tensor]:
    """Return the tensor with the chunks of all ranks; None on a rank that does not get it."""
    local, mesh = value.to_local(), value.device_mesh
    group, world, rows = mesh.get_group(), mesh.size(), value.shape[0]
    if dist.get_backend(group) == "gloo":  # it gathers only memory of the CPU
        local = local.cpu()
    padded = local.new_zeros((_chunk(rows, world), *local.shape[1:]))
    padded[: local.shape[0]] = local
    is_wanted = rank is None or dist.get_rank() == rank
    chunks: List[torch.Tensor] = [torch.empty_like(padded) for _ in range(world)] if is_wanted else []
    if rank is None:
        dist.all_gather(chunks, padded, group=group)
    else:
        dist.gather(padded, chunks if is_wanted else None, dst=rank, group=group)
    return torch.cat([chunk.cpu() for chunk in chunks])[:rows] if is_wanted else None
