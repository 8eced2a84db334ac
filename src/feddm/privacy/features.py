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
from dataclasses import dataclass

import torch
from torch import Tensor

from feddm.augmentation import Transform, unchanged_images
from feddm.data.examples import Examples
from feddm.matching import ClassMeans, class_sums
from feddm.models import Around, Model, Outputs, chunks
from feddm.privacy.units import Unit, units_of
from feddm.tensors import Tensors

# Clipping ends this much below the bound, so that rounding cannot carry a sum beyond it.
_SLACK = 1e-5


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


def shortened(rows: Tensor, most: float) -> Tensor:
    """Returns rows that are at most so long; one with a number that is not finite becomes 0.

    >>> shortened(torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 1.0]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000],
            [0.0000, 0.0000]])
    """
    good = rows.isfinite().all(1, keepdim=True)
    rows = torch.where(good, rows, torch.zeros_like(rows))
    # By the largest number first, so that the squares of huge ones do not overflow.
    largest = rows.detach().abs().amax(1, keepdim=True).clamp(min=1e-30)
    # In double precision: of millions of numbers, single precision forgets the small ones.
    length = largest * torch.linalg.vector_norm(
        rows / largest, dim=1, keepdim=True, dtype=torch.float64
    )
    share: Tensor = (most * (1 - _SLACK) / length).clamp(max=1.0)
    return rows * share.to(rows.dtype)


def class_totals(
    model: Bounded,
    params: Tensors,
    data: Examples,
    bound: Bound,
    transform: Transform = unchanged_images,
    unit: Unit = "example",
) -> Tensor:
    """Returns the sums of one network before noise: a row for every class, empty or not.

    What a unit of several examples adds is clipped once more, as a whole.

    Args:
        model: The model that sees the examples, bounded by ``bound.features``.
        params: The network.
        data: All examples of a client.
        bound: What an example may add.
        transform: Changes the images first; the same for all.
        unit: Whose contribution is bounded.
    """
    total = empty_totals(model, params, bound)
    if unit == "example":
        return total.add_(
            _sums(model, params, data, torch.arange(len(data)), bound, transform)
            if len(data)
            else 0.0
        )
    units = units_of(data, unit)
    for number in units.unique():
        index = (units == number).nonzero().flatten()
        one = _sums(model, params, data, index, bound, transform)
        total.add_(shortened(one.view(1, -1), bound.length).view_as(one))
    return total


def _sums(
    model: Bounded,
    params: Tensors,
    data: Examples,
    index: Tensor,
    bound: Bound,
    transform: Transform,
) -> Tensor:
    """Returns the sums over some examples, of which there is at least one."""
    total: Tensor | None = None
    with torch.no_grad():
        for part in chunks(index.to(data.x.device)):
            batch = data[part]
            outputs = model(params, transform(batch.x))
            sums = _with_counts(outputs, batch.y, model.num_classes, bound)
            total = sums if total is None else total.add_(sums)
    assert total is not None
    return total


def empty_totals(model: Model, params: Tensors, bound: Bound) -> Tensor:
    """Returns the sums of a client without examples."""
    device = next(iter(params.values())).device
    with torch.no_grad():
        outputs = model(params, torch.zeros(1, *model.shape, device=device))
    return torch.zeros_like(
        _with_counts(
            outputs,
            torch.zeros(1, dtype=torch.int64, device=device),
            model.num_classes,
            bound,
        )
    )


def _with_counts(outputs: Outputs, y: Tensor, num_classes: int, bound: Bound) -> Tensor:
    # In double precision, so that what many examples add up to loses nothing.
    exact = Outputs(*(tensor.double() for tensor in outputs))
    ones = torch.full((len(y), 1), bound.count, dtype=torch.float64, device=y.device)
    sums = class_sums(
        Outputs(torch.cat([exact.embedding, ones], 1), exact.logits), y, num_classes
    )
    return torch.cat([sums.embedding, sums.logits], 1)


def noisy_means(
    totals: Tensor, num_classes: int, bound: Bound, floor: float
) -> tuple[Tensor, ClassMeans]:
    """Returns the count of each class and the means, from noisy sums alone.

    Args:
        totals: Noisy sums, a row for every class.
        num_classes: Number of logits, the last columns.
        bound: What an example added.
        floor: Counts are taken to be at least this, so that means stay of a size.
    """
    embedding, ones, logits = totals.split(
        [totals.shape[1] - num_classes - 1, 1, num_classes], 1
    )
    counts = ones / bound.count
    divisor = counts.clamp(min=floor)
    return counts[:, 0], ClassMeans((embedding / divisor).float(), (logits / divisor).float())
