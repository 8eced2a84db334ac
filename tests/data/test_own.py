"""Data that only a node has: what is read, and what is refused and why."""

import dataclasses
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feddm.core.examples import Examples, Normalization
from feddm.data.catalog import DatasetInfo
from feddm.data.own import read_own
from feddm.errors import DataError

INFO = DatasetInfo(
    name="lesions",
    classes=("well", "ill"),
    shape=(1, 2, 3),
    num_train=0,
    num_test=0,
    mean=(0.5,),
    std=(0.25,),
    layouts=(),
)
COLOR = dataclasses.replace(INFO, shape=(3, 2, 3), mean=(0.5,) * 3, std=(0.25,) * 3)
PIXELS = np.arange(6, dtype=np.uint8).reshape(2, 3)


def draw(path: Path, pixels: Any = PIXELS, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path, **options)
    return path


def npz(folder: Path, without: str = "", **parts: Any) -> Path:
    """Writes a file of two images, the first of which is ill."""
    whole = {
        "x": np.stack([PIXELS, PIXELS + 10]),
        "y": np.array([0, 1]),
        "classes": np.array(["ill", "well"]),
    }
    path = folder / "own.npz"
    np.savez(path, **{k: v for k, v in (whole | parts).items() if k != without})
    return path


def refused(path: Path, info: DatasetInfo = INFO) -> str:
    """Returns why data are refused, which is one line that names them."""
    with pytest.raises(DataError) as caught:
        read_own(path, info)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    return str(caught.value)


class TestFolders:
    def test_a_class_is_known_by_its_name(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png")
        draw(tmp_path / "ill/2.png", PIXELS + 10)
        draw(tmp_path / "well/a.PNG", PIXELS + 20)
        own = read_own(tmp_path, INFO)
        # Folders come by name, and "ill" before "well"; numbers are the federation's.
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

    def test_what_is_no_image_is_left_alone(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png")
        (tmp_path / "ill/notes.txt").write_text("hello")
        (tmp_path / "ill/._1.png").write_bytes(b"left by a system")
        (tmp_path / "README").write_text("hello")
        (tmp_path / ".cache").mkdir()
        assert len(read_own(tmp_path, INFO)) == 1

    def test_groups_are_known_by_their_names_in_every_class(self, tmp_path: Path) -> None:
        for name in ("ill/anna/1.png", "ill/otto/1.png", "well/anna/2.png"):
            draw(tmp_path / name)
        own = read_own(tmp_path, INFO)
        assert own.group is not None
        assert own.group.tolist() == [0, 1, 0]
        assert own.y.tolist() == [1, 1, 0]

    def test_all_images_have_a_group_or_none(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/anna/1.png")
        draw(tmp_path / "well/2.png")
        assert "folder of their group, and others without" in refused(tmp_path)

    @pytest.mark.parametrize("place", ["", "ill", "1.png"])
    def test_an_empty_folder_says_how_it_should_look(self, tmp_path: Path, place: str) -> None:
        if place.endswith(".png"):
            draw(tmp_path / place)  # an image without a class
        else:
            (tmp_path / place).mkdir(exist_ok=True)
        said = refused(tmp_path)
        assert "no images; they belong into <class>/<image>" in said
        assert ".png" in said

    def test_another_class_is_refused(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png")
        draw(tmp_path / "Well/2.png")
        assert "has a class 'Well', and lesions has well, ill" in refused(tmp_path)

    def test_another_size_is_refused(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png", PIXELS.T)
        with pytest.raises(DataError, match=r"1\.png has 2 x 3 pixels where lesions has 3 x 2"):
            read_own(tmp_path, INFO)

    def test_gray_can_be_shown_in_color(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png")
        own = read_own(tmp_path, COLOR)
        assert own.x.tolist() == [[PIXELS.tolist()] * 3]

    def test_colors_keep_their_order(self, tmp_path: Path) -> None:
        pixels = np.zeros((2, 3, 3), np.uint8)
        pixels[0, 0] = (1, 2, 3)
        draw(tmp_path / "ill/1.png", pixels)
        assert read_own(tmp_path, COLOR).x[0, :, 0, 0].tolist() == [1, 2, 3]

    def test_color_is_not_made_gray(self, tmp_path: Path) -> None:
        draw(tmp_path / "ill/1.png", np.zeros((2, 3, 3), np.uint8))
        with pytest.raises(DataError, match=r"1\.png is not gray, and lesions is"):
            read_own(tmp_path, INFO)

    @pytest.mark.parametrize("info", [INFO, COLOR])
    @pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
    def test_finer_pixels_are_not_cut_off(
        self, tmp_path: Path, info: DatasetInfo, kind: Any
    ) -> None:
        draw(tmp_path / "ill/1.tiff", PIXELS.astype(kind) * 100)
        with pytest.raises(DataError, match="more than 8 bits a channel"):
            read_own(tmp_path, info)

    @pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".bmp", ".tif", ".pgm"])
    def test_damaged_images_are_named(self, tmp_path: Path, suffix: str) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (40, 60), np.uint8)
        image = draw(tmp_path / f"ill/1{suffix}", noise)
        info = dataclasses.replace(COLOR, shape=(3, 40, 60))
        whole = image.read_bytes()
        for length in range(0, len(whole) - 12, len(whole) // 20):
            image.write_bytes(whole[:length])
            # A decoder may find the beginning enough, but nothing else may go wrong.
            try:
                read_own(tmp_path, info)
            except DataError as error:
                assert str(image) in str(error)
        image.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match="cannot be read"):
            read_own(tmp_path, info)


class TestFiles:
    def test_labels_go_by_the_names_of_classes(self, tmp_path: Path) -> None:
        own = read_own(npz(tmp_path), INFO)
        # The file calls "ill" 0 and the federation calls it 1.
        assert own.y.tolist() == [1, 0]
        assert own.x.tolist() == [[PIXELS.tolist()], [(PIXELS + 10).tolist()]]
        assert own.group is None

    def test_the_numbers_of_the_file_do_not_matter(self, tmp_path: Path) -> None:
        one = read_own(npz(tmp_path), INFO)
        swapped = npz(tmp_path, y=np.array([1, 0], np.uint8), classes=np.array(["well", "ill"]))
        assert read_own(swapped, INFO).y.tolist() == one.y.tolist()

    def test_groups_come_along(self, tmp_path: Path) -> None:
        own = read_own(npz(tmp_path, group=np.array([7, 3], np.int16)), INFO)
        assert own.group is not None
        assert own.group.tolist() == [7, 3]

    def test_channels_may_be_last(self, tmp_path: Path) -> None:
        x = np.arange(36, dtype=np.uint8).reshape(2, 2, 3, 3)
        own = read_own(npz(tmp_path, x=x), COLOR)
        assert own.x[0, :, 0, 0].tolist() == [0, 1, 2]
        assert own.x[1, 2, 1, 2].item() == 35

    @pytest.mark.parametrize(
        ("parts", "says"),
        [
            ({"without": "y"}, "lacks y"),
            ({"without": "classes"}, "lacks classes"),
            ({"x": np.zeros((2, 2, 3))}, r"x must be uint8 .*, got float64 of (2, 2, 3)"),
            ({"x": np.uint8(3)}, "got uint8 of ()"),
            ({"x": np.zeros((2, 3), np.uint8)}, "got uint8 of (2, 3)"),
            ({"x": np.zeros((0, 2, 3), np.uint8), "y": np.zeros(0, int)}, "has no images"),
            ({"x": np.zeros((2, 3, 2), np.uint8)}, "3 x 2 x 1 (height, width, channels) where"),
            ({"x": np.zeros((2, 2, 3, 3), np.uint8)}, "2 x 3 x 3 (height, width, channels)"),
            ({"y": np.array([0, 1, 1])}, "y must be a whole number for each of 2 images"),
            ({"y": np.array([0.0, 1.0])}, "y must be a whole number"),
            ({"y": np.array([True, False])}, "y must be a whole number"),
            ({"y": np.array([0, 2])}, "y must be from 0 to 1"),
            ({"y": np.array([-1, 1])}, "y must be from 0 to 1"),
            ({"group": np.array([1])}, "group must be a whole number for each of 2 images"),
            ({"group": np.array([1.5, 2])}, "group must be a whole number"),
            ({"classes": np.array([b"ill", b"well"])}, "classes must be texts, got |S4"),
            ({"classes": np.array([0, 1])}, "classes must be texts, got int64"),
            ({"classes": np.array(["ill", "fine"])}, "'fine', and lesions has well, ill"),
            ({"classes": np.array(["ill", "ill"])}, "names a class twice"),
        ],
    )
    def test_what_does_not_fit_is_told(
        self, tmp_path: Path, parts: dict[str, Any], says: str
    ) -> None:
        for part in says.split(" .*"):
            assert part in refused(npz(tmp_path, **parts))

    @pytest.mark.parametrize("name", ["x", "y", "classes", "group", "more"])
    def test_nothing_is_unpickled(self, tmp_path: Path, name: str) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[Any, ...]:
                return (Path.touch, (tmp_path / "exploded",))

        path = npz(tmp_path, "", **{name: np.array([Bomb(), Bomb()])})
        assert "cannot be read" in refused(path)
        path.write_bytes(pickle.dumps(Bomb()))
        refused(path)
        assert not (tmp_path / "exploded").exists()

    def test_half_a_file_is_told(self, tmp_path: Path) -> None:
        path = npz(tmp_path)
        whole = path.read_bytes()
        for length in range(0, len(whole), 37):
            path.write_bytes(whole[:length])
            assert "is not a .npz file, or only a part of one" in refused(path)
        for place in range(0, len(whole), 37):
            path.write_bytes(whole[:place] + b"\xff\xfe\xfd" + whole[place + 3 :])
            try:
                read_own(path, INFO)
            except DataError as error:
                assert path.name in str(error)

    def test_other_files_are_told(self, tmp_path: Path) -> None:
        assert "is not there" in refused(tmp_path / "own.npz")
        plain = tmp_path / "own.npz"
        with plain.open("wb") as file:
            np.save(file, PIXELS)
        assert "is not a .npz file" in refused(plain)
        with zipfile.ZipFile(plain, "w") as archive:
            archive.writestr("hello.txt", "hello")
        assert "lacks classes, x, y" in refused(plain)
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
