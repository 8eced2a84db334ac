"""``feddm watch``: follows a run or a study in another terminal."""

from __future__ import annotations

import math
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from feddm.cli.curve import curve
from feddm.config.code import label

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from feddm.config.schema import Config
    from feddm.runtime.federation import RoundRecord
    from feddm.runtime.rundir import RunDirectory

EXAMPLES = """\
Examples, while the run goes on in another terminal:

- `feddm watch runs/feddm-digits-1`

- `feddm watch runs/compare-mnist-1`"""

REFRESH = 0.5  # seconds between two updates
SILENCE = 5.0  # seconds without a new round before we check that a process is at work
PAUSE = 15.0  # seconds that a study may take between two runs
CURVE_HEIGHT = 10  # lines
LONGEST_NAME = 45  # characters of a run's name


def watch(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of a run or a study.")
    ],
) -> None:
    """Follow a run in another terminal: its rounds and its accuracy curve.

    For a study, shows all runs and the curve of the latest one. Exits when the run ends;
    Ctrl-C stops watching, not the run. Without a terminal, prints the current state once.
    """
    from rich.console import Console

    watched = Study(directory) if (directory / "cells").is_dir() else WatchedRun(directory)
    console = Console()
    if console.is_terminal:
        follow(watched, console)
    else:
        console.print(watched.view(console), soft_wrap=True)


class Watched(Protocol):
    """A run or a study in another process."""

    def view(self, console: Console) -> Text:
        """Returns its current state, cut to fit the terminal."""

    def end(self) -> str:
        """Returns why it has stopped, or an empty text while it runs."""


def follow(watched: Watched, console: Console) -> None:
    """Shows a run or a study until it stops."""
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True) as live:
        try:
            while True:
                live.update(watched.view(console), refresh=True)
                if last := watched.end():
                    break
                time.sleep(REFRESH)
        except KeyboardInterrupt:
            last = "Still running."
    console.print(watched.view(console))
    console.print(last, markup=False, highlight=False, soft_wrap=True)


class WatchedRun:
    """A run in another process."""

    def __init__(self, path: Path) -> None:
        from feddm.runtime.rundir import RunDirectory

        self.opened = RunDirectory.open(path)
        self.config = self.opened.config()
        self._rounds = 0
        self._news = -math.inf

    @property
    def name(self) -> str:
        return self.opened.path.name

    @property
    def ended(self) -> bool:
        """Whether it has written the last file of a run."""
        return (self.opened.path / "model.safetensors").exists()

    def changed(self) -> float:
        """Returns when it was last written to."""
        files = (self.opened.path / name for name in ("config.toml", "results.jsonl"))
        return max(file.stat().st_mtime for file in files if file.exists())

    def view(self, console: Console) -> Text:
        from rich.text import Text

        from feddm.runtime.display import HEADER, PRIVATE_HEADER, line

        config, records = self.config, self.opened.records()
        chart = chart_of(config, records, console)
        rows = [line(record, config.rounds) for record in records]
        if console.is_terminal:
            rows = rows[-max(console.height - len(chart) - 5, 3) :]
        text = Text()
        text.append(f"{label(config.algorithm.name)} on {config.data.name}, seed {config.seed}")
        text.append(f": {len(records)} of {config.rounds} rounds\n")
        private = config.privacy is not None
        text.append(f"{PRIVATE_HEADER if private else HEADER}\n", style="bold")
        text.append("".join(f"{row}\n" for row in rows))
        text.append("\n".join(["", *chart]) if chart else "waiting for the first round")
        return text

    def end(self) -> str:
        if self.ended:
            return f"The run has finished. Report: feddm report {_quoted(self.opened.path)}"
        rounds = len(self.opened.records())
        if rounds != self._rounds:
            self._rounds, self._news = rounds, time.monotonic()
        if time.monotonic() - self._news > SILENCE:
            if not in_use(self.opened):
                return (
                    f"The run has stopped. Continue: feddm resume {_quoted(self.opened.path)}"
                )
            self._news = time.monotonic()
        return ""


class Study:
    """A study in another process: the runs started so far, the latest last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[Path, WatchedRun] = {}
        self._asked = -math.inf
        self._busy = time.monotonic()

    def runs(self) -> list[WatchedRun]:
        for file in self._path.glob("cells/*/config.toml"):
            if file.parent not in self._known and file.parent.suffix != ".part":
                self._known[file.parent] = WatchedRun(file.parent)
        return sorted(self._known.values(), key=lambda run: (run.changed(), run.name))

    def view(self, console: Console) -> Text:
        from rich.text import Text

        from feddm.analysis.study_display import table_text
        from feddm.analysis.tables import Table
        from feddm.core.formatting import percent
        from feddm.runtime.wording import epsilon_cell

        runs = self.runs()
        done = sum(run.ended for run in runs)
        private = any(run.config.privacy is not None for run in runs)
        records = {run.name: run.opened.records() for run in runs}
        chart = chart_of(runs[-1].config, records[runs[-1].name], console) if runs else []
        text = Text(f"{self._path}: {len(runs)} runs started, {done} finished\n")
        room = max(console.height - len(chart) - 5, 3) if console.is_terminal else len(runs)
        lines = []
        for run in runs[-room:]:
            rounds = records[run.name]
            last = rounds[-1] if rounds else None
            name = (
                run.name
                if len(run.name) <= LONGEST_NAME
                else f"…{run.name[1 - LONGEST_NAME :]}"
            )
            line = [
                name,
                f"{len(rounds)}/{run.config.rounds}",
                percent(last.accuracy) if last else "",
            ]
            if private:
                line.append(epsilon_cell(last.epsilon, last.privacy) if last else "")
            lines.append(line)
        titles = ["", "round", "accuracy", *(["epsilon"] if private else [])]
        text.append_text(table_text(Table(titles, lines), console.width))
        text.append("\n")
        text.append("\n".join(["", *chart]))
        return text

    def end(self) -> str:
        runs = self.runs()
        table = self._path / "study.json"  # the last file that a study writes
        latest = max((run.changed() for run in runs), default=math.inf)
        if table.exists() and table.stat().st_mtime >= latest:
            return f"The study has finished. Report: feddm report {_quoted(self._path)}"
        if time.monotonic() - self._asked > SILENCE:
            self._asked = time.monotonic()
            if any(in_use(run.opened) for run in runs[-1:]):
                self._busy = self._asked
        if time.monotonic() - self._busy > PAUSE:
            return "The study has stopped. Run its command again to continue."
        return ""


def in_use(opened: RunDirectory) -> bool:
    """Returns whether a process is working on the run."""
    from feddm.errors import RunDirectoryError

    try:
        with opened:  # release at once: another process may want to start
            return False
    except RunDirectoryError:
        return True


def chart_of(config: Config, records: list[RoundRecord], console: Console) -> list[str]:
    """Returns the lines of a run's accuracy curve."""
    return curve(
        [record.accuracy for record in records],
        config.rounds,
        min(console.width, 80) - 1,
        CURVE_HEIGHT,
        ascii_only=console.options.ascii_only,
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
