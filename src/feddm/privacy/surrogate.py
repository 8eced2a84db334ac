"""Sums of which a linear model of public features is made, each with a bound.

An example x has public features phi(x) (`feddm.core.scattering`) and a label y. It adds

    mean       [clip(phi(x)), s]                of length R at most
    moments    c c^T for each frequency,        of Frobenius length C^2 at most
               where c = clip(phi(x) - center, C)
    classes    c to the sum of its class        of length C at most
    residual   r z^T, where z is c whitened and scaled to length 1, and r is
               clip(softmax(W z) - onehot(y), 1): of length 1 at most

The center, the whitening matrices and W come from the server, and may be anything: the bounds
hold for all of them. Moments are bounded because the squared Frobenius length over all
frequencies is ``sum_f |c_f|^4 <= |c|^4``.

Factors are rounded towards 0 to multiples of ``1 / FACTOR`` of their bound, which makes none
longer, and so their products are multiples of ``1 / GRID``. Sums of products are then exact in
double precision, in any order: one more example changes a sum by exactly its product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from feddm.config.schema import GuaranteedSettings
from feddm.core.examples import Examples
from feddm.core.scattering import Cache, WhitenedFeatures
from feddm.core.tensors import Tensors
from feddm.privacy.accounting import Released
from feddm.privacy.clipping import GRID, shortened, whole
from feddm.privacy.noise import digest
from feddm.privacy.per_example import PLACES, in_places
from feddm.privacy.units import Unit, units_of

Kind = Literal["mean", "moments", "classes", "residual"]
KINDS: tuple[Kind, ...] = ("mean", "moments", "classes", "residual")

FACTOR = 2**16  # squared it is GRID
assert FACTOR**2 == GRID
COUNT_SHARE = 0.05  # of the squared bound of a mean, for the entry that counts
# Products are below 2^32 in size, and sums of so many are exact in double precision.
_EXACT = 2**20
_whitened = Cache(2**30)


class SurrogateSettings(GuaranteedSettings):
    """Noisy sums of public features: mean, moments, and the residuals of every round."""

    mechanism: Literal["surrogate"] = "surrogate"
    clip: float = Field(
        0.3, ge=1e-6, le=1e6, description="Clipping norm of an example's centered features."
    )
    mean_share: float = Field(
        0.06, gt=0, lt=1, description="Share of the budget for the mean, in squared 1 / noise."
    )
    moments_share: float = Field(
        0.30, gt=0, lt=1, description="Share of the budget for the second moments."
    )
    classes_share: float = Field(
        0.06, gt=0, lt=1, description="Share of the budget for the class sums beside them."
    )

    instead = {  # noqa: RUF012  # a ClassVar
        "steps": "every round is one step; set rounds",
        "sample_rate": "every round sees all examples of a client",
        "projection": "it is for --privacy features",
        "learn": "it is for --privacy features",
    }


@dataclass(frozen=True)
class Schedule:
    """Which sums a client releases in which round, and under how much noise.

    One round releases everything around a public center. Two release the mean first. All
    further rounds release residuals.

    Args:
        rounds: Rounds of the run.
        noise_multiplier: Of all releases together, as one: ``1 / z^2 = sum_i 1 / z_i^2``.
        shares: Shares of the mean, the moments and the class sums in ``1 / z^2``; residuals
            have the rest.
    """

    rounds: int
    noise_multiplier: float
    shares: tuple[float, float, float]

    def kinds(self, round_: int) -> tuple[Kind, ...]:
        """Returns what is released in a round, counted from 1.

        >>> schedule = Schedule(rounds=3, noise_multiplier=1.0, shares=(0.1, 0.2, 0.3))
        >>> [schedule.kinds(number) for number in (1, 2, 3)]
        [('mean',), ('moments', 'classes'), ('residual',)]
        """
        if self.rounds == 1:
            return ("mean", "moments", "classes")
        if round_ <= 2:
            return ("mean",) if round_ == 1 else ("moments", "classes")
        return ("residual",)

    def multiplier(self, kind: Kind) -> float:
        """Returns the noise multiplier of a sum.

        >>> schedule = Schedule(rounds=6, noise_multiplier=1.0, shares=(0.25, 0.25, 0.25))
        >>> schedule.multiplier("mean"), schedule.multiplier("residual")
        (2.0, 4.0)
        """
        first = dict(zip(KINDS[:3], self.shares, strict=True))
        if kind == "residual":
            each = (1 - sum(self.shares)) / (self.rounds - 2)
        elif self.rounds <= 2:
            each = first[kind] / sum(self.shares)  # there are no residuals
        else:
            each = first[kind]
        return self.noise_multiplier / math.sqrt(each)

    def released(self, kinds: tuple[Kind, ...]) -> tuple[Released, ...]:
        """Returns the releases of sums of these kinds."""
        return tuple(Released(1, self.multiplier(kind)) for kind in kinds)

    @property
    def planned(self) -> tuple[Released, ...]:
        """The releases of a client that takes part in every round."""
        residuals = max(self.rounds - 2, 0)
        first = self.released(KINDS[:3])
        if not residuals:
            return first
        return (*first, Released(residuals, self.multiplier("residual")))


@dataclass(frozen=True)
class Bounds:
    """The most that one unit adds to each sum.

    Args:
        longest: The most that features are long.
        clip: ``C``, the most that centered features are long.
    """

    longest: float
    clip: float

    @property
    def count(self) -> float:
        """What an example adds to the entry that counts, ``s``."""
        return self.of("mean") * math.sqrt(COUNT_SHARE)

    def of(self, kind: Kind) -> float:
        """Returns the bound of a sum.

        >>> bounds = Bounds(longest=2.0, clip=0.5)
        >>> bounds.of("moments"), bounds.of("classes"), bounds.of("residual")
        (0.25, 0.5, 1.0)
        """
        return {
            "mean": self.longest / math.sqrt(1 - COUNT_SHARE),
            "moments": self.clip**2,
            "classes": self.clip,
            "residual": 1.0,
        }[kind]


@dataclass(frozen=True)
class Sums:
    """What is summed over the examples of one client.

    Args:
        model: The model of public features.
        clip: Clipping norm of centered features.
        unit: Whose contribution is bounded.
    """

    model: WhitenedFeatures
    clip: float
    unit: Unit = "example"

    @property
    def bounds(self) -> Bounds:
        """The most that a unit adds."""
        return Bounds(self.model.scattering.longest, self.clip)

    def numbers(self, kind: Kind) -> int:
        """Returns how many numbers a sum has."""
        scattering, classes = self.model.scattering, self.model.num_classes
        return {
            "mean": scattering.size + 1,
            "moments": sum(block.size * block.channels for block in scattering.blocks),
            "classes": classes * scattering.size,
            "residual": classes * scattering.size,
        }[kind]

    def of(self, kind: Kind, params: Tensors, data: Examples) -> Tensor:
        """Returns a sum before noise, in whole numbers of its bound / `GRID`.

        Args:
            kind: What is summed.
            params: What the server sent: center, whitening and weights, as far as needed.
            data: All examples of a client.
        """
        left, right = self._factors(kind, params, data)
        units = units_of(data, self.unit)
        total = torch.zeros(self.numbers(kind), dtype=torch.int64)
        if self.unit == "example":
            for first in range(0, len(data), _EXACT):
                part = slice(first, first + _EXACT)
                total += self._products(kind, left[part], right[part]).long()
            return total
        bound = self.bounds.of(kind)
        for number in units.unique().tolist():
            mine = units == number
            one = self._products(kind, left[mine], right[mine]) * (bound / GRID)
            total += whole(shortened(one[None], bound), bound)[0]
        return total

    def _factors(self, kind: Kind, params: Tensors, data: Examples) -> tuple[Tensor, Tensor]:
        """Returns the two factors of each example's product, in whole numbers of 1 / `FACTOR`.

        An example sees no other: it has a place of its own in a batch of fixed size.
        """
        if kind == "residual":
            right = self._whitened(params, data).double()
            return self._residuals(right, params["linear.weight"], data), right
        width = {"mean": 1, "moments": 0, "classes": self.model.num_classes}[kind]
        left = torch.zeros(len(data), width, dtype=torch.float64)
        size = self.model.scattering.size + (kind == "mean")
        right = torch.zeros(len(data), size, dtype=torch.float64)
        rows = {"mean": self._mean_rows, "moments": self._centred, "classes": self._centred}
        for batch in in_places(data):
            right[batch.numbers] = _rounded(rows[kind](params, batch.x))[batch.places]
        if kind == "mean":
            left[:] = FACTOR
        elif kind == "classes":
            left[torch.arange(len(data)), data.y] = FACTOR
        return left, right

    def _mean_rows(self, params: Tensors, x: Tensor) -> Tensor:
        """Returns rows of length 1 at most: a feature vector, and a number that counts it."""
        del params
        most = math.sqrt(1 - COUNT_SHARE)
        rows = shortened(self.model.scattering(x) / self.model.scattering.longest * most, most)
        return torch.cat([rows, rows.new_full((len(rows), 1), math.sqrt(COUNT_SHARE))], 1)

    def _centred(self, params: Tensors, x: Tensor) -> Tensor:
        """Returns centered features, clipped, with the clip as the unit."""
        return shortened((self.model.scattering(x) - params["center"]) / self.clip, 1.0)

    def _whitened(self, params: Tensors, data: Examples) -> Tensor:
        """Returns whitened features in whole numbers of 1 / `FACTOR`, which float32 holds.

        They are the same in all rounds with one whitening, and are kept.
        """
        sent = {name: tensor for name, tensor in params.items() if name != "linear.weight"}
        key = (self, data.normalization, digest({"sent": sent, "data": {"x": data.x}}))
        rows = _whitened.get(key)
        if rows is None:
            rows = torch.zeros(len(data), self.model.scattering.size)
            for batch in in_places(data):
                seen = self.model(params, batch.x).embedding
                rows[batch.numbers] = _rounded(shortened(seen, 1.0)).float()[batch.places]
            _whitened.put(key, rows)
        return rows

    def _residuals(self, rows: Tensor, weight: Tensor, data: Examples) -> Tensor:
        """Returns ``softmax(W z) - onehot(y)``, clipped, in whole numbers of 1 / `FACTOR`.

        Weights are rounded so that their products with features, and sums of these, are exact.
        """
        largest = float(weight.abs().max())
        scale = largest / 2**30
        if not 1e-30 < scale < 1e30:  # nothing, or nothing that can be used
            weight, scale = torch.zeros_like(weight), 1.0
        logits = (rows @ (weight.double() / scale).round().T * (scale / FACTOR)).float()
        left = torch.zeros(len(rows), self.model.num_classes, dtype=torch.float64)
        # Sums over classes are not exact: in each batch an example has a place of its own.
        for numbers, places in _places(rows):
            placed = torch.zeros(PLACES, self.model.num_classes)
            placed[places] = logits[numbers]
            y = torch.zeros(PLACES, dtype=torch.int64)
            y[places] = data.y[numbers]
            residual = torch.softmax(placed, 1) - _one_hot(y, self.model.num_classes)
            left[numbers] = _rounded(shortened(residual, 1.0))[places]
        return left

    def _products(self, kind: Kind, left: Tensor, right: Tensor) -> Tensor:
        """Returns the sum of products, exact, as one vector."""
        if kind != "moments":
            return (left.T @ right).flatten()
        return torch.cat(
            [
                torch.einsum("nfc,nfd->fcd", part, part).flatten()
                for part in self._by_block(right)
            ]
        )

    def _by_block(self, rows: Tensor) -> Iterator[Tensor]:
        """Yields the part of each block, of shape ``(n, frequencies, channels)``."""
        blocks = self.model.scattering.blocks
        parts = rows.split([block.size for block in blocks], 1)
        for (frequencies, channels), part in zip(blocks, parts, strict=True):
            yield part.view(len(rows), frequencies, channels)


def _rounded(rows: Tensor) -> Tensor:
    """Returns rows in whole numbers of 1 / `FACTOR`, rounded towards 0."""
    return (rows.double() * FACTOR).trunc()


def _places(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields batches of rows by their numbers, and the places that they choose themselves."""
    places = rows.sum(1).long() % PLACES  # the sum is exact
    same = places == torch.arange(PLACES)[:, None]
    turns = (same.cumsum(1) - 1)[places, torch.arange(len(places))]
    for turn in range(int(turns.max()) + 1 if len(turns) else 0):
        numbers = (turns == turn).nonzero().flatten()
        yield numbers, places[numbers]


def _one_hot(y: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(y, classes).float()
