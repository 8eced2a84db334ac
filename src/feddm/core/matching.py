"""Distribution matching: synthetic images whose class means are close to those of real images.

Zhao and Bilen. Dataset Condensation with Distribution Matching. WACV 2023.
https://arxiv.org/abs/2110.04181

FedDM matches near the server's current weights instead of at random initializations, and
matches the mean logits as well as the mean embedding.
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

Perturb = Callable[[Tensor, Tensor, int], Tensor]  # image gradient, slots, step
Distance = Callable[["ClassMeans", "ClassMeans"], Tensor]  # real means, synthetic means
_TINY = 1e-12  # squared norm below which means count as 0


class ClassMeans(NamedTuple):
    """Mean embedding and mean logits per slot."""

    embedding: Tensor  # (slots, features)
    logits: Tensor  # (slots, classes)


class Target(NamedTuple):
    """A network near the server's weights, and its class means on real data.

    If the real images were transformed first, the synthetic images are transformed alike.
    """

    params: Tensors
    means: ClassMeans
    transform: Transform = unchanged_images


def sample_near(params: Tensors, radius: float, rng: torch.Generator) -> dict[str, Tensor]:
    """Returns ``w ~ Clip(N(params, 1), radius)``, one Gaussian over all parameters.

    With more than a few parameters, clipping practically always applies, and the result is a
    point at distance `radius` in a uniformly random direction. ``radius = 0`` returns `params`.
    """
    # Sorted, so that the draw does not depend on the order of the mapping; on the CPU, so that
    # it does not depend on the device.
    noise = {name: torch.randn(params[name].shape, generator=rng) for name in sorted(params)}
    scale = min(1.0, radius / norm(noise))
    return {
        name: noise[name].to(center.device).mul_(scale).add_(center)
        for name, center in params.items()
    }


def class_sums(outputs: Outputs, slots: Tensor, num_slots: int) -> ClassMeans:
    """Returns the sum of the outputs per slot."""
    belongs = slots == torch.arange(num_slots, device=slots.device)[:, None]
    belongs = belongs.to(outputs.logits.dtype)
    return ClassMeans(belongs @ outputs.embedding, belongs @ outputs.logits)


def class_means(outputs: Outputs, slots: Tensor, num_slots: int) -> ClassMeans:
    """Returns the mean outputs per slot; every slot must have at least one image."""
    counts = torch.bincount(slots, minlength=num_slots)[:, None]
    return ClassMeans(*(sums / counts for sums in class_sums(outputs, slots, num_slots)))


def matching_loss(real: ClassMeans, synthetic: ClassMeans) -> Tensor:
    """Returns Eq. obj: squared distances between the means, summed over classes."""
    gaps = (r - s for r, s in zip(real, synthetic, strict=True))
    return torch.stack([gap.square().sum() for gap in gaps]).sum()


def relative_loss(real: ClassMeans, synthetic: ClassMeans) -> Tensor:
    """Returns squared distances relative to the real means, summed over classes.

    As the server trains, its weights grow, and with them the outputs and their derivatives: at
    the same learning rate, steps down `matching_loss` grow until they overshoot. Here, a
    network whose outputs are twice as large has the same loss and the same gradient. A class
    whose real means are 0 is left out, because its relative distance is undefined.
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
    """Returns the mean outputs of real examples per slot, in bounded memory.

    Args:
        model: The model.
        params: Its parameters.
        data: Examples of one client.
        members: The examples to average; every slot must have at least one.
        transform: Applied to the images first.
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
    """Yields an endless stream of new networks with new real batches, one per step."""
    while True:
        params = sample_near(center, radius, rng)
        drawn = members.sample(batch_size, rng)
        transform = augmentation.shared(rng) if augmentation else unchanged_images
        yield Target(params, real_means(model, params, data, drawn, transform), transform)


def completing(
    model: Model, targets: Iterable[Target], earlier: Tensor, slots: Tensor, new: Tensor
) -> Iterator[Target]:
    """Yields targets that new images reach if they match together with earlier ones.

    ``n`` new images and ``m`` earlier ones with the means ``e`` have the real means ``r`` if
    the new ones alone have ``r + m/n (r - e)``. Without earlier images that is ``r``.

    Args:
        model: The model.
        targets: Networks with their real means.
        earlier: The earlier images.
        slots: The slot of each of them.
        new: Number of new images per slot.
    """
    counts = torch.bincount(slots, minlength=len(new))[:, None].to(earlier.device)
    new = new[:, None].to(earlier.device)
    slots = slots.to(earlier.device)
    for target in targets:
        sums = [torch.zeros_like(mean) for mean in target.means]
        with torch.no_grad():
            for part, here in zip(chunks(earlier), chunks(slots), strict=True):
                outputs = model(target.params, target.transform(part))
                for total, more in zip(sums, class_sums(outputs, here, len(new)), strict=True):
                    total += more
        means = (
            mean + (counts * mean - total) / new
            for mean, total in zip(target.means, sums, strict=True)
        )
        yield target._replace(means=ClassMeans(*means))


def unperturbed(gradient: Tensor, slots: Tensor, step: int) -> Tensor:
    """A `Perturb` that leaves gradients unchanged."""
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
    """Returns the images after one SGD step per target, and the loss before each step.

    Args:
        model: The model.
        images: Initial synthetic images; not modified.
        slots: Slot of each image, ascending.
        targets: A network and its real means for each step; at most `steps` are drawn.
        lr: Learning rate of the images, ``eta_c``.
        momentum: SGD momentum; the paper uses 0.
        steps: Number of steps, ``T``; 0 returns the images unchanged.
        distance: The loss to minimize; must be a sum over classes.
        perturb: Applied to each gradient before the step.
        tick: Called with the fraction done.
    """
    images = images.clone()
    velocity = torch.zeros_like(images)
    losses = []
    groups = list(whole_slots(slots, CHUNK))
    slots = slots.to(images.device)
    for step, target in zip(range(steps), targets, strict=False):
        loss = torch.zeros((), device=images.device)
        # The loss is a sum over classes, so processing a few at a time gives the same gradient.
        for first, last, part in groups:
            means = ClassMeans(*(mean[first:last] for mean in target.means))
            gradient, share = image_gradient(
                model, images[part], slots[part] - first, target._replace(means=means), distance
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
    """Yields nearly equal groups of whole slots, with about `most` images at most.

    A group is its first slot, its last slot plus one, and the slice of its images. The groups
    are nearly equal because torch would compile a separate version for a small batch.

    >>> [last - first for first, last, _ in whole_slots(torch.arange(10), 3)]
    [3, 3, 2, 2]
    """
    ends = [0, *torch.bincount(slots).cumsum(0).tolist()]
    number = math.ceil(ends[-1] / most)
    for group in torch.arange(len(ends) - 1).tensor_split(min(number, len(ends) - 1)):
        first, last = int(group[0]), int(group[-1]) + 1
        yield first, last, slice(ends[first], ends[last])
