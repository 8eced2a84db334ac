"""Crash-safe files: on disk when a call returns, and never partial under their final name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

EVERYBODY, OWNER = 0o666, 0o600  # file modes, before the umask


def write(path: Path, data: bytes, mode: int = EVERYBODY) -> None:
    """Writes a new file; a crash may leave a partial file."""

    def opener(name: str, flags: int) -> int:
        # Sets the mode on creation, so that nobody else can read the file even briefly.
        return os.open(name, flags, mode)

    with open(path, "xb", opener=opener) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, data: bytes, mode: int = EVERYBODY) -> None:
    """Writes or replaces a file atomically."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    write(part, data, mode)
    part.replace(path)
    sync_names(path.parent)


def append(path: Path, line: str) -> None:
    """Appends a line to a file; a truncated last line is overwritten."""
    with path.open("ab") as file:
        is_new = not file.tell()
        if not is_new and not path.read_bytes().endswith(b"\n"):
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_names(path.parent)


def whole_lines(path: Path) -> list[str]:
    """Returns the complete lines of a file.

    A missing file has none; a truncated last line is dropped.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [line.decode() for line in lines[:-1]]


def make_private(folder: Path) -> None:
    """Creates a folder and its missing parents, accessible only to their owner."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_names(folder.parent)


def sync_names(folder: Path) -> None:
    """Flushes a folder to disk; otherwise a crash could lose the names of new files."""
    if os.name == "posix":  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def explained(kind: type[Exception], path: Path, more: str = "") -> Iterator[None]:
    """Turns an `OSError` into a one-line error of this kind."""
    try:
        yield
    except OSError as error:
        message = f"cannot use {error.filename or path}: {error.strerror}{more}"
        raise kind(message) from error
