"""Dumps of all tables of a model, in dynamicemb's files."""

from __future__ import annotations

import errno
import logging
import os
import warnings
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from hotbed.compat.dynamicemb.batched_dynamicemb_tables import BatchedDynamicEmbeddingTablesV2
from hotbed.errors import ArgumentError, FileError, StateError

_log = logging.getLogger("hotbed")
_SHARDED = ("ShardedEmbeddingCollection", "ShardedEmbeddingBagCollection")
_ATTRIBUTES = ("_lookups", "_emb_modules", "_emb_module")  # where TorchRec keeps lookups that are not child modules


def _is_collection(module: torch.nn.Module) -> bool:
    if isinstance(module, BatchedDynamicEmbeddingTablesV2):
        return True
    return any(c.__name__ in _SHARDED and c.__module__.startswith("torchrec.") for c in type(module).__mro__)


def find_sharded_modules(module: torch.nn.Module, path: str = "") -> List[Tuple[str, str, torch.nn.Module]]:
    """Find the collections of a model: TorchRec's sharded ones, and modules of tables.

    Returns:
        The path, name and module of each.  The path is "model" for the model itself, ``model.<attribute>...`` below it.
    """
    found: List[Tuple[str, str, torch.nn.Module]] = []
    stack: List[Tuple[Any, str, str]] = [(module, f"{path}model", "model")]
    while stack:
        current, place, name = stack.pop()
        while not _is_collection(current) and _is_wrapper(current):
            current = current.module
        if _is_collection(current):
            found.append((place, name, current))
            continue
        stack += [(child, f"{place}.{n}", n) for n, child in current.named_children()]
    return found


def _is_wrapper(module: Any) -> bool:
    """Whether it is a wrapper of data or model parallelism; paths of modules do not contain its name."""
    names = ("DistributedModelParallel", "DistributedDataParallel", "FullyShardedDataParallel")
    return type(module).__name__ in names and isinstance(getattr(module, "module", None), torch.nn.Module)


def get_dynamic_emb_module(model: torch.nn.Module) -> List[BatchedDynamicEmbeddingTablesV2]:
    """Find the modules of tables inside a module."""
    found: List[BatchedDynamicEmbeddingTablesV2] = []
    seen = set()
    stack: List[Any] = [model]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, BatchedDynamicEmbeddingTablesV2):
            found.append(current)
        elif isinstance(current, torch.nn.Module):
            for name in _ATTRIBUTES:
                child = getattr(current, name, None)
                stack += list(child) if isinstance(child, (list, torch.nn.ModuleList)) else [child]
            stack += list(current.children())
    return found


def _synchronize(pg: Optional[Any]) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier(group=pg)


def _check_names(table_names: Optional[Dict[str, List[str]]], collections: Any) -> None:
    """Warn of paths and tables that the model does not have.

    Raises:
        ArgumentError: a string instead of a list of names.
    """
    known = {
        place: [name for module in get_dynamic_emb_module(collection) for name in module.table_names]
        for place, _, collection in collections
    }
    for place, names in (table_names or {}).items():
        if isinstance(names, str):
            raise ArgumentError(f"table_names: {names!r} of {place!r} is not a list of names", "table_names", names)
        if place not in known:
            warnings.warn(f"table_names: the model has no collection {place!r}, only {list(known)}", stacklevel=3)
            continue
        for name in names:
            if name not in known[place]:
                warnings.warn(f"table_names: {place!r} has no table {name!r}, only {known[place]}", stacklevel=3)


def DynamicEmbDump(  # noqa: N802
    path: str,
    model: torch.nn.Module,
    table_names: Optional[Dict[str, List[str]]] = None,
    optim: Optional[bool] = False,
    counter: Optional[bool] = False,
    pg: Optional[Any] = None,
    allow_overwrite: bool = False,
) -> None:
    """Write the tables of a model to dynamicemb's files: a directory for each collection, named by its path.

    Args:
        path: directory, created if it does not exist.
        model: a model with hash tables.
        table_names: tables by the path of their collection; None, or a path that it does not have: all.
            A ``UserWarning`` names what the model does not have.
        optim: write optimizer states.
        counter: write admission counts.
        pg: process group; None: the default one, if it was initialized.
        allow_overwrite: write even if the directory is not empty.

    Raises:
        StateError: the directory is not empty.
        FileError: ``path`` is not a directory.
    """
    _synchronize(pg)
    if os.path.exists(path) and not os.path.isdir(path):
        raise FileError(f"{path} exists and is no directory", errno=errno.ENOTDIR)
    os.makedirs(path, exist_ok=True)
    if os.listdir(path):
        if not allow_overwrite:
            raise StateError(f"{path} has files; pass allow_overwrite=True to write beside and over them", path=path)
        _log.warning("DynamicEmbDump: files in %s may be overwritten", path)
    _synchronize(pg)
    collections = find_sharded_modules(model)
    if not collections:
        warnings.warn("the model has no module of tables; nothing is dumped", stacklevel=2)
    _check_names(table_names, collections)
    for place, _, _ in collections:
        os.makedirs(os.path.join(path, place), exist_ok=True)
    for place, _, collection in collections:
        for module in get_dynamic_emb_module(collection):
            names = None if table_names is None else table_names.get(place)
            module.dump(os.path.join(path, place), bool(optim), bool(counter), names, pg)
    _synchronize(pg)


def DynamicEmbLoad(  # noqa: N802
    path: str,
    model: torch.nn.Module,
    table_names: Optional[Dict[str, List[str]]] = None,
    optim: bool = False,
    counter: bool = False,
    pg: Optional[Any] = None,
) -> None:
    """Read the tables of a model from dynamicemb's files.

    Args:
        path: directory of :func:`DynamicEmbDump`, or of dynamicemb's.
        model: a model with hash tables at the same paths.
        table_names: tables by the path of their collection; None, or a path that it does not have: all.
            A ``UserWarning`` names what the model does not have.
        optim: read optimizer states.
        counter: read admission counts.
        pg: process group; None: the default one, if it was initialized.

    Raises:
        FileError: the directory does not exist.
    """
    if not os.path.exists(path):
        raise FileError(f"{path} does not exist", errno=errno.ENOENT)
    collections = find_sharded_modules(model)
    if not collections:
        warnings.warn("the model has no module of tables; nothing is loaded", stacklevel=2)
    _check_names(table_names, collections)
    for place, _, collection in collections:
        for module in get_dynamic_emb_module(collection):
            names = None if table_names is None else table_names.get(place)
            module.load(os.path.join(path, place), optim, counter, names, pg)
    _synchronize(pg)
