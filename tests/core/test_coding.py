import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from feddm.core.coding import Coding
from feddm.core.tensors import num_bytes
from feddm.errors import UploadError

SHAPE = (2, 2, 2)
ALL = [Coding("float32"), Coding("uint8")]  # webp: test_sheets.py
# Both channels reach from their least to their greatest value: 0 to 2.55 and -1 to 0.
IMAGES = torch.tensor(
    [0.0, 0.01, 0.017, 2.55, -1.0, -0.5, 0.0, 0.0],
).view(1, *SHAPE)


def pictures(most: int = 5) -> st.SearchStrategy[Tensor]:
    """Returns sets of images, empty ones too."""
    values = st.floats(-100, 100, width=32)
    shapes = st.integers(0, most).map(lambda n: (n, *SHAPE))
    return shapes.flatmap(lambda shape: npst.arrays("float32", shape, elements=values)).map(
        torch.from_numpy
    )


def labels(number: int) -> Tensor:
    return torch.zeros(number, dtype=torch.int64)


def sent_by(coding: Coding, images: Tensor) -> dict[str, Tensor]:
    return coding.encode(images, labels(len(images)))


def there_and_back(coding: Coding, images: Tensor) -> Tensor:
    return coding.decode(sent_by(coding, images), labels(len(images)), SHAPE, most=5)


def test_uint8_by_hand() -> None:
    sent = sent_by(Coding("uint8"), IMAGES)
    assert sent["low"].tolist() == [0.0, -1.0]
    assert sent["step"].tolist() == pytest.approx([0.01, 1 / 255])
    # .017 is nearer to level 2 than to level 1; -.5 is 127.5 levels above -1.
    assert sent["x"].flatten().tolist()[:5] == [0, 1, 2, 255, 0]
    assert sent["x"].flatten().tolist()[5] in (127, 128)


@given(pictures())
def test_float32_is_exact(images: Tensor) -> None:
    assert torch.equal(there_and_back(Coding("float32"), images), images)


@given(pictures())
def test_uint8_is_at_most_half_a_step_away(images: Tensor) -> None:
    coding = Coding("uint8")
    step = sent_by(coding, images)["step"].view(1, -1, 1, 1)
    gap = (there_and_back(coding, images) - images).abs()
    assert bool((gap <= 0.5 * step + 1e-4).all())


@given(pictures())
def test_encoding_again_changes_nothing(images: Tensor) -> None:
    once = there_and_back(Coding("uint8"), images)
    twice = there_and_back(Coding("uint8"), once)
    torch.testing.assert_close(once, twice, rtol=1e-5, atol=1e-4)


def test_bytes_are_counted_as_they_are_sent() -> None:
    images = torch.zeros(5, *SHAPE)
    assert num_bytes({"e": sent_by(Coding("float32"), images)}) == 5 * 8 * 4
    assert num_bytes({"e": sent_by(Coding("uint8"), images)}) == 5 * 8 + 2 * 2 * 4
    assert [coding.image_bytes(SHAPE) for coding in ALL] == [32, 8]
    # In each channel one number for the lowest level, and one for the step.
    assert [coding.range_bytes(2) for coding in ALL] == [0, 16]


@pytest.mark.parametrize("coding", ALL)
def test_a_constant_set_comes_back(coding: Coding) -> None:
    images = torch.full((3, *SHAPE), 0.5)
    torch.testing.assert_close(there_and_back(coding, images), images)


BAD: list[tuple[Coding, dict[str, Tensor], str]] = [
    (Coding("float32"), {}, "come as x"),
    (Coding("float32"), {"x": IMAGES, "low": IMAGES}, "come as x"),
    (Coding("float32"), {"x": IMAGES.half()}, "float32 images"),
    (Coding("float32"), {"x": IMAGES[0]}, "of shape"),
    (Coding("float32"), {"x": IMAGES.expand(6, *SHAPE)}, "at most 5"),
    (Coding("float32"), {"x": IMAGES.reshape(1, 2, 1, 4)}, "of shape"),  # as large
    (Coding("float32"), {"x": IMAGES / 0}, "from -10000 to 10000"),
    (Coding("float32"), {"x": IMAGES * torch.nan}, "from -10000 to 10000, got nan"),
    (Coding("float32"), {"x": IMAGES + 10_001}, "from -10000 to 10000"),
    (Coding("float32"), {"x": IMAGES - 10_001}, "from -10000 to 10000"),
    (Coding("uint8"), sent_by(Coding("uint8"), IMAGES) | {"x": IMAGES}, "uint8 images"),
    (Coding("uint8"), {"x": IMAGES.to(torch.uint8)}, "come as low, step, x"),
]


@pytest.mark.parametrize(("coding", "sent", "says"), BAD)
def test_what_was_not_encoded_so_is_refused(
    coding: Coding, sent: dict[str, Tensor], says: str
) -> None:
    with pytest.raises(UploadError, match=says):
        coding.decode(sent, labels(len(sent.get("x", ()))), SHAPE, most=5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"step": torch.zeros(2)}, "above 0"),
        ({"step": torch.tensor([1.0, torch.nan])}, "above 0"),
        ({"step": torch.tensor([1.0, -1.0])}, "above 0"),
        ({"step": torch.tensor([1.0, torch.inf])}, "from -10000"),
        ({"step": torch.tensor([1.0, 3e38])}, "from -10000"),
        ({"low": torch.tensor([0.0, torch.inf])}, "from -10000"),
        ({"low": torch.tensor([-10_001.0, 0.0])}, "from -10000"),
        ({"low": torch.zeros(3)}, "per channel"),
        ({"step": torch.ones(1)}, "per channel"),
        ({"step": torch.ones(2, 1)}, "per channel"),
        ({"low": torch.zeros(2, dtype=torch.float64)}, "per channel"),
    ],
)
def test_wrong_scales_are_refused(change: dict[str, Tensor], says: str) -> None:
    coding = Coding("uint8")
    with pytest.raises(UploadError, match=says):
        coding.decode(sent_by(coding, IMAGES) | change, labels(1), SHAPE, most=5)


def test_the_largest_pixels_are_taken() -> None:
    images = torch.tensor([-1e4, 1e4]).repeat(4).view(1, *SHAPE)
    assert torch.equal(there_and_back(Coding("float32"), images), images)
