"""The 1-D example, computed again without torch."""

import math
from collections.abc import Sequence

import pytest
import torch

from feddm.paper.surrogate import Example, Points, example, minimiser


@pytest.fixture(scope="module")
def made() -> Example:
    return example()


def pairs(points: Points) -> list[tuple[float, float]]:
    return list(zip(points.x.tolist(), points.y.tolist(), strict=True))


def cross_entropy(w: float, points: Sequence[tuple[float, float]]) -> float:
    """The loss as printed in the paper, with ``y_hat = sigmoid(w x)``."""
    total = 0.0
    for x, y in points:
        y_hat = 1 / (1 + math.exp(-w * x))
        total -= y * math.log(y_hat) + (1 - y) * math.log(1 - y_hat)
    return total / len(points)


def least(points: Sequence[tuple[float, float]]) -> float:
    """The minimiser on a grid from -10 to 10, then on finer grids around the best."""
    center, reach = 0.0, 10.0
    while reach > 1e-5:
        grid = [center + reach * step / 50 for step in range(-50, 51)]
        center = min(grid, key=lambda w: cross_entropy(w, points))
        reach /= 20
    return center


def test_the_surrogate_gets_closer_than_a_gradient_step(made: Example) -> None:
    real, synthetic = pairs(made.real), pairs(made.synthetic)
    truth, ours = least(real), least(synthetic)
    # At w = 0 every prediction is 1/2, so the slope is the mean of (1/2 - y) x.
    gradient_step = -sum((0.5 - y) * x for x, y in real) / 100
    assert (truth, ours) == pytest.approx((1.9175, 1.1057), abs=2e-4)
    assert gradient_step == pytest.approx(0.3245, abs=1e-4)
    assert abs(ours - truth) < 0.82 < 1.59 < abs(gradient_step - truth)
    found = (made.minimiser, made.surrogate_minimiser, made.gradient_step)
    assert found == pytest.approx((truth, ours, gradient_step), abs=1e-4)


def test_labels_are_as_meant_not_as_printed(made: Example) -> None:
    right = sum((x >= 0) == (y == 1) for x, y in pairs(made.real))
    assert len(made.real.x) == 100
    assert 80 <= right <= 98  # 90 are expected, with a standard deviation of 3
    # As printed, y is 0 nine times out of ten for any x, so the best w is near 0.
    assert abs(made.printed_minimiser) < 0.5


def test_matching_only_shifts_each_class(made: Example) -> None:
    assert made.synthetic.y.tolist() == 10 * [0.0] + 10 * [1.0]
    for label in (0, 1):
        real = made.real.x[made.real.y == label].mean()
        learned = made.synthetic.x[made.synthetic.y == label]
        assert float(learned.mean()) == pytest.approx(float(real), abs=1e-12)
        # The gradient is the same for all points of a class.
        shift = learned - made.start.x[made.start.y == label]
        assert shift.tolist() == pytest.approx(10 * [float(shift[0])], abs=1e-12)


def test_the_seed_decides_everything(made: Example) -> None:
    again, other = example(), example(1)
    assert torch.equal(again.synthetic.x, made.synthetic.x)
    assert again.real.x.dtype == torch.float64
    assert not torch.equal(other.real.x, made.real.x)


def test_losses_and_tangent_by_hand() -> None:
    # Points 1 of class 1 and -2 of class 0: log(1 + e^-w) and log(1 + e^-2w), whose slopes at 0
    # are -1/2 and -1.
    points = Points(torch.tensor([1.0, -2.0]).double(), torch.tensor([1.0, 0.0]).double())
    expected = (math.log(1 + math.exp(-3)) + math.log(1 + math.exp(-6))) / 2
    assert points.loss(3.0).item() == pytest.approx(expected, abs=1e-12)
    assert points.slope(0.0) == pytest.approx(-0.75, abs=1e-15)
    shown = Example(points, points, points, 0.0, 0.0, 0.0, 0.0).tangent(torch.tensor([2.0]))
    assert shown.item() == pytest.approx(math.log(2) - 1.5, abs=1e-6)


@pytest.mark.parametrize("root", [0.25, -7.5, 40.0])
def test_a_minimiser_is_found_anywhere(root: float) -> None:
    assert minimiser(lambda w: w**3 - root**3) == pytest.approx(root, abs=1e-6)
