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
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from feddm.analysis.tables import Row, comparison, to_json
from feddm.config.resolve import nested, qualified
from feddm.config.schema import Config
from feddm.errors import EmptyRoundError, LostClientsError, RunDirectoryError
from feddm.runtime.build import check_config
from feddm.runtime.federation import RoundRecord
from feddm.runtime.run import Observer, execute, resume
from feddm.runtime.rundir import RunDirectory


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
    cells: Sequence[Cell], study: Path, observer: StudyObserver
) -> dict[str, list[Sequence[RoundRecord]]]:
    """Runs what is left of a study, and returns the records of each name and seed.

    A cell that diverges has none. What can be known to be wrong with any of them is told before
    the first one runs, and not after hours.
    """
    results: dict[str, list[Sequence[RoundRecord]]] = {}
    if study.is_dir() and any(study.iterdir()) and not (study / "cells").is_dir():
        raise RunDirectoryError(
            f"{study} is not a study and not empty; choose another with --out"
        )
    for cell in cells:
        check_config(cell.config)
        _check_begun(cell, cell.directory(study))
    for cell in cells:
        observer.began(cell)
        records: Sequence[RoundRecord] = ()
        try:
            records = _run(cell, cell.directory(study), observer)
        except (LostClientsError, EmptyRoundError) as error:
            # It would fail again in the same way; the others go on.
            observer.notice(f"{cell.name} seed {cell.seed} failed: {error}")
        observer.ended(cell, records)
        results.setdefault(cell.name, []).append(records)
    return results


def adopt(cells: Sequence[Cell], study: Path, others: Sequence[Path]) -> dict[str, Path]:
    """Copies what was run in other studies with the same settings and seed, and is finished.

    Returns:
        Where each cell that was copied came from, by its folder's name.
    """
    missing = [cell for cell in cells if not cell.directory(study).exists()]
    copied = {}
    finished = {
        model.parent: _what(RunDirectory.open(model.parent).config())
        for other in others
        for model in sorted(other.glob("cells/*-seed*[0-9]/model.safetensors"))
    }
    for cell in missing:
        same = [path for path, what in finished.items() if what == _what(cell.config)]
        if same:
            target = cell.directory(study)
            part = target.with_name(f"{target.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(same[0], part)
            part.rename(target)
            copied[target.name] = same[0]
    return copied


def _check_begun(cell: Cell, directory: Path) -> None:
    if not (directory / "config.toml").exists():
        return
    if _what(RunDirectory.open(directory).config()) != _what(cell.config):
        raise RunDirectoryError(
            f"{directory} was begun with other settings; choose another directory with --out"
        )


def _run(cell: Cell, directory: Path, observer: Observer) -> Sequence[RoundRecord]:
    if not (directory / "config.toml").exists():
        return execute(cell.config, directory, observer).records
    records = RunDirectory.open(directory).records()
    if len(records) == cell.config.rounds and (directory / "model.safetensors").exists():
        return records
    return resume(
        directory,
        workers=cell.config.runtime.workers,
        data_dir=cell.config.data.dir or None,
        data=cell.config.data.path or None,
        observer=observer,
    ).records


def _what(config: Config) -> dict[str, Any]:
    """Returns what decides the results: neither the place of the data nor the workers."""
    values = config.model_dump()
    values["data"].pop("dir")
    values["data"].pop("path")
    values["runtime"].pop("workers")
    if config.privacy is None:
        return values
    if config.privacy.budget:
        # A run writes down the noise that its budget asked for.
        values["privacy"].pop("noise_multiplier")
    if config.privacy.ledger not in ("", "new"):
        # And a ledger that is the same from every folder.
        values["privacy"]["ledger"] = os.path.abspath(config.privacy.ledger)
    return values


def choices(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns every choice of one value for each key.

    >>> choices({"local.lr": [0.1, 0.01], "mu": [1]})
    [{'local.lr': 0.1, 'mu': 1}, {'local.lr': 0.01, 'mu': 1}]
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
    settings = {"algorithm.name": algorithm} | {qualified(k): v for k, v in choice.items()}
    return tomli_w.dumps(nested(settings))


def write_results(
    study: Path,
    cells: Sequence[Cell],
    rows: Sequence[Row],
    command: Sequence[str],
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Writes the tables, and which cells by which command they are about.

    Args:
        study: Where.
        cells: What was run.
        rows: What came out.
        command: As it was typed.
        changes: The settings that are particular to each name, if that is what is studied.
    """
    what: dict[str, Any] = {
        "command": shlex.join(command),
        "cells": [cell.directory(study).name for cell in cells],
    }
    if changes is not None:
        what["changes"] = changes
    table = comparison(rows)
    write(study / "table.md", table.to_markdown())
    write(study / "table.csv", table.to_csv())
    write(study / "table.json", to_json(rows))
    write(study / "study.json", json.dumps(what, indent=2) + "\n")


def write(path: Path, text: str) -> None:
    """Writes a whole file under its name, or nothing."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise RunDirectoryError(f"cannot write {path}: {error.strerror}") from error
