"""``feddm message-size``."""

from __future__ import annotations

import dataclasses
import functools
import json as json_
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from feddm.cli import options
from feddm.config import Config, ModelConfig, PartitionConfig, resolve
from feddm.data.catalog import describe

if TYPE_CHECKING:
    from feddm.messages import ImageSize

EXAMPLES = """\
Examples:

- `feddm message-size --dataset cifar10`

- `feddm message-size --clients 50 --alpha 0.5 --ipc 3 --dataset cifar10`

- `feddm message-size --dataset cifar10 --set synthesis.coding=uint8`"""

# Settings that decide the figures of the paper's table: those of models, and those of images.
MODEL_KEYS = {"partition": ["clients"], "model": ModelConfig.model_fields}
IMAGES_KEYS = {
    "data": ["validation"],
    "partition": ["clients", "scheme", "min_examples"],
    "synthesis": ["images_per_class", "min_class_size", "formation", "start", "coding"],
    "server": ["weighting"],
}


@options.configured(
    without={"algorithm", "rounds", "participation", "seed", "workers", *options.PRIVACY}
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
    given = given.with_preset(given.preset or "paper")
    asked = given.resolved(algorithm="feddm")
    chosen = given.options.get("alpha") or "partition.alpha" in given.settings
    if chosen or not asked.partition.scheme.startswith("dirichlet"):
        configs = [asked]
    else:
        configs = [given.resolved(algorithm="feddm", alpha=alpha) for alpha in (0.5, 0.1, 0.01)]
    from feddm.build import build_dataset, build_model, build_shards, check_formation
    from feddm.coding import Coding
    from feddm.messages import PAPER, PAPER_BASELINE, model_sizes, synthetic_size
    from feddm.models import num_params
    from feddm.seeding import generator

    first = configs[0]
    check_formation(first.synthesis, describe(first.data.name).shape)
    data = build_dataset(first.data)
    info, clients = data.info, first.partition.clients
    model = build_model(first.model, info.shape, len(info.classes))
    coding = Coding(first.synthesis.coding)
    rows = [
        synthetic_size(
            f"FedDM, {_split(config.partition)}",
            data.train.y.numpy(),
            functools.partial(build_shards, config.partition, data),
            range(splits),
            num_classes=len(info.classes),
            images_per_class=config.synthesis.images_per_class,
            min_class_size=config.synthesis.min_class_size,
            image=_image_size(config, info.shape, len(info.classes)),
            client_bytes=coding.range_bytes(info.shape[0]),
            paper=PAPER.get(info.name, {}).get(config.partition.alpha)
            if _is_papers(config, IMAGES_KEYS)
            else None,
        )
        for config in configs
    ]
    rows += model_sizes(
        num_params(model.init(generator(0, "size"))),
        clients,
        PAPER_BASELINE.get(info.name) if _is_papers(first, MODEL_KEYS) else None,
    )
    if json:
        print(json_.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    before = ", before packing" if first.synthesis.packed else ""
    print(f"What {clients} clients upload in a round of {info.name}, {splits} splits{before}")
    print(f"{'':<38}{'floats':>11} {'std':>8} {'paper':>11} {'MB':>7}")
    for row in rows:
        paper = f"{row.paper:,}" if row.paper else "-"
        spread = f"{row.std:,.0f}" if row.std else "exact"
        megabytes = f"{row.num_bytes / 1e6:.2f}"
        print(f"{row.what:<38}{row.floats:>11,.0f} {spread:>8} {paper:>11} {megabytes:>7}")


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
