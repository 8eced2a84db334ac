from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from feddm.analysis import figures
from feddm.analysis.figures import (
    Point,
    check_figure,
    draw_curves,
    draw_images,
    draw_lines,
    draw_panels,
)
from feddm.errors import FedDMError

TWO_SEEDS = {
    "ours": [[Point(1.0, 0.4), Point(2.0, 0.5)], [Point(3.0, 0.6), Point(4.0, 0.7)]],
    "theirs": [[Point(10.0, 0.1), Point(20.0, 0.2)]],
}


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), round(float(y), 6)) for x, y in np.asarray(line.get_xydata())]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The matplotlib figures that were saved."""
    figures_: list[Figure] = []
    save = figures._save

    def saved(figure: Figure, path: Path) -> Path:
        figures_.append(figure)
        return save(figure, path)

    monkeypatch.setattr(figures, "_save", saved)
    return figures_


def test_curves_are_means_by_round_and_by_megabytes(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    file = draw_curves(TWO_SEEDS, tmp_path / "curves")
    assert file.read_bytes().startswith(b"\x89PNG\r\n")
    by_round, by_bytes = drawn[0].axes
    ours, theirs = by_round.lines
    assert points(ours) == [(1, 50), (2, 60)]
    assert points(theirs) == [(1, 10), (2, 20)]
    assert points(by_bytes.lines[0]) == [(2, 50), (3, 60)]
    assert by_bytes.get_xscale() == "log"
    # From 2 to 20 megabytes.
    assert [tick.get_text() for tick in by_bytes.get_xticklabels()] == ["2", "5", "10", "20"]
    assert by_bytes.get_legend_handles_labels()[1] == ["ours", "theirs"]


def test_a_caption_is_below_the_figure(tmp_path: Path, drawn: list[Figure]) -> None:
    draw_curves(TWO_SEEDS, tmp_path / "with", "epsilon: of one example")
    draw_curves(TWO_SEEDS, tmp_path / "without")
    texts = [figure.get_supxlabel() for figure in drawn]
    assert texts == ["epsilon: of one example", ""]


def test_the_mean_ends_with_the_shortest_seed(tmp_path: Path, drawn: list[Figure]) -> None:
    seeds = [TWO_SEEDS["ours"][0], TWO_SEEDS["ours"][1][:1]]
    file = draw_curves({"ours": seeds, "theirs": TWO_SEEDS["theirs"]}, tmp_path / "c.svg")
    assert file.read_text().startswith("<?xml")
    by_round, by_bytes = drawn[0].axes
    # Only one seed has a second round; the other method keeps all its rounds.
    assert [points(line) for line in by_round.lines] == [[(1, 50)], [(1, 10), (2, 20)]]
    assert points(by_bytes.lines[0]) == [(2, 50)]


@pytest.mark.parametrize("name", ["none/c.png", "c.docx", "."])
def test_a_path_that_cannot_be_drawn_is_refused_early(tmp_path: Path, name: str) -> None:
    with pytest.raises(FedDMError, match="cannot draw"):
        check_figure(tmp_path / name)


@pytest.mark.parametrize("name", ["c", "c.png", "c.pdf", "c.svg", "c.PNG"])
def test_a_path_that_can_be_drawn(tmp_path: Path, name: str) -> None:
    check_figure(tmp_path / name)
    assert draw_curves(TWO_SEEDS, tmp_path / name).exists()


def test_panels_have_curves_and_reference_levels(tmp_path: Path, drawn: list[Figure]) -> None:
    panels = {"first": TWO_SEEDS, "second": {"theirs": TWO_SEEDS["theirs"]}, "failed": {}}
    levels = {"first": {"ours": 0.66, "nobody": 0.9}}
    file = draw_panels(panels, levels, tmp_path / "panels.pdf", "below")
    assert file.read_bytes().startswith(b"%PDF")
    (first, second, failed), (first_bytes, *_) = np.array(drawn[0].axes).reshape(2, 3)
    assert [axes.get_title() for axes in (first, second, failed)] == list(panels)
    ours, _, level = first.lines
    assert points(ours) == [(1, 50), (2, 60)]
    assert level.get_ydata() == pytest.approx([66, 66])
    assert level.get_color() == ours.get_color()
    assert points(first_bytes.lines[0]) == [(2, 50), (3, 60)]
    assert [points(line) for line in second.lines] == [[(1, 10), (2, 20)]]
    assert not failed.lines


def test_lines_and_points(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = {"f": [1.0, 2.0], "g": [3.0, 4.0]}
    draw_lines([0.0, 5.0], lines, {"least": (5.0, 2.0)}, tmp_path / "f", ("w", "loss"))
    (axes,) = drawn[0].axes
    assert [points(line) for line in axes.lines] == [
        [(0, 1), (5, 2)],
        [(0, 3), (5, 4)],
        [(5, 2)],
    ]
    assert axes.get_legend_handles_labels()[1] == ["f", "g", "least"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("w", "loss")


def test_images_are_drawn_in_rows(tmp_path: Path, drawn: list[Figure]) -> None:
    gray = np.full((2, 1, 2, 2), 7, np.uint8)
    gray[1] = 9
    draw_images({"cat": gray, "dog": gray[1:]}, tmp_path / "images.png", "sigma 5")
    (axes,) = drawn[0].axes
    canvas = np.asarray(axes.images[0].get_array())
    # Two by two images of two by two pixels, one pixel apart; missing images are white.
    assert canvas.shape == (6, 6, 3)
    assert canvas[:, :, 0].tolist() == [
        [7, 7, 255, 9, 9, 255],
        [7, 7, 255, 9, 9, 255],
        6 * [255],
        [9, 9, 255, 255, 255, 255],
        [9, 9, 255, 255, 255, 255],
        6 * [255],
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
    assert list(axes.get_yticks()) == [0.5, 3.5]
    assert axes.get_title() == "sigma 5"
