"""Images as WebP sheets: one sheet per class, which a standard image codec makes small.

A sheet is a grid of cells, as square as may be. A cell is an image with sides padded to the
next multiple of the codec's 16x16 blocks, so that no block shows two images.

What arrives may come from anybody. A sheet's header is read here, byte by byte, and must name
the format, the size and nothing else that was agreed on, before the decoder sees it: a decoder
allocates what a header asks for.
"""

from __future__ import annotations

import io
import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from feddm.errors import ConfigError, UploadError

Levels = npt.NDArray[np.uint8]  # (n, channels, height, width)
Shape = tuple[int, int, int]

BLOCK = 16
LARGEST_SIDE = 16_383  # of a WebP image
HEADER = 30  # bytes before the first partition of a lossy WebP file


def check_sheets(shape: Shape, most: int) -> None:
    """Raises `ConfigError` if sheets of up to `most` images of this shape do not exist."""
    channels = shape[0]
    if channels not in (1, 3):
        raise ConfigError(f"coding webp takes images with 1 or 3 channels, got {channels}")
    if max(_sheet_size(most, shape)) > LARGEST_SIDE:
        raise ConfigError(
            f"coding webp takes sheets of up to {LARGEST_SIDE} pixels a side, got "
            f"{most} images of {shape[1]}x{shape[2]} per class; use uint8"
        )


def encode_sheet(images: Levels, quality: int) -> bytes:
    """Returns the images as one lossy WebP file."""
    number, channels, height, width = images.shape
    rows, columns = _grid(number)
    cell_height, cell_width = _cell(height), _cell(width)
    # Whatever fills the rest costs bits, and copies cost the least.
    filled = np.concatenate([images, np.repeat(images[-1:], rows * columns - number, 0)])
    right, below = cell_width - width, cell_height - height
    cells = np.pad(filled, ((0, 0), (0, 0), (0, below), (0, right)), mode="edge")
    grid = cells.reshape(rows, columns, channels, cell_height, cell_width)
    sheet = grid.transpose(0, 3, 1, 4, 2).reshape(rows * cell_height, -1, channels)
    file = io.BytesIO()
    # With one channel all three are the same, and their chroma takes almost nothing.
    picture = Image.fromarray(
        np.ascontiguousarray(np.broadcast_to(sheet, (*sheet.shape[:2], 3)))
    )
    picture.save(file, "WEBP", quality=quality, method=6)
    return file.getvalue()


def decode_sheet(data: bytes, number: int, shape: Shape) -> Levels:
    """Returns the images of a sheet, or raises `UploadError` if it is not one of such images.

    Args:
        data: A WebP file from outside.
        number: Number of images that it must have.
        shape: Channels, height and width of an image.
    """
    channels, height, width = shape
    size = _sheet_size(number, shape)
    _check_header(data, size)
    try:
        with Image.open(io.BytesIO(data), formats=["WEBP"]) as picture:
            sheet = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise UploadError(f"a WebP sheet cannot be decoded: {error}") from None
    if sheet.shape[:2] != size:
        raise UploadError(f"a sheet of {number} images is {size}, got {sheet.shape[:2]}")
    rows, columns = _grid(number)
    grid = sheet.reshape(rows, _cell(height), columns, _cell(width), 3)
    cells = grid.transpose(0, 2, 4, 1, 3).reshape(
        rows * columns, 3, _cell(height), _cell(width)
    )
    # Green has the largest part of the luma, and is as good as any where all are the same.
    chosen = cells[:, 1:2] if channels == 1 else cells
    return np.ascontiguousarray(chosen[:number, :, :height, :width])


def _check_header(data: bytes, size: tuple[int, int]) -> None:
    """Raises `UploadError` unless this is a lossy WebP file, and nothing else, of a size."""
    if len(data) < HEADER or data[:4] != b"RIFF" or data[8:16] != b"WEBPVP8 ":
        raise UploadError("a sheet is a lossy WebP file, without animation or other chunks")
    riff, chunk = (int.from_bytes(data[at : at + 4], "little") for at in (4, 16))
    if riff != len(data) - 8 or chunk + chunk % 2 != len(data) - 20:
        raise UploadError("the length of a WebP sheet is not what its header says")
    # A key frame, its start code, and the two sides with 14 bits each.
    key_frame = not data[20] & 1 and data[23:26] == b"\x9d\x01\x2a"
    width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    if not key_frame or (height, width) != size:
        raise UploadError(
            f"a WebP sheet must have {size[1]}x{size[0]} pixels, got {width}x{height}"
        )


def _grid(number: int) -> tuple[int, int]:
    """Returns rows and columns: as square as may be.

    >>> [_grid(n) for n in (1, 2, 3, 10)]
    [(1, 1), (1, 2), (2, 2), (3, 4)]
    """
    columns = math.isqrt(number - 1) + 1 if number else 1
    return max(1, math.ceil(number / columns)), columns


def _cell(side: int) -> int:
    return math.ceil(side / BLOCK) * BLOCK


def _sheet_size(number: int, shape: Shape) -> tuple[int, int]:
    """Returns height and width of a sheet."""
    rows, columns = _grid(number)
    return rows * _cell(shape[1]), columns * _cell(shape[2])
