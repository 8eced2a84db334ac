import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddm.core.augmentation import DRAWS, Augmentation, unchanged_images

NOTHING = Augmentation(
    flip=False,
    shift=0,
    scale=0,
    rotate=0,
    brightness=0,
    saturation=0,
    contrast=0,
    cutout=0,
)
CHANGES: dict[str, dict[str, float]] = {
    "flip": {"flip": True},
    "shift": {"shift": 0.25},
    "scale": {"scale": 0.5},
    "rotate": {"rotate": 90.0},
    "color": {"brightness": 0.5, "saturation": 1.0, "contrast": 0.5},
    "cutout": {"cutout": 0.5},
}


def only(**strengths: float) -> Augmentation:
    """Returns an augmentation that makes one kind of change."""
    return Augmentation(**{**vars(NOTHING), **strengths})


def draws(*values: float) -> torch.Tensor:
    """Returns one row of uniform numbers, as they would be drawn."""
    return torch.tensor([[*values, *[0.5] * (DRAWS - len(values))]])


PICTURE = torch.arange(16.0).view(1, 1, 4, 4)


class TestByHand:
    def test_flip(self) -> None:
        flip = only(flip=True)._flipped
        assert flip(PICTURE, draws(0.2))[0, 0, 0].tolist() == [3, 2, 1, 0]
        assert torch.equal(flip(PICTURE, draws(0.7)), PICTURE)

    def test_shift_is_by_whole_pixels_and_repeats_the_edge(self) -> None:
        shift = only(shift=0.25)._shifted
        # A map to the right looks at what is on the right: the picture goes to the left.
        moved = shift(PICTURE, draws(1.0, 0.5))
        torch.testing.assert_close(moved[0, 0, 0], torch.tensor([1.0, 2, 3, 3]))
        moved = shift(PICTURE, draws(0.5, 0.0))
        torch.testing.assert_close(moved[0, 0, :, 0], torch.tensor([0.0, 0, 4, 8]))

    def test_rotation_by_a_quarter(self) -> None:
        turned = only(rotate=90.0)._rotated(PICTURE, draws(1.0))
        torch.testing.assert_close(turned, PICTURE.rot90(1, (2, 3)), rtol=0, atol=1e-4)

    def test_scale_by_one_changes_nothing_and_by_two_shows_twice_as_much(self) -> None:
        scale = only(scale=1.0)._scaled
        torch.testing.assert_close(scale(PICTURE, draws(0.5, 0.5)), PICTURE)
        ramp = torch.arange(8.0).expand(1, 1, 8, 8)
        # Twice as far from the middle, 3.5: -3.5 (the edge, 0), ..., 2.5, 4.5, ..., 7.
        wide = scale(ramp, draws(1.0, 0.5))
        assert wide[0, 0, 0].tolist() == pytest.approx([0, 0, 0.5, 2.5, 4.5, 6.5, 7, 7])

    def test_color(self) -> None:
        picture = torch.tensor([1.0, 3.0]).view(1, 2, 1, 1)
        brighter = only(brightness=0.5)._colored(picture, draws(1.0))
        assert brighter.flatten().tolist() == pytest.approx([1.5, 3.5])
        gray = only(saturation=1.0)._colored(picture, draws(0.5, 0.0))
        assert gray.flatten().tolist() == pytest.approx([2, 2])
        stronger = only(contrast=0.5)._colored(picture, draws(0.5, 0.5, 1.0))
        assert stronger.flatten().tolist() == pytest.approx([0.5, 3.5])

    def test_cutout(self) -> None:
        cut = only(cutout=0.5)._cut(PICTURE + 1, draws(0.5, 0.5))
        blank = (cut[0, 0] == 0).nonzero().tolist()
        assert blank == [[1, 1], [1, 2], [2, 1], [2, 2]]
        corner = only(cutout=0.5)._cut(PICTURE + 1, draws(0.0, 0.0))
        assert (corner[0, 0] == 0).nonzero().tolist() == [[0, 0]]


def test_nothing_asked_for_changes_nothing() -> None:
    rng = torch.Generator().manual_seed(0)
    assert torch.equal(NOTHING.each(PICTURE, rng), PICTURE)
    assert torch.equal(NOTHING.shared(rng)(PICTURE), PICTURE)
    assert unchanged_images(PICTURE) is PICTURE


@pytest.mark.parametrize("name", CHANGES)
def test_a_shared_change_is_the_same_for_all_images_and_every_time(name: str) -> None:
    pictures = torch.randn(1, 3, 8, 8).expand(5, 3, 8, 8)
    changed = only(**CHANGES[name]).shared(torch.Generator().manual_seed(1))
    first = changed(pictures)
    torch.testing.assert_close(first, first[:1].expand_as(first))
    # Real images come in several batches, synthetic ones in others.
    torch.testing.assert_close(changed(pictures[:2]), first[:2])


@pytest.mark.parametrize("name", CHANGES)
def test_each_image_has_a_change_of_its_own(name: str) -> None:
    pictures = torch.randn(1, 3, 8, 8).expand(20, 3, 8, 8)
    changed = only(**CHANGES[name]).each(pictures, torch.Generator().manual_seed(1))
    assert len({tuple(image.flatten().tolist()) for image in changed}) > 1


@pytest.mark.parametrize("name", CHANGES)
def test_gradients_pass(name: str) -> None:
    """Every change is linear in the image but for its mean, so a gradient is never 0 at all."""
    pictures = torch.randn(4, 3, 8, 8, requires_grad=True)
    changed = only(**CHANGES[name]).shared(torch.Generator().manual_seed(1))(pictures)
    (gradient,) = torch.autograd.grad(changed.sum(), pictures)
    assert float(gradient.abs().sum()) > 0


@given(st.integers(0, 10**6))
def test_the_seed_decides(seed: int) -> None:
    def changed() -> torch.Tensor:
        return Augmentation().each(PICTURE, torch.Generator().manual_seed(seed))

    assert torch.equal(changed(), changed())
    assert changed().shape == PICTURE.shape
    assert bool(changed().isfinite().all())


def test_all_kinds_are_drawn() -> None:
    rng = torch.Generator().manual_seed(0)
    picture = torch.randn(1, 3, 8, 8)
    outcomes = {tuple(Augmentation().each(picture, rng).flatten().tolist()) for _ in range(50)}
    assert len(outcomes) > 25
    names = {Augmentation()._draw(rng).__name__ for _ in range(200)}
    assert names == {"_flipped", "_shifted", "_scaled", "_rotated", "_colored", "_cut"}
    without = {only(**CHANGES["shift"])._draw(rng).__name__ for _ in range(20)}
    assert without == {"_shifted"}


def test_rotation_stays_within_its_angle() -> None:
    # A point on the right edge, seen after a rotation by at most 30 degrees, is at most half
    # a side above the middle.
    point = torch.zeros(1, 1, 33, 33)
    point[0, 0, 16, 32] = 1.0
    rng = torch.Generator().manual_seed(0)
    seen = 0
    for _ in range(30):
        turned = only(rotate=30.0).each(point, rng)[0, 0]
        rows = turned.sum(1)
        if float(rows.sum()) > 0.2:
            middle = float((rows * torch.arange(33)).sum() / rows.sum())
            assert abs(middle - 16) <= 16 * math.sin(math.radians(30)) + 1
            seen += 1
    assert seen > 10
