"""Finds algorithms and privacy mechanisms by their names.

Those of other packages are found by entry points, in the groups ``feddm.algorithms`` and
``feddm.mechanisms``; a mechanism works with the algorithms that know it. This makes
``--algorithm fedavgm`` work:

    [project.entry-points."feddm.algorithms"]
    fedavgm = "my_package.fedavgm:FedAvgM"
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol

from feddm.config import code
from feddm.errors import ConfigError

if TYPE_CHECKING:
    from feddm.config.schema import AlgorithmSettings, PrivacySettings

# By name, where the class of an algorithm and the settings of a mechanism are.
_BUILT_IN = {
    "feddm.algorithms": {
        "feddm": "feddm.algorithms.feddm:FedDM",
        "fedavg": "feddm.algorithms.fedavg:FedAvg",
        "fedprox": "feddm.algorithms.fedprox:FedProx",
        "fednova": "feddm.algorithms.fednova:FedNova",
        "scaffold": "feddm.algorithms.scaffold:Scaffold",
        "real": "feddm.algorithms.real:Real",
    },
    "feddm.mechanisms": {
        "surrogate": "feddm.privacy.surrogate:SurrogateSettings",
        "features": "feddm.privacy.features:FeatureSettings",
        "gradients": "feddm.privacy.gradients:GradientSettings",
        "paper": "feddm.privacy.paper_noise:PaperNoise",
    },
}


class AlgorithmType(Protocol):
    """What the configuration needs to know of an algorithm's class."""

    @classmethod
    def settings_type(cls, mechanism: str | None) -> type[AlgorithmSettings]:
        """Returns the settings under a privacy mechanism, or without one.

        Raises:
            UnfitAlgorithmError: The algorithm can't run under this mechanism.
        """

    @classmethod
    def default_mechanism(cls) -> str:
        """Returns the mechanism of a run that has a budget and names none."""


@functools.cache
def algorithm_names() -> tuple[str, ...]:
    """Returns the names of all installed algorithms."""
    return tuple(_installed("feddm.algorithms"))


@functools.cache
def mechanism_names() -> tuple[str, ...]:
    """Returns the names of all installed privacy mechanisms."""
    return tuple(_installed("feddm.mechanisms"))


def find_algorithm(name: str) -> type[AlgorithmType]:
    """Returns the class of the algorithm with this name, which may be code of your own."""
    if code.is_reference(name):
        return _own(name)
    if name not in algorithm_names():
        raise ConfigError(
            f"algorithm must be one of {', '.join(algorithm_names())} or {code.FORM}, got "
            f"{name!r}"
        )
    found: type[AlgorithmType] = _loaded("feddm.algorithms", name, "settings_type")
    return found


def _own(reference: str) -> type[AlgorithmType]:
    found = code.load(reference)
    if not isinstance(found, type) or not hasattr(found, "settings_type"):
        raise ConfigError(
            f"{reference} is no algorithm: it must be a class below ConfiguredAlgorithm, as "
            "FedAvg is"
        )
    return found


def find_mechanism(name: str) -> type[PrivacySettings]:
    """Returns the settings of the privacy mechanism with this name."""
    if name not in mechanism_names():
        known = ", ".join(("none", *mechanism_names()))
        raise ConfigError(f"privacy.mechanism must be one of {known}, got {name!r}")
    found: type[PrivacySettings] = _loaded("feddm.mechanisms", name, "guaranteed")
    return found


@functools.cache
def _loaded(group: str, name: str, kind: str) -> Any:
    """Returns what is registered under a name, which must have the attribute `kind`."""
    points = _installed(group)[name]
    if len(points) > 1:
        raise ConfigError(
            f"{name} is registered twice in {group}, as "
            f"{' and '.join(point.value for point in points)}; uninstall one of the packages"
        )
    (point,) = points
    try:
        found = point.load()
    except Exception as error:  # another package's module may raise anything
        raise ConfigError(f"{name} can't be loaded from {point.value}: {error}") from error
    if not isinstance(found, type) or not hasattr(found, kind):
        raise ConfigError(f"{name} can't be used: {point.value} is no class of {group}")
    return found


@functools.cache
def _installed(group: str) -> dict[str, list[EntryPoint]]:
    """Returns what is built in, then what other packages add, in the order of their names."""
    built_in = [EntryPoint(name, value, group) for name, value in _BUILT_IN[group].items()]
    points: dict[str, list[EntryPoint]] = {}
    for point in [*built_in, *sorted(entry_points(group=group))]:
        same = points.setdefault(point.name, [])
        if all(point.value != other.value for other in same):
            same.append(point)
    return points
