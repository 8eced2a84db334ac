import dataclasses
import re
import subprocess
import sys

import pytest

from feddm.config.schema import DataConfig, OwnDataConfig
from feddm.data.catalog import DATASETS, DatasetInfo, describe, described
from feddm.errors import DataError

INFOS = list(DATASETS.values())


def name_of(info: DatasetInfo) -> str:
    return info.name


def test_names_are_in_listed_order() -> None:
    assert list(DATASETS) == ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"]
    assert [info.name for info in INFOS] == list(DATASETS)


@pytest.mark.parametrize(
    ("name", "num_classes", "shape", "num_train", "num_test"),
    [
        ("digits", 10, (1, 8, 8), 1438, 359),  # 1797 in total, every fifth for testing
        ("mnist", 10, (1, 28, 28), 60000, 10000),
        ("fashion-mnist", 10, (1, 28, 28), 60000, 10000),
        ("cifar10", 10, (3, 32, 32), 50000, 10000),
        ("cifar100", 100, (3, 32, 32), 50000, 10000),
    ],
)
def test_published_numbers(
    name: str, num_classes: int, shape: tuple[int, ...], num_train: int, num_test: int
) -> None:
    info = DATASETS[name]
    assert (len(info.classes), info.shape) == (num_classes, shape)
    assert (info.num_train, info.num_test) == (num_train, num_test)


@pytest.mark.parametrize("info", INFOS, ids=name_of)
def test_entry_is_consistent(info: DatasetInfo) -> None:
    assert len(set(info.classes)) == len(info.classes)
    assert len(info.mean) == len(info.std) == info.shape[0]
    assert all(0 < value < 1 for value in info.mean + info.std)
    assert info.builtin == (not info.downloads)
    for layout in info.layouts:
        assert layout.train
        assert layout.test
        assert len({file.name for file in layout.files}) == len(layout.files)


@pytest.mark.parametrize("info", INFOS, ids=name_of)
def test_downloads_produce_the_first_layout(info: DatasetInfo) -> None:
    if not info.builtin and not info.downloads[0].is_archive:
        made = [download.name for download in info.downloads]
        assert made == [f"{file.name}.gz" for file in info.layouts[0].files]
    for download in info.downloads:
        assert download.mirrors
        assert all(re.fullmatch(r"https?://\S+/", mirror) for mirror in download.mirrors)


def test_checksums_are_all_different() -> None:
    md5s = [file.md5 for info in INFOS for layout in info.layouts for file in layout.files]
    md5s += [download.md5 for info in INFOS for download in info.downloads]
    # Counted by hand: 3 times 4 IDX files, 2 times 6 for CIFAR-10 and 2 times 2 for CIFAR-100;
    # 2 times 4 gzipped files and 2 archives.
    assert len(md5s) == len(set(md5s)) == 12 + 12 + 4 + 8 + 2
    assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in md5s)


def test_entries_cannot_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DATASETS["mnist"].num_train = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        DATASETS["mine"] = DATASETS["mnist"]  # type: ignore[index]


@pytest.mark.parametrize("info", INFOS, ids=name_of)
def test_describe_finds_by_name(info: DatasetInfo) -> None:
    assert describe(info.name) is info


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("minst", "mnist"),
        ("CIFAR-10", "cifar10"),
        ("cifar_100", "cifar100"),
        ("FashionMNIST", "fashion-mnist"),
    ],
)
def test_unknown_name_suggests_the_closest(wrong: str, meant: str) -> None:
    with pytest.raises(DataError) as caught:
        describe(wrong)
    assert str(caught.value) == (
        f"unknown data set {wrong!r} (did you mean {meant}?); "
        "choose from digits, mnist, fashion-mnist, cifar10, cifar100"
    )


@pytest.mark.parametrize("wrong", ["imagenet\nfoo", ""])
def test_unknown_name_is_one_line_without_a_bad_suggestion(wrong: str) -> None:
    with pytest.raises(DataError) as caught:
        describe(wrong)
    assert str(caught.value) == (
        f"unknown data set {wrong!r}; "
        "choose from digits, mnist, fashion-mnist, cifar10, cifar100"
    )


@pytest.mark.parametrize(
    ("module", "slow"),
    [("feddm.data.catalog", {"torch", "numpy"}), ("feddm.data.datasets", {"torch"})],
)
def test_import_is_quick(module: str, slow: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert module in done.stdout.split()
    assert not slow & set(done.stdout.split())


class TestDataOfNodes:
    """The configuration describes data that only the nodes have."""

    def test_it_is_described_by_the_configuration(self) -> None:
        own = OwnDataConfig(
            classes=("ill", "well"), shape=(3, 4, 5), examples=70, mean=0.4, std=0.2
        )
        info = described(DataConfig(name="lesions", own=own))
        assert (info.name, info.classes, info.shape) == ("lesions", ("ill", "well"), (3, 4, 5))
        assert (info.num_train, info.num_test) == (70, 0)
        # The same for all three channels.
        assert (info.mean, info.std) == ((0.4,) * 3, (0.2,) * 3)
        assert not info.layouts

    def test_there_is_a_constant_for_each_channel(self) -> None:
        names = ("ill", "well")
        own = OwnDataConfig(classes=names, shape=(3, 4, 5), mean=(0.1, 0.2, 0.3), std=0.2)
        assert described(DataConfig(name="lesions", own=own)).mean == (0.1, 0.2, 0.3)
        for wrong, says in (((0.1, 0.2), "one for each of 3 channels"), (1.5, "at most 1 for")):
            own = OwnDataConfig(classes=names, shape=(3, 4, 5), mean=wrong)
            with pytest.raises(DataError, match=says):
                described(DataConfig(name="lesions", own=own))

    def test_without_classes_it_is_a_known_set(self) -> None:
        assert described(DataConfig(name="mnist")) is describe("mnist")

    def test_its_name_must_not_be_a_known_set(self) -> None:
        own = OwnDataConfig(classes=("ill", "well"))
        with pytest.raises(
            DataError, match=r"digits, a known data set; choose another data\.name"
        ):
            described(DataConfig(name="digits", own=own))

    def test_missing_classes_are_reported(self) -> None:
        with pytest.raises(DataError, match=r"data\.own\.classes is missing; .* of lesions"):
            described(DataConfig(name="lesions", own=OwnDataConfig(shape=(1, 8, 8))))
        with pytest.raises(DataError, match="unknown data set 'lesions'; choose from"):
            described(DataConfig(name="lesions"))
