"""Examples as a model sees them, with bits that depend on no other example.

Fast code treats the images of a batch differently: what it says about one depends in its last
bits on how many others there are, and on its place among them. Whoever chooses the weights can
make last bits as large as they like, and would see an example in what is said about the others.

So an example is alone in its batch, or it is in a batch of a fixed size, in a place that its
own pixels choose: whatever the others are, the same code sees it. Places that nobody takes are
empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from feddm.core.examples import Batch, Examples

# More are faster for each example, and leave more places empty.
PLACES = 16


class Placed(NamedTuple):
    """A batch in which every example has its own place."""

    x: Tensor  # what a model takes, `PLACES` images
    numbers: Tensor  # which examples are in it
    places: Tensor  # where


def alone(data: Examples, number: int) -> Batch:
    """Returns one example as a batch.

    It has memory of its own, because fast code may round otherwise for numbers that begin at
    another address.
    """
    return data[torch.tensor([number], device=data.y.device)]


def in_places(data: Examples) -> Iterator[Placed]:
    """Yields all examples, in batches that are the same for an example whatever the others are.

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
    # The n-th example that chose a place is in the n-th batch.
    same = places == torch.arange(PLACES, device=places.device)[:, None]
    turns = (same.cumsum(1) - 1)[places, torch.arange(len(places), device=places.device)]
    for turn in range(int(turns.max()) + 1):
        numbers = (turns == turn).nonzero().flatten()
        x = data.x.new_zeros(PLACES, *data.x.shape[1:])
        x[places[numbers]] = data.x[numbers]
        yield Placed(data.inputs(x), numbers, places[numbers])
