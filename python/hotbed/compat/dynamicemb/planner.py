"""dynamicemb's planners.  Hotbed's tables need no plan."""

from __future__ import annotations

from hotbed.compat.dynamicemb._unsupported import Unsupported

_INSTEAD = (
    "make the tables with BatchedDynamicEmbeddingTablesV2 and DynamicEmbTableOptions, or with hotbed.torch's "
    "collections, which need no plan"
)


class DynamicEmbParameterConstraints(Unsupported):
    """Constraints of a table; cannot be made."""

    instead = _INSTEAD


class DynamicEmbeddingEnumerator(Unsupported):
    """Enumerator of a planner; cannot be made."""

    instead = _INSTEAD


class DynamicEmbeddingShardingPlanner(Unsupported):
    """Planner; cannot be made."""

    instead = _INSTEAD
