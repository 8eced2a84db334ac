"""The settings of an algorithm, shown after ``--help`` if one is named beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from feddm.config.code import absolute, label
from feddm.config.registry import find_algorithm


def settings_help(arguments: Sequence[str]) -> str:
    """Returns what can be set for the algorithm on a command line; empty if there is no need.

    Args:
        arguments: What stands on the command line.
    """
    words = [part for word in arguments for part in word.split("=", 1)]
    if not {"--help", "-h"} & set(arguments) or "--algorithm" not in words[:-1]:
        return ""
    name = absolute(words[words.index("--algorithm") + 1])
    kind = find_algorithm(name).settings_type(None)
    rows = [row for row in _rows(kind, "") if row[0] != "name"]
    width = max(len(key) for key, _ in rows)
    lines = [f"  {key:<{width}}  {text}" for key, text in rows]
    return "\n".join([f"Settings of {label(name)}, as in --set {rows[-1][0]}=...:", *lines])


def _rows(kind: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """Yields each key with its help text and its default."""
    for key, field in kind.model_fields.items():
        value: Any = field.default
        if isinstance(value, BaseModel):
            yield from _rows(type(value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", f"{field.description or ''} [default: {value}]"
