"""Stand-ins for names that need TorchRec's sharding: they can be imported, and say what to use when they are called."""

from __future__ import annotations

from typing import Any

from hotbed.errors import UnsupportedError


class Unsupported:
    """Base of classes that cannot be made."""

    #: What to use instead.
    instead = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raise.

        Raises:
            UnsupportedError: always; a ``NotImplementedError``.
        """
        raise UnsupportedError(
            f"{type(self).__name__} belongs to dynamicemb's integration into TorchRec's DistributedModelParallel, "
            f"which hotbed.compat.dynamicemb does not have; {self.instead}"
        )
