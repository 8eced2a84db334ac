"""Counts the operations of a forward pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from feddm.core.models import Model


def forward_flops(model: Model) -> int:
    """Returns the operations of one image's forward pass, two for each multiply-add.

    Counted are convolutions and matrix products, as is usual: all else is small beside them.
    """
    params = model.init(torch.Generator())
    counter = _Counter()
    with torch.no_grad(), counter:
        model(params, torch.zeros(1, *model.shape))
    return counter.flops


class _Counter(TorchFunctionMode):
    """Counts while it is entered. torch has a counter too, which takes seconds to import."""

    flops: int = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (F.conv2d, F.linear):
            weight = args[1]
            self.flops += 2 * result.numel() * weight[0].numel()
        return result
