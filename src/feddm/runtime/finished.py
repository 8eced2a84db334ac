"""A run that is finished, read from its directory: nothing of it is run."""

from __future__ import annotations

from pathlib import Path

from feddm.config.code import is_reference, label
from feddm.errors import RunDirectoryError
from feddm.runtime.model_file import load_model
from feddm.runtime.run import RunResult
from feddm.runtime.rundir import RunDirectory
from feddm.runtime.synthetic_file import load_synthetic

MODEL, SYNTHETIC = "model.safetensors", "synthetic.safetensors"


def load_run(directory: str | Path, model: object = None) -> RunResult:
    """Returns what a finished run learned.

    Args:
        directory: The run directory.
        model: What makes a model of your own, if the run used one: reading runs no code.
    """
    folder = Path(directory)
    opened = RunDirectory.open(folder)
    config, records = opened.config(), opened.records()
    if not (folder / MODEL).is_file():
        raise RunDirectoryError(
            f"{folder} is not finished: `feddm resume` goes on with it; {len(records)} of "
            f"{config.rounds} rounds are done"
        )
    if model is None and is_reference(config.model.name):
        raise RunDirectoryError(
            f"{folder} has a model of your own, {label(config.model.name)}, and reading a run "
            "runs no code; name it with --model"
        )
    synthetic = folder / SYNTHETIC
    return RunResult(
        config=config,
        records=tuple(records),
        model=load_model(folder / MODEL, model),
        synthetic=load_synthetic(synthetic) if synthetic.is_file() else None,
        directory=folder,
    )
