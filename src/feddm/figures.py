"""Pictures as files, drawn by matplotlib: the extra ``figures``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from feddm.errors import FedDMError, MissingExtraError


def draw_partition(table: npt.NDArray[np.int64], names: tuple[str, ...], path: Path) -> Path:
    """Draws a bar for each client, in it the examples of each class, and returns the file.

    Args:
        table: Examples of each class (columns) of each client (rows).
        names: Names of the classes.
        path: File to write; its ending chooses the format, and without one it is a PNG.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "pictures need matplotlib: pip install 'feddm[figures]'"
        ) from error

    figure = Figure(figsize=(8, 1.2 + 0.28 * len(table)), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    left = np.zeros(len(table))
    colors = _colors(len(names))
    for number, name in enumerate(names):
        axes.barh(
            range(len(table)),
            table[:, number],
            left=left,
            color=colors[number],
            label=name,
            height=0.8,
        )
        left += table[:, number]
    axes.invert_yaxis()
    axes.set(xlabel="examples", ylabel="client")
    axes.spines[["top", "right"]].set_visible(False)
    if len(names) <= 20:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small")
    file = path if path.suffix else path.with_suffix(".png")
    if path.is_dir():
        raise FedDMError(f"cannot draw {path}: it is a folder; name a file in it")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FedDMError(f"cannot draw {file}: {reason}") from error
    return file


def _colors(number: int) -> list[tuple[float, ...]]:
    from matplotlib import colormaps

    if number <= 10:
        return [colormaps["tab10"](i) for i in range(number)]
    return [colormaps["turbo"](i / number) for i in range(number)]
