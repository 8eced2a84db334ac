"""Round records as JSON lines."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from feddm.runtime.client import Dropout
from feddm.runtime.federation import ClientRecord, RoundRecord, SiteRecord


def to_line(record: RoundRecord) -> str:
    """Returns the record as one line of JSON; non-finite numbers become null.

    Empty fields are left out, such as epsilon without privacy. An epsilon of null means
    infinity: there is no guarantee.
    """
    fields = dataclasses.asdict(record)
    none = [key for key in ("dropouts", "sites") if not fields[key]]
    none += [key for key, value in fields.items() if value is None]
    fields = finite({key: value for key, value in fields.items() if key not in none})
    return json.dumps(fields, allow_nan=False)


def from_line(line: str) -> RoundRecord:
    """Returns the record that `to_line` wrote; raises `ValueError` for any other line."""
    try:
        fields = json.loads(line)
        if not isinstance(fields["round"], int):
            raise TypeError(f"round {fields['round']!r}")
        clients = tuple(ClientRecord(**_numbers(client)) for client in fields.pop("clients"))
        old = fields.pop("losses", [])  # the name of dropouts up to version 0.1
        dropouts = tuple(Dropout(**each) for each in fields.pop("dropouts", old))
        sites = tuple(SiteRecord(**_numbers(site)) for site in fields.pop("sites", []))
        if "epsilon" in fields and fields["epsilon"] is None:
            fields["epsilon"] = math.inf
        return RoundRecord(**_numbers(fields), clients=clients, dropouts=dropouts, sites=sites)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a round record: {error}") from error


def _numbers(value: Any) -> Any:
    """Returns the value with nan in place of null."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    return math.nan if value is None else value


def finite(value: Any) -> Any:
    """Returns the value with null in place of numbers that JSON cannot represent."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
