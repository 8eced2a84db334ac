"""Hugging Face data sets, on disk or by name: ``--data hf:NAME``.

The library is imported only here, and only when it is used. It runs no code of a data set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from feddm.config.schema import OwnDataConfig
from feddm.data.images import fitted, is_gray, natural_shape
from feddm.data.own import OwnData, of_arrays
from feddm.errors import DataError, MissingExtraError

PREFIX = "hf:"
TESTS = ("test", "validation", "valid")  # splits to test on, the best first
LABELS = ("label", "labels", "fine_label", "target", "y", "class")


def is_hub(data: object) -> bool:
    """Whether this is a data set of Hugging Face, which need not be installed."""
    return type(data).__module__.split(".")[0] == "datasets"


def is_saved(path: Path) -> bool:
    """Whether a folder is one that ``save_to_disk`` wrote."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def read_hub(path: str, own: OwnDataConfig) -> OwnData:
    """Returns a data set by its name, or in a folder."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(
            "Hugging Face data sets need an extra: pip install 'feddm[hf]'"
        ) from None
    try:
        if path.startswith(PREFIX):
            found = datasets.load_dataset(path.removeprefix(PREFIX))
        else:
            found = datasets.load_from_disk(path)
    except Exception as error:  # of the library, of its file formats and of the network
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{path} cannot be read: {lines[0]}") from None
    return of_hub(found, own, path)


def of_hub(data: Any, own: OwnDataConfig, where: str) -> OwnData:
    """Returns a data set, or a training and a test set by their names.

    Args:
        data: As the library has it.
        own: What is known of it; without class names, nothing is.
        where: What errors call it.
    """
    if not hasattr(data, "keys"):
        return _of_splits([data], own, where)
    if "train" not in data:
        raise DataError(f"{where} has {', '.join(data)}; it needs a split train")
    tests = [data[name] for name in TESTS if name in data][:1]
    return _of_splits([data["train"], *tests], own, where)


def _of_splits(splits: list[Any], own: OwnDataConfig, where: str) -> OwnData:
    features = splits[0].features
    image = next((n for n, f in features.items() if type(f).__name__ == "Image"), None)
    label = _label(features, own, where)
    parts: dict[str, Any] = {
        name: np.concatenate([np.asarray(split[name][:]) for split in splits])
        for name in {own.group, own.client} & set(features)
    }
    parts["y"] = np.concatenate([np.asarray(split[label][:]) for split in splits])
    if names := getattr(features[label], "names", None):
        parts["classes"] = np.array(names)
    if image is not None:
        pictures = [row[image] for split in splits for row in split]
        shape = own.shape
        if not own.classes:
            sizes = {picture.size for picture in pictures}
            shape = natural_shape(sizes, all(is_gray(picture.mode) for picture in pictures))
        fit = [fitted(picture, shape, own.fit, own.white) for picture in pictures]
        parts["x"] = np.stack(fit)
    else:
        parts["x"] = np.concatenate([_numbers(split, label, own, where) for split in splits])
    if len(splits) > 1:
        parts["test"] = np.arange(len(parts["y"])) >= len(splits[0])
    return of_arrays(parts, own, where, channels_first=image is not None)


def _label(features: Any, own: OwnDataConfig, where: str) -> str:
    taken = {own.group, own.client}
    for name, feature in features.items():
        if type(feature).__name__ == "ClassLabel" and name not in taken:
            return str(name)
    for name in LABELS:
        if name in features:
            return name
    raise DataError(f"{where} has no column of classes; it has {', '.join(features)}")


def _numbers(split: Any, label: str, own: OwnDataConfig, where: str) -> Any:
    """Returns a column of arrays, or all columns of numbers side by side."""
    names = [name for name in split.features if name not in (label, own.group, own.client)]
    columns = {name: np.asarray(split[name][:]) for name in names}
    numbers = {name: column for name, column in columns.items() if column.dtype.kind in "buif"}
    arrays = [column for column in numbers.values() if column.ndim > 1]
    if arrays:
        return arrays[0]
    if not numbers:
        raise DataError(f"{where} has neither images nor numbers; it has {', '.join(names)}")
    return np.stack([column.astype(np.float32) for column in numbers.values()], 1)
