"""Scales: the same experiments at the paper's size, on two cores, and in seconds.

A scale is a preset and what it puts over the settings of an experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feddm.analysis.studies import Cell
from feddm.config.resolve import flat, qualified, resolve
from feddm.config.schema import Config
from feddm.errors import ConfigError
from feddm.paper.experiments import Experiment, PaperRun


@dataclass(frozen=True)
class Machine:
    """What a scale is meant for; its speeds are rough, and only for estimates.

    Args:
        name: In words.
        flops: Operations a second, of one core or of the whole, that a small model reaches.
        large_flops: And a large one.
        workers: How many clients are computed at once.
    """

    name: str
    flops: float
    large_flops: float
    workers: int


TWO_CORES = Machine("two cores", 25e9, 55e9, 2)
GPU = Machine("a GPU", 1e12, 4e12, 1)


@dataclass(frozen=True)
class Scale:
    """How large the experiments are.

    Args:
        name: Its name on the command line.
        about: What it is for.
        preset: The preset under all settings.
        seeds: Default number of seeds.
        machine: What it is meant for.
        settings: Values over those of an experiment; those that do nothing there are left out.
        models: More of them, for a model.
        algorithms: More of them, for an algorithm.
        options: Values that change no result, under those of the command line.
        cost: Values for what is counted without training.
        splits: Partitions whose message sizes are counted.
    """

    name: str
    about: str
    preset: str
    seeds: int
    machine: Machine
    settings: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    algorithms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    splits: int = 20


_TINY = {
    "data.name": "digits",  # stands in for all: no files are needed
    "partition.clients": 5,
    "partition.min_examples": 5,
}
_LIST = (
    Scale(
        "smoke",
        "shows that everything works, and nothing else",
        "quick",
        1,
        TWO_CORES,
        settings={
            **_TINY,
            "rounds": 2,
            "model.width": 4,
            "model.depth": 2,
            "synthesis.steps": 2,
            "synthesis.networks": 2,
            "min_class_size": 5,
            "server.epochs": 2,
            "local.epochs": 1,
            "local.batch_size": 64,
            "privacy.steps": 2,
        },
        models={
            "resnet18": {
                "rounds": 1,
                "partition.clients": 20,
                "participation": 0.05,
                "images_per_class": 1,
                "server.epochs": 1,
            }
        },
        options={"workers": 1},  # to start a process takes longer than the work
        cost=_TINY,
        splits=3,
    ),
    Scale(
        "small",
        "a study that says something, in hours",
        "quick",
        2,
        TWO_CORES,
        settings={
            "rounds": 5,
            "model.width": 32,
            "local.lr": 0.03,
            "local.batch_size": 64,
            "privacy.steps": 40,  # two epochs, as without noise
        },
        # In one night: half of the rounds and a third of the steps.
        models={
            "resnet18": {
                "rounds": 2,
                "synthesis.steps": 30,
                "synthesis.networks": 4,
                "server.epochs": 20,
                "local.epochs": 1,
            }
        },
        # Without momentum it needs longer steps: docs/better.md.
        algorithms={"scaffold": {"local.lr": 0.1}},
    ),
    Scale("full", "the paper's", "paper", 3, GPU),
)
SCALES = {scale.name: scale for scale in _LIST}
FULL = SCALES["full"]
IGNORED = ("preset", "augmentation.", "runtime.")  # where a difference is none of size
# What all methods must have in common.
FIXED = ("data.", "partition.", "model.", "rounds", "participation", "privacy.", "seed")


def find(name: str) -> Scale:
    """Returns the scale of this name."""
    if name not in SCALES:
        raise ConfigError(f"--scale must be one of {', '.join(SCALES)}, got {name!r}")
    return SCALES[name]


Tuned = Mapping[str, Mapping[str, Any]]  # algorithm -> settings of a user, by dotted keys


def configuration(
    run: PaperRun, scale: Scale, seed: int = 0, tuned: Tuned | None = None, **options: Any
) -> Config:
    """Returns the configuration of a run at a scale.

    Args:
        run: What is run.
        scale: How large.
        seed: Its seed.
        tuned: Settings over those of the scale; those that do nothing here are left out.
        options: Of the command line, as workers and the folder of the data.
    """
    algorithm = run.settings["algorithm"]
    mechanism = run.settings.get("privacy.mechanism", "none")
    of_scale = {
        **scale.settings,
        **scale.models.get(run.settings.get("model.name", ""), {}),
        **scale.algorithms.get(algorithm, {}),
    }
    if mechanism == "none":
        of_scale = {k: v for k, v in of_scale.items() if not k.startswith("privacy.")}
    over = {**of_scale, **(tuned or {}).get(algorithm, {})}
    return resolve(
        preset=scale.preset,
        options={**scale.options, **options},
        settings={**run.settings, **over, "seed": seed},
        shared=True,
    )


def _short(key: str) -> str:
    return key.removeprefix("algorithm.")


def usual_seeds(experiment: Experiment, scale: Scale) -> int:
    """Returns the default number of seeds."""
    if experiment.kind == "cost":
        return scale.splits
    return scale.seeds if experiment.runs else 1


def cells(
    experiment: Experiment,
    scale: Scale,
    seeds: int,
    tuned: Tuned | None = None,
    **options: Any,
) -> list[Cell]:
    """Returns all that is run for an experiment, seed by seed."""
    return [
        Cell(run.name, seed, configuration(run, scale, seed, tuned, **options))
        for seed in range(seeds)
        for run in experiment.runs
    ]


def check_tuned(experiment: Experiment, scale: Scale, tuned: Tuned) -> None:
    """Raises `ConfigError` if a file changes what an experiment is about, or nothing at all."""
    # What only runs without privacy have may be set everywhere: private ones leave it out.
    known = {
        name: set(flat(resolve(options={"algorithm": name}).model_dump())) for name in tuned
    }
    for run in experiment.runs:
        plain, changed = (
            flat(configuration(run, scale, tuned=each).model_dump()) for each in (None, tuned)
        )
        own = {qualified(key) for key in run.settings}
        for key, value in changed.items():
            if value != plain.get(key) and (key in own or key.startswith(FIXED)):
                raise ConfigError(
                    f"--with cannot set {_short(key)} of {run.settings['algorithm']}: "
                    f"{experiment.name} has {plain.get(key, 'none')}"
                )
        known.setdefault(run.settings["algorithm"], set()).update(changed)
    for algorithm, settings in tuned.items():
        for key in settings:
            if qualified(key) not in known[algorithm]:
                raise ConfigError(f"--with sets {key}, which {algorithm} does not have")


def scaled_down(
    experiment: Experiment, scale: Scale, seeds: int, tuned: Tuned | None = None
) -> list[str]:
    """Returns where a scale, and what a user tuned, differ from the paper, by setting."""
    if not experiment.runs:
        return []
    pairs: dict[str, dict[str, None]] = {}
    for run in experiment.runs:
        full = flat(configuration(run, FULL).model_dump())
        here = flat(configuration(run, scale, tuned=tuned).model_dump())
        for key, value in full.items():
            if value != here[key] and not key.startswith(IGNORED):
                pairs.setdefault(_short(key), {})[f"{value} -> {here[key]}"] = None
    changes = [f"{key} {', '.join(values)}" for key, values in pairs.items()]
    return [*changes, *([f"seeds {FULL.seeds} -> {seeds}"] if seeds != FULL.seeds else [])]
