"""``feddm data``: list, download and check data sets."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from feddm.cli import options
from feddm.data.catalog import DATASETS, describe
from feddm.errors import ConfigError, DataError

EXAMPLES = """\
Examples:

- `feddm data list`

- `feddm data fetch mnist --data-dir data`"""

CHECK_EXAMPLES = """\
Examples:

- `feddm data check mnist`

- `feddm data check scans --out sheet.png`"""

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


@app.command(epilog=CHECK_EXAMPLES)
def check(
    names: Names = None,
    out: Annotated[
        Path | None, typer.Option(help="PNG with images of each class of your own data.")
    ] = None,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Verify data sets against their checksums, or look at your own data.

    For data of your own, name their folder or file: you see how many examples there are of
    what, what cannot be read, and what a run would make of it.
    """
    own = [name for name in names or () if name not in DATASETS and _is_own(name)]
    if own:
        if len(own) < len(names or ()) or (out is not None and len(own) > 1):
            raise ConfigError("your own data are checked one at a time: name one path")
        _check_own(own[0], out, json)
        return
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


def _is_own(name: str) -> bool:
    return name.startswith("hf:") or "/" in name or "." in name or Path(name).exists()


def _check_own(path: str, out: Path | None, json: bool) -> None:
    from feddm.data.check import check_own, contact_sheet
    from feddm.data.sources import absolute

    found = check_own(absolute(path))
    data, sheet = found.data, contact_sheet(found.data)
    if out is not None:
        if sheet is None:
            raise ConfigError("--out cannot show these data: they are no images")
        sheet.save(out, "PNG")
    if json:
        about = {
            "examples": len(data),
            "shape": list(data.shape),
            "counts": found.counts,
            "broken": {str(each.path): each.reason for each in data.broken},
        }
        print(json_.dumps(about, indent=2))
        return
    what = "vectors" if data.shape[1:] == (1, 1) else "images"
    number = len(data.broken)
    bad = f", {number} file{'s' * (number != 1)} that cannot be read" if number else ""
    print(f"{len(data):,} {what}{bad}")
    for title, counts in found.counts.items():
        for name, count in counts.items():
            print(f"{title:<8} {name:<24} {count:>8,}")
    for each in data.broken:
        print(f"broken   {each.path} {each.reason}")
    shape = " x ".join(map(str, data.shape))
    print(f"A run takes them as {shape} (channels x height x width).")
    if data.converted:
        print(f"{data.converted}.")
    if out is not None:
        print(f"Some of each class: {out}")


def _state(problem: str | None) -> str:
    return "ok" if problem is None else "FAILED"
