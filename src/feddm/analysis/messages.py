"""Message sizes without training: what each algorithm would send, in numbers and bytes.

The paper's table counts what all clients upload in one round. Baselines send weights, so their
figure is exact, with privacy too; that of FedDM depends on how many (client, class) pairs the
split makes and, if clients go by noisy sizes of their classes, on the noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feddm.data.partition import Labels, Shards, class_table


@dataclass(frozen=True)
class MessageSize:
    """What all clients upload in a round.

    Args:
        what: Who sends it.
        floats: Numbers that are no labels, on average over splits; floats, as the paper counts
            them, unless they travel in a shorter form.
        num_bytes: Bytes with labels, on average.
        std: Standard deviation over splits and noise; 0 if it depends on neither.
        paper: What the paper says, if it says something about this.
        before_packing: Whether less is sent, because images are packed on the way.
    """

    what: str
    floats: float
    num_bytes: float
    std: float = 0.0
    paper: int | None = None
    before_packing: bool = False


@dataclass(frozen=True)
class ImageSize:
    """What one image of an upload takes.

    Args:
        floats: Numbers of the image, and its weight if it has one.
        num_bytes: Bytes of the same, and of its label.
        holds: Real images that it needs to begin with; 0 if it begins with noise.
    """

    floats: int
    num_bytes: int
    holds: int = 1

    def numbers(self, sizes: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
        """Returns how many there are for classes of such sizes, at most so many of each."""
        if not self.holds:
            return np.full_like(sizes, most)
        return np.minimum(sizes // self.holds, most)


def synthetic_size(
    what: str,
    labels: Labels,
    split: Callable[[int], Shards],
    seeds: Iterable[int],
    *,
    num_classes: int,
    images_per_class: int,
    min_class_size: int,
    image: ImageSize,
    class_noise: float = 0.0,
    client_bytes: int = 0,
    paper: int | None = None,
    packed: bool = False,
) -> MessageSize:
    """Returns what the clients of FedDM or REAL upload.

    Args:
        what: Its name; the mean number of (client, class) pairs is added.
        labels: Of the training set.
        split: Splits it, for a seed.
        seeds: Seeds of the splits.
        num_classes: Number of classes.
        images_per_class: Images that a client sends of a class, or as many as it has.
        min_class_size: A class with fewer real images is left out.
        image: What one of them takes.
        class_noise: Deviation of the noise on the size of a class, by which clients go.
        client_bytes: What a client sends once, whatever the number of its images.
        paper: What the paper says.
        packed: Whether images are packed on the way.
    """
    images, variances, pairs, clients = [], [], [], 0
    for seed in seeds:
        table = class_table(labels, split(seed), num_classes)
        sent = chances(table, min_class_size, class_noise)
        numbers = image.numbers(table, images_per_class)
        images.append(float((sent * numbers).sum()))
        variances.append(float((sent * (1 - sent) * numbers**2).sum()))
        pairs.append(float(sent.sum()))
        clients = len(table)
    mean = statistics.fmean(images)
    between = statistics.variance(images) if len(images) > 1 else 0.0
    return MessageSize(
        f"{what}, {statistics.fmean(pairs):.1f} pairs",
        floats=mean * image.floats,
        num_bytes=mean * image.num_bytes + clients * client_bytes,
        std=math.sqrt(between + statistics.fmean(variances)) * image.floats,
        paper=paper,
        before_packing=packed,
    )


def chances(sizes: npt.NDArray[np.int64], least: int, noise: float) -> npt.NDArray[np.float64]:
    """Returns how likely it is that a size and Gaussian noise are at least so much.

    >>> chances(np.array([[9, 10]]), 10, 0.0)
    array([[0., 1.]])
    >>> chances(np.array([[0, 10]]), 10, 10.0).round(4)  # one deviation too few, and none
    array([[0.1587, 0.5   ]])
    """
    if not noise:
        return (sizes >= least).astype(np.float64)
    normal = statistics.NormalDist()
    return np.array([[normal.cdf((size - least) / noise) for size in row] for row in sizes])


def sums_size(clients: int, networks: int, num_classes: int, features: int) -> MessageSize:
    """Returns what clients upload from which the server learns images: sums, and no more.

    Args:
        clients: Number of clients.
        networks: Networks that look at the examples.
        num_classes: Number of classes, each with a sum of its own.
        features: Numbers of an embedding.
    """
    # Of each class the embedding, the logits and a count.
    floats = clients * networks * num_classes * (features + num_classes + 1)
    return MessageSize("FedDM (noisy sums)", floats, 4 * floats)


def model_sizes(num_params: int, clients: int, paper: int | None = None) -> list[MessageSize]:
    """Returns what the clients of the baselines upload, whose messages are models."""
    weights = num_params * clients
    return [
        # And how many examples a client has, as a 64-bit number.
        MessageSize("FedAvg, FedProx", weights, 4 * weights + 8 * clients, paper=paper),
        MessageSize(
            "FedNova (and a coefficient)", weights + clients, 4 * weights + 12 * clients
        ),
        MessageSize("SCAFFOLD (and a variate)", 2 * weights, 8 * weights),
    ]
