"""The one way in which what depends on examples leaves a client: under noise, and on record."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from feddm.privacy.accounting import Event, Released, Unprotected
from feddm.privacy.clipping import GRID, real
from feddm.privacy.noise import Label, Secret, gaussian, poisson_sample

# Deviations over the bound; of more, single whole numbers would not be drawn.
_MOST_NOISE = 2**17


class Noise:
    """A client's noise of one round, which also keeps what was released under it.

    Whoever adds noise through this object cannot forget to account for it, and cannot use the
    same noise for two sums.

    Args:
        secret: Of the client.
        round_: Number of the round.
        context: Digest of a number that never comes again, and of all that decides the sums:
            what was downloaded, the settings, and the examples themselves. With another one of
            these, the noise is another.
    """

    def __init__(self, secret: Secret, round_: int, context: bytes) -> None:
        self._secret = secret
        self._round = round_
        self._context = context
        self._rates: dict[int, float] = {}
        self._released: dict[int, Released] = {}
        self._unprotected: tuple[Unprotected, ...] = ()

    @property
    def released(self) -> tuple[Event, ...]:
        """What left under noise so far."""
        return (*self._unprotected, *self._released.values())

    def sample(self, number: int, num: int, rate: float) -> Tensor:
        """Returns which of `num` examples the sum of this number is over.

        Each is in the sample by itself with probability `rate`. A sum whose sample was not
        drawn here is over all examples.
        """
        if number in self._rates or number in self._released:
            raise ValueError(f"the sample of sum {number} was drawn already")
        self._rates[number] = rate
        return poisson_sample(self._secret, self._label("sample", number), num, rate)

    def added(self, number: int, total: Tensor, bound: float, multiplier: float) -> Tensor:
        """Returns a sum with noise of ``multiplier * bound`` deviations on each of its numbers.

        Args:
            number: Of the sum in this round; every sum has one of its own.
            total: The sum in whole numbers, as `clipping.whole` makes them.
            bound: The most that one unit of privacy can change it, in Euclidean length.
            multiplier: Deviations of the noise over the bound.
        """
        if number in self._released:
            raise ValueError(f"sum {number} was released already")
        event = Released(1, multiplier, self._rates.get(number, 1.0))
        if total.dtype != torch.int64:
            raise ValueError("a sum must be in whole numbers, because others are not exact")
        if multiplier > _MOST_NOISE:
            raise ValueError(f"noise must be at most {_MOST_NOISE}, got {multiplier}")
        noise = gaussian(self._secret, self._label("sum", number), total.shape)
        noise.mul_(multiplier * GRID).round_()
        self._released[number] = event
        return real(total + noise.long().to(total.device), bound)

    def unprotected(self, number: int, shape: Sequence[int], what: str) -> Tensor:
        """Returns noise for a release that it does not protect, which then has no guarantee."""
        self._unprotected = (Unprotected(what),)
        return gaussian(self._secret, self._label("unprotected", number), shape)

    def _label(self, purpose: str, number: int) -> Label:
        return Label(purpose, self._round, number, self._context)


def needed(noise: Noise | None) -> Noise:
    """Returns the noise of a client that cannot do without."""
    if noise is None:
        raise ValueError("private clients need noise")
    return noise
