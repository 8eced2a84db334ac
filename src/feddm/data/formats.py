"""Parsers for data files: IDX, CIFAR's binary records, and the pickles torchvision downloads.

Invalid content raises a `ValueError`. Its message continues a sentence that starts with the
file name, which only the caller knows.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from feddm.data.catalog import Format

Shape = tuple[int, int, int]


class Part(NamedTuple):
    """The images and labels of one file; an array is empty if the file has none.

    Args:
        images: uint8, of shape (n, channels, height, width). May be a view of the content.
        labels: Class indices, int64.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def read(path: Path) -> bytes:
    """Returns the content of a file, decompressed if its name ends in ``.gz``.

    Raises:
        OSError: The file cannot be read.
        ValueError: The path is a folder, or the content cannot be decompressed.
    """
    if path.is_dir():
        raise ValueError("is a folder, not a file")
    packed = path.read_bytes()
    if path.suffix != ".gz":
        return packed
    try:
        return gzip.decompress(packed)
    except EOFError:
        raise ValueError("is truncated (incomplete gzip stream)") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"is not a valid gzip file ({error})") from None


def verify(content: bytes, md5: str) -> None:
    """Raises `ValueError` if the MD5 checksum of the content differs.

    >>> verify(b"", "d41d8cd98f00b204e9800998ecf8427e")
    """
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise ValueError(f"is damaged (md5 {found}, expected {md5})")


def parse(content: bytes, format_: Format, shape: Shape, num_classes: int) -> Part:
    """Returns the images and labels of one file, checked against the other arguments.

    >>> labels = bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([7, 0, 9])
    >>> parse(labels, "idx-labels", shape=(1, 28, 28), num_classes=10).labels.tolist()
    [7, 0, 9]
    """
    part = _PARSERS[format_](content, shape)
    stray = part.labels[(part.labels < 0) | (part.labels >= num_classes)]
    if stray.size:
        raise ValueError(f"has label {stray[0]}, but the classes are 0 to {num_classes - 1}")
    return part


def idx(content: bytes, ndim: int) -> NDArray[np.uint8]:
    """Returns the uint8 array of an IDX file with `ndim` dimensions.

    The format is a magic number (two zeros, the type, the number of dimensions), the sizes as
    big-endian 32-bit integers, then the elements in row-major order.

    >>> idx(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 1, 5, 6]), ndim=2).tolist()
    [[5], [6]]
    """
    magic, expected, header = content[:4].hex(), f"{0x0800 + ndim:08x}", 4 + 4 * ndim
    if len(content) >= 4 and magic != expected:
        raise ValueError(f"has magic number {magic}, expected {expected}")
    if len(content) < header:
        raise ValueError(f"is truncated ({len(content)} bytes, but its header needs {header})")
    dims = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    needed = header + math.prod(dims)
    if len(content) != needed:
        raise ValueError(
            f"has the wrong length ({len(content)} bytes, but its header says {needed})"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(dims)


def cifar_records(content: bytes, label_bytes: int, shape: Shape) -> Part:
    """Returns the images and labels of a CIFAR binary file.

    Each record is `label_bytes` labels followed by the pixels of one image. CIFAR100 has two
    labels, the coarse class and the fine class; the last one is used.

    >>> part = cifar_records(bytes([3, 10, 11, 4, 20, 21]), label_bytes=1, shape=(1, 1, 2))
    >>> part.labels.tolist(), part.images[:, 0, 0].tolist()
    ([3, 4], [[10, 11], [20, 21]])
    """
    size = label_bytes + math.prod(shape)
    if not content or len(content) % size:
        raise ValueError(f"has the wrong length ({len(content)} bytes; each record has {size})")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    images = records[:, label_bytes:].reshape(-1, *shape)
    return Part(images, records[:, label_bytes - 1].astype(np.int64))


def cifar_pickle(content: bytes, label_key: str, shape: Shape) -> Part:
    """Returns the images and labels of a CIFAR pickle, without running any code in it.

    The pickle is a dictionary: ``data`` is an array with one row per image, and `label_key` is
    a list of class indices.
    """
    try:
        # Python 2 wrote these files, and its strings are bytes.
        unpickled = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # unpickling arbitrary bytes may raise anything
        reason = " ".join(str(error).split())  # some messages have two lines
        raise ValueError(f"is not a pickle of images and labels ({reason})") from None
    if not isinstance(unpickled, dict):
        raise ValueError("is not a pickle of images and labels (it is not a dictionary)")
    data, labels = unpickled.get("data"), unpickled.get(label_key)
    if not isinstance(data, _PickledArray):
        raise ValueError("is not a pickle of images and labels (data is not an array)")
    if not isinstance(labels, list) or not all(map(_is_int64, labels)):
        raise ValueError(
            f"is not a pickle of images and labels ({label_key} is not a list of integers)"
        )
    expected = (len(labels), math.prod(shape))
    if data.array.shape != expected:
        raise ValueError(f"has data of shape {data.array.shape}, expected {expected}")
    return Part(data.array.reshape(-1, *shape), np.array(labels, np.int64))


def _is_int64(label: object) -> bool:
    return type(label) is int and -(2**63) <= label < 2**63


class _PickledArray:
    """Stands in for an array in a pickle, and holds it if its elements are uint8."""

    array: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: object) -> None:
        match state:
            case (
                1,
                tuple() as shape,
                _PickledType(code="u1"),
                by_column,
                str() | bytes() as raw,
            ):
                elements = raw.encode("latin1") if isinstance(raw, str) else raw
                order: Literal["F", "C"] = "F" if by_column else "C"
                self.array = np.frombuffer(elements, np.uint8).reshape(shape, order=order)
            case _:
                raise ValueError("one of its arrays is not uint8")


class _PickledType:
    """Stands in for an array's dtype in a pickle, and keeps its type code."""

    def __init__(self, code: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignores the rest, such as byte order, which does not matter for bytes."""


class _ArrayUnpickler(pickle.Unpickler):
    """Reads numbers, strings, containers and arrays, and rejects everything else.

    Not even numpy is called: arrays are read into stand-ins. Every lookup of a name returns a
    new function, so a pickle cannot tamper with it for the next one.
    """

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        match module, name:
            case "numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct":
                return lambda kind, shape, code: _PickledArray()
            case "numpy", "dtype":
                return lambda code, align, copy: _PickledType(code)
            case "numpy", "ndarray":
                return lambda *_: _refuse(module, name)
        _refuse(module, name)


def _refuse(module: str, name: str) -> NoReturn:
    # Quoted by repr, because the name may contain line breaks and an error is one line.
    raise pickle.UnpicklingError(f"it imports {f'{module}.{name}'!r}, which may run code")


def _images_only(images: NDArray[np.uint8], shape: Shape) -> Part:
    if images.shape[1:] != shape[1:] or shape[0] != 1:
        found = " x ".join(map(str, images.shape[1:]))
        raise ValueError(f"has images of {found} pixels, expected {shape[1]} x {shape[2]}")
    return Part(images.reshape(-1, *shape), np.empty(0, np.int64))


def _labels_only(labels: NDArray[np.uint8], shape: Shape) -> Part:
    return Part(np.empty((0, *shape), np.uint8), labels.astype(np.int64))


_PARSERS: dict[Format, Callable[[bytes, Shape], Part]] = {
    "idx-images": lambda content, shape: _images_only(idx(content, ndim=3), shape),
    "idx-labels": lambda content, shape: _labels_only(idx(content, ndim=1), shape),
    "cifar10-binary": lambda content, shape: cifar_records(content, 1, shape),
    "cifar100-binary": lambda content, shape: cifar_records(content, 2, shape),
    "cifar10-pickle": lambda content, shape: cifar_pickle(content, "labels", shape),
    "cifar100-pickle": lambda content, shape: cifar_pickle(content, "fine_labels", shape),
}
