"""Files into arrays: IDX, the binary records of CIFAR, and the pickles that torchvision leaves.

A content that is not what it should be is a `ValueError` whose message reads on from the name
of the file, which only the caller knows.
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
    """What one file holds; an array is empty if the file has none of it.

    Args:
        images: uint8, of shape (n, channels, height, width); may be a view of the content.
        labels: Class numbers, int64.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def read(path: Path) -> bytes:
    """Returns all bytes of a file, decompressed if its name ends with ``.gz``.

    Raises:
        OSError: The file cannot be read.
        ValueError: It can be read, but not decompressed, or it is a folder.
    """
    if path.is_dir():
        raise ValueError("is a folder where a file should be")
    packed = path.read_bytes()
    if path.suffix != ".gz":
        return packed
    try:
        return gzip.decompress(packed)
    except EOFError:
        raise ValueError("is cut short (its gzip stream has no end)") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"is not a whole gzip file ({error})") from None


def verify(content: bytes, md5: str) -> None:
    """Raises `ValueError` if the content does not have this checksum.

    >>> verify(b"", "d41d8cd98f00b204e9800998ecf8427e")
    """
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise ValueError(f"is damaged (md5 {found} instead of {md5})")


def parse(content: bytes, format_: Format, shape: Shape, num_classes: int) -> Part:
    """Returns the images of this shape and the labels below `num_classes` of one file.

    >>> labels = bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([7, 0, 9])
    >>> parse(labels, "idx-labels", shape=(1, 28, 28), num_classes=10).labels.tolist()
    [7, 0, 9]
    """
    part = _PARSERS[format_](content, shape)
    stray = part.labels[(part.labels < 0) | (part.labels >= num_classes)]
    if stray.size:
        raise ValueError(f"has the label {stray[0]}, but classes are 0 to {num_classes - 1}")
    return part


def idx(content: bytes, ndim: int) -> NDArray[np.uint8]:
    """Returns the array of unsigned bytes in an IDX file of `ndim` dimensions.

    The format is a magic number (two zeros, the type, the number of dimensions), the dimensions
    as big-endian 32-bit numbers and the elements, the last dimension fastest.

    >>> idx(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 1, 5, 6]), ndim=2).tolist()
    [[5], [6]]
    """
    magic, expected, header = content[:4].hex(), f"{0x0800 + ndim:08x}", 4 + 4 * ndim
    if len(content) >= 4 and magic != expected:
        raise ValueError(f"has the magic number {magic} instead of {expected}")
    if len(content) < header:
        raise ValueError(f"is cut short ({len(content)} bytes, and its header needs {header})")
    dims = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    needed = header + math.prod(dims)
    if len(content) != needed:
        raise ValueError(
            f"has the wrong length ({len(content)} bytes, and its header promises {needed})"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(dims)


def cifar_records(content: bytes, label_bytes: int, shape: Shape) -> Part:
    """Returns the records of a CIFAR file, each some label bytes and the pixels of one image.

    Of two label bytes, the coarse class and the fine, the last counts.

    >>> part = cifar_records(bytes([3, 10, 11, 4, 20, 21]), label_bytes=1, shape=(1, 1, 2))
    >>> part.labels.tolist(), part.images[:, 0, 0].tolist()
    ([3, 4], [[10, 11], [20, 21]])
    """
    size = label_bytes + math.prod(shape)
    if not content or len(content) % size:
        raise ValueError(
            f"has the wrong length ({len(content)} bytes, and a record needs {size})"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    images = records[:, label_bytes:].reshape(-1, *shape)
    return Part(images, records[:, label_bytes - 1].astype(np.int64))


def cifar_pickle(content: bytes, label_key: str, shape: Shape) -> Part:
    """Returns the images and labels of a CIFAR pickle; nothing in it is ever run.

    Such a pickle is a dictionary in which ``data`` is an array of one row for each image, and
    `label_key` a list of class numbers.
    """
    try:
        # Python 2 wrote the files, and its strings are bytes.
        unpickled = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a pickle machine that is fed anything may raise anything
        reason = " ".join(str(error).split())  # some have two lines
        raise ValueError(f"is not a pickle of images and labels ({reason})") from None
    if not isinstance(unpickled, dict):
        raise ValueError("is not a pickle of images and labels (it holds no dictionary)")
    data, labels = unpickled.get("data"), unpickled.get(label_key)
    if not isinstance(data, _PickledArray):
        raise ValueError("is not a pickle of images and labels (data is no array)")
    if not isinstance(labels, list) or not all(map(_is_number, labels)):
        raise ValueError(
            f"is not a pickle of images and labels ({label_key} is no list of numbers)"
        )
    if data.array.shape != (len(labels), math.prod(shape)):
        raise ValueError(
            f"has {len(labels)} labels for data of shape {data.array.shape}, "
            f"and an image needs {math.prod(shape)} bytes"
        )
    return Part(data.array.reshape(-1, *shape), np.array(labels, np.int64))


def _is_number(label: object) -> bool:
    return type(label) is int and -(2**63) <= label < 2**63


class _PickledArray:
    """Takes the place of an array in a pickle, and becomes one if its elements are bytes."""

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
                raise ValueError("an array in it is not made of bytes")


class _PickledType:
    """Takes the place of an array's type in a pickle, and keeps its code."""

    def __init__(self, code: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignores byte order and the like, which bytes do not have."""


class _ArrayUnpickler(pickle.Unpickler):
    """Reads numbers, strings, containers and stand-ins for arrays, and refuses the rest.

    Not even numpy is called. What a name stands for is made anew each time, so that a pickle
    cannot change it for the next.
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
    # As a literal, because a stranger's name may hold line breaks, and an error is one line.
    raise pickle.UnpicklingError(f"it asks for {f'{module}.{name}'!r}, which may run code")


def _images_only(images: NDArray[np.uint8], shape: Shape) -> Part:
    if images.shape[1:] != shape[1:] or shape[0] != 1:
        found = " x ".join(map(str, images.shape[1:]))
        raise ValueError(f"has images of {found} pixels instead of {shape[1]} x {shape[2]}")
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
