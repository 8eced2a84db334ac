"""The tables of the experiments, next to the paper's own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from feddm.analysis.tables import (
    Curve,
    Table,
    accuracy_text,
    caption,
    is_private,
    number_text,
    summarize,
)
from feddm.paper.cost import Count
from feddm.paper.experiments import Experiment
from feddm.paper.surrogate import GRADIENT_STEP, MISPRINT, POINTS, SEED, SYNTHETIC, Example
from feddm.runtime.wording import epsilon_cell

Runs = Mapping[str, Sequence[Curve]]  # run name -> records of each seed


def accuracies(experiment: Experiment, results: Runs, stand_in: str = "") -> Table:
    """Returns the final accuracy of every run next to the paper's.

    Args:
        experiment: Experiment of the paper.
        results: Records of its runs.
        stand_in: Name of the data set that replaces the paper's, if any.
    """
    rows = dict(zip(results, summarize(results, ()), strict=True))
    private = is_private(list(rows.values()))
    titles = ["", "method", _measured("final %", stand_in), "paper %"]
    titles += ["epsilon"] if private else []
    titles += ["MB up"]
    lines, records = [], []
    for run in experiment.runs:
        row, paper = rows[run.name], run.paper
        failed = f" ({row.failed} failed)" if row.failed else ""
        lines.append(
            [
                run.panel,
                run.method + failed,
                accuracy_text(row.final),
                "-" if paper is None else str(paper),
                *([epsilon_cell(row.epsilon, row.privacy)] if private else []),
                number_text(row.bytes_up / 1e6),
            ]
        )
        records.append(
            {
                "panel": run.panel,
                "method": run.method,
                "run": run.name,
                "seeds": row.seeds,
                "failed": row.failed,
                "accuracy_percent": 100 * row.final.mean,
                "accuracy_percent_std": None if row.final.std is None else 100 * row.final.std,
                "paper_percent": paper and paper.mean,
                "paper_percent_std": paper and paper.std,
                "paper_place": paper and paper.place,
                "paper_doubt": paper and paper.doubt,
                "epsilon": row.epsilon,
                "delta": row.delta,
                "privacy": row.privacy,
                "bytes_up_a_round": row.bytes_up,
            }
        )
    doubts = dict.fromkeys(r.paper.doubt for r in experiment.runs if r.paper and r.paper.doubt)
    about = caption(list(rows.values()))
    notes = [
        "Accuracy after the last round in percent, mean ± standard deviation over seeds. The "
        "paper's is after 20 rounds, over three seeds. MB up: upload of all clients per round.",
        *([f"{about}."] if about else []),
        *(f"?: {doubt}." for doubt in doubts),
    ]
    return Table(titles, lines, records, tuple(notes))


def sizes(counts: Sequence[Count], stand_in: str = "") -> Table:
    """Returns the counted message sizes next to the paper's; `stand_in` as in `accuracies`."""
    lines = [
        [
            setting,
            size.what,
            f"{size.floats:,.0f}",
            f"{size.std:,.0f}" if size.std else "exact",
            f"{size.paper:,}" if size.paper else "-",
            f"{size.num_bytes / 1e6:.2f}",
        ]
        for setting, size in counts
    ]
    records = [{"setting": setting, **asdict(size)} for setting, size in counts]
    notes = (
        "FedDM's size depends on the partition: mean and standard deviation over seeds. A pair "
        "is a client and a class of which it has enough images. The paper's numbers for 50 "
        "clients and for ResNet-18 are rounded numbers from its text.",
    )
    titles = ["", "method", _measured("floats", stand_in), "std", "paper", "MB"]
    return Table(titles, lines, records, notes)


def _measured(title: str, stand_in: str) -> str:
    return f"{title} on {stand_in}" if stand_in else title


def minimisers(example: Example) -> Table:
    """Returns the minima of the 1-D example, and their distances from the true one."""
    found = {
        "objective": example.minimiser,
        "surrogate": example.surrogate_minimiser,
        f"gradient step of {GRADIENT_STEP:g} from w = 0": example.gradient_step,
        "objective, labels as printed": example.printed_minimiser,
    }
    losses = {name: float(example.real.loss(w)) for name, w in found.items()}
    records: list[dict[str, Any]] = [
        {
            "what": name,
            "w": w,
            "distance": abs(w - example.minimiser),
            "objective": losses[name],
        }
        for name, w in found.items()
    ]
    lines = [
        [r["what"], f"{r['w']:.4f}", f"{r['distance']:.4f}", f"{r['objective']:.4f}"]
        for r in records
    ]
    notes = (
        "Each minimiser w, its distance from the minimiser of the objective, and the objective "
        f"at w. {POINTS} real points, {SYNTHETIC} synthetic ones; always seed {SEED}. The "
        "paper has only a picture, without numbers.",
        MISPRINT,
    )
    return Table(["minimum of", "w", "distance", "objective there"], lines, records, notes)
