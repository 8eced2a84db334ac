"""Presets: named sets of values that lie under whatever a user says.

``paper`` is the paper to the letter. ``quick`` is the default: a narrower model, and far fewer
steps, networks and epochs, for a first result in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = dict[str, Any]

_PAPER: Values = {
    "rounds": 20,
    "participation": 1.0,
    "partition": {"scheme": "dirichlet", "clients": 10, "alpha": 0.5},
    "model": {"name": "convnet", "width": 128, "depth": 3, "norm": "instance"},
    "synthesis": {
        "images_per_class": 10,
        "steps": 1000,
        "lr": 1.0,
        "momentum": 0.0,
        "networks": "fresh",
        "real_batch": 256,
        "radius": 5.0,
        "start": "real",
        "distance": "squared",
        "coding": "float32",
        "min_class_size": 10,
        "augment": False,
    },
    "server": {
        "lr": 0.01,
        "epochs": 500,
        "batch_size": 256,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "schedule": "constant",
        "radius": 5.0,
        "weighting": "synthetic",
        "augment": False,
        "replay": 0,
    },
    # The paper tunes lr in .001, .01, .1, epochs in 10, 15, 20 and mu in .01, .1, 1.
    "local": {
        "lr": 0.01,
        "epochs": 10,
        "batch_size": 256,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "mu": 0.01,
        "server_lr": 1.0,
        "augment": False,
    },
    # How, if it is asked for: as strong as in the paper on siamese augmentation.
    "augmentation": {
        "flip": True,
        "shift": 0.125,
        "scale": 0.2,
        "rotate": 15.0,
        "brightness": 0.5,
        "saturation": 1.0,
        "contrast": 0.5,
        "cutout": 0.5,
    },
}

_QUICK: Values = {
    "rounds": 5,
    "model": {"width": 32},
    "synthesis": {"steps": 30, "lr": 0.2, "momentum": 0.5, "networks": 6, "real_batch": 128},
    "server": {"lr": 0.05, "epochs": 40, "momentum": 0.9},
    "local": {"epochs": 2, "momentum": 0.9},
}

# SCAFFOLD is defined for plain SGD.
_BY_ALGORITHM: dict[str, Values] = {"scaffold": {"local": {"momentum": 0.0}}}
_BY_MODEL: dict[str, Values] = {"resnet18": {"model": {"norm": "group"}}}

# A mirrored digit is none.
_DIGITS: Values = {"augmentation": {"flip": False}}
# Classes that vary more gain more from matching.
_VARIED = {"steps": 100, "lr": 3.0, "networks": 8, "real_batch": 256}
_BY_DATASET: dict[str, dict[str, Values]] = {
    "paper": {
        "digits": _DIGITS,
        "mnist": _DIGITS,
        "cifar100": {"synthesis": {"images_per_class": 5}},
    },
    "quick": {
        # 1,438 images of 8x8: shallower, with classes and batches to match.
        "digits": {
            "model": {"depth": 2},
            "synthesis": {"min_class_size": 5},
            "local": {"batch_size": 16},
        },
        "fashion-mnist": {"synthesis": _VARIED},
        "cifar10": {"synthesis": _VARIED},
        "cifar100": {"synthesis": _VARIED},
    },
}

# Each preset is what it says over those that stand before it.
_LAYERS = {
    "paper": ("paper",),
    "quick": ("paper", "quick"),
}
_GENERAL = {"paper": _PAPER, "quick": _QUICK}

PRESETS = ("quick", "paper")


def preset_values(preset: str, algorithm: str, dataset: str, model: str = "") -> Values:
    """Returns the values of a preset for an algorithm, a data set and a model."""
    values: Values = {}
    for layer in _LAYERS[preset]:
        values = merged(values, _GENERAL[layer])
        values = merged(values, _BY_DATASET[layer].get(dataset, {}))
    values = merged(values, _BY_ALGORITHM.get(algorithm, {}))
    return merged(values, _BY_MODEL.get(model, {}))


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """Returns both, where `over` wins; tables are merged key by key.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    """
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
