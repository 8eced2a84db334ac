"""What one example can change, whatever it is."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feddm.core.augmentation import Augmentation, Transform, unchanged_images
from feddm.core.examples import Examples, Normalization
from feddm.core.models import ConvNet
from feddm.core.seeding import generator
from feddm.core.tensors import Tensors
from feddm.privacy.clipping import real, shortened
from feddm.privacy.features import Bound, Bounded, class_totals, noisy_means
from private import cancelling
from toy import TwoParameters, pixels, point

BOUND = Bound(2.0)
MODEL = ConvNet((1, 8, 8), 4, width=4, depth=2)
PARAMS = MODEL.init(generator(0, "test"))


def by_hand() -> Tensor:
    # At a = 2, b = 3, the pixel x has h = 2 x and z = (6 x, 0): 2 x sqrt(10) long.
    model = Bounded(TwoParameters(), Bound(5.0, 0.36).features)
    data = Examples(pixels(0.1, -0.2, 10.0), torch.tensor([0, 0, 1]))
    return real(class_totals(model, point(2.0, 3.0), data, Bound(5.0, 0.36)), 5.0)


def test_sums_by_hand() -> None:
    # s = 3 and features of 4 at most: .1 and -.2 are as they are, 10 is cut to length 4.
    unit = 4 / math.sqrt(10)
    expected = [[-0.2, -0.6, 0.0, 6.0], [unit, 3 * unit, 0.0, 3.0]]
    torch.testing.assert_close(by_hand(), torch.tensor(expected).double(), rtol=1e-4, atol=0)


def test_means_by_hand() -> None:
    counts, means = noisy_means(by_hand(), 2, Bound(5.0, 0.36), floor=2.0)
    assert counts.tolist() == pytest.approx([2.0, 1.0])
    # The second class is taken to have two examples.
    unit = 2 / math.sqrt(10)
    torch.testing.assert_close(
        means.embedding, torch.tensor([[-0.1], [unit]]), rtol=1e-4, atol=0
    )
    torch.testing.assert_close(
        means.logits, torch.tensor([[-0.3, 0.0], [3 * unit, 0.0]]), rtol=1e-4, atol=0
    )


def test_counts_are_those_of_the_public_list_of_classes() -> None:
    data = Examples(torch.randn(9, 1, 8, 8), torch.tensor([1] * 4 + [3] * 5))
    model = Bounded(MODEL, BOUND.features)
    counts, _ = noisy_means(
        real(class_totals(model, PARAMS, data, BOUND), BOUND.length), 4, BOUND, floor=1.0
    )
    assert counts.tolist() == pytest.approx([0, 4, 0, 5])


def test_a_client_without_examples_has_zeros_of_the_same_shape() -> None:
    model = Bounded(MODEL, BOUND.features)
    none = Examples(torch.empty(0, 1, 8, 8), torch.empty(0, dtype=torch.int64))
    some = Examples(torch.randn(2, 1, 8, 8), torch.tensor([0, 1]))
    totals = class_totals(model, PARAMS, none, BOUND)
    assert totals.shape == class_totals(model, PARAMS, some, BOUND).shape
    assert totals.dtype == torch.int64
    assert not totals.any()


@pytest.mark.parametrize("num", [1000, 3_000_000])
def test_long_rows_are_measured_exactly(num: int) -> None:
    # A few large numbers beside millions of small ones, which single precision loses.
    row = torch.full((1, num), 2.3e-4)
    row[:, :64] = 1.0
    short = shortened(row, 1.0).double()
    assert float(short.norm()) <= 1.0
    assert float(short.norm()) > 0.9999


EXTREME = st.sampled_from([0.0, 1.0, -1e4, 1e20, -3e38, math.inf, -math.inf, math.nan])


@given(st.lists(st.lists(EXTREME | st.floats(-10, 10, width=32), min_size=3, max_size=3)))
def test_rows_are_never_longer(rows: list[list[float]]) -> None:
    short = shortened(torch.tensor(rows).view(-1, 3), 2.0)
    assert bool(short.isfinite().all())
    assert bool((short.double().norm(dim=1) <= 2.0).all())


@settings(max_examples=60, deadline=None)
@given(
    pixel=EXTREME | st.floats(-1e6, 1e6, width=32),
    scale=st.sampled_from([0.0, 1.0, 1e3, 1e18, math.nan]),
    label=st.integers(0, 3),
    others=st.integers(0, 40),
    projected=st.booleans(),
    augmented=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_one_example_changes_the_sums_by_at_most_the_bound(
    pixel: float,
    scale: float,
    label: int,
    others: int,
    projected: bool,
    augmented: bool,
    seed: int,
) -> None:
    rng = generator(seed, "test")
    # Any weights: the server chooses them, and may do so to find out.
    params = {name: tensor * scale for name, tensor in PARAMS.items()}
    projection = torch.randn(16, 5, generator=rng) if projected else None
    model = Bounded(MODEL, BOUND.features, projection)
    transform = Augmentation().shared(rng) if augmented else unchanged_images
    x = torch.randn(others + 1, 1, 8, 8, generator=rng)
    x[-1] += pixel
    y = torch.randint(4, (others + 1,), generator=rng)
    y[-1] = label
    data = Examples(x, y)
    change = summed(model, params, data, transform) - summed(
        model, params, data.subset(torch.arange(others)), transform
    )
    assert float(change.norm()) <= BOUND.length
    # All of the change is in the row of its class.
    change[label] = 0
    assert not change.any()


def summed(model: Bounded, params: Tensors, data: Examples, transform: Transform) -> Tensor:
    return real(class_totals(model, params, data, BOUND, transform), BOUND.length)


@pytest.mark.parametrize("weights", ["usual", "large", "cancelling"])
@pytest.mark.parametrize("others", [1, 31, 32, 70])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("pixels", [False, True])
def test_the_others_keep_their_bits(
    weights: str, others: int, place: int, pixels: bool
) -> None:
    """What one example adds is the same whichever others there are, and wherever they are."""
    rng = generator(others, "test")
    params = {
        "usual": PARAMS,
        "large": {name: 1e3 * tensor for name, tensor in PARAMS.items()},
        "cancelling": cancelling(PARAMS),
    }[weights]
    shape = (others + 1, 1, 8, 8)
    y = torch.randint(4, (others + 1,), generator=rng)
    data = (
        Examples(
            torch.randint(256, shape, generator=rng, dtype=torch.uint8),
            y,
            Normalization((0.3,), (0.7,)),
        )
        if pixels
        else Examples(torch.randn(shape, generator=rng), y)
    )
    model = Bounded(MODEL, BOUND.features, torch.randn(16, 5, generator=rng))
    transform = Augmentation().shared(rng)
    gone = place % (others + 1)
    without = data.subset(torch.tensor([n for n in range(others + 1) if n != gone]))
    expected = summed(model, params, data.subset(torch.tensor([gone])), transform)
    assert bool(expected.any())
    assert torch.equal(
        summed(model, params, data, transform) - summed(model, params, without, transform),
        expected,
    )
