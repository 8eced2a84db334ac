import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tiny
from feddm.analysis.leakage import THRESHOLD, Leakage, measured, nearest
from feddm.core.examples import Examples, Normalization
from feddm.data.datasets import load
from feddm.errors import DataError
from feddm.runtime.synthetic_file import SyntheticSet

LEVELS = Normalization((0.0,), (1 / 255,))  # inputs are the levels from 0 to 255
SIDES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 1)),
    min_size=1,
    max_size=6,
)


def levels(*pairs: tuple[int, int]) -> Tensor:
    """Returns images of two pixels."""
    return torch.tensor(pairs, dtype=torch.uint8).view(-1, 1, 1, 2)


def real(*rows: tuple[int, int, int]) -> Examples:
    """Returns real images of two pixels, each with its class."""
    return Examples(
        levels(*((a, b) for a, b, _ in rows)), torch.tensor([row[2] for row in rows])
    )


def synthetic(*rows: tuple[int, int, int]) -> SyntheticSet:
    """Returns synthetic images of two pixels, each with its class, and one per client."""
    pixels = real(*rows)
    examples = Examples(LEVELS.inputs(pixels.x), pixels.y)
    return SyntheticSet(examples, torch.arange(len(rows)), ("a", "b", "c"), LEVELS)


def leakage_by_hand() -> Leakage:
    # 0: (3, 4) away from training, (6, 8) from held-out: 5 / sqrt(2), 10 / sqrt(2), ratio 1/2.
    # 1: of class b, (0, 2) and (0, 8) away: sqrt(2) and sqrt(32), ratio 1/4.
    # 2: of class c, which has no held-out image.
    # 3: (10, 0) away from training, (5, 0) from held-out: ratio 2.
    return measured(
        synthetic((10, 20, 0), (10, 20, 1), (9, 9, 2), (200, 20, 0)),
        real((99, 99, 0), (13, 24, 0), (10, 22, 1), (210, 20, 0), (9, 9, 2)),
        real((16, 28, 0), (10, 12, 1), (205, 20, 0)),
    )


def test_distances_and_ratios_by_hand() -> None:
    found = leakage_by_hand()
    assert found.images.tolist() == found.clients.tolist() == [0, 1, 3]
    assert found.train.index.tolist() == [1, 2, 3]
    assert found.held_out.index.tolist() == [0, 1, 2]
    root = math.sqrt(2)
    assert found.train.distance.tolist() == pytest.approx([5 / root, root, 10 / root])
    assert found.held_out.distance.tolist() == pytest.approx([10 / root, 4 * root, 5 / root])
    assert found.ratios.tolist() == pytest.approx([0.5, 0.25, 2.0])
    assert found.median == pytest.approx(0.5)
    assert found.closest().tolist() == [1, 0, 2]


def test_a_ratio_at_the_threshold_is_no_copy() -> None:
    found = leakage_by_hand()
    assert found.ratios[0] == THRESHOLD
    assert found.copies == 1


def test_each_class_by_hand() -> None:
    parts = dict(leakage_by_hand().by_class())
    assert {name: (len(part), part.copies) for name, part in parts.items()} == {
        "a": (2, 0),
        "b": (1, 1),
    }
    assert parts["a"].median == pytest.approx((0.5 + 2) / 2)
    assert parts["b"].median == pytest.approx(0.25)


def test_figures_for_programs() -> None:
    content = leakage_by_hand().to_json()
    assert (content["images"], content["copies"], content["threshold"]) == (3, 1, 0.5)
    assert [each["class"] for each in content["classes"]] == ["a", "b"]
    assert content["each"][2] == {
        "image": 3,
        "client": 3,
        "label": 0,
        "train_index": 3,
        "train_distance": pytest.approx(10 / math.sqrt(2)),
        "held_out_index": 2,
        "held_out_distance": pytest.approx(5 / math.sqrt(2)),
        "ratio": pytest.approx(2.0),
    }


def test_a_held_out_image_is_no_copy() -> None:
    found = measured(synthetic((7, 7, 0)), real((8, 8, 0)), real((7, 7, 0), (8, 8, 0)))
    assert found.ratios.tolist() == [math.inf]
    assert found.copies == 0
    assert found.to_json()["each"][0]["ratio"] is None


def test_a_training_image_is_a_copy_even_if_it_is_held_out_too() -> None:
    found = measured(synthetic((7, 7, 0)), real((7, 7, 0)), real((7, 7, 0)))
    assert (found.ratios.tolist(), found.copies) == ([0.0], 1)


def test_images_are_compared_as_one_sees_them() -> None:
    # Brighter than white is white.
    bright = SyntheticSet(
        Examples(torch.full((1, 1, 1, 2), 400.0), torch.tensor([0])),
        torch.tensor([0]),
        ("a",),
        LEVELS,
    )
    found = measured(bright, real((255, 255, 0)), real((0, 0, 0)))
    assert found.train.distance.tolist() == [0.0]


def test_channels_count_in_units_of_their_deviation() -> None:
    # The red channel deviates by 1 level, the green and the blue one by 2.
    colors = Normalization((0.0, 0.0, 0.0), (1 / 255, 2 / 255, 2 / 255))
    pixels = torch.tensor([[0, 0, 0], [2, 0, 0], [0, 2, 2]], dtype=torch.uint8).view(3, 3, 1, 1)
    images = Examples(pixels[:1], torch.tensor([0]), colors)
    found = nearest(images, Examples(pixels[1:], torch.tensor([0, 0]), colors))
    assert found.index.tolist() == [1]  # sqrt((0 + 1 + 1) / 3), not sqrt(4 / 3)
    assert found.distance.tolist() == pytest.approx([math.sqrt(2 / 3)])


def test_nothing_to_compare_with() -> None:
    with pytest.raises(DataError, match="no class of the synthetic images has training and"):
        measured(synthetic((1, 2, 0)), real((1, 2, 0)), real((1, 2, 1)))


@given(SIDES, SIDES)
def test_the_nearest_is_the_nearest(
    ours: list[tuple[int, int, int]], theirs: list[tuple[int, int, int]]
) -> None:
    images = real(*ours)
    found = nearest(
        Examples(images.x, images.y, LEVELS),
        Examples(real(*theirs).x, real(*theirs).y, LEVELS),
    )
    for number, (a, b, label) in enumerate(ours):
        distances = [
            math.hypot(a - c, b - d) / math.sqrt(2) for c, d, each in theirs if each == label
        ]
        index, distance = int(found.index[number]), float(found.distance[number])
        if not distances:
            assert index == -1 and math.isnan(distance)
            continue
        assert distance == pytest.approx(min(distances), abs=1e-3)
        c, d, each = theirs[index]
        assert each == label
        assert math.hypot(a - c, b - d) / math.sqrt(2) == pytest.approx(distance, abs=1e-3)


@given(SIDES, SIDES, SIDES)
def test_a_planted_copy_is_found(
    planted: list[tuple[int, int, int]],
    train: list[tuple[int, int, int]],
    held_out: list[tuple[int, int, int]],
) -> None:
    both = [(0, 0, 0), (0, 0, 1)]  # each class has a held-out image
    found = measured(synthetic(*planted), real(*train, *planted), real(*held_out, *both))
    assert found.copies == len(found) == len(planted)
    assert found.ratios.tolist() == [0.0] * len(planted)
    assert found.median == 0.0


def test_real_sends_copies() -> None:
    data = load("digits")
    sent = tiny.run_tiny(rounds=1, algorithm="real").synthetic
    assert sent is not None
    found = measured(sent, data.train, data.test)
    assert found.copies == len(found) == len(sent)
    assert found.ratios.max() == 0.0


def test_noise_is_no_copy() -> None:
    data = load("digits")
    settings = tiny.SETTINGS | {"synthesis.start": "noise", "synthesis.steps": 0}
    sent = tiny.run_tiny(rounds=1, set=settings).synthetic
    assert sent is not None
    found = measured(sent, data.train, data.test)
    assert found.copies == 0
    assert 0.9 < found.median < 1.1


def test_few_images_that_nobody_copied_are_below_the_threshold() -> None:
    data = load("digits")
    unseen, held_out = (data.test.subset(torch.arange(n, len(data.test), 2)) for n in (0, 1))
    pretended = SyntheticSet(
        Examples(data.test.inputs(unseen.x), unseen.y),
        torch.zeros(len(unseen)).int(),
        data.info.classes,
        Normalization(data.info.mean, data.info.std),
    )
    found = measured(pretended, data.train, held_out)
    assert (found.copies, len(found)) == (6, 180)  # docs/report.md says so
