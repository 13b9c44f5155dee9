"""dynamicemb's pair of a sharded and a plain model, for its own tests."""

from __future__ import annotations

from hotbed.compat.dynamicemb._unsupported import Unsupported


class ConstructTwinModule(Unsupported):
    """Pair of models; cannot be made."""

    instead = "compare hotbed.torch's collections with torch.nn.Embedding, as python/tests/test_oracles.py does"
