"""How images travel: as floats or as levels, and packed without loss if asked for.

What is encoded is what is sent, and so what is counted; the server trains on what it decoded.
With uint8, uint4 and uint2, a channel's values lie on 256, 16 or 4 equally spaced levels.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.core.tensors import Tensors
from feddm.errors import UploadError

Type = Literal["float32", "float16", "uint8", "uint4", "uint2"]

# Pixels are normalized to a few units. Squares and means of much larger ones could overflow,
# and one client would spoil a round.
LARGEST_PIXEL = 1e4

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "uint8": torch.uint8,
    "uint4": torch.uint8,  # two numbers a byte
    "uint2": torch.uint8,  # four
}
_BITS = {"uint8": 8, "uint4": 4, "uint2": 2}
# With few levels, it pays to cut off what is rare: Gaussian values have the least squared error
# with the outer levels so many deviations from the mean.
_DEVIATIONS = {"uint8": math.inf, "uint4": 2.51, "uint2": 1.49}


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
        return {"x", "low", "step"} if self.type in _BITS else {"x"}

    def sent_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of an image as it is sent, before it is packed.

        >>> [Coding(kind).sent_shape((3, 5, 5)) for kind in ("uint8", "uint4", "uint2")]
        [(3, 5, 5), (38,), (19,)]
        """
        return (math.ceil(math.prod(shape) / self._a_byte),) if self._a_byte > 1 else shape

    def image_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of an image before it is packed."""
        return math.prod(self.sent_shape(shape)) * _DTYPES[self.type].itemsize

    def range_bytes(self, channels: int) -> int:
        """Returns the bytes that say where levels lie, once for all images of a client."""
        return 2 * torch.float32.itemsize * channels if self.type in _BITS else 0

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        """Returns what is sent for images of shape (n, channels, height, width)."""
        sent: dict[str, Tensor] = {}
        if self.type in _BITS:
            low, step = self._range(images)
            sent = {"low": low, "step": step}
            images = self._levels(images, low, step)
        x = images.to(_DTYPES[self.type])
        if self._a_byte > 1:
            x = _joined(x, self._a_byte)
        return sent | {"x": _packed(x) if self.packed else x}

    def rounded(self, images: Tensor) -> Tensor:
        """Returns images as the server will see them."""
        if self.type not in _BITS:
            return images.to(_DTYPES[self.type]).float()
        low, step = self._range(images)
        return _wide(low) + _wide(step) * self._levels(images, low, step)

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
        x, dtype, sent_shape = sent["x"], _DTYPES[self.type], self.sent_shape(shape)
        if self.packed:
            x = _unpacked(x, dtype, sent_shape, most)
        if x.dtype != dtype or x.shape[1:] != sent_shape or len(x) > most:
            raise UploadError(
                f"an upload has at most {most} {self.type} images of shape {sent_shape}, "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        if self._a_byte > 1:
            x = _parted(x, self._a_byte, shape)
        images = x.float()
        if self.type in _BITS:
            low, step = sent["low"], sent["step"]
            if any(t.dtype != torch.float32 or t.shape != shape[:1] for t in (low, step)):
                raise UploadError(
                    "low and step are one float32 number a channel, got "
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

    @property
    def _a_byte(self) -> int:
        """How many numbers share a byte; 1 if none do."""
        return 8 // _BITS.get(self.type, 8)

    @property
    def _top_level(self) -> int:
        return int(2 ** _BITS[self.type]) - 1

    def _range(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the lowest level of each channel, and how far apart its levels are."""
        if not len(images):
            channels = images.shape[1]
            return torch.zeros(channels), torch.ones(channels)
        low, high = images.amin((0, 2, 3)), images.amax((0, 2, 3))
        if math.isfinite(reach := _DEVIATIONS[self.type]):
            std, mean = torch.std_mean(images, (0, 2, 3), correction=0)
            low, high = low.maximum(mean - reach * std), high.minimum(mean + reach * std)
        step = (high - low) / self._top_level
        return low, torch.where(step > 0, step, torch.ones_like(step))

    def _levels(self, images: Tensor, low: Tensor, step: Tensor) -> Tensor:
        """Returns the number of the level that is nearest to each value."""
        return ((images - _wide(low)) / _wide(step)).round().clamp(0, self._top_level)


def _wide(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)


def _joined(x: Tensor, a_byte: int) -> Tensor:
    """Returns small numbers, so many in a byte, the first on top; the last byte ends with 0.

    >>> _joined(torch.tensor([[1, 2, 3]], dtype=torch.uint8), 2).tolist() == [[0x12, 0x30]]
    True
    """
    flat = x.flatten(1)
    flat = F.pad(flat, (0, -flat.shape[1] % a_byte))
    numbers = flat.view(len(flat), flat.shape[1] // a_byte, a_byte)
    return torch.bitwise_left_shift(numbers, _places(a_byte)).sum(2, dtype=torch.uint8)


def _parted(x: Tensor, a_byte: int, shape: tuple[int, int, int]) -> Tensor:
    """Returns images of numbers that shared bytes."""
    numbers = torch.bitwise_right_shift(x[:, :, None], _places(a_byte))
    numbers = torch.remainder(numbers, 2 ** (8 // a_byte))
    return numbers.flatten(1)[:, : math.prod(shape)].reshape(-1, *shape)


def _places(a_byte: int) -> Tensor:
    """Returns by how many bits each number of a byte is moved up."""
    bits = 8 // a_byte
    return torch.arange(8 - bits, -1, -bits, dtype=torch.uint8)


def _packed(x: Tensor) -> Tensor:
    data = zlib.compress(x.numpy().tobytes(), 9)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(x: Tensor, dtype: torch.dtype, shape: tuple[int, ...], most: int) -> Tensor:
    """Returns the images in packed bytes; never more of them than there may be."""
    if x.dtype != torch.uint8 or x.dim() != 1:
        raise UploadError("packed images are a row of bytes")
    size = dtype.itemsize * math.prod(shape)
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(x.numpy().tobytes(), most * size + 1)
    except zlib.error as error:
        raise UploadError("packed images cannot be unpacked") from error
    if not unpacker.eof or unpacker.unused_data or len(data) % size or len(data) > most * size:
        raise UploadError(f"packed images are not a whole number of them, at most {most}")
    if not data:
        return torch.empty(0, *shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(-1, *shape)
