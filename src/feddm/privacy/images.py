"""Gradients with respect to synthetic images, of which one example decides a bounded part.

With class means ``m(S)`` of the synthetic images, and ``phi(x)`` for embedding and logits of a
real example, the matching loss of a class has the gradient

    mean_x g(x),        g(x) = 2 J^T (m(S) - phi(x)),        J = d m(S) / d S

so that it is an average over examples, each of which can be clipped. That takes a backward pass
an example, and one example at a time, so that none depends on the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from feddm.core.examples import Examples
from feddm.core.matching import class_means
from feddm.core.models import Model
from feddm.core.tensors import Tensors
from feddm.privacy.clipping import shortened, whole
from feddm.privacy.per_example import alone


def clipped_image_gradient_sum(
    model: Model,
    images: Tensor,
    slots: Tensor,
    params: Tensors,
    data: Examples,
    most: float,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """Returns the sum of the units' gradients, each of length `most` at most.

    It is in whole numbers of ``most / GRID``.

    Args:
        model: The model.
        images: Synthetic images, of every class of a public list.
        slots: The class of each image.
        params: The network.
        data: Real examples; none at all give 0.
        most: Length of a unit's gradient, ``C``.
        sizes: How many examples each unit has, in their order; by default each has one.
    """
    leaf = images.detach().requires_grad_()
    ours = torch.cat(class_means(model(params, leaf), slots, model.num_classes), 1)

    def gradient(number: int) -> Tensor:
        one = alone(data, number)
        with torch.no_grad():
            theirs = torch.cat(model(params, one.x), 1)[0]
        mine = ours[int(one.y)]
        gap = 2 * (mine.detach() - theirs)
        (each,) = torch.autograd.grad(mine, leaf, gap, retain_graph=True)
        return each

    total = torch.zeros_like(images, dtype=torch.int64)
    examples = iter(range(len(data)))
    for size in [1] * len(data) if sizes is None else sizes:
        unit = torch.zeros_like(images, dtype=torch.float64)
        for number in itertools.islice(examples, size):
            unit += gradient(number)
        total += whole(shortened(unit.view(1, -1), most), most).view_as(total)
    return total
