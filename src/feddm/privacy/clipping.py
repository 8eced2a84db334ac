"""Sums of rows of which none counts for more than a bound, to the last bit.

A row is cut to its bound, and rounded towards 0 to whole numbers of ``bound / GRID``, which
makes no row longer. Whole numbers are added without rounding and in any order, so that one row
more changes a sum by this row and by nothing else.

Noise that is rounded to whole numbers too makes the noisy sum what rounding makes of the sum
with exact noise. So rounding happens after the release, and tells nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Sums count in this share of their bound. Two thousand million rows fit into 64 bits.
GRID = 2**32
# Clipping ends this much below the bound, so that no rounding carries a row beyond it.
_SLACK = 1e-5


def shortened(rows: Tensor, most: float) -> Tensor:
    """Returns rows that are at most so long; one with a number that is not finite becomes 0.

    >>> shortened(torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 1.0]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000],
            [0.0000, 0.0000]])
    """
    good = rows.isfinite().all(1, keepdim=True)
    rows = torch.where(good, rows, torch.zeros_like(rows))
    # By the largest number first, so that the squares of huge ones do not overflow.
    largest = rows.detach().abs().amax(1, keepdim=True).clamp(min=1e-30)
    # In double precision: of millions of numbers, single precision forgets the small ones.
    length = largest * torch.linalg.vector_norm(
        rows / largest, dim=1, keepdim=True, dtype=torch.float64
    )
    share: Tensor = (most * (1 - _SLACK) / length).clamp(max=1.0)
    # And there too, because the share of a huge row would be too small a number.
    return (rows.double() * share).to(rows.dtype)


def whole(rows: Tensor, most: float) -> Tensor:
    """Returns rows that are at most so long in whole numbers of ``most / GRID``.

    >>> whole(torch.tensor([0.5, -0.25]), 1.0) / GRID
    tensor([ 0.5000, -0.2500])
    """
    return (rows.double() * (GRID / most)).trunc().long()


def real(numbers: Tensor, most: float) -> Tensor:
    """Returns what whole numbers of ``most / GRID`` stand for, in double precision."""
    return numbers.double() * (most / GRID)
