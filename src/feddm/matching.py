"""Distribution matching: synthetic images whose class means look like those of real ones.

Zhao and Bilen. Dataset Condensation with Distribution Matching. WACV 2023.
https://arxiv.org/abs/2110.04181

FedDM matches near the current weights of the server instead of at random initializations, and
the mean logits beside the mean embedding. A *slot* is the place of a class among the classes
that one client has: class 7 of a client with classes 2, 5 and 7 is slot 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from feddm.data.examples import Examples
from feddm.models import Model, Outputs
from feddm.tensors import Tensors, norm
from feddm.training import Tick, ignore

CHUNK = 64  # real images a forward pass: more would leave the cache


class ClassMeans(NamedTuple):
    """Mean embedding and mean logits of each slot."""

    embedding: Tensor  # (slots, features)
    logits: Tensor  # (slots, classes)


class Target(NamedTuple):
    """A network near the server's weights, and what real data look like to it."""

    params: Tensors
    means: ClassMeans


def sample_near(params: Tensors, radius: float, rng: torch.Generator) -> dict[str, Tensor]:
    """Returns ``w ~ Clip(N(params, 1), radius)``, one Gaussian over all parameters.

    With more than a few parameters the clip always bites, and this is a point at distance
    `radius` in a uniformly random direction. ``radius = 0`` returns the parameters.
    """
    # By name, so that the draw does not depend on the order in which a mapping was filled.
    noise = {name: torch.randn(params[name].shape, generator=rng) for name in sorted(params)}
    scale = min(1.0, radius / norm(noise))
    return {name: torch.add(params[name], noise[name], alpha=scale) for name in params}


def class_means(outputs: Outputs, slots: Tensor, num_slots: int) -> ClassMeans:
    """Returns the mean outputs of each slot; every slot has at least one image."""
    average = _membership(slots, num_slots)
    average /= average.sum(1, keepdim=True)
    return ClassMeans(average @ outputs.embedding, average @ outputs.logits)


def matching_loss(real: ClassMeans, synthetic: ClassMeans) -> Tensor:
    """Returns Eq. obj: squared distances of the means, summed over classes."""
    gaps = (r - s for r, s in zip(real, synthetic, strict=True))
    return torch.stack([gap.square().sum() for gap in gaps]).sum()


def real_means(
    model: Model, params: Tensors, data: Examples, members: Sequence[Tensor]
) -> ClassMeans:
    """Returns the mean outputs of real examples, in bounded memory.

    Args:
        model: The model.
        params: The network that looks at them.
        data: Examples of one client.
        members: For each slot, which examples to average.
    """
    index = torch.cat(list(members))
    slots = torch.repeat_interleave(torch.tensor([len(m) for m in members]))
    embedding: Tensor | float = 0.0
    logits: Tensor | float = 0.0
    with torch.no_grad():
        for part, slot in zip(index.split(CHUNK), slots.split(CHUNK), strict=True):
            x = data[part].x.contiguous(memory_format=torch.channels_last)
            outputs = model(params, x)
            belongs = _membership(slot, len(members))
            embedding = embedding + belongs @ outputs.embedding
            logits = logits + belongs @ outputs.logits
    counts = torch.tensor([[len(m)] for m in members])
    return ClassMeans(torch.as_tensor(embedding) / counts, torch.as_tensor(logits) / counts)


def draw_members(
    by_class: Sequence[Tensor], batch_size: int | None, rng: torch.Generator
) -> list[Tensor]:
    """Returns a random batch of each class without repeats; ``None`` takes the whole class."""
    if batch_size is None:
        return list(by_class)
    return [
        members[torch.randperm(len(members), generator=rng)[:batch_size]]
        for members in by_class
    ]


def fresh_targets(
    model: Model,
    center: Tensors,
    radius: float,
    data: Examples,
    by_class: Sequence[Tensor],
    batch_size: int | None,
    rng: torch.Generator,
) -> Iterator[Target]:
    """Yields for ever a newly sampled network with new real batches: one for each step."""
    while True:
        params = sample_near(center, radius, rng)
        yield Target(
            params, real_means(model, params, data, draw_members(by_class, batch_size, rng))
        )


def synthesize(
    model: Model,
    images: Tensor,
    slots: Tensor,
    targets: Iterable[Target],
    *,
    lr: float,
    momentum: float = 0.0,
    steps: int,
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
        tick: Told how far the work is.
    """
    images = images.clone()
    velocity = torch.zeros_like(images)
    losses = []
    num_slots = int(slots[-1]) + 1
    for step, target in zip(range(steps), targets, strict=False):
        leaf = images.detach().requires_grad_()
        means = class_means(model(target.params, leaf), slots, num_slots)
        loss = matching_loss(target.means, means)
        (gradient,) = torch.autograd.grad(loss, leaf)
        velocity.mul_(momentum).add_(gradient)
        images.sub_(velocity, alpha=lr)
        losses.append(loss.item())
        tick((step + 1) / steps)
    return images, losses


def _membership(slots: Tensor, num_slots: int) -> Tensor:
    """Returns the matrix whose product with a batch sums it up by slot."""
    return (slots == torch.arange(num_slots)[:, None]).float()
