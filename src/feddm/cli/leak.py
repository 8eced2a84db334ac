"""``feddm leak``: are the synthetic images of a run copies of training images?"""

from __future__ import annotations

import json as json_
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddm.cli import options

if TYPE_CHECKING:
    from feddm.analysis.leakage import Leakage
    from feddm.analysis.report.runs import Run
    from feddm.analysis.tables import Table

EXAMPLES = """\
Examples:

- `feddm leak runs/feddm-digits-1`

- `feddm leak runs/feddm-digits-1 --out pairs.png --json`"""

WIDTH = 80
LISTED = 5  # pairs


def leak(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    out: Annotated[
        Path | None, typer.Option(help="PNG of the closest pairs. Default: leak.png in RUN.")
    ] = None,
    data_dir: options.DataDir = None,
    data: options.Data = None,
    json: options.Json = False,
) -> None:
    """Look for copies of training images among the synthetic images of a run.

    Compares each image with the nearest training image and the nearest held-out image of its
    class, and draws the closest pairs. The report of the run then states the result. Needs the
    data that the run used.
    """
    from feddm.analysis.leak_files import check_out, leakage_of, write_leakage

    check_out(out)
    found = leakage_of(run, data_dir, data)
    picture = write_leakage(found, out)
    if json:
        print(json_.dumps(found.to_json()))
        return
    _show(found.leakage, found.run)
    if picture is None:
        _say(
            "No file was written to this private run; --out draws the pairs elsewhere."
            if found.run.config.guaranteed
            else "Vectors are not drawn; the figures are in leak.json."
        )
    else:
        print(f"Closest pairs: {picture}")


def _show(leakage: Leakage, run: Run) -> None:
    from feddm.analysis.leakage import THRESHOLD, verdict
    from feddm.runtime.wording import summary

    print(verdict(leakage.copies, len(leakage)))
    _say(
        f"Ratio: distance to the nearest training image / distance to the nearest held-out "
        f"image of the class. Copies are below {THRESHOLD:g}; noise is about 1. The median "
        f"is {leakage.median:.2f}."
    )
    if run.guaranteed:
        _say(
            f"{summary(run.records[-1])} This is the guarantee, from the clients' ledgers. The "
            "figures here are made from the data without noise: keep them with the data."
        )
    print(f"\n{classes(leakage).to_text(WIDTH)}\n{pairs(leakage).to_text(WIDTH)}", end="")


def classes(leakage: Leakage) -> Table:
    """Returns the result for each class."""
    from feddm.analysis.tables import Table

    lines = [
        [name, str(len(part)), str(part.copies), f"{part.median:.2f}"]
        for name, part in leakage.by_class()
    ]
    return Table(["class", "images", "copies", "median ratio"], lines)


def pairs(leakage: Leakage) -> Table:
    """Returns the closest pairs of a synthetic and a training image."""
    from feddm.analysis.tables import Table

    closest = leakage.subset(leakage.closest()[:LISTED])
    titles = ["closest", "image", "client", "training", "distance", "held out", "distance"]
    rows = zip(
        [closest.classes[label] for label in closest.labels.tolist()],
        closest.images.tolist(),
        closest.clients.tolist(),
        closest.train.index.tolist(),
        [f"{distance:.3f}" for distance in closest.train.distance.tolist()],
        closest.held_out.index.tolist(),
        [f"{distance:.3f}" for distance in closest.held_out.distance.tolist()],
        [f"{ratio:.2f}" for ratio in closest.ratios.tolist()],
        strict=True,
    )
    return Table([*titles, "ratio"], [[str(cell) for cell in row] for row in rows])


def _say(text: str) -> None:
    print(textwrap.fill(text, WIDTH))
