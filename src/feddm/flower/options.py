"""The app's configuration in Flower -> ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddm.config.resolve import OPTIONS, load_toml, parse_settings, resolve, toml_value
from feddm.config.schema import Config
from feddm.errors import ConfigError
from feddm.flower.engine import Patience

_PATIENCE = ("wait-for-nodes", "wait-for-replies", "retries")
_OWN = (
    "preset",
    "min-clients",
    "config",
    "set",
    "out",
    "resume",
    *_PATIENCE,
)
# A server names neither workers nor ledgers, and knows no folder of a node.
_SHARED = tuple(
    name for name in OPTIONS if name not in ("workers", "ledger", "data", "data_dir")
)


@dataclass(frozen=True)
class Options:
    """What `flwr run` was asked for.

    Args:
        config: What is run; ``None`` goes on with an earlier run.
        directory: The run directory to make, or to go on with; ``None`` is a new one.
        patience: For how long the server waits.
        retries: How often a round is tried again that lost too many clients.
    """

    config: Config | None
    directory: Path | None
    patience: Patience
    retries: int


def options_of(run_config: Mapping[str, Any], nodes: int) -> Options:
    """Returns what the app's configuration says; a `ConfigError` says what it may be.

    Args:
        run_config: The app's configuration.
        nodes: Number of nodes, which is the default number of clients.
    """
    given = {key: value for key, value in run_config.items() if value != ""}
    unknown = sorted(set(given) - set(_OWN) - set(_SHARED))
    if unknown:
        known = ", ".join(sorted({*_OWN, *_SHARED}))
        raise ConfigError(
            f"unknown key {unknown[0]} in the app's configuration; known: {known}"
        )
    patience = Patience(
        nodes=_seconds(given, "wait-for-nodes", 300.0),
        reply=_seconds(given, "wait-for-replies", 3600.0),
    )
    retries = given.get("retries", 1)
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise ConfigError(f"retries must be a whole number of at least 0, got {retries!r}")
    if "resume" in given:
        beside = sorted(set(given) - {"resume", *_PATIENCE})
        if beside:
            raise ConfigError(
                f"{beside[0]} cannot be given beside resume: a run goes on as it began"
            )
        return Options(None, Path(str(given["resume"])), patience, retries)
    settings = parse_settings(str(given.get("set", "")).split())
    if "min-clients" in given:
        settings["min_clients"] = toml_value(str(given["min-clients"]))
    options = {name: toml_value(str(value)) for name, value in given.items() if name in _SHARED}
    if nodes and not {"config", "clients"} & set(given):
        options["clients"] = nodes
    file = load_toml(Path(str(given["config"]))) if "config" in given else None
    config = resolve(file, given.get("preset"), options, settings)
    out = Path(str(given["out"])) if "out" in given else None
    return Options(config, out, patience, retries)


def _seconds(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ConfigError(f"{key} must be a number of seconds above 0, got {value!r}")
    return float(value)
