"""dynamicemb's ready-made planner.  Hotbed's tables need no plan."""

from __future__ import annotations

from typing import Any, NoReturn

from hotbed.errors import UnsupportedError


def get_planner(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise.

    Raises:
        UnsupportedError: always; a ``NotImplementedError``.
    """
    raise UnsupportedError(
        "get_planner makes a plan for TorchRec's DistributedModelParallel, which hotbed.compat.dynamicemb does not "
        "have; make the tables with BatchedDynamicEmbeddingTablesV2, or with hotbed.torch's collections"
    )
