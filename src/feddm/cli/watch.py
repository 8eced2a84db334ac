"""``feddm watch``: a run that goes on elsewhere."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from feddm.config import Config
    from feddm.federation import RoundRecord
    from feddm.rundir import RunDirectory

EXAMPLES = "Example: `feddm watch runs/feddm-digits-1`, while it runs in another terminal"

REFRESH = 0.5  # seconds between two looks
SILENCE = 5.0  # seconds without news after which we ask whether anybody is at work
CURVE_HEIGHT = 10  # lines
MARGIN = 9  # characters for the numbers beside the curve
# Bits of the eight dots of a Braille character, by row and column.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def watch(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Its run directory.")],
) -> None:
    """Show a run that goes on in another terminal: its rounds and its curve.

    It ends with the run, or with Ctrl-C, which the run does not notice. Without a terminal it
    prints what there is, once.
    """
    from rich.console import Console

    from feddm.errors import RunDirectoryError
    from feddm.rundir import RunDirectory

    if (directory / "cells").is_dir():
        raise RunDirectoryError(f"{directory} is a study; name one of {directory / 'cells'}")
    opened = RunDirectory.open(directory)
    config = opened.config()
    console = Console()
    if not console.is_terminal:
        console.print(view(config, opened.records(), console), soft_wrap=True)
        return
    _follow(opened, config, console)


def _follow(opened: RunDirectory, config: Config, console: Console) -> None:
    """Shows the run until it ends."""
    from rich.live import Live

    records = opened.records()
    news = -math.inf
    with Live(console=console, auto_refresh=False, transient=True) as live:
        try:
            while True:
                live.update(view(config, records, console), refresh=True)
                if (opened.path / "model.safetensors").exists():
                    last = f"The run has ended. Look at it: feddm report {_quoted(opened)}"
                    break
                if time.monotonic() - news > SILENCE:
                    if not in_use(opened):
                        last = f"Nobody is at work on it: feddm resume {_quoted(opened)}"
                        break
                    news = time.monotonic()
                time.sleep(REFRESH)
                latest = opened.records()
                if len(latest) != len(records):
                    records, news = latest, time.monotonic()
        except KeyboardInterrupt:
            last = "The run goes on."
    console.print(view(config, records, console))
    console.print(last, markup=False, highlight=False, soft_wrap=True)


def in_use(opened: RunDirectory) -> bool:
    """Returns whether a process is at work on the run."""
    from feddm.errors import RunDirectoryError

    try:
        with opened:  # for no longer than this: another could want to begin
            return False
    except RunDirectoryError:
        return True


def _quoted(opened: RunDirectory) -> str:
    return shlex.quote(str(opened.path))


def view(config: Config, records: Sequence[RoundRecord], console: Console) -> Text:
    """Returns the rounds and the curve; on a terminal, the last rounds that fit."""
    from rich.text import Text

    from feddm.cli.display import HEADER, PRIVATE_HEADER, line

    chart = curve(
        [record.accuracy for record in records],
        config.rounds,
        min(console.width, 80) - 1,
        CURVE_HEIGHT,
        ascii_only=console.options.ascii_only,
    )
    rows = [line(record, config.rounds) for record in records]
    if console.is_terminal:
        room = max(console.height - len(chart) - 5, 3)
        rows = rows[-room:]
    text = Text()
    text.append(f"{config.algorithm} on {config.data.name}, seed {config.seed}")
    text.append(f": {len(records)} of {config.rounds} rounds\n")
    private = config.privacy.mechanism != "none"
    text.append(f"{PRIVATE_HEADER if private else HEADER}\n", style="bold")
    text.append("".join(f"{row}\n" for row in rows))
    text.append("\n".join(["", *chart]) if chart else "the first round is not over yet")
    return text


def curve(
    accuracies: Sequence[float],
    rounds: int,
    width: int,
    height: int,
    *,
    ascii_only: bool = False,
) -> list[str]:
    """Returns lines that draw an accuracy for each round, of as many as are planned.

    >>> for row in curve([0.5, 0.75, 1.0], 3, 13, 3, ascii_only=True):
    ...     print(row)
     100.0 % |  *
             | *
      50.0 % |*
    """
    known = [(n, value) for n, value in enumerate(accuracies) if math.isfinite(value)]
    if not known:
        return []
    low, high = min(v for _, v in known), max(v for _, v in known)
    if high - low < 0.001:
        low, high = low - 0.005, high + 0.005
    columns = width - MARGIN - 1
    across, down = (1, 1) if ascii_only else (2, 4)
    right, bottom = across * columns - 1, down * height - 1

    def place(number: float, value: float) -> tuple[int, int]:
        x = number / max(rounds - 1, 1) * right
        return round(x), round((high - value) / (high - low) * bottom)

    grid = [[0] * columns for _ in range(height)]
    for (n, value), (m, other) in zip(known, known[1:] or known, strict=False):
        (x, y), (end, last) = place(n, value), place(m, other)
        steps = max(abs(end - x), abs(last - y), 1)
        for step in range(steps + 1):
            column = x + round((end - x) * step / steps)
            row = y + round((last - y) * step / steps)
            dot = DOTS[row % down][column % across]
            grid[row // down][column // across] |= dot
    labels = {0: f"{100 * high:.1f} %", height - 1: f"{100 * low:.1f} %"}
    edge = "|" if ascii_only else "│"
    lines = []
    for number, bits in enumerate(grid):
        drawn = "".join(_character(each, ascii_only) for each in bits)
        lines.append(f"{labels.get(number, ''):>{MARGIN - 1}} {edge}{drawn}".rstrip())
    return lines


def _character(bits: int, ascii_only: bool) -> str:
    if ascii_only or not bits:
        return "*" if bits else " "
    return chr(0x2800 + bits)
