"""What a run is good for afterwards: its model on other data, its set for another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from feddm.config.schema import Config, DataConfig, ModelConfig, OwnDataConfig
from feddm.core.examples import Examples
from feddm.core.metrics import Evaluation, evaluate
from feddm.core.seeding import generator
from feddm.core.training import SGD, train
from feddm.data.catalog import described
from feddm.data.own import read_examples
from feddm.data.sources import absolute, read_source
from feddm.errors import RunDirectoryError
from feddm.runtime.build import build_dataset, build_model
from feddm.runtime.client import threads
from feddm.runtime.model_file import TrainedModel
from feddm.runtime.run import RunResult


def examples_at(path: str, config: Config) -> Examples:
    """Returns the examples at a path, as a run with this configuration would take them."""
    info = described(config.data)
    own = OwnDataConfig.model_validate(
        {
            **config.data.own.model_dump(),
            "classes": list(info.classes),
            "shape": list(info.shape),
            "values": "pixels" if info.scale == 255.0 else "numbers",
            "mean": list(info.mean),
            "std": list(info.std),
        }
    )
    name = config.data.name if config.data.own.classes else f"own-{config.data.name}"
    place = absolute(path)
    data = DataConfig(name=name, path=place, own=own)
    return read_examples(read_source(place, own), data)


def evaluated(run: RunResult, path: str) -> tuple[Evaluation, int]:
    """Returns how well the model of a run does on data of your own, and how many they are."""
    data = examples_at(path, run.config)
    return evaluate(run.model.model, run.model.params, data), len(data)


def trained_on(
    run: RunResult, model: ModelConfig, sgd: SGD, seed: int, tick: Callable[[float], None]
) -> TrainedModel:
    """Returns another model, trained on the synthetic set of a run alone.

    Args:
        run: The run.
        model: The model.
        sgd: How it is trained.
        seed: Decides its first weights and the order of the images.
        tick: Told how far training is.
    """
    if run.synthetic is None:
        raise RunDirectoryError(
            f"{run.directory} has no synthetic set: {run.config.algorithm.name} makes none"
        )
    old = run.model
    made = build_model(model, old.model.shape, len(old.classes))
    params = made.init(generator(seed, "train-on"))
    rng = generator(seed, "train-on", 1)
    with threads(1):  # as a client does: the same bits on every machine of a kind
        after = train(made, params, run.synthetic.examples, sgd, rng, tick=tick)
    return TrainedModel(model, made, after.params, old.classes, old.normalization)


def tested(run: RunResult, trained: TrainedModel, path: str | None) -> tuple[Evaluation, int]:
    """Returns how well a model does on the run's test set, or on data at a path."""
    data = (
        build_dataset(run.config.data).test if path is None else examples_at(path, run.config)
    )
    return evaluate(trained.model, trained.params, data), len(data)


def write_model(trained: TrainedModel, out: Path) -> None:
    """Writes a model as a run does."""
    try:
        out.write_bytes(trained.to_bytes())
    except OSError as error:
        raise RunDirectoryError(f"cannot write {out}: {error.strerror}") from error
