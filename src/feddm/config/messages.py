"""Pydantic's errors about a configuration, in one sentence that says what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from feddm.config.code import FORM
from feddm.config.registry import algorithm_names, find_algorithm
from feddm.errors import ConfigError


def sentence(error: ErrorDetails, values: Mapping[str, Any], root: type[BaseModel]) -> str:
    """Returns one line that names the key, the value and what is allowed.

    Args:
        error: What pydantic found.
        values: What it was given.
        root: The model that they are for.
    """
    path = [str(part) for part in error["loc"]]
    # For a field of two types pydantic names the type behind the key; a user knows only the
    # key.
    while len(path) > 1 and section_of(root, path[:-1]) is None:
        path.pop()
    key = short(path)
    if error["type"] == "extra_forbidden":
        return _unknown(key, path, root, values)
    if error["type"] == "missing" and _value_at(values, path) is None:
        return f"{key} is missing"
    if key == "model.norm" and error["input"] == "batch":
        return (
            "model.norm cannot be batch: batch statistics mix examples, differ between "
            "clients and void class means and privacy; use instance or group"
        )
    return f"{key} must be {_allowed(root, path)}, got {_value_at(values, path)!r}"


def short(path: list[str]) -> str:
    """Returns a key as people write it: settings of the algorithm need not name it.

    >>> short(["algorithm", "server", "lr"]), short(["data", "name"]), short(["algorithm"])
    ('server.lr', 'data.name', 'algorithm')
    """
    return ".".join(path[1:] if path[0] == "algorithm" and path[1:] else path)


def _unknown(
    key: str, path: list[str], root: type[BaseModel], values: Mapping[str, Any]
) -> str:
    head = section_of(root, path[:1])
    instead = getattr(head, "instead", {}).get(".".join(path[1:]))
    if instead is not None:
        return f"{key} cannot be set here: {instead}"
    known = sorted(_fields(root, path[:-1]))
    listed = f"known here: {', '.join(known)}"
    if path[0] == "algorithm":
        name = _value_at(values, ["algorithm", "name"])
        full = _full(path, values)
        if owners := [other for other in algorithm_names() if _has(other, full[1:])]:
            have = "has" if len(owners) == 1 else "have"
            if name in owners:
                return f"{name} has no setting {short(full)} under this privacy mechanism"
            return f"{name} has no setting {short(full)}; {', '.join(owners)} {have} it"
        if len(path) == 2:  # what is no setting of the algorithm may be meant for all
            known.remove("name")
            every = sorted(set(root.model_fields) - {"algorithm"})
            listed = f"{name} has {', '.join(known)}; all have {', '.join(every)}"
            known += every
    close = difflib.get_close_matches(path[-1], known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown key {key}{hint}; {listed}"


def _full(path: list[str], values: Mapping[str, Any]) -> list[str]:
    """Returns the path down to the first value of an unknown section."""
    value = _value_at(values, path)
    while isinstance(value, Mapping) and value:
        key = next(iter(value))
        path, value = [*path, str(key)], value[key]
    return path


def _has(algorithm: str, path: list[str]) -> bool:
    """Whether an installed algorithm has a setting."""
    try:
        settings = find_algorithm(algorithm).settings_type(None)
    except ConfigError:  # of another package, and broken
        return False
    return path[-1] in _fields(settings, path[:-1])


def section_of(root: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    section = root
    for part in path:
        field = section.model_fields.get(part)
        kind = field.annotation if field else None
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return None
        section = kind
    return section


def _fields(root: type[BaseModel], path: list[str]) -> Iterable[str]:
    section = section_of(root, path)
    return section.model_fields if section else ()


def _allowed(root: type[BaseModel], path: list[str]) -> str:
    """Returns in words what a key may be.

    >>> from feddm.config.schema import Config
    >>> _allowed(Config, ["rounds"])
    'a whole number of at least 1'
    >>> _allowed(Config, ["runtime", "workers"])
    'a whole number of at least 1 or auto'
    >>> _allowed(Config, ["participation"])
    'a number above 0 and at most 1'
    >>> _allowed(Config, ["data", "own", "shape"])
    'a list of 3, each a whole number of at least 1'
    """
    if section_of(root, path) is not None:
        return "a section"
    section = section_of(root, path[:-1])
    assert section is not None
    rule = section.model_json_schema()["properties"][path[-1]]
    return " or ".join(_words(option) for option in rule.get("anyOf", [rule]))


def _words(rule: Mapping[str, Any]) -> str:
    if "const" in rule:
        return str(rule["const"])
    if "pattern" in rule:
        return FORM
    if "enum" in rule:
        return "one of " + ", ".join(map(str, rule["enum"]))
    kind = {
        "boolean": "true or false",
        "integer": "a whole number",
        "number": "a number",
        "string": "a text",
        "array": "a list",
    }[rule["type"]]
    if rule["type"] == "array":
        items = rule.get("prefixItems") or [rule["items"]]
        number = f" of {len(items)}" if "prefixItems" in rule else ""
        return f"a list{number}, each {_words(items[0])}"
    if "exclusiveMinimum" in rule:
        positive_whole = rule["type"] == "integer" and rule["exclusiveMinimum"] == 0
        low = "of at least 1" if positive_whole else f"above {rule['exclusiveMinimum']:g}"
    elif "minimum" in rule:
        low = f"of at least {rule['minimum']:g}"
    else:
        low = ""
    if "exclusiveMaximum" in rule:
        high = f"below {rule['exclusiveMaximum']:g}"
    elif "maximum" in rule:
        high = f"at most {rule['maximum']:g}"
    else:
        high = ""
    return " ".join(filter(None, [kind, " and ".join(filter(None, [low, high]))]))


def _value_at(values: Any, path: list[str]) -> Any:
    for part in path:
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def as_python(text: str, arguments: Iterable[str]) -> str:
    """Returns an error with the arguments of a function for the options of the command line.

    Args:
        text: The error, as the command line shows it.
        arguments: What the function can be given.

    >>> as_python("--data-dir does nothing; give --set server.lr=1", ["data_dir", "set"])
    "data_dir does nothing; give set={'server.lr': 1}"
    >>> as_python("continue with `feddm resume runs/a`", [])
    "continue with `feddm.resume('runs/a')`"
    """
    known = set(arguments)

    def argument(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return name if name in known else match[0]

    text = re.sub(r"--set ([\w.]+)=([^\s,;)]+)", r"set={'\1': \2}", text)
    text = re.sub(r"--ledger new\b", "ledger='new'", text)
    text = re.sub(r"`feddm resume ([^`]+)`", r"`feddm.resume('\1')`", text)
    return re.sub(r"--([a-z][a-z-]*)", argument, text)
