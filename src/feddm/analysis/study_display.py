"""Display of a study: a live table on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from feddm.analysis.studies import Cell, StudyObserver
from feddm.analysis.tables import Table, accuracy_text, comparison, name_text, summarize
from feddm.core.formatting import percent
from feddm.runtime.display import STAGES
from feddm.runtime.wording import epsilon_cell, label

if TYPE_CHECKING:
    from feddm.analysis.tables import Row
    from feddm.runtime.federation import RoundRecord


class StudyDisplay(StudyObserver):
    """Shows a study. Use it in a ``with`` block."""

    def __init__(self, console: Console, cells: Sequence[Cell], study: Path) -> None:
        self._console = console
        self._study = study
        self._ended: dict[str, list[Sequence[RoundRecord]]] = {cell.name: [] for cell in cells}
        self._seeds = Counter(cell.name for cell in cells)
        self._private = any(cell.config.privacy is not None for cell in cells)
        self._now = cells[0]
        self._last = self._text = ""
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
            self.say(f"Interrupted. To continue, run the same command with --out {self._study}")

    def began(self, cell: Cell) -> None:
        self._now = cell
        self._last = ""
        self._show("starting")

    def progress(self, stage: str, fraction: float) -> None:
        if self._console.is_terminal:
            self._show(f"{self._last}{STAGES[stage]} {100 * fraction:.0f} %")

    def finished_round(self, record: RoundRecord) -> None:
        done = f"round {record.round}/{self._now.config.rounds}"
        accuracy = f"accuracy {percent(record.accuracy)}"
        text = f"{done}, {label(accuracy, record.epsilon, record.privacy)}"
        self._last = f"{text}; "
        self._show(text)
        if not self._console.is_terminal:
            self.say(f"{self._now.name} seed {self._now.seed}: {text}")

    def ended(self, cell: Cell, records: Sequence[RoundRecord]) -> None:
        self._ended[cell.name].append(records)
        self._show("finished" if records else "failed")

    def notice(self, text: str) -> None:
        self.say(f"Note: {text}.")

    def table(self, rows: Sequence[Row], study: Path) -> None:
        """Shows the results."""
        self._live.stop()
        table = comparison(rows)
        print_table(self._console, table)
        for note in table.notes:
            text = note.replace("`", "")
            self._console.print(text, style="dim", highlight=False, markup=False)
        self.say(f"Results: {study}")

    def say(self, text: str) -> None:
        """Shows one line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        self._text = text
        if self._console.is_terminal:
            self._live.update(self.live_table())

    def live_table(self) -> Group:
        """Returns the means over finished seeds, and a line about the current run."""
        titles = ["", "seeds", "final %", *(["epsilon"] if self._private else [])]
        lines = [
            [
                name_text(row),
                f"{row.seeds + row.failed}/{self._seeds[row.name]}",
                accuracy_text(row.final),
                *([epsilon_cell(row.epsilon, row.privacy)] if self._private else []),
            ]
            for row in summarize(self._ended, ())
        ]
        now = f"{self._now.name} seed {self._now.seed}: {self._text}"
        return Group(
            table_text(Table(titles, lines), self._console.width),
            Text(now, no_wrap=True, overflow="ellipsis"),
        )


def print_table(console: Console, table: Table, parts: Collection[str] = ()) -> None:
    """Prints a table with its titles, and the lines that name its parts, in bold."""
    console.print(table_text(table, console.width, parts))


def table_text(table: Table, width: int, parts: Collection[str] = ()) -> Text:
    """Returns a table as `print_table` prints it."""
    titles, *lines = table.to_text(width).splitlines()
    styled = [Text(titles, style="bold")]
    styled += [Text(line, style="bold" if line in parts else "") for line in lines]
    return Text("\n").join(styled)
