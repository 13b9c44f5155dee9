"""dynamicemb's sharders.  Hotbed's sharded tables are in the C API, ``hotbed/sharded.h``."""

from __future__ import annotations

from hotbed.compat.dynamicemb._unsupported import Unsupported

_INSTEAD = (
    "on one rank use hotbed.torch.EmbeddingCollection or EmbeddingBagCollection, and on several the C API's sharded "
    "collections, hotbed/sharded.h"
)


class DynamicEmbeddingCollectionSharder(Unsupported):
    """Sharder of sequences; cannot be made."""

    instead = _INSTEAD


class DynamicEmbeddingBagCollectionSharder(Unsupported):
    """Sharder of bags; cannot be made."""

    instead = _INSTEAD
