"""Figures drawn by matplotlib. Needs the extra ``figures``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from feddm.errors import ConfigError, FedDMError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Point(NamedTuple):
    """The state of a run after a round."""

    megabytes: float  # sent by all clients so far
    accuracy: float


def draw_partition(table: npt.NDArray[np.int64], names: tuple[str, ...], path: Path) -> Path:
    """Draws one bar per client, divided by class, and returns the file.

    Args:
        table: Number of examples per client (rows) and class (columns).
        names: Names of the classes.
        path: File to write. Its suffix selects the format; the default is PNG.
    """
    figure = _figure(8, 1.2 + 0.28 * len(table))
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
    return _save(figure, path)


def draw_curves(
    runs: Mapping[str, Sequence[Sequence[Point]]], path: Path, caption: str = ""
) -> Path:
    """Draws accuracy by round and by upload, and returns the file.

    Lines are means over seeds; bands show the lowest and highest seed.

    Args:
        runs: Points of each round, by name and seed.
        path: File to write. Its suffix selects the format; the default is PNG.
        caption: Text below the figure.
    """
    figure = _figure(9, 3.6)
    if caption:
        figure.supxlabel(caption, fontsize="small")
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    _draw_runs(runs, by_round, by_bytes)
    by_bytes.set_ylabel("")
    by_bytes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return _save(figure, path)


def draw_panels(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[Point]]]],
    levels: Mapping[str, Mapping[str, float]],
    path: Path,
    caption: str = "",
) -> Path:
    """Draws the curves of several comparisons side by side, and returns the file.

    Args:
        panels: Runs as for `draw_curves`, by title of the comparison.
        levels: Reference accuracies, by title and name: dashed lines in the same colours.
        path: File to write. Its suffix selects the format; the default is PNG.
        caption: Text below the figure.
    """
    alone = len(panels) == 1  # its two plots are side by side; otherwise one above the other
    figure = _figure(9, 4) if alone else _figure(1 + 3.4 * len(panels), 7.5)
    if caption:
        figure.supxlabel(caption, fontsize="small")
    if alone:
        pairs = figure.subplots(1, 2, sharey=True, squeeze=False)
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    else:
        pairs = figure.subplots(2, len(panels), sharey="col", squeeze=False).T
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
    for (title, runs), (by_round, by_bytes) in zip(panels.items(), pairs, strict=True):
        _draw_runs(runs, by_round, by_bytes)
        by_bytes.set_ylabel("" if alone else by_round.get_ylabel())
        by_round.set_title(title, fontsize="medium")
        for line in by_round.get_lines():
            level = levels.get(title, {}).get(line.get_label())
            if level is not None:
                by_round.axhline(100 * level, color=line.get_color(), dashes=(4, 3), alpha=0.7)
        if runs:
            by_bytes.legend(**place, frameon=False, fontsize="small")
    return _save(figure, path)


def _draw_runs(
    runs: Mapping[str, Sequence[Sequence[Point]]], by_round: Axes, by_bytes: Axes
) -> None:
    """Draws runs into two axes: means over seeds, with bands from lowest to highest."""
    for (name, seeds), color in zip(runs.items(), _colors(len(runs)), strict=True):
        rounds = range(1, 1 + min(map(len, seeds)))
        accuracy = np.array([[100 * p.accuracy for p in s[: len(rounds)]] for s in seeds])
        megabytes = np.array([[p.megabytes for p in s[: len(rounds)]] for s in seeds]).mean(0)
        for axes, x in ((by_round, np.array(rounds)), (by_bytes, megabytes)):
            axes.plot(x, accuracy.mean(0), marker="o", markersize=3, color=color, label=name)
            axes.fill_between(
                x, accuracy.min(0), accuracy.max(0), color=color, alpha=0.2, linewidth=0
            )
    by_round.set(xlabel="round", ylabel="accuracy in %")
    by_round.locator_params(axis="x", integer=True)
    by_bytes.set(xlabel="megabytes uploaded by all clients", ylabel="accuracy in %")
    if runs:
        by_bytes.set_xscale("log")
        at = log_ticks(*by_bytes.get_xlim())
        by_bytes.set_xticks(at, [f"{value:g}" for value in at])
        by_bytes.set_xticks([], minor=True)
    for axes in (by_round, by_bytes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)


def log_ticks(low: float, high: float) -> list[float]:
    """Returns round numbers for a log axis: the fewer decades, the more ticks per decade.

    >>> log_ticks(0.08, 0.19), log_ticks(0.9, 30), log_ticks(0.05, 2000)
    ([0.08, 0.1, 0.15], [1.0, 2.0, 5.0, 10.0, 20.0], [0.1, 1.0, 10.0, 100.0, 1000.0])
    """
    steps: tuple[float, ...] = (1,)
    if high < 100 * low:
        steps = (1, 2, 5) if high > 5 * low else (1, 1.5, 2, 3, 4, 6, 8)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    # Divide below 1: 3 * 10.0**-1 is 0.30000000000000004.
    at = [s * 10.0**d if d >= 0 else s / 10.0**-d for d in decades for s in steps]
    return [value for value in at if low <= value <= high]


def draw_lines(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    points: Mapping[str, tuple[float, float]],
    path: Path,
    labels: tuple[str, str] = ("", ""),
) -> Path:
    """Draws functions of one variable and some points, and returns the file.

    Args:
        x: Arguments of the functions.
        lines: Values of the functions, by name.
        points: Coordinates of the points, by name.
        path: File to write. Its suffix selects the format; the default is PNG.
        labels: Labels of the two axes.
    """
    figure = _figure(6, 4)
    axes = figure.add_subplot()
    colors = _colors(len(lines) + len(points))
    for (name, values), color in zip(lines.items(), colors, strict=False):
        axes.plot(x, values, color=color, label=name)
    for (name, (left, height)), color in zip(points.items(), colors[len(lines) :], strict=True):
        axes.plot([left], [height], marker="o", linestyle="", color=color, label=name)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    return _save(figure, path)


def draw_images(rows: Mapping[str, npt.NDArray[np.uint8]], path: Path, title: str = "") -> Path:
    """Draws rows of images with their names, and returns the file.

    Args:
        rows: Images of shape (n, channels, height, width), by name of the row.
        path: File to write. Its suffix selects the format; the default is PNG.
        title: Text above the images.
    """
    columns = max((len(images) for images in rows.values()), default=0)
    height, width = next((images.shape[2:] for images in rows.values()), (1, 1))
    # One picture with a pixel between images: separate axes would take seconds.
    canvas = np.full((len(rows) * (height + 1), columns * (width + 1), 3), 255, np.uint8)
    for row, images in enumerate(rows.values()):
        for column, image in enumerate(images):
            top, left = row * (height + 1), column * (width + 1)
            canvas[top : top + height, left : left + width] = np.moveaxis(image, 0, -1)
    figure = _figure(1.2 + 0.6 * columns, 0.5 + 0.6 * len(rows))
    axes = figure.add_subplot()
    axes.imshow(canvas, interpolation="nearest")
    middles = [row * (height + 1) + (height - 1) / 2 for row in range(len(rows))]
    axes.set_yticks(middles, rows, fontsize="small")
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize="medium")
    return _save(figure, path)


def check_figure(path: Path) -> None:
    """Raises an error if a figure cannot be written to `path`, before hours of work."""
    figure = _figure(1, 1)
    ending = path.suffix.removeprefix(".").lower() or "png"
    if ending not in figure.canvas.get_supported_filetypes():
        raise ConfigError(f"cannot draw {path}: must be a png, pdf or svg, got {ending}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot draw {path}: must be a file in an existing directory")


def check_figures() -> None:
    """Raises an error if matplotlib is missing."""
    _figure(1, 1)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "figures need matplotlib: pip install 'feddm[figures]'"
        ) from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _save(figure: Figure, path: Path) -> Path:
    file = path if path.suffix else path.with_suffix(".png")
    if path.is_dir():
        raise FedDMError(f"cannot draw {path}: must be a file, not a directory")
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
