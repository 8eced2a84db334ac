"""Studies: many runs in one directory, each of which can be interrupted and continued.

    cells/fedavg-seed0/       a run directory for each algorithm and seed
    study.json                what is studied
    table.md, .csv, .json     what came out

A cell that is finished is never run again, one that was interrupted goes on, and one that was
begun with other settings is refused.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from feddm.api import Observer, execute, resume
from feddm.config import Config, nested
from feddm.errors import RunDirectoryError
from feddm.federation import RoundRecord
from feddm.rundir import RunDirectory


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    name: str
    seed: int
    config: Config

    def directory(self, study: Path) -> Path:
        return study / "cells" / f"{self.name}-seed{self.seed}"


class StudyObserver(Observer):
    """Is told how a study goes on; the calls of `Observer` are about the cell begun last."""

    def began(self, cell: Cell) -> None:
        """A cell is about to run, or was finished before."""

    def ended(self, cell: Cell, records: Sequence[RoundRecord]) -> None:
        """A cell is finished."""


def run_cells(
    cells: Iterable[Cell], study: Path, observer: StudyObserver
) -> dict[str, list[Sequence[RoundRecord]]]:
    """Runs what is left of a study, and returns the records of each name and seed."""
    results: dict[str, list[Sequence[RoundRecord]]] = {}
    for cell in cells:
        observer.began(cell)
        records = _run(cell, cell.directory(study), observer)
        observer.ended(cell, records)
        results.setdefault(cell.name, []).append(records)
    return results


def _run(cell: Cell, directory: Path, observer: Observer) -> Sequence[RoundRecord]:
    if not (directory / "config.toml").exists():
        return execute(cell.config, directory, observer).records
    opened = RunDirectory.open(directory)
    before = opened.config()
    if _what(before) != _what(cell.config):
        raise RunDirectoryError(
            f"{directory} was begun with other settings; choose another directory with --out"
        )
    records = opened.records()
    if len(records) == cell.config.rounds and (directory / "model.safetensors").exists():
        return records
    runtime = cell.config.runtime
    return resume(directory, workers=runtime.workers, observer=observer).records


def _what(config: Config) -> dict[str, Any]:
    """Returns what decides the results: neither the place of the data nor the workers."""
    values = config.model_dump()
    values["data"].pop("dir")
    values["runtime"].pop("workers")
    return values


def choices(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns every choice of one value for each key.

    >>> choices({"local.lr": [0.1, 0.01], "local.mu": [1]})
    [{'local.lr': 0.1, 'local.mu': 1}, {'local.lr': 0.01, 'local.mu': 1}]
    """
    return [
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    ]


def setting_name(choice: Mapping[str, Any]) -> str:
    """Returns a name for a choice that can be a file name.

    >>> setting_name({"local.lr": 0.1, "local.epochs": 10})
    'lr=0.1,epochs=10'
    """
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in choice.items())


def winner_toml(algorithm: str, choice: Mapping[str, Any]) -> str:
    """Returns a configuration file that holds a choice and nothing else."""
    return tomli_w.dumps({"algorithm": algorithm, **nested(choice)})


def describe(study: Path, names: Sequence[str], command: Sequence[str]) -> None:
    """Writes down what is studied, and by which command."""
    what = {"names": list(names), "command": shlex.join(command)}
    try:
        study.mkdir(parents=True, exist_ok=True)
        (study / "study.json").write_text(json.dumps(what, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(f"cannot use {study}: {error.strerror}") from error
