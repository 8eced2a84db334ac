"""``feddm message-size``."""

from __future__ import annotations

import dataclasses
import json as json_
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from feddm.cli import options
from feddm.config.resolve import flat, resolve
from feddm.config.schema import Config, ModelConfig
from feddm.paper.published import BASELINE_MESSAGES, MESSAGES

if TYPE_CHECKING:
    from feddm.analysis.costs import MessageSize

EXAMPLES = """\
Examples:

- `feddm message-size --dataset cifar10`

- `feddm message-size --clients 50 --alpha 0.5 --ipc 3 --dataset cifar10`

- `feddm message-size --dataset cifar10 --set coding=uint8`

- `feddm message-size --dataset mnist --epsilon 4`"""

# Settings that decide the figures of the paper's table: those of models, and those of images.
MODEL_KEYS = ("partition.clients", *(f"model.{key}" for key in ModelConfig.model_fields))
IMAGES_KEYS = (
    "data.validation",
    "partition.clients",
    "partition.scheme",
    "partition.min_examples",
    "algorithm.images_per_class",
    "algorithm.min_class_size",
    "algorithm.coding",
    "algorithm.synthesis.start",
    "algorithm.server.weighting",
)


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
    the three of the paper; without --preset and a file, for the preset `paper`.
    """
    given.refuse("algorithm.name", "FedDM and the baselines are all shown")
    if given.file is None and given.preset is None:
        given = given.with_preset("paper")
    configs = _configs(given)
    from feddm.analysis.costs import baseline_sizes, feddm_size
    from feddm.runtime.build import build_dataset

    first = configs[0]
    data = build_dataset(first.data)
    rows = [feddm_size(config, data, splits, _papers_images(config)) for config in configs]
    rows += baseline_sizes(first, data, _papers_models(first))
    if json:
        print(json_.dumps([_as_json(row) for row in rows], indent=2))
    else:
        _show(first, splits, rows)


def _configs(given: options.Given) -> list[Config]:
    """Returns one configuration for each line about FedDM."""
    asked = given.resolved(algorithm="feddm")
    chosen = "partition.alpha" in given.keys() | set(flat(given.file or {}))
    drawn = asked.partition.scheme.startswith("dirichlet")
    if chosen or not drawn or (asked.privacy is not None and asked.privacy.sends_sums):
        return [asked]
    return [given.resolved(algorithm="feddm", alpha=alpha) for alpha in (0.5, 0.1, 0.01)]


def _show(config: Config, splits: int, rows: Sequence[MessageSize]) -> None:
    clients, mechanism = config.partition.clients, config.mechanism
    private = f", --privacy {mechanism}" if config.privacy is not None else ""
    print(
        f"What {clients} clients upload in a round of {config.data.name}, {splits} splits"
        f"{private}"
    )
    print(f"{'':<38}{'floats':>11} {'std':>8} {'paper':>11} {'MB':>7}")
    for row in rows:
        paper = f"{row.paper:,}" if row.paper else "-"
        spread = f"{row.std:,.0f}" if row.std else "exact"
        # How well a codec packs an image is not known before it is made.
        megabytes = "?" if math.isnan(row.num_bytes) else f"{row.num_bytes / 1e6:.2f}"
        print(f"{row.what:<38}{row.floats:>11,.0f} {spread:>8} {paper:>11} {megabytes:>7}")


def _as_json(row: MessageSize) -> dict[str, object]:
    values = dataclasses.asdict(row)
    return values | ({"num_bytes": None} if math.isnan(row.num_bytes) else {})


def _papers_images(config: Config) -> int | None:
    """Returns what the paper says about FedDM with these settings, if it does."""
    paper = MESSAGES.get(config.data.name, {}).get(config.partition.alpha)
    return paper if _is_papers(config, IMAGES_KEYS) else None


def _papers_models(config: Config) -> int | None:
    """Returns what the paper says about the baselines with these settings, if it does."""
    paper = BASELINE_MESSAGES.get(config.data.name)
    return paper if _is_papers(config, MODEL_KEYS) else None


def _is_papers(config: Config, keys: Sequence[str]) -> bool:
    """Whether these settings are those that the paper's figures are about."""
    paper = flat(resolve(preset="paper", options={"dataset": config.data.name}).model_dump())
    ours = flat(config.model_dump())
    return all(ours.get(key) == paper[key] for key in keys)
