"""What a run promises about its clients' examples, in the same words wherever it is shown."""

from __future__ import annotations

import dataclasses
import math

from feddm.config.schema import PrivacySettings
from feddm.runtime.federation import RoundRecord

NO_GUARANTEE = "no guarantee"
NOT_PRIVATE = "not private"
UNITS = {
    "example": "one example of one client",
    "group": "all examples of one group",
    "client": "all examples of one client",
}


def promised(record: RoundRecord, epsilon: float, privacy: PrivacySettings) -> RoundRecord:
    """Returns the record of a private round with what holds after it.

    How long private clients compute is not known: it would tell how many examples they have.

    Args:
        record: Of the round.
        epsilon: What is spent; infinite if nothing is guaranteed.
        privacy: What protects the examples.
    """
    if privacy.test_secret and privacy.guaranteed:
        words = NOT_PRIVATE
    else:
        # Without protection is also what was released in part without it, by an earlier run.
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
    """Returns what a table shows: the epsilon, or that there is none.

    >>> epsilon_cell(3.9996, "features"), epsilon_cell(math.inf, NOT_PRIVATE)
    ('4.000', 'not private')
    >>> epsilon_cell(None, None)
    '-'
    """
    if privacy is None:
        return "-"
    return privacy if epsilon is None or math.isinf(epsilon) else f"{epsilon:.3f}"


def spent(epsilon: float | None, privacy: str | None) -> str:
    """Returns the same where no title says that it is an epsilon.

    >>> spent(3.9996, "features"), spent(math.inf, NOT_PRIVATE)
    ('epsilon 4.000', 'not private')
    """
    cell = epsilon_cell(epsilon, privacy)
    return cell if cell in (privacy, "-") else f"epsilon {cell}"


def label(name: str, epsilon: float | None, privacy: str | None) -> str:
    """Returns a name with what is promised about it.

    >>> label("feddm", 3.9996, "features"), label("feddm", None, None)
    ('feddm, epsilon 4.000', 'feddm')
    """
    return name if privacy is None else f"{name}, {spent(epsilon, privacy)}"


def guarantee(delta: float, unit: str) -> str:
    """Returns what an epsilon is about.

    >>> guarantee(1e-5, "client")
    'at delta 1e-05 for all examples of one client, added or removed'
    """
    return f"at delta {delta:g} for {UNITS[unit]}, added or removed"


def summary(record: RoundRecord) -> str:
    """Returns in a sentence what holds after a round with privacy."""
    if record.privacy == NOT_PRIVATE:
        return "This run is not private: its secrets are fixed."
    if record.epsilon is None or record.delta is None or record.unit is None:
        return "Privacy: no guarantee."
    return (
        f"Privacy spent: epsilon {record.epsilon:.4f} {guarantee(record.delta, record.unit)}."
    )


def introduction(privacy: PrivacySettings) -> str:
    """Returns what is protected, how and how much."""
    if privacy.mechanism == "paper":
        nominal = nominal_epsilon(privacy.noise_multiplier, privacy.delta)
        return (
            f"Noise of the paper, sigma {privacy.noise_multiplier:g}: no guarantee. It clips "
            "the mean of a batch, begins with real images, and shows a client's classes. (The "
            f"paper's formula would say epsilon {nominal:.3g} at delta "
            f"{privacy.delta:g}: nominal, and not so.)"
        )
    if privacy.test_secret:
        return (
            "Not private: privacy.test_secret fixes the clients' secrets, so that everybody "
            f"can recompute the noise of {privacy.mechanism} (multiplier "
            f"{privacy.noise_multiplier:.4g})."
        )
    budget = f"budget epsilon {privacy.budget:g}" if privacy.budget else "no budget"
    return (
        f"Private by {privacy.mechanism}: {budget} at delta {privacy.delta:g}, noise "
        f"multiplier {privacy.noise_multiplier:.4g}. The unit is {UNITS[privacy.unit]}, added "
        "or removed; it is with one client, so clients do not add up, and rounds do."
    )


def nominal_epsilon(sigma: float, delta: float = 1e-5) -> float:
    """Returns the epsilon of the paper's ``sigma >= sqrt(2 log(1/delta) / epsilon)``."""
    return 2 * math.log(1 / delta) / sigma**2
