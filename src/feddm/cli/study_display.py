"""How a study looks: a live table on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from feddm.cli.display import STAGES, percent
from feddm.comparison import cells as row_cells
from feddm.comparison import header, legend
from feddm.studies import Cell, StudyObserver

if TYPE_CHECKING:
    from feddm.comparison import Row
    from feddm.federation import RoundRecord


class StudyDisplay(StudyObserver):
    """Shows a study; use it in a ``with`` block."""

    def __init__(self, console: Console, cells: Sequence[Cell], study: Path) -> None:
        self._console = console
        self._study = study
        self._names = list(dict.fromkeys(cell.name for cell in cells))
        self._seeds = list(dict.fromkeys(cell.seed for cell in cells))
        self._texts = {(cell.name, cell.seed): "" for cell in cells}
        self._rounds = {(cell.name, cell.seed): cell.config.rounds for cell in cells}
        self._now: tuple[str, int] = (self._names[0], self._seeds[0])
        self._last = ""
        self._live = Live(console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        if kind is KeyboardInterrupt:
            self.say(
                f"Interrupted. The same command with --out {self._study} goes on from here."
            )

    def began(self, cell: Cell) -> None:
        self._now = (cell.name, cell.seed)
        self._last = ""
        self._show("starts")

    def progress(self, stage: str, fraction: float) -> None:
        if self._console.is_terminal:
            self._show(f"{self._last} {STAGES[stage]} {100 * fraction:.0f} %".strip())

    def finished_round(self, record: RoundRecord) -> None:
        name, seed = self._now
        done = f"{record.round}/{self._rounds[self._now]}"
        self._last = f"{percent(record.accuracy)} ({done})"
        self._show(self._last)
        if not self._console.is_terminal:
            self.say(f"{name} seed {seed}: round {done}, accuracy {percent(record.accuracy)}")

    def ended(self, cell: Cell, records: Sequence[RoundRecord]) -> None:
        self._show(percent(records[-1].accuracy) if records else "failed")

    def notice(self, text: str) -> None:
        self.say(f"Note: {text}.")

    def table(self, rows: Sequence[Row], study: Path) -> None:
        """Shows what came out."""
        self._live.stop()
        titles, texts = header(rows), row_cells(rows)
        # What a narrow screen has no room for: the files have it too.
        shown = [
            number
            for number, title in enumerate(titles)
            if title != "best %" or self._console.width >= 100
        ]
        table = Table(box=None, pad_edge=False)
        for number in shown:
            table.add_column(
                titles[number],
                justify="right" if number else "left",
                no_wrap=number < 3,
            )
        for row in texts:
            table.add_row(*(row[number] for number in shown))
        self._console.print(table, highlight=False, markup=False)
        self._console.print(
            legend(rows).replace("`", ""), style="dim", highlight=False, markup=False
        )
        self.say(f"Everything is in {study}")

    def say(self, text: str) -> None:
        """Shows one line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        self._texts[self._now] = text
        if not self._console.is_terminal:
            return
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for seed in self._seeds:
            table.add_column(f"seed {seed}")
        for name in self._names:
            table.add_row(name, *(self._texts.get((name, seed), "") for seed in self._seeds))
        self._live.update(table)
