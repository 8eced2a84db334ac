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
from pydantic import Field, PositiveFloat
from torch import Tensor

from feddm.algorithms.base import NUMBER_NEEDED, LocalResult, guaranteed
from feddm.algorithms.costs import ClassTable, Passes, Work
from feddm.algorithms.feddm import (
    UNKNOWN_CLASSES,
    ImageSteps,
    TrainsOnUnion,
    UnionSettings,
    without_matching,
)
from feddm.config.schema import GuaranteedSettings, Releases, Values
from feddm.core.examples import Examples
from feddm.core.matching import sample_near
from feddm.core.tensors import Records
from feddm.core.training import Tick
from feddm.errors import ConfigError
from feddm.privacy.accounting import Event
from feddm.privacy.clipping import shortened, whole
from feddm.privacy.gradients import GradientSettings
from feddm.privacy.images import clipped_image_gradient_sum
from feddm.privacy.release import Noise, needed
from feddm.privacy.units import Sampler, Unit, units_of


class GradientFedDMSettings(UnionSettings):
    """Settings of FedDM with DP-SGD on the images."""

    synthesis: ImageSteps = ImageSteps()
    # Little noise beside a class of some dozens, and little of a budget beside many steps.
    count_multiplier: PositiveFloat = Field(
        10.0, description="Noise multiplier of the class counts, which decide what is sent."
    )

    instead = {  # noqa: RUF012  # a ClassVar
        "synthesis.start": "under a guarantee, images start as noise",
        "synthesis.distance": "under a guarantee, distances are squared",
        "synthesis.augment": "gradients are those of the images as they are",
        "synthesis.steps": "privacy.steps says how many steps there are, for all clients alike",
        "synthesis.networks": "every step has a network of its own",
        "synthesis.real_batch": "privacy.sample_rate says how likely an example is to be in a "
        "step",
    }

    @classmethod
    def preset(cls, preset: str, dataset: str) -> Values:
        return without_matching(super().preset(preset, dataset))

    def releases(self, privacy: GuaranteedSettings) -> Releases:
        assert isinstance(privacy, GradientSettings)
        return Releases(privacy.steps, privacy.sample_rate, self.count_multiplier)


@dataclass(frozen=True)
class GradientFedDM(TrainsOnUnion):
    """Clients learn images of every class by DP-SGD, and upload those of classes they have."""

    Settings = GradientFedDMSettings
    settings: GradientFedDMSettings

    def __post_init__(self) -> None:
        if not self.context.examples:
            raise ConfigError(NUMBER_NEEDED)

    @property
    def privacy(self) -> GradientSettings:
        """The mechanism, with its noise."""
        assert isinstance(self.context.privacy, GradientSettings)
        return self.context.privacy

    @property
    def planned(self) -> tuple[Event, ...]:
        return guaranteed(self.settings, self.privacy)

    @property
    def expected_batch(self) -> float:
        """Examples of a class that are expected in a sample, to divide by; public."""
        return self.privacy.sample_rate * self.context.examples / self.model.num_classes

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
        privacy, synthesis = self.privacy, self.settings.synthesis
        expected_batch, per_class = self.expected_batch, self.settings.images_per_class
        counts = class_counts(data, self.model.num_classes, privacy.unit)
        sizes = noise.added(privacy.steps, counts, 1.0, self.settings.count_multiplier)
        sampler = Sampler(data, privacy.unit)
        slots = torch.arange(self.model.num_classes).repeat_interleave(per_class)
        images = torch.randn(len(slots), *self.model.shape, generator=rng).to(data.x.device)
        slots = slots.to(images.device)
        velocity = torch.zeros_like(images)
        for step in range(privacy.steps):
            params = sample_near(download["params"], synthesis.radius, rng)
            sample = sampler.sample(partial(noise.sample, step, rate=privacy.sample_rate))
            total = clipped_image_gradient_sum(
                self.model,
                images,
                slots,
                params,
                data.subset(sample.examples.to(images.device)),
                privacy.clip,
                sample.sizes,
            )
            noisy = noise.added(step, total, privacy.clip, privacy.noise_multiplier)
            gradient = (noisy / expected_batch).float()
            images.sub_(velocity.mul_(synthesis.momentum).add_(gradient), alpha=synthesis.lr)
            tick((step + 1) / privacy.steps)
        classes = (sizes >= self.settings.min_class_size).nonzero().flatten()
        if not len(classes):
            return LocalResult(self.pack_nothing())
        chosen = torch.isin(slots, classes)
        kept = torch.arange(len(classes)).repeat_interleave(per_class)
        upload = self.pack(images[chosen], classes.cpu().tolist(), kept, sizes[classes].cpu())
        return LocalResult(upload)

    @property
    def starts_from_real_images(self) -> bool:
        return False

    @property
    def class_noise(self) -> float:
        if self.privacy.unit != "example":
            raise ConfigError(UNKNOWN_CLASSES.format(unit=self.privacy.unit))
        return self.settings.count_multiplier

    def passes(self, table: ClassTable) -> Work:
        privacy = self.privacy
        large = table >= self.settings.min_class_size
        images = float(self.num_images(table)[large].sum())
        # A step embeds all images, and goes back to them once per example.
        seen = privacy.steps * privacy.sample_rate * float(table.sum())
        return Work(Passes(forward=seen, images=seen), self.server_passes(images))


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
