"""How images travel: as floats, as 256 levels per channel, or these as WebP sheets.

What is encoded is what is sent, and so what is counted; the server trains on what it decoded.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from feddm.core.sheets import HEADER, check_sheets, decode_sheet, encode_sheet
from feddm.core.tensors import Tensors
from feddm.errors import UploadError

Type = Literal["float32", "uint8", "webp"]

# Pixels are normalized to a few units. Squares and means of much larger ones could overflow,
# and one client would spoil a round.
LARGEST_PIXEL = 1e4
TOP_LEVEL = 255


@dataclass(frozen=True)
class Coding:
    """A way to send images.

    Args:
        type: Type of what is sent. With uint8, the values of a channel lie on 256 equally
            spaced levels between its smallest and its largest. With webp, these levels are
            compressed as one sheet per class, with losses.
        quality: Of WebP, from 0 to 100.
    """

    type: Type = "float32"
    quality: int = 50

    @property
    def names(self) -> set[str]:
        """Names of the tensors that are sent."""
        ranges = {"low", "step"} if self.type != "float32" else set()
        return {"x", *ranges, *({"length"} if self.type == "webp" else ())}

    def check(self, shape: tuple[int, int, int], images_per_class: int) -> None:
        """Raises `ConfigError` if images of this shape cannot be sent so."""
        if self.type == "webp":
            check_sheets(shape, images_per_class)

    def image_bytes(self, shape: tuple[int, ...]) -> float:
        """Returns the bytes of an image; NaN if they depend on the image."""
        if self.type == "webp":
            return math.nan
        return math.prod(shape) * (4 if self.type == "float32" else 1)

    def range_bytes(self, channels: int) -> int:
        """Returns the bytes that say where levels lie, once for all images of a client."""
        return 0 if self.type == "float32" else 2 * torch.float32.itemsize * channels

    def encode(self, images: Tensor, slots: Tensor) -> dict[str, Tensor]:
        """Returns what is sent for images of shape (n, channels, height, width).

        Args:
            images: The images.
            slots: The class of each; those of a class follow one another.
        """
        if self.type == "float32":
            return {"x": images.float()}
        low, step = _range(images)
        levels = ((images - _wide(low)) / _wide(step)).round().clamp(0, TOP_LEVEL)
        sent = {"low": low, "step": step, "x": levels.to(torch.uint8)}
        if self.type == "uint8":
            return sent
        sizes = slots.unique_consecutive(return_counts=True)[1].tolist()
        sheets = [encode_sheet(part.numpy(), self.quality) for part in sent["x"].split(sizes)]
        length = torch.tensor([len(sheet) for sheet in sheets], dtype=torch.int32)
        return {**sent, "x": _bytes(b"".join(sheets)), "length": length}

    def decode(
        self, sent: Tensors, labels: Tensor, shape: tuple[int, int, int], most: int
    ) -> Tensor:
        """Returns the images, or raises `UploadError` if this coding cannot have sent that.

        Args:
            sent: What arrived.
            labels: The labels that arrived with it: one whole number per image.
            shape: Channels, height and width of an image.
            most: Largest number of images allowed.
        """
        if set(sent) != self.names:
            raise UploadError(
                f"images of type {self.type} come as {', '.join(sorted(self.names))}"
            )
        if labels.dim() != 1 or len(labels) > most:
            raise UploadError(
                f"an upload has one label for each of at most {most} images, got "
                f"{tuple(labels.shape)}"
            )
        x = sent["x"]
        if self.type == "webp":
            x = _sheets(x, sent["length"], labels, shape)
        dtype = torch.float32 if self.type == "float32" else torch.uint8
        if x.dtype != dtype or x.shape != (len(labels), *shape):
            raise UploadError(
                f"an upload has at most {most} {self.type} images of shape {shape}, one per "
                f"label, got {x.dtype} of shape {tuple(x.shape)} for {len(labels)} labels"
            )
        images = x.float()
        if self.type != "float32":
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


def _sheets(x: Tensor, length: Tensor, labels: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Returns the levels of the images in WebP sheets, after checking what can be checked."""
    sizes = labels.unique_consecutive(return_counts=True)[1].tolist()
    if length.dtype != torch.int32 or length.shape != (len(sizes),):
        raise UploadError(
            f"an upload has one int32 length for each of {len(sizes)} sheets, got "
            f"{length.dtype} of shape {tuple(length.shape)}"
        )
    # No sheet that is worth sending is larger than its levels.
    room = [HEADER * 2 + 2 * size * math.prod(shape) for size in sizes]
    ends = list(itertools.accumulate(length.tolist(), initial=0))
    good = all(0 < each <= most for each, most in zip(length.tolist(), room, strict=True))
    if x.dtype != torch.uint8 or x.dim() != 1 or not good or ends[-1] != len(x):
        raise UploadError("WebP sheets are bytes of the lengths that are sent with them")
    data = x.numpy().tobytes()
    parts = [
        decode_sheet(data[begin:end], size, shape)
        for begin, end, size in zip(ends, ends[1:], sizes, strict=False)
    ]
    if not parts:
        return torch.empty(0, *shape, dtype=torch.uint8)
    return torch.from_numpy(np.concatenate(parts))


def _bytes(data: bytes) -> Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )


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
