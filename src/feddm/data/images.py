"""Image folders: which images there are, and how one of any size and mode is read.

    CLASS/IMAGE                      folders are named after classes
    CLASS/GROUP/IMAGE                a group is, for instance, a patient
    train/..., test/...              one of these trees for each part
    clients/NAME/..., test/...       one of these trees for each client

Nothing here trusts a file: its format and its number of pixels are looked at before any pixel
is decoded.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from feddm.errors import DataError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Fit = Literal["stretch", "crop", "pad"]

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 50_000_000  # of one image; a few bytes of a file can claim any number
SIDE = 32  # of images, unless all have the same size already
LARGEST_SIDE = 64  # of images that stay as they are
_TREES = ({"train"}, {"train", "test"}, {"clients"}, {"clients", "test"})


@dataclass(frozen=True)
class Broken:
    """A file that cannot be read, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Found:
    """An image file and what its place says about it.

    Args:
        path: The file.
        label: Name of its class.
        group: Name of its group; empty if it has none.
        client: Name of the client that has it; empty if nobody says.
        test: Whether it is for testing.
        size: Width and height.
        mode: Pillow's name for the kind of its pixels.
    """

    path: Path
    label: str
    group: str
    client: str
    test: bool
    size: tuple[int, int]
    mode: str


@dataclass(frozen=True)
class Folder:
    """The images in a folder, and the files that are none."""

    images: tuple[Found, ...]
    broken: tuple[Broken, ...]
    classes: tuple[str, ...]
    clients: tuple[str, ...]

    @property
    def gray(self) -> bool:
        """Whether no image has colors."""
        return all(is_gray(image.mode) for image in self.images)

    @property
    def sizes(self) -> Counter[tuple[int, int]]:
        """How many images have each size."""
        return Counter(image.size for image in self.images)


def scan(path: Path) -> Folder:
    """Returns what is in an image folder, by the headers of its files."""
    images: list[Found] = []
    broken: list[Broken] = []
    classes: set[str] = set()
    clients: list[str] = []
    for tree, client, test in _trees(path):
        if client and client not in clients:
            clients.append(client)
        for folder in _folders(tree):
            classes.add(folder.name)
            for file in _files(folder):
                group = file.parent.name if file.parent != folder else ""
                try:
                    size, mode = _header(file)
                except Exception as error:  # every format raises its own errors
                    broken.append(Broken(file, _reason(error)))
                    continue
                images.append(Found(file, folder.name, group, client, test, size, mode))
    if not images and not broken:
        raise DataError(
            f"{path} has no images; put them in <class>/<image>, in one of these formats: "
            f"{', '.join(SUFFIXES)}"
        )
    if any(image.group for image in images) and not all(image.group for image in images):
        raise DataError(
            f"{path} has only some images in group folders; use them for all or none"
        )
    return Folder(tuple(images), tuple(broken), tuple(sorted(classes)), tuple(clients))


def read(
    images: Sequence[Found], shape: tuple[int, int, int], fit: Fit, white: int
) -> tuple[Pixels, list[int], list[Broken]]:
    """Returns the pixels of the images that can be read, which these are, and the others.

    Args:
        images: The files.
        shape: Channels, height and width that all get.
        fit: How an image of another size is made to fit.
        white: Largest value of 16-bit images.
    """
    pixels = np.empty((len(images), *shape), np.uint8)
    kept: list[int] = []
    broken: list[Broken] = []
    for number, image in enumerate(images):
        try:
            pixels[len(kept)] = _pixels(image.path, shape, fit, white)
        except Exception as error:
            broken.append(Broken(image.path, _reason(error)))
        else:
            kept.append(number)
    return pixels[: len(kept)], kept, broken


def fitted(image: Image.Image, shape: tuple[int, int, int], fit: Fit, white: int) -> Pixels:
    """Returns an image as uint8 pixels of a shape: channels, height and width."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise DataError(f"images have 1 or 3 channels, but data.own.shape asks for {channels}")
    picture = _eight_bits(ImageOps.exif_transpose(image), white)
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height):
        smooth = Image.Resampling.BILINEAR
        if fit == "crop":
            picture = ImageOps.fit(picture, (width, height), smooth)
        elif fit == "pad":
            picture = ImageOps.pad(picture, (width, height), smooth)
        else:
            picture = picture.resize((width, height), smooth)
    pixels = np.asarray(picture).reshape(height, width, channels)
    return np.ascontiguousarray(np.moveaxis(pixels, 2, 0))


def _trees(path: Path) -> Iterator[tuple[Path, str, bool]]:
    """Yields the trees of class folders, with their client and whether they are for testing."""
    names = {folder.name for folder in _folders(path)}
    if names not in _TREES:
        yield path, "", False
        return
    if "train" in names:
        yield path / "train", "", False
    for folder in _folders(path / "clients") if "clients" in names else ():
        for tree, client, test in _trees(folder):
            if client:
                raise DataError(f"{folder} has clients of its own")
            yield tree, folder.name, test
    if "test" in names:
        yield path / "test", "", True


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in _shown(path.iterdir()) if entry.is_dir())


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(_shown(folder.glob("*"))) + sorted(_shown(folder.glob("*/*"))):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            yield path


def _shown(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the paths that are not hidden; systems and notebooks leave hidden files behind."""
    return (path for path in paths if not path.name.startswith("."))


def _open(path: Path) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(path, formats=FORMATS)
    width, height = image.size
    if width * height > MOST_PIXELS:
        image.close()
        raise ValueError(
            f"it claims {width} x {height} pixels, more than {MOST_PIXELS:,} are not read"
        )
    return image


def _header(path: Path) -> tuple[tuple[int, int], str]:
    with _open(path) as image:
        size = image.size
        if image.getexif().get(0x0112, 1) >= 5:  # turned by a quarter
            size = (size[1], size[0])
        return size, image.mode


def _pixels(path: Path, shape: tuple[int, int, int], fit: Fit, white: int) -> Pixels:
    with _open(path) as image:
        image.load()
        return fitted(image, shape, fit, white)


def _eight_bits(image: Image.Image, white: int) -> Image.Image:
    """Returns the image with 8 bits per channel, and nothing transparent."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; put them into a .npz file")
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.float64) * (255 / white)
        return Image.fromarray(levels.round().clip(0, 255).astype(np.uint8))
    if "A" in image.mode or "transparency" in image.info:
        # What is transparent may have any color, so it gets one: black.
        layer = image.convert("RGBA")
        below = Image.new("RGBA", layer.size, (0, 0, 0, 255))
        return Image.alpha_composite(below, layer).convert("RGB")
    return image


def natural_shape(sizes: Collection[tuple[int, int]], gray: bool) -> tuple[int, int, int]:
    """Returns the shape of images: their own if all have the same and it is small.

    >>> natural_shape([(28, 28)], gray=True), natural_shape([(28, 28), (640, 480)], gray=False)
    ((1, 28, 28), (3, 32, 32))
    """
    width, height = next(iter(sizes)) if len(sizes) == 1 else (SIDE, SIDE)
    if max(width, height) > LARGEST_SIDE:
        width, height = SIDE, SIDE
    return 1 if gray else 3, height, width


def is_gray(mode: str) -> bool:
    """Whether Pillow's name for a kind of pixels is of one without colors."""
    return mode in ("1", "L", "LA", "F") or mode.startswith("I")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is no image"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
