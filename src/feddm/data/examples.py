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
    """

    x: Tensor
    y: Tensor
    normalization: Normalization | None = None
    weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Tensor | slice) -> Batch:
        """Returns the chosen examples as a model takes them."""
        x = self.x[index]
        weight = None if self.weight is None else self.weight[index]
        return Batch(
            x if self.normalization is None else self.normalization.inputs(x),
            self.y[index],
            weight,
        )

    def subset(self, index: Tensor) -> Examples:
        """Returns the chosen examples as they lie in memory."""
        weight = None if self.weight is None else self.weight[index]
        return Examples(self.x[index], self.y[index], self.normalization, weight)
