import tracemalloc
import zlib
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from feddm.core import coding as coding_
from feddm.core.coding import Coding, Type
from feddm.core.tensors import num_bytes
from feddm.errors import UploadError

SHAPE = (2, 2, 2)
ALL = [Coding(type_, packed) for type_ in get_args(Type) for packed in (False, True)]
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


def there_and_back(coding: Coding, images: Tensor) -> Tensor:
    return coding.decode(coding.encode(images), SHAPE, most=5)


def test_uint8_by_hand() -> None:
    sent = Coding("uint8").encode(IMAGES)
    assert sent["low"].tolist() == [0.0, -1.0]
    assert sent["step"].tolist() == pytest.approx([0.01, 1 / 255])
    # .017 is nearer to level 2 than to level 1; -.5 is 127.5 levels above -1.
    assert sent["x"].flatten().tolist()[:5] == [0, 1, 2, 255, 0]
    assert sent["x"].flatten().tolist()[5] in (127, 128)


def test_uint4_by_hand() -> None:
    # Within 2.51 deviations of their mean, so the levels go from the least to the greatest.
    images = torch.tensor([0.0, 1.5, 0.3, 0.44, 0.0, -3.0, 0.0, 0.0]).view(1, *SHAPE)
    sent = Coding("uint4").encode(images)
    assert sent["low"].tolist() == [0.0, -3.0]
    assert sent["step"].tolist() == pytest.approx([0.1, 0.2])
    # Levels 0, 15, 3, 4 and 15, 0, 15, 15; two a byte, the first one in the upper half.
    assert sent["x"].tolist() == [[0x0F, 0x34, 0xF0, 0xFF]]


def test_uint2_by_hand() -> None:
    # Channel 0: mean .75, deviation .43, so that 1.49 of them reach from .11 to 1.39. Channel 1
    # lies within it: levels 0, 1, 2 and 3.
    images = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 2.0, 3.0]).view(1, *SHAPE)
    sent = Coding("uint2").encode(images)
    std = (3 / 16) ** 0.5
    low, high = 0.75 - 1.49 * std, 1.0
    assert sent["low"].tolist() == pytest.approx([low, 0.0])
    assert sent["step"].tolist() == pytest.approx([(high - low) / 3, 1.0])
    # Levels 0, 3, 3, 3 and 0, 1, 2, 3: four a byte, the first one on top.
    assert sent["x"].tolist() == [[0b00_11_11_11, 0b00_01_10_11]]


def test_uint4_cuts_off_what_is_rare() -> None:
    images = torch.zeros(1, 1, 100, 100)
    images[..., 0, 0] = 1000.0  # mean .1, deviation 10
    images[..., 1:, :] = torch.linspace(-1, 1, 100)
    back = Coding("uint4").rounded(images)
    assert back.max() == pytest.approx(0.1 + 2.51 * 10.0, rel=0.01)


# Max (1960): 16 levels are best .3352 deviations apart, the outer ones 7.5 * .3352 = 2.514 from
# the mean, and 4 levels .9957 apart, the outer ones 1.494 from it; with the squared errors.
@pytest.mark.parametrize(
    ("type_", "best", "error"), [("uint4", 2.51, 0.01154), ("uint2", 1.49, 0.1188)]
)
def test_few_levels_have_the_least_error_for_gaussian_values(
    type_: Type, best: float, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = (torch.arange(250_000, dtype=torch.float64) + 0.5) / 250_000
    images = torch.special.ndtri(share).float().view(1, 1, 500, 500)
    errors = {}
    for reach in (best - 0.1, coding_._DEVIATIONS[type_], best + 0.1):
        monkeypatch.setitem(coding_._DEVIATIONS, type_, reach)
        errors[reach] = float((Coding(type_).rounded(images) - images).square().mean())
    assert min(errors, key=errors.__getitem__) == best
    assert errors[best] == pytest.approx(error, rel=2e-3)


def test_odd_images_are_padded() -> None:
    images = torch.rand(3, 1, 3, 5)
    for coding, length in [(Coding("uint4"), 8), (Coding("uint2"), 4)]:
        sent = coding.encode(images)
        assert sent["x"].shape == (3, length)
        torch.testing.assert_close(coding.decode(sent, (1, 3, 5), 3), coding.rounded(images))


@given(pictures())
def test_what_is_decoded_is_what_was_rounded(images: Tensor) -> None:
    for coding in ALL:
        assert torch.equal(there_and_back(coding, images), coding.rounded(images))


@given(pictures())
def test_float32_is_exact(images: Tensor) -> None:
    for packed in (False, True):
        assert torch.equal(there_and_back(Coding("float32", packed), images), images)


@given(pictures())
def test_float16_is_as_near_as_its_ten_bits_allow(images: Tensor) -> None:
    back = there_and_back(Coding("float16"), images)
    assert torch.equal(back, images.half().float())


@given(pictures())
def test_uint8_is_at_most_half_a_step_away(images: Tensor) -> None:
    coding = Coding("uint8")
    step = coding.encode(images)["step"].view(1, -1, 1, 1)
    gap = (there_and_back(coding, images) - images).abs()
    assert bool((gap <= 0.5 * step + 1e-4).all())


@given(pictures())
def test_packing_loses_nothing(images: Tensor) -> None:
    for type_ in get_args(Type):
        plain = there_and_back(Coding(type_), images)
        assert torch.equal(there_and_back(Coding(type_, packed=True), images), plain)


@given(pictures())
def test_encoding_again_changes_nothing(images: Tensor) -> None:
    once = there_and_back(Coding("uint8"), images)
    twice = there_and_back(Coding("uint8"), once)
    torch.testing.assert_close(once, twice, rtol=1e-5, atol=1e-4)


def test_bytes_are_counted_as_they_are_sent() -> None:
    images = torch.zeros(5, *SHAPE)
    assert num_bytes({"e": Coding("float32").encode(images)}) == 5 * 8 * 4
    assert num_bytes({"e": Coding("float16").encode(images)}) == 5 * 8 * 2
    assert num_bytes({"e": Coding("uint8").encode(images)}) == 5 * 8 + 2 * 2 * 4
    assert num_bytes({"e": Coding("uint4").encode(images)}) == 5 * 4 + 2 * 2 * 4
    assert num_bytes({"e": Coding("uint2").encode(images)}) == 5 * 2 + 2 * 2 * 4
    assert [Coding(type_).image_bytes(SHAPE) for type_ in get_args(Type)] == [32, 16, 8, 4, 2]
    # In each channel one number for the lowest level, and one for the step.
    assert [Coding(type_).range_bytes(2) for type_ in get_args(Type)] == [0, 0, 16, 16, 16]
    smooth = torch.zeros(50, *SHAPE)
    assert num_bytes({"e": Coding("float32", True).encode(smooth)}) < 50


@pytest.mark.parametrize("coding", ALL)
def test_a_constant_set_comes_back(coding: Coding) -> None:
    images = torch.full((3, *SHAPE), 0.5)
    torch.testing.assert_close(there_and_back(coding, images), images)


BAD: list[tuple[Coding, dict[str, Tensor], str]] = [
    (Coding("float32"), {}, "come as x"),
    (Coding("float32"), {"x": IMAGES, "low": IMAGES}, "come as x"),
    (Coding("float32"), {"x": IMAGES.half()}, "float32 images"),
    (Coding("float16"), {"x": IMAGES}, "float16 images"),
    (Coding("float32"), {"x": IMAGES[0]}, "of shape"),
    (Coding("float32"), {"x": IMAGES.expand(6, *SHAPE)}, "at most 5"),
    (Coding("float32"), {"x": IMAGES.reshape(1, 2, 1, 4)}, "of shape"),  # as large
    (Coding("float32"), {"x": IMAGES / 0}, "from -10000 to 10000"),
    (Coding("float32"), {"x": IMAGES * torch.nan}, "from -10000 to 10000, got nan"),
    (Coding("float32"), {"x": IMAGES + 10_001}, "from -10000 to 10000"),
    (Coding("float32"), {"x": IMAGES - 10_001}, "from -10000 to 10000"),
    (Coding("float16"), {"x": (IMAGES + 20_000).half()}, "from -10000 to 10000"),
    (Coding("uint4"), Coding("uint8").encode(IMAGES), "uint4 images"),
    (Coding("uint8"), Coding("uint4").encode(IMAGES), "uint8 images"),
    (Coding("uint2"), Coding("uint4").encode(IMAGES), "uint2 images"),
    (Coding("float32", True), {"x": torch.zeros(7, dtype=torch.uint8)}, "unpacked"),
    (Coding("float32", True), {"x": IMAGES}, "row of bytes"),
    (Coding("float32", True), {"x": torch.zeros(7, dtype=torch.int64)}, "row of bytes"),
    (Coding("float32", True), {"x": torch.zeros(1, 7, dtype=torch.uint8)}, "row of bytes"),
]


@pytest.mark.parametrize(("coding", "sent", "says"), BAD)
def test_what_was_not_encoded_so_is_refused(
    coding: Coding, sent: dict[str, Tensor], says: str
) -> None:
    with pytest.raises(UploadError, match=says):
        coding.decode(sent, SHAPE, most=5)


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
        ({"low": torch.zeros(3)}, "a channel"),
        ({"step": torch.ones(1)}, "a channel"),
        ({"step": torch.ones(2, 1)}, "a channel"),
        ({"low": torch.zeros(2, dtype=torch.float64)}, "a channel"),
    ],
)
def test_wrong_scales_are_refused(change: dict[str, Tensor], says: str) -> None:
    for coding in (Coding("uint8"), Coding("uint4"), Coding("uint2")):
        with pytest.raises(UploadError, match=says):
            coding.decode(coding.encode(IMAGES) | change, SHAPE, most=5)


def test_the_largest_pixels_are_taken() -> None:
    images = torch.tensor([-1e4, 1e4]).repeat(4).view(1, *SHAPE)
    assert torch.equal(there_and_back(Coding("float32"), images), images)


def _bytes(data: bytes) -> Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


class TestPacked:
    CODING = Coding("uint8", packed=True)

    def sent(self, num: int) -> dict[str, Tensor]:
        return self.CODING.encode(torch.rand(num, *SHAPE))

    def test_a_bomb_is_not_unpacked(self) -> None:
        # A thousand times as many images as there may be, in fewer bytes than a few of them.
        bomb = self.CODING.encode(torch.zeros(5000, *SHAPE))
        with pytest.raises(UploadError, match="whole number"):
            self.CODING.decode(bomb, SHAPE, most=5)

    def test_a_bomb_is_unpacked_no_further_than_what_may_come(self) -> None:
        # 64 MB of zeros, which a decompressor without a bound would write into memory.
        bomb = self.sent(1) | {"x": _bytes(zlib.compress(bytes(1 << 26)))}
        tracemalloc.start()
        with pytest.raises(UploadError, match="whole number"):
            self.CODING.decode(bomb, SHAPE, most=5)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 1 << 22

    def test_a_part_of_an_image(self) -> None:
        part = self.sent(1) | {"x": _bytes(zlib.compress(bytes(9)))}
        with pytest.raises(UploadError, match="whole number of them, at most 5"):
            self.CODING.decode(part, SHAPE, most=5)

    def test_one_image_too_many(self) -> None:
        with pytest.raises(UploadError, match="whole number"):
            self.CODING.decode(self.sent(6), SHAPE, most=5)

    def test_cut_off_or_followed_by_something(self) -> None:
        sent = self.sent(3)
        for x in (sent["x"][:-3], torch.cat([sent["x"], sent["x"][:2]])):
            with pytest.raises(UploadError, match="packed"):
                self.CODING.decode(sent | {"x": x}, SHAPE, most=5)

    @given(st.binary(max_size=60))
    def test_any_bytes_are_decoded_or_refused(self, data: bytes) -> None:
        sent = self.sent(1) | {"x": _bytes(data)}
        try:
            images = self.CODING.decode(sent, SHAPE, most=5)
        except UploadError:
            return
        assert images.shape[1:] == SHAPE
