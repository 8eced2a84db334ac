"""Gradients with respect to synthetic images, of which one example decides a bounded part.

With class means ``m(S)`` of the synthetic images, and ``phi(x)`` for embedding and logits of a
real example, the matching loss of a class has the gradient

    mean_x g(x),        g(x) = 2 J^T (m(S) - phi(x)),        J = d m(S) / d S

so that it is an average over examples, each of which can be clipped. That takes a backward pass
an example.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from feddm.data.examples import Batch
from feddm.formation import expanded
from feddm.matching import class_means
from feddm.models import Model, chunks
from feddm.privacy.features import shortened
from feddm.tensors import Tensors


def clipped_image_gradient_sum(
    model: Model,
    images: Tensor,
    slots: Tensor,
    params: Tensors,
    batch: Batch,
    most: float,
    formation: int = 1,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """Returns the sum of the units' gradients, each of length `most` at most, as float64.

    Args:
        model: The model.
        images: Synthetic images, of every class of a public list.
        slots: The class of each image.
        params: The network.
        batch: Real examples; none at all give 0.
        most: Length of a unit's gradient, ``C``.
        formation: Each image holds so many small ones a side.
        sizes: How many examples each unit has, in their order; by default each has one.
    """
    leaf = images.detach().requires_grad_()
    outputs = model(params, expanded(leaf, formation))
    each = slots.repeat_interleave(formation**2)
    ours = torch.cat(class_means(outputs, each, model.num_classes), 1)

    def added_up(x: Tensor, y: Tensor, most: float) -> Tensor:
        # In double precision, so that what many examples add up to loses nothing.
        total = torch.zeros_like(images, dtype=torch.float64)
        for part, labels in zip(chunks(x), chunks(y), strict=True):
            with torch.no_grad():
                theirs = torch.cat(model(params, part), 1)
            for slot in labels.cpu().unique().tolist():
                gaps = 2 * (ours[slot].detach() - theirs[labels == slot])
                (gradients,) = torch.autograd.grad(
                    ours[slot], leaf, gaps, retain_graph=True, is_grads_batched=True
                )
                mine = slots == slot
                rows = shortened(gradients[:, mine].flatten(1), most)
                total[mine] += rows.sum(0, dtype=torch.float64).view_as(total[mine])
        return total

    if sizes is None or all(size == 1 for size in sizes):
        return added_up(batch.x, batch.y, most)
    total = torch.zeros_like(images, dtype=torch.float64)
    for x, y in zip(batch.x.split(list(sizes)), batch.y.split(list(sizes)), strict=True):
        # Every example of a unit may be as long as the unit: they are clipped together.
        one = added_up(x, y, most)
        total += shortened(one.view(1, -1), most).view_as(one)
    return total
