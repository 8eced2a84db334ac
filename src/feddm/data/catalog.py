"""The known data sets: their contents, their files and where they are published.

This is plain data. The code that reads, checks and downloads takes a `DatasetInfo` and does not
know any data set by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from feddm.config.schema import DataConfig, OwnDataConfig
from feddm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from feddm.core.examples import Normalization

Format = Literal[
    "idx-images",
    "idx-labels",
    "cifar10-binary",
    "cifar100-binary",
    "cifar10-pickle",
    "cifar100-pickle",
]


@dataclass(frozen=True)
class DataFile:
    """A file that holds images, labels or both.

    Args:
        name: File name, without the optional ``.gz`` of an IDX file.
        format: File format.
        md5: Checksum of the decompressed content.
    """

    name: str
    format: Format
    md5: str


@dataclass(frozen=True)
class Layout:
    """The files of a data set, in one folder below the data folder, in example order."""

    folder: str
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.train + self.test


@dataclass(frozen=True)
class Download:
    """A published file: one gzipped data file, or a tar archive of all of them.

    Args:
        name: File name; an archive ends in ``.tar.gz``.
        md5: Checksum of the published file.
        mirrors: URLs of the folders that hold it, each with a trailing slash.
    """

    name: str
    md5: str
    mirrors: tuple[str, ...]

    @property
    def is_archive(self) -> bool:
        return self.name.endswith(".tar.gz")


@dataclass(frozen=True)
class DatasetInfo:
    """The description of a data set, known without opening its files.

    Args:
        name: Name on the command line and in configurations.
        classes: Class names, in the order of their indices.
        shape: Channels, height and width of an image.
        num_train: Number of training examples.
        num_test: Number of test examples.
        mean: Published mean of the training pixels per channel, scaled to [0, 1].
        std: Standard deviation of the same pixels.
        layouts: Possible layouts on disk; `downloads` produce the first.
        downloads: Files to download.
        builtin: Whether the files come with this package and need no data folder.
        scale: Largest stored value, 255 for pixels; 1 for numbers that are no pixels.
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    num_train: int
    num_test: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layouts: tuple[Layout, ...]
    downloads: tuple[Download, ...] = ()
    builtin: bool = False
    scale: float = 255.0

    @property
    def normalization(self) -> Normalization:
        """What turns stored values into the inputs of a model."""
        from feddm.core.examples import Normalization  # torch is slow to import

        return Normalization(self.mean, self.std, self.scale)


def describe(name: str) -> DatasetInfo:
    """Returns the description of a known data set.

    >>> describe("cifar10").shape
    (3, 32, 32)
    """
    if name in DATASETS:
        return DATASETS[name]
    close = difflib.get_close_matches(name.lower(), DATASETS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise DataError(f"unknown data set {name!r}{hint}; choose from {', '.join(DATASETS)}")


def described(config: DataConfig) -> DatasetInfo:
    """Returns the description of a federation's data: a known set, or the clients' own."""
    own = config.own
    if not own.classes:
        if config.name not in DATASETS and own != OwnDataConfig():
            raise DataError(
                f"data.own.classes is missing; list the class names of {config.name}"
            )
        return describe(config.name)
    if config.name in DATASETS:
        raise DataError(
            f"data.own is only for your own data, but data.name is {config.name}, "
            "a known data set; choose another data.name"
        )
    pixels, channels = own.values == "pixels", own.shape[0]
    mean, std = (_per_channel(own, key, channels) for key in ("mean", "std"))
    if pixels and not all(0 <= each <= 1 for each in mean):
        raise DataError(
            f"data.own.mean must be at least 0 and at most 1 for pixels, got {own.mean}"
        )
    return DatasetInfo(
        name=config.name,
        classes=own.classes,
        shape=own.shape,
        num_train=own.examples,
        num_test=0,
        mean=mean,
        std=std,
        layouts=(),
        scale=255.0 if pixels else 1.0,
    )


def check_folder_used(config: DataConfig, folder: str | None) -> None:
    """Raises `ConfigError` if a folder of data sets is named that nothing is read from."""
    if not folder:
        return
    if config.path:
        raise ConfigError(
            f"--data-dir does nothing with --data {config.path}: it is the folder of the known "
            "data sets"
        )
    if config.name in DATASETS and DATASETS[config.name].builtin:
        raise ConfigError(
            f"--data-dir does nothing: {config.name} come with feddm; --dataset names one of "
            f"{', '.join(DATASETS)}, and your own data are --data {folder}"
        )


def _per_channel(own: OwnDataConfig, key: str, channels: int) -> tuple[float, ...]:
    value = getattr(own, key)
    values: tuple[float, ...] = value if isinstance(value, tuple) else (value,) * channels
    if len(values) != channels:
        raise DataError(
            f"data.own.{key} must be one number, or one for each of {channels} channels, got "
            f"{len(values)}"
        )
    return values


def _files(format_: Format, md5s: Mapping[str, str]) -> tuple[DataFile, ...]:
    return tuple(DataFile(name, format_, md5) for name, md5 in md5s.items())


def _idx_layout(folder: str, test: str, md5s: tuple[str, str, str, str]) -> Layout:
    return Layout(
        folder,
        train=(
            DataFile("train-images-idx3-ubyte", "idx-images", md5s[0]),
            DataFile("train-labels-idx1-ubyte", "idx-labels", md5s[1]),
        ),
        test=(
            DataFile(f"{test}-images-idx3-ubyte", "idx-images", md5s[2]),
            DataFile(f"{test}-labels-idx1-ubyte", "idx-labels", md5s[3]),
        ),
    )


def _idx_downloads(
    layout: Layout, md5s: tuple[str, str, str, str], mirrors: tuple[str, ...]
) -> tuple[Download, ...]:
    return tuple(
        Download(f"{file.name}.gz", md5, mirrors)
        for file, md5 in zip(layout.files, md5s, strict=True)
    )


_NUMERALS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")

_DIGITS = DatasetInfo(
    name="digits",
    classes=_NUMERALS,
    shape=(1, 8, 8),
    num_train=1438,
    num_test=359,
    mean=(0.3059,),
    std=(0.3763,),
    layouts=(
        _idx_layout(
            "digits",
            "test",
            (
                "625443d20188ef919d7caf8b1e543662",
                "c144a82945a52c136de913731f436ed6",
                "67d8c242d23108ff9427f975527f5869",
                "2a276f0f5a24c24983ae3bf272ffca65",
            ),
        ),
    ),
    builtin=True,
)

_MNIST_LAYOUT = _idx_layout(
    "MNIST/raw",
    "t10k",
    (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
)

_MNIST = DatasetInfo(
    name="mnist",
    classes=_NUMERALS,
    shape=(1, 28, 28),
    num_train=60000,
    num_test=10000,
    mean=(0.1307,),
    std=(0.3081,),
    layouts=(_MNIST_LAYOUT,),
    downloads=_idx_downloads(
        _MNIST_LAYOUT,
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
    ),
)

_FASHION_LAYOUT = _idx_layout(
    "FashionMNIST/raw",
    "t10k",
    (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
)

_FASHION = DatasetInfo(
    name="fashion-mnist",
    classes=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    shape=(1, 28, 28),
    num_train=60000,
    num_test=10000,
    mean=(0.2860,),
    std=(0.3530,),
    layouts=(_FASHION_LAYOUT,),
    downloads=_idx_downloads(
        _FASHION_LAYOUT,
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    ),
)

_TORONTO = ("https://www.cs.toronto.edu/~kriz/",)

_CIFAR10 = DatasetInfo(
    name="cifar10",
    classes=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    shape=(3, 32, 32),
    num_train=50000,
    num_test=10000,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    layouts=(
        Layout(
            "cifar-10-batches-bin",
            train=_files(
                "cifar10-binary",
                {
                    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                },
            ),
            test=_files(
                "cifar10-binary", {"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"}
            ),
        ),
        Layout(
            "cifar-10-batches-py",
            train=_files(
                "cifar10-pickle",
                {
                    "data_batch_1": "c99cafc152244af753f735de768cd75f",
                    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                    "data_batch_4": "634d18415352ddfa80567beed471001a",
                    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                },
            ),
            test=_files("cifar10-pickle", {"test_batch": "40351d587109b95175f43aff81a1287e"}),
        ),
    ),
    downloads=(
        Download("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", _TORONTO),
    ),
)

_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle
bowl boy bridge bus butterfly camel can castle caterpillar cattle
chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
plain plate poppy porcupine possum rabbit raccoon ray road rocket
rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

_CIFAR100 = DatasetInfo(
    name="cifar100",
    classes=tuple(_CIFAR100_CLASSES.split()),
    shape=(3, 32, 32),
    num_train=50000,
    num_test=10000,
    mean=(0.5071, 0.4866, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    layouts=(
        Layout(
            "cifar-100-binary",
            train=_files("cifar100-binary", {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"}),
            test=_files("cifar100-binary", {"test.bin": "4499cfba6c016c1be1438163640a0898"}),
        ),
        Layout(
            "cifar-100-python",
            train=_files("cifar100-pickle", {"train": "16019d7e3df5f24257cddd939b257f8d"}),
            test=_files("cifar100-pickle", {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}),
        ),
    ),
    downloads=(
        Download("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", _TORONTO),
    ),
)

DATASETS: Mapping[str, DatasetInfo] = MappingProxyType(
    {info.name: info for info in (_DIGITS, _MNIST, _FASHION, _CIFAR10, _CIFAR100)}
)
