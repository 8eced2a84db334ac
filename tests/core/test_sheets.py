"""WebP sheets: there and back, and what comes from somebody hostile."""

import io
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feddm.core.coding import Coding
from feddm.core.sheets import check_sheets, decode_sheet, encode_sheet
from feddm.errors import ConfigError, UploadError

COLOR, GRAY = (3, 32, 32), (1, 28, 28)


def smooth(number: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns blurred noise, which is what such a codec is made for."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (number, shape[0], 4, 4)).astype(np.float32)
    large = torch.nn.functional.interpolate(
        torch.from_numpy(small), shape[1:], mode="bilinear", align_corners=False
    )
    return large.numpy().astype(np.uint8)


def psnr(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    error = float(((first.astype(float) - second.astype(float)) ** 2).mean())
    return 10 * float(np.log10(255**2 / max(error, 1e-9)))


class TestThereAndBack:
    @pytest.mark.parametrize("shape", [COLOR, GRAY, (3, 8, 8), (1, 17, 40)])
    @pytest.mark.parametrize("number", [1, 2, 3, 10, 11])
    def test_each_image_is_in_its_place(self, shape: tuple[int, int, int], number: int) -> None:
        images = smooth(number, shape)
        back = decode_sheet(encode_sheet(images, 80), number, shape)
        assert back.shape == images.shape
        for image, other in zip(images, back, strict=True):
            best = max(range(number), key=lambda n: psnr(images[n], other))
            assert np.array_equal(images[best], image)

    def test_no_image_bleeds_into_its_neighbour(self) -> None:
        # Black and white in turn: an error would be seen at the edges first.
        images = np.zeros((4, 1, 28, 28), np.uint8)
        images[1::2] = 255
        back = decode_sheet(encode_sheet(images, 50), 4, GRAY)
        assert np.abs(back.astype(int) - images).max() <= 2

    def test_more_quality_is_larger_and_nearer(self) -> None:
        images = smooth(10, COLOR)
        sheets = [encode_sheet(images, quality) for quality in (5, 50, 95)]
        assert len(sheets[0]) < len(sheets[1]) < len(sheets[2]) < images.size / 4
        gaps = [psnr(decode_sheet(sheet, 10, COLOR), images) for sheet in sheets]
        assert gaps == sorted(gaps)
        assert gaps[1] > 25

    @given(st.integers(0, 3), st.integers(1, 5), st.integers(0, 100))
    @settings(max_examples=20, deadline=None)
    def test_a_set_of_classes(self, classes: int, each: int, quality: int) -> None:
        coding = Coding("webp", quality)
        levels = smooth(classes * each, (3, 16, 16)).astype(np.float32)
        images = torch.from_numpy(levels) / 64 - 2  # as normalized images are
        slots = torch.arange(classes).repeat_interleave(each)
        sent = coding.encode(images, slots)
        back = coding.decode(sent, slots.to(torch.uint8), (3, 16, 16), most=15)
        assert back.shape == images.shape
        # No value is outside of the range that was sent.
        if len(images):
            span = images.amax((0, 2, 3)) - images.amin((0, 2, 3))
            assert bool(((back - images).abs().amax((0, 2, 3)) <= span + 1e-4).all())
        again = coding.encode(images, slots)
        assert all(torch.equal(sent[name], again[name]) for name in sent)


def changed(sheet: bytes, at: int, value: bytes) -> bytes:
    return sheet[:at] + value + sheet[at + len(value) :]


def saved(format_: str, size: tuple[int, int] = (64, 32), **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size).save(file, format_, **options)
    return file.getvalue()


SHEET = encode_sheet(smooth(2, COLOR), 50)  # 64 x 32
SIDE = (16_383).to_bytes(2, "little")
HOSTILE = {
    "nothing": b"",
    "a header alone": SHEET[:30],
    "truncated": SHEET[:-10],
    "more behind it": SHEET + b"more",
    "another length inside": changed(SHEET, 16, (10**6).to_bytes(4, "little")),
    "a bomb in the header": changed(SHEET, 26, SIDE + SIDE),
    "a bomb": saved("WEBP", (16_383, 64)),
    "too small": encode_sheet(smooth(1, COLOR), 50),
    "too large": encode_sheet(smooth(5, COLOR), 50),
    "turned": saved("WEBP", (32, 64)),
    "scaled": changed(SHEET, 26, (64 | 1 << 14).to_bytes(2, "little"))[:-10],
    "no key frame": changed(SHEET, 20, bytes([SHEET[20] | 1])),
    "noise": SHEET[:30] + np.random.default_rng(0).bytes(len(SHEET) - 30),
    "lossless": saved("WEBP", lossless=True),
    "with transparency": saved("PNG"),
    "with metadata": saved("WEBP", exif=b"Exif\0\0secret"),
    "png": saved("PNG"),
    "jpeg": saved("JPEG"),
    "gif": saved("GIF"),
    "avif": saved("AVIF"),
    "text": b"RIFF of a sea, WEBPVP8 and nothing else in these bytes at all",
}
animation = io.BytesIO()
Image.new("RGB", (64, 32)).save(
    animation, "WEBP", save_all=True, append_images=[Image.new("RGB", (64, 32), "red")] * 3
)
HOSTILE["an animation"] = animation.getvalue()
transparent = io.BytesIO()
Image.new("RGBA", (64, 32), (1, 2, 3, 4)).save(transparent, "WEBP")
HOSTILE["with transparency"] = transparent.getvalue()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sheets_are_refused(name: str) -> None:
    if name == "noise":  # whatever a decoder makes of it has the size that was agreed on
        try:
            assert decode_sheet(HOSTILE[name], 2, COLOR).shape == (2, *COLOR)
        except UploadError:
            return
        return
    with pytest.raises(UploadError):
        decode_sheet(HOSTILE[name], 2, COLOR)


def test_a_bomb_is_refused_before_its_pixels_are_allocated() -> None:
    bomb = changed(SHEET, 26, SIDE + SIDE)  # 805 MB as RGB
    tracemalloc.start()
    with pytest.raises(UploadError, match="must have 64x32 pixels, got 16383x16383"):
        decode_sheet(bomb, 2, COLOR)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_refused_in_one_way(data: bytes) -> None:
    with pytest.raises(UploadError):
        decode_sheet(data, 2, COLOR)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_damaged_sheet_is_refused_or_has_the_right_size(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(SHEET) - 1))
    damaged = changed(SHEET, at, bytes([data.draw(st.integers(0, 255))]))
    try:
        assert decode_sheet(damaged, 2, COLOR).shape == (2, *COLOR)
    except UploadError as error:
        assert "\n" not in str(error)


class TestUpload:
    CODING = Coding("webp")
    SLOTS = torch.tensor([0, 0, 4], dtype=torch.uint8)

    def sent(self, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
        images = torch.from_numpy(smooth(3, COLOR).astype(np.float32)) / 255
        return self.CODING.encode(images, self.SLOTS) | changes

    def test_one_sheet_per_class(self) -> None:
        sent = self.sent()
        assert (sent["length"].shape, sent["x"].dtype) == ((2,), torch.uint8)
        assert int(sent["length"].sum()) == len(sent["x"])
        assert self.CODING.decode(sent, self.SLOTS, COLOR, 3).shape == (3, *COLOR)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"length": torch.tensor([1, 2, 3], dtype=torch.int32)}, "one int32 length"),
            ({"length": torch.tensor([1, 2])}, "one int32 length"),
            ({"length": torch.tensor([-5, 10], dtype=torch.int32)}, "bytes of the lengths"),
            ({"length": torch.tensor([0, 10], dtype=torch.int32)}, "bytes of the lengths"),
            (
                {"length": torch.tensor([2**31 - 1, 10], dtype=torch.int32)},
                "bytes of the lengths",
            ),
            ({"x": torch.zeros(10)}, "bytes of the lengths"),
            ({"x": torch.zeros(2, 5, dtype=torch.uint8)}, "bytes of the lengths"),
            ({"x": torch.zeros(10**7, dtype=torch.uint8)}, "bytes of the lengths"),
            ({"step": torch.zeros(3)}, "above 0"),
            ({"low": torch.zeros(2)}, "per channel"),
            ({"more": torch.zeros(2)}, "come as length, low, step, x"),
        ],
    )
    def test_what_cannot_have_been_sent(
        self, changes: dict[str, torch.Tensor], says: str
    ) -> None:
        with pytest.raises(UploadError, match=says):
            self.CODING.decode(self.sent(**changes), self.SLOTS, COLOR, 3)

    def test_more_images_than_allowed(self) -> None:
        with pytest.raises(UploadError, match="at most 2 images"):
            self.CODING.decode(self.sent(), self.SLOTS, COLOR, 2)

    def test_labels_say_how_many_images_a_sheet_has(self) -> None:
        other = torch.tensor([0, 4, 4], dtype=torch.uint8)
        with pytest.raises(UploadError, match="must have 32x32 pixels, got 64x32"):
            self.CODING.decode(self.sent(), other, COLOR, 3)


@pytest.mark.parametrize(
    ("shape", "most", "says"),
    [
        ((4, 8, 8), 10, "1 or 3 channels, got 4"),
        ((3, 1024, 1024), 300, "up to 16383 pixels a side"),
    ],
)
def test_images_that_do_not_fit(shape: tuple[int, int, int], most: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_sheets(shape, most)
    check_sheets((3, 1024, 1024), 100)
