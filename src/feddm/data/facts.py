"""What is said about your own data, and what they say about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def named_data(
    path: str | None, file: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any] | None]:
    """Returns where your own data are, and the values that follow from them.

    Both are ``None`` if nobody names any. A file that was complete needs no more values.

    Args:
        path: The option ``--data``.
        file: Values of a configuration file.
        settings: Values of ``--set`` by their keys.
    """
    section = (file or {}).get("data", {})
    there = section if isinstance(section, Mapping) else {}
    named = path or settings.get("data.path") or there.get("path")
    if not named:
        return None, None
    # Imported here, because torch is slow to import.
    from feddm.data.sources import absolute, source_facts

    named = absolute(str(named))
    known = there.get("own", {})
    if isinstance(known, Mapping) and known.get("classes"):
        return named, None
    return named, source_facts(named)
