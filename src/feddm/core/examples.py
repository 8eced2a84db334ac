"""Examples: labelled images as stored, and as model inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalization:
    """``(x / scale - mean) / std`` per channel; the constants are public.

    Pixels have the scale 255, and numbers that are no pixels have 1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0

    def inputs(self, pixels: Tensor) -> Tensor:
        """Returns the model inputs for stored values of shape (n, channels, height, width)."""
        mean, std = self._columns()
        mean, std = mean.to(pixels.device), std.to(pixels.device)
        return torch.addcmul(-mean / std, pixels.float(), 1 / (self.scale * std))

    def stored(self, inputs: Tensor) -> Tensor:
        """Returns the values before normalization: uint8 pixels, or numbers."""
        if self.scale == 255.0:
            return self.pixels(inputs)
        mean, std = self._columns()
        return (inputs * std + mean) * self.scale

    def pixels(self, inputs: Tensor) -> Tensor:
        """Returns the nearest uint8 pixels; inverts `inputs` exactly for images.

        >>> gray = torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 1, 1, 3)
        >>> n = Normalization(mean=(0.13,), std=(0.31,))
        >>> n.pixels(n.inputs(gray)).flatten().tolist()
        [0, 127, 255]
        """
        mean, std = self._columns()
        return ((inputs * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def _columns(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.mean).view(-1, 1, 1), torch.tensor(self.std).view(-1, 1, 1)


def scale_of(normalization: Normalization) -> dict[str, float]:
    """Returns the scale for a file's description, which is about pixels unless it has one."""
    return {} if normalization.scale == 255.0 else {"scale": normalization.scale}


def normalization_in(about: Mapping[str, Any]) -> Normalization:
    """Returns the normalization in the description of a file."""
    mean, std, scale = about["mean"], about["std"], about.get("scale", 255.0)
    return Normalization(tuple(mean), tuple(std), float(scale))


@dataclass(frozen=True)
class Members:
    """Which examples belong to which class of a client, ordered by class.

    A *slot* is the index of a class among one client's classes: for a client with classes 2, 5
    and 7, class 7 is slot 2.
    """

    index: Tensor  # indices of the examples
    slots: Tensor  # slot of each example, ascending

    @property
    def counts(self) -> Tensor:
        """Number of examples per slot."""
        return torch.bincount(self.slots)

    def sample(self, most: int | None, rng: torch.Generator) -> Members:
        """Returns a random sample of each slot, without replacement.

        Args:
            most: Maximum number of examples per slot; ``None`` takes all of them.
            rng: Random generator.

        >>> members = Members(torch.tensor([4, 7, 8, 9]), torch.tensor([0, 1, 1, 1]))
        >>> members.sample(2, torch.Generator().manual_seed(0)).slots
        tensor([0, 1, 1])
        """
        if most is None:
            return self
        order = torch.randperm(len(self.index), generator=rng)
        order = order[
            self.slots[order].argsort(stable=True)
        ]  # by slot, in random order within each
        slots = self.slots[order]
        first = self.counts.cumsum(0) - self.counts
        wanted = self.counts.clamp(max=most)
        chosen = torch.arange(len(slots)) - first[slots] < wanted[slots]
        return Members(self.index[order[chosen]], slots[chosen])


class Batch(NamedTuple):
    """Input of a training step: model inputs, class indices, and weights if they differ."""

    x: Tensor
    y: Tensor
    weight: Tensor | None


@dataclass(frozen=True)
class Examples:
    """Labelled images: stored values with their normalization, or float inputs without one.

    Args:
        x: Images, of shape (n, channels, height, width); a vector has one pixel.
        y: Class indices, int64.
        normalization: Turns stored values into inputs; ``None`` if `x` already holds inputs.
        weight: Weight of each example; ``None`` if all are equal.
        group: Group id of each example (for instance a patient), or ``None``.
    """

    x: Tensor
    y: Tensor
    normalization: Normalization | None = None
    weight: Tensor | None = None
    group: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Tensor | slice) -> Batch:
        """Returns the selected examples as a batch of model inputs."""
        weight = None if self.weight is None else self.weight[index]
        return Batch(self.inputs(self.x[index]), self.y[index], weight)

    def inputs(self, x: Tensor) -> Tensor:
        """Returns the model inputs for images stored in the same form as `self.x`."""
        return x if self.normalization is None else self.normalization.inputs(x)

    def subset(self, index: Tensor) -> Examples:
        """Returns the selected examples in stored form."""
        weight = None if self.weight is None else self.weight[index]
        group = None if self.group is None else self.group[index]
        return Examples(self.x[index], self.y[index], self.normalization, weight, group)

    def to(self, device: torch.device) -> Examples:
        """Returns the examples on a device."""
        weight = None if self.weight is None else self.weight.to(device)
        group = None if self.group is None else self.group.to(device)
        x, y = self.x.to(device), self.y.to(device)
        return Examples(x, y, self.normalization, weight, group)

    def by_class(self, min_size: int) -> tuple[list[int], Members]:
        """Returns the classes with at least `min_size` examples, and their members.

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
