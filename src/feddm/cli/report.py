"""``feddm report``: results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Protocol

import typer

EXAMPLES = """\
Examples:

- `feddm report runs/feddm-digits-1`

- `feddm report runs/compare-mnist-1 --out mnist.html --figures`

- `feddm report runs/feddm-digits-1 runs/feddm-digits-2 --out both.html`"""

WriteReport = Annotated[
    bool, typer.Option("--report/--no-report", help="Write report.html at the end.")
]


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of runs or studies.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: report.html in the first RUN."),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also draw the figures, as PNG and PDF.")
    ] = False,
    neighbours: Annotated[
        bool,
        typer.Option(
            "--neighbours", help="Show the nearest real image below each synthetic one."
        ),
    ] = False,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the report in the browser.")
    ] = False,
) -> None:
    """Make one HTML report of runs or a study.

    The file opens in any browser, without a server or a network. It shows curves, synthetic
    images, time, messages, privacy and settings. Runs that differ only in the seed are
    averaged.
    """
    from feddm.analysis.report.writing import write_report

    written = write_report(runs, out, figures=figures, neighbours=neighbours)
    for note in written.notes:
        print(f"Note: {note}")
    for file in written.figures:
        print(f"Drawn in {file}")
    print(f"Report: {written.page}")
    if open_:
        import webbrowser

        webbrowser.open(written.page.absolute().as_uri())


class Screen(Protocol):
    """Where a command shows its messages."""

    def say(self, text: str) -> None: ...

    def notice(self, text: str) -> None: ...


def report_at_end(path: Path, screen: Screen) -> None:
    """Writes the report of a run or study that has just finished; a failure is only a note."""
    try:
        from feddm.analysis.report.writing import write_report

        page = write_report([path]).page
    except Exception as error:
        # The results are already on disk, and `feddm report` shows the full error.
        screen.notice(f"could not write the report: {error}")
    else:
        screen.say(f"Report: {page}")
