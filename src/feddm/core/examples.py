"""Examples: labelled images as they lie in memory, and as a model takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalization:
    """``(pixels / 255 - mean) / std`` by channel, with constants that are public."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def inputs(self, pixels: Tensor) -> Tensor:
        """Returns what a model takes for uint8 pixels of shape (n, channels, height, width)."""
        mean, std = self._columns()
        mean, std = mean.to(pixels.device), std.to(pixels.device)
        return torch.addcmul(-mean / std, pixels.float(), 1 / (255 * std))

    def pixels(self, inputs: Tensor) -> Tensor:
        """Returns the nearest uint8 pixels; the inverse of `inputs` for what was an image.

        >>> gray = torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 1, 1, 3)
        >>> n = Normalization(mean=(0.13,), std=(0.31,))
        >>> n.pixels(n.inputs(gray)).flatten().tolist()
        [0, 127, 255]
        """
        mean, std = self._columns()
        return ((inputs * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def _columns(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.mean).view(-1, 1, 1), torch.tensor(self.std).view(-1, 1, 1)


@dataclass(frozen=True)
class Members:
    """Which examples belong to which class of a client, class after class.

    A *slot* is the place of a class among the classes that one client has: class 7 of a client
    with classes 2, 5 and 7 is slot 2.
    """

    index: Tensor  # positions of the examples
    slots: Tensor  # the slot of each, ascending

    @property
    def counts(self) -> Tensor:
        """How many examples each slot has."""
        return torch.bincount(self.slots)

    def sample(self, most: int | None, rng: torch.Generator) -> Members:
        """Returns random examples of each slot without repeats.

        Args:
            most: Most examples of a slot; ``None`` takes all of them.
            rng: Draws them.

        >>> members = Members(torch.tensor([4, 7, 8, 9]), torch.tensor([0, 1, 1, 1]))
        >>> members.sample(2, torch.Generator().manual_seed(0)).slots
        tensor([0, 1, 1])
        """
        if most is None:
            return self
        order = torch.randperm(len(self.index), generator=rng)
        order = order[self.slots[order].argsort(stable=True)]  # by slot, at random within it
        slots = self.slots[order]
        first = self.counts.cumsum(0) - self.counts
        wanted = self.counts.clamp(max=most)
        chosen = torch.arange(len(slots)) - first[slots] < wanted[slots]
        return Members(self.index[order[chosen]], slots[chosen])


class Batch(NamedTuple):
    """What a training step takes: model inputs, class numbers, and weights if they differ."""

    x: Tensor
    y: Tensor
    weight: Tensor | None


@dataclass(frozen=True)
class Examples:
    """Labelled images: uint8 pixels with their normalization, or float inputs without one.

    Args:
        x: Images, of shape (n, channels, height, width).
        y: Class numbers, int64.
        normalization: Turns uint8 pixels into inputs; ``None`` if `x` are inputs already.
        weight: How much each example counts; ``None`` if all count the same.
        group: Whom each example is about, as a number; ``None`` if nobody says.
    """

    x: Tensor
    y: Tensor
    normalization: Normalization | None = None
    weight: Tensor | None = None
    group: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Tensor | slice) -> Batch:
        """Returns the chosen examples as a model takes them."""
        weight = None if self.weight is None else self.weight[index]
        return Batch(self.inputs(self.x[index]), self.y[index], weight)

    def inputs(self, x: Tensor) -> Tensor:
        """Returns what a model takes for images that lie in memory as these do."""
        return x if self.normalization is None else self.normalization.inputs(x)

    def subset(self, index: Tensor) -> Examples:
        """Returns the chosen examples as they lie in memory."""
        weight = None if self.weight is None else self.weight[index]
        group = None if self.group is None else self.group[index]
        return Examples(self.x[index], self.y[index], self.normalization, weight, group)

    def to(self, device: torch.device) -> Examples:
        """Returns the examples in the memory of a device."""
        weight = None if self.weight is None else self.weight.to(device)
        group = None if self.group is None else self.group.to(device)
        x, y = self.x.to(device), self.y.to(device)
        return Examples(x, y, self.normalization, weight, group)

    def by_class(self, min_size: int) -> tuple[list[int], Members]:
        """Returns the classes with at least `min_size` examples, and which examples they have.

        >>> data = Examples(torch.zeros(3, 1, 1, 1), torch.tensor([4, 1, 4]))
        >>> data.by_class(min_size=2)
        ([4], Members(index=tensor([0, 2]), slots=tensor([0, 0])))
        """
        labels = self.y.cpu()
        sizes = torch.bincount(labels)
        large = sizes >= max(min_size, 1)
        index = labels.argsort(stable=True)
        index = index[large[labels[index]]]
        slots = large.cumsum(0)[labels[index]] - 1
        return large.nonzero().flatten().tolist(), Members(index, slots)
