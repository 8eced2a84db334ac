"""The pictures of an experiment, and their data points as CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from feddm.analysis.figures import draw_images, draw_lines, draw_panels
from feddm.analysis.studies import write
from feddm.analysis.tables import Curve, caption, csv_text, curves, summarize
from feddm.paper.experiments import Experiment
from feddm.paper.surrogate import GRADIENT_STEP, Example
from feddm.paper.tables import Runs
from feddm.runtime.synthetic_file import load_synthetic


def draw_runs(study: Path, experiment: Experiment, results: Runs) -> list[Path]:
    """Draws the curves of all runs, one panel per data set or noise level."""
    panels: dict[str, dict[str, Sequence[Curve]]] = {}
    levels: dict[str, dict[str, float]] = {}
    points = []
    for run in experiment.runs:
        panels.setdefault(run.panel, {})[run.method] = results[run.name]
        if run.paper is not None:
            levels.setdefault(run.panel, {})[run.method] = run.paper.mean / 100
        for seed, records in enumerate(results[run.name]):
            sent = 0
            for record in records:
                sent += record.bytes_up
                points.append(
                    {
                        "panel": run.panel,
                        "method": run.method,
                        "run": run.name,
                        "seed": seed,
                        "round": record.round,
                        "accuracy_percent": 100 * record.accuracy,
                        "megabytes_up": sent / 1e6,
                    }
                )
    write(study / "curves.csv", csv_text(points))
    about = [caption(summarize(results, ()))]
    about += ["dashed: the paper's accuracy after 20 rounds"] if levels else []
    drawn = {title: curves(runs) for title, runs in panels.items()}
    text = "; ".join(filter(None, about))
    return [
        draw_panels(drawn, levels, study / f"curves.{ending}", text)
        for ending in ("png", "pdf")
    ]


def draw_synthetic(study: Path, experiment: Experiment) -> list[Path]:
    """Draws the images that client 0 uploaded in the last round, for the first seed."""
    files = []
    for run in experiment.runs:
        path = study / "cells" / f"{run.name}-seed0" / "synthetic.safetensors"
        if not path.exists():
            continue  # the run failed
        sets = load_synthetic(path)
        pixels, labels = sets.pixels(), sets.examples.y
        own = sets.clients == 0
        rows = {
            sets.classes[c]: pixels[own & (labels == c)].numpy()
            for c in labels[own].unique().tolist()
        }
        if not rows:
            continue  # client 0 had too few examples of every class
        name = re.sub(r"\W+", "", run.method)
        files.append(draw_images(rows, study / f"images-{name}.png", run.method))
    return files


def draw_example(study: Path, example: Example) -> list[Path]:
    """Draws the 1-D example: objective, surrogate, tangent and minima."""
    reach = 1.2 * max(abs(example.minimiser), abs(example.surrogate_minimiser), 1.0)
    w = torch.linspace(-reach, 2 * reach, 301, dtype=torch.float64)
    lines = {
        "objective": example.real.loss(w).tolist(),
        "surrogate": example.synthetic.loss(w).tolist(),
        "tangent at w = 0": example.tangent(w).tolist(),
    }
    found = {
        "minimiser of the objective": example.minimiser,
        "minimiser of the surrogate": example.surrogate_minimiser,
        f"gradient step of {GRADIENT_STEP:g}": example.gradient_step,
    }
    marks = {name: (at, float(example.real.loss(at))) for name, at in found.items()}
    values = zip(w.tolist(), *lines.values(), strict=True)
    points = [dict(zip(("w", *lines), row, strict=True)) for row in values]
    write(study / "surrogate.csv", csv_text(points))
    return [
        draw_lines(w.tolist(), lines, marks, study / f"surrogate.{ending}", ("w", "loss"))
        for ending in ("png", "pdf")
    ]
