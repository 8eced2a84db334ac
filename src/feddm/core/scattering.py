"""A fixed feature map: two orders of scattering, without any trained weight.

Mallat. Group Invariant Scattering. CPAM 2012. https://arxiv.org/abs/1101.2286
Oyallon and Mallat. Deep Roto-Translation Scattering for Object Classification. CVPR 2015.
https://arxiv.org/abs/1412.8659

An image is filtered by Morlet wavelets at two scales and eight orientations. The moduli, and
those of the moduli filtered once more, are averaged over a few pixels. Square roots are taken,
each order gets the same length, and of every channel the low frequencies are kept.

All of it is public, so features may be centred, clipped and whitened with whatever a server
sends, and yet nobody chooses what is looked at in an example. Features are rounded to half
precision and kept in the process, because an image has the same ones always.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.core.models import Outputs
from feddm.core.tensors import Tensors

ANGLES = 8
STRIDE = 4  # pixels between two averages
PAD = 4  # pixels by which an image is continued at its edges
WIDTH = 3.2  # standard deviation of an average, in pixels
GRAY_FREQUENCIES, COLOR_FREQUENCIES, OPPONENT_FREQUENCIES = 4, 5, 3  # per direction
CACHE_BYTES = 2**30
PLACES = 16  # images in a batch
_TINY = 1e-3  # added to lengths, so that flat images have finite features


class Block(NamedTuple):
    """Features that belong together: so many channels at each of so many frequencies.

    >>> Block(frequencies=16, channels=81).size
    1296
    """

    frequencies: int
    channels: int

    @property
    def size(self) -> int:
        return self.frequencies * self.channels


@dataclass(frozen=True)
class Scattering:
    """The feature map of images of a shape.

    Color images have luminance, and two opponent colors at the first order only.

    >>> Scattering((1, 28, 28)).size, Scattering((3, 32, 32)).size
    (1296, 2331)
    """

    shape: tuple[int, int, int]

    @property
    def planes(self) -> tuple[tuple[int, int], ...]:
        """Order and frequencies per direction of each plane."""
        height, width = self._grid
        most = min(height, width)
        if self.shape[0] == 3:
            opponent = (1, min(OPPONENT_FREQUENCIES, most))
            return ((2, min(COLOR_FREQUENCIES, most)), opponent, opponent)
        return ((2, min(GRAY_FREQUENCIES, most)),) * self.shape[0]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of a feature vector, in their order."""
        channels = {1: 1 + 2 * ANGLES, 2: 1 + 2 * ANGLES + ANGLES**2}
        return tuple(Block(low**2, channels[order]) for order, low in self.planes)

    @property
    def size(self) -> int:
        """Number of features."""
        return sum(block.size for block in self.blocks)

    @property
    def longest(self) -> float:
        """The most that a feature vector can be long: each order of a plane has length 1."""
        return math.sqrt(sum(1 + order for order, _ in self.planes))

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the features of images, of shape ``(n, size)``.

        Those of an image depend on nothing else, not even in their last bits: it is computed
        in a batch of fixed size, at a place that its own pixels choose.
        """
        with torch.no_grad():
            pixels = x.detach().float().cpu().contiguous()
            keys = [_digest(image) for image in pixels.numpy()]
            kept = ((key, _cache.get((self, key))) for key in dict.fromkeys(keys))
            known = {key: row for key, row in kept if row is not None}
            missing = {key: number for number, key in enumerate(keys) if key not in known}
            for batch in _batches(missing):
                images = pixels.new_zeros(PLACES, *self.shape)
                for place, key in batch.items():
                    images[place] = pixels[missing[key]]
                computed = self._computed(images).half()
                for place, key in batch.items():
                    known[key] = computed[place].clone()
                    _cache.put((self, key), known[key])
            if not keys:
                return x.new_zeros(0, self.size)
            return torch.stack([known[key] for key in keys]).float().to(x.device)

    @property
    def _grid(self) -> tuple[int, int]:
        return max(self.shape[1] // STRIDE, 1), max(self.shape[2] // STRIDE, 1)

    def _computed(self, x: Tensor) -> Tensor:
        parts = []
        for plane, (order, low) in zip(self._split(x), self.planes, strict=True):
            orders = _scattered(plane, order)
            maps = torch.cat([_unit(orders[0]), *(_even_root(part) for part in orders[1:])], 1)
            height, width = self._grid
            kept = _cosines(height, low) @ maps @ _cosines(width, low).T
            parts.append(kept.flatten(2).transpose(1, 2).flatten(1))
        return torch.cat(parts, 1)

    def _split(self, x: Tensor) -> Iterator[Tensor]:
        """Yields the planes of images, of shape ``(n, height, width)`` each."""
        if self.shape[0] != 3:
            yield from x.unbind(1)
            return
        red, green, blue = x.unbind(1)
        yield (red + green + blue) / 3
        yield red - green
        yield (red + green) / 2 - blue


@dataclass(frozen=True)
class PublicFeatures:
    """A linear model of public features."""

    shape: tuple[int, int, int]
    num_classes: int

    @property
    def scattering(self) -> Scattering:
        """The feature map."""
        return Scattering(self.shape)

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        del rng
        size = self.scattering.size
        return {
            "linear.weight": torch.zeros(self.num_classes, size),
            "linear.bias": torch.zeros(self.num_classes),
        }

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        features = self.scattering(x)
        return Outputs(
            features, F.linear(features, params["linear.weight"], params["linear.bias"])
        )


@dataclass(frozen=True)
class WhitenedFeatures:
    """A linear model of public features that are centred, whitened and of unit length.

    Its parameters are the center, a matrix for each frequency of each block, and the weights.
    """

    shape: tuple[int, int, int]
    num_classes: int

    @property
    def scattering(self) -> Scattering:
        """The feature map."""
        return Scattering(self.shape)

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        del rng
        whitening = {
            whitening_name(number): torch.eye(channels).repeat(frequencies, 1, 1)
            for number, (frequencies, channels) in enumerate(self.scattering.blocks)
        }
        size = self.scattering.size
        return {
            "center": torch.zeros(size),
            **whitening,
            "linear.weight": torch.zeros(self.num_classes, size),
        }

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        rows = self.whitened(params, self.scattering(x) - params["center"])
        return Outputs(rows, F.linear(rows, params["linear.weight"]))

    def whitened(self, params: Tensors, centred: Tensor) -> Tensor:
        """Returns centred features after whitening, each row with length 1."""
        parts = []
        sizes = [block.size for block in self.scattering.blocks]
        for number, part in enumerate(centred.split(sizes, 1)):
            matrices = params[whitening_name(number)]
            each = part.view(len(part), *matrices.shape[:2]).transpose(0, 1)
            parts.append((each @ matrices).transpose(0, 1).flatten(1))
        rows = torch.cat(parts, 1)
        length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows / length.clamp(min=1e-12)


def whitening_name(block: int) -> str:
    """Returns the name of the whitening matrices of a block.

    >>> whitening_name(0)
    'whitening0'
    """
    return f"whitening{block}"


def _scattered(plane: Tensor, order: int) -> list[Tensor]:
    """Returns the averages of each order up to the given one, ``(n, channels, rows, columns)``.

    Coarse moduli are computed at half the resolution, by folding their spectra.
    """
    height, width = plane.shape[1:]
    # Two more pixels where a side is odd: spectra are folded in halves.
    padding = (PAD, PAD + width % 2, PAD, PAD + height % 2)
    padded = F.pad(plane[:, None], padding, mode="replicate")[:, 0]
    tall, wide = padded.shape[1:]
    fine, coarse = _wavelets(tall, wide, 0), _wavelets(tall, wide, 1)

    def averaged(maps: Tensor, step: int) -> Tensor:
        down, right = _averages(height, tall, step), _averages(width, wide, step)
        return down @ maps @ right.T

    spectrum = torch.fft.fft2(padded)[:, None]
    first = torch.fft.ifft2(spectrum * fine).abs()
    second = torch.fft.ifft2(_folded(spectrum * coarse)).abs()
    result = [
        averaged(padded[:, None], 1),
        torch.cat([averaged(first, 1), averaged(second, 2)], 1),
    ]
    if order == 2:
        again = torch.fft.fft2(first)[:, :, None]
        twice = torch.fft.ifft2(_folded(again * coarse)).abs()
        result.append(averaged(twice.flatten(1, 2), 2))
    return result


def _even_root(maps: Tensor) -> Tensor:
    """Returns the square roots of averages that add up to 1 for each image."""
    return (maps / (maps.sum((1, 2, 3), keepdim=True) + _TINY)).clamp(min=0).sqrt()


def _unit(maps: Tensor) -> Tensor:
    """Returns maps of length 1 for each image."""
    length: Tensor = torch.linalg.vector_norm(maps, dim=(1, 2, 3), keepdim=True)
    return maps / (length + _TINY)


def _folded(spectrum: Tensor) -> Tensor:
    """Returns the spectrum of every second pixel in both directions."""
    tall, wide = spectrum.shape[-2] // 2, spectrum.shape[-1] // 2
    rows = spectrum[..., :tall, :] + spectrum[..., tall:, :]
    folded: Tensor = (rows[..., :wide] + rows[..., wide:]) / 4
    return folded


@functools.lru_cache(maxsize=32)
def _wavelets(tall: int, wide: int, scale: int) -> Tensor:
    """Returns the spectra of Morlet wavelets, one for each orientation; their sums are 0."""
    filters = []
    for number in range(ANGLES):
        angle = math.pi * number / ANGLES
        peak = 3 * math.pi / 4 / 2**scale
        wave = _bump(tall, wide, angle, scale, peak)
        still = _bump(tall, wide, angle, scale, 0.0)
        filters.append(wave - still * (wave[0, 0] / still[0, 0]))
    return torch.stack(filters).float()


def _bump(tall: int, wide: int, angle: float, scale: int, peak: float) -> Tensor:
    """Returns the spectrum of a Gaussian wave packet, which repeats every 2 pi."""
    width, slant = 0.8 * 2**scale, 4 / ANGLES
    down = 2 * math.pi * torch.fft.fftfreq(tall, dtype=torch.float64)[:, None]
    right = 2 * math.pi * torch.fft.fftfreq(wide, dtype=torch.float64)
    total = torch.zeros(tall, wide, dtype=torch.float64)
    for turn in range(-2, 3):
        for other in range(-2, 3):
            y = down + 2 * math.pi * turn - peak * math.sin(angle)
            x = right + 2 * math.pi * other - peak * math.cos(angle)
            along = x * math.cos(angle) + y * math.sin(angle)
            across = y * math.cos(angle) - x * math.sin(angle)
            total += torch.exp(-(width**2) * (along**2 + across**2 / slant**2) / 2)
    return total


@functools.lru_cache(maxsize=64)
def _averages(side: int, padded: int, step: int) -> Tensor:
    """Returns the weights of Gaussian averages, ``(averages, pixels)``; each row adds up to 1.

    Args:
        side: Pixels of the image.
        padded: Pixels with those that continue it.
        step: Pixels of the image between two that are averaged.
    """
    num = max(side // STRIDE, 1)
    centers = PAD - 0.5 + side * (torch.arange(num, dtype=torch.float64) + 0.5) / num
    pixels = step * torch.arange(padded // step, dtype=torch.float64)
    weights = torch.exp(-((pixels - centers[:, None]) ** 2) / 2 / WIDTH**2)
    return (weights / weights.sum(1, keepdim=True)).float()


@functools.lru_cache(maxsize=32)
def _cosines(num: int, low: int) -> Tensor:
    """Returns the lowest rows of the orthonormal cosine transform of so many numbers.

    >>> _cosines(4, 2)[0]
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    places = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    rows = torch.cos(math.pi * torch.arange(low, dtype=torch.float64)[:, None] * places)
    rows *= math.sqrt(2 / num)
    rows[0] /= math.sqrt(2)
    return rows.float()


def _digest(image: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(image.data, digest_size=16).digest()


def _batches(keys: Iterable[bytes]) -> Iterator[dict[int, bytes]]:
    """Yields batches of images by their places, which follow from their digests.

    >>> list(_batches([b"b", b"c", b"r"]))  # 98, 99 and 114, so b and r have the same place
    [{2: b'b', 3: b'c'}, {2: b'r'}]
    """
    queues: list[list[bytes]] = [[] for _ in range(PLACES)]
    for key in keys:
        queues[key[0] % PLACES].append(key)
    for turn in range(max(map(len, queues))):
        yield {place: queue[turn] for place, queue in enumerate(queues) if turn < len(queue)}


class Cache:
    """Keeps the tensors that were used last, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._kept: OrderedDict[object, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object) -> Tensor | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: object, features: Tensor) -> None:
        with self._lock:
            before = self._kept.pop(key, None)
            self._bytes += features.nbytes - (0 if before is None else before.nbytes)
            self._kept[key] = features
            while self._bytes > self._most and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.nbytes


_cache = Cache(CACHE_BYTES)
