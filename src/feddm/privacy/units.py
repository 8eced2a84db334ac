"""The unit of privacy: one example, one group (for instance a patient), or one client.

The contribution of a unit to a sum is clipped as a whole. If a patient has five images,
protecting each image protects the patient five times less. With the patient as the unit, all
five together contribute no more than one image would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from feddm.core.examples import Examples

Unit = Literal["example", "group", "client"]


def units_of(data: Examples, unit: Unit) -> Tensor:
    """Returns the unit of each example, numbered from 0.

    >>> x, y = torch.zeros(3, 1, 1, 1), torch.zeros(3, dtype=torch.int64)
    >>> units_of(Examples(x, y, group=torch.tensor([7, 3, 7])), "group")
    tensor([1, 0, 1])
    """
    if unit == "example":
        return torch.arange(len(data))
    if unit == "client":
        return torch.zeros(len(data), dtype=torch.int64)
    if data.group is None:
        raise ValueError("privacy.unit is group, but the data have no groups")
    numbers: Tensor = data.group.cpu().unique(return_inverse=True)[1]
    return numbers


class Sample(NamedTuple):
    """Sampled units: their examples, unit by unit, and the number of examples of each unit."""

    examples: Tensor
    sizes: list[int]


class Sampler:
    """Samples whole units: either all examples of a unit are in the sample, or none.

    Args:
        data: The client's examples.
        unit: The unit of privacy.
    """

    def __init__(self, data: Examples, unit: Unit) -> None:
        units = units_of(data, unit)
        self._order = units.argsort(stable=True)
        self._sizes = torch.bincount(units)
        self._first = self._sizes.cumsum(0) - self._sizes

    def sample(self, draw: Callable[[int], Tensor]) -> Sample:
        """Returns a sample.

        Args:
            draw: Returns the sampled units, given the number of units.
        """
        chosen = draw(len(self._sizes))
        parts = [
            self._order[first : first + size]
            for first, size in zip(
                self._first[chosen].tolist(), self._sizes[chosen].tolist(), strict=True
            )
        ]
        empty = torch.empty(0, dtype=torch.int64)
        return Sample(torch.cat([empty, *parts]), self._sizes[chosen].tolist())
