"""Data of somebody's own, for tests: folders of images, of different sizes and kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cross", "ring")
CLIENTS = ("berlin", "oslo", "rome")
SIZES = ((8, 8), (12, 9), (7, 16))


def picture(label: int, number: int) -> Image.Image:
    """Returns a drawing of a class that a small model can tell from the other."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 60, (12, 12)).astype(np.uint8)
    if label:
        pixels[2:10, 2:10] = 230
        pixels[4:8, 4:8] = 30
    else:
        pixels[5:7] = 230
        pixels[:, 5:7] = 230
    image = Image.fromarray(pixels).resize(SIZES[number % len(SIZES)])
    return image.convert("RGB") if number % 4 == 0 else image


def class_folders(folder: Path, number: int, *, first: int = 0, groups: int = 0) -> None:
    """Draws so many images of each class, perhaps in folders of so many groups."""
    for label, name in enumerate(CLASSES):
        for at in range(first, first + number):
            below = f"patient{(at + label) % groups}" if groups else ""
            path = folder / name / below / f"{at}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(label, at).save(path)


def three_clients(folder: Path, number: int = 12, groups: int = 0) -> Path:
    """Draws a folder with three clients and one broken file, and returns that file."""
    for at, client in enumerate(CLIENTS):
        there = folder / "clients" / client
        class_folders(there, number, first=100 * at, groups=groups)
        if groups:  # each client has patients of its own
            for place in sorted(there.glob("*/patient*")):
                place.rename(place.with_name(f"{client}-{place.name}"))
    broken = next(iter(sorted((folder / "clients" / "oslo").rglob("*.png")))).with_name("x.png")
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    return broken
