"""What a configuration costs, before anything runs: message sizes in numbers and bytes.

Baselines upload weights, so their size is exact, with privacy too. FedDM's depends on how many
(client, class) pairs the split makes and, if clients go by noisy class sizes, on the noise.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feddm.algorithms.feddm import label_dtype
from feddm.algorithms.gradient_feddm import COUNT_MULTIPLIER
from feddm.config.schema import Config, PartitionConfig
from feddm.core.coding import Coding
from feddm.core.models import Model, num_features, num_params
from feddm.core.seeding import generator
from feddm.data.datasets import Dataset
from feddm.data.partition import Labels, Shards, class_table
from feddm.errors import ConfigError
from feddm.privacy.accounting import noise_multiplier
from feddm.privacy.features import Bound
from feddm.runtime.build import build_model, build_shards


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
    """

    what: str
    floats: float
    num_bytes: float
    std: float = 0.0
    paper: int | None = None


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


def feddm_size(
    config: Config, data: Dataset, splits: int, paper: int | None = None
) -> MessageSize:
    """Returns what the clients of FedDM upload, over the splits of so many seeds.

    Args:
        config: What would be run.
        data: What is split.
        splits: How many seeds.
        paper: What the paper says.
    """
    info, synthesis = data.info, config.synthesis
    num_classes = len(info.classes)
    if config.privacy.sends_sums:
        features = config.privacy.projection or num_features(_model(config, data))
        networks = int(synthesis.networks)
        return sums_size(config.partition.clients, networks, num_classes, features)
    return synthetic_size(
        f"FedDM, {_split(config.partition)}",
        data.train.y.numpy(),
        functools.partial(build_shards, config.partition, data),
        range(splits),
        num_classes=num_classes,
        images_per_class=synthesis.images_per_class,
        min_class_size=synthesis.min_class_size,
        image=_image_size(config, info.shape, num_classes),
        class_noise=_class_noise(config),
        client_bytes=Coding(synthesis.coding).range_bytes(info.shape[0]),
        paper=paper,
    )


def baseline_sizes(
    config: Config, data: Dataset, paper: int | None = None
) -> list[MessageSize]:
    """Returns what the clients of the baselines upload, with what the paper says."""
    weights = num_params(_model(config, data).init(generator(0, "size")))
    return model_sizes(weights, config.partition.clients, paper)


def _model(config: Config, data: Dataset) -> Model:
    return build_model(config.model, data.info.shape, len(data.info.classes))


def _class_noise(config: Config) -> float:
    """Returns the deviation of the noise on the size of a class, in examples."""
    privacy = config.privacy
    if not privacy.guaranteed:
        return 0.0
    if privacy.unit != "example":
        raise ConfigError(
            f"with privacy.unit = {privacy.unit} it depends on the examples which classes a "
            "client sends; sizes are known for the unit example, and for privacy.learn = server"
        )
    if privacy.mechanism == "gradients":
        return COUNT_MULTIPLIER
    networks = int(config.synthesis.networks)
    multiplier = privacy.noise_multiplier or noise_multiplier(
        privacy.epsilon, privacy.delta, times=config.rounds * networks
    )
    # An example adds this share of the bound to the entry that counts; networks are averaged.
    return multiplier / Bound(1.0).count / math.sqrt(networks)


def _image_size(config: Config, shape: tuple[int, int, int], num_classes: int) -> ImageSize:
    weight = config.server.weighting == "examples"
    pixels = Coding(config.synthesis.coding).image_bytes(shape)
    return ImageSize(
        floats=math.prod(shape) + weight,
        num_bytes=pixels + 4 * weight + label_dtype(num_classes).itemsize,
        holds=0 if config.synthesis.start == "noise" else 1,
    )


def _split(config: PartitionConfig) -> str:
    if config.scheme.startswith("dirichlet"):
        return f"{config.scheme} {config.alpha:g}"
    return config.scheme
