"""``feddm watch``: a run or a study that goes on elsewhere."""

from __future__ import annotations

import math
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from feddm.cli.curve import curve

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from feddm.config.schema import Config
    from feddm.runtime.federation import RoundRecord
    from feddm.runtime.rundir import RunDirectory

EXAMPLES = """\
Examples, while it runs in another terminal:

- `feddm watch runs/feddm-digits-1`

- `feddm watch runs/compare-mnist-1`"""

REFRESH = 0.5  # seconds between two looks
SILENCE = 5.0  # seconds without news after which we ask whether anybody is at work
PAUSE = 15.0  # seconds that a study may take between two runs
CURVE_HEIGHT = 10  # lines


def watch(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="Its directory, or that of a study.")
    ],
) -> None:
    """Show a run that goes on in another terminal: its rounds and its curve.

    Of a study it shows all runs, and the curve of the last one. It ends with them, or with
    Ctrl-C, which they do not notice. Without a terminal it prints what there is, once.
    """
    from rich.console import Console

    watched = Study(directory) if (directory / "cells").is_dir() else Run(directory)
    console = Console()
    if console.is_terminal:
        follow(watched, console)
    else:
        console.print(watched.view(console), soft_wrap=True)


class Watched(Protocol):
    """Something that goes on elsewhere."""

    def view(self, console: Console) -> Text:
        """Returns how it looks now, small enough for the terminal."""

    def end(self) -> str:
        """Returns why there is nothing more to come; nothing while there is."""


def follow(watched: Watched, console: Console) -> None:
    """Shows it until it ends."""
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True) as live:
        try:
            while True:
                live.update(watched.view(console), refresh=True)
                if last := watched.end():
                    break
                time.sleep(REFRESH)
        except KeyboardInterrupt:
            last = "It goes on."
    console.print(watched.view(console))
    console.print(last, markup=False, highlight=False, soft_wrap=True)


class Run:
    """A run that goes on elsewhere."""

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
        """Whether it has written the last that a run writes."""
        return (self.opened.path / "model.safetensors").exists()

    def changed(self) -> float:
        """Returns when it was last written to."""
        files = (self.opened.path / name for name in ("config.toml", "results.jsonl"))
        return max(file.stat().st_mtime for file in files if file.exists())

    def view(self, console: Console) -> Text:
        from rich.text import Text

        from feddm.cli.display import HEADER, PRIVATE_HEADER, line

        config, records = self.config, self.opened.records()
        chart = chart_of(config, records, console)
        rows = [line(record, config.rounds) for record in records]
        if console.is_terminal:
            rows = rows[-max(console.height - len(chart) - 5, 3) :]
        text = Text()
        text.append(f"{config.algorithm} on {config.data.name}, seed {config.seed}")
        text.append(f": {len(records)} of {config.rounds} rounds\n")
        private = config.privacy.mechanism != "none"
        text.append(f"{PRIVATE_HEADER if private else HEADER}\n", style="bold")
        text.append("".join(f"{row}\n" for row in rows))
        text.append("\n".join(["", *chart]) if chart else "the first round is not over yet")
        return text

    def end(self) -> str:
        if self.ended:
            return f"The run has ended. Look at it: feddm report {_quoted(self.opened.path)}"
        rounds = len(self.opened.records())
        if rounds != self._rounds:
            self._rounds, self._news = rounds, time.monotonic()
        if time.monotonic() - self._news > SILENCE:
            if not in_use(self.opened):
                return f"Nobody is at work on it: feddm resume {_quoted(self.opened.path)}"
            self._news = time.monotonic()
        return ""


class Study:
    """A study that goes on elsewhere: the runs that it has begun, the last one last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[Path, Run] = {}
        self._asked = -math.inf
        self._busy = time.monotonic()

    def runs(self) -> list[Run]:
        for file in self._path.glob("cells/*/config.toml"):
            if file.parent not in self._known and file.parent.suffix != ".part":
                self._known[file.parent] = Run(file.parent)
        return sorted(self._known.values(), key=lambda run: (run.changed(), run.name))

    def view(self, console: Console) -> Text:
        from rich.text import Text

        from feddm.core.formatting import percent
        from feddm.runtime.wording import epsilon_cell

        runs = self.runs()
        done = sum(run.ended for run in runs)
        private = any(run.config.privacy.mechanism != "none" for run in runs)
        records = {run.name: run.opened.records() for run in runs}
        chart = chart_of(runs[-1].config, records[runs[-1].name], console) if runs else []
        text = Text(f"{self._path}: {len(runs)} runs begun, {done} ended\n")
        wide = min(max((len(run.name) for run in runs), default=0), 45)
        title = f"{'':<{wide}}   round  accuracy{'      epsilon' if private else ''}\n"
        text.append(title, style="bold")
        room = max(console.height - len(chart) - 5, 3) if console.is_terminal else len(runs)
        for run in runs[-room:]:
            rounds = records[run.name]
            last = rounds[-1] if rounds else None
            name = run.name if len(run.name) <= wide else f"…{run.name[1 - wide :]}"
            text.append(f"{name:<{wide}}")
            text.append(f" {f'{len(rounds)}/{run.config.rounds}':>7}")
            text.append(f" {percent(last.accuracy) if last else '':>9}")
            if private:
                text.append(f" {epsilon_cell(last.epsilon, last.privacy) if last else '':>12}")
            text.append("\n")
        text.append("\n".join(["", *chart]))
        return text

    def end(self) -> str:
        runs = self.runs()
        table = self._path / "study.json"  # the last that a study writes
        latest = max((run.changed() for run in runs), default=math.inf)
        if table.exists() and table.stat().st_mtime >= latest:
            return f"The study has ended. Look at it: feddm report {_quoted(self._path)}"
        if time.monotonic() - self._asked > SILENCE:
            self._asked = time.monotonic()
            if any(in_use(run.opened) for run in runs[-1:]):
                self._busy = self._asked
        if time.monotonic() - self._busy > PAUSE:
            return "Nobody is at work on it; the command that began it goes on with it."
        return ""


def in_use(opened: RunDirectory) -> bool:
    """Returns whether a process is at work on the run."""
    from feddm.errors import RunDirectoryError

    try:
        with opened:  # for no longer than this: another could want to begin
            return False
    except RunDirectoryError:
        return True


def chart_of(config: Config, records: list[RoundRecord], console: Console) -> list[str]:
    """Returns the lines of the curve of a run."""
    return curve(
        [record.accuracy for record in records],
        config.rounds,
        min(console.width, 80) - 1,
        CURVE_HEIGHT,
        ascii_only=console.options.ascii_only,
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
