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

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from feddm.algorithms.base import (
    ConfiguredAlgorithm,
    Context,
    LocalResult,
    Upload,
    guaranteed,
    parse_like,
)
from feddm.algorithms.costs import ClassTable, Passes, UploadSize, Work
from feddm.algorithms.feddm import (
    UNKNOWN_CLASSES,
    ImageSteps,
    TrainsOnUnion,
    UnionSettings,
    united,
    without_matching,
)
from feddm.config.presets import merged
from feddm.config.schema import AlgorithmSettings, GuaranteedSettings, Releases, Values
from feddm.core.augmentation import Augmentation, Transform, unchanged_images
from feddm.core.coding import Coding
from feddm.core.examples import Examples
from feddm.core.matching import ClassMeans, Target, sample_near, synthesize
from feddm.core.models import Model, num_features
from feddm.core.tensors import Records, Tensors, moved
from feddm.core.training import Tick
from feddm.errors import ConfigError, EmptyRoundError
from feddm.privacy.accounting import Event
from feddm.privacy.features import Bound, Bounded, FeatureSettings, class_totals, noisy_means
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


class FeatureMatching(ImageSteps):
    """How images are learned from noisy sums."""

    networks: PositiveInt = Field(
        2, description="Networks that see the examples; each is a release, so few are used."
    )
    steps: NonNegativeInt = Field(200, description="Steps on the images (T).")
    lr: PositiveFloat = Field(10.0, description="Learning rate on the images (eta_c).")
    augment: bool = Field(False, description="Match randomly changed images.")


class FeatureFedDMSettings(UnionSettings):
    """Settings of FedDM with noisy sums of features.

    Images start as noise and minimize squared distances: what starts from a client's images
    shows them, and relative distances would divide by noise.
    """

    synthesis: FeatureMatching = FeatureMatching()

    instead = {  # noqa: RUF012  # a ClassVar
        "synthesis.start": "under a guarantee, images start as noise",
        "synthesis.distance": "under a guarantee, distances are squared",
        "synthesis.real_batch": "every network sees all examples of a client",
    }

    @classmethod
    def preset(cls, preset: str, dataset: str) -> Values:
        values = without_matching(super().preset(preset, dataset))
        # Images of earlier rounds cost nothing more, and average the noise over rounds.
        return merged(values, {"server": {"replay": 4}})

    def releases(self, privacy: GuaranteedSettings) -> Releases:
        return Releases(self.synthesis.networks)


class Learned(NamedTuple):
    """Images that were learned from noisy sums."""

    images: Tensor
    classes: list[int]
    slots: Tensor  # of each image, in `classes`
    sizes: Tensor  # examples that each class is taken to have


@dataclass(frozen=True)
class LearnsFromSums(TrainsOnUnion):
    """Images are learned from noisy sums of features; `privacy.learn` says where."""

    Settings = FeatureFedDMSettings
    settings: FeatureFedDMSettings

    @classmethod
    def build(cls, settings: AlgorithmSettings, context: Context) -> ConfiguredAlgorithm:
        assert isinstance(settings, FeatureFedDMSettings)
        assert isinstance(context.privacy, FeatureSettings)
        learner = ServerFedDM if context.privacy.learn == "server" else FeatureFedDM
        return learner(settings, context)

    @property
    def privacy(self) -> FeatureSettings:
        """The mechanism, with its noise."""
        assert isinstance(self.context.privacy, FeatureSettings)
        return self.context.privacy

    @functools.cached_property
    def num_features(self) -> int:
        """Size of what networks see of an example, logits apart."""
        return self.privacy.projection or num_features(self.model)

    @property
    def release(self) -> FeatureRelease:
        """What is released of the examples."""
        synthesis, privacy = self.settings.synthesis, self.privacy
        numbers = self.num_features + self.model.num_classes
        return FeatureRelease(
            networks=synthesis.networks,
            radius=synthesis.radius,
            bound=Bound(privacy.clip * math.sqrt(numbers)),
            noise_multiplier=privacy.noise_multiplier,
            projection=privacy.projection or None,
            augmentation=self.context.augmentation if synthesis.augment else None,
            unit=privacy.unit,
        )

    @property
    def planned(self) -> tuple[Event, ...]:
        return guaranteed(self.settings, self.privacy)

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
            totals, networks, self.model.num_classes, self.settings.min_class_size
        )
        classes = (sizes >= self.settings.min_class_size).nonzero().flatten()
        slots = torch.arange(len(classes)).repeat_interleave(self.settings.images_per_class)
        images = torch.randn(len(slots), *self.model.shape, generator=rng).to(sizes.device)
        if len(classes):
            images, _ = synthesize(
                model,
                images,
                slots,
                itertools.cycle(_of_classes(target, classes) for target in targets),
                lr=self.settings.synthesis.lr,
                momentum=self.settings.synthesis.momentum,
                steps=self.settings.synthesis.steps,
                tick=tick,
            )
        return Learned(images, classes.cpu().tolist(), slots, sizes[classes].cpu())

    @property
    def starts_from_real_images(self) -> bool:
        return False

    def passes(self, table: ClassTable) -> Work:
        synthesis = self.settings.synthesis
        large = table >= self.settings.min_class_size
        images = float(self.num_images(table)[large].sum())
        return Work(
            Passes(
                forward=float(table.sum()) * synthesis.networks,
                images=images * synthesis.steps,
            ),
            self.server_passes(images),
        )


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

    @property
    def class_noise(self) -> float:
        if self.privacy.unit != "example":
            raise ConfigError(UNKNOWN_CLASSES.format(unit=self.privacy.unit))
        # An example adds this share of the bound to the entry that counts, and networks are
        # averaged.
        networks = self.settings.synthesis.networks
        return self.privacy.noise_multiplier / Bound(1.0).count / math.sqrt(networks)


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

    @property
    def coding(self) -> Coding:
        return Coding()  # images that do not travel are not rounded

    def passes(self, table: ClassTable) -> Work:
        synthesis = self.settings.synthesis
        # Of the classes that the clients have together.
        classes = float((table.sum(0) >= self.settings.min_class_size).sum())
        images = classes * self.settings.images_per_class
        return Work(
            Passes(forward=float(table.sum()) * synthesis.networks),
            replace(self.server_passes(images), images=images * synthesis.steps),
        )

    def upload_size(self, table: ClassTable) -> UploadSize:
        # Of each class the embedding, the logits and a count.
        classes = self.model.num_classes
        numbers = classes * (self.num_features + classes + 1)
        floats = len(table) * self.settings.synthesis.networks * numbers
        return UploadSize(floats, 4 * floats)

    def parse(self, upload: Records, download: Records) -> Records:
        del download
        classes = self.model.num_classes
        networks = self.settings.synthesis.networks
        shape = networks, classes, self.num_features + classes + 1
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
        download = moved(self.broadcast(state), self.context.device)
        model, networks = self.release.shown(self.model, download)
        totals = list(total.to(self.context.device))
        learned = self.images(model, networks, totals, rng, lambda done: tick(done / 2))
        if not learned.classes:
            raise EmptyRoundError("the noisy sums show no class that is large enough")
        examples = TrainsOnUnion.parse(self, self.pack(*learned), download)["examples"]
        union = united([(0, examples)])
        return self.learned(state, union, rng, lambda done: tick(0.5 + done / 2))


def _of_classes(target: Target, classes: Tensor) -> Target:
    return target._replace(means=ClassMeans(*(mean[classes] for mean in target.means)))
