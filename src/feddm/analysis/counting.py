"""A configuration -> what its clients upload in a round, counted before anything runs."""

from __future__ import annotations

import functools
import math

from feddm.algorithms.gradient_feddm import COUNT_MULTIPLIER
from feddm.algorithms.union import label_dtype
from feddm.analysis.messages import (
    ImageSize,
    MessageSize,
    model_sizes,
    sums_size,
    synthetic_size,
)
from feddm.config.schema import Config, PartitionConfig
from feddm.core.coding import Coding
from feddm.core.models import Model, num_features, num_params
from feddm.core.seeding import generator
from feddm.data.datasets import Dataset
from feddm.errors import ConfigError
from feddm.privacy.accounting import noise_multiplier
from feddm.privacy.features import Bound
from feddm.runtime.build import build_model, build_shards


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
        packed=synthesis.packed,
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
        holds=0 if config.synthesis.start == "noise" else config.synthesis.formation**2,
    )


def _split(config: PartitionConfig) -> str:
    if config.scheme.startswith("dirichlet"):
        return f"{config.scheme} {config.alpha:g}"
    return config.scheme
