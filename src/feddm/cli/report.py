"""``feddm report``: what came out, as a page to look at."""

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
        list[Path], typer.Argument(metavar="RUN...", help="Run directories, or studies.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write; else report.html in the first RUN.")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Draw figures beside it, too: PNG and PDF.")
    ] = False,
    neighbours: Annotated[
        bool,
        typer.Option("--neighbours", help="Show real images beside synthetic ones."),
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Make one HTML file that shows runs or a study.

    It opens anywhere, without a server or a network: curves, synthetic images, time, messages,
    privacy, settings. Runs that differ in the seed only are averaged.
    """
    from feddm.analysis.report.writing import write_report

    written = write_report(runs, out, figures=figures, neighbours=neighbours)
    for note in written.notes:
        print(f"Note: {note}")
    for file in written.figures:
        print(f"Drawn in {file}")
    print(f"The report is {written.page}")
    if open_:
        import webbrowser

        webbrowser.open(written.page.absolute().as_uri())


class Screen(Protocol):
    """Where a command shows what it has to say."""

    def say(self, text: str) -> None: ...

    def notice(self, text: str) -> None: ...


def report_at_end(path: Path, screen: Screen) -> None:
    """Writes the report of what has just ended; whatever goes wrong, the run is not lost."""
    try:
        from feddm.analysis.report.writing import write_report

        page = write_report([path]).page
    except Exception as error:
        # The results are on the disk, and `feddm report` shows what is wrong.
        screen.notice(f"no report was written: {error}")
    else:
        screen.say(f"The report is {page}")
