"""``feddm tune``: which settings are best?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddm.cli import options
from feddm.cli.report import WriteReport
from feddm.cli.studies import (
    Out,
    Seeds,
    held_out,
    listed_seeds,
    run_study,
)
from feddm.config.code import label
from feddm.config.resolve import flat, qualified, toml_value
from feddm.config.schema import Config
from feddm.errors import ConfigError

if TYPE_CHECKING:
    from feddm.analysis.tables import Row

EXAMPLES = """\
Examples:

- `feddm tune --algorithm fedavg --dataset mnist --out tuned`

- `feddm tune --algorithm feddm --grid synthesis.lr=0.3,1,3 --grid synthesis.steps=50,100`"""

# "we tune the learning rate of SGD from [...] and local epoch from [...]; ... mu for FedProx"
_LOCAL_GRID: dict[str, list[Any]] = {
    "local.lr": [0.001, 0.01, 0.1],
    "local.epochs": [10, 15, 20],
}
PAPER_GRIDS: dict[str, dict[str, list[Any]]] = {
    "fedavg": _LOCAL_GRID,
    "fedprox": {**_LOCAL_GRID, "mu": [0.01, 0.1, 1.0]},
    "fednova": _LOCAL_GRID,
    "scaffold": _LOCAL_GRID,
}


@options.configured(without={"seed"})
def tune(
    given: options.Given,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V,V,...",
            help="An axis of the grid; else the paper's for the algorithm.",
        ),
    ] = None,
    seeds: Seeds = "0",
    validation: Annotated[
        float,
        typer.Option(help="Share of the training examples that is held out to choose by."),
    ] = 0.1,
    out: Out = None,
    report: WriteReport = True,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Try a grid of settings and keep the best, without looking at the test set.

    Every choice is judged by its final accuracy on a part of the training examples that no
    client has. The best one is written as winner.toml, for `compare --with NAME=winner.toml`.
    """
    base = given.resolved()
    axes = _axes(grid or ()) or paper_grid(base)
    if not validation > 0:
        raise ConfigError(
            f"--validation must be above 0, got {validation:g}: the test set must not choose "
            "settings"
        )
    from feddm.analysis.studies import choices, setting_name
    from feddm.analysis.tables import summarize

    tried = {setting_name(choice): choice for choice in choices(axes)}
    configs = [
        (name, seed, held_out(given.with_settings(choice), validation).resolved(seed=seed))
        for seed in listed_seeds(seeds)
        for name, choice in tried.items()
    ]
    run_study(
        configs,
        f"tune-{label(base.algorithm.name)}",
        out,
        lambda results: _best_first(summarize(results, ())),
        then=lambda results, rows, study: _keep_best(rows, tried, base.algorithm.name, study),
        report=report,
        quiet=quiet,
        json=json,
    )


def paper_grid(config: Config) -> Mapping[str, Sequence[Any]]:
    """Returns the paper's grid, without settings that do not exist under privacy."""
    name, known = config.algorithm.name, flat(config.model_dump())
    axes = PAPER_GRIDS.get(name, {})
    if not axes:
        raise ConfigError(f"the paper has no grid for {name}; give one with --grid")
    return {key: values for key, values in axes.items() if qualified(key) in known}


def _axes(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Returns the axes of a grid from texts such as ``local.lr=0.1,0.01``."""
    axes = {}
    for text in texts:
        key, _, values = text.partition("=")
        chosen = [toml_value(part.strip()) for part in values.split(",") if part.strip()]
        if not key.strip() or not chosen or len(set(map(str, chosen))) < len(chosen):
            raise ConfigError(f"--grid takes key=value,value,... that differ, got {text!r}")
        axes[key.strip()] = chosen
    return axes


def _best_first(rows: Sequence[Row]) -> list[Row]:
    # What failed for a seed is no choice, however good it was for another.
    return sorted(rows, key=lambda row: (row.failed, -row.final.mean if row.seeds else 0.0))


def _keep_best(
    rows: Sequence[Row], tried: Mapping[str, Mapping[str, Any]], algorithm: str, study: Path
) -> str:
    """Writes the choice of the first row down, and returns a sentence about it."""
    from feddm.analysis.studies import winner_toml, write

    if rows[0].failed:
        raise ConfigError("every choice of the grid failed; try smaller learning rates")
    write(study / "winner.toml", winner_toml(algorithm, tried[rows[0].name]))
    return f"Best on validation: {rows[0].name}; written to {study / 'winner.toml'}"
