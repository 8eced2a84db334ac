"""Clipped gradients with respect to images, against the matching loss and by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddm.core.examples import Examples
from feddm.core.matching import ClassMeans, Target, class_means, image_gradient
from feddm.core.models import ConvNet
from feddm.core.seeding import generator
from feddm.core.tensors import Tensors
from feddm.privacy.clipping import real
from feddm.privacy.images import clipped_image_gradient_sum
from private import cancelling
from toy import TwoParameters, pixels, point

MODEL = ConvNet((1, 8, 8), 3, width=4, depth=2)
PARAMS = MODEL.init(generator(0, "test"))
SLOTS = torch.arange(3).repeat_interleave(2)


def test_by_hand() -> None:
    # At a = 2, b = 3: phi(x) = (2 x, 6 x, 0). Images 0 and 2 of class 0 have the mean 1, so
    # m = (2, 6, 0), and each image moves it by half of (2, 6, 0). The example 3 has
    # phi = (6, 18, 0): g = 2 (1, 3) . (2 - 6, 6 - 18) = -80 for both images, 113.1 long.
    images, slots = pixels(0.0, 2.0, 5.0), torch.tensor([0, 0, 1])
    data = Examples(pixels(3.0), torch.tensor([0]))
    for most, expected in ((1000.0, -80.0), (1.0, -math.sqrt(0.5))):
        total = clipped_image_gradient_sum(
            TwoParameters(), images, slots, point(2.0, 3.0), data, most
        )
        assert real(total, most).flatten().tolist() == pytest.approx(
            [expected, expected, 0.0], rel=1e-4
        )


def test_without_clipping_it_is_the_gradient_of_the_matching_loss() -> None:
    rng = generator(1, "test")
    images = torch.randn(6, 1, 8, 8, generator=rng)
    x, y = torch.randn(9, 1, 8, 8, generator=rng), torch.arange(3).repeat(3)
    total = clipped_image_gradient_sum(MODEL, images, SLOTS, PARAMS, Examples(x, y), most=1e3)
    means = class_means(MODEL(PARAMS, x), y, 3)
    expected, _ = image_gradient(MODEL, images, SLOTS, Target(PARAMS, ClassMeans(*means)))
    torch.testing.assert_close(real(total, 1e3).float() / 3, expected, rtol=1e-3, atol=1e-5)


def test_no_example_gives_zero() -> None:
    none = Examples(torch.empty(0, 1, 8, 8), torch.empty(0, dtype=torch.int64))
    total = clipped_image_gradient_sum(
        MODEL, torch.ones(6, 1, 8, 8), SLOTS, PARAMS, none, most=1.0
    )
    assert (total.shape, total.dtype) == ((6, 1, 8, 8), torch.int64)
    assert not total.any()


@settings(max_examples=30, deadline=None)
@given(
    pixel=st.sampled_from([0.0, 1e3, -1e20, math.inf, math.nan]),
    others=st.integers(0, 40),
    label=st.integers(0, 2),
    scale=st.sampled_from([0.0, 1.0, 1e4, math.nan]),
)
def test_one_example_changes_the_sum_by_at_most_the_bound(
    pixel: float, others: int, label: int, scale: float
) -> None:
    rng = generator(others, "test")
    images = torch.randn(6, 1, 8, 8, generator=rng)
    x = torch.randn(others + 1, 1, 8, 8, generator=rng)
    x[-1] += pixel
    y = torch.cat([torch.randint(3, (others,), generator=rng), torch.tensor([label])])
    params = {name: tensor * scale for name, tensor in PARAMS.items()}

    data = Examples(x, y)
    change = summed(images, params, data) - summed(
        images, params, data.subset(torch.arange(others))
    )
    assert float(change.norm()) <= 0.5


def summed(images: torch.Tensor, params: Tensors, data: Examples) -> torch.Tensor:
    total = clipped_image_gradient_sum(MODEL, images, SLOTS, params, data, most=0.5)
    return real(total, 0.5)


@pytest.mark.parametrize("others", [1, 8, 33])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("cancels", [False, True])
def test_the_others_keep_their_bits(others: int, place: int, cancels: bool) -> None:
    """What one example adds is the same whichever others there are, and wherever they are."""
    rng = generator(others, "test")
    images = torch.randn(6, 1, 8, 8, generator=rng)
    data = Examples(
        torch.randn(others + 1, 1, 8, 8, generator=rng),
        torch.randint(3, (others + 1,), generator=rng),
    )
    params = cancelling(PARAMS) if cancels else PARAMS
    gone = place % (others + 1)
    without = data.subset(torch.tensor([n for n in range(others + 1) if n != gone]))
    expected = summed(images, params, data.subset(torch.tensor([gone])))
    assert bool(expected.any())
    assert torch.equal(summed(images, params, data) - summed(images, params, without), expected)
