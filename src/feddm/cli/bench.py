"""``feddm bench`` and ``feddm profile``: how fast a round is, and where its time goes."""

from __future__ import annotations

import json as json_
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddm.cli import options
from feddm.errors import ConfigError

if TYPE_CHECKING:
    from feddm.analysis.bench import BenchReport
    from feddm.analysis.profiling import ProfilePart
    from feddm.analysis.tables import Table

BENCH_EXAMPLES = """\
Examples:

- `feddm bench`

- `feddm bench --width 32 --repeats 1 --compile off`"""

PROFILE_EXAMPLES = """\
Examples:

- `feddm profile --dataset cifar10 --width 128`

- `feddm profile --dataset mnist --algorithm fedavg`"""


def bench(
    width: Annotated[int, typer.Option(min=1, help="Width of the ConvNet, in channels.")] = 128,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often each comparison is measured.")
    ] = 3,
    compile_: Annotated[
        str,
        typer.Option(
            "--compile", help="on: also measure compiled code, if torch.compile works."
        ),
    ] = "on",
    out: Annotated[
        Path | None, typer.Option(help="Also write the results to this JSON file.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure the speed of FedDM's kernels, clients and workers on this machine.

    Takes about ten minutes on two cores and needs no data. What is compared is measured in turn
    in one process, so trust ratios more than seconds, above all on a busy machine.
    """
    if compile_ not in ("on", "off"):
        raise ConfigError(f"--compile must be on or off, got {compile_!r}")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the directory {out.parent} does not exist")
    if out is not None and out.is_dir():
        raise ConfigError(f"--out must be a file, but {out} is a directory")
    from dataclasses import asdict

    from rich.console import Console

    from feddm.analysis.bench import measure
    from feddm.analysis.study_display import print_table
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
    for title, table in tables(report).items():
        console.print(f"\n{title}", style="bold", highlight=False)
        print_table(console, table)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")


def tables(report: BenchReport) -> dict[str, Table]:
    """Returns the tables of a report, by title."""
    from feddm.analysis.tables import Table

    compiled = "compiled" if report.compiler == "works" else "not compiled"
    return {
        f"ConvNet of width {report.width}, one thread; large matrix products: "
        f"{report.sgemm_gflops:.0f} GFLOP/s": Table(
            ["code", "pass", "images/s", "GFLOP/s", "of matmul"],
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
        ),
        f"One client with 5,000 images of 9 classes, one round, {compiled}": Table(
            ["update", "forward", "backward", "seconds", "vs quick", "sent", "measured"],
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
        ),
        "Settings of the updates": Table(
            ["update", "settings"],
            [[update.name, update.settings] for update in report.updates],
        ),
        "Other measurements": Table(["measurement", "value"], _others(report)),
    }


def _others(report: BenchReport) -> list[list[str]]:
    workers, memory = report.workers, report.memory
    lines = [
        ["torch.compile", report.compiler],
        [f"speed-up of {workers.workers} workers", f"{workers.speedup:.2f}"],
        ["overhead of a small client", f"{workers.overhead_ms:.1f} ms"],
        [
            f"memory after {workers.clients // 10} and {workers.clients} small clients",
            f"{workers.memory_few_mb:,.0f} and {workers.memory_all_mb:,.0f} MB",
        ],
        ["projection, share of a server step", f"{100 * report.projection_share:.2f} %"],
    ]
    if math.isfinite(report.private_ratio):
        lines.append(["time of a private client vs a plain one", f"{report.private_ratio:.2f}"])
    total, in_workers = (
        f"{memory.total_mb:,.0f} MB",
        f"{memory.workers_mb:,.0f} of it in workers",
    )
    lines.append(["peak memory, 10 clients, 2 workers", f"{total}, {in_workers}"])
    return [*lines, *([key, value] for key, value in report.machine.items())]


PASSES = {
    "forward": "forward",
    "images": "forward and back to images",
    "weights": "forward and back to weights",
}


@options.configured()
def profile(given: options.Given, json: options.Json = False) -> None:
    """Run one round in this process and show where its time goes."""
    config = given.resolved()
    from dataclasses import asdict

    from rich.console import Console

    from feddm.analysis.profiling import profile as profiled
    from feddm.analysis.study_display import print_table

    console = Console(quiet=json)
    with console.status("Running one round"):
        parts = profiled(config)
    if json:
        print(json_.dumps([asdict(part) for part in parts], indent=2))
    else:
        print_table(console, _profile_table(parts))


def _profile_table(parts: list[ProfilePart]) -> Table:
    from feddm.analysis.tables import Table

    whole = parts[0].seconds
    return Table(
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
