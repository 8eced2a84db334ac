"""Looks at your own data before anything is trained: counts, sizes, broken files, a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from feddm.config.schema import OwnDataConfig
from feddm.data import hub, images
from feddm.data.own import Array, OwnData
from feddm.data.sources import read_source, source_facts

PER_CLASS = 12  # images of a contact sheet
TILE, GAP = 64, 2  # pixels


@dataclass(frozen=True)
class Check:
    """What was found.

    Args:
        data: The examples, as a run would take them.
        counts: How many there are by class, client, size and so on.
    """

    data: OwnData
    counts: Mapping[str, Mapping[str, int]]


def check_own(path: str) -> Check:
    """Reads all data at a path, as a run would."""
    known = source_facts(path)["data"]["own"]
    data = read_source(path, OwnDataConfig.model_validate(known))
    counts: dict[str, Mapping[str, int]] = {"class": _by_name(data.y, data.classes)}
    if data.test is not None:
        counts["part"] = {"train": int((~data.test).sum()), "test": int(data.test.sum())}
    if data.client is not None:
        mine = np.ones(len(data), bool) if data.test is None else ~data.test
        counts["client"] = _by_name(data.client[mine], data.clients)
    if data.group is not None:
        sizes = np.bincount(data.group)
        counts["group"] = {"groups": len(sizes), "examples in the largest": int(sizes.max())}
    place = Path(path)
    if not path.startswith(hub.PREFIX) and place.is_dir() and not hub.is_saved(place):
        folder = images.scan(place)
        sizes_found = folder.sizes.most_common()
        counts["size"] = {f"{width} x {height}": n for (width, height), n in sizes_found}
        counts["mode"] = dict(Counter(image.mode for image in folder.images).most_common())
    return Check(data, counts)


def contact_sheet(data: OwnData) -> Image.Image | None:
    """Returns some images of each class in a row, as a run would take them.

    ``None`` for what cannot be shown: vectors, and images with another number of channels.
    """
    channels, height, width = data.shape
    if (height, width) == (1, 1) or channels not in (1, 3):
        return None
    scale = max(1, TILE // max(height, width))  # whole, so that pixels stay squares
    tile = (width * scale, height * scale)
    across, down = tile[0] + GAP, tile[1] + GAP
    sheet = Image.new("RGB", (PER_CLASS * across, len(data.classes) * down), "white")
    for label in range(len(data.classes)):
        here = np.flatnonzero(data.y == label)
        spread = here[np.linspace(0, len(here) - 1, min(PER_CLASS, len(here))).astype(int)]
        for column, number in enumerate(spread):
            pixels = data.x[number]
            if not data.pixels:
                low, high = pixels.min(), max(pixels.max(), pixels.min() + 1e-6)
                pixels = ((pixels - low) / (high - low) * 255).astype(np.uint8)
            colors = np.broadcast_to(np.moveaxis(pixels, 0, 2), (height, width, 3))
            picture = Image.fromarray(np.ascontiguousarray(colors)).resize(tile, 0)
            sheet.paste(picture, (column * across, label * down))
    return sheet


def _by_name(numbers: Array, names: tuple[str, ...]) -> dict[str, int]:
    counts = np.bincount(numbers, minlength=len(names))
    return {name: int(count) for name, count in zip(names, counts, strict=True)}
