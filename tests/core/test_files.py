"""Files after a crash, on a full disk, and under the eyes of others."""

import os
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddm.core import files


@given(st.integers(1, 12))
def test_a_truncated_line_is_overwritten(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    file = tmp_path_factory.mktemp("folder") / "lines"
    files.append(file, "one")
    files.append(file, "two and more")
    file.write_bytes(file.read_bytes()[:-cut])
    assert files.whole_lines(file) == ["one"]
    files.append(file, "three")
    assert files.whole_lines(file) == ["one", "three"]
    assert file.read_bytes() == b"one\nthree\n"


def test_a_truncated_first_line_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"on")
    assert files.whole_lines(tmp_path / "lines") == []
    files.append(tmp_path / "lines", "one")
    assert files.whole_lines(tmp_path / "lines") == ["one"]


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert files.whole_lines(tmp_path / "lines") == []


def test_a_file_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    files.write_whole(file, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError):
            files.write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    files.write_whole(file, b"new")  # over the leftover part
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"new"


def test_private_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    files.make_private(folder)
    files.write_whole(folder / "secret", b"", files.OWNER)
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    for made in (tmp_path / "a", folder):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform != "linux", reason="looks files up in /proc")
def test_names_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not lose a file because its folder was not flushed."""
    synced: set[Path] = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    folder = tmp_path.resolve() / "split/client"
    files.make_private(folder)
    assert synced == {tmp_path.resolve(), folder.parent}
    for write, expected in (
        (lambda: files.write_whole(folder / "secret", b""), {"secret.part", ""}),
        (lambda: files.append(folder / "lines", "one"), {"lines", ""}),
        (lambda: files.append(folder / "lines", "two"), {"lines"}),
    ):
        synced.clear()
        write()
        assert synced == {folder / file for file in expected}


def test_an_os_error_becomes_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyError, match=r"cannot use .*none: No such file or directory; look"),
        files.explained(KeyError, tmp_path, "; look elsewhere"),
    ):
        (tmp_path / "none").read_bytes()
