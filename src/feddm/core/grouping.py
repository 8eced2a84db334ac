"""Groups of alike images: a class in parts, each of which is matched on its own.

All synthetic images of a class that match one mean are pulled in the same direction, however
many they are. With a group for every few of them, each also learns what its part of the class
looks like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feddm.core.examples import Members

Embed = Callable[[Tensor], Tensor]  # positions of examples -> their embeddings, a row for each

_ITERATIONS = 10  # enough to split along a long direction, which need not be the longest


@dataclass(frozen=True)
class Plan:
    """What a client learns, slot by slot.

    Args:
        classes: The class of each slot.
        members: The real examples of each slot.
        images: How many synthetic images each slot gets.
    """

    classes: list[int]
    members: Members
    images: Tensor


def grouped(plan: Plan, groups: int, embed: Embed) -> Plan:
    """Returns a plan with a slot for every group, where the given one has one for every class.

    Real examples are shared out in proportion to synthetic images: if a class has k times as
    many, then so has each of its groups, at least.

    Args:
        plan: What is learned of whole classes.
        groups: Groups of a class, or as many as it gets images; a class with fewer examples
            than images stays whole.
        embed: What alike means: examples of a group have similar embeddings.
    """
    classes: list[int] = []
    parts: list[Tensor] = []
    images: list[int] = []
    for slot, label in enumerate(plan.classes):
        mine = plan.members.index[plan.members.slots == slot]
        number = int(plan.images[slot])
        shares = even_shares(number, min(groups, number) if number <= len(mine) else 1)
        parts += [mine[group] for group in alike(embed(mine).cpu(), shares)]
        classes += [label] * len(shares)
        images += shares
    sizes = torch.tensor([len(part) for part in parts])
    slots = torch.arange(len(parts)).repeat_interleave(sizes)
    return Plan(classes, Members(torch.cat(parts), slots), torch.tensor(images))


def even_shares(total: int, parts: int) -> list[int]:
    """Returns nearly equal numbers with a given sum.

    >>> even_shares(7, 3)
    [3, 2, 2]
    """
    return [total // parts + (part < total % parts) for part in range(parts)]


def alike(rows: Tensor, shares: list[int]) -> list[Tensor]:
    """Returns groups of rows that lie near one another, of sizes in proportion to the shares.

    The rows are parted across their longest direction, and the parts again.

    >>> alike(torch.tensor([[0.0], [9.0], [1.0], [8.0], [7.0], [2.0]]), [1, 1])
    [tensor([1, 3, 4]), tensor([5, 2, 0])]
    """
    return _parted(rows, torch.arange(len(rows)), shares)


def _parted(rows: Tensor, index: Tensor, shares: list[int]) -> list[Tensor]:
    if len(shares) == 1:
        return [index]
    half = len(shares) // 2
    first, second = shares[:half], shares[half:]
    order = index[_along(rows[index]).argsort(stable=True)]
    cut = round(len(index) * sum(first) / sum(shares))
    return _parted(rows, order[:cut], first) + _parted(rows, order[cut:], second)


def _along(rows: Tensor) -> Tensor:
    """Returns how far each row lies along the direction in which they differ most."""
    rows = rows - rows.mean(0)
    direction = rows[rows.norm(dim=1).argmax()]
    for _ in range(_ITERATIONS):
        direction = rows.T @ (rows @ direction)
        direction = direction / direction.norm().clamp(min=1e-12)
    return rows @ direction
