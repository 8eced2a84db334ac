"""How long an experiment takes: roughly, from counted operations and assumed speeds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feddm.analysis.studies import Cell
from feddm.config.schema import Config, ModelConfig, PartitionConfig
from feddm.core.flops import forward_flops
from feddm.core.models import Model
from feddm.core.seeding import numpy_generator
from feddm.data.catalog import describe
from feddm.data.partition import class_table, dirichlet
from feddm.paper.experiments import EXPERIMENTS, Experiment
from feddm.paper.scales import SCALES, TWO_CORES, Machine, Scale, cells, usual_seeds
from feddm.runtime.build import build_model, work_of

LARGE = 50e6  # operations of an image's forward pass from which on a model is large
BEGINNING = 1.0  # seconds of a run before its first round
PER_EXAMPLE = 2.0  # how much longer gradients take that are clipped one by one


def seconds(runs: Sequence[Cell], machine: Machine) -> float:
    """Returns about how long runs take on a machine; those with privacy use its processor."""
    return sum(
        _seconds(cell.config, TWO_CORES if cell.config.privacy is not None else machine)
        for cell in runs
    )


def _seconds(config: Config, machine: Machine) -> float:
    model = _model(config.model, config.data.name)
    flops = _flops(config.model, config.data.name)
    speed = machine.large_flops if flops > LARGE else machine.flops
    work = work_of(config, model, _table(config.partition, config.data.name))
    clients = work.clients.weight / machine.workers
    if config.mechanism == "gradients":
        clients *= PER_EXAMPLE
    evaluated = describe(config.data.name).num_test
    images = clients + work.server.weight + evaluated
    return BEGINNING + config.rounds * images * flops / speed


def _model(config: ModelConfig, dataset: str) -> Model:
    info = describe(dataset)
    return build_model(config, info.shape, len(info.classes))


@functools.cache
def _flops(config: ModelConfig, dataset: str) -> int:
    return forward_flops(_model(config, dataset))


@functools.cache
def _table(partition: PartitionConfig, dataset: str) -> npt.NDArray[np.int64]:
    """Returns an estimate of the class table, from made-up labels instead of the data."""
    info = describe(dataset)
    num_classes = len(info.classes)
    labels: npt.NDArray[Any] = np.arange(info.num_train) % num_classes
    shards = dirichlet(
        labels,
        partition.clients,
        partition.alpha,
        partition.min_examples,
        numpy_generator(0, "partition"),
    )
    return class_table(labels, shards, num_classes)


def listed() -> list[dict[str, Any]]:
    """Returns all experiments, and how long each takes at each scale."""
    return [
        {
            "name": experiment.name,
            "shows": experiment.shows,
            "place": experiment.place,
            "estimates": {
                scale.name: _estimate(experiment, scale) for scale in SCALES.values()
            },
        }
        for experiment in EXPERIMENTS.values()
    ]


def _estimate(experiment: Experiment, scale: Scale) -> str:
    if not experiment.runs:
        return "seconds"
    runs = cells(experiment, scale, usual_seeds(experiment, scale))
    return duration(seconds(runs, scale.machine))


def duration(seconds: float) -> str:
    """Returns a rough duration.

    >>> [duration(s) for s in (0.2, 44, 200, 7000, 4e5, 4e6)]
    ['1 s', '44 s', '3 min', '1.9 h', '5 days', '46 days']
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.2g} h"
    return f"{seconds / 86400:.0f} days"
