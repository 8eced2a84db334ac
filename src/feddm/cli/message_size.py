"""``feddm message-size``."""

from __future__ import annotations

import dataclasses
import functools
import json as json_
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from feddm.cli import options
from feddm.config import Config, ModelConfig, PartitionConfig, resolve
from feddm.data.catalog import describe
from feddm.errors import ConfigError

if TYPE_CHECKING:
    from feddm.data.datasets import Dataset
    from feddm.messages import ImageSize, MessageSize
    from feddm.models import Model

EXAMPLES = """\
Examples:

- `feddm message-size --dataset cifar10`

- `feddm message-size --clients 50 --alpha 0.5 --ipc 3 --dataset cifar10`

- `feddm message-size --dataset cifar10 --set synthesis.coding=uint8`

- `feddm message-size --dataset mnist --epsilon 4`"""

# Settings that decide the figures of the paper's table: those of models, and those of images.
MODEL_KEYS = {"partition": ["clients"], "model": ModelConfig.model_fields}
IMAGES_KEYS = {
    "data": ["validation"],
    "partition": ["clients", "scheme", "min_examples"],
    "synthesis": ["images_per_class", "min_class_size", "formation", "start", "coding"],
    "server": ["weighting"],
}


@options.configured(
    without={"algorithm", "participation", "seed", "workers", "delta", "ledger"}
)
def message_size(
    given: options.Given,
    splits: Annotated[int, typer.Option(min=2, help="Seeds of the partition.")] = 20,
    json: options.Json = False,
) -> None:
    """Show what clients upload in a round, without training, beside the paper's figures.

    Baselines send weights, so theirs is exact. FedDM's depends on how many classes the clients
    have: mean and standard deviation over partitions by different seeds. Without --alpha, for
    the three of the paper; without --preset, for the preset `paper`.
    """
    configs = _configs(given.with_preset(given.preset or "paper"))
    from feddm.build import build_dataset, build_model, check_formation
    from feddm.messages import PAPER_BASELINE, model_sizes
    from feddm.models import num_params
    from feddm.seeding import generator

    first = configs[0]
    check_formation(first.synthesis, describe(first.data.name).shape)
    data = build_dataset(first.data)
    model = build_model(first.model, data.info.shape, len(data.info.classes))
    rows = [_feddm_size(config, data, model, splits) for config in configs]
    rows += model_sizes(
        num_params(model.init(generator(0, "size"))),
        first.partition.clients,
        PAPER_BASELINE.get(data.info.name) if _is_papers(first, MODEL_KEYS) else None,
    )
    if json:
        print(json_.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        _show(first, splits, rows)


def _configs(given: options.Given) -> list[Config]:
    """Returns one configuration for each line about FedDM."""
    asked = given.resolved(algorithm="feddm")
    chosen = given.options.get("alpha") or "partition.alpha" in given.settings
    drawn = asked.partition.scheme.startswith("dirichlet")
    if chosen or not drawn or _sends_sums(asked):
        return [asked]
    return [given.resolved(algorithm="feddm", alpha=alpha) for alpha in (0.5, 0.1, 0.01)]


def _sends_sums(config: Config) -> bool:
    return config.privacy.mechanism == "features" and config.privacy.learn == "server"


def _feddm_size(config: Config, data: Dataset, model: Model, splits: int) -> MessageSize:
    from feddm.build import build_shards, num_features
    from feddm.coding import Coding
    from feddm.messages import PAPER, sums_size, synthetic_size

    info, synthesis = data.info, config.synthesis
    num_classes = len(info.classes)
    if _sends_sums(config):
        features = config.privacy.projection or num_features(model)
        networks = int(synthesis.networks)
        return sums_size(config.partition.clients, networks, num_classes, features)
    paper = PAPER.get(info.name, {}).get(config.partition.alpha)
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
        paper=paper if _is_papers(config, IMAGES_KEYS) else None,
        packed=synthesis.packed,
    )


def _class_noise(config: Config) -> float:
    """Returns the deviation of the noise on the size of a class, in examples."""
    from feddm.algorithms.gradient_feddm import COUNT_MULTIPLIER
    from feddm.privacy.accounting import noise_multiplier
    from feddm.privacy.features import Bound

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
    from feddm.algorithms.union import label_dtype
    from feddm.coding import Coding
    from feddm.messages import ImageSize

    weight = config.server.weighting == "examples"
    pixels = Coding(config.synthesis.coding).image_bytes(shape)
    return ImageSize(
        floats=math.prod(shape) + weight,
        num_bytes=pixels + 4 * weight + label_dtype(num_classes).itemsize,
        holds=0 if config.synthesis.start == "noise" else config.synthesis.formation**2,
    )


def _show(config: Config, splits: int, rows: Sequence[MessageSize]) -> None:
    clients, mechanism = config.partition.clients, config.privacy.mechanism
    private = f", --privacy {mechanism}" if mechanism != "none" else ""
    before = ", before packing" if any(row.before_packing for row in rows) else ""
    print(
        f"What {clients} clients upload in a round of {config.data.name}, {splits} splits"
        f"{private}{before}"
    )
    print(f"{'':<38}{'floats':>11} {'std':>8} {'paper':>11} {'MB':>7}")
    for row in rows:
        paper = f"{row.paper:,}" if row.paper else "-"
        spread = f"{row.std:,.0f}" if row.std else "exact"
        megabytes = f"{row.num_bytes / 1e6:.2f}"
        print(f"{row.what:<38}{row.floats:>11,.0f} {spread:>8} {paper:>11} {megabytes:>7}")


def _is_papers(config: Config, keys: Mapping[str, Collection[str]]) -> bool:
    """Whether these settings are those that the paper's figures are about."""
    paper = resolve(preset="paper", options={"dataset": config.data.name})
    return all(
        getattr(getattr(config, section), key) == getattr(getattr(paper, section), key)
        for section, names in keys.items()
        for key in names
    )


def _split(config: PartitionConfig) -> str:
    if config.scheme.startswith("dirichlet"):
        return f"{config.scheme} {config.alpha:g}"
    return config.scheme
