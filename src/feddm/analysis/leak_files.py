"""The leakage of a run: measured from its files, drawn as ``leak.png``, kept as ``leak.json``.

``leak.png`` shows training images. A run with a guarantee gets neither file: people share run
directories, and the figures are made from the real images without any noise.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from feddm.analysis.leakage import Leakage, measured, verdict
from feddm.analysis.report.pictures import Split
from feddm.analysis.report.runs import Run, read_run
from feddm.config.code import label
from feddm.core import files
from feddm.core.examples import Examples
from feddm.data.datasets import Dataset
from feddm.data.sources import absolute
from feddm.errors import ConfigError, RunDirectoryError
from feddm.runtime.synthetic_file import SyntheticSet, load_synthetic
from feddm.runtime.wording import summary

FIGURES, PICTURE, IMAGES = "leak.json", "leak.png", "synthetic.safetensors"
PAIRS = 24  # drawn, at most
PAIRS_IN_A_ROW = 4
COLUMNS = ("synthetic", "training", "held out")
TILE, GAP, LINE = 72, 4, 14  # pixels: smallest side of a tile, between tiles, of a line of text


@dataclass(frozen=True)
class RunLeakage:
    """A run with the neighbours of its images.

    Args:
        run: The run.
        images: Its synthetic images.
        dataset: The data that it was run on.
        leakage: The neighbours.
    """

    run: Run
    images: SyntheticSet
    dataset: Dataset
    leakage: Leakage

    def to_json(self) -> dict[str, Any]:
        """Returns the figures, the guarantee if there is one, and a digest of the images."""
        guarantee = summary(self.run.records[-1]) if self.run.guaranteed else None
        about = {"guarantee": guarantee, "digest": _digest(self.run.folder)}
        return about | self.leakage.to_json()


def leakage_of(
    folder: Path, data_dir: Path | None = None, data: str | None = None
) -> RunLeakage:
    """Returns the leakage of a run.

    Args:
        folder: The run directory.
        data_dir: Folder of the data sets, if it has moved.
        data: Where your own data are, if they have moved.
    """
    run = read_run(folder)
    if not (folder / IMAGES).is_file():
        raise RunDirectoryError(
            f"{folder} has no {IMAGES}: {label(run.config.algorithm.name)} sends no images, "
            "or the run has not finished"
        )
    images, config = load_synthetic(folder / IMAGES), run.config
    moved = {"dir": data_dir and str(data_dir), "path": data and absolute(data)}
    places = {key: value for key, value in moved.items() if value}
    config = config.model_copy(update={"data": config.data.model_copy(update=places)})
    dataset = Split.of(config, run.fingerprint).dataset
    return RunLeakage(run, images, dataset, measured(images, dataset.train, dataset.test))


def write_leakage(found: RunLeakage, out: Path | None = None) -> Path | None:
    """Writes ``leak.json`` and the picture, and returns the picture's path.

    With a guarantee, only the picture is written, and only if `out` names a file.

    Args:
        found: What to write.
        out: File of the picture; by default ``leak.png`` in the run directory.
    """
    folder = found.run.folder
    if found.run.config.guaranteed:
        if out is None:
            return None
    else:
        _write(folder / FIGURES, json.dumps(found.to_json()).encode())
    picture = out or folder / PICTURE
    if found.images.examples.x.shape[2:] == (1, 1):
        return None  # vectors are no pictures
    _write(picture, closest_pairs(found))
    return picture


def check_out(out: Path | None) -> None:
    """Raises `ConfigError` if the picture cannot be written there."""
    if out is not None and out.is_dir():
        raise ConfigError(f"--out must be a file, but {out} is a directory")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the directory {out.parent} does not exist")


def warning(run: Run) -> str:
    """Returns what a report says above the images of a run; nothing with a guarantee."""
    if run.guaranteed:
        return ""
    try:
        content = json.loads((run.folder / FIGURES).read_text(encoding="utf-8"))
        current = content["digest"] == _digest(run.folder)
        copies, images = int(content["copies"]), int(content["images"])
    except (OSError, KeyError, TypeError, ValueError):
        current = False
    if current:
        return verdict(copies, images)
    return (
        "These images can be recognisable copies of training images; `feddm leak "
        f"{shlex.quote(run.folder.name)}` measures it."
    )


def closest_pairs(found: RunLeakage) -> bytes:
    """Returns a PNG of the closest pairs, next to the nearest held-out images."""
    closest = found.leakage.subset(found.leakage.closest()[:PAIRS])
    train, test = (_pixels(part) for part in (found.dataset.train, found.dataset.test))
    shown = (
        found.images.pixels()[closest.images],
        train[closest.train.index],
        test[closest.held_out.index],
    )
    titles = [
        f"class {closest.classes[label]}, ratio {ratio:.2f}"
        for label, ratio in zip(closest.labels.tolist(), closest.ratios.tolist(), strict=True)
    ]
    file = io.BytesIO()
    sheet_of(titles, shown).save(file, "PNG")
    return file.getvalue()


def sheet_of(titles: Sequence[str], shown: Sequence[Tensor]) -> Image.Image:
    """Returns a sheet with the images of each title side by side, and the columns' names.

    Args:
        titles: One for each group of images.
        shown: For each of `COLUMNS` one image per title, as uint8 pixels.
    """
    height, width = shown[0].shape[2:]
    scale = -(-TILE // min(height, width))  # whole, so that pixels stay squares
    height, width = scale * height, scale * width
    across, down = len(COLUMNS) * (width + GAP) + 4 * GAP, height + LINE + 3 * GAP
    in_a_row = min(len(titles), PAIRS_IN_A_ROW)
    rows = -(-len(titles) // in_a_row)
    sheet = Image.new("RGB", (in_a_row * across, LINE + GAP + rows * down), "white")
    draw = ImageDraw.Draw(sheet)
    for number, title in enumerate(titles):
        left, top = GAP + number % in_a_row * across, LINE + GAP + number // in_a_row * down
        for column, (name, images) in enumerate(zip(COLUMNS, shown, strict=True)):
            at = left + column * (width + GAP)
            sheet.paste(_picture(images[number]).resize((width, height), 0), (at, top))
            if number < in_a_row:
                draw.text((at, 0), name, fill="black")
        draw.text((left, top + height), _latin(title), fill="black")
    return sheet


def _pixels(examples: Examples) -> Tensor:
    normalization = examples.normalization
    if examples.x.dtype == torch.uint8 or normalization is None:
        return examples.x
    return normalization.pixels(examples.inputs(examples.x))


def _picture(pixels: Tensor) -> Image.Image:
    channels_last = pixels.permute(1, 2, 0).numpy()
    colors = np.broadcast_to(channels_last, (*channels_last.shape[:2], 3))
    return Image.fromarray(np.ascontiguousarray(colors))


def _latin(text: str) -> str:
    """Returns the text in the characters that every font has."""
    return text.encode("latin-1", "replace").decode("latin-1")


def _digest(folder: Path) -> str:
    return hashlib.blake2b((folder / IMAGES).read_bytes(), digest_size=16).hexdigest()


def _write(path: Path, data: bytes) -> None:
    with files.explained(RunDirectoryError, path):
        files.write_whole(path, data)
