"""Downloads the official files of a data set and verifies them.

Each file is written to a temporary folder and then renamed, so a file under its final name is
always complete. After an interrupted download, complete files are not downloaded again.
"""

from __future__ import annotations

import logging
import os
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pooch

from feddm.data.catalog import DatasetInfo, Download
from feddm.data.datasets import Location, check_files, locate, possible_locations
from feddm.errors import DataError

Progress = Callable[[str, int, int], None]  # file name, bytes so far, total bytes or 0

_TIMEOUT = 30  # seconds without a response before giving up on a server
_CHUNK = 2**16  # bytes between progress reports


def silent(name: str, done: int, total: int) -> None:
    """Reports no progress."""
    del name, done, total


def fetch(
    dataset: str | DatasetInfo, data_dir: Path | None = None, progress: Progress = silent
) -> Path:
    """Downloads the missing or damaged files of a data set and returns their folder.

    Args:
        dataset: Its name, or your own description.
        data_dir: The data folder, as for `load`.
        progress: Called with the file name, the bytes so far and the total bytes (0 if the
            server does not say). The count starts over with each mirror.
    """
    present = locate(dataset, data_dir)
    if present is not None and not _bad_files(present):
        return present.folder
    official = possible_locations(dataset, data_dir)[0]
    bad = _bad_files(official)
    for download in official.info.downloads:
        if download.is_archive:
            _download(official, download, bad, progress)
        elif download.name.removesuffix(".gz") in bad:
            _download(official, download, {download.name}, progress)
    for found in check_files(official):
        if found.problem is not None:
            raise DataError(found.problem)
    return official.folder


def _bad_files(location: Location) -> set[str]:
    """Returns the names of the files that are missing or damaged."""
    return {found.file.name for found in check_files(location) if found.problem is not None}


def _download(
    location: Location, download: Download, names: set[str], progress: Progress
) -> None:
    """Downloads one published file and installs the data files `names` from it."""
    folder = location.folder
    for name in names:
        if (folder / name).is_dir():
            raise DataError(
                f"{folder / name} is a folder, not a file; "
                f"{location.remedy('delete it and run')}"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            published = _retrieve(location, download, Path(scratch), progress)
            if download.is_archive:
                _unpack(location, published, names)
            else:
                with published.open("rb") as content:
                    _place(content, Path(scratch), folder / download.name)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error.strerror}); "
            "make it writable, or choose another folder with --data-dir or FEDDM_DATA"
        ) from None


def _retrieve(
    location: Location, download: Download, scratch: Path, progress: Progress
) -> Path:
    """Returns the published file, from the first mirror whose copy has the right checksum."""
    failures = []
    for mirror in download.mirrors:
        bar = _Bar(download.name, progress)
        try:
            with _quiet(pooch.get_logger()):
                path = pooch.retrieve(
                    mirror + download.name,
                    known_hash=f"md5:{download.md5}",
                    fname=f"{download.name}.published",
                    path=scratch,
                    downloader=pooch.HTTPDownloader(bar, _CHUNK, timeout=_TIMEOUT),
                )
            return Path(path)
        except (OSError, ValueError) as error:
            failures.append(f"{mirror}{download.name} {_reason(error)}")
    then = (
        f"unpack it in {location.root}"
        if download.is_archive
        else f"put it in {location.folder}"
    )
    raise DataError(
        f"{location.info.name} could not be downloaded ({'; '.join(failures)}); "
        f"try again later, or download {download.name} yourself and {then}"
    )


def _reason(error: OSError | ValueError) -> str:
    """Returns a short reason why a download failed; messages of requests are very long."""
    if not isinstance(error, OSError):
        return "has the wrong md5 checksum"
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"failed: {status or error.strerror or type(error).__name__}"


def _unpack(location: Location, archive: Path, names: set[str]) -> None:
    """Extracts the files `names` from an archive, and nothing else."""
    expected = {f"{location.layout.folder}/{name}": name for name in names}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            path = posixpath.normpath(member.name)
            # Regular files only: tarfile would follow a link to any other member.
            content = tar.extractfile(member) if member.isreg() and path in expected else None
            if content is not None:
                _place(content, archive.parent, location.folder / expected.pop(path))
    if expected:
        missing = ", ".join(sorted(expected))
        raise DataError(
            f"the published archive of {location.info.name} does not contain {missing}; "
            "please report this"
        )


def _place(content: IO[bytes], scratch: Path, path: Path) -> None:
    """Writes a file; it gets its final name only once it is complete."""
    partial = scratch / path.name
    with partial.open("wb") as target:
        shutil.copyfileobj(content, target)
    os.replace(partial, path)


class _Bar:
    """The progress bar that pooch expects: it sets `total`, then calls `update`."""

    def __init__(self, name: str, progress: Progress) -> None:
        self.total = 0
        self._name, self._progress, self._done = name, progress, 0

    def update(self, num_bytes: int) -> None:
        # Pooch rounds the last chunk up, and finally reports all bytes once more.
        done = self._done + num_bytes
        self._done = min(done, self.total) if self.total else done
        self._progress(self._name, self._done, self.total)

    def reset(self) -> None:
        """Does nothing: `update` bounds the count."""

    def close(self) -> None:
        """Does nothing: the caller of `fetch` owns the display."""


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Mutes a logger below warnings; the caller of `fetch` reports progress."""

    def is_warning(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    # A filter, because pooch's logger is unregistered and would cache a changed level.
    logger.addFilter(is_warning)
    try:
        yield
    finally:
        logger.removeFilter(is_warning)
