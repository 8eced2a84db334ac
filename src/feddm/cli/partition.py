"""``feddm partition``: who has what."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddm.cli import options

if TYPE_CHECKING:
    from rich.text import Text

EXAMPLES = """\
Examples:

- `feddm partition --dataset mnist --alpha 0.1`

- `feddm partition --clients 20 --set partition.scheme=classes --out split.png`"""

# Of each class its own mark, so that the chart can be read without colours too.
MARKS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLORS = (
    *("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f"),
    *("#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac"),
)
MOST_COLUMNS = 10  # classes that fit beside each other on 80 columns


@options.configured(
    without={"algorithm", "rounds", "participation", "width", "ipc", "workers"},
)
def partition(
    given: options.Given,
    out: Annotated[
        Path | None, typer.Option(help="Draw it into this PNG file as well.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show how the training set is split over clients.

    It is the split that `feddm run` would use with the same options.
    """
    config = given.resolved()
    from feddm.build import build_dataset, build_shards
    from feddm.data.partition import class_table

    data = build_dataset(config.data)
    shards = build_shards(config.partition, data, config.seed)
    names = data.info.classes
    table = class_table(data.train.y.numpy(), shards, len(names))
    if json:
        print(json_.dumps({"classes": names, "clients": table.tolist()}))
    else:
        _show(table, names)
    if out is not None:
        from feddm.figures import draw_partition

        draw_partition(table, names, out)
        if not json:
            print(f"Drawn in {out}")


def _show(table: Any, names: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    rows = Table(box=None, pad_edge=False)
    rows.add_column("client", justify="right")
    few = len(names) <= MOST_COLUMNS
    for number, name in enumerate(names if few else ()):
        rows.add_column(_short(name, number), justify="right", no_wrap=True)
    rows.add_column("classes", justify="right")
    rows.add_column("total", justify="right")
    for client, counts in enumerate(table):
        cells = [str(count) if count else "." for count in counts] if few else []
        rows.add_row(str(client), *cells, str((counts > 0).sum()), str(counts.sum()))
    console.print(rows)
    console.print()
    width = max(20, min(console.width, 100) - 12)
    for client, counts in enumerate(table):
        bar = _bar(counts, width * counts.sum() / table.sum(1).max())
        bar.pad_left(1)
        console.print(
            f"{client:>6}", bar, sep="", highlight=False, no_wrap=True, overflow="crop"
        )
    if few:
        legend = "  ".join(f"{MARKS[c]} {name}" for c, name in enumerate(names))
        console.print(f"\n{legend}", highlight=False, markup=False)


def _short(name: str, number: int) -> str:
    return name if len(name) <= 5 else MARKS[number]


def _bar(counts: Any, width: float) -> Text:
    """Returns a bar in which each class has its share of the width, in its mark and colour."""
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
