"""``feddm compare`` and ``feddm tune``: many runs in one directory."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddm.cli import options
from feddm.cli.report import WriteReport, report_at_end
from feddm.config import ALGORITHMS, Config, load_toml, toml_value
from feddm.errors import ConfigError

if TYPE_CHECKING:
    from feddm.cli.study_display import StudyDisplay
    from feddm.studies import Cell

COMPARE_EXAMPLES = """\
Examples:

- `feddm compare --algorithms feddm,fedavg --seeds 0,1,2`

- `feddm compare --dataset mnist --alpha 0.1 --targets 0.9,0.95 --out study`

- `feddm compare --algorithms feddm,fedavg --with fedavg=tuned/winner.toml`

- `feddm compare --algorithms feddm,mine --with mine=mine.toml --against feddm`"""

TUNE_EXAMPLES = """\
Examples:

- `feddm tune --algorithm fedavg --dataset mnist --out tuned`

- `feddm tune --algorithm feddm --grid synthesis.lr=0.3,1,3 --grid synthesis.steps=50,100`"""

ALL = "feddm,fedavg,fedprox,fednova,scaffold,real"

Out = Annotated[
    Path | None, typer.Option(help="Directory of the study, new or to be continued.")
]


@options.configured(without={"algorithm", "seed"})
def compare(
    given: options.Given,
    algorithms: Annotated[
        str, typer.Option(help="Names, also of your own (--with), with commas between.")
    ] = ALL,
    seeds: Annotated[str, typer.Option(help="Seeds with commas between.")] = "0",
    targets: Annotated[
        str, typer.Option(help="Accuracies (from 0 to 1) to be reached, with commas between.")
    ] = "0.8,0.9,0.95",
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=FILE",
            help="A TOML file for one name, as from tune; it may name the algorithm.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show the difference to this one, seed by seed."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw accuracy by round and by bytes: PNG, PDF or SVG.")
    ] = None,
    out: Out = None,
    report: WriteReport = True,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Compare algorithms on the same partitions, seeds and model.

    The same command with the same --out goes on where it was interrupted: what is finished is
    never run again. The table goes into the directory as table.md, table.csv and table.json.
    """
    names = options.listed("--algorithms", algorithms, str, "names")
    accuracies = options.listed("--targets", targets, _share, "numbers from 0 to 1")
    files = _files(with_ or (), names)
    if against is not None and against not in names:
        raise ConfigError(f"--against takes one of {', '.join(names)}, got {against!r}")
    configs = [
        (name, seed, _variant(given, name, files.get(name), seed))
        for seed in options.listed("--seeds", seeds, int, "whole numbers")
        for name in names
    ]
    check_fair(configs)
    from feddm.comparison import points, summarize, to_json
    from feddm.figures import check_figure, draw_curves
    from feddm.rundir import next_free
    from feddm.studies import Cell, run_cells, write_results

    if figure is not None:
        check_figure(figure)
    cells = [Cell(name, seed, config) for name, seed, config in configs]
    study = out or next_free(Path("runs"), f"compare-{cells[0].config.data.name}")
    with shown(cells, study, quiet or json) as display:
        results = run_cells(cells, study, display)
        rows = summarize(results, accuracies, against)
        write_results(study, cells, rows, command())
        display.table(rows, study)
        if figure is not None:
            done = {
                name: [points(records) for records in seeds if records]
                for name, seeds in results.items()
                if any(seeds)
            }
            display.say(f"Drawn in {draw_curves(done, figure)}")
        if report:
            report_at_end(study, display)
    if json:
        print(to_json(rows))


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
    seeds: Annotated[str, typer.Option(help="Seeds with commas between.")] = "0",
    validation: Annotated[
        float,
        typer.Option(help="Share of the training examples that is held out to choose by."),
    ] = 0.1,
    out: Out = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Try a grid of settings and keep the best, without looking at the test set.

    Every choice is judged by its final accuracy on a part of the training examples that no
    client has. The best one is written as winner.toml, for `compare --with NAME=winner.toml`.
    """
    algorithm = given.resolved().algorithm
    axes = _axes(grid or ()) or PAPER_GRIDS.get(algorithm)
    if not axes:
        raise ConfigError(f"the paper has no grid for {algorithm}; name one with --grid")
    if not validation > 0:
        raise ConfigError(
            f"--validation must be above 0, got {validation:g}: the test set tunes nothing"
        )
    from feddm.comparison import summarize, to_json
    from feddm.rundir import next_free
    from feddm.studies import (
        Cell,
        choices,
        run_cells,
        setting_name,
        winner_toml,
        write,
        write_results,
    )

    cells = [
        Cell(
            setting_name(choice),
            seed,
            held_out(given.with_settings(choice), validation).resolved(seed=seed),
        )
        for seed in options.listed("--seeds", seeds, int, "whole numbers")
        for choice in choices(axes)
    ]
    for cell in cells:
        check_seed(cell.config, cell.seed)
    study = out or next_free(Path("runs"), f"tune-{algorithm}-{cells[0].config.data.name}")
    with shown(cells, study, quiet or json) as display:
        rows = summarize(run_cells(cells, study, display), ())
        # What failed for a seed is no choice, however good it was for another.
        rows.sort(key=lambda row: (row.failed, -row.final.mean if row.seeds else 0.0))
        write_results(study, cells, rows, command())
        display.table(rows, study)
        if rows[0].failed:
            raise ConfigError("every choice of the grid failed; try smaller learning rates")
        best = next(c for c in choices(axes) if setting_name(c) == rows[0].name)
        write(study / "winner.toml", winner_toml(algorithm, best))
        display.say(f"Best on validation: {rows[0].name}; written to {study / 'winner.toml'}")
    if json:
        print(to_json(rows))


# "we tune the learning rate of SGD from [...] and local epoch from [...]; ... mu for FedProx"
_LOCAL_GRID: dict[str, list[Any]] = {
    "local.lr": [0.001, 0.01, 0.1],
    "local.epochs": [10, 15, 20],
}
PAPER_GRIDS: dict[str, dict[str, list[Any]]] = {
    "fedavg": _LOCAL_GRID,
    "fedprox": {**_LOCAL_GRID, "local.mu": [0.01, 0.1, 1.0]},
    "fednova": _LOCAL_GRID,
    "scaffold": _LOCAL_GRID,
}


def command() -> list[str]:
    """Returns the command as it was typed."""
    return ["feddm", *sys.argv[1:]]


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


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


def _files(texts: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the values of the file of each algorithm that has one."""
    files = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or name not in names:
            raise ConfigError(
                f"--with takes NAME=FILE with one of {', '.join(names)}, got {text!r}"
            )
        files[name] = load_toml(Path(path))
    return files


def _variant(
    given: options.Given, name: str, file: Mapping[str, Any] | None, seed: int
) -> Config:
    """Returns the configuration of a name: an algorithm's, or one that its file describes."""
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        raise ConfigError(f"a name has letters, digits, '.', '_' and '-' only, got {name!r}")
    if name in ALGORITHMS:
        return given.resolved(file, algorithm=name, seed=seed)
    if file is None or "algorithm" not in file:
        raise ConfigError(
            f"{name} is none of {', '.join(ALGORITHMS)}; to compare settings of your own under "
            f"that name, add --with {name}=FILE with a file that names the algorithm"
        )
    return given.resolved(file, seed=seed)


def check_fair(configs: Sequence[tuple[str, int, Config]]) -> None:
    """Raises `ConfigError` unless all are about the same data, clients and model.

    Args:
        configs: Name, seed and configuration of each run.
    """
    first, _, base = configs[0]
    for name, seed, config in configs:
        check_seed(config, seed)
        for key in ("data", "partition", "model", "rounds", "participation"):
            if getattr(config, key) != getattr(base, key):
                raise ConfigError(
                    f"{name} and {first} differ in {key}, so comparing them would say nothing"
                )


def check_seed(config: Config, seed: int) -> None:
    """Raises `ConfigError` if a setting replaces the seed of a run."""
    if config.seed != seed:
        raise ConfigError(f"seed cannot be set to {config.seed}: --seeds says which there are")


def held_out(given: options.Given, validation: float) -> options.Given:
    """Returns what was given, evaluated on a share of the training examples."""
    if "data.validation" in given.settings:
        raise ConfigError("data.validation cannot be set here: --validation is for that")
    return given.with_settings({"data.validation": validation})


def shown(cells: Sequence[Cell], study: Path, silent: bool) -> StudyDisplay:
    """Returns the display of a study."""
    from rich.console import Console

    from feddm.cli.study_display import StudyDisplay

    return StudyDisplay(Console(quiet=silent), cells, study)
