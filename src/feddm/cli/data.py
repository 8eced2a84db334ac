"""``feddm data``: list, download and check data sets."""

from __future__ import annotations

import json as json_
from typing import Annotated

import typer

from feddm.cli import options
from feddm.data.catalog import DATASETS, describe
from feddm.errors import DataError

EXAMPLES = """\
Examples:

- `feddm data list`

- `feddm data fetch mnist --data-dir data`"""

app = typer.Typer(no_args_is_help=True, help="List, download and check data sets.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the data set.")]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...", help="Names of data sets; by default, all that you have."
    ),
]


@app.command("list", epilog="Example: `feddm data list`")
def list_(data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """Show all data sets and where they are."""
    from rich.console import Console
    from rich.table import Table

    from feddm.data.datasets import data_root, locate

    rows = []
    for info in DATASETS.values():
        location = locate(info, data_dir)
        complete = location is not None and not location.missing
        rows.append(
            {
                "name": info.name,
                "classes": len(info.classes),
                "train": info.num_train,
                "test": info.num_test,
                "shape": list(info.shape),
                "place": str(location.folder) if location is not None and complete else None,
                "builtin": info.builtin,
            }
        )
    if json:
        print(json_.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name", "classes", "train", "test", "images", "location"):
        right = title in ("classes", "train", "test")
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for row, info in zip(rows, DATASETS.values(), strict=True):
        place = "comes with feddm" if info.builtin else row["place"] or "not downloaded"
        shape = "x".join(map(str, info.shape))
        table.add_row(
            info.name,
            str(row["classes"]),
            f"{row['train']:,}",
            f"{row['test']:,}",
            shape,
            str(place),
        )
    console = Console()
    console.print(table)
    console.print(
        f"Data folder: {data_root(data_dir)}", highlight=False, markup=False, soft_wrap=True
    )


@app.command(epilog="Example: `feddm data fetch cifar10`")
def fetch(name: Name, data_dir: options.DataDir = None, quiet: options.Quiet = False) -> None:
    """Download a data set from its official source and verify it.

    Files that you already have are not downloaded again, unless they are damaged.
    """
    describe(name)
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    from feddm.data.fetch import fetch as fetch_files

    console = Console(quiet=quiet)
    bars: dict[str, TaskID] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def show(file: str, done: int, total: int) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file)
                if not console.is_terminal:
                    console.print(f"downloading {file}", highlight=False, markup=False)
            progress.update(bars[file], completed=done, total=total or None)

        folder = fetch_files(name, data_dir, show)
    console.print(f"{name} is in {folder}", highlight=False, markup=False, soft_wrap=True)


@app.command(epilog="Example: `feddm data check mnist`")
def check(names: Names = None, data_dir: options.DataDir = None) -> None:
    """Verify the files of data sets against their checksums."""
    from feddm.data.datasets import check_dataset, locate

    chosen = [describe(name) for name in names or ()]
    chosen = chosen or [info for info in DATASETS.values() if locate(info, data_dir)]
    damaged = []
    for info in chosen:
        for found in check_dataset(info, data_dir):
            print(f"{info.name:<14} {_state(found.problem):<8} {found.path}")
            if found.problem is not None:
                damaged.append(found.problem)
    if damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise DataError(f"{damaged[0]}{more}")


def _state(problem: str | None) -> str:
    return "ok" if problem is None else "FAILED"
