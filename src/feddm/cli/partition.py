"""``feddm partition``: show how the data are split over clients."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddm.cli import options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

EXAMPLES = """\
Examples:

- `feddm partition --dataset mnist --alpha 0.1`

- `feddm partition --clients 20 --set partition.scheme=classes --out split.png`"""

# One mark per class, so that the chart can be read without colors.
MARKS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLORS = (
    *("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f"),
    *("#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac"),
)


@options.configured(
    without={"algorithm", "rounds", "participation", "width", "ipc", "workers"},
)
def partition(
    given: options.Given,
    out: Annotated[
        Path | None, typer.Option(help="Also save a chart as this PNG file.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show how the training set is split over clients.

    This is the split that `feddm run` uses with the same options.
    """
    config = given.resolved()
    from feddm.data.partition import class_table
    from feddm.runtime.build import build_dataset, build_shards

    data = build_dataset(config.data)
    shards = build_shards(config.partition, data, config.seed)
    names = data.info.classes
    table = class_table(data.train.y.numpy(), shards, len(names))
    if json:
        print(json_.dumps({"classes": names, "clients": table.tolist()}))
    else:
        _show(table, names)
    if out is not None:
        from feddm.analysis.figures import draw_partition

        file = draw_partition(table, names, out)
        if not json:
            print(f"Drawn in {file}")


def _show(table: Any, names: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    titles = [_short(name, number) for number, name in enumerate(names)]
    cells = [[str(count) if count else "." for count in counts] for counts in table]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    # Client number, one column per class, number of classes and total, two spaces between.
    fits = (
        len("client") + sum(widths) + 2 * len(widths) + len("  classes   total") < console.width
    )
    rows = Table(box=None, pad_edge=False)
    for title in ("client", *(titles if fits else ()), "classes", "total"):
        rows.add_column(title, justify="right", no_wrap=True)
    for client, counts in enumerate(table):
        rows.add_row(
            str(client),
            *(cells[client] if fits else ()),
            str((counts > 0).sum()),
            str(counts.sum()),
        )
    console.print(rows)
    console.print()
    width = max(20, min(console.width, 100) - 12)
    for client, counts in enumerate(table):
        bar = _bar(counts, width * counts.sum() / table.sum(1).max())
        bar.pad_left(1)
        console.print(
            f"{client:>6}", bar, sep="", highlight=False, no_wrap=True, overflow="crop"
        )
    if titles != list(names) or any(len(name) > 1 for name in names):
        _legend(console, names)


def _legend(console: Console, names: tuple[str, ...]) -> None:
    """Prints which mark stands for which class, wrapped to the console width."""
    if len(names) > len(MARKS):
        return
    line = ""
    console.print()
    for mark, name in zip(MARKS, names, strict=False):
        entry = f"{mark} {name}  "
        if line and len(line + entry) > console.width:
            console.print(line, highlight=False, markup=False)
            line = ""
        line += entry
    console.print(line, highlight=False, markup=False)


def _short(name: str, number: int) -> str:
    return name if len(name) <= 5 else MARKS[number % len(MARKS)]


def _bar(counts: Any, width: float) -> Text:
    """Returns a bar in which each class takes its share of the width, in its mark and color."""
    from rich.text import Text

    bar = Text()
    end = done = 0.0
    for number, count in enumerate(counts):
        end += width * count / counts.sum()
        cells = round(end) - round(done)
        done = end
        color = COLORS[number % len(COLORS)]
        bar.append(MARKS[number % len(MARKS)] * cells, style=f"black on {color}")
    return bar
