"""Data that are given in Python: arrays, tensors, `Examples`, and data sets of torch.

A configuration names them ``python:...``. That name is good for as long as the process has
them; to go on in another one, they are given again.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from feddm.config.schema import OwnDataConfig
from feddm.core.examples import Examples
from feddm.data import hub
from feddm.data.own import OWN, OwnData, of_arrays
from feddm.errors import DataError

Array = np.ndarray[Any, Any]

PREFIX = "python:"
_KEPT: weakref.WeakValueDictionary[str, OwnData] = weakref.WeakValueDictionary()


def keep(data: OwnData) -> str:
    """Returns a name for data; they are found by it while somebody else has them, too."""
    name = f"{PREFIX}{uuid.uuid4().hex[:12]}"
    _KEPT[name] = data
    return name


def kept(name: str) -> OwnData:
    """Returns the data that `keep` named."""
    found = _KEPT.get(name)
    if found is None:
        raise DataError(
            "the data of this run were given in Python; give them again with --data, as a "
            ".npz file from the command line"
        )
    return found


def own_data(data: object, own: OwnDataConfig = OWN) -> OwnData:
    """Returns data of any kind as `OwnData`.

    Args:
        data: `OwnData`, `Examples`, ``(x, y)`` or ``(x, y, group)``, a mapping of such arrays
            or tensors by name, a data set of torch or of Hugging Face, or ``(train, test)`` of
            any of these.
        own: What is known of them.
    """
    if isinstance(data, OwnData):
        return data
    if isinstance(data, Examples):
        return _of_examples(data)
    if hub.is_hub(data):
        return hub.of_hub(data, own, "data")
    if isinstance(data, Mapping):
        return _of_parts(data, own)
    if isinstance(data, torch.utils.data.Dataset):
        return _of_dataset(data, own)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        if len(data) == 2 and not any(_is_array(part) for part in data):
            return together(*(own_data(part, own) for part in data))
        return _of_parts(dict(zip(("x", "y", "group"), data, strict=False)), own)
    raise DataError(
        f"data must be a path, (x, y), Examples or a torch Dataset, got {type(data).__name__}"
    )


def together(train: OwnData, test: OwnData) -> OwnData:
    """Returns a training and a test set as one."""
    if train.shape != test.shape or train.pixels != test.pixels:
        raise DataError("train and test must have values of the same kind and shape")
    if train.test is not None or test.test is not None:
        raise DataError("train and test are given, so neither can have a test of its own")
    if train.group is None and test.group is not None:
        raise DataError("train must have groups if test has them")
    classes = tuple(dict.fromkeys([*train.classes, *test.classes]))
    y = np.concatenate(
        [np.array([classes.index(n) for n in part.classes])[part.y] for part in (train, test)]
    )
    return OwnData(
        np.concatenate([train.x, test.x]),
        y.astype(np.int64),
        classes,
        np.arange(len(y)) >= len(train),
        _padded(train.group, len(test)),
        _padded(train.client, len(test)),
        train.clients,
        train.broken + test.broken,
        train.converted,
        train.normalization,
    )


def _padded(numbers: Array | None, more: int) -> Array | None:
    """Returns the numbers with as many more that mean nothing: nobody looks at them."""
    if numbers is None:
        return None
    return np.concatenate([numbers, np.zeros(more, np.int64)])


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | torch.Tensor | list)


def _array(value: Any) -> Array:
    found = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    array = np.asarray(found)
    if array.dtype == object:
        raise DataError("data must be arrays of numbers or names, got an array of objects")
    return array


def _of_parts(parts: Mapping[str, Any], own: OwnDataConfig) -> OwnData:
    missing = {"x", "y"} - set(parts)
    if missing:
        raise DataError(f"data is missing {', '.join(sorted(missing))}")
    first = isinstance(parts["x"], torch.Tensor)
    arrays = {name: _array(part) for name, part in parts.items() if part is not None}
    return of_arrays(arrays, own, "data", channels_first=first)


def _of_examples(examples: Examples) -> OwnData:
    parts = {"x": examples.x, "y": examples.y, "group": examples.group}
    normalization = examples.normalization
    if examples.x.dtype == torch.uint8 and normalization is not None:
        return replace(_of_parts(parts, OWN), normalization=normalization)
    return _of_parts({**parts, "x": examples.inputs(examples.x)}, OWN)


def _of_dataset(dataset: torch.utils.data.Dataset[Any], own: OwnDataConfig) -> OwnData:
    """Returns what a data set of torch has; its items are an example and its class."""
    items = cast("Any", dataset)
    try:
        number = len(items)
    except TypeError:
        raise DataError(
            "a torch Dataset must have a length; read what streams into arrays first"
        ) from None
    values: list[Array] = []
    labels: list[Any] = []
    for index in range(number):
        item = items[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError("the items of a torch Dataset must be (x, y)")
        value = item[0]
        values.append(_array(np.asarray(value) if isinstance(value, Image.Image) else value))
        labels.append(int(item[1]))
    if len({value.shape for value in values}) > 1:
        raise DataError("the items of a torch Dataset must all have the same shape")
    parts: dict[str, Any] = {"x": np.stack(values), "y": np.array(labels)}
    if classes := getattr(dataset, "classes", None):
        parts["classes"] = np.array([str(name) for name in classes])
    first = number > 0 and isinstance(items[0][0], torch.Tensor)
    return of_arrays(parts, own, "data", channels_first=first)
