"""Privacy and the other settings: which go together, which are not used, and why not.

Values in, values or `ConfigError` out. All messages are one line that says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from feddm.errors import ConfigError, UnfitAlgorithmError

Values = Mapping[str, Any]


class _Needed(NamedTuple):
    """What a guarantee asks of a setting, whatever a preset says, and why."""

    value: object
    why: str


# Images begin as noise, learn from whole classes, and make smaller what was released.
_GUARANTEED = {
    "start": _Needed("noise", "what begins with images of a client shows them"),
    "distance": _Needed("squared", "relative would divide by what is noisy"),
}
_NEEDED = {
    "features": _GUARANTEED,
    "gradients": {
        **_GUARANTEED,
        "augment": _Needed(False, "gradients are those of the images as they are"),
    },
}


def _values(needed: Mapping[str, _Needed]) -> Values:
    return {key: value for key, (value, _) in needed.items()}


# What a mechanism puts over a preset. Networks are few, because each of them costs. Where the
# server learns the images, noise is averaged over the clients first; and sets of earlier
# rounds, which cost nothing more, average it over rounds.
_PRIVATE: dict[str, Values] = {
    "features": {
        "privacy": {"mechanism": "features", "learn": "server"},
        "synthesis": {
            **_values(_NEEDED["features"]),
            "networks": 2,
            "steps": 200,
            "lr": 10.0,
        },
        "server": {"replay": 4},
    },
    "gradients": {
        "privacy": {"mechanism": "gradients"},
        "synthesis": {**_values(_NEEDED["gradients"]), "lr": 1.0},
    },
    # The paper's bound, and the least of its three noise levels. What it releases would void
    # the guarantee of all other runs on the same ledger.
    "paper": {
        "privacy": {
            "mechanism": "paper",
            "clip": 5.0,
            "noise_multiplier": 1.0,
            "ledger": "new",
        }
    },
}


class Unused(NamedTuple):
    """A setting that does nothing: the value that it then has, and what counts instead."""

    value: object
    instead: str


# The values are fixed, whatever presets become, so that a configuration that was written down
# can be told from one in which a user asked for something else.
_SAMPLED = "privacy.sample_rate says how likely an example is to be in a step"
_STEPS = "privacy.steps says how many steps there are, for all clients alike"
_OF_GRADIENTS = {
    "privacy.steps": Unused(50, "it is for --privacy gradients"),
    "privacy.sample_rate": Unused(0.1, "it is for --privacy gradients"),
}
_OF_FEATURES = {
    "privacy.projection": Unused(64, "it is for --privacy features"),
    "privacy.learn": Unused("client", "it is for --privacy features"),
}
_UNUSED: dict[str, dict[str, Unused]] = {
    "features": {
        "synthesis.real_batch": Unused("all", "every network sees all examples of a client"),
        **_OF_GRADIENTS,
    },
    "paper": {**_OF_FEATURES, **_OF_GRADIENTS},
}
_UNUSED_BY_IMAGES = {
    "synthesis.steps": Unused(1, _STEPS),
    "synthesis.networks": Unused("fresh", "every step has a network of its own"),
    "synthesis.real_batch": Unused("all", _SAMPLED),
    **_OF_FEATURES,
}
_UNUSED_BY_WEIGHTS = {
    "local.epochs": Unused(1, _STEPS),
    "local.batch_size": Unused(1, _SAMPLED),
    **_OF_FEATURES,
}


def mechanism_of(given: Values) -> str:
    """Returns what protects the examples: named, or the usual one if a budget is given.

    >>> mechanism_of({"privacy": {"epsilon": 4.0}})
    'features'
    """
    privacy = given.get("privacy")
    if not isinstance(privacy, Mapping) or not privacy:
        return "none"
    if "mechanism" in privacy:
        return str(privacy["mechanism"])
    if not privacy.get("epsilon"):
        return "none"
    return "features" if given.get("algorithm", "feddm") == "feddm" else "gradients"


def private_values(mechanism: str) -> Values:
    """Returns the values that a mechanism puts over those of a preset."""
    return _PRIVATE.get(mechanism, {})


def unused(algorithm: str, mechanism: str) -> Mapping[str, Unused]:
    """Returns the settings that do nothing under a mechanism."""
    if mechanism == "gradients":
        return _UNUSED_BY_IMAGES if algorithm == "feddm" else _UNUSED_BY_WEIGHTS
    return _UNUSED.get(mechanism, {})


def settled(values: Values, preset: Values, algorithm: str, mechanism: str) -> dict[str, Any]:
    """Returns the values with those that are not used at their fixed value.

    Args:
        values: The whole configuration.
        preset: What it would be if nobody had said anything.
        algorithm: What is run.
        mechanism: What protects the examples.

    Raises:
        ConfigError: If somebody asked for another value than the preset's.
    """
    result = dict(values)
    for key, (value, instead) in unused(algorithm, mechanism).items():
        section, _, name = key.partition(".")
        given = values.get(section, {})
        if not isinstance(given, Mapping):
            continue  # which is an error of its own
        found = given.get(name, value)
        if found != value and found != preset.get(section, {}).get(name, value):
            raise ConfigError(
                f"{key} is not used with --privacy {mechanism}, so leave it out: {instead}"
            )
        result[section] = {**result.get(section, {}), name: value}
    return result


def check_asked(given: Values) -> None:
    """Raises `ConfigError` if somebody asks for privacy and would get none, without a word.

    Args:
        given: What users said, each of which is valid on its own.
    """
    privacy = given.get("privacy", {})
    if not privacy or "mechanism" in privacy or privacy.get("epsilon"):
        return
    if "epsilon" in privacy:
        raise ConfigError("--epsilon must be above 0; without privacy, leave it out")
    raise ConfigError(
        f"privacy.{next(iter(privacy))} does nothing without a budget or a mechanism; give "
        "--epsilon or --privacy"
    )


def check(config: Values) -> None:
    """Raises `ConfigError` where settings and a guarantee exclude each other.

    Args:
        config: All values, each of which is valid on its own.
    """
    privacy, synthesis, algorithm = config["privacy"], config["synthesis"], config["algorithm"]
    mechanism = privacy["mechanism"]
    if mechanism == "none":
        if privacy["epsilon"] or privacy["noise_multiplier"]:
            raise ConfigError("a budget or noise needs a mechanism; name one with --privacy")
        return
    _check_algorithm(algorithm, mechanism)
    if not privacy["epsilon"] and not privacy["noise_multiplier"]:
        raise ConfigError(
            "privacy needs a budget or the noise: --epsilon, or --set privacy.noise_multiplier"
        )
    if mechanism == "paper":
        if privacy["epsilon"]:
            raise ConfigError(
                "--privacy paper gives no guarantee, so it has no epsilon; its noise is "
                "--set privacy.noise_multiplier"
            )
        if synthesis["distance"] != "squared":
            raise ConfigError(
                "synthesis.distance must be squared with --privacy paper, whose bound is made "
                "for it, and synthesis.lr smaller with it, such as 1"
            )
        return
    if algorithm == "feddm":
        _check_synthesis(synthesis, mechanism)
    elif config["local"]["augment"]:
        raise ConfigError(
            "local.augment must be off: the change of one image would depend on the others"
        )


def _check_algorithm(algorithm: str, mechanism: str) -> None:
    if algorithm == "real":
        raise UnfitAlgorithmError("real sends real images, which nothing makes private")
    if mechanism in ("features", "paper") and algorithm != "feddm":
        raise UnfitAlgorithmError(
            f"--privacy {mechanism} is for feddm, other algorithms take gradients"
        )


def _check_synthesis(synthesis: Values, mechanism: str) -> None:
    for key, (value, why) in _NEEDED[mechanism].items():
        if synthesis[key] != value:
            raise ConfigError(
                f"synthesis.{key} must be {_said(value)} with --privacy {mechanism}, got "
                f"{_said(synthesis[key])}: {why}"
            )
    if synthesis["networks"] == "fresh" and mechanism == "features":
        raise ConfigError("synthesis.networks must be a number: every network is a release")


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
