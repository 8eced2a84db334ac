"""Table 3: the upload of all clients in a round, counted from the partition and the model."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from feddm.analysis.costs import MessageSize, baseline_sizes, feddm_size
from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.paper import published
from feddm.paper.experiments import TITLES
from feddm.paper.scales import Scale
from feddm.runtime.build import build_dataset


class Count(NamedTuple):
    """One row: the data set and partition, and the size of the upload."""

    setting: str
    size: MessageSize


def counts(scale: Scale, splits: int, **options: Any) -> list[Count]:
    """Returns the rows of the table, and of the numbers in the text around it.

    Args:
        scale: Scale, which chooses the data.
        splits: Number of partitions (seeds) to average over.
        options: Command-line options, such as the data directory.
    """
    data = functools.cache(build_dataset)

    def configured(dataset: str, **settings: Any) -> Config:
        keys = {key.replace("__", "."): value for key, value in settings.items()}
        values = {"data.name": dataset, **keys, **scale.cost}
        return resolve(preset="paper", options=options, settings=values)

    def count(dataset: str, paper: int, alpha: float, **settings: Any) -> Count:
        config = configured(dataset, partition__alpha=alpha, **settings)
        clients = settings.get("partition__clients", 10)
        size = feddm_size(config, data(config.data), splits, paper)
        return Count(f"{TITLES[dataset]}, Dir{clients}({alpha:g})", size)

    def baselines(dataset: str, paper: int, about: str = "", **settings: Any) -> list[Count]:
        config = configured(dataset, **settings)
        return [
            Count(TITLES[dataset] + about, size)
            for size in baseline_sizes(config, data(config.data), paper)
        ]

    rows: list[Count] = []
    for dataset, by_alpha in published.MESSAGES.items():
        rows += [count(dataset, paper, alpha) for alpha, paper in by_alpha.items()]
        rows += baselines(dataset, published.BASELINE_MESSAGES[dataset])
    images, weights = published.FIFTY_CLIENTS_MESSAGES
    fifty = {"partition__clients": 50}
    rows.append(count("cifar10", images, 0.5, **fifty, images_per_class=3))
    rows += baselines("cifar10", weights, ", Dir50(0.5)", **fifty)[:1]
    resnet = baselines(
        "cifar10", published.RESNET_MESSAGE, ", ResNet-18", model__name="resnet18"
    )
    return [*rows, *resnet[:1]]
