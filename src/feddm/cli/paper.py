"""``feddm paper``: the tables and figures of the paper."""

from __future__ import annotations

import json as json_
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddm.cli import options
from feddm.cli.studies import With, command, files_by_name
from feddm.config.resolve import flat
from feddm.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from feddm.analysis.studies import Cell
    from feddm.paper.making import Made, Plan

EXAMPLES = """\
Examples:

- `feddm paper list`

- `feddm paper surrogate`

- `feddm paper non-iid --scale smoke`

- `feddm paper curves-dir10-0.1 --scale small --seeds 3 --out dir01`

- `feddm paper non-iid --with fedavg=tuned/winner.toml --out tuned-non-iid`"""


def paper(
    name: Annotated[str, typer.Argument(help="A table or figure, or `list`.")],
    scale: Annotated[
        str,
        typer.Option(
            help="smoke: a quick check; small: hours on two cores; full: the paper's, on a GPU."
        ),
    ] = "small",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds. Default: set by the scale.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="New or existing directory. Default: runs/paper/SCALE/NAME."),
    ] = None,
    with_: With = None,
    workers: options.Workers = None,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Reproduce a table or figure of the paper, next to the paper's own numbers.

    To continue after an interruption, run the same command again. Runs that another table or
    figure of the same scale has already made are reused. Tables are written as Markdown, CSV
    and JSON, figures as PNG, PDF and CSV.
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
    algorithms = list(dict.fromkeys(run.settings["algorithm"] for run in experiment.runs))
    if with_ and not algorithms:
        raise ConfigError(f"--with does not apply to {name}: it trains nothing")
    tuned = {
        name: {
            key.removeprefix("algorithm."): value
            for key, value in flat(file).items()
            if key != "algorithm.name"
        }
        for name, file in files_by_name(with_ or (), algorithms).items()
    }
    scales.check_tuned(experiment, size, tuned)
    cells = scales.cells(experiment, size, number, tuned, **given)
    from rich.console import Console

    from feddm.analysis.figures import check_figures
    from feddm.analysis.studies import StudyObserver
    from feddm.analysis.study_display import StudyDisplay
    from feddm.paper.making import Plan, make

    check_figures()
    plan = Plan(experiment, size, number, shlex.join(command()), tuned)
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
    from rich.console import Console

    from feddm.paper.estimate import listed
    from feddm.paper.scales import SCALES

    rows = listed()
    if json:
        print(json_.dumps(rows, indent=2))
        return
    console = Console()
    # Two lines each: the description is too long for a column on a narrow screen.
    width = max(len(row["name"]) for row in rows)
    _say(console, f"{'name':<{width}}{''.join(f'{scale:>9}' for scale in SCALES)}  place")
    for row in rows:
        times = "".join(f"{time:>9}" for time in row["estimates"].values())
        _say(console, f"{row['name']:<{width}}{times}  {row['place']}")
        _say(console, f"  {row['shows']}", style="dim")
    machines = ", ".join(f"{scale.name} on {scale.machine.name}" for scale in SCALES.values())
    _say(console, "")
    _say(console, f"Estimated times: {machines}.")


def _announce(console: Console, plan: Plan, cells: list[Cell]) -> None:
    """Shows what will run, how it differs from the paper and how long it takes."""
    from feddm.paper.estimate import duration, seconds

    experiment, scale = plan.experiment, plan.scale
    _say(console, f"{experiment.place}: {experiment.shows}.")
    if cells:
        names = dict.fromkeys(cell.name for cell in cells)
        numbers = ", ".join(map(str, range(plan.seeds)))
        seeds = f"seed{'s' * (plan.seeds > 1)} {numbers}"
        _say(console, f"Runs, each with {seeds}: {', '.join(names)}.")
    for note in plan.notes:
        _say(console, f"Note: {note}")
    changes = plan.scaled_down
    _say(console, f"Scaled down from the paper: {'; '.join(changes) or 'nothing'}.")
    if cells:
        about = duration(seconds(cells, scale.machine))
        _say(console, f"This takes roughly {about} on {scale.machine.name}.")


def _show(console: Console, made: Made, study: Path) -> None:
    from feddm.analysis.study_display import print_table

    table = made.table
    parts = {line[0] for line in table.lines} if not table.titles[0] else set()
    print_table(console, table.in_parts() if parts else table, parts)
    for note in made.table.notes:
        _say(console, note)
    for picture in made.pictures:
        _say(console, f"Drawn in {picture}")
    _say(console, f"Results: {study}")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
