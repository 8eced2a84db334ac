"""Files that survive a crash: on the disk when a call returns, and whole under their names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

EVERYBODY, OWNER = 0o666, 0o600  # who can read a file, as far as the system agrees


def write(path: Path, data: bytes, mode: int = EVERYBODY) -> None:
    """Writes a new file; a crash meanwhile leaves a part of it."""

    def opener(name: str, flags: int) -> int:
        # With its mode from the first moment on.
        return os.open(name, flags, mode)

    with open(path, "xb", opener=opener) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, data: bytes, mode: int = EVERYBODY) -> None:
    """Writes a file under its name, or nothing; what had the name before is replaced."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    write(part, data, mode)
    part.replace(path)
    sync_names(path.parent)


def append(path: Path, line: str) -> None:
    """Adds a line to a file; one that was cut off is written over."""
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
    """Returns the lines of a file, none if there is no file; one that was cut off is none."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [line.decode() for line in lines[:-1]]


def make_private(folder: Path) -> None:
    """Makes a folder and those above it, for their owner alone."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_names(folder.parent)


def sync_names(folder: Path) -> None:
    """Writes the names in a folder to the disk; a file without its name would be lost."""
    if os.name == "posix":  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def explained(kind: type[Exception], path: Path, more: str = "") -> Iterator[None]:
    """Turns what the file system says into one line of an error of this kind."""
    try:
        yield
    except OSError as error:
        what = f"cannot use {error.filename or path}: {error.strerror}{more}"
        raise kind(what) from error
