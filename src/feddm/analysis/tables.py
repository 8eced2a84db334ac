"""The table type, and the table that compares runs: accuracy, rounds, bytes, seconds."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from feddm.analysis.figures import Point
from feddm.runtime.federation import RoundRecord
from feddm.runtime.results import finite
from feddm.runtime.wording import epsilon_cell, guarantee, label

Curve = Sequence[RoundRecord]  # of one seed; empty if it failed

GAP = 2  # spaces between columns
# Titles of columns of words: aligned left, as the first column is. Numbers are aligned right.
WORDS = ("method", "settings", "pass", "measured", "value")
# Columns that a narrow screen drops, in this order; then the highest targets.
LESS_NEEDED = ("best %", "MB down", "client s")
SHORTEST_NAME = 12


@dataclass(frozen=True)
class Table:
    """A table as text, with the same rows as numbers.

    Args:
        titles: Column titles.
        lines: Cells of each row, as text.
        records: Rows as numbers, by name.
        notes: What a reader needs to know.
    """

    titles: Sequence[str]
    lines: Sequence[Sequence[str]]
    records: Sequence[Mapping[str, Any]] = ()
    notes: tuple[str, ...] = ()

    def to_text(self, width: int = 80) -> str:
        """Returns aligned columns for a screen of this width, without the notes."""
        widths = fitting([self.titles, *self.lines], width)
        text = ""
        for line in (self.titles, *self.lines):
            # Only the first column wraps: numbers are never broken.
            names = textwrap.wrap(line[0], widths[0], break_on_hyphens=False) or [""]
            for number, name in enumerate(names):
                cells = [name, *("" if number else line[n] for n in widths if n)]
                padded = [
                    f"{cell:{'<' if self._is_words(n) else '>'}{widths[n]}}"
                    for n, cell in zip(widths, cells, strict=True)
                ]
                text += (" " * GAP).join(padded).rstrip() + "\n"
        return text

    def to_markdown(self) -> str:
        """Returns the table and its notes in Markdown."""
        marks = ["---" if self._is_words(n) else "---:" for n in range(len(self.titles))]
        lines = (self.titles, marks, *self.lines)
        table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
        return table + "".join(f"\n{note}\n" for note in self.notes)

    def to_csv(self) -> str:
        """Returns the records, one per line."""
        return csv_text(self.records)

    def in_parts(self) -> Table:
        """Returns the table with each value of its first column on a line of its own."""
        lines: list[list[str]] = []
        for part, group in itertools.groupby(self.lines, key=lambda line: line[0]):
            lines.append([part, *[""] * (len(self.titles) - 2)])
            lines += [[f"  {name}", *rest] for _, name, *rest in group]
        return Table(self.titles[1:], lines, self.records, self.notes)

    def _is_words(self, column: int) -> bool:
        return column == 0 or self.titles[column] in WORDS


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns records with the same keys as CSV. Values that are not finite are empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, records[0] if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(finite(dict(record)) for record in records)
    return file.getvalue()


def fitting(lines: Sequence[Sequence[str]], room: int) -> dict[int, int]:
    """Returns the columns that fit, with their widths. Only the first may be too narrow.

    Args:
        lines: Titles, then the cells of each row; the name comes first.
        room: Width of the screen.
    """
    widths = {
        number: max(map(len, column)) for number, column in enumerate(zip(*lines, strict=True))
    }
    name = widths.pop(0)
    left = room - sum(widths.values()) - GAP * len(widths)
    titles = lines[0]
    spare = [titles.index(title) for title in LESS_NEEDED if title in titles]
    targets = [number for number in widths if titles[number].startswith("to ")]
    for number in (*spare, *reversed(targets)):
        if left >= min(name, SHORTEST_NAME):
            break
        left += GAP + widths.pop(number)
    return {0: min(name, max(left, 1)), **widths}


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; ``std`` is ``None`` for one seed."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the mean and standard deviation of the values.

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951)
        """
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(_mean(values), std)


@dataclass(frozen=True)
class Difference:
    """Mean difference from the baseline, paired by seed, over the seeds that both have.

    Args:
        name: Name of the baseline.
        mean: Mean difference.
        error: Its standard error; ``None`` for one seed.
    """

    name: str
    mean: float
    error: float | None

    @classmethod
    def of(cls, name: str, ours: Sequence[float], theirs: Sequence[float]) -> Difference:
        """Returns the difference of values measured with the same seeds.

        >>> Difference.of("fedavg", [0.5, 0.75], [0.25, 0.75])
        Difference(name='fedavg', mean=0.125, error=0.125)
        """
        spread = Spread.of([a - b for a, b in zip(ours, theirs, strict=True)])
        error = None if spread.std is None else spread.std / math.sqrt(len(ours))
        return cls(name, spread.mean, error)


@dataclass(frozen=True)
class Reached:
    """When a target accuracy was first reached, averaged over the seeds that reached it.

    Args:
        accuracy: Target accuracy.
        seeds: Number of seeds that reached it.
        rounds: Mean number of rounds; ``None`` if no seed reached it.
        bytes_up: Bytes sent by all clients until then.
        bytes_down: Bytes received by all clients until then.
    """

    accuracy: float
    seeds: int
    rounds: float | None
    bytes_up: float | None
    bytes_down: float | None


@dataclass(frozen=True)
class Row:
    """Results of one method, over the seeds that finished.

    Args:
        name: Name of the method.
        seeds: Number of seeds that finished.
        failed: Number of seeds that failed because training diverged.
        final: Accuracy after the last round.
        best: Accuracy of the best round.
        reached: When the target accuracies were reached.
        bytes_up: Bytes per round sent by all clients.
        bytes_down: Bytes per round received by all clients.
        client_seconds: Computing time per round of all clients together; nan with privacy.
        server_seconds: Computing time per round of the server.
        difference: Difference of the final accuracy from the baseline.
        epsilon: Largest epsilon spent by any client of any seed after the last round; infinite
            without a guarantee, ``None`` without privacy.
        delta: Delta of that guarantee.
        unit: Unit of privacy.
        privacy: Privacy mechanism, or a text that says that there is no guarantee.
    """

    name: str
    seeds: int
    failed: int
    final: Spread
    best: Spread
    reached: tuple[Reached, ...]
    bytes_up: float
    bytes_down: float
    client_seconds: float
    server_seconds: float
    difference: Difference | None = None
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    privacy: str | None = None


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def summarize(
    runs: Mapping[str, Sequence[Curve]], targets: Iterable[float], against: str | None = None
) -> list[Row]:
    """Returns one row per method.

    Args:
        runs: Records of each seed, by method.
        targets: Target accuracies.
        against: Name of the baseline; others are compared with it seed by seed.
    """
    rows = []
    targets = list(targets)
    for name, seeds in runs.items():
        done = [records for records in seeds if records]
        everything = [record for records in done for record in records]
        rows.append(
            Row(
                name=name,
                seeds=len(done),
                failed=len(seeds) - len(done),
                final=Spread.of([records[-1].accuracy for records in done]),
                best=Spread.of([max(r.accuracy for r in records) for records in done]),
                reached=tuple(reached(done, target) for target in targets),
                bytes_up=_mean([r.bytes_up for r in everything]),
                bytes_down=_mean([r.bytes_down for r in everything]),
                client_seconds=_mean([r.client_seconds for r in everything]),
                server_seconds=_mean([r.server_seconds for r in everything]),
                difference=None
                if against is None or against == name
                else _difference(against, seeds, runs[against]),
                **_guarantee([records[-1] for records in done]),
            )
        )
    return rows


def _guarantee(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Returns the guarantee that holds for all records: that of the least private one."""
    private = [record for record in records if record.epsilon is not None]
    if not private:
        return {}
    worst = max(private, key=lambda record: record.epsilon or 0.0)
    return {key: getattr(worst, key) for key in ("epsilon", "delta", "unit", "privacy")}


def _difference(name: str, ours: Sequence[Curve], theirs: Sequence[Curve]) -> Difference:
    both = [
        (a[-1].accuracy, b[-1].accuracy) for a, b in zip(ours, theirs, strict=True) if a and b
    ]
    return Difference.of(name, [a for a, _ in both], [b for _, b in both])


def reached(seeds: Sequence[Curve], target: float) -> Reached:
    """Returns when `target` was first reached, averaged over the seeds that reached it."""
    firsts = [
        (number, sum(r.bytes_up for r in path), sum(r.bytes_down for r in path))
        for records in seeds
        for number in [next((n for n, r in enumerate(records, 1) if r.accuracy >= target), 0)]
        if number
        for path in [records[:number]]
    ]
    if not firsts:
        return Reached(target, 0, None, None, None)
    rounds, up, down = (statistics.fmean(column) for column in zip(*firsts, strict=True))
    return Reached(target, len(firsts), rounds, up, down)


def curves(runs: Mapping[str, Sequence[Curve]]) -> dict[str, list[list[Point]]]:
    """Returns the curves that `draw_curves` draws: finished seeds by name and guarantee."""
    return {
        label(row.name, row.epsilon, row.privacy): [
            _points(records) for records in seeds if records
        ]
        for row, seeds in zip(summarize(runs, ()), runs.values(), strict=True)
        if row.seeds
    }


def _points(records: Curve) -> list[Point]:
    """Returns megabytes sent and accuracy after each round."""
    sent = itertools.accumulate(record.bytes_up for record in records)
    return [Point(b / 1e6, record.accuracy) for b, record in zip(sent, records, strict=True)]


def caption(rows: Sequence[Row]) -> str:
    """Returns one line that explains the epsilons of a figure; empty without privacy."""
    about = guarantees(rows)
    return f"epsilon: spent after the last round, {about}" if about else ""


def guarantees(rows: Sequence[Row]) -> str:
    """Returns delta and unit of the epsilons; empty without privacy."""
    about: dict[str, list[str]] = {}
    for row in rows:
        if row.delta is not None and row.unit is not None:
            about.setdefault(guarantee(row.delta, row.unit), []).append(row.name)
    if len(about) > 1:
        about = {f"{text} ({', '.join(names)})": names for text, names in about.items()}
    return "; ".join(about)


def legend(rows: Sequence[Row]) -> str:
    """Returns what the columns mean."""
    differences = "".join(
        f"`vs {name}`: mean difference from {name} in percentage points, paired by seed "
        "(standard error). "
        for name in _baselines(rows)
    )
    targets = (
        "`to 90 %`: rounds and megabytes uploaded by all clients to reach that accuracy; "
        "(1/3) means that one of three seeds reached it. "
        if any(row.reached for row in rows)
        else ""
    )
    about = guarantees(rows)
    epsilons = f"`epsilon`: spent after the last round, {about}. " if about else ""
    silent = "; private clients do not report computing time" if is_private(rows) else ""
    return (
        f"Accuracy in percent, mean ± standard deviation over seeds. {differences}{epsilons}"
        f"{targets}MB up, MB down and client s (computing seconds) are per round, for all "
        f"clients together{silent}."
    )


def to_json(rows: Sequence[Row]) -> str:
    """Returns all numbers as JSON."""
    return json.dumps(finite([asdict(row) for row in rows]), indent=2, allow_nan=False)


def from_json(text: str) -> list[Row]:
    """Returns the rows that `to_json` wrote."""

    def numbers(fields: dict[str, Any]) -> dict[str, Any]:
        # JSON has null for nan; fields that are None in a row stay None.
        means = ("mean", "bytes_up", "bytes_down", "client_seconds", "server_seconds")
        fields = {k: math.nan if v is None and k in means else v for k, v in fields.items()}
        if fields.get("privacy") is not None and fields["epsilon"] is None:
            fields["epsilon"] = math.inf
        return fields

    return [
        Row(
            **{
                **numbers(row),
                "final": Spread(**numbers(row["final"])),
                "best": Spread(**numbers(row["best"])),
                "reached": tuple(Reached(**reached) for reached in row["reached"]),
                # Older studies have no differences.
                "difference": row.get("difference")
                and Difference(**numbers(row["difference"])),
            }
        )
        for row in json.loads(text)
    ]


def comparison(rows: Sequence[Row]) -> Table:
    """Returns the table of a study."""
    targets = [target for row in rows[:1] for target in row.reached]
    titles = [
        "",
        "final %",
        *(f"vs {name}" for name in _baselines(rows)),
        *(["epsilon"] if is_private(rows) else []),
        "best %",
        *(f"to {100 * target.accuracy:g} %" for target in targets),
        "MB up",
        "MB down",
        "client s",
    ]
    lines = [
        [
            name_text(row),
            accuracy_text(row.final),
            *(difference_text(row.difference) for _ in _baselines(rows)),
            *([epsilon_cell(row.epsilon, row.privacy)] if is_private(rows) else []),
            accuracy_text(row.best),
            *(reached_text(target, row.seeds) for target in row.reached),
            number_text(row.bytes_up / 1e6),
            number_text(row.bytes_down / 1e6),
            number_text(row.client_seconds),
        ]
        for row in rows
    ]
    return Table(titles, lines, [_record(row) for row in rows], (legend(rows),))


def _record(row: Row) -> dict[str, Any]:
    """Returns the numbers of a row, by their CSV column names."""
    record: dict[str, Any] = {
        "algorithm": row.name,
        "seeds": row.seeds,
        "failed": row.failed,
        "final_accuracy": row.final.mean,
        "final_accuracy_std": row.final.std,
        "best_accuracy": row.best.mean,
        "best_accuracy_std": row.best.std,
        "difference": row.difference and row.difference.mean,
        "difference_error": row.difference and row.difference.error,
        "epsilon": row.epsilon,
        "delta": row.delta,
        "unit": row.unit,
        "privacy": row.privacy,
    }
    for target in row.reached:
        for key in ("seeds", "rounds", "bytes_up", "bytes_down"):
            record[f"to_{target.accuracy:g}_{key}"] = getattr(target, key)
    for key in ("bytes_up", "bytes_down", "client_seconds", "server_seconds"):
        record[key] = getattr(row, key)
    return record


def _baselines(rows: Sequence[Row]) -> set[str]:
    """Returns the name of the baseline, if there is one."""
    return {row.difference.name for row in rows if row.difference is not None}


def is_private(rows: Sequence[Row]) -> bool:
    """Whether any row has privacy."""
    return any(row.privacy is not None for row in rows)


def name_text(row: Row) -> str:
    """Returns the name, with the number of failed seeds if there are any."""
    return f"{row.name} ({row.failed} failed)" if row.failed else row.name


def accuracy_text(spread: Spread) -> str:
    """Returns an accuracy in percent with its standard deviation.

    >>> accuracy_text(Spread(0.98765, 0.0012)), accuracy_text(Spread(0.5, None))
    ('98.77 ± 0.12', '50.00')
    """
    if not math.isfinite(spread.mean):
        return "-"
    mean = f"{100 * spread.mean:.2f}"
    return mean if spread.std is None else f"{mean} ± {100 * spread.std:.2f}"


def difference_text(difference: Difference | None) -> str:
    """Returns a difference in percentage points with its standard error.

    >>> difference_text(Difference("literal", -0.0012, 0.0005))
    '-0.12 (0.05)'
    """
    if difference is None or not math.isfinite(difference.mean):
        return "-"
    mean = f"{100 * difference.mean:+.2f}"
    return mean if difference.error is None else f"{mean} ({100 * difference.error:.2f})"


def reached_text(target: Reached, seeds: int) -> str:
    """Returns rounds and megabytes sent until the target was reached.

    >>> reached_text(Reached(0.9, 2, 1.5, 2_400_000, 0), 2)
    '1.5: 2.4 MB'
    >>> reached_text(Reached(0.9, 0, None, None, None), 2)
    '-'
    """
    if target.rounds is None or target.bytes_up is None:
        return "-"
    some = f" ({target.seeds}/{seeds})" if target.seeds < seeds else ""
    return f"{target.rounds:.3g}: {number_text(target.bytes_up / 1e6)} MB{some}"


def number_text(value: float) -> str:
    """Returns a number with two significant digits, or rounded to an integer from 10 on.

    >>> number_text(0.0251), number_text(2.44), number_text(1270.3)
    ('0.025', '2.4', '1270')
    """
    if not math.isfinite(value):
        return "-"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
