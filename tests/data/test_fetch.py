import dataclasses
import errno
import gzip
import hashlib
import io
import logging
import os
import pickle
import shutil
import socket
import struct
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

import numpy as np
import pooch
import pytest

from feddm.data.catalog import DataFile, DatasetInfo, Download, Layout
from feddm.data.datasets import load
from feddm.data.fetch import fetch, silent
from feddm.errors import DataError


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves bytes by path, complete or only the first half, and records the requests."""

    daemon_threads = False  # so that closing waits for pending requests

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.cut: set[str] = set()
        self.says_length = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.removeprefix("/")
        self.server.asked.append(path)
        content = self.server.contents.get(path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        if self.server.says_length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = path in self.server.cut
        self.wfile.write(content[: len(content) // 2] if half else content)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def dead() -> str:
    """Returns an address on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of a data folder that does not exist yet."""
    monkeypatch.setenv("FEDDM_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def idx_bytes(*shape: int) -> bytes:
    return struct.pack(f">{len(shape) + 1}I", 0x0800 + len(shape), *shape) + bytes(
        i % 3 for i in range(int(np.prod(shape)))
    )


IDX = {
    "train-images": idx_bytes(30, 60, 60),
    "train-labels": idx_bytes(30),
    "test-images": idx_bytes(2, 60, 60),
    "test-labels": idx_bytes(2),
}
IDX_GZ = {f"{name}.gz": gzip.compress(content) for name, content in IDX.items()}
RAW = "Gray/raw"


@pytest.fixture
def gray(server: Server) -> DatasetInfo:
    """Describes a data set of four gzipped files that the server has."""
    server.contents.update(IDX_GZ)
    made = {
        name: DataFile(name, "idx-images" if "images" in name else "idx-labels", md5(content))
        for name, content in IDX.items()
    }
    return DatasetInfo(
        name="gray",
        classes=("a", "b", "c"),
        shape=(1, 60, 60),
        num_train=30,
        num_test=2,
        mean=(0.5,),
        std=(0.5,),
        layouts=(
            Layout(
                RAW,
                train=(made["train-images"], made["train-labels"]),
                test=(made["test-images"], made["test-labels"]),
            ),
        ),
        downloads=tuple(
            Download(name, md5(content), (server.address,)) for name, content in IDX_GZ.items()
        ),
    )


def with_mirrors(info: DatasetInfo, *mirrors: str) -> DatasetInfo:
    return dataclasses.replace(
        info,
        downloads=tuple(
            dataclasses.replace(download, mirrors=mirrors) for download in info.downloads
        ),
    )


TRAIN, TEST = bytes([1, 10, 20, 30]) * 5, bytes([0, 40, 50, 60]) * 2
MEMBERS = {"colors/train.bin": TRAIN, "colors/test.bin": TEST}


def tar_bytes(contents: dict[str, bytes], *links: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for link in links:
            tar.addfile(link)
    return buffer.getvalue()


def link(kind: bytes, name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def color(server: Server, archive: bytes) -> DatasetInfo:
    """Describes a data set in a tar archive that the server has."""
    server.contents["colors.tar.gz"] = archive
    pickled = pickle.dumps({"data": np.zeros((5, 3), np.uint8), "labels": [0] * 5})
    return DatasetInfo(
        name="color",
        classes=("a", "b"),
        shape=(3, 1, 1),
        num_train=5,
        num_test=2,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        layouts=(
            Layout(
                "colors",
                train=(DataFile("train.bin", "cifar10-binary", md5(TRAIN)),),
                test=(DataFile("test.bin", "cifar10-binary", md5(TEST)),),
            ),
            Layout(
                "colors-py",
                train=(DataFile("train", "cifar10-pickle", md5(pickled)),),
                test=(DataFile("test", "cifar10-pickle", md5(pickled)),),
            ),
        ),
        downloads=(Download("colors.tar.gz", md5(archive), (server.address,)),),
    )


def tree(folder: Path) -> dict[str, bytes]:
    """Returns all files below a folder, and asserts that no empty folder is left."""
    paths = list(folder.rglob("*"))
    assert all(list(path.iterdir()) for path in paths if path.is_dir())
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()
    }


def message(info: DatasetInfo, data_dir: Path | None = None) -> str:
    with pytest.raises(DataError) as caught:
        fetch(info, data_dir)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# Success


def test_gzipped_files(gray: DatasetInfo, root: Path) -> None:
    assert fetch(gray) == root / RAW
    assert tree(root) == {f"{RAW}/{name}": content for name, content in IDX_GZ.items()}
    assert load(gray).train.x.shape == (30, 1, 60, 60)


def test_archive(server: Server, root: Path) -> None:
    info = color(server, tar_bytes(MEMBERS))
    assert fetch(info) == root / "colors"
    assert tree(root) == MEMBERS
    assert load(info).train.y.tolist() == [1] * 5


def test_into_a_given_folder(gray: DatasetInfo, root: Path, tmp_path: Path) -> None:
    assert fetch(gray, tmp_path / "named") == tmp_path / "named" / RAW
    assert not root.exists()


def test_nothing_is_downloaded_twice(gray: DatasetInfo, server: Server, root: Path) -> None:
    fetch(gray)
    assert server.asked == list(IDX_GZ)
    assert fetch(gray) == root / RAW
    assert server.asked == list(IDX_GZ)


def test_existing_plain_files_are_used(gray: DatasetInfo, server: Server, root: Path) -> None:
    (root / RAW).mkdir(parents=True)
    for name, content in IDX.items():
        (root / RAW / name).write_bytes(content)
    assert fetch(gray) == root / RAW
    assert server.asked == []


def test_existing_files_in_another_layout_are_used(server: Server, root: Path) -> None:
    info = color(server, tar_bytes(MEMBERS))
    content = pickle.dumps({"data": np.zeros((5, 3), np.uint8), "labels": [0] * 5})
    (root / "colors-py").mkdir(parents=True)
    for name in ("train", "test"):
        (root / "colors-py" / name).write_bytes(content)
    assert fetch(info) == root / "colors-py"
    assert server.asked == []
    # If it is damaged, it is left alone, and the official files are downloaded beside it.
    (root / "colors-py/train").write_bytes(b"damaged")
    assert fetch(info) == root / "colors"
    assert load(info).train.y.tolist() == [1] * 5
    assert (root / "colors-py/train").read_bytes() == b"damaged"


def test_only_missing_or_damaged_files_are_downloaded(
    gray: DatasetInfo, server: Server, root: Path
) -> None:
    fetch(gray)
    server.asked.clear()
    (root / RAW / "train-labels.gz").write_bytes(b"damaged")
    (root / RAW / "test-images.gz").unlink()
    (root / RAW / "test-images").write_bytes(b"damaged")
    fetch(gray)
    assert server.asked == ["train-labels.gz", "test-images.gz"]
    assert load(gray).test.y.tolist() == [0, 1]


def test_built_in_data_set_is_not_downloaded(server: Server, root: Path) -> None:
    assert (fetch("digits") / "train-images-idx3-ubyte.gz").exists()
    assert not root.exists()


def test_unknown_name() -> None:
    with pytest.raises(DataError, match="did you mean cifar10"):
        fetch("cifar-10")


@pytest.mark.skipif(os.name == "nt", reason="has other permissions")
def test_file_modes_follow_the_umask(gray: DatasetInfo, root: Path) -> None:
    before = os.umask(0o022)
    try:
        fetch(gray)
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (root / RAW).iterdir()}
    assert modes == {0o644}


# Progress


def test_progress(gray: DatasetInfo, root: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    def progress(name: str, done: int, total: int) -> None:
        assert not (root / RAW / name).exists()  # not before it is complete
        seen.append((name, done, total))

    fetch(gray, progress=progress)
    for name, content in IDX_GZ.items():
        reports = [(done, total) for file, done, total in seen if file == name]
        assert {total for _, total in reports} == {len(content)}
        assert reports == sorted(reports)
        assert reports[-1] == (len(content), len(content))


def test_progress_of_a_large_file_comes_in_steps(server: Server, root: Path) -> None:
    archive = tar_bytes({**MEMBERS, "colors/noise": np.random.default_rng(0).bytes(300_000)})
    seen: list[int] = []
    fetch(color(server, archive), progress=lambda _name, done, _total: seen.append(done))
    assert len(set(seen)) >= 4
    assert seen == sorted(seen)
    assert seen[-1] == len(archive)


def test_progress_without_a_content_length(
    gray: DatasetInfo, server: Server, root: Path
) -> None:
    server.says_length = False
    seen: list[tuple[str, int, int]] = []
    fetch(gray, progress=lambda *report: seen.append(report))
    assert {total for _, _, total in seen} == {0}
    assert all(done > 0 for _, done, _ in seen)
    assert load(gray).train.y.shape == (30,)


def test_pooch_logs_nothing(gray: DatasetInfo, root: Path) -> None:
    said = io.StringIO()
    logger, handler = pooch.get_logger(), logging.StreamHandler(said)
    logger.addHandler(handler)
    try:
        fetch(gray, progress=silent)
        assert said.getvalue() == ""
        logger.info("said by somebody else")
        assert said.getvalue() == "said by somebody else\n"
    finally:
        logger.removeHandler(handler)


# Errors


def test_wrong_checksum(gray: DatasetInfo, server: Server, root: Path) -> None:
    server.contents["train-images.gz"] = gzip.compress(b"something else")
    assert message(gray) == (
        f"gray could not be downloaded ({server.address}train-images.gz has the wrong "
        "md5 checksum); "
        f"try again later, or download train-images.gz yourself and put it in {root / RAW}"
    )
    assert list((root / RAW).iterdir()) == []
    with pytest.raises(DataError, match="gray is not in"):
        load(gray)


def test_no_mirror_has_it(gray: DatasetInfo, server: Server, dead: str, root: Path) -> None:
    server.contents.clear()
    assert message(with_mirrors(gray, dead, server.address)) == (
        f"gray could not be downloaded ({dead}train-images.gz failed: ConnectionError; "
        f"{server.address}train-images.gz failed: 404); "
        f"try again later, or download train-images.gz yourself and put it in {root / RAW}"
    )


def test_no_mirror_has_the_archive(server: Server, root: Path) -> None:
    info = color(server, tar_bytes(MEMBERS))
    server.contents.clear()
    assert message(info).endswith(
        f"try again later, or download colors.tar.gz yourself and unpack it in {root}"
    )


def test_second_mirror_after_a_dead_one(
    gray: DatasetInfo, server: Server, dead: str, root: Path
) -> None:
    fetch(with_mirrors(gray, dead, server.address))
    assert server.asked == list(IDX_GZ)
    assert tree(root / RAW) == IDX_GZ


@pytest.mark.parametrize("failure", ["404", "other content", "cut"])
def test_second_mirror_after_a_bad_one(
    failure: str, gray: DatasetInfo, server: Server, root: Path
) -> None:
    # The first mirror is a folder on the same server, with one bad file.
    server.contents.update({f"bad/{name}": content for name, content in IDX_GZ.items()})
    if failure == "404":
        del server.contents["bad/train-labels.gz"]
    elif failure == "other content":
        server.contents["bad/train-labels.gz"] = IDX_GZ["test-labels.gz"]
    else:
        server.cut.add("bad/train-labels.gz")
    fetch(with_mirrors(gray, f"{server.address}bad/", server.address))
    assert server.asked == [
        "bad/train-images.gz",
        "bad/train-labels.gz",
        "train-labels.gz",
        "bad/test-images.gz",
        "bad/test-labels.gz",
    ]
    assert tree(root / RAW) == IDX_GZ


@pytest.mark.parametrize("says_length", [True, False])
def test_connection_cut_in_the_middle(
    says_length: bool, gray: DatasetInfo, server: Server, root: Path
) -> None:
    server.says_length = says_length
    server.cut.add("test-images.gz")
    assert f"gray could not be downloaded ({server.address}test-images.gz " in message(gray)
    # Complete files are kept, and nothing of the interrupted one.
    assert sorted(tree(root / RAW)) == ["train-images.gz", "train-labels.gz"]
    with pytest.raises(DataError, match="test-images is missing"):
        load(gray)
    server.cut.clear()
    server.asked.clear()
    fetch(gray)
    assert server.asked == ["test-images.gz", "test-labels.gz"]
    assert tree(root / RAW) == IDX_GZ


def test_interruption_leaves_no_partial_file(server: Server, root: Path) -> None:
    info = color(server, tar_bytes(MEMBERS))

    def interrupt(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(info, progress=interrupt)
    assert list((root / "colors").iterdir()) == []
    fetch(info)
    assert tree(root) == MEMBERS


def test_final_name_comes_last(
    server: Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = []
    replace = os.replace

    def spy(source: Path, target: Path) -> None:
        assert source.read_bytes() == MEMBERS[str(target.relative_to(root))]
        assert not target.exists()
        renamed.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", spy)
    fetch(color(server, tar_bytes(MEMBERS)))
    assert renamed == ["train.bin", "test.bin"]


def test_full_disk(server: Server, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(source: IO[bytes], target: IO[bytes]) -> None:
        target.write(source.read(1))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    text = message(color(server, tar_bytes(MEMBERS)))
    assert text.startswith(f"{root / 'colors'} cannot be written (No space left on device); ")
    assert list((root / "colors").iterdir()) == []


def test_hostile_archive(server: Server, root: Path) -> None:
    evil = {
        "../evil": b"evil",
        "/tmp/evil-of-feddm": b"evil",
        "colors/../../evil": b"evil",
        "colors/extra.bin": b"evil",
        "train.bin": b"evil",
        "evil/train.bin": b"evil",
    }
    archive = tar_bytes(
        {**evil, **MEMBERS},
        link(tarfile.SYMTYPE, "colors/link", "../../evil"),
        link(tarfile.LNKTYPE, "colors/hard", "colors/train.bin"),
        link(tarfile.FIFOTYPE, "colors/fifo", ""),
    )
    fetch(color(server, archive))
    assert tree(root) == MEMBERS
    assert list(root.parent.iterdir()) == [root]
    assert not Path("/tmp/evil-of-feddm").exists()


@pytest.mark.parametrize(
    "instead",
    [
        None,
        link(tarfile.SYMTYPE, "colors/test.bin", "train.bin"),
        link(tarfile.SYMTYPE, "colors/test.bin", "/etc/passwd"),
        link(tarfile.LNKTYPE, "colors/test.bin", "colors/train.bin"),
        link(tarfile.DIRTYPE, "colors/test.bin", ""),
    ],
    ids=["nothing", "symlink", "symlink outside", "hard link", "folder"],
)
def test_archive_without_the_expected_file(
    instead: tarfile.TarInfo | None, server: Server, root: Path
) -> None:
    links = [] if instead is None else [instead]
    info = color(server, tar_bytes({"colors/train.bin": TRAIN}, *links))
    assert message(info) == (
        "the published archive of color does not contain colors/test.bin; please report this"
    )
    assert tree(root) == {"colors/train.bin": TRAIN}


def test_archive_with_unexpected_contents(server: Server, root: Path) -> None:
    other = TEST[:-1] + b"x"
    info = color(server, tar_bytes({**MEMBERS, "colors/test.bin": other}))
    assert f"test.bin is damaged (md5 {md5(other)}, expected {md5(TEST)})" in message(info)


def test_member_names_that_start_with_a_dot(server: Server, root: Path) -> None:
    fetch(color(server, tar_bytes({f"./{name}": content for name, content in MEMBERS.items()})))
    assert tree(root) == MEMBERS


def test_folder_that_cannot_be_created(
    gray: DatasetInfo, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert message(gray, tmp_path / "file") == (
        f"{tmp_path / 'file' / RAW} cannot be written (Not a directory); "
        "make it writable, or choose another folder with --data-dir or FEDDM_DATA"
    )
    assert server.asked == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="may write everywhere")
def test_folder_that_cannot_be_written(gray: DatasetInfo, server: Server, root: Path) -> None:
    (root / RAW).mkdir(parents=True)
    (root / RAW).chmod(0o500)
    assert f"{root / RAW} cannot be written (Permission denied)" in message(gray)
    assert server.asked == []


def test_folder_instead_of_a_file(gray: DatasetInfo, server: Server, root: Path) -> None:
    (root / RAW / "train-images.gz").mkdir(parents=True)
    assert message(gray) == (
        f"{root / RAW / 'train-images.gz'} is a folder, not a file; "
        "delete it and run `feddm data fetch gray`"
    )
    assert server.asked == []
