"""Releases, and the epsilon that they cost.

`Released` and `Unprotected` are plain data: they state what left a client. Google's
dp_accounting computes the cost with privacy loss distributions, an upper bound on epsilon.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feddm.errors import BudgetError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# Below this multiplier, privacy loss distributions take minutes and then gigabytes, only to
# find an epsilon of 20 to several hundred.
_LEAST = 0.25
# The results of a search may be off by about 1e-12 in either direction.
_SLACK = 1e-9


@dataclass(frozen=True)
class Released:
    """Sums that left a client with Gaussian noise.

    The unit of privacy is one example of one client. Neighbouring data sets differ by adding or
    removing one example. Each sum is over its own Poisson sample: every example is included
    independently with the same probability, and the sample stays secret.

    Args:
        times: Number of sums.
        noise_multiplier: Standard deviation of the noise, divided by the L2 sensitivity (the
            most that one example can change the sum).
        sample_rate: Probability that an example is in a sample; 1 means no sampling.
    """

    times: int
    noise_multiplier: float
    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.times, int) or self.times < 1:
            raise ValueError(f"times must be an integer of at least 1, got {self.times}")
        if not 0 < self.noise_multiplier < math.inf:
            raise ValueError(
                f"noise_multiplier must be above 0 and finite, got {self.noise_multiplier}"
            )
        if not 0 < self.sample_rate <= 1:
            raise ValueError(
                f"sample_rate must be above 0 and at most 1, got {self.sample_rate}"
            )


@dataclass(frozen=True)
class Unprotected:
    """A release without a guarantee, which makes epsilon infinite.

    Args:
        what: Description of the release.
    """

    what: str


Event = Released | Unprotected

_KINDS: dict[str, type[Released] | type[Unprotected]] = {
    "gaussian": Released,
    "unprotected": Unprotected,
}


def epsilon(released: Iterable[Event], delta: float) -> float:
    """Returns the epsilon of all releases together, at `delta`.

    Later releases may depend on earlier ones. The multipliers, the rates and the number of
    releases must not depend on the data.

    >>> epsilon([], delta=1e-5)
    0.0
    >>> round(epsilon([Released(times=4, noise_multiplier=8.0)], delta=1e-5), 3)
    0.926
    """
    _check_delta(delta)
    events = list(released)
    protected = [event for event in events if isinstance(event, Released)]
    return _epsilon(protected, delta) if len(protected) == len(events) else math.inf


def noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    times: int,
    sample_rate: float = 1.0,
    spent: Sequence[Event] = (),
) -> float:
    """Returns the smallest multiplier that keeps all releases together within `epsilon`.

    With sampling and an epsilon above about 20 it can be larger than necessary: accounting for
    very little noise takes too long.

    Args:
        epsilon: Total budget, including what is already spent.
        delta: Delta of the guarantee.
        times: Number of releases to come.
        sample_rate: Sample rate of each of them.
        spent: Earlier releases.

    Raises:
        BudgetError: No budget is left.
    """
    _check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be above 0 and finite, got {epsilon}")
    Released(times, 1.0, sample_rate)  # checks both
    protected = [event for event in spent if isinstance(event, Released)]
    if len(protected) < len(spent):
        raise BudgetError("no budget is left: an earlier release was not protected")
    before = _merged(protected)
    closed = all(event.sample_rate == 1 for event in before)
    if closed and (sample_rate == 1 or _strength(before) > 1 / _LEAST):
        result = _unsampled_multiplier(epsilon, delta, times, before)
    else:
        result = _sampled_multiplier(epsilon, delta, times, sample_rate, before)
    if result is None:
        raise BudgetError(
            f"no budget is left: the budget is epsilon {epsilon:g} at delta {delta:g}, "
            f"and {_epsilon(before, delta):.6g} is spent"
        )
    return result


def covered(released: Iterable[Event], planned: Iterable[Event]) -> bool:
    """Returns whether the releases are exactly the planned ones.

    A plan with an unprotected release covers everything.

    >>> covered([Released(1, 2.0), Released(1, 2.0)], [Released(2, 2.0)])
    True
    >>> covered([Released(1, 2.0)], [Released(2, 2.0)])
    False
    """
    plan = list(planned)
    unprotected = any(isinstance(event, Unprotected) for event in plan)
    return unprotected or _counted(released) == _counted(plan)


def _counted(events: Iterable[Event]) -> Counter[Event]:
    """Returns the number of releases of each kind."""
    counts: Counter[Event] = Counter()
    for event in events:
        if isinstance(event, Released):
            counts[replace(event, times=1)] += event.times
        else:
            counts[event] += 1
    return counts


def to_json(event: Event) -> dict[str, Any]:
    """Returns the JSON form of an event in a ledger line.

    >>> to_json(Unprotected("labels"))
    {'kind': 'unprotected', 'what': 'labels'}
    """
    kind = next(name for name, type_ in _KINDS.items() if isinstance(event, type_))
    return {"kind": kind, **asdict(event)}


def from_json(line: Mapping[str, Any]) -> Event:
    """Returns the event that `to_json` wrote; raises `ValueError` for anything else."""
    fields = dict(line)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    try:
        return _KINDS[kind](**fields)
    except TypeError as error:
        raise ValueError(f"not a release of kind {kind}: {fields}") from error


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}")


def _epsilon(released: Sequence[Released], delta: float) -> float:
    """Returns the epsilon of Gaussian releases; closed form if none is sampled."""
    merged = tuple(_merged(released))
    return _cost(merged, delta) if merged else 0.0


# Cached, because the clients of a round usually have equal ledgers, and each asks repeatedly.
@functools.lru_cache(maxsize=1024)
def _cost(merged: tuple[Released, ...], delta: float) -> float:
    import dp_accounting

    if all(event.sample_rate == 1 for event in merged):
        multiplier = 1 / _strength(merged)
        # Epsilon would be in the millions, and the closed form is close to dividing by zero.
        if multiplier < 1e-4:
            return math.inf
        # With a lot of noise, dp_accounting takes the logarithm of a delta that underflows.
        with np.errstate(divide="ignore"):
            return float(dp_accounting.get_epsilon_gaussian(multiplier, delta))
    accountant = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    return float(accountant.compose(_dp_event(merged)).get_epsilon(delta))


def _strength(released: Iterable[Released]) -> float:
    """Returns ``1 / z`` of the single Gaussian release that unsampled releases compose to.

    Together their sums are one long vector. One example moves it by at most
    ``sqrt(sum_i times_i / z_i^2)`` standard deviations of the noise.
    """
    return math.hypot(*(math.sqrt(each.times) / each.noise_multiplier for each in released))


def _merged(released: Iterable[Released]) -> list[Released]:
    """Returns fewer events of the same cost, or of a higher cost if there is very little noise.

    All unsampled events become one, and equal sampled events are merged. So a ledger of
    thousands of lines is as fast to account for as one of a few.
    """
    counts: Counter[tuple[float, float]] = Counter()
    for each in released:
        counts[each.noise_multiplier, each.sample_rate] += each.times
    events = [Released(times, z, rate) for (z, rate), times in sorted(counts.items())]
    whole = [event for event in events if event.sample_rate == 1]
    sampled = [event for event in events if event.sample_rate < 1]
    least = min([event.noise_multiplier for event in sampled], default=math.inf)
    if min(least, 1 / _strength(whole) if whole else math.inf) < _LEAST:
        # Drop the sampling: an unsampled release reveals more, so this is an upper bound.
        whole, sampled = [Released(each.times, each.noise_multiplier) for each in events], []
    return ([Released(1, 1 / _strength(whole))] if whole else []) + sampled


def _dp_event(released: Sequence[Released]) -> DpEvent:
    """Returns the releases as a dp_accounting event."""
    import dp_accounting

    events = []
    for each in released:
        event = dp_accounting.GaussianDpEvent(each.noise_multiplier)
        if each.sample_rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(each.sample_rate, event)
        events.append(dp_accounting.SelfComposedDpEvent(event, each.times))
    return dp_accounting.ComposedDpEvent(events)


def _remaining(strength: float, times: int, before: Iterable[Released]) -> float | None:
    """Returns the z of ``strength^2 = strength(before)^2 + times / z^2``, if there is one."""
    left = strength**2 - _strength(before) ** 2
    return math.sqrt(times / left) if left > 0 else None


def _unsampled_multiplier(
    epsilon: float, delta: float, times: int, before: Sequence[Released]
) -> float | None:
    """Returns the multiplier in closed form, or None if no budget is left."""
    import dp_accounting

    with np.errstate(divide="ignore"):
        sigma = dp_accounting.get_sigma_gaussian(epsilon, delta)
    return _remaining(1 / (sigma * (1 + _SLACK)), times, before)


def _sampled_multiplier(
    epsilon: float, delta: float, times: int, sample_rate: float, before: Sequence[Released]
) -> float | None:
    """Searches for the multiplier; returns None if no budget is left."""
    import dp_accounting

    def all_with(multiplier: float) -> list[Released]:
        return [*before, Released(times, multiplier, sample_rate)]

    least: float | None = _LEAST
    if sample_rate == 1:
        whole = [event for event in before if event.sample_rate == 1]
        least = _remaining(1 / (_LEAST * (1 + _SLACK)), times, whole)
    if least is None or _epsilon(before, delta) >= epsilon:
        return None
    # Start with a lot of noise: the less noise, the slower the accounting.
    upper = 8 * least
    while _epsilon(all_with(upper), delta) > epsilon:
        upper *= 4
        if upper > 1e6 * least:
            return None
    lower = max(upper / 2, least)
    while _epsilon(all_with(lower), delta) <= epsilon:
        if lower == least:
            return least
        upper, lower = lower, max(lower / 2, least)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    multiplier = dp_accounting.calibrate_dp_mechanism(
        lambda: dp_accounting.pld.PLDAccountant(relation),
        lambda multiplier: _dp_event(_merged(all_with(multiplier))),
        epsilon,
        delta,
        dp_accounting.ExplicitBracketInterval(lower, upper),
        tol=1e-6 * upper,
    )
    return float(multiplier)
