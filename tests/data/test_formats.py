import gzip
import hashlib
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from feddm.data import formats
from feddm.data.catalog import Format

Bytes = NDArray[np.uint8]
quick = settings(max_examples=30, deadline=None)


def idx_bytes(array: Bytes) -> bytes:
    return (
        struct.pack(f">{array.ndim + 1}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()
    )


def byte_arrays(ndim: int) -> st.SearchStrategy[Bytes]:
    return hnp.arrays(np.uint8, hnp.array_shapes(min_dims=ndim, max_dims=ndim, max_side=4))


# Reading


def test_read_plain_and_gzipped(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"abc")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"abc"))
    assert formats.read(tmp_path / "plain") == formats.read(tmp_path / "packed.gz") == b"abc"


@given(content=st.binary(max_size=300), data=st.data())
@quick
def test_every_truncation_of_a_gzip_file_is_detected(
    content: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    packed = gzip.compress(content)
    path = tmp_path_factory.mktemp("cut") / "cut.gz"
    path.write_bytes(packed[: data.draw(st.integers(1, len(packed) - 1))])
    with pytest.raises(ValueError, match=r"is truncated|is not a valid gzip file"):
        formats.read(path)


def test_read_half_a_gzip_file(tmp_path: Path) -> None:
    packed = gzip.compress(os.urandom(1000))
    (tmp_path / "half.gz").write_bytes(packed[:500])
    with pytest.raises(ValueError, match="is truncated"):
        formats.read(tmp_path / "half.gz")


def test_read_a_file_that_is_gzip_in_name_only(tmp_path: Path) -> None:
    (tmp_path / "web.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match="is not a valid gzip file"):
        formats.read(tmp_path / "web.gz")


def test_read_a_gzip_file_with_a_changed_byte(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"abc" * 100))
    packed[-5] ^= 1  # in the checksum of the content
    (tmp_path / "changed.gz").write_bytes(packed)
    with pytest.raises(ValueError, match="is not a valid gzip file"):
        formats.read(tmp_path / "changed.gz")


def test_read_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder, not a file"):
        formats.read(tmp_path)


def test_read_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        formats.read(tmp_path / "nothing")


def test_verify() -> None:
    formats.verify(b"abc", "900150983cd24fb0d6963f7d28e17f72")  # RFC 1321
    with pytest.raises(ValueError) as caught:
        formats.verify(b"abd", "900150983cd24fb0d6963f7d28e17f72")
    assert str(caught.value) == (
        f"is damaged (md5 {hashlib.md5(b'abd').hexdigest()}, "
        "expected 900150983cd24fb0d6963f7d28e17f72)"
    )


# IDX


def test_idx_by_hand() -> None:
    content = bytes.fromhex("00000803 00000002 00000001 00000003 010203 0405ff")
    assert formats.idx(content, ndim=3).tolist() == [[[1, 2, 3]], [[4, 5, 255]]]


@given(st.one_of(byte_arrays(1), byte_arrays(2), byte_arrays(3)))
@quick
def test_idx_round_trip(array: Bytes) -> None:
    found = formats.idx(idx_bytes(array), array.ndim)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, array)


@given(array=byte_arrays(3), data=st.data())
@quick
def test_every_wrong_length_of_an_idx_file_is_detected(
    array: Bytes, data: st.DataObject
) -> None:
    content = idx_bytes(array)
    length = data.draw(st.integers(0, len(content) + 9).filter(lambda n: n != len(content)))
    with pytest.raises(ValueError, match=r"is truncated|has the wrong length"):
        formats.idx((content + bytes(9))[:length], ndim=3)


def test_idx_says_how_many_bytes_are_missing() -> None:
    # 16 bytes of header and 2 images of 3 x 3.
    content = idx_bytes(np.zeros((2, 3, 3), np.uint8))[:-1]
    with pytest.raises(ValueError, match=r"\(33 bytes, but its header says 34\)"):
        formats.idx(content, ndim=3)


@pytest.mark.parametrize("magic", ["00000801", "00000d03", "1f8b0808", "00000000"])
def test_idx_with_a_wrong_magic_number(magic: str) -> None:
    with pytest.raises(ValueError) as caught:
        formats.idx(bytes.fromhex(magic) + bytes(12), ndim=3)
    assert str(caught.value) == f"has magic number {magic}, expected 00000803"


def test_idx_with_an_absurd_header() -> None:
    with pytest.raises(ValueError, match="has the wrong length"):
        formats.idx(bytes.fromhex("00000803" + 3 * "ffffffff"), ndim=3)


def test_parse_idx() -> None:
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    part = formats.parse(idx_bytes(images), "idx-images", (1, 2, 2), 10)
    assert part.images.shape == (3, 1, 2, 2)
    np.testing.assert_array_equal(part.images[:, 0], images)
    assert part.labels.shape == (0,)
    part = formats.parse(idx_bytes(np.array([9, 0, 1], np.uint8)), "idx-labels", (1, 2, 2), 10)
    assert part.labels.tolist() == [9, 0, 1]
    assert part.labels.dtype == np.int64
    assert part.images.shape == (0, 1, 2, 2)


def test_idx_images_of_the_wrong_size() -> None:
    content = idx_bytes(np.zeros((1, 4, 2), np.uint8))
    with pytest.raises(ValueError) as caught:
        formats.parse(content, "idx-images", (1, 2, 4), 10)
    assert str(caught.value) == "has images of 4 x 2 pixels, expected 2 x 4"


# CIFAR


def test_cifar10_records_by_hand() -> None:
    # One label byte, then the red, the green and the blue pixels of a 1 x 2 image.
    content = bytes([7, 1, 2, 3, 4, 5, 6]) + bytes([0, 11, 12, 13, 14, 15, 16])
    part = formats.parse(content, "cifar10-binary", (3, 1, 2), 10)
    assert part.labels.tolist() == [7, 0]
    assert part.images.tolist() == [
        [[[1, 2]], [[3, 4]], [[5, 6]]],
        [[[11, 12]], [[13, 14]], [[15, 16]]],
    ]


def test_cifar100_records_have_a_coarse_label_first() -> None:
    content = bytes([19, 99, 1, 2, 3]) + bytes([0, 42, 4, 5, 6])
    part = formats.parse(content, "cifar100-binary", (3, 1, 1), 100)
    assert part.labels.tolist() == [99, 42]
    assert part.images[:, :, 0, 0].tolist() == [[1, 2, 3], [4, 5, 6]]


@given(images=byte_arrays(4), label_bytes=st.integers(1, 2), data=st.data())
@quick
def test_cifar_records_round_trip(images: Bytes, label_bytes: int, data: st.DataObject) -> None:
    labels = data.draw(hnp.arrays(np.uint8, (len(images), label_bytes)))
    records = np.concatenate([labels, images.reshape(len(images), -1)], axis=1)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    part = formats.cifar_records(records.tobytes(), label_bytes, shape)
    np.testing.assert_array_equal(part.images, images)
    np.testing.assert_array_equal(part.labels, labels[:, -1])
    assert part.labels.dtype == np.int64


@pytest.mark.parametrize("length", [0, 1, 3072, 3074, 2 * 3073 - 1])
def test_cifar_records_of_the_wrong_length(length: int) -> None:
    with pytest.raises(ValueError) as caught:
        formats.parse(bytes(length), "cifar10-binary", (3, 32, 32), 10)
    assert str(caught.value) == (f"has the wrong length ({length} bytes; each record has 3073)")


# Labels


def cifar_pickle(labels: object, key: str = "labels", images: int = 1) -> bytes:
    return pickle.dumps({key: labels, "data": np.zeros((images, 3), np.uint8)}, protocol=4)


@pytest.mark.parametrize(
    ("format_", "content"),
    [
        ("idx-labels", idx_bytes(np.array([0, 5, 1], np.uint8))),
        ("cifar10-binary", bytes([5, 0, 0, 0])),
        ("cifar100-binary", bytes([0, 5, 0, 0, 0])),
        ("cifar10-pickle", cifar_pickle([5])),
        ("cifar100-pickle", cifar_pickle([5], "fine_labels")),
    ],
)
def test_labels_out_of_range(format_: Format, content: bytes) -> None:
    assert 5 in formats.parse(content, format_, (3, 1, 1), 6).labels
    with pytest.raises(ValueError) as caught:
        formats.parse(content, format_, (3, 1, 1), 5)
    assert str(caught.value) == "has label 5, but the classes are 0 to 4"


def test_negative_label() -> None:
    with pytest.raises(ValueError, match="has label -1,"):
        formats.parse(cifar_pickle([-1]), "cifar10-pickle", (3, 1, 1), 10)


# Pickles


def python2_pickle(data: Bytes, labels: list[int], by_column: bool = False) -> bytes:
    """Returns a pickle as Python 2 wrote it, with all strings as bytes."""

    def string(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    rows, columns = data.shape
    shape = b"K" + bytes([rows]) + b"K" + bytes([columns]) + b"\x86"
    elements = data.tobytes(order="F" if by_column else "C")
    return b"".join(
        [
            b"\x80\x02}(",
            string(b"batch_label") + string(b"training batch 1 of 5"),
            string(b"labels") + b"](" + b"".join(b"K" + bytes([n]) for n in labels) + b"e",
            string(b"data"),
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85",
            string(b"b") + b"\x87R(K\x01" + shape,
            b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R",
            b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x88" if by_column else b"\x89",
            b"T" + struct.pack("<i", len(elements)) + elements + b"tb",
            string(b"filenames") + b"](" + string(b"a\xe9.png") + string(b"b.png") + b"e",
            b"u.",
        ]
    )


DATA = np.array([[1, 2, 3], [4, 5, 255]], np.uint8)


@pytest.mark.parametrize("by_column", [False, True])
def test_pickle_of_python_2(by_column: bool) -> None:
    content = python2_pickle(DATA, [8, 3], by_column)
    # numpy reads it as the same array, under the module's current name.
    same = pickle.loads(content.replace(b"numpy.core", b"numpy._core"), encoding="latin1")
    np.testing.assert_array_equal(same["data"], DATA)
    part = formats.parse(content, "cifar10-pickle", (3, 1, 1), 10)
    assert part.labels.tolist() == [8, 3]
    assert part.images[:, :, 0, 0].tolist() == [[1, 2, 3], [4, 5, 255]]


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_pickle_of_python_3(protocol: int, module: bytes) -> None:
    content = pickle.dumps({"fine_labels": [8, 3], "data": DATA}, protocol=protocol)
    if protocol == 3:  # later protocols also store the length of the name
        content = content.replace(b"numpy._core.multiarray", module)
    part = formats.parse(content, "cifar100-pickle", (3, 1, 1), 10)
    assert part.labels.tolist() == [8, 3]
    assert part.images[:, :, 0, 0].tolist() == [[1, 2, 3], [4, 5, 255]]


@given(images=byte_arrays(4), data=st.data())
@quick
def test_pickles_and_records_hold_the_same(images: Bytes, data: st.DataObject) -> None:
    labels = data.draw(hnp.arrays(np.uint8, len(images), elements=st.integers(0, 9)))
    rows, shape = images.reshape(len(images), -1), (images.shape[1], *images.shape[2:4])
    records = np.concatenate([labels[:, None], rows], axis=1).tobytes()
    pickled = python2_pickle(rows, labels.tolist())
    one = formats.parse(records, "cifar10-binary", shape, 10)
    other = formats.parse(pickled, "cifar10-pickle", shape, 10)
    np.testing.assert_array_equal(one.images, other.images)
    np.testing.assert_array_equal(one.labels, other.labels)


@given(st.data())
@quick
def test_every_truncation_of_a_pickle_is_detected(data: st.DataObject) -> None:
    content = python2_pickle(DATA, [8, 3])
    length = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ValueError, match="is not a pickle of images and labels"):
        formats.parse(content[:length], "cifar10-pickle", (3, 1, 1), 10)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([DATA], "it is not a dictionary"),
        ({"labels": [1, 2]}, "data is not an array"),
        ({"labels": [1, 2], "data": [1, 2]}, "data is not an array"),
        ({"data": DATA}, "labels is not a list of integers"),
        ({"data": DATA, "labels": (1, 2)}, "labels is not a list of integers"),
        ({"data": DATA, "labels": [1, "2"]}, "labels is not a list of integers"),
        ({"data": DATA, "labels": [1, True]}, "labels is not a list of integers"),
        ({"data": DATA, "labels": [1, 2**63]}, "labels is not a list of integers"),
        ({"data": DATA, "labels": [1]}, "has data of shape (2, 3), expected (1, 3)"),
        ({"data": DATA[:, :2], "labels": [1, 2]}, "has data of shape (2, 2), expected (2, 3)"),
        ({"data": DATA.astype(np.int16), "labels": [1, 2]}, "one of its arrays is not uint8"),
        ({"data": DATA.astype(object), "labels": [1, 2]}, "one of its arrays is not uint8"),
    ],
)
def test_pickle_of_something_else(value: object, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        formats.parse(pickle.dumps(value, protocol=4), "cifar10-pickle", (3, 1, 1), 10)
    assert problem in str(caught.value)


class Call:
    """Pickles as a function call that unpickling executes."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.function, self.args


def call_mkdir(mark: Path) -> Call:
    return Call(os.mkdir, str(mark))


def call_system(mark: Path) -> Call:
    return Call(os.system, f"mkdir '{mark}'")


def call_eval(mark: Path) -> Call:
    return Call(eval, f"__import__('os').mkdir({str(mark)!r})")


def call_numpy_load(mark: Path) -> Call:
    saved = mark.with_suffix(".npy")
    np.save(saved, np.array([call_mkdir(mark)], object), allow_pickle=True)
    return Call(np.load, str(saved), None, True)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (call_mkdir, f"{os.mkdir.__module__}.mkdir"),
        (call_system, f"{os.system.__module__}.system"),
        (call_eval, "eval"),
        (call_numpy_load, "load"),
    ],
)
def test_pickle_with_a_call_is_rejected_and_not_run(
    call: Callable[[Path], Call], name: str, protocol: int, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    content = pickle.dumps({"labels": [1], "data": call(mark)}, protocol)
    with pytest.raises(ValueError) as caught:
        formats.parse(content, "cifar10-pickle", (3, 1, 1), 10)
    assert f"{name}', which may run code" in str(caught.value)
    assert not mark.exists()
    pickle.loads(content)
    assert mark.exists()  # it would have run


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"cnumpy\nndarray\n(K\x01tR.", "imports 'numpy.ndarray'"),
        (b"cnumpy.core.multiarray\nscalar\n.", "imports 'numpy.core.multiarray.scalar'"),
        (b"cnumpy._core.multiarray\nfromfile\n.", "imports 'numpy._core.multiarray.fromfile'"),
        (
            b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__base__\x93.",
            "imports 'numpy.dtype.__base__'",
        ),
        (b"\x80\x04\x8c\x04os\nx\x8c\x04exit\x93.", r"imports 'os\nx.exit'"),
        (b"(S'true'\nios\nsystem\n.", "imports 'os.system'"),
        (b"ccopyreg\n_reconstructor\n.", "imports 'copyreg._reconstructor'"),
        (b"Psomething\n.", "persistent"),
        (b"\x80\x02\x82\x01.", "unregistered extension"),
        (b"not a pickle", "is not a pickle"),
        (b"", "is not a pickle"),
    ],
)
def test_handwritten_pickle_is_rejected_in_one_line(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        formats.parse(content, "cifar10-pickle", (3, 1, 1), 10)
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_pickle_cannot_tamper_with_a_name() -> None:
    good = python2_pickle(DATA, [8, 3])
    change = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nN}U\x0c__defaults__)s\x86b."
    with pytest.raises(ValueError, match="it is not a dictionary"):
        formats.parse(change, "cifar10-pickle", (3, 1, 1), 10)
    assert formats.parse(good, "cifar10-pickle", (3, 1, 1), 10).labels.tolist() == [8, 3]
