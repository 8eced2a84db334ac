"""Whose privacy it is: one example, all examples of one person, or all of one client.

What a unit adds to a sum is clipped as a whole. If a patient has five images, protecting each
of them alone protects the patient five times less; with the patient as the unit, all five
together add no more than one would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from feddm.core.examples import Examples

Unit = Literal["example", "group", "client"]


def units_of(data: Examples, unit: Unit) -> Tensor:
    """Returns the number of the unit that each example belongs to, from 0.

    >>> x, y = torch.zeros(3, 1, 1, 1), torch.zeros(3, dtype=torch.int64)
    >>> units_of(Examples(x, y, group=torch.tensor([7, 3, 7])), "group")
    tensor([1, 0, 1])
    """
    if unit == "example":
        return torch.arange(len(data))
    if unit == "client":
        return torch.zeros(len(data), dtype=torch.int64)
    if data.group is None:
        raise ValueError("these data do not say which group an example belongs to")
    numbers: Tensor = data.group.cpu().unique(return_inverse=True)[1]
    return numbers


class Sample(NamedTuple):
    """Units in a sample: their examples, unit after unit, and how many each of them has."""

    examples: Tensor
    sizes: list[int]


class Sampler:
    """Samples whole units: all examples of one are in a sample, or none.

    Args:
        data: Examples of a client.
        unit: What is sampled.
    """

    def __init__(self, data: Examples, unit: Unit) -> None:
        units = units_of(data, unit)
        self._order = units.argsort(stable=True)
        self._sizes = torch.bincount(units)
        self._first = self._sizes.cumsum(0) - self._sizes

    def sample(self, draw: Callable[[int], Tensor]) -> Sample:
        """Returns a sample.

        Args:
            draw: Chooses among that many units.
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
