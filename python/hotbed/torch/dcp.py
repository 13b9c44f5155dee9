"""Loading tables by ``torch.distributed.checkpoint``, which saves their state dicts as they are.

A checkpoint determines the number of keys of a hash table, so the load needs a planner that reads it::

    import torch.distributed.checkpoint as dcp
    from hotbed.torch.dcp import LoadPlanner

    dcp.save({"model": model.state_dict()}, checkpoint_id=path)

    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=path, planner=LoadPlanner())
    model.load_state_dict(state["model"])

Without the planner, PyTorch 2.6 and later raise an error if a hash table has another number of keys.  Earlier versions
do not compare the numbers: with them, always pass the planner.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from hotbed.torch._states import is_sized_by_checkpoint, resized


class LoadPlanner(DefaultLoadPlanner):
    """PyTorch's default planner, but tensors of hash tables get the sizes that they have in the checkpoint.

    The state dict to load is a dict, whose tensors of hash tables the planner replaces.
    """

    def set_up_planner(
        self, state_dict: Dict[str, Any], metadata: Optional[Metadata] = None, is_coordinator: bool = False
    ) -> None:
        """Replace the tensors of hash tables in ``state_dict``, and do as the default planner."""
        tensors, paths = flatten_state_dict(state_dict)
        saved = {} if metadata is None else metadata.state_dict_metadata
        for name, tensor in tensors.items():
            about = saved.get(name)
            if is_sized_by_checkpoint(tensor) and isinstance(about, TensorStorageMetadata):
                if about.size[1:] == tensor.shape[1:] and about.size[0] != tensor.shape[0]:
                    set_element(state_dict, paths[name], resized(tensor, about.size[0]))
        super().set_up_planner(state_dict, metadata, is_coordinator)


__all__ = ["LoadPlanner"]
