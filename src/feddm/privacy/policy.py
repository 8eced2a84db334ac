"""The client's own limits, whatever the server asks for.

The policy is a file on the client's machine: ``policy.toml`` in the user's configuration
folder, or the file that ``FEDDM_POLICY`` names. No setting of a run can move it, and it applies
to every run, private or not.

    epsilon = 4                  # total budget of a data set, over all runs
    delta = 1e-6
    mechanisms = ["features"]

    [datasets.digits]            # overrides the values above for this data set
    epsilon = 100
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_config_path
from pydantic import Field, NonNegativeFloat, ValidationError

from feddm.config.messages import sentence
from feddm.config.registry import algorithm_names, mechanism_names
from feddm.config.schema import Section
from feddm.data.catalog import DATASETS, describe
from feddm.errors import BudgetError, DataError, LedgerError
from feddm.privacy.accounting import Event, Released, Unprotected, epsilon
from feddm.privacy.units import Unit

# Relative error that calibration may have.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Asked:
    """What a federation asks of a client, in the names of the command line."""

    algorithm: str = "feddm"
    mechanism: str = "none"
    unit: str = "example"


@dataclass(frozen=True)
class Policy:
    """Limits on what leaves a client.

    Args:
        epsilon: Total budget at `delta`, over all runs.
        delta: Delta of the guarantee.
        noise_multiplier: Minimum noise multiplier of each release.
        mechanisms: Allowed privacy mechanisms; ``None`` allows all.
        algorithms: Allowed algorithms; ``None`` allows all.
        units: Allowed units of privacy; ``None`` allows all.
        source: Where the limits come from, for error messages.
    """

    epsilon: float = math.inf
    delta: float = 1e-5
    noise_multiplier: float = 0.0
    mechanisms: tuple[str, ...] | None = None
    algorithms: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None
    source: str = "the run's budget"

    def check(
        self, asked: Asked, planned: Sequence[Event], spent: Sequence[Event] = ()
    ) -> None:
        """Raises `BudgetError` if the policy does not allow these releases.

        Args:
            asked: What the federation asks for.
            planned: Releases to come.
            spent: Earlier releases.
        """
        for kind, name, allowed in (
            ("mechanism", asked.mechanism, self.mechanisms),
            ("algorithm", asked.algorithm, self.algorithms),
            ("unit", asked.unit, self.units),
        ):
            if allowed is not None and name not in allowed:
                rest = f"only {', '.join(allowed)}" if allowed else "nor any other"
                raise self._refusal(f"the client does not allow the {kind} {name}, {rest}")
        if self.units is not None and any(isinstance(e, Unprotected) for e in planned):
            # A unit that nothing protects is not the unit that was agreed to.
            raise self._refusal(
                f"the client requires protection of the unit {' or '.join(self.units)}, and "
                f"the mechanism {asked.mechanism} protects none here"
            )
        for event in planned:
            multiplier = event.noise_multiplier if isinstance(event, Released) else 0.0
            if multiplier < self.noise_multiplier:
                raise self._refusal(
                    f"the client requires a noise multiplier of at least "
                    f"{self.noise_multiplier:g}, got {multiplier:g}"
                )
        if self.epsilon == math.inf:
            return
        after = epsilon([*spent, *planned], self.delta)
        if after > self.epsilon * (1 + _ROUNDING):
            raise BudgetError(
                f"after this round the client would have spent epsilon {after:.4g} at delta "
                f"{self.delta:g}, and its limit is {self.epsilon:g} ({self.source})",
                told="the client's privacy budget does not allow this round",
            )

    def _refusal(self, text: str) -> BudgetError:
        return BudgetError(f"{text} ({self.source})", told=text)


def own_policy(dataset: str) -> Policy:
    """Returns this machine's policy for a data set."""
    named = os.environ.get("FEDDM_POLICY")
    path = Path(named).expanduser() if named else user_config_path("feddm") / "policy.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not named and not path.is_symlink():
            return Policy()
        raise LedgerError(f"the policy {path} does not exist") from error
    except (OSError, ValueError) as error:
        raise LedgerError(f"cannot read the policy {path}: {error}") from error
    try:
        return Policy(**_limits(values, dataset), source=str(path))
    except (ValueError, DataError) as error:
        raise LedgerError(f"invalid policy {path}: {error}") from None


def _limits(values: dict[str, Any], dataset: str) -> dict[str, Any]:
    """Returns the limits for one data set, after checking those of all data sets."""
    tables = values.pop("datasets", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ValueError(f"datasets must be tables, such as [datasets.digits], got {tables!r}")
    for name in tables:
        # A node's own data may have any name, so only reject what looks like a typo.
        if name not in DATASETS and difflib.get_close_matches(name.lower(), DATASETS, n=1):
            describe(name)
    checked = {name: _checked(table) for name, table in tables.items()}
    return _checked(values) | checked.get(dataset, {})


class Limits(Section):
    """What a policy file can say, for all data sets or for one."""

    # Only nan is no number to compare with; an infinite budget is one.
    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=True)] = math.inf
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    noise_multiplier: NonNegativeFloat = 0.0
    mechanisms: list[Literal[("none", *mechanism_names())]] = Field([])  # type: ignore[valid-type]
    algorithms: list[str] = Field([])  # those of packages that are not installed, too
    units: list[Unit] = Field([])


def _checked(table: dict[str, Any]) -> dict[str, Any]:
    """Returns the limits that a table sets."""
    try:
        limits = Limits.model_validate(table).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise ValueError(sentence(error.errors()[0], table, Limits)) from None
    for name in limits.get("algorithms", ()):
        if name not in algorithm_names():
            close = difflib.get_close_matches(name, algorithm_names(), n=1)
            if close:
                raise ValueError(f"unknown algorithm {name} (did you mean {close[0]}?)")
    if math.isnan(limits.get("epsilon", 0.0)):
        raise ValueError("epsilon must be a number of at least 0, got nan")
    return {key: tuple(v) if isinstance(v, list) else v for key, v in limits.items()}
