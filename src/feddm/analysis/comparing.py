"""A comparison in Python: the same study as ``feddm compare``, as an object to look at."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddm.analysis.studies import Cell, StudyObserver, run_cells, write_results
from feddm.analysis.tables import Curve, Row, comparison, summarize
from feddm.config.fair import check_fair, check_ledgers
from feddm.runtime import views

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Comparison:
    """What came out of a comparison.

    Args:
        records: The rounds of each name and seed; none if a run diverged.
        rows: A row for each name, with means and deviations over seeds.
        directory: Directory of the study, if there is one.
    """

    records: dict[str, list[Curve]]
    rows: tuple[Row, ...]
    directory: Path | None

    def table(self) -> Any:
        """Returns a row for each name: a pandas DataFrame if pandas is there, else dicts."""
        return views.framed([dict(record) for record in comparison(self.rows).records])

    def plot(self) -> Figure:
        """Returns a figure of accuracy by round; thin lines are single seeds."""
        return views.plot(self.records)

    def __repr__(self) -> str:
        return comparison(self.rows).to_text()

    def _repr_html_(self) -> str:
        shown = comparison(self.rows)
        return views.svg(self.records) + views.html_table(shown.titles, shown.lines)


def compared(
    cells: Sequence[Cell],
    targets: Sequence[float],
    against: str | None,
    out: Path | None,
    quiet: bool,
) -> Comparison:
    """Runs what is left of a study, and returns the comparison.

    Args:
        cells: What is run.
        targets: Accuracies whose first round is shown.
        against: Name of the baseline.
        out: Directory of the study; without one nothing is kept.
        quiet: Show no progress.
    """
    named = [(cell.name, cell.seed, cell.config) for cell in cells]
    check_fair(named)
    check_ledgers(named)
    with contextlib.ExitStack() as stack:
        study = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feddm-")))
        observer = stack.enter_context(_shown(cells, study, quiet))
        records = run_cells(cells, study, observer)
        rows = summarize(records, targets, against)
        if out is not None:
            write_results(study, cells, rows, ["feddm.compare(...)"])
    return Comparison(dict(records), tuple(rows), out)


@contextlib.contextmanager
def _shown(cells: Sequence[Cell], study: Path, quiet: bool) -> Iterator[StudyObserver]:
    if quiet or not ("ipykernel" in sys.modules or sys.stdout.isatty()):
        yield StudyObserver()
        return
    from rich.console import Console

    from feddm.analysis.study_display import StudyDisplay

    with StudyDisplay(Console(), cells, study) as display:
        yield display
