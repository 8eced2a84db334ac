"""Presets: named values that lie under whatever you set.

``paper`` is the paper to the letter; its values are the defaults of all settings. ``quick`` is
what runs use unless told otherwise: a narrower model, and far fewer steps, networks and epochs,
for a first result in minutes. ``private`` is the same with a privacy budget. What a preset
means for an algorithm is said in its own file (`AlgorithmSettings.preset`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feddm.config.schema import Values

PRESETS = ("quick", "paper", "private")
PRIVATE_EPSILON = 4.0  # the budget of `private`
Choices = Mapping[str, Mapping[str, Values]]  # preset -> data set, or "" for all -> values

# A mirrored digit is none. Digits are 1,438 images of 8x8, so their model is shallower.
_DIGITS = {"augmentation": {"flip": False}}
_BY_DATASET: Choices = {
    "paper": {"digits": _DIGITS, "mnist": _DIGITS},
    "quick": {
        "": {"rounds": 5, "model": {"width": 32}},
        "digits": {"model": {"depth": 2}},
    },
}
_BY_MODEL = {"resnet18": {"model": {"norm": "group"}}}


def preset_values(preset: str, dataset: str, model: str = "") -> dict[str, Any]:
    """Returns what a preset sets besides the algorithm's settings."""
    return merged(chosen(_BY_DATASET, preset, dataset), _BY_MODEL.get(model, {}))


def chosen(choices: Choices, preset: str, dataset: str) -> dict[str, Any]:
    """Returns the values for a preset and a data set.

    ``quick`` lies over ``paper``, and a data set's values over those for all. ``private`` has
    the values of ``quick``.

    >>> chosen({"paper": {"mnist": {"a": 1}}, "quick": {"": {"b": 2}}}, "quick", "mnist")
    {'a': 1, 'b': 2}
    """
    values: dict[str, Any] = {}
    for layer in ("paper", "quick")[: 1 + (preset != "paper")]:
        for key in ("", dataset):
            values = merged(values, choices.get(layer, {}).get(key, {}))
    return values


def merged(under: Values, over: Values) -> dict[str, Any]:
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
