"""``feddm bench`` and ``feddm profile``: how fast it is, and where the time goes."""

from __future__ import annotations

import json as json_
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from feddm.cli import options
from feddm.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from feddm.analysis.bench import Report
    from feddm.analysis.profiling import Part

BENCH_EXAMPLES = """\
Examples:

- `feddm bench`

- `feddm bench --width 32 --repeats 1 --compile off`"""

PROFILE_EXAMPLES = """\
Examples:

- `feddm profile --dataset cifar10 --width 128`

- `feddm profile --dataset mnist --algorithm fedavg`"""


def bench(
    width: Annotated[int, typer.Option(min=1, help="Channels of the ConvNet.")] = 128,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often what is compared is measured in turn.")
    ] = 3,
    compile_: Annotated[
        str, typer.Option("--compile", help="on measures compiled code too, where it works.")
    ] = "on",
    out: Annotated[Path | None, typer.Option(help="A file for the figures, as JSON.")] = None,
    json: options.Json = False,
) -> None:
    """Measure the speed of this machine with FedDM's kernels, clients and workers.

    Needs no data. Whatever is compared is measured in turn in one process; ratios say more than
    seconds, on a busy machine above all. It takes about ten minutes on two cores.
    """
    if compile_ not in ("on", "off"):
        raise ConfigError(f"--compile must be on or off, got {compile_!r}")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    if out is not None and out.is_dir():
        raise ConfigError(f"--out {out} is a folder, not a file")
    from dataclasses import asdict

    from rich.console import Console

    from feddm.analysis.bench import measure
    from feddm.runtime.results import finite

    console = Console(quiet=json)
    with console.status("") as status:

        def tick(what: str) -> None:
            status.update(f"Measuring {what}")
            if not console.is_terminal:
                console.print(f"Measuring {what}.")

        report = measure(width, repeats, compile_ == "on", tick)
    text = json_.dumps(finite(asdict(report)), indent=2, allow_nan=False)
    if json:
        print(text)
    for section in sections(report):
        console.print(_table(*section))
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")


class Section(NamedTuple):
    """A table of the report."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def sections(report: Report) -> list[Section]:
    """Returns the report as tables."""
    return [_kernels(report), _updates(report), _settings(report), _rest(report)]


def _kernels(report: Report) -> Section:
    return Section(
        f"ConvNet of width {report.width}, one thread; large matrices: "
        f"{report.sgemm_gflops:.0f} GFLOP/s",
        ["code", "pass", "images/s", "GFLOP/s", "of matrices"],
        [
            [
                kernel.mode,
                PASSES[kernel.name],
                f"{kernel.images_per_second:,.0f}",
                f"{kernel.gflops:.1f}",
                f"{100 * kernel.share:.0f} %",
            ]
            for kernel in report.kernels
        ],
    )


def _updates(report: Report) -> Section:
    return Section(
        "One client with 5,000 images of 9 classes, one round, "
        + ("compiled" if report.compiler == "works" else "not compiled"),
        ["update", "forward", "and back", "seconds", "by quick", "sent", "measured"],
        [
            [
                update.name,
                f"{update.forward:,.0f}",
                f"{update.backward:,.0f}",
                f"{update.seconds:,.1f}",
                f"{update.ratio:.2f}",
                f"{update.bytes_up / 1e6:.2f} MB",
                update.measured,
            ]
            for update in report.updates
        ],
    )


def _settings(report: Report) -> Section:
    rows = [[update.name, update.settings] for update in report.updates]
    return Section("What the updates do", ["update", "settings"], rows)


def _rest(report: Report) -> Section:
    workers, memory = report.workers, report.memory
    return Section(
        "Around it",
        ["what", "figure"],
        [
            ["torch.compile", report.compiler],
            [f"speed-up of {workers.workers} workers", f"{workers.speedup:.2f}"],
            ["a small client, beyond its own work", f"{workers.overhead_ms:.1f} ms"],
            [
                f"memory after {workers.clients // 10} and {workers.clients} such clients",
                f"{workers.memory_few_mb:,.0f} and {workers.memory_all_mb:,.0f} MB",
            ],
            ["the ball's share of a server's step", f"{100 * report.projection_share:.2f} %"],
            *(
                [["a private client by a plain one", f"{report.private_ratio:.2f} times"]]
                if math.isfinite(report.private_ratio)
                else []
            ),
            [
                "peak memory, ten clients, two workers",
                f"{memory.total_mb:,.0f} MB, {memory.workers_mb:,.0f} of it in workers",
            ],
            *([key, value] for key, value in report.machine.items()),
        ],
    )


PASSES = {
    "forward": "forward",
    "images": "and back to images",
    "weights": "and back to weights",
}


@options.configured()
def profile(given: options.Given, json: options.Json = False) -> None:
    """Run one round in this process, and show where its time goes."""
    config = given.resolved()
    from dataclasses import asdict

    from rich.console import Console

    from feddm.analysis.profiling import profile as profiled

    console = Console(quiet=json)
    with console.status("Running one round"):
        parts = profiled(config)
    if json:
        print(json_.dumps([asdict(part) for part in parts], indent=2))
    else:
        console.print(_profile_table(parts))


def _profile_table(parts: list[Part]) -> Table:
    whole = parts[0].seconds
    return _table(
        "One round",
        ["part", "seconds", "share", "calls"],
        [
            [
                part.name,
                f"{part.seconds:,.2f}",
                f"{100 * part.seconds / whole:.1f} %",
                f"{part.calls:,}",
            ]
            for part in parts
            if part.calls
        ],
    )


def _table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE)
    for number, column in enumerate(columns):
        words = number == 0 or column in ("pass", "measured", "settings", "figure")
        table.add_column(column, justify="left" if words else "right", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    return table
