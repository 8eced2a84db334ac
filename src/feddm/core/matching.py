"""Distribution matching: synthetic images whose class means look like those of real ones.

Zhao and Bilen. Dataset Condensation with Distribution Matching. WACV 2023.
https://arxiv.org/abs/2110.04181

FedDM matches near the current weights of the server instead of at random initializations, and
the mean logits beside the mean embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from feddm.core.augmentation import Augmentation, Transform, unchanged_images
from feddm.core.examples import Examples, Members
from feddm.core.models import CHUNK, Model, Outputs, chunks
from feddm.core.tensors import Tensors, norm
from feddm.core.training import Tick, ignore

Perturb = Callable[[Tensor, Tensor, int], Tensor]  # gradient of images, their slots, step
Distance = Callable[["ClassMeans", "ClassMeans"], Tensor]  # of synthetic means from real ones
_TINY = 1e-12  # squared length of means that are as good as 0


class ClassMeans(NamedTuple):
    """Mean embedding and mean logits of each slot."""

    embedding: Tensor  # (slots, features)
    logits: Tensor  # (slots, classes)


class Target(NamedTuple):
    """A network near the server's weights, and what real data look like to it.

    If the real images were changed before it saw them, then so are the synthetic ones.
    """

    params: Tensors
    means: ClassMeans
    transform: Transform = unchanged_images


def sample_near(params: Tensors, radius: float, rng: torch.Generator) -> dict[str, Tensor]:
    """Returns ``w ~ Clip(N(params, 1), radius)``, one Gaussian over all parameters.

    With more than a few parameters the clip always bites, and this is a point at distance
    `radius` in a uniformly random direction. ``radius = 0`` returns the parameters.
    """
    # By name, so that the draw does not depend on the order in which a mapping was filled; on
    # the CPU, so that it does not depend on the device.
    noise = {name: torch.randn(params[name].shape, generator=rng) for name in sorted(params)}
    scale = min(1.0, radius / norm(noise))
    return {
        name: noise[name].to(center.device).mul_(scale).add_(center)
        for name, center in params.items()
    }


def class_sums(outputs: Outputs, slots: Tensor, num_slots: int) -> ClassMeans:
    """Returns the summed outputs of each slot."""
    belongs = slots == torch.arange(num_slots, device=slots.device)[:, None]
    belongs = belongs.to(outputs.logits.dtype)
    return ClassMeans(belongs @ outputs.embedding, belongs @ outputs.logits)


def class_means(outputs: Outputs, slots: Tensor, num_slots: int) -> ClassMeans:
    """Returns the mean outputs of each slot; every slot has at least one image."""
    counts = torch.bincount(slots, minlength=num_slots)[:, None]
    return ClassMeans(*(sums / counts for sums in class_sums(outputs, slots, num_slots)))


def matching_loss(real: ClassMeans, synthetic: ClassMeans) -> Tensor:
    """Returns Eq. obj: squared distances of the means, summed over classes."""
    gaps = (r - s for r, s in zip(real, synthetic, strict=True))
    return torch.stack([gap.square().sum() for gap in gaps]).sum()


def relative_loss(real: ClassMeans, synthetic: ClassMeans) -> Tensor:
    """Returns squared distances in units of the real means, summed over classes.

    While the server trains, its weights grow, and outputs and their derivatives with them: the
    same learning rate takes longer and longer steps down `matching_loss`, until they overshoot.
    Here a network whose outputs are twice as large has the same loss and the same gradient. A
    class whose real means are 0 has no unit, and does not count.
    """
    gaps = (r - s for r, s in zip(real, synthetic, strict=True))
    distances = torch.stack([gap.square().sum(1) for gap in gaps]).sum(0)
    sizes = torch.stack([mean.square().sum(1) for mean in real]).sum(0)
    return (distances / sizes.clamp(min=_TINY))[sizes > _TINY].sum()


def real_means(
    model: Model,
    params: Tensors,
    data: Examples,
    members: Members,
    transform: Transform = unchanged_images,
) -> ClassMeans:
    """Returns the mean outputs of real examples of each slot, in bounded memory.

    Args:
        model: The model.
        params: The network that looks at them.
        data: Examples of one client.
        members: Which of them to average; every slot has at least one.
        transform: Changes the images first.
    """
    slots_here = members.slots.to(data.x.device)
    counts = torch.bincount(slots_here)[:, None]
    total: ClassMeans | None = None
    with torch.no_grad():
        for index, slots in zip(chunks(members.index), chunks(slots_here), strict=True):
            sums = class_sums(model(params, transform(data[index].x)), slots, len(counts))
            total = sums if total is None else ClassMeans(*map(Tensor.add_, total, sums))
    if total is None:
        raise ValueError("a mean needs at least one example")
    return ClassMeans(*(sums / counts for sums in total))


def fresh_targets(
    model: Model,
    center: Tensors,
    radius: float,
    data: Examples,
    members: Members,
    batch_size: int | None,
    rng: torch.Generator,
    augmentation: Augmentation | None = None,
) -> Iterator[Target]:
    """Yields for ever a newly sampled network with new real batches: one for each step."""
    while True:
        params = sample_near(center, radius, rng)
        drawn = members.sample(batch_size, rng)
        transform = augmentation.shared(rng) if augmentation else unchanged_images
        yield Target(params, real_means(model, params, data, drawn, transform), transform)


def unperturbed(gradient: Tensor, slots: Tensor, step: int) -> Tensor:
    """A `Perturb` that leaves gradients as they are."""
    del slots, step
    return gradient


def synthesize(
    model: Model,
    images: Tensor,
    slots: Tensor,
    targets: Iterable[Target],
    *,
    lr: float,
    momentum: float = 0.0,
    steps: int,
    distance: Distance = matching_loss,
    perturb: Perturb = unperturbed,
    tick: Tick = ignore,
) -> tuple[Tensor, list[float]]:
    """Returns the images after one step of SGD for each target, and the loss before each step.

    Args:
        model: The model.
        images: Where the synthetic images start; they are left as they are.
        slots: The slot of each image, ascending.
        targets: A network and the real means for each step; those beyond `steps` are not drawn.
        lr: Learning rate on the images, ``eta_c``.
        momentum: Of SGD; 0 is the paper's.
        steps: How many steps, ``T``; 0 returns the images as they are.
        distance: What the steps make smaller: a sum over classes.
        perturb: Changes a gradient before the step.
        tick: Told how far the work is.
    """
    images = images.clone()
    velocity = torch.zeros_like(images)
    losses = []
    groups = list(whole_slots(slots, CHUNK))
    slots = slots.to(images.device)
    for step, target in zip(range(steps), targets, strict=False):
        loss = torch.zeros((), device=images.device)
        # The loss is a sum over classes, so a few classes at a time give the same gradient.
        for first, last, part in groups:
            means = ClassMeans(*(mean[first:last] for mean in target.means))
            part_of_target = Target(target.params, means, target.transform)
            gradient, share = image_gradient(
                model, images[part], slots[part] - first, part_of_target, distance
            )
            gradient = perturb(gradient, slots[part], step)
            images[part].sub_(velocity[part].mul_(momentum).add_(gradient), alpha=lr)
            loss += share
        losses.append(loss)
        tick((step + 1) / steps)
    return images, [float(loss) for loss in losses]


def image_gradient(
    model: Model,
    images: Tensor,
    slots: Tensor,
    target: Target,
    distance: Distance = matching_loss,
) -> tuple[Tensor, Tensor]:
    """Returns the gradient of the distance with respect to the images, and the distance."""
    leaf = images.detach().requires_grad_()
    outputs = model(target.params, target.transform(leaf))
    synthetic = class_means(outputs, slots, len(target.means.logits))
    loss = distance(target.means, synthetic)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient, loss.detach()


def whole_slots(slots: Tensor, most: int) -> Iterator[tuple[int, int, slice]]:
    """Yields groups of whole slots, nearly equal, with about `most` images at most.

    A group is its first slot, the slot after its last, and where its images lie. Nearly equal,
    because torch compiles another program for a small batch.

    >>> [last - first for first, last, _ in whole_slots(torch.arange(10), 3)]
    [3, 3, 2, 2]
    """
    ends = [0, *torch.bincount(slots).cumsum(0).tolist()]
    number = math.ceil(ends[-1] / most)
    for group in torch.arange(len(ends) - 1).tensor_split(min(number, len(ends) - 1)):
        first, last = int(group[0]), int(group[-1]) + 1
        yield first, last, slice(ends[first], ends[last])
