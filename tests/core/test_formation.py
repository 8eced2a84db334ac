import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from feddm.core.formation import composed, expanded


def test_one_image_a_side_is_the_image() -> None:
    images = torch.randn(3, 1, 4, 4)
    assert composed(images, 1) is images
    assert expanded(images, 1) is images


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 3))
def test_tiles_come_back_in_their_order(
    factor: int, channels: int, side: int, stored: int
) -> None:
    """An image of one color, reduced and enlarged, is what it was."""
    num = stored * factor**2
    colors = torch.arange(float(num * channels)).view(num, channels, 1, 1)
    images = colors.expand(num, channels, factor * side, factor * side)
    whole = composed(images, factor)
    assert whole.shape == (stored, channels, factor * side, factor * side)
    torch.testing.assert_close(expanded(whole, factor), images)


def test_small_images_are_averages() -> None:
    images = torch.randn(4, 3, 8, 8)
    whole = composed(images, 2)
    torch.testing.assert_close(whole[0, :, :4, 4:], F.avg_pool2d(images[1:2], 2)[0])
    torch.testing.assert_close(whole[0, :, 4:, :4], F.avg_pool2d(images[2:3], 2)[0])


def test_enlarging_keeps_the_mean_and_passes_gradients() -> None:
    stored = torch.randn(2, 3, 8, 8, requires_grad=True)
    large = expanded(stored, 2)
    assert large.shape == (8, 3, 8, 8)
    corner = F.interpolate(stored[1:, :, 4:, 4:], scale_factor=2, mode="bilinear")
    torch.testing.assert_close(large[7:], corner)
    (gradient,) = torch.autograd.grad(large.sum(), stored)
    assert float(gradient.min()) > 0  # every stored pixel is seen
    assert float(gradient.sum()) == pytest.approx(large.numel(), rel=1e-4)
