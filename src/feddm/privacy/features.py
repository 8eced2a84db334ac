"""Feature release: noisy class sums of what networks see of a client's examples.

For one network, an example x adds the vector

    [clip(P h_w(x), z_w(x)), s]        of length at most C

to the sum of its class. The last entry counts it, and is put there after the clip. Classes are
those of a public list, and a class without examples has the sum 0. So adding or removing one
example changes all sums of one network together by at most C, whatever the example, and
whatever the weights. Noise is added once; all that follows looks at the noisy sums alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from feddm.config.schema import GuaranteedSettings
from feddm.core.augmentation import Transform, unchanged_images
from feddm.core.examples import Examples
from feddm.core.matching import ClassMeans
from feddm.core.models import Around, Model, Outputs
from feddm.core.tensors import Tensors
from feddm.privacy.clipping import shortened, whole
from feddm.privacy.per_example import in_places
from feddm.privacy.units import Unit, units_of


class FeatureSettings(GuaranteedSettings):
    """Noisy class sums of features."""

    mechanism: Literal["features"] = "features"
    projection: NonNegativeInt = Field(
        64, description="Size to which embeddings are projected; 0: not projected."
    )
    learn: Literal["client", "server"] = Field(
        "server", description="Where images are learned from the noisy sums."
    )

    instead = {  # noqa: RUF012  # a ClassVar
        "steps": "it is for --privacy gradients",
        "sample_rate": "it is for --privacy gradients",
    }

    @property
    def sends_sums(self) -> bool:
        return self.learn == "server"


@dataclass(frozen=True)
class Bound:
    """The most that one example adds to the sums of one network, and how it is spent.

    Args:
        length: ``C``, the length of the whole contribution.
        count_share: Share of ``C^2`` for the entry that counts examples.
    """

    length: float
    count_share: float = 0.05

    @property
    def count(self) -> float:
        """What an example adds to the entry that counts, ``s``."""
        return math.sqrt(self.count_share) * self.length

    @property
    def features(self) -> float:
        """The most that the features of an example may be long, ``sqrt(C^2 - s^2)``.

        >>> Bound(5.0, count_share=0.36).count, Bound(5.0, count_share=0.36).features
        (3.0, 4.0)
        """
        return math.sqrt(1 - self.count_share) * self.length


@dataclass(frozen=True, eq=False)
class Bounded(Around):
    """A model whose embedding and logits together are never longer than a bound.

    What is too long is shortened, and what is not finite becomes 0. Real and synthetic images
    are seen through the same model, so that clipping shifts both alike.

    Args:
        model: The model inside.
        most: The bound.
        projection: Multiplies the embedding first: fewer numbers need less noise in all.
    """

    most: float
    projection: Tensor | None = None

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        embedding, logits = self.model(params, x)
        if self.projection is not None:
            embedding = embedding @ self.projection
        both = shortened(torch.cat([embedding, logits], 1), self.most)
        return Outputs(*both.split([embedding.shape[1], logits.shape[1]], 1))


def class_totals(
    model: Bounded,
    params: Tensors,
    data: Examples,
    bound: Bound,
    transform: Transform = unchanged_images,
    unit: Unit = "example",
) -> Tensor:
    """Returns the sums of one network before noise: a row for every class, empty or not.

    They are in whole numbers of ``bound.length / GRID``. What a unit of several examples adds
    is clipped once more, as a whole.

    Args:
        model: The model that sees the examples, bounded by ``bound.features``.
        params: The network.
        data: All examples of a client.
        bound: What an example may add.
        transform: Changes the images first; the same for all.
        unit: Whose contribution is bounded.
    """
    device = data.x.device
    shape = totals_shape(model, params)
    total = torch.zeros(shape, dtype=torch.int64, device=device)
    if unit == "example":
        for numbers, rows in _seen(model, params, data, bound, transform):
            total.index_add_(0, data.y[numbers], whole(rows, bound.length))
        return total
    each = torch.zeros(len(data), shape[1], device=device)
    for numbers, rows in _seen(model, params, data, bound, transform):
        each[numbers] = rows
    units = units_of(data, unit).to(device)
    for number in units.unique():
        mine = units == number
        one = torch.zeros(shape, dtype=torch.float64, device=device)
        one.index_add_(0, data.y[mine], each[mine].double())
        total += whole(shortened(one.view(1, -1), bound.length), bound.length).view(shape)
    return total


def _seen(
    model: Bounded, params: Tensors, data: Examples, bound: Bound, transform: Transform
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields some examples after others, and the rows that they add to the sums."""
    for batch in in_places(data):
        with torch.no_grad():
            outputs = model(params, transform(batch.x))
        rows = torch.cat(outputs, 1)[batch.places]
        yield batch.numbers, torch.cat([rows, rows.new_full((len(rows), 1), bound.count)], 1)


def totals_shape(model: Model, params: Tensors) -> tuple[int, int]:
    """Returns the shape of the sums of one network: its numbers, and one that counts."""
    device = next(iter(params.values())).device
    with torch.no_grad():
        embedding, logits = model(params, torch.zeros(1, *model.shape, device=device))
    return model.num_classes, embedding.shape[1] + logits.shape[1] + 1


def noisy_means(
    totals: Tensor, num_classes: int, bound: Bound, floor: float
) -> tuple[Tensor, ClassMeans]:
    """Returns the count of each class and the means, from noisy sums alone.

    Args:
        totals: Noisy sums, a row for every class.
        num_classes: Number of logits, the columns before the last.
        bound: What an example added.
        floor: Counts are taken to be at least this, so that means stay of a size.
    """
    embedding, logits, ones = totals.split(
        [totals.shape[1] - num_classes - 1, num_classes, 1], 1
    )
    counts = ones / bound.count
    divisor = counts.clamp(min=floor)
    return counts[:, 0], ClassMeans((embedding / divisor).float(), (logits / divisor).float())
