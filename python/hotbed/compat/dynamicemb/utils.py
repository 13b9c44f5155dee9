"""Sizes of element types."""

from __future__ import annotations

from typing import Dict

import torch

DTYPE_NUM_BYTES: Dict[torch.dtype, int] = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}
