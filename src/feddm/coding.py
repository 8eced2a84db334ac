"""How images travel: float32, float16 or uint8, and packed without loss if asked for.

What is encoded is what is sent, and so what is counted; the server trains on what it decoded.
With uint8, a channel's values lie between its least and its greatest one in 255 equal steps.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feddm.errors import UploadError
from feddm.tensors import Tensors

Type = Literal["float32", "float16", "uint8"]

_TYPES = {"float32": torch.float32, "float16": torch.float16, "uint8": torch.uint8}
_LEVELS = 255


@dataclass(frozen=True)
class Coding:
    """A way to send images.

    Args:
        type: Of the numbers that are sent.
        packed: Whether their bytes are compressed, by zlib.
    """

    type: Type = "float32"
    packed: bool = False

    @property
    def names(self) -> set[str]:
        """Names of the tensors that are sent."""
        return {"x", "low", "step"} if self.type == "uint8" else {"x"}

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        """Returns what is sent for images of shape (n, channels, height, width)."""
        sent: dict[str, Tensor] = {}
        if self.type == "uint8":
            low, step = _range(images)
            sent = {"low": low, "step": step}
            images = ((images - _wide(low)) / _wide(step)).round().clamp(0, _LEVELS)
        x = images.to(_TYPES[self.type])
        return sent | {"x": _packed(x) if self.packed else x}

    def decode(self, sent: Tensors, shape: tuple[int, int, int], most: int) -> Tensor:
        """Returns the images, or raises `UploadError` if this coding cannot have sent that.

        Args:
            sent: What arrived.
            shape: Channels, height and width of an image.
            most: How many images there may be at most.
        """
        if set(sent) != self.names:
            raise UploadError(
                f"images of type {self.type} come as {', '.join(sorted(self.names))}"
            )
        x = sent["x"]
        if self.packed:
            x = _unpacked(x, _TYPES[self.type], shape, most)
        if x.dtype != _TYPES[self.type] or x.shape[1:] != shape or len(x) > most:
            raise UploadError(
                f"an upload has at most {most} {self.type} images of shape {shape}, "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        images = x.float()
        if self.type == "uint8":
            low, step = sent["low"], sent["step"]
            if any(t.dtype != torch.float32 or t.shape != shape[:1] for t in (low, step)):
                raise UploadError("low and step are one float32 number a channel")
            if not step.gt(0).all():
                raise UploadError("a step is above 0")
            images = _wide(low) + _wide(step) * images
        if not images.isfinite().all():
            raise UploadError("an upload has finite pixels only")
        return images


def _range(images: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the least value of each channel, and how far apart its levels are."""
    if not len(images):
        channels = images.shape[1]
        return torch.zeros(channels), torch.ones(channels)
    low, high = images.amin((0, 2, 3)), images.amax((0, 2, 3))
    step = (high - low) / _LEVELS
    return low, torch.where(step > 0, step, torch.ones_like(step))


def _wide(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)


def _packed(x: Tensor) -> Tensor:
    data = zlib.compress(x.numpy().tobytes(), 9)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(x: Tensor, dtype: torch.dtype, shape: tuple[int, int, int], most: int) -> Tensor:
    """Returns the images in packed bytes; never more of them than there may be."""
    if x.dtype != torch.uint8 or x.dim() != 1:
        raise UploadError("packed images are a row of bytes")
    size = dtype.itemsize * shape[0] * shape[1] * shape[2]
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(x.numpy().tobytes(), most * size + 1)
    except zlib.error as error:
        raise UploadError("packed images cannot be unpacked") from error
    if not unpacker.eof or unpacker.unused_data or len(data) % size or len(data) > most * size:
        raise UploadError("packed images are not a whole number of them")
    if not data:
        return torch.empty(0, *shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(-1, *shape)
