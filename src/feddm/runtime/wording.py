"""The privacy guarantee of a run, in the same words wherever it is shown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from feddm.config.schema import PrivacySettings
from feddm.privacy.accounting import Event
from feddm.privacy.accounting import epsilon as epsilon_of
from feddm.runtime.federation import RoundRecord

NO_GUARANTEE = "no guarantee"
NOT_PRIVATE = "not private"
# Above this, the odds of a guess may change by a factor of 485 million.
MEANINGLESS = 20.0
UNITS = {
    "example": "one example of one client",
    "group": "all examples of one group",
    "client": "all examples of one client",
}


def promised(record: RoundRecord, epsilon: float, privacy: PrivacySettings) -> RoundRecord:
    """Returns the record of a private round with the guarantee that holds after it.

    The computing time of private clients is left out: it would reveal how many examples they
    have.

    Args:
        record: Record of the round.
        epsilon: Epsilon spent so far; infinite without a guarantee.
        privacy: Settings of the mechanism.
    """
    if privacy.test_secret and privacy.guaranteed:
        words = NOT_PRIVATE
    else:
        # Epsilon is also infinite after an earlier run that released something unprotected.
        words = privacy.mechanism if math.isfinite(epsilon) else NO_GUARANTEE
    return dataclasses.replace(
        record,
        client_seconds=math.nan,
        clients=tuple(
            dataclasses.replace(client, seconds=math.nan) for client in record.clients
        ),
        epsilon=epsilon,
        delta=privacy.delta if math.isfinite(epsilon) else None,
        unit=privacy.unit if math.isfinite(epsilon) else None,
        privacy=words,
    )


def epsilon_cell(epsilon: float | None, privacy: str | None) -> str:
    """Returns the cell of a table: the epsilon, or why there is none.

    >>> epsilon_cell(3.9996, "features"), epsilon_cell(math.inf, NOT_PRIVATE)
    ('4.000', 'not private')
    >>> epsilon_cell(None, None)
    '-'
    """
    if privacy is None:
        return "-"
    return privacy if epsilon is None or math.isinf(epsilon) else f"{epsilon:.3f}"


def spent(epsilon: float | None, privacy: str | None) -> str:
    """Returns the same with the word epsilon, for use outside of a table.

    >>> spent(3.9996, "features"), spent(math.inf, NOT_PRIVATE)
    ('epsilon 4.000', 'not private')
    """
    cell = epsilon_cell(epsilon, privacy)
    return cell if cell in (privacy, "-") else f"epsilon {cell}"


def label(name: str, epsilon: float | None, privacy: str | None) -> str:
    """Returns a name with its guarantee.

    >>> label("feddm", 3.9996, "features"), label("feddm", None, None)
    ('feddm, epsilon 4.000', 'feddm')
    """
    return name if privacy is None else f"{name}, {spent(epsilon, privacy)}"


def guarantee(delta: float, unit: str) -> str:
    """Returns the delta and the unit that belong to an epsilon.

    >>> guarantee(1e-5, "client")
    'at delta 1e-05 for all examples of one client, added or removed'
    """
    return f"at delta {delta:g} for {UNITS[unit]}, added or removed"


def summary(record: RoundRecord) -> str:
    """Returns the guarantee after a private round, in a sentence."""
    if record.privacy == NOT_PRIVATE:
        return "This run is not private: its secrets are fixed."
    if record.epsilon is None or record.delta is None or record.unit is None:
        return "Privacy: no guarantee."
    return (
        f"Privacy spent: epsilon {record.epsilon:.4f} {guarantee(record.delta, record.unit)}."
    )


def introduction(privacy: PrivacySettings, planned: Sequence[Event] = ()) -> str:
    """Returns what is protected, how, and how well.

    Args:
        privacy: Settings of the mechanism.
        planned: All releases of the run; without a budget they say how well.
    """
    if privacy.mechanism == "paper":
        nominal = nominal_epsilon(privacy.noise_multiplier, privacy.delta)
        return (
            f"The paper's noise, sigma {privacy.noise_multiplier:g}: no guarantee. It clips "
            "the mean of a batch, starts from real images, and reveals a client's classes. "
            f"(The paper's formula gives epsilon {nominal:.3g} at delta {privacy.delta:g}. "
            "That figure is nominal and does not hold.)"
        )
    if privacy.test_secret:
        return (
            "Not private: privacy.test_secret fixes the clients' secrets, so anyone can "
            f"recompute the noise of {privacy.mechanism} (multiplier "
            f"{privacy.noise_multiplier:.4g})."
        )
    spent = privacy.budget or (epsilon_of(planned, privacy.delta) if planned else math.nan)
    words = f"budget epsilon {privacy.budget:g}" if privacy.budget else "no budget"
    if not privacy.budget and not math.isnan(spent):
        words = f"epsilon {spent:,.4g} in this run"
    private = f"Private by {privacy.mechanism}"
    if spent > MEANINGLESS:
        private = f"Noise by {privacy.mechanism}, which at such an epsilon protects nobody"
    return (
        f"{private}: {words} at delta {privacy.delta:g}, noise "
        f"multiplier {privacy.noise_multiplier:.4g}. The unit is {UNITS[privacy.unit]}, added "
        "or removed. Clients compose in parallel; rounds add up."
    )


def nominal_epsilon(sigma: float, delta: float = 1e-5) -> float:
    """Returns the epsilon of the paper's ``sigma >= sqrt(2 log(1/delta) / epsilon)``."""
    return 2 * math.log(1 / delta) / sigma**2
