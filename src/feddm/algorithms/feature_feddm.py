"""FedDM under differential privacy: images are learned from noisy sums of features.

A client releases, for each of a few networks near ``w_r``, noisy class sums of what the network
sees of its examples (`feddm.privacy.features`). All else is made of these sums: which classes
there are, with what weights, and the images, which begin as noise and are then learned as in
FedDM, by the client or by the server. So all of it is as private as the sums are, whatever the
number of steps.

Networks, projection and augmentation are drawn from what every client downloads, and are known
to all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from feddm.algorithms.base import LocalResult, Upload, parse_like
from feddm.algorithms.feddm import TrainsOnUnion, united
from feddm.core.augmentation import Augmentation, Transform, unchanged_images
from feddm.core.examples import Examples
from feddm.core.matching import ClassMeans, Target, sample_near, synthesize
from feddm.core.models import Model, num_features
from feddm.core.tensors import Records, Tensors, moved
from feddm.core.training import Tick
from feddm.errors import EmptyRoundError
from feddm.privacy.accounting import Event, Released
from feddm.privacy.features import Bound, Bounded, class_totals, noisy_means
from feddm.privacy.noise import digest
from feddm.privacy.release import Noise, needed
from feddm.privacy.units import Unit


class Network(NamedTuple):
    """A network near the server's weights, and how it is shown images."""

    params: Tensors
    transform: Transform


@dataclass(frozen=True)
class FeatureRelease:
    """What clients release in a round, and under how much noise.

    Args:
        networks: How many networks look at the examples; each is a release.
        radius: Their distance from ``w_r``.
        bound: The most that an example adds to the sums of a network.
        noise_multiplier: Deviations of the noise over the bound.
        projection: Numbers to which embeddings are projected; ``None`` leaves them.
        augmentation: Changes the images of a network, in one way for all.
        unit: Whose contribution is bounded.
    """

    networks: int
    radius: float
    bound: Bound
    noise_multiplier: float
    projection: int | None = None
    augmentation: Augmentation | None = None
    unit: Unit = "example"

    @property
    def planned(self) -> tuple[Event, ...]:
        """What a client releases in one round."""
        return (Released(self.networks, self.noise_multiplier),)

    def shown(self, model: Model, download: Records) -> tuple[Bounded, list[Network]]:
        """Returns the model and the networks that see examples, the same for all clients."""
        seed = int.from_bytes(digest(download)[:8], "little") >> 1
        rng = torch.Generator().manual_seed(seed)
        params = download["params"]
        projection = None
        if self.projection is not None:
            with torch.no_grad():
                one = torch.zeros(1, *model.shape, device=next(iter(params.values())).device)
                features = model(params, one).embedding.shape[1]
            projection = torch.randn(features, self.projection, generator=rng)
            projection = projection.div_(self.projection**0.5).to(one.device)
        networks = [
            Network(
                sample_near(params, self.radius, rng),
                self.augmentation.shared(rng) if self.augmentation else unchanged_images,
            )
            for _ in range(self.networks)
        ]
        return Bounded(model, self.bound.features, projection), networks

    def noisy_totals(
        self, model: Bounded, networks: list[Network], data: Examples, noise: Noise
    ) -> list[Tensor]:
        """Returns the noisy sums of each network; nothing else here sees examples."""
        return [
            noise.added(
                number,
                class_totals(
                    model, network.params, data, self.bound, network.transform, self.unit
                ),
                self.bound.length,
                self.noise_multiplier,
            )
            for number, network in enumerate(networks)
        ]

    def targets(
        self, totals: list[Tensor], networks: list[Network], num_classes: int, floor: float
    ) -> tuple[Tensor, list[Target]]:
        """Returns the size of every class, and what the networks see of it, from noisy sums."""
        parts = [noisy_means(each, num_classes, self.bound, floor) for each in totals]
        sizes = torch.stack([counts for counts, _ in parts]).mean(0)
        return sizes, [
            Target(network.params, means, network.transform)
            for network, (_, means) in zip(networks, parts, strict=True)
        ]


@dataclass(frozen=True)
class ImageSteps:
    """Steps on images, which see no examples.

    Args:
        steps: How many.
        lr: Learning rate.
        momentum: Of SGD.
    """

    steps: int
    lr: float
    momentum: float


class Learned(NamedTuple):
    """Images that were learned from noisy sums."""

    images: Tensor
    classes: list[int]
    slots: Tensor  # of each image, in `classes`
    sizes: Tensor  # examples that each class is taken to have


@dataclass(frozen=True)
class LearnsFromSums(TrainsOnUnion):
    """Images are learned from noisy sums of features; subclasses say where.

    Args:
        release: What is released of the examples.
        image_steps: How images are learned.
    """

    release: FeatureRelease
    image_steps: ImageSteps

    @property
    def planned(self) -> tuple[Event, ...]:
        return self.release.planned

    def images(
        self,
        model: Bounded,
        networks: list[Network],
        totals: list[Tensor],
        rng: torch.Generator,
        tick: Tick,
    ) -> Learned:
        """Returns images of the classes that have enough examples, going by noisy sums alone.

        Args:
            model: The model that saw the examples.
            networks: The networks that did.
            totals: Noisy sums of each network.
            rng: Draws the first images.
            tick: Told how far it is.
        """
        sizes, targets = self.release.targets(
            totals, networks, self.model.num_classes, self.min_class_size
        )
        classes = (sizes >= self.min_class_size).nonzero().flatten()
        slots = torch.arange(len(classes)).repeat_interleave(self.images_per_class)
        images = torch.randn(len(slots), *self.model.shape, generator=rng).to(sizes.device)
        if len(classes):
            images, _ = synthesize(
                model,
                images,
                slots,
                itertools.cycle(_of_classes(target, classes) for target in targets),
                lr=self.image_steps.lr,
                momentum=self.image_steps.momentum,
                steps=self.image_steps.steps,
                tick=tick,
            )
        return Learned(images, classes.cpu().tolist(), slots, sizes[classes].cpu())


class FeatureFedDM(LearnsFromSums):
    """Clients learn images from their noisy sums, and upload them."""

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
        model, networks = self.release.shown(self.model, download)
        totals = self.release.noisy_totals(model, networks, data, noise)
        # From here on the examples are not looked at again.
        learned = self.images(model, networks, totals, rng, tick)
        return LocalResult(self.pack(*learned) if learned.classes else self.pack_nothing())


class ServerFedDM(LearnsFromSums):
    """Clients upload their noisy sums alone; the server adds them up and learns the images.

    That is as private, because all after the noise may be done by anybody. Messages are far
    smaller, and clients only look at their examples.
    """

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        del memory, rng, tick
        noise = needed(noise)
        model, networks = self.release.shown(self.model, download)
        totals = torch.stack(self.release.noisy_totals(model, networks, data, noise))
        return LocalResult({"sums": {"totals": totals.float()}})

    def parse(self, upload: Records, download: Records) -> Records:
        del download
        classes = self.model.num_classes
        features = self.release.projection or num_features(self.model)
        shape = self.release.networks, classes, features + classes + 1
        return parse_like(upload, {"sums": {"totals": torch.zeros(shape)}})

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        total: Tensor | None = None
        for upload in uploads:
            part = upload.records["sums"]["totals"].double()
            total = part if total is None else total.add_(part)
        if total is None:
            raise EmptyRoundError("no client sent anything")
        download = moved(self.broadcast(state), self.device)
        model, networks = self.release.shown(self.model, download)
        totals = list(total.to(self.device))
        learned = self.images(model, networks, totals, rng, lambda done: tick(done / 2))
        if not learned.classes:
            raise EmptyRoundError("the noisy sums show no class that is large enough")
        examples = TrainsOnUnion.parse(self, self.pack(*learned), download)["examples"]
        union = united([(0, examples)])
        return self.learned(state, union, rng, lambda done: tick(0.5 + done / 2))


def _of_classes(target: Target, classes: Tensor) -> Target:
    return target._replace(means=ClassMeans(*(mean[classes] for mean in target.means)))
