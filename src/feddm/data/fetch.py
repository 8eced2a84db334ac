"""Downloads: the official files of a data set, checked, into the layout that is read.

A file is written into a folder of its own beside its final name and then renamed, so that what
has a final name is whole. What was complete when a download broke off is not downloaded again.
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

Progress = Callable[[str, int, int], None]  # file name, bytes so far, bytes in all or 0

_TIMEOUT = 30  # seconds until a server that sends nothing is given up
_CHUNK = 2**16  # bytes between two reports of progress


def silent(name: str, done: int, total: int) -> None:
    """Reports no progress."""
    del name, done, total


def fetch(
    dataset: str | DatasetInfo, data_dir: Path | None = None, progress: Progress = silent
) -> Path:
    """Downloads what is missing or damaged of a data set and returns the folder of its files.

    Args:
        dataset: Its name, or a description of one's own.
        data_dir: The data folder, as for `load`.
        progress: Is called with the name of a file, the bytes that have come and the bytes in
            all, 0 if the server does not say; with another mirror the bytes start anew.
    """
    present = locate(dataset, data_dir)
    if present is not None and not _wrong(present):
        return present.folder
    official = possible_locations(dataset, data_dir)[0]
    wrong = _wrong(official)
    for download in official.info.downloads:
        if download.is_archive:
            _bring(official, download, wrong, progress)
        elif download.name.removesuffix(".gz") in wrong:
            _bring(official, download, {download.name}, progress)
    for found in check_files(official):
        if found.problem is not None:
            raise DataError(found.problem)
    return official.folder


def _wrong(location: Location) -> set[str]:
    """Returns the names of the files that are missing or damaged."""
    return {found.file.name for found in check_files(location) if found.problem is not None}


def _bring(location: Location, download: Download, names: set[str], progress: Progress) -> None:
    """Makes the files of these names out of one download."""
    folder = location.folder
    for name in names:
        if (folder / name).is_dir():
            raise DataError(
                f"{folder / name} is a folder where a file should be; "
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
            "make it writable, or name another folder with --data-dir or FEDDM_DATA"
        ) from None


def _retrieve(
    location: Location, download: Download, scratch: Path, progress: Progress
) -> Path:
    """Returns the file as it is published, from the first mirror that has it right."""
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
    by_hand = (
        f"unpack {download.name} in {location.root}"
        if download.is_archive
        else f"put {download.name} into {location.folder}"
    )
    raise DataError(
        f"{location.info.name} could not be downloaded ({'; '.join(failures)}); "
        f"try again later, or {by_hand} yourself"
    )


def _reason(error: OSError | ValueError) -> str:
    """Returns in a few words why a download failed; what requests says fills a screen."""
    if not isinstance(error, OSError):
        return "has another md5 than the published file"
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"failed: {status or error.strerror or type(error).__name__}"


def _unpack(location: Location, archive: Path, names: set[str]) -> None:
    """Takes the files of these names out of an archive, and nothing else."""
    expected = {f"{location.layout.folder}/{name}": name for name in names}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            path = posixpath.normpath(member.name)
            # A link would be followed, to wherever it leads in the archive.
            content = tar.extractfile(member) if member.isreg() and path in expected else None
            if content is not None:
                _place(content, archive.parent, location.folder / expected.pop(path))
    if expected:
        lacking = ", ".join(sorted(expected))
        raise DataError(
            f"the published archive of {location.info.name} lacks {lacking}, "
            "which it should have; please report it"
        )


def _place(content: IO[bytes], scratch: Path, path: Path) -> None:
    """Writes a file so that it has its final name only once it is whole."""
    partial = scratch / path.name
    with partial.open("wb") as target:
        shutil.copyfileobj(content, target)
    os.replace(partial, path)


class _Bar:
    """What pooch takes for a progress bar: it sets `total`, then calls `update`."""

    def __init__(self, name: str, progress: Progress) -> None:
        self.total = 0
        self._name, self._progress, self._done = name, progress, 0

    def update(self, num_bytes: int) -> None:
        # Pooch counts whole chunks, the last one too, and at the end all bytes once more.
        done = self._done + num_bytes
        self._done = min(done, self.total) if self.total else done
        self._progress(self._name, self._done, self.total)

    def reset(self) -> None:
        """Keeps the count, which `update` bounds."""

    def close(self) -> None:
        """Leaves the display to whoever draws it."""


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keeps a logger from telling what the caller of `fetch` tells."""

    def matters(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    # Not by its level, because pooch's logger is unregistered and caches what the level was.
    logger.addFilter(matters)
    try:
        yield
    finally:
        logger.removeFilter(matters)
