"""Configuration -> the command that runs it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from feddm.config.schema import OPTIONS, Config, flat, resolve, toml_value
from feddm.errors import ConfigError

NAMES = {key: name for name, key in OPTIONS.items()}


def command(config: Config) -> str | None:
    """Returns a command with the options that are not the default, or ``None`` if none does it.

    What it says is tried: read again, it gives the same configuration, to the last value.
    """
    wanted = flat(config.model_dump())
    preset = wanted.pop("preset")
    plain = flat(resolve(None, preset).model_dump())
    chosen = {key: value for key, value in wanted.items() if plain[key] != value}
    # Of what differs, some follows from the rest, as the rate of an algorithm that was chosen.
    for key in list(chosen):
        without = {other: value for other, value in chosen.items() if other != key}
        if _resolved(preset, without) == config:
            chosen = without
    if _resolved(preset, chosen) != config:
        return None
    return _typed_command(preset, chosen)


def _resolved(preset: str, settings: Mapping[str, Any]) -> Config | None:
    try:
        return resolve(None, preset, {}, settings)
    except ConfigError:
        return None


def _typed_command(preset: str, chosen: Mapping[str, Any]) -> str:
    words = ["feddm", "run", *([] if preset == "quick" else ["--preset", preset])]
    for key, value in sorted(chosen.items(), key=lambda item: item[0] not in NAMES):
        if key in NAMES:
            words += [f"--{NAMES[key].replace('_', '-')}", str(value)]
        else:
            words += ["--set", f"{key}={_typed(value)}"]
    return shlex.join(words)


def _typed(value: object) -> str:
    """Returns a value as it is typed after ``--set KEY=``."""
    if isinstance(value, str):
        # A text that would be read as a number or a list needs its quotation marks.
        return value if value and toml_value(value) == value else json.dumps(value)
    return json.dumps(value)
