import dataclasses
import gzip
import hashlib
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import torch
from numpy.typing import NDArray

from feddm.core.examples import Examples, Normalization
from feddm.data import formats
from feddm.data.catalog import DATASETS, DataFile, DatasetInfo, Layout
from feddm.data.datasets import check_dataset, data_root, load, locate, possible_locations
from feddm.errors import DataError

Bytes = NDArray[np.uint8]

# Three training and two test examples of 2 x 2 pixels.
IMAGES = {
    "train": np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2),
    "test": np.arange(100, 108, dtype=np.uint8).reshape(2, 1, 2, 2),
}
LABELS = {"train": np.array([2, 0, 1], np.uint8), "test": np.array([1, 1], np.uint8)}
GRAY = DatasetInfo(
    name="gray",
    classes=("a", "b", "c"),
    shape=(1, 2, 2),
    num_train=3,
    num_test=2,
    mean=(0.5,),
    std=(0.25,),
    layouts=(),
)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def idx_bytes(array: Bytes) -> bytes:
    return (
        struct.pack(f">{array.ndim + 1}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()
    )


def idx_contents() -> dict[str, bytes]:
    return {
        f"{split}-{kind}": idx_bytes(array)
        for split in ("train", "test")
        for kind, array in (("images", IMAGES[split][:, 0]), ("labels", LABELS[split]))
    }


def gray_info(contents: dict[str, bytes]) -> DatasetInfo:
    """Describes four IDX files by their contents."""
    made = {
        name: DataFile(name, "idx-images" if "images" in name else "idx-labels", md5(content))
        for name, content in contents.items()
    }
    layout = Layout(
        "Gray/raw",
        train=(made["train-images"], made["train-labels"]),
        test=(made["test-images"], made["test-labels"]),
    )
    return dataclasses.replace(GRAY, layouts=(layout,))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty data folder, set as the default."""
    monkeypatch.setenv("FEDDM_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def gray(root: Path) -> DatasetInfo:
    """Describes a data set in the data folder."""
    contents = idx_contents()
    for name, content in contents.items():
        write(root / "Gray/raw" / name, content)
    return gray_info(contents)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def assert_same(examples: Examples, images: Bytes, labels: Bytes) -> None:
    np.testing.assert_array_equal(examples.x.numpy(), images)
    np.testing.assert_array_equal(examples.y.numpy(), labels)


def message(function: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        function()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# The data folder


def test_data_root_is_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDM_DATA", "/env")
    assert data_root(Path("/arg")) == Path("/arg")
    assert data_root() == data_root(None) == Path("/env")
    monkeypatch.setenv("FEDDM_DATA", "~/data")
    assert data_root() == Path.home() / "data"


@pytest.mark.parametrize("value", [None, ""])
def test_data_root_is_in_the_cache_by_default(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDDM_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("FEDDM_DATA", value)
    assert data_root() == platformdirs.user_cache_path("feddm", appauthor=False) / "data"


# Loading


@pytest.mark.parametrize("packed", [(), ("train-images",), tuple(idx_contents())])
def test_idx_files_gzipped_or_not(packed: tuple[str, ...], tmp_path: Path) -> None:
    for name, content in idx_contents().items():
        if name in packed:
            write(tmp_path / "Gray/raw" / f"{name}.gz", gzip.compress(content))
        else:
            write(tmp_path / "Gray/raw" / name, content)
    info = gray_info(idx_contents())
    loaded = load(info, tmp_path)
    assert loaded.info is info
    for split, examples in (("train", loaded.train), ("test", loaded.test)):
        assert_same(examples, IMAGES[split], LABELS[split])
        assert (examples.x.dtype, examples.y.dtype) == (torch.uint8, torch.int64)
        assert examples.normalization == Normalization((0.5,), (0.25,))
    # The largest training pixel is 11.
    assert loaded.train[:].x.max().item() == pytest.approx((11 / 255 - 0.5) / 0.25)


def test_examples_can_be_written_to(gray: DatasetInfo) -> None:
    train = load(gray).train
    train.x[0] = 7
    assert (load(gray).train.x[0] != 7).all()


def test_gzipped_file_is_preferred(root: Path, gray: DatasetInfo) -> None:
    # torchvision leaves both; a download replaces the gzipped one.
    content = (root / "Gray/raw/train-images").read_bytes()
    write(root / "Gray/raw/train-images.gz", gzip.compress(content))
    write(root / "Gray/raw/train-images", b"damaged")
    assert_same(load(gray).train, IMAGES["train"], LABELS["train"])


def color_sets(root: Path, fine: bool) -> DatasetInfo:
    """Writes a CIFAR-like set as records and as pickles; returns the description of both."""
    rng = np.random.default_rng(0)
    layouts: dict[str, list[DataFile]] = {"binary": [], "pickle": []}
    number = "100" if fine else "10"
    for batch in ("one", "two", "test"):
        pixels = rng.integers(0, 256, (4, 3 * 2 * 5), np.uint8)
        coarse, labels = rng.integers(0, 9, (2, 4), np.uint8)
        columns = [coarse, labels] if fine else [labels]
        records = np.concatenate([np.stack(columns, axis=1), pixels], axis=1).tobytes()
        key = "fine_labels" if fine else "labels"
        pickled = pickle.dumps({"data": pixels, key: labels.tolist(), "batch_label": batch}, 4)
        write(root / "binary" / batch, records)
        write(root / "pickle" / batch, pickled)
        layouts["binary"].append(
            DataFile(batch, "cifar100-binary" if fine else "cifar10-binary", md5(records))
        )
        layouts["pickle"].append(
            DataFile(batch, "cifar100-pickle" if fine else "cifar10-pickle", md5(pickled))
        )
    return DatasetInfo(
        name=f"color{number}",
        classes=tuple("abcdefghi"),
        shape=(3, 2, 5),
        num_train=8,
        num_test=4,
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        layouts=tuple(
            Layout(folder, train=tuple(made[:2]), test=(made[2],))
            for folder, made in layouts.items()
        ),
    )


@pytest.mark.parametrize("fine", [False, True])
def test_records_and_pickles_hold_the_same(fine: bool, tmp_path: Path) -> None:
    info = color_sets(tmp_path, fine)
    binary, pickled = (
        load(dataclasses.replace(info, layouts=(layout,)), tmp_path) for layout in info.layouts
    )
    assert binary.train.x.shape == (8, 3, 2, 5)
    for one, other in ((binary.train, pickled.train), (binary.test, pickled.test)):
        assert one.x.is_contiguous()
        assert one.x.dtype == other.x.dtype == torch.uint8
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
    # By hand: the first record without its labels, and the first of the second file.
    record = (1 + fine) + 30
    for index, name in ((0, "one"), (4, "two")):
        first = (tmp_path / "binary" / name).read_bytes()[:record]
        assert binary.train.x[index].flatten().tolist() == list(first[-30:])
        assert binary.train.y[index].item() == first[fine]


def test_complete_layout_is_preferred(tmp_path: Path) -> None:
    info = color_sets(tmp_path, fine=False)
    found = locate(info, tmp_path)
    assert found is not None
    assert found.folder == tmp_path / "binary"
    (tmp_path / "binary/two").unlink()
    found = locate(info, tmp_path)
    assert found is not None
    assert found.folder == tmp_path / "pickle"
    assert load(info, tmp_path).train.y.shape == (8,)
    (tmp_path / "pickle/one").unlink()
    found = locate(info, tmp_path)
    assert found is not None
    assert (found.folder, found.missing) == (tmp_path / "binary", ("two",))


# Digits


def test_digits_need_no_data_folder(root: Path) -> None:
    digits = load("digits")
    assert not list(root.iterdir())
    assert digits.train.x.shape == (1438, 1, 8, 8)
    assert digits.test.x.shape == (359, 1, 8, 8)
    assert digits.info is DATASETS["digits"]
    assert [found.problem for found in check_dataset("digits")] == [None] * 4


def test_digits_by_hand() -> None:
    digits = load("digits")
    # The first row of scikit-learn's first image is 0 0 5 13 9 1 0 0; times 255 / 16, rounded:
    assert digits.train.x[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    # Its first targets are 0 to 9, twice; every fifth goes to the test set.
    assert digits.train.y[:8].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert digits.test.y[:4].tolist() == [4, 9, 4, 9]
    # Class counts over both sets, from its description.
    count = torch.bincount(torch.cat([digits.train.y, digits.test.y]))
    assert count.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def moments(images: torch.Tensor) -> tuple[list[float], list[float]]:
    """Returns mean and standard deviation per channel, from the counts of the values."""
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        share = np.bincount(channel.numpy().ravel(), minlength=256) / channel.numel()
        means.append(float(share @ values))
        stds.append(float(np.sqrt(share @ (values - means[-1]) ** 2)))
    return means, stds


def test_digits_moments() -> None:
    digits = load("digits")
    mean, std = moments(digits.train.x)
    assert mean == pytest.approx(digits.info.mean, abs=5e-5)
    assert std == pytest.approx(digits.info.std, abs=5e-5)


def test_damaged_digits_need_a_reinstallation(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = formats.read
    monkeypatch.setattr(formats, "read", lambda path: whole(path)[:-1])
    assert message(lambda: load("digits")).endswith("; reinstall feddm")
    nowhere = dataclasses.replace(GRAY, builtin=True, layouts=gray_info(idx_contents()).layouts)
    assert message(lambda: load(nowhere)).endswith("(no Gray/raw); reinstall feddm")


# Errors


@pytest.mark.parametrize("function", [load, locate, check_dataset])
def test_unknown_name(function: Callable[[str], object]) -> None:
    assert "did you mean mnist?" in message(lambda: function("mnits"))


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("cifar10", "cifar-10-batches-bin or cifar-10-batches-py"),
        ("cifar100", "cifar-100-binary or cifar-100-python"),
    ],
)
def test_missing(name: str, folders: str, root: Path) -> None:
    assert locate(name) is None
    expected = (
        f"{name} is not in {root} (no {folders}); get it with `feddm data fetch {name}`, "
        "or point --data-dir or FEDDM_DATA to the folder that has it"
    )
    assert message(lambda: load(name)) == expected
    assert message(lambda: check_dataset(name)) == expected


def test_missing_in_a_given_folder(root: Path) -> None:
    named = root / "my data"
    text = message(lambda: load("mnist", named))
    assert text.startswith(f"mnist is not in {named} (no MNIST/raw); ")
    assert f"get it with `feddm data fetch mnist --data-dir '{named}'`, or" in text


def test_missing_because_the_data_folder_is_a_file(root: Path) -> None:
    assert "mnist is not in" in message(lambda: load("mnist", write(root / "file", b"")))


def test_incomplete(root: Path, gray: DatasetInfo) -> None:
    (root / "Gray/raw/test-labels").unlink()
    found = locate(gray)
    assert found is not None
    assert found.missing == ("test-labels",)
    expected = f"{root}/Gray/raw/test-labels is missing; get it with `feddm data fetch gray`"
    assert message(lambda: load(gray)) == expected
    assert [found.problem for found in check_dataset(gray)] == [None, None, None, expected]


WRONG_CONTENTS = {
    "cut": (idx_contents()["train-images"][:-1], "has the wrong length (27 bytes, but"),
    "longer": (idx_contents()["train-images"] + b"x", "has the wrong length (29 bytes, but"),
    "only a header": (idx_contents()["train-images"][:10], "is truncated (10 bytes, but"),
    "empty": (b"", "is truncated (0 bytes, but"),
    "labels": (idx_contents()["train-labels"], "has magic number 00000801, expected"),
    "html": (b"<!DOCTYPE html>", "has magic number 3c21444f, expected 00000803"),
    "larger images": (idx_bytes(np.zeros((3, 4, 4), np.uint8)), "has images of 4 x 4 pixels"),
    "another pixel": (idx_bytes(IMAGES["test"][[0, 0, 0], 0]), "is damaged (md5 "),
}


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize(("content", "problem"), WRONG_CONTENTS.values(), ids=WRONG_CONTENTS)
def test_damaged(
    content: bytes, problem: str, gzipped: bool, root: Path, gray: DatasetInfo
) -> None:
    path = root / "Gray/raw/train-images"
    if gzipped:
        path.unlink()
        path, content = path.with_name("train-images.gz"), gzip.compress(content)
    write(path, content)
    text = message(lambda: load(gray))
    assert text.startswith(f"{path} {problem}")
    assert text.endswith("; delete it and run `feddm data fetch gray`")
    # The other files are still intact.
    assert [found.problem for found in check_dataset(gray)] == [text, None, None, None]
    assert check_dataset(gray)[0].path == path


def test_damage_that_only_the_checksum_reveals(root: Path, gray: DatasetInfo) -> None:
    path = root / "Gray/raw/test-labels"
    write(path, idx_bytes(np.array([1, 2], np.uint8)))
    found, right = md5(path.read_bytes()), gray.layouts[0].test[1].md5
    assert message(lambda: load(gray)) == (
        f"{path} is damaged (md5 {found}, expected {right}); "
        "delete it and run `feddm data fetch gray`"
    )


def test_truncated_gzip_file(root: Path, gray: DatasetInfo) -> None:
    path = root / "Gray/raw/train-images.gz"
    write(path, gzip.compress(idx_contents()["train-images"])[:-12])
    assert message(lambda: load(gray)) == (
        f"{path} is truncated (incomplete gzip stream); "
        "delete it and run `feddm data fetch gray`"
    )


def test_labels_out_of_range(root: Path) -> None:
    contents = idx_contents() | {"train-labels": idx_bytes(np.array([2, 3, 0], np.uint8))}
    for name, content in contents.items():
        path = write(root / "Gray/raw" / name, content)
    path = root / "Gray/raw/train-labels"
    assert message(lambda: load(gray_info(contents))) == (
        f"{path} has label 3, but the classes are 0 to 2; "
        "delete it and run `feddm data fetch gray`"
    )


@pytest.mark.parametrize(
    ("labels", "counts"),
    [([0, 1], "3 images and 2 labels"), ([0] * 4, "3 images and 4 labels")],
)
def test_images_without_labels(labels: list[int], counts: str, root: Path) -> None:
    contents = idx_contents() | {"train-labels": idx_bytes(np.array(labels, np.uint8))}
    for name, content in contents.items():
        write(root / "Gray/raw" / name, content)
    text = message(lambda: load(gray_info(contents)))
    assert text.startswith(f"{root}/Gray/raw has {counts}, expected 3 of each; ")


def test_folder_instead_of_a_file(root: Path, gray: DatasetInfo) -> None:
    path = root / "Gray/raw/train-images"
    path.unlink()
    path.mkdir()
    assert message(lambda: load(gray)) == (
        f"{path} is a folder, not a file; delete it and run `feddm data fetch gray`"
    )


UNREADABLE = (
    "{path} cannot be read ({why}); make it readable, "
    "or choose another folder with --data-dir or FEDDM_DATA"
)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="may read everything")
def test_unreadable_file_and_folder(root: Path, gray: DatasetInfo) -> None:
    path = root / "Gray/raw/train-images"
    path.chmod(0)
    expected = UNREADABLE.format(path=path, why="Permission denied")
    assert message(lambda: load(gray)) == expected
    path.parent.chmod(0)
    try:
        assert "cannot be read (Permission denied)" in message(lambda: load(gray))
    finally:
        path.parent.chmod(0o700)


def test_file_that_cannot_be_opened(
    root: Path, gray: DatasetInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(formats, "read", denied)
    expected = UNREADABLE.format(path=root / "Gray/raw/train-images", why="Permission denied")
    assert message(lambda: load(gray)) == expected
    assert check_dataset(gray)[0].problem == expected


def test_file_that_is_a_link_to_itself(root: Path, gray: DatasetInfo) -> None:
    path = root / "Gray/raw/train-images"
    path.unlink()
    path.symlink_to(path)
    assert f"{path} cannot be read (" in message(lambda: load(gray))


def test_link_to_a_file(root: Path, gray: DatasetInfo) -> None:
    path = root / "Gray/raw/train-images"
    path.symlink_to(path.rename(root / "elsewhere"))
    assert_same(load(gray).train, IMAGES["train"], LABELS["train"])
    (root / "elsewhere").unlink()
    assert "train-images is missing;" in message(lambda: load(gray))


class Evil:
    """Creates a folder when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def test_pickle_with_a_forbidden_name(root: Path) -> None:
    info = color_sets(root, fine=False)
    content = pickle.dumps({"data": Evil(root / "mark"), "labels": [1]})
    path = write(root / "pickle/one", content)
    forbidden = DataFile("one", "cifar10-pickle", md5(content))
    layout = dataclasses.replace(info.layouts[1], train=(forbidden,))
    text = message(lambda: load(dataclasses.replace(info, layouts=(layout,))))
    assert text == (
        f"{path} is not a pickle of images and labels "
        f"(it imports '{os.mkdir.__module__}.mkdir', which may run code); "
        "delete it and run `feddm data fetch color10`"
    )
    assert not (root / "mark").exists()


def test_pickle_with_another_checksum_is_not_even_unpickled(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = color_sets(root, fine=False)
    path = write(root / "pickle/one", pickle.dumps({"data": Evil(root / "mark")}))
    monkeypatch.setattr(formats, "parse", lambda *_: pytest.fail("was unpickled"))
    text = message(lambda: load(dataclasses.replace(info, layouts=info.layouts[1:])))
    assert text.startswith(f"{path} is damaged (md5 ")


def test_possible_locations_are_those_of_the_catalog(root: Path) -> None:
    places = possible_locations("cifar10")
    assert [place.folder for place in places] == [
        root / "cifar-10-batches-bin",
        root / "cifar-10-batches-py",
    ]


# The real files


def is_here(name: str) -> bool:
    found = locate(name) if os.environ.get("FEDDM_DATA") else None
    return found is not None and not found.missing


REAL = [
    pytest.param(
        name, marks=pytest.mark.skipif(not is_here(name), reason=f"{name} is not in FEDDM_DATA")
    )
    for name, info in DATASETS.items()
    if not info.builtin
]


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    assert [found.problem for found in check_dataset(name) if found.problem] == []
    dataset = load(name)
    info = dataset.info
    assert dataset.train.x.shape == (info.num_train, *info.shape)
    assert dataset.test.x.shape == (info.num_test, *info.shape)
    # Fashion-MNIST and CIFAR have equally many of each class; MNIST has all classes.
    for examples in (dataset.train, dataset.test):
        count = torch.bincount(examples.y, minlength=len(info.classes))
        assert len(count) == len(info.classes)
        assert name == "mnist" or len(set(count.tolist())) == 1
    mean, std = moments(dataset.train.x)
    # The published mean of CIFAR-100's green channel is 0.4866; the exact one is 0.48655.
    assert mean == pytest.approx(info.mean, abs=6e-5)
    assert std == pytest.approx(info.std, abs=6e-5)


@pytest.mark.parametrize("name", REAL)
def test_real_class_names(name: str) -> None:
    found = locate(name)
    assert found is not None
    texts = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}
    if not (path := found.folder / texts.get(name, "no such file")).exists():
        pytest.skip("its files do not name the classes")
    assert tuple(path.read_text().split()) == DATASETS[name].classes
