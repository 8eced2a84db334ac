"""Data sets on disk: find, check and load them.

Every function takes the name of a data set or your own `DatasetInfo`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import platformdirs

from feddm.data import formats
from feddm.data.catalog import DataFile, DatasetInfo, Layout, describe
from feddm.errors import DataError

if TYPE_CHECKING:
    from feddm.core.examples import Examples


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, with its normalization.

    Args:
        info: What is known of it.
        train: Training examples.
        test: Test examples.
        owners: The client of each training example, if the data say so.
        notices: What its owner should know about it, as which files are broken.
    """

    info: DatasetInfo
    train: Examples
    test: Examples
    owners: np.ndarray[Any, Any] | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Location:
    """A folder where a data set is, or could be, and its layout.

    Args:
        info: The data set.
        root: The data folder.
        layout: The files expected below it.
    """

    info: DatasetInfo
    root: Path
    layout: Layout

    @property
    def folder(self) -> Path:
        return self.root / self.layout.folder

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the missing files; empty if the data set is complete."""
        return tuple(file.name for file in self.layout.files if self.path(file) is None)

    def path(self, file: DataFile) -> Path | None:
        """Returns the path of a file, gzipped or not, or ``None`` if it is missing.

        The gzipped file is preferred, because a download replaces that one.
        """
        path = self.folder / file.name
        gzipped = [path.with_name(f"{path.name}.gz")] if file.format.startswith("idx") else []
        return next(filter(self._exists, [*gzipped, path]), None)

    def read(self, file: DataFile) -> formats.Part:
        """Returns the images and labels of a file, or raises a `DataError` that says why."""
        path = self.path(file)
        if path is None:
            raise DataError(
                f"{self.folder / file.name} is missing; {self.remedy('get it with')}"
            )
        shape, num_classes = self.info.shape, len(self.info.classes)
        try:
            content = formats.read(path)
            if file.format.endswith("pickle"):  # unpickle only the published file
                formats.verify(content, file.md5)
                return formats.parse(content, file.format, shape, num_classes)
            # Parsed first, because a wrong length says more than a wrong checksum.
            part = formats.parse(content, file.format, shape, num_classes)
            formats.verify(content, file.md5)
            return part
        except OSError as error:
            raise self._unreadable(path, error) from None
        except ValueError as error:
            raise DataError(f"{path} {error}; {self.remedy('delete it and run')}") from None

    def remedy(self, do: str) -> str:
        """Returns the end of an error message: what you can do about it."""
        if self.info.builtin:
            return "reinstall feddm"
        command = f"feddm data fetch {self.info.name}"
        if self.root != data_root():
            command += f" --data-dir {shlex.quote(str(self.root))}"
        return f"{do} `{command}`"

    def _exists(self, path: Path) -> bool:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._unreadable(path, error) from None
        return True

    def _unreadable(self, path: Path, error: OSError) -> DataError:
        return DataError(
            f"{path} cannot be read ({error.strerror}); make it readable, "
            "or choose another folder with --data-dir or FEDDM_DATA"
        )


@dataclass(frozen=True)
class FileCheck:
    """The result of checking one file; `problem` is ``None`` if the file is intact."""

    file: DataFile
    path: Path
    problem: str | None


def data_root(data_dir: Path | None = None) -> Path:
    """Returns the data folder: `data_dir`, else ``FEDDM_DATA``, else the user cache."""
    if data_dir is not None:
        return data_dir
    if folder := os.environ.get("FEDDM_DATA"):
        return Path(folder).expanduser()
    return platformdirs.user_cache_path("feddm", appauthor=False) / "data"


def locate(dataset: str | DatasetInfo, data_dir: Path | None = None) -> Location | None:
    """Returns the location of a data set, or ``None`` if none of its files exist.

    Complete layouts are preferred to those with `missing` files. No file is opened.
    """
    places = [place for place in possible_locations(dataset, data_dir) if _holds_any(place)]
    return min(places, key=lambda place: bool(place.missing), default=None)


def possible_locations(
    dataset: str | DatasetInfo, data_dir: Path | None = None
) -> tuple[Location, ...]:
    """Returns one location per layout, whether or not any files exist there."""
    info = describe(dataset) if isinstance(dataset, str) else dataset
    root = Path(__file__).parent if info.builtin else data_root(data_dir)
    return tuple(Location(info, root, layout) for layout in info.layouts)


def check_dataset(
    dataset: str | DatasetInfo, data_dir: Path | None = None
) -> tuple[FileCheck, ...]:
    """Reads and checks every file of a data set.

    Raises:
        DataError: None of its files exist.
    """
    return check_files(_located(dataset, data_dir))


def check_files(location: Location) -> tuple[FileCheck, ...]:
    """Reads and checks every file at a location."""
    return tuple(_check_file(location, file) for file in location.layout.files)


def load(dataset: str | DatasetInfo, data_dir: Path | None = None) -> Dataset:
    """Returns a data set, or raises a `DataError` that says what to do."""
    location = _located(dataset, data_dir)
    layout, info = location.layout, location.info
    return Dataset(
        info,
        train=_examples(location, layout.train, info.num_train),
        test=_examples(location, layout.test, info.num_test),
    )


def fingerprint(
    dataset: Dataset, shards: Sequence[np.ndarray[Any, Any]], key: bytes = b""
) -> str:
    """Returns a digest that identifies the data and their split.

    Args:
        dataset: The data.
        shards: Indices of each client's training examples.
        key: Secret that prevents guessing private data from the digest; empty for public data.
    """
    digest = hashlib.blake2b(digest_size=16, key=key)
    for examples in (dataset.train, dataset.test):
        for part in (examples.x, examples.y, examples.group):
            if part is not None:
                digest.update(part.numpy().data)
    for shard in shards:
        digest.update(len(shard).to_bytes(8, "little"))
        digest.update(shard.data)
    return digest.hexdigest()


def _located(dataset: str | DatasetInfo, data_dir: Path | None) -> Location:
    location = locate(dataset, data_dir)
    if location is not None:
        return location
    places = possible_locations(dataset, data_dir)
    folders = " or ".join(place.layout.folder for place in places)
    message = (
        f"{places[0].info.name} is not in {places[0].root} (no {folders}); "
        f"{places[0].remedy('get it with')}"
    )
    if not places[0].info.builtin:
        message += ", or point --data-dir or FEDDM_DATA to the folder that has it"
    raise DataError(message)


def _holds_any(location: Location) -> bool:
    return len(location.missing) < len(location.layout.files)


def _check_file(location: Location, file: DataFile) -> FileCheck:
    path = location.folder / file.name
    try:
        path = location.path(file) or path
        location.read(file)
    except DataError as error:
        return FileCheck(file, path, str(error))
    return FileCheck(file, path, None)


def _examples(location: Location, parts: Iterable[DataFile], num_examples: int) -> Examples:
    # Imported here, because torch is slow to import and only loading needs it.
    import torch

    from feddm.core.examples import Examples

    info = location.info
    images, labels = zip(*(location.read(file) for file in parts), strict=True)
    x, y = np.concatenate(images), np.concatenate(labels)
    if not len(x) == len(y) == num_examples:
        raise DataError(
            f"{location.folder} has {len(x)} images and {len(y)} labels, expected "
            f"{num_examples} of each; {location.remedy('delete it and run')}"
        )
    return Examples(torch.from_numpy(x), torch.from_numpy(y), info.normalization)
