"""Sums of clipped rows, exact to the last bit.

Each row is clipped to a norm and rounded towards 0 to multiples of ``norm / GRID``, which
never makes it longer. Integer addition is exact in any order, so one more row changes the sum
by exactly that row.

The noise is rounded to the same grid, so the noisy sum equals the sum with exact noise, rounded
afterwards. Rounding is therefore post-processing and reveals nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Grid steps per clipping norm. A sum of two billion rows fits into 64 bits.
GRID = 2**32
# Clip slightly below the norm, so that floating-point rounding cannot exceed it.
_SLACK = 1e-5


def shortened(rows: Tensor, most: float) -> Tensor:
    """Returns the rows clipped to the norm `most`; a row with a non-finite number becomes 0.

    >>> shortened(torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 1.0]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000],
            [0.0000, 0.0000]])
    """
    good = rows.isfinite().all(1, keepdim=True)
    rows = torch.where(good, rows, torch.zeros_like(rows))
    # Divide by the largest number first, so that squares do not overflow.
    largest = rows.detach().abs().amax(1, keepdim=True).clamp(min=1e-30)
    # Double precision: in a sum over millions of numbers, float32 loses the small ones.
    length = largest * torch.linalg.vector_norm(
        rows / largest, dim=1, keepdim=True, dtype=torch.float64
    )
    share: Tensor = (most * (1 - _SLACK) / length).clamp(max=1.0)
    # Double precision again: for a huge row the factor would underflow in float32.
    return (rows.double() * share).to(rows.dtype)


def whole(rows: Tensor, most: float) -> Tensor:
    """Returns clipped rows as integer multiples of ``most / GRID``, rounded towards 0.

    >>> whole(torch.tensor([0.5, -0.25]), 1.0) / GRID
    tensor([ 0.5000, -0.2500])
    """
    return (rows.double() * (GRID / most)).trunc().long()


def real(numbers: Tensor, most: float) -> Tensor:
    """Returns integer multiples of ``most / GRID`` as float64, the inverse of `whole`."""
    return numbers.double() * (most / GRID)
