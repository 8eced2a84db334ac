"""Run directories and studies -> methods: groups of runs that differ only in the seed."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddm.config import code
from feddm.config.schema import Config, PrivacySettings
from feddm.errors import FedDMError, RunDirectoryError
from feddm.runtime.federation import RoundRecord
from feddm.runtime.rundir import RunDirectory
from feddm.runtime.wording import promised


@dataclass(frozen=True)
class Run:
    """The results of one run.

    Args:
        label: Its name in the study, or its algorithm.
        folder: Its directory.
        config: Its configuration.
        records: One record per round, at least one.
        environment: Versions and processor.
    """

    label: str
    folder: Path
    config: Config
    records: tuple[RoundRecord, ...]
    environment: dict[str, Any]

    @property
    def fingerprint(self) -> str | None:
        """A digest of its data, or None if only the owner of its ledger can compute it."""
        return None if "ledger_id" in self.environment else self.environment.get("data")

    @property
    def guaranteed(self) -> bool:
        """Whether it ended with a finite epsilon, not only with a mechanism that gives one."""
        epsilon = self.records[-1].epsilon
        return self.config.guaranteed and epsilon is not None and math.isfinite(epsilon)


@dataclass(frozen=True)
class Method:
    """Runs that differ only in the seed, all with the same number of rounds."""

    name: str
    runs: tuple[Run, ...]

    @property
    def config(self) -> Config:
        return self.runs[0].config

    @property
    def num_rounds(self) -> int:
        return len(self.runs[0].records)

    @property
    def private(self) -> bool:
        """Whether it uses a privacy mechanism, with or without a guarantee."""
        return self.config.privacy is not None

    @property
    def protected(self) -> bool:
        """Whether its privacy mechanism is meant to give a guarantee."""
        return self.config.guaranteed


@dataclass(frozen=True)
class Found:
    """What the given directories contain.

    Args:
        methods: Methods, in the order in which they were found.
        command: Command of the study, if this is one.
        notes: What was left out, and why.
    """

    methods: tuple[Method, ...]
    command: str | None
    notes: tuple[str, ...]

    @property
    def protected(self) -> bool:
        """Whether any run is protected; other runs may have the same examples."""
        return any(method.protected for method in self.methods)


def read(paths: Sequence[Path]) -> Found:
    """Returns the methods in run directories and studies.

    A run that cannot be read is left out with a note. If none can be read, this raises.
    """
    runs: list[Run] = []
    notes: list[str] = []
    errors: list[FedDMError] = []
    for folder, label in dict(pair for path in paths for pair in _runs_in(path)).items():
        try:
            runs.append(read_run(folder, label))
        except FedDMError as error:
            errors.append(error)
            notes.append(f"Left out {folder.name}: {error}.")
    if not runs:
        raise errors[0] if errors else RunDirectoryError(f"{paths[0]} has no runs")
    methods, shorter = grouped(runs)
    command = _study(paths[0])[0] if len(paths) == 1 else None
    return Found(methods, command, (*notes, *shorter))


def read_run(folder: Path, label: str | None = None) -> Run:
    """Returns the run in a directory."""
    directory = RunDirectory.open(folder)
    config = directory.config()
    try:
        environment = directory.environment()
    except RunDirectoryError:
        environment = {}  # a page without versions is better than no page
    records = tuple(completed(record, config.privacy) for record in directory.records())
    if not records:
        raise RunDirectoryError(f"{folder} has no finished round")
    return Run(label or code.label(config.algorithm.name), folder, config, records, environment)


def completed(record: RoundRecord, privacy: PrivacySettings | None) -> RoundRecord:
    """Returns the record with its full guarantee; earlier versions wrote only the epsilon."""
    if privacy is None or record.privacy is not None:
        return record
    epsilon = record.epsilon
    if epsilon is None or privacy.test_secret or not privacy.guaranteed:
        epsilon = math.inf
    return promised(record, epsilon, privacy)


def grouped(runs: Iterable[Run]) -> tuple[tuple[Method, ...], list[str]]:
    """Returns the runs grouped by method, and a note for each run left out as too short."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(f"{run.label} {_settings(run.config)}", []).append(run)
    labels = Counter(group[0].label for group in groups.values())
    methods: list[Method] = []
    notes: list[str] = []
    for group in groups.values():
        name = group[0].label
        if labels[name] > 1:
            name = _full_name(group[0])
        if any(name == method.name for method in methods):
            name = f"{name} ({len(methods) + 1})"
        longest = max(len(run.records) for run in group)
        for run in group:
            if len(run.records) < longest:
                notes.append(
                    f"{name}, seed {run.config.seed}, has only {len(run.records)} of "
                    f"{run.config.rounds} rounds and is left out of the means."
                )
        kept = sorted(
            (run for run in group if len(run.records) == longest),
            key=lambda run: run.config.seed,
        )
        methods.append(Method(name, tuple(kept)))
        if longest < kept[0].config.rounds:
            notes.append(f"{name} has {longest} of {kept[0].config.rounds} rounds so far.")
    return tuple(methods), notes


def _runs_in(path: Path) -> list[tuple[Path, str | None]]:
    """Returns the run directories of a study with their names, or the given run itself."""
    cells = path / "cells"
    if not cells.is_dir():
        return [(path.resolve(), None)]
    order = {name: number for number, name in enumerate(_study(path)[1])}
    folders = sorted(
        (folder for folder in cells.iterdir() if folder.is_dir()),
        key=lambda folder: (order.get(folder.name, len(order)), folder.name),
    )
    if order:  # the directory may also hold runs of another command
        folders = [folder for folder in folders if folder.name in order]
    return [(folder.resolve(), folder.name.rpartition("-seed")[0]) for folder in folders]


def _study(path: Path) -> tuple[str | None, list[str]]:
    """Returns the command and the cells of a study; an interrupted study has neither."""
    try:
        what = json.loads((path / "study.json").read_text(encoding="utf-8"))
        command, cells = what["command"], what["cells"]
    except (OSError, KeyError, TypeError, ValueError):
        return None, []
    return str(command), [str(cell) for cell in cells] if isinstance(cells, list) else []


def _settings(config: Config) -> str:
    """Returns the settings that identify a method: without the seed and the runtime."""
    values = config.model_dump(exclude={"seed", "runtime"})
    values["data"].pop("dir")
    values["data"].pop("path")
    if config.privacy is not None:
        follow = ("ledger", "noise_multiplier") if config.privacy.budget else ("ledger",)
        for key in follow:  # the noise follows from what was spent before
            values["privacy"].pop(key, None)
    return json.dumps(values, sort_keys=True)


def _full_name(run: Run) -> str:
    folder = run.folder
    if folder.parent.name == "cells":
        return f"{folder.parents[1].name}/{run.label}"
    return folder.name
