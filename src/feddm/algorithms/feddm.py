"""FedDM, Algorithm 1.

Xiong et al. FedDM: Iterative Distribution Matching for Communication-Efficient Federated
Learning. CVPR 2023. https://arxiv.org/abs/2207.09653

Each client learns a few synthetic images a class that, near the server's weights ``w_r``, have
the mean embedding and the mean logits of its real images. The server trains on the union of
these sets, and stays in the ball of radius ``rho`` around ``w_r`` in which they were made to
match.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from feddm.algorithms.base import LocalResult
from feddm.algorithms.union import TrainsOnUnion
from feddm.core.augmentation import Augmentation, unchanged_images
from feddm.core.examples import Examples, Members
from feddm.core.grouping import Plan, grouped
from feddm.core.matching import (
    Perturb,
    Squares,
    Target,
    embeddings,
    fresh_targets,
    matching_loss,
    relative_loss,
    synthesize,
    unperturbed,
)
from feddm.core.models import Model
from feddm.core.tensors import Records
from feddm.core.training import Schedule, Tick
from feddm.privacy.accounting import Event, Unprotected
from feddm.privacy.release import Noise, needed


@dataclass(frozen=True)
class Synthesis:
    """How a client learns its synthetic images.

    Args:
        steps: Steps of SGD on the images, ``T``; 0 sends the start itself, which is REAL.
        lr: Learning rate on the images, ``eta_c``.
        momentum: Momentum of SGD on the images.
        schedule: How the learning rate goes on within a round.
        networks: How many networks to sample and then use in turn; ``None`` takes a fresh one
            for every step, which is the paper's way.
        real_batch: Real images of a class, or of a group, that a network sees; ``None`` shows
            it all of them.
        radius: Distance from ``w_r`` within which networks are sampled, ``rho``.
        start: Begin with random real images, with Gaussian noise, or with the client's own
            images of the last round in which it took part.
        groups: Parts of alike images into which a class is divided, each of which is matched on
            its own; 1 matches the class as a whole, which is the paper's way.
        second_moment: Factor of the squares of the embedding, whose means are matched as well;
            in the loss it enters squared.
        relative: Whether distances are in units of the real means, so that steps do not grow
            with the weights; the paper's are not.
        straight_through: Whether networks see the images as they will arrive, rounded, so that
            steps correct for it; else they are rounded at the end.
        augmentation: Changes the real and the synthetic images of a network alike.
    """

    steps: int
    lr: float
    momentum: float
    networks: int | None
    real_batch: int | None
    radius: float
    start: Literal["real", "noise", "last"]
    groups: int = 1
    second_moment: float = 0.0
    schedule: Schedule = "constant"
    relative: bool = False
    straight_through: bool = False
    augmentation: Augmentation | None = None


@dataclass(frozen=True)
class PaperNoise:
    """The noise of Algorithm 1, for sigma > 0. It gives no guarantee.

    What is clipped is the mean gradient of a batch, which one example can move by more than the
    noise hides; and the images begin as real ones, of the classes that a client has.

    Args:
        sigma: Deviations of the noise over ``clip / batch``.
        clip: Length of a class's gradient, ``C``.
    """

    sigma: float
    clip: float

    def perturbed(
        self, gradient: Tensor, slots: Tensor, step: int, batches: Tensor, noise: Noise
    ) -> Tensor:
        """Returns the gradient clipped class by class, with noise.

        Args:
            gradient: With respect to images.
            slots: The slot of each image.
            step: Number of the step.
            batches: Real images of each slot that the gradient is from.
            noise: Where it comes from.
        """
        result = torch.empty_like(gradient)
        for slot in slots.unique().tolist():
            mine = slots == slot
            part = gradient[mine]
            number = step * len(batches) + slot
            drawn = noise.unprotected(number, part.shape, UNPROTECTED).float().to(part.device)
            shorter = part / max(1.0, float(part.norm()) / self.clip)
            result[mine] = shorter + self.sigma * self.clip / int(batches[slot]) * drawn
        return result


UNPROTECTED = "synthetic images"


@dataclass(frozen=True)
class FedDM(TrainsOnUnion):
    """Clients upload synthetic sets that they learned; the server trains on their union."""

    synthesis: Synthesis
    paper_noise: PaperNoise | None = field(default=None, kw_only=True)

    @property
    def planned(self) -> tuple[Event, ...]:
        return (Unprotected(UNPROTECTED),)

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        plan = self._plan(download, data)
        if not plan.classes:
            return LocalResult(self.pack_nothing())
        images, slots = self._start(data, plan, memory, rng)
        images, losses = synthesize(
            self._matched_model(),
            images,
            slots,
            self._targets(download, data, plan.members, rng),
            lr=self.synthesis.lr,
            momentum=self.synthesis.momentum,
            schedule=self.synthesis.schedule,
            steps=self.synthesis.steps,
            formation=self.formation,
            seen=self.coding.rounded if self.synthesis.straight_through else unchanged_images,
            distance=relative_loss if self.synthesis.relative else matching_loss,
            perturb=self._perturb(plan.members, noise),
            tick=tick,
        )
        metrics: dict[str, float] = {"classes": len(set(plan.classes)), "images": len(images)}
        if losses:
            metrics |= {"first_loss": losses[0], "last_loss": losses[-1]}
        upload = self.pack(images, plan.classes, slots, plan.members.counts)
        after = (
            {"last": {"x": images, "slots": slots}} if self.synthesis.start == "last" else {}
        )
        return LocalResult(upload, after, metrics)

    def _perturb(self, members: Members, noise: Noise | None) -> Perturb:
        """Returns what is done to gradients: nothing, unless the paper's noise is asked for."""
        if self.paper_noise is None:
            return unperturbed
        noise = needed(noise)
        batches = members.counts
        if self.synthesis.real_batch is not None:
            batches = batches.clamp(max=self.synthesis.real_batch)
        return functools.partial(self.paper_noise.perturbed, batches=batches, noise=noise)

    def _matched_model(self) -> Model:
        """Returns the model whose mean outputs are matched."""
        if not self.synthesis.second_moment:
            return self.model
        return Squares(self.model, self.synthesis.second_moment)

    def _plan(self, download: Records, data: Examples) -> Plan:
        """Returns what is learned: of each class, or of each group of alike images in it."""
        classes, members = data.by_class(self.min_class_size)
        images = self.real_images(members.counts)
        if self.synthesis.start == "noise":
            images = torch.full_like(images, self.images_per_class)
        plan = Plan(classes, members, images)
        if self.synthesis.groups == 1 or not classes:
            return plan
        embed = functools.partial(embeddings, self.model, download["params"], data)
        return grouped(plan, self.synthesis.groups, embed)

    def _start(
        self, data: Examples, plan: Plan, memory: Records, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns the first images and their slots."""
        if self.synthesis.start == "last" and memory:
            return memory["last"]["x"], memory["last"]["slots"].cpu()
        if self.synthesis.start != "noise":
            return self.real_start(data, plan.members, plan.images, rng)
        slots = torch.arange(len(plan.classes)).repeat_interleave(plan.images)
        images = torch.randn(len(slots), *self.model.shape, generator=rng)
        return images.to(data.x.device), slots

    def _targets(
        self,
        download: Records,
        data: Examples,
        members: Members,
        rng: torch.Generator,
    ) -> Iterator[Target]:
        """Yields for ever the network of each step with its real means."""
        targets = fresh_targets(
            self._matched_model(),
            download["params"],
            self.synthesis.radius,
            data,
            members,
            self.synthesis.real_batch,
            rng,
            self.synthesis.augmentation,
        )
        if self.synthesis.networks is None:
            return targets
        return itertools.cycle(itertools.islice(targets, self.synthesis.networks))
