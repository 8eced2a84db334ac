"""A run's results in a notebook: a table, a curve, and both as HTML."""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feddm.core.formatting import percent, size_text
from feddm.errors import MissingExtraError
from feddm.runtime.federation import RoundRecord
from feddm.runtime.wording import epsilon_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, Sequence[Sequence[RoundRecord]]]  # by name, the rounds of each seed

COLORS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#9c755f")
WIDTH, HEIGHT, LEFT, BELOW = 480, 200, 44, 24  # of the curve, in pixels
NUMBERS = ("round", "accuracy", "loss", "bytes_up", "bytes_down", "server_seconds", "epsilon")


def table(records: Sequence[RoundRecord]) -> Any:
    """Returns a row for each round: a pandas DataFrame if pandas is there, else dicts."""
    rows = []
    for record in records:
        row = {key: getattr(record, key) for key in NUMBERS}
        row["clients"] = len(record.clients)
        rows.append({key: value for key, value in row.items() if value is not None})
    return framed(rows)


def framed(rows: list[dict[str, Any]]) -> Any:
    """Returns rows as a pandas DataFrame if pandas is there, else as they are."""
    if importlib.util.find_spec("pandas") is None:
        return rows
    import pandas

    return pandas.DataFrame(rows)


def plot(curves: Curves) -> Figure:
    """Returns a figure of accuracy by round; thin lines are single seeds."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise MissingExtraError("figures need an extra: pip install 'feddm[figures]'") from None
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for number, (name, seeds) in enumerate(curves.items()):
        for which, records in enumerate(seeds):
            axes.plot(
                [record.round for record in records],
                [100 * record.accuracy for record in records],
                color=COLORS[number % len(COLORS)],
                label=name if not which else None,
                marker="o",
                linewidth=1 if len(seeds) > 1 else 2,
            )
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend()
    return figure


def run_html(title: str, records: Sequence[RoundRecord]) -> str:
    """Returns the curve and the table of a run, which need nothing from elsewhere."""
    private = any(record.privacy for record in records)
    heads = ["round", "accuracy", "loss", "up", "down", *(["epsilon"] if private else [])]
    rows = [
        [
            str(record.round),
            percent(record.accuracy),
            f"{record.loss:.4f}",
            size_text(record.bytes_up),
            size_text(record.bytes_down),
            *([epsilon_cell(record.epsilon, record.privacy)] if private else []),
        ]
        for record in records
    ]
    return f"<h4>{html.escape(title)}</h4>{svg({title: [records]})}{html_table(heads, rows)}"


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table."""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    lines = (
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def svg(curves: Curves) -> str:
    """Returns accuracy by round as a drawing; dots, because there may be one round."""
    every = [record for seeds in curves.values() for records in seeds for record in records]
    known = [record for record in every if record.accuracy == record.accuracy]
    if not known:
        return ""
    last = max(record.round for record in known)
    low = min(record.accuracy for record in known)
    high = max(max(record.accuracy for record in known), low + 1e-3)

    def place(record: RoundRecord) -> tuple[float, float]:
        across = (record.round - 1) / max(last - 1, 1)
        up = (record.accuracy - low) / (high - low)
        return LEFT + 8 + across * (WIDTH - LEFT - 20), 10 + (1 - up) * (HEIGHT - BELOW - 20)

    parts = [
        f'<text x="0" y="14">{percent(high)}</text>',
        f'<text x="0" y="{HEIGHT - BELOW - 6}">{percent(low)}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 4}">round 1</text>',
        f'<text x="{WIDTH - 60}" y="{HEIGHT - 4}">round {last}</text>',
    ]
    for number, (name, seeds) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        for records in seeds:
            points = [place(record) for record in records if record in known]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}"/>')
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points
            ]
        if len(curves) > 1:
            parts.append(
                f'<text x="{LEFT + 90 * number + 60}" y="{HEIGHT - 4}" fill="{color}">'
                f"{html.escape(name)}</text>"
            )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="accuracy by round" '
        f'font-size="11" font-family="sans-serif">{"".join(parts)}</svg>'
    )
