"""Random changes to images that leave their class as it is, differentiable and seeded.

Zhao and Bilen. Dataset Condensation with Differentiable Siamese Augmentation. ICML 2021.
https://arxiv.org/abs/2102.08259

One kind of change is drawn for a batch. In matching, one draw serves the real and the synthetic
images of a network alike (`Augmentation.shared`), so that their means stay comparable; in
training every image gets its own (`Augmentation.each`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.config.schema import AugmentationConfig

Transform = Callable[[Tensor], Tensor]  # images -> images

DRAWS = 4  # uniform numbers that a change may use, for each image


def unchanged_images(images: Tensor) -> Tensor:
    """A `Transform` that changes nothing."""
    return images


class Augmentation(AugmentationConfig):
    """What may be changed, and how much; 0 switches a change off.

    Images are as a model takes them: normalized, with 0 the mean color.
    """

    def shared(self, rng: torch.Generator) -> Transform:
        """Returns one change for all images that it is given, whenever that is."""
        change = self._draw(rng)
        u = torch.rand(1, DRAWS, generator=rng)
        return lambda images: change(images, u.to(images.device))

    def each(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Returns the images, each changed in its own way."""
        change = self._draw(rng)
        return change(images, torch.rand(len(images), DRAWS, generator=rng).to(images.device))

    def _draw(self, rng: torch.Generator) -> Callable[[Tensor, Tensor], Tensor]:
        color = self.brightness or self.saturation or self.contrast
        changes = [
            change
            for change, strength in (
                (self._flipped, self.flip),
                (self._shifted, self.shift),
                (self._scaled, self.scale),
                (self._rotated, self.rotate),
                (self._colored, color),
                (self._cut, self.cutout),
            )
            if strength
        ]
        if not changes:
            return lambda images, u: images
        return changes[int(torch.randint(len(changes), (), generator=rng))]

    # Each change takes images and uniform numbers in [0, 1): a row of `DRAWS` for every image,
    # or one row for all.

    def _flipped(self, images: Tensor, u: Tensor) -> Tensor:
        return torch.where(_column(u, 0) < 0.5, images.flip(-1), images)

    def _shifted(self, images: Tensor, u: Tensor) -> Tensor:
        # By whole pixels, which blurs nothing; 2 is the side of what affine_grid calls 1.
        height, width = images.shape[2:]
        right = (_signed(u[:, 0]) * self.shift * width).round() * 2 / width
        down = (_signed(u[:, 1]) * self.shift * height).round() * 2 / height
        one, zero = torch.ones_like(right), torch.zeros_like(right)
        return _affine(images, [[one, zero, right], [zero, one, down]])

    def _scaled(self, images: Tensor, u: Tensor) -> Tensor:
        # Powers, so that twice as long is as likely as half as long.
        longer = (1 + self.scale) ** _signed(u)
        zero = torch.zeros_like(u[:, 0])
        return _affine(images, [[longer[:, 0], zero, zero], [zero, longer[:, 1], zero]])

    def _rotated(self, images: Tensor, u: Tensor) -> Tensor:
        angle = _signed(u[:, 0]) * math.radians(self.rotate)
        sin, cos, zero = angle.sin(), angle.cos(), torch.zeros_like(angle)
        return _affine(images, [[cos, -sin, zero], [sin, cos, zero]])

    def _colored(self, images: Tensor, u: Tensor) -> Tensor:
        images = images + self.brightness * _signed(_column(u, 0))
        gray = images.mean(1, keepdim=True)
        images = gray + (images - gray) * (1 + self.saturation * _signed(_column(u, 1)))
        mean = images.mean((1, 2, 3), keepdim=True)
        return mean + (images - mean) * (1 + self.contrast * _signed(_column(u, 2)))

    def _cut(self, images: Tensor, u: Tensor) -> Tensor:
        # The middle of the square may be anywhere, so that it may stick out.
        row, column = (
            (torch.arange(side, device=u.device) + 0.5) / side - u[:, number, None]
            for number, side in enumerate(images.shape[2:])
        )
        inside = (row.abs() < self.cutout / 2)[:, :, None] & (column.abs() < self.cutout / 2)[
            :, None
        ]
        return images.masked_fill(inside[:, None], 0.0)


def _column(u: Tensor, number: int) -> Tensor:
    return u[:, number].view(-1, 1, 1, 1)


def _signed(u: Tensor) -> Tensor:
    """Returns numbers in [-1, 1) for numbers in [0, 1)."""
    return 2 * u - 1


def _affine(images: Tensor, rows: list[list[Tensor]]) -> Tensor:
    """Returns the images seen through affine maps; their edges go on outside of them."""
    maps = torch.stack([torch.stack(row, -1) for row in rows], -2)
    grid = F.affine_grid(
        maps.expand(len(images), 2, 3), list(images.shape), align_corners=False
    )
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
