"""What a configuration costs before anything runs: message sizes in numbers and bytes.

The algorithm is asked how much its clients upload. Baselines upload weights, so their size is
exact, with privacy too. FedDM's depends on how many (client, class) pairs the split makes and,
if clients go by noisy class sizes, on the noise.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from feddm.algorithms.base import ConfiguredAlgorithm, Context
from feddm.algorithms.fedavg import FedAvg
from feddm.algorithms.fednova import FedNova
from feddm.algorithms.scaffold import Scaffold
from feddm.config.schema import Config, PartitionConfig
from feddm.core.models import Model
from feddm.data.datasets import Dataset
from feddm.data.partition import class_table
from feddm.runtime.build import build_algorithm, build_model, build_shards
from feddm.runtime.private_setup import with_noise

# Baselines with messages of the same size share a row.
_BASELINES: dict[str, type[ConfiguredAlgorithm]] = {
    "FedAvg, FedProx": FedAvg,
    "FedNova (and a coefficient)": FedNova,
    "SCAFFOLD (and a variate)": Scaffold,
}


@dataclass(frozen=True)
class MessageSize:
    """What all clients upload in a round.

    Args:
        what: Who sends it.
        floats: Numbers other than labels, averaged over splits; floats, as the paper counts
            them, unless they travel in a shorter form.
        num_bytes: Bytes with labels, averaged over splits.
        std: Standard deviation of `floats` over splits and noise; 0 if it depends on neither.
        paper: What the paper says, if it says something about this.
    """

    what: str
    floats: float
    num_bytes: float
    std: float = 0.0
    paper: int | None = None


def feddm_size(
    config: Config, data: Dataset, splits: int, paper: int | None = None
) -> MessageSize:
    """Returns what the clients of FedDM or REAL upload, over the splits of so many seeds.

    Args:
        config: What would be run.
        data: What is split.
        splits: Number of seeds.
        paper: What the paper says.
    """
    algorithm = build_algorithm(with_noise(config, []), _model(config, data))
    labels, num_classes = data.train.y.numpy(), len(data.info.classes)
    sizes = [
        algorithm.upload_size(
            class_table(labels, build_shards(config.partition, data, seed), num_classes)
        )
        for seed in range(splits)
    ]
    pairs = [size.pairs for size in sizes if size.pairs is not None]
    if not pairs:
        return MessageSize("FedDM (noisy sums)", sizes[0].floats, sizes[0].num_bytes)
    floats = [size.floats for size in sizes]
    between = statistics.variance(floats) if len(floats) > 1 else 0.0
    return MessageSize(
        f"FedDM, {_split(config.partition)}, {statistics.fmean(pairs):.1f} pairs",
        floats=statistics.fmean(floats),
        num_bytes=statistics.fmean(size.num_bytes for size in sizes),
        std=math.sqrt(between + statistics.fmean(size.variance for size in sizes)),
        paper=paper,
    )


def baseline_sizes(
    config: Config, data: Dataset, paper: int | None = None
) -> list[MessageSize]:
    """Returns what the clients of the baselines upload; the paper's figure is for FedAvg."""
    context = Context(_model(config, data))
    table = class_table(
        data.train.y.numpy(), build_shards(config.partition, data, 0), len(data.info.classes)
    )
    sizes = {
        what: kind.build(kind.Settings(), context).upload_size(table)
        for what, kind in _BASELINES.items()
    }
    return [
        MessageSize(what, size.floats, size.num_bytes, paper=paper if not number else None)
        for number, (what, size) in enumerate(sizes.items())
    ]


def _model(config: Config, data: Dataset) -> Model:
    return build_model(config.model, data.info.shape, len(data.info.classes))


def _split(config: PartitionConfig) -> str:
    if config.scheme.startswith("dirichlet"):
        return f"{config.scheme} {config.alpha:g}"
    return config.scheme
