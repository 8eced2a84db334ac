"""Your own data: what is read, what is rejected and why."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feddm.config.schema import DataConfig, OwnDataConfig
from feddm.core.examples import Examples, Normalization
from feddm.data.own import read_own
from feddm.errors import DataError


def asking(*shape: int, **own: Any) -> DataConfig:
    return DataConfig(
        name="lesions", own=OwnDataConfig(classes=("well", "ill"), shape=shape, **own)
    )


INFO, COLOR = asking(1, 2, 3), asking(3, 2, 3)
PIXELS = np.arange(6, dtype=np.uint8).reshape(2, 3)


def draw(path: Path, pixels: Any = PIXELS, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path, **options)
    return path


def npz(folder: Path, without: str = "", **parts: Any) -> Path:
    """Writes a file of two images; the first is "ill"."""
    whole = {
        "x": np.stack([PIXELS, PIXELS + 10]),
        "y": np.array([0, 1]),
        "classes": np.array(["ill", "well"]),
    }
    path = folder / "own.npz"
    np.savez(path, **{k: v for k, v in (whole | parts).items() if k != without})
    return path


def refused(path: Path, info: DataConfig = INFO) -> str:
    """Returns why the data are rejected, in one line that names them."""
    with pytest.raises(DataError) as caught:
        read_own(path, info)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    return str(caught.value)


class TestFolders:
    def test_classes_are_matched_by_name(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png")
        draw(tmp_path / "ill/2.png", PIXELS + 10)
        draw(tmp_path / "well/a.PNG", PIXELS + 20)
        own = read_own(tmp_path, INFO)
        # Folders are sorted by name, "ill" before "well"; the labels are the federation's.
        assert own.y.tolist() == [1, 1, 0]
        assert own.x[:, 0, 0, 0].tolist() == [0, 10, 20]
        assert own.x.shape == (3, 1, 2, 3)
        assert own.normalization == Normalization((0.5,), (0.25,))
        assert own.group is None
        # The last pixel of the first row is 2: (2 / 255 - 0.5) / 0.25.
        assert own[:1].x[0, 0, 0, 2].item() == pytest.approx((2 / 255 - 0.5) * 4)

    def test_a_node_need_not_have_every_class(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png")
        (tmp_path / "well").mkdir()
        assert read_own(tmp_path, INFO).y.tolist() == [1]

    def test_other_files_are_ignored(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png")
        (tmp_path / "ill/notes.txt").write_text("hello")
        (tmp_path / "ill/._1.png").write_bytes(b"left by a system")
        (tmp_path / "README").write_text("hello")
        (tmp_path / ".cache").mkdir()
        assert len(read_own(tmp_path, INFO)) == 1

    def test_groups_are_matched_by_name_across_classes(self, tmp_path: Path) -> None:
        for name in ("ill/anna/1.png", "ill/otto/1.png", "well/anna/2.png"):
            draw(tmp_path / name)
        own = read_own(tmp_path, INFO)
        assert own.group is not None
        assert own.group.tolist() == [0, 1, 0]
        assert own.y.tolist() == [1, 1, 0]

    def test_all_images_have_a_group_or_none(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/anna/1.png")
        draw(tmp_path / "well/2.png")
        assert "has only some images in group folders; use them for all or none" in refused(
            tmp_path
        )

    @pytest.mark.parametrize("place", ["", "ill", "1.png"])
    def test_an_empty_folder_says_what_it_should_contain(
        self, tmp_path: Path, place: str
    ) -> None:
        if place.endswith(".png"):
            draw(tmp_path / place)  # an image without a class
        else:
            (tmp_path / place).mkdir(exist_ok=True)
        said = refused(tmp_path)
        assert "no images; put them in <class>/<image>" in said
        assert ".png" in said

    def test_an_unknown_class_is_rejected(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png")
        draw(tmp_path / "Well/2.png")
        assert "has an unknown class 'Well'; the classes of lesions are well, ill" in refused(
            tmp_path
        )

    def test_another_size_is_made_to_fit(self, tmp_path: Path) -> None:
        # Each half has one color, and is scaled on its own.
        draw(tmp_path / "ill/1.png", np.repeat(np.array([[7], [200]], np.uint8), 60, 1))
        assert read_own(tmp_path, INFO).x.tolist() == [[[[7] * 3, [200] * 3]]]

    def test_how_it_fits_is_a_setting(self, tmp_path: Path) -> None:
        # As wide as asked for, and twice as high.
        rows = np.array([[40], [80], [100], [80]], np.uint8)
        draw(tmp_path / "ill/1.png", np.repeat(rows, 3, 1))
        cropped = read_own(tmp_path, asking(1, 2, 3, fit="crop")).x[0, 0].tolist()
        assert cropped == [[80] * 3, [100] * 3]  # the two in the middle
        stretched = read_own(tmp_path, asking(1, 2, 3)).x[0, 0, :, 0].tolist()
        assert 40 < stretched[0] < 80 < stretched[1] < 100

    def test_what_is_padded_is_black(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png", np.full((4, 3), 200, np.uint8))
        columns = read_own(tmp_path, asking(1, 2, 3, fit="pad")).x[0, 0].unique(dim=0)
        assert sorted(columns[0].tolist()) == [0, 200, 200]

    def test_grayscale_is_converted_to_color(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png")
        own = read_own(tmp_path, COLOR)
        assert own.x.tolist() == [[PIXELS.tolist()] * 3]

    def test_colors_keep_their_order(self, tmp_path: Path) -> None:
        pixels = np.zeros((2, 3, 3), np.uint8)
        pixels[0, 0] = (1, 2, 3)
        draw(tmp_path / "ill/1.png", pixels)
        assert read_own(tmp_path, COLOR).x[0, :, 0, 0].tolist() == [1, 2, 3]

    def test_color_is_converted_to_the_brightness_that_eyes_see(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png", np.full((2, 3, 3), (255, 0, 0), np.uint8))
        # 0.299 of white, by ITU-R 601-2.
        assert read_own(tmp_path, INFO).x.unique().tolist() == [76]

    def test_what_is_transparent_is_black(self, tmp_path: Path) -> None:
        pixels = np.full((2, 3, 4), 255, np.uint8)
        pixels[:, 1:, 3] = 0
        draw(tmp_path / "ill/1.png", pixels)
        assert read_own(tmp_path, COLOR).x[0, 0, 0].tolist() == [255, 0, 0]

    @pytest.mark.parametrize(
        ("white", "levels"), [(65535, [0, 16, 255]), (4095, [0, 255, 255])]
    )
    @pytest.mark.parametrize("name", ["1.png", "1.tiff"])
    def test_16_bits_are_scaled_to_8(
        self, tmp_path: Path, name: str, white: int, levels: list[int]
    ) -> None:
        draw(tmp_path / "ill" / name, np.array([[0, 4095, 65535]] * 2, np.uint16))
        own = read_own(tmp_path, asking(1, 2, 3, white=white))
        assert own.x[0, 0, 0].tolist() == levels

    def test_floating_point_pixels_are_rejected(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.tiff", PIXELS.astype(np.float32))
        with pytest.raises(DataError, match="floating-point numbers; put them into"):
            read_own(tmp_path, INFO)

    def test_an_image_of_too_many_pixels_is_not_decoded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draw(tmp_path / "ill/1.png", np.zeros((40, 40), np.uint8))
        monkeypatch.setattr("feddm.data.images.MOST_PIXELS", 1000)
        monkeypatch.setattr(Image.Image, "load", None)  # nobody may call it
        with pytest.raises(DataError, match="claims 40 x 40 pixels, more than 1,000"):
            read_own(tmp_path, INFO)

    @pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".bmp", ".tif", ".pgm"])
    def test_damaged_images_are_named(self, tmp_path: Path, suffix: str) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (40, 60), np.uint8)
        image = draw(tmp_path / f"ill/1{suffix}", noise)
        info = asking(3, 40, 60)
        whole = image.read_bytes()
        for length in range(0, len(whole) - 12, len(whole) // 20):
            image.write_bytes(whole[:length])
            # A decoder may accept a truncated image, but must not fail in any other way.
            try:
                read_own(tmp_path, info)
            except DataError as error:
                assert str(image) in str(error)
        image.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match="cannot be read"):
            read_own(tmp_path, info)


class TestFiles:
    def test_labels_are_matched_by_class_name(self, tmp_path: Path) -> None:
        own = read_own(npz(tmp_path), INFO)
        # "ill" is 0 in the file and 1 in the federation.
        assert own.y.tolist() == [1, 0]
        assert own.x.tolist() == [[PIXELS.tolist()], [(PIXELS + 10).tolist()]]
        assert own.group is None

    def test_the_order_of_classes_does_not_matter(self, tmp_path: Path) -> None:
        one = read_own(npz(tmp_path), INFO)
        swapped = npz(tmp_path, y=np.array([1, 0], np.uint8), classes=np.array(["well", "ill"]))
        assert read_own(swapped, INFO).y.tolist() == one.y.tolist()

    def test_groups_are_read(self, tmp_path: Path) -> None:
        own = read_own(npz(tmp_path, group=np.array([7, 3], np.int16)), INFO)
        assert own.group is not None
        assert own.group.tolist() == [1, 0]  # who it is does not matter

    def test_channels_may_be_last(self, tmp_path: Path) -> None:
        x = np.arange(36, dtype=np.uint8).reshape(2, 2, 3, 3)
        own = read_own(npz(tmp_path, x=x), COLOR)
        assert own.x[0, :, 0, 0].tolist() == [0, 1, 2]
        assert own.x[1, 2, 1, 2].item() == 35

    @pytest.mark.parametrize(
        ("parts", "says"),
        [
            ({"without": "y"}, "is missing y"),
            ({"without": "classes"}, "has an unknown class '0'; the classes of lesions are"),
            ({"x": np.zeros((2, 2, 3))}, "has numbers, but lesions has pixels"),
            ({"x": np.uint8(3)}, "got uint8 of shape ()"),
            ({"x": np.zeros((2, 3), np.uint8)}, "has 3 x 1 x 1 (channels x height x width)"),
            ({"x": np.zeros((0, 2, 3), np.uint8), "y": np.zeros(0, int)}, "has no examples"),
            (
                {"x": np.zeros((2, 3, 2), np.uint8)},
                "1 x 3 x 2 (channels x height x width), but",
            ),
            ({"x": np.zeros((2, 2, 3, 3), np.uint8)}, "3 x 2 x 3 (channels x height x width)"),
            ({"x": np.full((2, 2, 3), 256)}, "pixels must be from 0 to 255, got 256 to 256"),
            ({"x": np.full((2, 2, 3), np.nan)}, "x has 12 values that are none"),
            ({"x": np.full((2, 2, 3), "a")}, "x must be numbers of shape"),
            ({"y": np.array([0, 1, 1])}, "y must be one whole number or name for each of 2"),
            (
                {"y": np.array([0.0, 1.0])},
                "y must be one whole number .*, got float64 of shape (2,)",
            ),
            ({"y": np.array([True, False])}, "y must be from 0 to 1, got False to True"),
            ({"y": np.array(["ill", "fine"])}, "y has 'fine', which is not in classes"),
            ({"test": np.array([0, 1])}, "test must be true or false, got int64"),
            ({"client": np.array([1])}, "client must be one for each of 2 examples"),
            ({"y": np.array([0, 2])}, "y must be from 0 to 1, got 0 to 2"),
            ({"y": np.array([-1, 1])}, "y must be from 0 to 1, got -1 to 1"),
            ({"group": np.array([1])}, "group must be one for each of 2 examples"),
            (
                {"group": np.array([1.5, 2])},
                "group must be whole numbers or names, got float64",
            ),
            ({"classes": np.array([b"ill", b"well"])}, "classes must be strings, got |S4"),
            ({"classes": np.array([0, 1])}, "classes must be strings, got int64"),
            (
                {"classes": np.array(["ill", "fine"])},
                "'fine'; the classes of lesions are well, ill",
            ),
            ({"classes": np.array(["ill", "ill"])}, "lists the class 'ill' more than once"),
        ],
    )
    def test_invalid_arrays_are_rejected(
        self, tmp_path: Path, parts: dict[str, Any], says: str
    ) -> None:
        for part in says.split(" .*"):
            assert part in refused(npz(tmp_path, **parts))

    @pytest.mark.parametrize("name", ["x", "y", "classes", "group", "client"])
    def test_nothing_is_unpickled(self, tmp_path: Path, name: str) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[Any, ...]:
                return (Path.touch, (tmp_path / "exploded",))

        path = npz(tmp_path, "", **{name: np.array([Bomb(), Bomb()])})
        assert "cannot be read" in refused(path)
        path.write_bytes(pickle.dumps(Bomb()))
        refused(path)
        assert not (tmp_path / "exploded").exists()

    def test_damaged_files_are_rejected(self, tmp_path: Path) -> None:
        path = npz(tmp_path)
        whole = path.read_bytes()
        for length in range(0, len(whole), 37):
            path.write_bytes(whole[:length])
            assert "is not a .npz file, or is truncated" in refused(path)
        for place in range(0, len(whole), 37):
            path.write_bytes(whole[:place] + b"\xff\xfe\xfd" + whole[place + 3 :])
            try:
                read_own(path, INFO)
            except DataError as error:
                assert path.name in str(error)

    def test_other_files_are_rejected(self, tmp_path: Path) -> None:
        assert "does not exist" in refused(tmp_path / "own.npz")
        plain = tmp_path / "own.npz"
        with plain.open("wb") as file:
            np.save(file, PIXELS)
        assert "is not a .npz file" in refused(plain)
        with zipfile.ZipFile(plain, "w") as archive:
            archive.writestr("hello.txt", "hello")
        assert "is missing x, y" in refused(plain)
        (tmp_path / "own.csv").touch()
        assert "neither a folder nor a .npz file" in refused(tmp_path / "own.csv")
        assert "File name too long" in refused(tmp_path / ("x" * 300))


def test_folder_and_file_give_the_same_examples(tmp_path: Path) -> None:
    draw(tmp_path / "images/ill/1.png")
    draw(tmp_path / "images/well/1.png", PIXELS + 10)
    one, two = read_own(tmp_path / "images", INFO), read_own(npz(tmp_path), INFO)
    assert_same(one, two)


def assert_same(one: Examples, two: Examples) -> None:
    assert one.x.equal(two.x)
    assert one.y.equal(two.y)
    assert one.normalization == two.normalization
