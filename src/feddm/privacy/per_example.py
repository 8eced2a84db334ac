"""Batches in which the result for an example does not depend on any other example.

Fast kernels round differently depending on the batch size and on the position in the batch, so
the last bits of one result depend on the other examples. A server that chooses the weights can
make last bits arbitrarily large, and could detect an example through the results for others.

So each example is either alone in its batch, or in a batch of fixed size at a position that
its own pixels determine. Either way the same code computes it, whatever the other examples
are. Unused positions are filled with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from feddm.core.examples import Batch, Examples

# Positions per batch. More are faster per example, but leave more positions unused.
PLACES = 16


class Placed(NamedTuple):
    """A batch in which each example has its own position."""

    x: Tensor  # model inputs, `PLACES` images
    numbers: Tensor  # indices of the examples in the batch
    places: Tensor  # position of each of them


def alone(data: Examples, number: int) -> Batch:
    """Returns a batch of one example.

    The batch is a copy, because fast kernels may round differently at another memory alignment.
    """
    return data[torch.tensor([number], device=data.y.device)]


def in_places(data: Examples) -> Iterator[Placed]:
    """Yields all examples in batches of fixed size, at positions set by their own pixels.

    >>> pixels = torch.tensor([3, 19, 4], dtype=torch.uint8).view(3, 1, 1, 1)
    >>> for batch in in_places(Examples(pixels, torch.zeros(3, dtype=torch.int64))):
    ...     print(batch.numbers.tolist(), batch.places.tolist(), len(batch.x))
    [0, 2] [3, 4] 16
    [1] [3] 16
    """
    if not len(data):
        return
    bytes_ = data.x.contiguous().flatten(1).view(torch.uint8)
    places = bytes_.sum(1, dtype=torch.int64) % PLACES
    # The n-th example with a given position goes into the n-th batch.
    same = places == torch.arange(PLACES, device=places.device)[:, None]
    turns = (same.cumsum(1) - 1)[places, torch.arange(len(places), device=places.device)]
    for turn in range(int(turns.max()) + 1):
        numbers = (turns == turn).nonzero().flatten()
        x = data.x.new_zeros(PLACES, *data.x.shape[1:])
        x[places[numbers]] = data.x[numbers]
        yield Placed(data.inputs(x), numbers, places[numbers])
