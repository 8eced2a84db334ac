"""Whether synthetic images are recognisable copies of training images.

For each synthetic image we find the nearest training image and the nearest held-out image of
its class, and divide the first distance by the second. Nobody learned from held-out images, so
they show how near an unrelated image of the class comes: the ratio is about 1 for noise, and 0
for a copy. Distances are root mean squares over pixels and channels of normalized images.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddm.core.examples import Examples
from feddm.errors import DataError
from feddm.runtime.results import finite
from feddm.runtime.synthetic_file import SyntheticSet

# Copies are below. So are a few images that nobody copied: 6 of 180 held-out digits.
THRESHOLD = 0.5


@dataclass(frozen=True)
class Nearest:
    """The nearest image of the same class for each image.

    Args:
        index: Its index; -1 if there is no image of the class.
        distance: Its distance; nan if there is no image of the class.
    """

    index: Tensor
    distance: Tensor

    def subset(self, chosen: Tensor) -> Nearest:
        """Returns the neighbours of some of the images."""
        return Nearest(self.index[chosen], self.distance[chosen])


def nearest(images: Examples, real: Examples) -> Nearest:
    """Returns the nearest real image of the same class for each image.

    Args:
        images: Images to look for.
        real: Images to search, in the same units after normalization.

    >>> real = torch.tensor([-1.0, 3.0, 2.0]).view(3, 1, 1, 1)
    >>> images = Examples(torch.zeros(1, 1, 1, 1), torch.tensor([0]))
    >>> nearest(images, Examples(real, torch.tensor([1, 0, 0])))
    Nearest(index=tensor([2]), distance=tensor([2.]))
    """
    found = Nearest(torch.full((len(images),), -1), torch.full((len(images),), math.nan))
    for label in images.y.unique():
        here = (images.y == label).nonzero().flatten()
        members = (real.y == label).nonzero().flatten()
        if not len(members):
            continue
        ours, theirs = images[here].x.flatten(1), real[members].x.flatten(1)
        # Via matrix products it would be faster, but the distance of a copy would not be 0.
        mode = "donot_use_mm_for_euclid_dist"
        distance, place = torch.cdist(ours, theirs, compute_mode=mode).min(1)
        found.index[here] = members[place]
        found.distance[here] = distance / math.sqrt(ours.shape[1])
    return found


@dataclass(frozen=True)
class Leakage:
    """The neighbours of some synthetic images.

    Args:
        classes: Names of all classes.
        images: Index of each image in its synthetic set.
        labels: Class of each image.
        clients: Client of each image.
        train: Nearest training images.
        held_out: Nearest held-out images.
    """

    classes: tuple[str, ...]
    images: Tensor
    labels: Tensor
    clients: Tensor
    train: Nearest
    held_out: Nearest

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def ratios(self) -> Tensor:
        """Distance to the training image over distance to the held-out one.

        0 for a training image, even if it is also held out; nan if a neighbour is missing.
        """
        near, far = self.train.distance, self.held_out.distance
        return torch.where((near == 0) & (far == 0), 0.0, near / far)

    @property
    def copies(self) -> int:
        """Number of recognisable copies."""
        return int((self.ratios < THRESHOLD).sum())

    @property
    def median(self) -> float:
        """Median ratio."""
        return float(statistics.median(self.ratios.tolist()))

    def subset(self, chosen: Tensor) -> Leakage:
        """Returns the neighbours of some of the images."""
        return Leakage(
            self.classes,
            self.images[chosen],
            self.labels[chosen],
            self.clients[chosen],
            self.train.subset(chosen),
            self.held_out.subset(chosen),
        )

    def closest(self) -> Tensor:
        """Returns the indices of all images: lowest ratio first, then lowest distance."""
        by_distance = self.train.distance.argsort(stable=True)
        return by_distance[self.ratios[by_distance].argsort(stable=True)]

    def by_class(self) -> Iterator[tuple[str, Leakage]]:
        """Yields the name and the images of each class that has any."""
        for label in self.labels.unique().tolist():
            yield self.classes[label], self.subset((self.labels == label).nonzero().flatten())

    def to_json(self) -> dict[str, Any]:
        """Returns all figures; an infinite ratio (a held-out image) is null."""
        columns = {
            "image": self.images,
            "client": self.clients,
            "label": self.labels,
            "train_index": self.train.index,
            "train_distance": self.train.distance,
            "held_out_index": self.held_out.index,
            "held_out_distance": self.held_out.distance,
            "ratio": self.ratios,
        }
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        content: dict[str, Any] = finite(
            _counts(self)
            | {
                "threshold": THRESHOLD,
                "classes": [{"class": name} | _counts(part) for name, part in self.by_class()],
                "each": [dict(zip(columns, row, strict=True)) for row in rows],
            }
        )
        return content


def _counts(leakage: Leakage) -> dict[str, Any]:
    return {"images": len(leakage), "copies": leakage.copies, "median_ratio": leakage.median}


def measured(images: SyntheticSet, train: Examples, held_out: Examples) -> Leakage:
    """Returns how near synthetic images are to training images.

    Images are compared as one sees them: with pixels from 0 to 255. Those of classes without a
    training or held-out image are left out.

    Args:
        images: The synthetic images.
        train: What clients learned from, as pixels.
        held_out: What nobody learned from, as pixels.
    """
    seen = Examples(images.pixels(), images.examples.y, images.normalization)
    near, far = (
        nearest(seen, Examples(real.x, real.y, images.normalization))
        for real in (train, held_out)
    )
    index = torch.arange(len(images))
    all_ = Leakage(images.classes, index, images.examples.y, images.clients, near, far)
    known = ~all_.ratios.isnan()
    if not known.any():
        raise DataError("no class of the synthetic images has training and held-out images")
    return all_.subset(known.nonzero().flatten())


def verdict(copies: int, images: int) -> str:
    """Returns the result in one sentence.

    >>> verdict(83, 90)
    '83 of 90 images are recognisable copies of training images.'
    >>> verdict(0, 90)
    'None of 90 images is a recognisable copy of a training image.'
    """
    if copies > 1:
        return f"{copies} of {images} images are recognisable copies of training images."
    number = "1" if copies else "None"
    return f"{number} of {images} images is a recognisable copy of a training image."
