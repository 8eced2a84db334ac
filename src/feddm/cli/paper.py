"""``feddm paper``: the tables and figures of the paper."""

from __future__ import annotations

import json as json_
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddm.cli import options
from feddm.cli.studies import command

if TYPE_CHECKING:
    from rich.console import Console

    from feddm.paper.making import Made, Plan
    from feddm.studies import Cell

EXAMPLES = """\
Examples:

- `feddm paper list`

- `feddm paper surrogate`

- `feddm paper non-iid --scale smoke`

- `feddm paper curves-dir10-0.1 --scale small --seeds 3 --out dir01`"""


def paper(
    name: Annotated[str, typer.Argument(help="A table or figure, or `list`.")],
    scale: Annotated[
        str,
        typer.Option(
            help="smoke: does it work? small: hours on two cores; full: the paper's, for a GPU."
        ),
    ] = "small",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many; else as the scale says.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory, new or to be continued; else runs/paper/SCALE/NAME."),
    ] = None,
    workers: options.Workers = None,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Make a table or figure of the paper, beside the paper's own numbers.

    The same command goes on where it was interrupted, and what was run for another table or
    figure of the same scale is not run again. Tables are written as Markdown, CSV and JSON,
    figures as PNG, PDF and CSV.
    """
    from feddm.paper.experiments import find

    if name == "list":
        _list(json)
        return
    experiment = find(name)
    from feddm.paper import scales

    size = scales.find(scale)
    given: dict[str, Any] = {}
    if workers is not None:
        given["workers"] = options.number_of_workers(workers)
    if data_dir is not None:
        given["data_dir"] = str(data_dir.absolute())
    number = seeds or scales.usual_seeds(experiment, size)
    cells = scales.cells(experiment, size, number, **given)
    from rich.console import Console

    from feddm.cli.study_display import StudyDisplay
    from feddm.figures import check_figures
    from feddm.paper.making import Plan, make
    from feddm.studies import StudyObserver

    check_figures()
    plan = Plan(experiment, size, number, shlex.join(command()))
    study = out or Path("runs", "paper", size.name, experiment.name)
    console = Console(quiet=quiet or json)
    _announce(console, plan, cells)
    if cells:
        with StudyDisplay(console, cells, study) as display:
            made = make(plan, cells, study, display, given)
    else:
        made = make(plan, cells, study, StudyObserver(), given)
    _show(console, made, study)
    if json:
        print(json_.dumps(made.what, indent=2))


def _list(json: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from feddm.paper.estimate import listed
    from feddm.paper.scales import SCALES

    rows = listed()
    if json:
        print(json_.dumps(rows, indent=2))
        return
    console = Console()
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows")
    table.add_column("place")
    for scale in SCALES:
        table.add_column(scale, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["name"], row["shows"], row["place"], *row["estimates"].values())
    console.print(table, highlight=False, markup=False)
    machines = ", ".join(f"{scale.name} on {scale.machine.name}" for scale in SCALES.values())
    _say(
        console, f"Estimates are rough, from counted operations and assumed speeds: {machines}."
    )


def _announce(console: Console, plan: Plan, cells: list[Cell]) -> None:
    """Says what will be run, how it differs from the paper and how long that takes."""
    from feddm.paper.estimate import duration, seconds

    experiment, scale = plan.experiment, plan.scale
    _say(console, f"{experiment.place}: {experiment.shows}.")
    if cells:
        names = dict.fromkeys(cell.name for cell in cells)
        numbers = ", ".join(map(str, range(plan.seeds)))
        _say(console, f"Runs, with seed {numbers} each: {', '.join(names)}.")
    for note in plan.notes:
        _say(console, f"Note: {note}")
    changes = plan.scaled_down
    _say(console, f"Scaled down against the paper: {'; '.join(changes) or 'nothing'}.")
    if cells:
        about = duration(seconds(cells, scale.machine))
        _say(console, f"It takes about {about} on {scale.machine.name}: a rough estimate.")


def _show(console: Console, made: Made, study: Path) -> None:
    from rich.table import Table

    from feddm.paper.tables import WORDS

    table = Table(box=None, pad_edge=False)
    for title in made.table.titles:
        words = title in WORDS
        table.add_column(title, justify="left" if words else "right", no_wrap=not words)
    for line in made.table.lines:
        table.add_row(*line)
    console.print(table, highlight=False, markup=False)
    for note in made.table.notes:
        _say(console, note)
    for picture in made.pictures:
        _say(console, f"Drawn in {picture}")
    _say(console, f"Everything is in {study}")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
