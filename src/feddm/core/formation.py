"""Multi-formation: a stored image holds f x f smaller ones, which are enlarged before use.

Kim et al. Dataset Condensation via Efficient Synthetic-Data Parameterization. ICML 2022.
https://arxiv.org/abs/2205.14959

The same floats then carry f^2 times as many images, each with less detail. Small images lie in
their stored one row by row.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def composed(images: Tensor, factor: int) -> Tensor:
    """Returns stored images for f^2 times as many real ones, which are reduced by averaging.

    >>> import torch
    >>> four = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1, 1).expand(4, 1, 2, 2)
    >>> composed(four, 2)
    tensor([[[[1., 2.],
              [3., 4.]]]])
    """
    if factor == 1:
        return images
    small = F.avg_pool2d(images, factor)
    n, channels, height, width = small.shape
    tiles = small.view(n // factor**2, factor, factor, channels, height, width)
    return tiles.permute(0, 3, 1, 4, 2, 5).reshape(
        -1, channels, factor * height, factor * width
    )


def expanded(stored: Tensor, factor: int) -> Tensor:
    """Returns the images that stored ones hold, each as large as a stored one; differentiable.

    >>> import torch
    >>> expanded(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2)[:, 0, 0, 0]
    tensor([1., 2., 3., 4.])
    """
    if factor == 1:
        return stored
    n, channels, height, width = stored.shape
    tiles = stored.view(n, channels, factor, height // factor, factor, width // factor)
    small = tiles.permute(0, 2, 4, 1, 3, 5).reshape(
        -1, channels, height // factor, width // factor
    )
    return F.interpolate(small, scale_factor=factor, mode="bilinear", align_corners=False)
