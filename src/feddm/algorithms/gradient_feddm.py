"""FedDM under differential privacy: every step on the images is DP-SGD.

A step sees a Poisson sample of the examples, and the gradient of each with respect to the
images is clipped (`feddm.privacy.images`). Images begin as noise, and there are images of every
class of a public list; those of which a client has too few examples, going by noisy counts, are
not uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from feddm.algorithms.base import LocalResult
from feddm.algorithms.feddm import TrainsOnUnion
from feddm.core.examples import Examples
from feddm.core.matching import sample_near
from feddm.core.tensors import Records
from feddm.core.training import Tick
from feddm.privacy.accounting import Event, Released
from feddm.privacy.clipping import shortened, whole
from feddm.privacy.images import clipped_image_gradient_sum
from feddm.privacy.release import Noise, needed
from feddm.privacy.units import Sampler, Unit, units_of

# Little noise beside a class of some dozens, and little of a budget beside many steps.
COUNT_MULTIPLIER = 10.0


@dataclass(frozen=True)
class GradientRelease:
    """What clients release in a round if every step on the images is DP-SGD.

    Args:
        steps: Steps on the images, each with a network of its own.
        radius: Distance of the networks from ``w_r``.
        sample_rate: Probability of an example to be in the sample of a step.
        expected_batch: Examples of a class in a sample, to divide by; public.
        most: Length to which gradients are clipped, ``C``.
        noise_multiplier: Deviations of the noise over ``C``.
        count_multiplier: The same for the number of examples of each class, released once.
        unit: What is sampled and clipped as a whole.
    """

    steps: int
    radius: float
    sample_rate: float
    expected_batch: float
    most: float
    noise_multiplier: float
    count_multiplier: float = COUNT_MULTIPLIER
    unit: Unit = "example"


@dataclass(frozen=True)
class GradientFedDM(TrainsOnUnion):
    """Clients learn images of every class by DP-SGD, and upload those of classes they have.

    Args:
        release: What is released of the examples.
        lr: Learning rate on the images.
        momentum: Of these steps.
    """

    release: GradientRelease
    lr: float
    momentum: float

    @property
    def planned(self) -> tuple[Event, ...]:
        release = self.release
        return (
            Released(1, release.count_multiplier),
            Released(release.steps, release.noise_multiplier, release.sample_rate),
        )

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        del memory
        noise = needed(noise)
        release = self.release
        counts = class_counts(data, self.model.num_classes, release.unit)
        sizes = noise.added(release.steps, counts, 1.0, release.count_multiplier)
        sampler = Sampler(data, release.unit)
        slots = torch.arange(self.model.num_classes).repeat_interleave(self.images_per_class)
        images = torch.randn(len(slots), *self.model.shape, generator=rng).to(data.x.device)
        slots = slots.to(images.device)
        velocity = torch.zeros_like(images)
        for step in range(release.steps):
            params = sample_near(download["params"], release.radius, rng)
            sample = sampler.sample(partial(noise.sample, step, rate=release.sample_rate))
            total = clipped_image_gradient_sum(
                self.model,
                images,
                slots,
                params,
                data.subset(sample.examples.to(images.device)),
                release.most,
                sample.sizes,
            )
            noisy = noise.added(step, total, release.most, release.noise_multiplier)
            gradient = (noisy / release.expected_batch).float()
            images.sub_(velocity.mul_(self.momentum).add_(gradient), alpha=self.lr)
            tick((step + 1) / release.steps)
        classes = (sizes >= self.min_class_size).nonzero().flatten()
        if not len(classes):
            return LocalResult(self.pack_nothing())
        chosen = torch.isin(slots, classes)
        kept = torch.arange(len(classes)).repeat_interleave(self.images_per_class)
        upload = self.pack(images[chosen], classes.cpu().tolist(), kept, sizes[classes].cpu())
        return LocalResult(upload)


def class_counts(data: Examples, num_classes: int, unit: Unit) -> Tensor:
    """Returns the number of examples of each class; a unit adds 1 at most, in length.

    They are in whole numbers of ``1 / GRID``.
    """
    units = units_of(data, unit)
    pairs = units * num_classes + data.y.cpu()
    num_units = int(units.max()) + 1 if len(units) else 0
    each = torch.bincount(pairs, minlength=num_units * num_classes).double()
    rows = whole(shortened(each.view(num_units, num_classes), 1.0), 1.0)
    return rows.sum(0).to(data.x.device)
