"""``feddm message-size``."""

from __future__ import annotations

import dataclasses
import functools
import json as json_
import math
from typing import TYPE_CHECKING, Annotated

import typer

from feddm.cli import options
from feddm.config import Config, PartitionConfig

if TYPE_CHECKING:
    from feddm.messages import ImageSize

EXAMPLES = """\
Examples:

- `feddm message-size --dataset cifar10`

- `feddm message-size --clients 50 --alpha 0.5 --ipc 3 --dataset cifar10`

- `feddm message-size --dataset cifar10 --set synthesis.coding=uint8`"""


@options.configured(without={"algorithm", "rounds", "participation", "seed", "workers"})
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
    asked = given.resolved()
    chosen = given.options.get("alpha") or "partition.alpha" in given.settings
    if chosen or not asked.partition.scheme.startswith("dirichlet"):
        configs = [asked]
    else:
        configs = [given.resolved(alpha=alpha) for alpha in (0.5, 0.1, 0.01)]
    from feddm.build import build_dataset, build_model, build_shards
    from feddm.messages import PAPER, PAPER_BASELINE, model_sizes, synthetic_size
    from feddm.models import num_params
    from feddm.seeding import generator

    first = configs[0]
    data = build_dataset(first.data)
    info, clients = data.info, first.partition.clients
    model = build_model(first.model, info.shape, len(info.classes))
    as_paper = clients == 10 and first.model == given.with_preset("paper").resolved().model
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
            paper=PAPER.get(info.name, {}).get(config.partition.alpha) if as_paper else None,
        )
        for config in configs
    ]
    rows += model_sizes(
        num_params(model.init(generator(0, "size"))),
        clients,
        PAPER_BASELINE.get(info.name) if as_paper else None,
    )
    if json:
        print(json_.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    print(f"What {clients} clients upload in a round of {info.name}, {splits} splits")
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
        holds=config.synthesis.formation**2,
    )


def _split(config: PartitionConfig) -> str:
    if config.scheme.startswith("dirichlet"):
        return f"{config.scheme} {config.alpha:g}"
    return config.scheme
