"""Names of dynamicemb's key map that callers of :class:`.MultiTableKVCounter` pass."""

from __future__ import annotations

import dataclasses
import enum
from typing import Optional

import torch


class ScorePolicy(enum.Enum):
    """The effect of a lookup on a score; :class:`.MultiTableKVCounter` only reads."""

    CONST = "const"
    ASSIGN = "assign"
    ACCUMULATE = "accumulate"
    GLOBAL_TIMER = "global_timer"


@dataclasses.dataclass
class ScoreArg:
    """A score of a lookup.

    Attributes:
        name: name of the score.
        value: score of each key.
        policy: what the lookup does to the score.
        is_return: whether the lookup returns the score.
    """

    name: str
    value: Optional[torch.Tensor] = None
    policy: ScorePolicy = ScorePolicy.CONST
    is_return: bool = False
