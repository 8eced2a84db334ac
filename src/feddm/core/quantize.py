"""Numbers in 8 or 4 bits: evenly spaced levels per tensor, rounded at random.

A tensor ``t`` becomes whole levels from ``-L`` to ``L``, in units of ``scale = max|t| / L``.
``L`` is 127 for 8 bits and 7 for 4. A number between two levels goes up with the probability
that makes its expected value the number itself.

A level travels as the code ``level + L + 1``; the code 0 is no level. Codes of 4 bits travel
two to a byte, the first in the lower half. If their number is odd, the last half byte is 0.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.core.tensors import Tensors, zip_map
from feddm.errors import UploadError

Bits = Literal[8, 4]

# No training that works moves a weight by millions, and one client that does would spoil a
# round.
LARGEST_SCALE = 1e6
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny


class Quantized(NamedTuple):
    """Tensors as they travel: codes, and one scale per tensor."""

    codes: Tensors
    scales: Tensors


def quantize(tensors: Tensors, bits: Bits, rng: torch.Generator) -> Quantized:
    """Returns tensors in a few bits per number; their expected value is the tensors.

    >>> sent = quantize({"w": torch.tensor([7.0, -7.0, 0.0])}, 4, torch.Generator())
    >>> sent.codes["w"].tolist(), float(sent.scales["w"])  # 15 and 1 in a byte, 8 in another
    ([31, 8], 1.0)
    """
    scales = zip_map(lambda tensor: _scale(tensor, bits), tensors)
    codes = {
        # Sorted, because draws depend on the order, and files do not keep that of a mapping.
        name: _codes(tensors[name], scales[name], bits, rng)
        for name in sorted(tensors)
    }
    return Quantized(codes, scales)


def dequantize(sent: Quantized, template: Tensors, bits: Bits) -> dict[str, Tensor]:
    """Returns ``level * scale`` for tensors shaped like the template, without any check."""

    def numbers(like: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
        levels = _unpacked(codes, like, bits).float() - (_top(bits) + 1)
        return levels.view(like.shape) * scale

    return zip_map(numbers, template, sent.codes, sent.scales)


def decode(sent: Quantized, template: Tensors, bits: Bits) -> dict[str, Tensor]:
    """Returns the tensors, or raises `UploadError` if `quantize` cannot have sent this."""
    if not sent.codes.keys() == sent.scales.keys() == template.keys():
        raise UploadError("the names of codes and scales are not those of the model")
    for name, like in template.items():
        _check_form(name, sent.codes[name], sent.scales[name], like, bits)
        _check_levels(name, sent.codes[name], like, bits)
    return dequantize(sent, template, bits)


def quantized_bytes(tensors: Tensors, bits: Bits) -> int:
    """Returns how many bytes `quantize` makes of tensors like these: codes and scales.

    >>> quantized_bytes({"w": torch.zeros(3), "b": torch.zeros(())}, 4)  # 2 + 4 and 1 + 4
    11
    """
    return sum(
        math.prod(_codes_shape(tensor, bits)) + torch.float32.itemsize
        for tensor in tensors.values()
    )


def _top(bits: Bits) -> int:
    """Returns the largest level, ``L``."""
    return 127 if bits == 8 else 7


def _scale(tensor: Tensor, bits: Bits) -> Tensor:
    largest = tensor.abs().max() if tensor.numel() else tensor.new_zeros(())
    # Division by less than the smallest normal float would not be exact enough.
    scale = (largest / _top(bits)).clamp(min=_SMALLEST_SCALE)
    return torch.where(largest == 0, torch.ones_like(scale), scale)


def _codes(tensor: Tensor, scale: Tensor, bits: Bits, rng: torch.Generator) -> Tensor:
    top = _top(bits)
    exact = (tensor / scale).clamp(-top, top)
    below = exact.floor()
    draws = torch.rand(tensor.shape, generator=rng).to(tensor.device)
    codes = (below + (draws < exact - below) + (top + 1)).to(torch.uint8)
    return codes if bits == 8 else _packed(codes)


def _packed(codes: Tensor) -> Tensor:
    """Returns codes below 16 two to a byte."""
    number = codes.numel()
    pairs = F.pad(codes.flatten(), (0, number % 2)).view(math.ceil(number / 2), 2)
    return pairs[:, 0] | (pairs[:, 1] << 4)


def _unpacked(codes: Tensor, like: Tensor, bits: Bits) -> Tensor:
    """Returns one code per number of the tensor that they stand for."""
    if bits == 8:
        return codes
    return torch.stack([codes & 15, codes >> 4], 1).flatten()[: like.numel()]


def _codes_shape(like: Tensor, bits: Bits) -> tuple[int, ...]:
    return tuple(like.shape) if bits == 8 else (math.ceil(like.numel() / 2),)


def _check_form(name: str, codes: Tensor, scale: Tensor, like: Tensor, bits: Bits) -> None:
    """Raises `UploadError` unless types, shapes and the scale are such as `quantize` sends."""
    shape = _codes_shape(like, bits)
    if codes.dtype != torch.uint8 or codes.shape != shape:
        raise UploadError(
            f"{bits}-bit codes of {name} must be torch.uint8 of shape {shape}, got "
            f"{codes.dtype} {tuple(codes.shape)}"
        )
    if scale.dtype != torch.float32 or scale.shape != ():
        raise UploadError(
            f"the scale of {name} must be one torch.float32, got {scale.dtype} "
            f"{tuple(scale.shape)}"
        )
    if not 0 < float(scale) <= LARGEST_SCALE:  # nor is NaN
        raise UploadError(
            f"the scale of {name} must be above 0 and at most {LARGEST_SCALE:g}, got "
            f"{float(scale):g}"
        )


def _check_levels(name: str, codes: Tensor, like: Tensor, bits: Bits) -> None:
    """Raises `UploadError` if a code is no level, or if there is one too many."""
    if not _unpacked(codes, like, bits).all():
        raise UploadError(f"{name} has a level below -{_top(bits)}")
    if bits == 4 and like.numel() % 2 and codes[-1] > 15:
        raise UploadError(f"{name} has a level more than it has numbers")
