"""How images travel: as floats, or as 256 levels per channel.

What is encoded is what is sent, and so what is counted; the server trains on what it decoded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feddm.core.tensors import Tensors
from feddm.errors import UploadError

Type = Literal["float32", "float16", "uint8"]

# Pixels are normalized to a few units. Squares and means of much larger ones could overflow,
# and one client would spoil a round.
LARGEST_PIXEL = 1e4
TOP_LEVEL = 255

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "uint8": torch.uint8}


@dataclass(frozen=True)
class Coding:
    """A way to send images.

    Args:
        type: Type of the numbers that are sent. With uint8, the values of a channel lie on 256
            equally spaced levels between its smallest and its largest.
    """

    type: Type = "float32"

    @property
    def names(self) -> set[str]:
        """Names of the tensors that are sent."""
        return {"x", "low", "step"} if self.type == "uint8" else {"x"}

    def image_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of an image."""
        return math.prod(shape) * _DTYPES[self.type].itemsize

    def range_bytes(self, channels: int) -> int:
        """Returns the bytes that say where levels lie, once for all images of a client."""
        return 2 * torch.float32.itemsize * channels if self.type == "uint8" else 0

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        """Returns what is sent for images of shape (n, channels, height, width)."""
        if self.type != "uint8":
            return {"x": images.to(_DTYPES[self.type])}
        low, step = _range(images)
        levels = ((images - _wide(low)) / _wide(step)).round().clamp(0, TOP_LEVEL)
        return {"low": low, "step": step, "x": levels.to(torch.uint8)}

    def decode(self, sent: Tensors, shape: tuple[int, int, int], most: int) -> Tensor:
        """Returns the images, or raises `UploadError` if this coding cannot have sent that.

        Args:
            sent: What arrived.
            shape: Channels, height and width of an image.
            most: Largest number of images allowed.
        """
        if set(sent) != self.names:
            raise UploadError(
                f"images of type {self.type} come as {', '.join(sorted(self.names))}"
            )
        x = sent["x"]
        if x.dtype != _DTYPES[self.type] or x.shape[1:] != shape or len(x) > most:
            raise UploadError(
                f"an upload has at most {most} {self.type} images of shape {shape}, "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        images = x.float()
        if self.type == "uint8":
            low, step = sent["low"], sent["step"]
            if any(t.dtype != torch.float32 or t.shape != shape[:1] for t in (low, step)):
                raise UploadError(
                    "low and step are one float32 number per channel, got "
                    f"{low.dtype} of shape {tuple(low.shape)} and {step.dtype} of shape "
                    f"{tuple(step.shape)}"
                )
            if not step.gt(0).all():
                raise UploadError(f"a step is above 0, got {step.tolist()}")
            images = _wide(low) + _wide(step) * images
        if not images.abs().le(LARGEST_PIXEL).all():
            raise UploadError(
                f"an upload has pixels from -{LARGEST_PIXEL:g} to {LARGEST_PIXEL:g}, got "
                f"{images.abs().max():g}; a smaller synthesis.lr keeps learned ones small"
            )
        return images


def _range(images: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the lowest level of each channel, and how far apart its levels are."""
    if not len(images):
        channels = images.shape[1]
        return torch.zeros(channels), torch.ones(channels)
    low, high = images.amin((0, 2, 3)), images.amax((0, 2, 3))
    step = (high - low) / TOP_LEVEL
    return low, torch.where(step > 0, step, torch.ones_like(step))


def _wide(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)
