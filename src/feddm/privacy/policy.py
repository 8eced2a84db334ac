"""What a client agrees to, whatever the server asks.

The policy is a file of the client's own machine, ``policy.toml`` in the user's configuration
folder or what ``FEDDM_POLICY`` names. No setting of a run decides where it is, and no run goes
without it, protected or not.

    epsilon = 4                  # the most that is ever spent of a data set
    delta = 1e-6
    mechanisms = ["features"]

    [datasets.digits]            # over the values above, for this data set alone
    epsilon = 100
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from platformdirs import user_config_path

from feddm.config.schema import ALGORITHMS, Mechanism
from feddm.data.catalog import DATASETS, describe
from feddm.errors import BudgetError, DataError, LedgerError
from feddm.privacy.accounting import Event, Released, epsilon
from feddm.privacy.units import Unit

# Of a budget: what calibration may be off by.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Asked:
    """What a federation asks a client to take part in, by the names of the command line."""

    algorithm: str = "feddm"
    mechanism: str = "none"
    unit: str = "example"


@dataclass(frozen=True)
class Policy:
    """Limits of what leaves a client.

    Args:
        epsilon: The most that is ever spent, at `delta`.
        delta: Of the guarantee.
        noise_multiplier: The least noise of any one release.
        mechanisms: Those that the client takes part in; ``None`` leaves it open.
        algorithms: The same for algorithms.
        units: The same for what is protected as a whole.
        source: Where it comes from, for messages.
    """

    epsilon: float = math.inf
    delta: float = 1e-5
    noise_multiplier: float = 0.0
    mechanisms: tuple[str, ...] | None = None
    algorithms: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None
    source: str = "the budget of the run"

    def check(
        self, asked: Asked, planned: Sequence[Event], spent: Sequence[Event] = ()
    ) -> None:
        """Raises `BudgetError` unless this may be released.

        Args:
            asked: What for.
            planned: What is to be released.
            spent: What was released before.
        """
        for name, allowed in (
            (asked.mechanism, self.mechanisms),
            (asked.algorithm, self.algorithms),
            (asked.unit, self.units),
        ):
            if allowed is not None and name not in allowed:
                raise BudgetError(
                    f"a client takes part in {_listed(allowed)} alone, not in {name} "
                    f"({self.source})"
                )
        for event in planned:
            multiplier = event.noise_multiplier if isinstance(event, Released) else 0.0
            if multiplier < self.noise_multiplier:
                raise BudgetError(
                    f"a client asks for a noise multiplier of at least "
                    f"{self.noise_multiplier:g}, got {multiplier:g} ({self.source})"
                )
        if self.epsilon == math.inf:
            return
        after = epsilon([*spent, *planned], self.delta)
        if after > self.epsilon * (1 + _ROUNDING):
            raise BudgetError(
                f"a client would have spent epsilon {after:.4g} at delta {self.delta:g} "
                f"after this round, and may spend {self.epsilon:g} ({self.source})"
            )


def own_policy(dataset: str) -> Policy:
    """Returns what the client on this machine agrees to for a data set."""
    named = os.environ.get("FEDDM_POLICY")
    path = Path(named).expanduser() if named else user_config_path("feddm") / "policy.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not named and not path.is_symlink():
            return Policy()
        raise LedgerError(f"there is no policy {path}") from error
    except (OSError, ValueError) as error:
        raise LedgerError(f"the policy {path} cannot be read: {error}") from error
    try:
        return Policy(**_limits(values, dataset), source=str(path))
    except (ValueError, DataError) as error:
        raise LedgerError(f"the policy {path} cannot be used: {error}") from None


def _limits(values: dict[str, Any], dataset: str) -> dict[str, Any]:
    """Returns the limits for a data set; all others are checked as well."""
    tables = values.pop("datasets", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ValueError("datasets must be tables, such as [datasets.digits]")
    for name in tables:
        # A name of a node's own data is as good as any, but not one that was meant otherwise.
        if name not in DATASETS and difflib.get_close_matches(name.lower(), DATASETS, n=1):
            describe(name)
    checked = {name: _checked(table) for name, table in tables.items()}
    return _checked(values) | checked.get(dataset, {})


_NAMES = {
    "mechanisms": get_args(Mechanism),
    "algorithms": ALGORITHMS,
    "units": get_args(Unit),
}


def _checked(table: dict[str, Any]) -> dict[str, Any]:
    return {key: _limit(key, value) for key, value in table.items()}


def _limit(key: str, value: object) -> float | tuple[str, ...]:
    """Returns the value of a key; a `ValueError` says what it may be."""
    if key in _NAMES:
        if not isinstance(value, list) or not all(name in _NAMES[key] for name in value):
            raise ValueError(f"{key} must be a list of {_listed(_NAMES[key])}, got {value!r}")
        return tuple(value)
    number = math.nan  # which is in no range
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    match key:
        case "epsilon":
            good, what = number >= 0, "a number of at least 0"
        case "delta":
            good, what = 0 < number < 1, "a number above 0 and below 1"
        case "noise_multiplier":
            good, what = 0 <= number < math.inf, "a number of at least 0"
        case _:
            known = ("epsilon", "delta", "noise_multiplier", *_NAMES)
            close = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(f"unknown key {key}{hint}; known: {', '.join(known)}, datasets")
    if not good:
        raise ValueError(f"{key} must be {what}, got {value!r}")
    return number


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
