"""Sheets of synthetic images, their real neighbours, and the partition.

A sheet is one PNG of equal tiles: a page can embed a thousand images at the cost of one.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from feddm.analysis.leakage import nearest
from feddm.config.schema import Config
from feddm.core.examples import Examples
from feddm.data.datasets import Dataset, fingerprint
from feddm.data.partition import Shards
from feddm.errors import DataError
from feddm.runtime.build import build_dataset, build_shards
from feddm.runtime.session import ON_NODES
from feddm.runtime.synthetic_file import SyntheticSet

Pixels = npt.NDArray[np.uint8]

TILES_IN_A_ROW = 32


@dataclass(frozen=True)
class Sheet:
    """Images of one run, sorted by client and class.

    Args:
        method: Name of the method.
        seed: Seed of the run.
        round: Round that the images are from.
        classes: Names of the classes.
        clients: Client of each image.
        labels: Class of each image.
        total: Number of images of the run, shown or not.
        shape: Height and width of a tile.
        png: The tiles, `TILES_IN_A_ROW` per row.
        neighbours: The nearest real image of the same client and class for each tile, or None.
        by_server: Whether the server made the images, for all clients together.
        warning: What is said above the images, if anything.
    """

    method: str
    seed: int
    round: int
    classes: tuple[str, ...]
    clients: tuple[int, ...]
    labels: tuple[int, ...]
    total: int
    shape: tuple[int, int]
    png: bytes
    neighbours: bytes | None = None
    by_server: bool = False
    warning: str = ""


@dataclass(frozen=True)
class Partition:
    """Number of examples per client (rows) and class (columns).

    Args:
        classes: Names of the classes.
        table: The numbers.
        about: Method and seed that the partition belongs to.
    """

    classes: tuple[str, ...]
    table: npt.NDArray[np.int64]
    about: str

    @classmethod
    def read(cls, folder: Path, about: str) -> Partition:
        """Returns the partition that the run in this directory wrote when it started."""
        try:
            content = json.loads((folder / "partition.json").read_text(encoding="utf-8"))
            return cls(tuple(content["classes"]), np.array(content["table"]), about)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder.name} has no readable partition.json") from error


@dataclass(frozen=True)
class Split:
    """The data of a run and its shards, rebuilt from its configuration."""

    dataset: Dataset
    shards: Shards

    @classmethod
    def of(cls, config: Config, known: str | None) -> Split:
        """Returns the data and shards, or raises a `DataError` if the data have changed.

        Args:
            config: Configuration of the run.
            known: Fingerprint of its data, if it has one.
        """
        if known == ON_NODES:
            raise DataError("only the nodes have the data")
        dataset = build_dataset(config.data)
        shards = build_shards(config.partition, dataset, config.seed)
        if known is not None and known != fingerprint(dataset, shards):
            raise DataError(f"the data set {config.data.name} has changed since the run")
        return cls(dataset, shards)


def sheet(
    method: str,
    seed: int,
    round_: int,
    images: SyntheticSet,
    room: int,
    split: Split | None = None,
) -> Sheet:
    """Returns a sheet with as many images per client and class as fit.

    Args:
        method: Name of the method.
        seed: Seed of the run.
        round_: Round that the images are from.
        images: All images of the run.
        room: Limit on the size of the pixels, in bytes.
        split: Data of the run, to show real neighbours.
    """
    pixels = images.pixels()
    if not len(images) or pixels.shape[1] not in (1, 3):
        raise DataError(
            f"cannot show images of shape {tuple(pixels.shape)}; they need 1 or 3 channels"
        )
    clients, labels = images.clients.numpy(), images.examples.y.numpy()
    order = np.lexsort((labels, clients))
    kept = order[fitting(clients[order], labels[order], room // pixels[0].numel())]
    near = None
    if split is not None:
        near = png(tiled(neighbours(images, kept, split).numpy()))
    return Sheet(
        method=method,
        seed=seed,
        round=round_,
        classes=images.classes,
        clients=tuple(clients[kept].tolist()),
        labels=tuple(labels[kept].tolist()),
        total=len(images),
        shape=(pixels.shape[2], pixels.shape[3]),
        png=png(tiled(pixels[torch.from_numpy(kept)].numpy())),
        neighbours=near,
    )


def fitting(
    clients: npt.NDArray[np.integer], labels: npt.NDArray[np.integer], most: int
) -> npt.NDArray[np.int64]:
    """Returns which images to show: the same number per client and class, as far as possible.

    If not even one of each fits, the first clients show one image per class.

    Args:
        clients: Client of each image, ascending.
        labels: Class of each image, ascending within a client.
        most: Largest number of images; at least one is shown.

    >>> fitting(np.array([0, 0, 0, 1]), np.array([5, 5, 7, 5]), 3)
    array([0, 2, 3])
    """
    first = np.flatnonzero(np.diff(clients, prepend=-1) | np.diff(labels, prepend=-1))
    sizes = np.diff(first, append=len(clients))
    rank = np.arange(len(clients)) - np.repeat(first, sizes)
    each = 1
    while each < sizes.max() and (rank < each + 1).sum() <= most:
        each += 1
    kept = np.flatnonzero(rank < each)
    if len(kept) > most:
        ends = np.flatnonzero(np.diff(clients[kept], append=-1)) + 1  # where a client ends
        kept = kept[: max([end for end in ends if end <= most], default=max(most, 1))]
    return kept


def neighbours(
    images: SyntheticSet, chosen: npt.NDArray[np.int64], split: Split
) -> torch.Tensor:
    """Returns the nearest real image of the same client and class for each chosen image.

    If the client has no such image, the tile is black.
    """
    train, index = split.dataset.train, torch.from_numpy(chosen)
    near = torch.zeros(len(chosen), *train.x.shape[1:], dtype=torch.uint8)
    shown, clients = images.examples.subset(index), images.clients[index]
    for client in clients.unique().tolist():
        here = (clients == client).nonzero().flatten()
        shard = torch.from_numpy(split.shards[client])
        real = Examples(train.x[shard], train.y[shard], images.normalization)
        found = nearest(shown.subset(here), real).index
        known = found >= 0
        near[here[known]] = real.x[found[known]]
    return near


def tiled(images: Pixels) -> Pixels:
    """Tiles images (n, channels, height, width) into one image (height, width, channels).

    >>> tiled(np.ones((2, 1, 4, 3), dtype=np.uint8)).shape
    (4, 6, 1)
    """
    num, channels, height, width = images.shape
    columns = min(num, TILES_IN_A_ROW)
    rows = -(-num // columns)
    whole = np.zeros((rows * columns, channels, height, width), dtype=np.uint8)
    whole[:num] = images
    grid = whole.reshape(rows, columns, channels, height, width)
    return grid.transpose(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)


def png(image: Pixels) -> bytes:
    """Returns an image of shape (height, width, 1 or 3) as a PNG."""
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    lines = np.zeros((height, 1 + width * channels), dtype=np.uint8)  # filter 0: none
    lines[:, 1:] = image.reshape(height, -1)
    chunks: Sequence[tuple[bytes, bytes]] = (
        (b"IHDR", header),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
