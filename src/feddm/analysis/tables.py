"""One type of table, and the table that compares runs: accuracy, rounds, bytes, seconds."""

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

Curve = Sequence[RoundRecord]  # of one seed; empty if the run failed

GAP = 2  # blanks between columns
WORDS = ("", "method", "minimum of")  # titles of columns of words, which are aligned left
# Columns that a narrow screen leaves out, in this order; the highest targets follow.
LESS_NEEDED = ("best %", "MB down", "client s")
SHORTEST_NAME = 12


@dataclass(frozen=True)
class Table:
    """A table as text, with the same rows as numbers.

    Args:
        titles: Column titles.
        lines: The cells of each row as text.
        records: The rows as numbers, by name.
        notes: What you need to know to read it.
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
                    f"{cell:{'<' if self.titles[n] in WORDS else '>'}{widths[n]}}"
                    for n, cell in zip(widths, cells, strict=True)
                ]
                text += (" " * GAP).join(padded).rstrip() + "\n"
        return text

    def to_markdown(self) -> str:
        """Returns the table and its notes in Markdown."""
        marks = ["---" if title in WORDS else "---:" for title in self.titles]
        lines = (self.titles, marks, *self.lines)
        table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
        return table + "".join(f"\n{note}\n" for note in self.notes)

    def to_csv(self) -> str:
        """Returns the records, one per line."""
        return csv_text(self.records)

    def to_json(self) -> str:
        """Returns the records."""
        return json.dumps(finite(list(self.records)), indent=2, allow_nan=False)

    def in_parts(self) -> Table:
        """Returns the table with each value of its first column on a line of its own."""
        lines: list[list[str]] = []
        for part, group in itertools.groupby(self.lines, key=lambda line: line[0]):
            lines.append([part, *[""] * (len(self.titles) - 2)])
            lines += [[f"  {name}", *rest] for _, name, *rest in group]
        return Table(self.titles[1:], lines, self.records, self.notes)


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns records with the same keys as CSV; what is not finite is left empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, records[0] if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(finite(dict(record)) for record in records)
    return file.getvalue()


def fitting(lines: Sequence[Sequence[str]], room: int) -> dict[int, int]:
    """Returns the columns that fit, each with its width; only the first may be too narrow.

    Args:
        lines: Titles, and then the cells of each row; the name comes first.
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
    """Mean and sample standard deviation over seeds; one seed has no deviation."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the spread of the values.

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951)
        """
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(_mean(values), std)


@dataclass(frozen=True)
class Difference:
    """Mean difference to another row, seed by seed, over the seeds that both have.

    Args:
        name: The other row.
        mean: The mean difference.
        error: Its standard error; one seed has none.
    """

    name: str
    mean: float
    error: float | None

    @classmethod
    def of(cls, name: str, ours: Sequence[float], theirs: Sequence[float]) -> Difference:
        """Returns the difference of values that were measured with the same seeds.

        >>> Difference.of("fedavg", [0.5, 0.75], [0.25, 0.75])
        Difference(name='fedavg', mean=0.125, error=0.125)
        """
        spread = Spread.of([a - b for a, b in zip(ours, theirs, strict=True)])
        error = None if spread.std is None else spread.std / math.sqrt(len(ours))
        return cls(name, spread.mean, error)


@dataclass(frozen=True)
class Reached:
    """When an accuracy was first reached, over the seeds that did.

    Args:
        accuracy: The accuracy.
        seeds: How many seeds reached it.
        rounds: After how many rounds, on average; ``None`` if no seed did.
        bytes_up: Bytes that all clients had sent by then.
        bytes_down: Bytes that all clients had received by then.
    """

    accuracy: float
    seeds: int
    rounds: float | None
    bytes_up: float | None
    bytes_down: float | None


@dataclass(frozen=True)
class Row:
    """What came out for one algorithm, over the seeds that ended.

    Args:
        name: Its name.
        seeds: How many seeds ended.
        failed: How many did not, because training diverged.
        final: Accuracy after the last round.
        best: Accuracy of the best round.
        reached: When given accuracies were reached.
        bytes_up: Bytes a round that all clients sent.
        bytes_down: Bytes a round that all clients received.
        client_seconds: Computing seconds a round of all clients together; nan with privacy.
        server_seconds: Computing seconds a round of the server.
        difference: Final accuracy less that of the row that all are compared with.
        epsilon: The most that any client has spent after the last round, of any seed; infinite
            if nothing is guaranteed, and ``None`` without privacy.
        delta: Of that guarantee.
        unit: What it protects.
        privacy: The mechanism that gives it, or in words that there is none.
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
    """Returns a row for each algorithm.

    Args:
        runs: For each name, the records of each seed.
        targets: Accuracies to be reached.
        against: The name that all others are compared with, seed by seed.
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
                **_promise([records[-1] for records in done]),
            )
        )
    return rows


def _promise(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Returns what holds for all of these, so what the least private one says."""
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
    """Returns when the accuracy was first reached, averaged over the seeds that did."""
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
    """Returns what `draw_curves` takes: of what ended, by its name and what is promised."""
    return {
        label(row.name, row.epsilon, row.privacy): [
            _points(records) for records in seeds if records
        ]
        for row, seeds in zip(summarize(runs, ()), runs.values(), strict=True)
        if row.seeds
    }


def _points(records: Curve) -> list[Point]:
    """Returns where a run was after each round."""
    sent = itertools.accumulate(record.bytes_up for record in records)
    return [Point(b / 1e6, record.accuracy) for b, record in zip(sent, records, strict=True)]


def caption(rows: Sequence[Row]) -> str:
    """Returns what the epsilons beside names are about, in a line; nothing without any."""
    about = guarantees(rows)
    return f"epsilon: spent after the last round, {about}" if about else ""


def guarantees(rows: Sequence[Row]) -> str:
    """Returns at which delta and for what the epsilons are; nothing without any."""
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
        f"`less {name}`: mean difference to {name} in points, seed by seed, and its standard "
        "error. "
        for name in _others(rows)
    )
    targets = (
        "`to 90 %`: rounds, and megabytes that all clients sent, until it was reached; (1/3) "
        "if only one of three seeds did. "
        if any(row.reached for row in rows)
        else ""
    )
    about = guarantees(rows)
    epsilons = f"`epsilon`: spent after the last round, {about}. " if about else ""
    silent = "; private clients do not tell their seconds" if is_private(rows) else ""
    return (
        f"Accuracy in percent, mean ± standard deviation over seeds. {differences}{epsilons}"
        f"{targets}MB up and down and computing seconds of all clients are for one round"
        f"{silent}."
    )


def to_json(rows: Sequence[Row]) -> str:
    """Returns all numbers, for other programs."""
    return json.dumps(finite([asdict(row) for row in rows]), indent=2, allow_nan=False)


def from_json(text: str) -> list[Row]:
    """Returns the rows that `to_json` wrote."""

    def numbers(fields: dict[str, Any]) -> dict[str, Any]:
        # Of what has no mean, JSON has null; what is None in a row stays so.
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
                # Studies that were recorded before there were differences have none.
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
        *(f"less {name}" for name in _others(rows)),
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
            *(difference_text(row.difference) for _ in _others(rows)),
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
    """Returns the numbers of a row, by the names that they have in a CSV file."""
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


def _others(rows: Sequence[Row]) -> set[str]:
    """Returns the name that rows are compared with, if there is one."""
    return {row.difference.name for row in rows if row.difference is not None}


def is_private(rows: Sequence[Row]) -> bool:
    """Whether there is anything to say about privacy."""
    return any(row.privacy is not None for row in rows)


def name_text(row: Row) -> str:
    """Returns the name, and how many seeds failed if any did."""
    return f"{row.name} ({row.failed} failed)" if row.failed else row.name


def accuracy_text(spread: Spread) -> str:
    """Returns an accuracy in percent with its deviation.

    >>> accuracy_text(Spread(0.98765, 0.0012)), accuracy_text(Spread(0.5, None))
    ('98.77 ± 0.12', '50.00')
    """
    if not math.isfinite(spread.mean):
        return "-"
    mean = f"{100 * spread.mean:.2f}"
    return mean if spread.std is None else f"{mean} ± {100 * spread.std:.2f}"


def difference_text(difference: Difference | None) -> str:
    """Returns a difference in points with its standard error.

    >>> difference_text(Difference("literal", -0.0012, 0.0005))
    '-0.12 (0.05)'
    """
    if difference is None or not math.isfinite(difference.mean):
        return "-"
    mean = f"{100 * difference.mean:+.2f}"
    return mean if difference.error is None else f"{mean} ({100 * difference.error:.2f})"


def reached_text(target: Reached, seeds: int) -> str:
    """Returns rounds and megabytes sent until an accuracy was reached.

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
    """Returns a number with two digits that count, or all those before its point.

    >>> number_text(0.0251), number_text(2.44), number_text(1270.3)
    ('0.025', '2.4', '1270')
    """
    if not math.isfinite(value):
        return "-"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
