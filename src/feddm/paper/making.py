"""Makes a table or figure of the paper: runs the experiment and writes the files.

    paper.md, .csv, .json     the table, with command, versions, and what was scaled down
    curves.png, .pdf, .csv    accuracy by round and by message size, and the data points
    surrogate.png, .pdf, .csv the same for the 1-D example
    images-*.png              synthetic images, one file per noise level

An experiment that trains is also a study, with cells, study.json and table.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from feddm.analysis.bench import processor
from feddm.analysis.studies import Cell, StudyObserver, adopt, run_cells, write, write_results
from feddm.analysis.tables import Table, summarize
from feddm.errors import RunDirectoryError
from feddm.paper import cost, surrogate
from feddm.paper.experiments import TITLES, Experiment
from feddm.paper.pages import page
from feddm.paper.pictures import draw_example, draw_runs, draw_synthetic
from feddm.paper.scales import Scale, Tuned, scaled_down
from feddm.paper.tables import accuracies, minimisers, sizes
from feddm.runtime.build import build_dataset
from feddm.runtime.results import finite


@dataclass(frozen=True)
class Plan:
    """What to make, and how.

    Args:
        experiment: Experiment of the paper.
        scale: Scale to run it at.
        seeds: Number of seeds.
        command: Command as typed.
        tuned: The user's settings, by algorithm.
    """

    experiment: Experiment
    scale: Scale
    seeds: int
    command: str
    tuned: Tuned = field(default_factory=dict)

    @property
    def stand_in(self) -> str:
        """Name of the data set that replaces the paper's, or an empty text."""
        return str(self.scale.settings.get("data.name", ""))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know, whatever the results."""
        tuned = tuple(
            f"{TITLES[algorithm]} uses these settings where they apply: "
            + ", ".join(f"{key} {value}" for key, value in settings.items())
            + "."
            for algorithm, settings in self.tuned.items()
        )
        if not self.stand_in or self.experiment.kind == "surrogate":
            return (*self.experiment.notes, *tuned)
        return (
            f"The built-in {self.stand_in} replace the paper's data: this only shows that "
            "everything works. The numbers cannot be compared with the paper's.",
            *self.experiment.notes,
            *tuned,
        )

    @property
    def scaled_down(self) -> list[str]:
        """The settings that differ from the paper's."""
        if self.experiment.kind == "cost":
            return [f"{key} {value}" for key, value in self.scale.cost.items()]
        return scaled_down(self.experiment, self.scale, self.seeds, self.tuned)


@dataclass(frozen=True)
class Made:
    """A finished experiment.

    Args:
        table: Its table.
        what: Content of ``paper.json``.
        pictures: Files of its pictures.
    """

    table: Table
    what: dict[str, Any]
    pictures: list[Path]


def make(
    plan: Plan,
    cells: Sequence[Cell],
    study: Path,
    observer: StudyObserver,
    options: Mapping[str, Any],
) -> Made:
    """Runs the cells that have not finished yet, and writes all files.

    Args:
        plan: What to make.
        cells: Runs that it needs.
        study: Directory to write to.
        observer: Observer of the progress.
        options: Command-line options, for experiments without runs.
    """
    experiment = plan.experiment
    _check_directory(study, experiment)
    if not experiment.runs:
        study.mkdir(parents=True, exist_ok=True)
    if experiment.kind == "surrogate":
        example = surrogate.example()
        return _written(study, plan, minimisers(example), draw_example(study, example))
    if experiment.kind == "cost":
        counted = cost.counts(plan.scale, plan.seeds, **options)
        return _written(study, plan, sizes(counted, plan.stand_in), [])
    others = [file.parent for file in sorted(study.parent.glob("*/paper.json"))]
    for name, place in adopt(cells, study, others).items():
        observer.notice(f"reusing {name} from {place}")
    _check_data(cells, study)
    results = run_cells(cells, study, observer)
    settings = {run.name: dict(run.settings) for run in experiment.runs}
    write_results(study, cells, summarize(results, ()), shlex.split(plan.command), settings)
    pictures = draw_runs(study, experiment, results)
    if experiment.kind == "images":
        pictures += draw_synthetic(study, experiment)
    return _written(study, plan, accuracies(experiment, results, plan.stand_in), pictures)


def _check_directory(study: Path, experiment: Experiment) -> None:
    """Raises an error if the directory holds something other than this experiment."""
    if not study.is_dir() or not any(study.iterdir()):
        return
    file = study / "paper.json"
    if file.exists():
        ours = json.loads(file.read_text(encoding="utf-8"))["experiment"] == experiment.name
    else:  # it was interrupted before the first result
        cells = {path.name.rpartition("-seed")[0] for path in study.glob("cells/*")}
        ours = bool(cells) and cells <= {run.name for run in experiment.runs}
    if not ours:
        raise RunDirectoryError(
            f"{study} is not a directory of {experiment.name}; choose another with --out"
        )


def _check_data(cells: Sequence[Cell], study: Path) -> None:
    """Loads all data that is still needed, so that missing data is an error now, not later."""
    left = [
        cell for cell in cells if not (cell.directory(study) / "model.safetensors").exists()
    ]
    for data in dict.fromkeys(cell.config.data for cell in left):
        build_dataset(data)


def _written(study: Path, plan: Plan, table: Table, pictures: list[Path]) -> Made:
    """Writes the table as Markdown, CSV and JSON, with command, versions and settings."""
    what = {
        "experiment": plan.experiment.name,
        "shows": plan.experiment.shows,
        "place": plan.experiment.place,
        "scale": plan.scale.name,
        "seeds": list(range(plan.seeds)),
        "command": plan.command,
        "versions": {"feddm": version("feddm"), "torch": torch.__version__},
        "commit": commit(),
        "machine": _machine(),
        "scaled_down": plan.scaled_down,
        "notes": [*plan.notes, *table.notes],
        "settings": {run.name: dict(run.settings) for run in plan.experiment.runs},
        "titles": table.titles,
        "lines": table.lines,
        "rows": finite(table.records),
        "pictures": [path.name for path in pictures if path.suffix == ".png"],
    }
    write(study / "paper.json", json.dumps(what, indent=2, allow_nan=False) + "\n")
    write(study / "paper.csv", table.to_csv())
    write(study / "paper.md", page(what))
    return Made(table, what, pictures)


def _machine() -> str:
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    used = torch.backends.cpu.get_cpu_capability()
    return f"{processor()}, {os.cpu_count()} cores ({used}){gpu}"


def commit() -> str:
    """Returns the commit of this code, or an empty text if it is not in a repository."""
    package = Path(__file__).parents[1]

    def git(*words: str) -> str:
        said = subprocess.run(
            ["git", *words], cwd=package, capture_output=True, text=True, check=True
        )
        return said.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)
        # Changes outside the package, as in the docs, change no result.
        changed = git("status", "--porcelain", "--untracked-files=no", ".")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
