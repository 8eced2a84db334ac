"""What `compare`, `tune` and `ablate` share: run many configurations, and show one table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddm.cli import options
from feddm.cli.report import report_at_end
from feddm.config.registry import algorithm_names
from feddm.config.resolve import load_toml, tables
from feddm.config.schema import Config
from feddm.errors import ConfigError

if TYPE_CHECKING:
    from feddm.analysis.tables import Curve, Row

    Results = Mapping[str, Sequence[Curve]]  # the records of each name and seed

Named = tuple[str, int, Config]  # name, seed and configuration of a run

Out = Annotated[
    Path | None, typer.Option(help="Directory of the study, new or to be continued.")
]
Seeds = Annotated[str, typer.Option(help="Comma-separated seeds.")]
With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="NAME=FILE", help="A TOML file for one name, as from tune."),
]


def listed_seeds(seeds: str) -> list[int]:
    """Returns the value of ``--seeds``."""
    return options.listed("--seeds", seeds, int, "whole numbers")


def files_by_name(texts: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the values of ``--with`` by name: what is in each file."""
    files = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or name not in names:
            raise ConfigError(
                f"--with takes NAME=FILE with one of {', '.join(names)}, got {text!r}"
            )
        files[name] = tables(load_toml(Path(path)))
        algorithm = algorithm_in(files[name]) or name
        if name in algorithm_names() and algorithm != name:
            raise ConfigError(f"{path} is for {algorithm}, so it is no file for {name}")
    return files


def algorithm_in(file: Mapping[str, Any]) -> str:
    """Returns the algorithm that a file names, if it names one."""
    algorithm = file.get("algorithm")
    return str(algorithm.get("name", "")) if isinstance(algorithm, Mapping) else ""


def held_out(given: options.Given, validation: float) -> options.Given:
    """Returns what was given, evaluated on a share of the training examples."""
    if "data.validation" in given.settings:
        raise ConfigError("data.validation cannot be set here: --validation is for that")
    return given.with_settings({"data.validation": validation})


def check_fair(configs: Sequence[Named]) -> None:
    """Raises `ConfigError` unless all are about the same data, clients and model.

    Under a guarantee it is the budget that is shared: a mechanism has a model and a number of
    rounds that fit it.
    """
    first, _, base = configs[0]
    free = {"model", "rounds"} if all(config.guaranteed for *_, config in configs) else set()
    for name, _, config in configs:
        for key in ("data", "partition", "model", "rounds", "participation"):
            if key not in free and getattr(config, key) != getattr(base, key):
                raise ConfigError(
                    f"{name} and {first} differ in {key}, so comparing them would say nothing"
                )


def check_seeds(configs: Sequence[Named]) -> None:
    """Raises `ConfigError` if a setting replaces the seed of a run."""
    for _, seed, config in configs:
        if config.seed != seed:
            raise ConfigError(
                f"seed cannot be set to {config.seed}: --seeds says which there are"
            )


def check_ledgers(configs: Sequence[Named]) -> None:
    """Raises `ConfigError` unless it was said where private runs of a study are accounted.

    By default all runs on a data set share a ledger, which is right for data that are used in
    earnest, and never what somebody wants who compares settings.
    """
    private = [
        config.privacy
        for _, _, config in configs
        if config.privacy is not None and config.privacy.guaranteed
    ]
    if not all(privacy.ledger for privacy in private):
        raise ConfigError(
            f"{len(private)} private runs on one data set would share one budget, and "
            "choosing by their results is not covered by it; with public data, --ledger new "
            "gives each run a ledger of its own"
        )
    budgets = [privacy for privacy in private if privacy.budget and privacy.ledger != "new"]
    if len(budgets) > 1 and len({privacy.ledger for privacy in budgets}) < len(budgets):
        raise ConfigError(
            f"the first of {len(budgets)} runs would spend the whole budget of --ledger "
            f"{budgets[0].ledger}, which all share; --ledger new gives each run its own"
        )


def command() -> list[str]:
    """Returns the command as it was typed."""
    return ["feddm", *sys.argv[1:]]


def run_study(
    configs: Sequence[Named],
    name: str,
    out: Path | None,
    rows_of: Callable[[Results], list[Row]],
    *,
    then: Callable[[Results, list[Row], Path], str] | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    report: bool,
    quiet: bool,
    json: bool,
) -> None:
    """Runs a study, writes its tables and shows them.

    Args:
        configs: What is run.
        name: Beginning of the directory's name, unless you name one.
        out: Directory of the study.
        rows_of: Makes the rows of the table.
        then: What the command does with them; returns a sentence to show, or nothing.
        changes: The settings of each name, to be written down.
        report: Whether to write a report.
        quiet: Whether to show errors only.
        json: Whether to print JSON instead.
    """
    check_seeds(configs)
    check_ledgers(configs)
    from rich.console import Console

    from feddm.analysis.studies import Cell, run_cells, write_results
    from feddm.analysis.tables import to_json
    from feddm.cli.study_display import StudyDisplay
    from feddm.runtime.rundir import next_free

    cells = [Cell(*named) for named in configs]
    study = out or next_free(Path("runs"), f"{name}-{cells[0].config.data.name}")
    with StudyDisplay(Console(quiet=quiet or json), cells, study) as display:
        results = run_cells(cells, study, display)
        rows = rows_of(results)
        write_results(study, cells, rows, command(), changes)
        display.table(rows, study)
        if then is not None and (sentence := then(results, rows, study)):
            display.say(sentence)
        if report:
            report_at_end(study, display)
    if json:
        print(to_json(rows))
