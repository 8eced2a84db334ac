"""Message sizes without training: what each algorithm would send, in floats.

The paper's table counts what all clients upload in one round. Baselines send weights, so their
figure is exact; that of FedDM depends on how many (client, class) pairs the split makes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from feddm.data.partition import Labels, Shards, class_table

# What the paper's table of message sizes says: data set -> alpha -> floats of FedDM.
PAPER = {
    "mnist": {0.5: 635_040, 0.1: 368_480, 0.01: 109_760},
    "cifar10": {0.5: 2_672_640, 0.1: 1_351_680, 0.01: 460_800},
    "cifar100": {0.5: 10_045_440, 0.1: 4_761_600, 0.01: 2_135_040},
}
PAPER_BASELINE = {"mnist": 3_177_060, "cifar10": 3_200_100, "cifar100": 5_044_200}


@dataclass(frozen=True)
class SyntheticSize:
    """How many floats FedDM uploads in a round, over splits by different seeds."""

    floats: float
    std: float
    pairs: float
    seeds: int


def synthetic_size(
    labels: Labels,
    split: Callable[[int], Shards],
    seeds: Iterable[int],
    *,
    num_classes: int,
    images_per_class: int,
    min_class_size: int,
    shape: tuple[int, int, int],
) -> SyntheticSize:
    """Returns mean and standard deviation of what all clients upload.

    Args:
        labels: Of the training set.
        split: Splits it, for a seed.
        seeds: Seeds of the splits.
        num_classes: Number of classes.
        images_per_class: Images that a client sends of a class, or as many as it has.
        min_class_size: A class with fewer real images is left out.
        shape: Of an image.
    """
    images, pairs = [], []
    for seed in seeds:
        table = class_table(labels, split(seed), num_classes)
        kept = table[table >= min_class_size]
        images.append(int(np.minimum(kept, images_per_class).sum()))
        pairs.append(len(kept))
    size = math.prod(shape)
    std = statistics.stdev(images) if len(images) > 1 else 0.0
    return SyntheticSize(
        statistics.fmean(images) * size, std * size, statistics.fmean(pairs), len(images)
    )
