"""Your own data: an image folder or a .npz file.

folder/<class>/<image>             folders are named after classes
folder/<class>/<group>/<image>     a group is, for instance, a patient

file.npz    x        uint8, (n, height, width) or (n, height, width, channels)
            y        integers, indices into classes
            classes  class names
            group    integers, optional: group id of each example
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddm.core import files
from feddm.core.examples import Examples, Normalization
from feddm.data.catalog import DatasetInfo
from feddm.errors import DataError, MissingExtraError

Array = np.ndarray[Any, Any]

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def read_own(path: Path, info: DatasetInfo) -> Examples:
    """Returns the examples in a folder or file, or raises a `DataError` that says why not.

    Args:
        path: An image folder or a .npz file.
        info: What the federation agreed on: class names and image size.
    """
    with files.explained(DataError, path):
        if not path.exists():
            raise DataError(f"{path} does not exist")
        if path.is_dir():
            x, y, group = _folder(path, info)
        elif path.suffix == ".npz":
            x, y, group = _npz(path, info)
        else:
            raise DataError(f"{path} is neither a folder nor a .npz file")
    return Examples(
        torch.from_numpy(x),
        torch.from_numpy(y),
        Normalization(info.mean, info.std),
        group=None if group is None else torch.from_numpy(group),
    )


def _folder(path: Path, info: DatasetInfo) -> tuple[Array, Array, Array | None]:
    folders = sorted(entry for entry in _shown(path.iterdir()) if entry.is_dir())
    _check_classes([folder.name for folder in folders], info, path)
    images: list[Array] = []
    labels: list[int] = []
    groups: list[str] = []
    for folder in folders:
        for image in _images(folder):
            images.append(_image(image, info))
            labels.append(info.classes.index(folder.name))
            groups.append(image.parent.name if image.parent != folder else "")
    if not images:
        raise DataError(
            f"{path} has no images; put them in <class>/<image>, in one of these formats: "
            f"{', '.join(SUFFIXES)}"
        )
    if all(groups):
        group = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    elif any(groups):
        raise DataError(
            f"{path} has only some images in group folders; use them for all or none"
        )
    else:
        group = None
    return np.stack(images), np.array(labels, np.int64), group


def _images(folder: Path) -> Iterator[Path]:
    for path in sorted(_shown(folder.glob("*"))) + sorted(_shown(folder.glob("*/*"))):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            yield path


def _shown(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the paths that are not hidden; systems and notebooks leave hidden files behind."""
    return (path for path in paths if not path.name.startswith("."))


def _image(path: Path, info: DatasetInfo) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError(
            "image folders need Pillow: pip install 'feddm[flower]'"
        ) from None
    channels, height, width = info.shape
    try:
        with Image.open(path) as image:
            # Converting grayscale to color is lossless; color to grayscale is not.
            if image.mode[0] in "IF":
                raise DataError(f"{path} has more than 8 bits per channel; convert it to 8")
            if channels == 1 and image.mode not in ("1", "L"):
                raise DataError(
                    f"{path} is not grayscale (mode {image.mode}), but {info.name} is"
                )
            if image.size != (width, height):
                raise DataError(
                    f"{path} has {image.size[0]} x {image.size[1]} pixels, but {info.name} has "
                    f"{width} x {height}"
                )
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    except DataError:
        raise
    except Exception as error:  # every format raises its own errors
        raise DataError(f"{path} cannot be read: {error}") from None
    first: Array = _channels_first(pixels[None], info, path)[0]
    return first


def _npz(path: Path, info: DatasetInfo) -> tuple[Array, Array, Array | None]:
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not a .npz file, or is truncated")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            parts = {name: file[name] for name in file.files}
    except Exception as error:  # zip, zlib and numpy raise their own errors
        raise DataError(f"{path} cannot be read: {error}") from None
    missing = {"x", "y", "classes"} - set(parts)
    if missing:
        raise DataError(f"{path} is missing {', '.join(sorted(missing))}")
    x, y, classes = parts["x"], parts["y"], parts["classes"]
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise DataError(
            f"{path}: x must be uint8 of shape (n, height, width) or "
            f"(n, height, width, channels), got {x.dtype} of shape {x.shape}"
        )
    if not len(x):
        raise DataError(f"{path} has no images")
    if classes.dtype.kind != "U":
        raise DataError(f"{path}: classes must be strings, got {classes.dtype}")
    names: list[str] = classes.flatten().tolist()
    _check_integers("y", y, len(x), path)
    if y.min() < 0 or y.max() >= len(names):
        raise DataError(
            f"{path}: y must be from 0 to {len(names) - 1}, got {y.min()} to {y.max()}"
        )
    group = parts.get("group")
    if group is not None:
        _check_integers("group", group, len(x), path)
    _check_classes(names, info, path)
    # The file may order its classes in any way; the federation matches them by name.
    numbers = np.array([info.classes.index(name) for name in names], np.int64)
    return (
        _channels_first(x, info, path),
        numbers[y],
        None if group is None else group.astype(np.int64),
    )


def _check_integers(name: str, array: Array, num_images: int, path: Path) -> None:
    if array.shape != (num_images,) or not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{path}: {name} must be one integer for each of the {num_images} images, "
            f"got {array.dtype} of shape {array.shape}"
        )


def _check_classes(names: list[str], info: DatasetInfo, path: Path) -> None:
    unknown = sorted(set(names) - set(info.classes))
    if unknown:
        raise DataError(
            f"{path} has an unknown class {unknown[0]!r}; the classes of {info.name} are "
            f"{', '.join(info.classes)}"
        )
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path} lists the class {name!r} more than once")


def _channels_first(x: Array, info: DatasetInfo, path: Path) -> Array:
    images = x[..., None] if x.ndim == 3 else x
    channels, height, width = info.shape
    if images.shape[1:] != (height, width, channels):
        found = " x ".join(map(str, images.shape[1:]))
        raise DataError(
            f"{path} has images of {found} (height x width x channels), but {info.name} has "
            f"{height} x {width} x {channels}"
        )
    return np.ascontiguousarray(np.moveaxis(images, 3, 1))
