"""FedDM, Algorithm 1.

Xiong et al. FedDM: Iterative Distribution Matching for Communication-Efficient Federated
Learning. CVPR 2023. https://arxiv.org/abs/2207.09653

Each client learns a few synthetic images per class that, near the server's weights ``w_r``,
have the mean embedding and the mean logits of its real images (`FedDM.local`). The server
trains on the union of these sets, and stays in the ball of radius ``rho`` around ``w_r`` in
which they were made to match (`TrainsOnUnion.aggregate`).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from feddm.algorithms.base import ConfiguredAlgorithm, Context, LocalResult, Upload
from feddm.algorithms.costs import ClassTable, Passes, UploadSize, Work, chances
from feddm.config.presets import Choices, chosen
from feddm.config.schema import AlgorithmSettings, Fraction, Section, Values
from feddm.core.augmentation import Augmentation
from feddm.core.coding import Coding, Type
from feddm.core.examples import Examples, Members
from feddm.core.matching import (
    Perturb,
    Target,
    completing,
    fresh_targets,
    matching_loss,
    relative_loss,
    synthesize,
    unperturbed,
)
from feddm.core.tensors import CPU, Records, Tensors, moved
from feddm.core.training import SGD, Schedule, Tick, ball, train
from feddm.errors import EmptyRoundError, UnfitAlgorithmError, UploadError
from feddm.privacy.accounting import Event, Unprotected
from feddm.privacy.paper_noise import UNPROTECTED
from feddm.privacy.release import Noise

DISTANCES = {"squared": matching_loss, "relative": relative_loss}
# Why the size of an upload cannot be told.
UNKNOWN_CLASSES = (
    "with privacy.unit = {unit} it depends on the examples which classes a client sends; sizes "
    "are known for the unit example, and for privacy.learn = server"
)
LARGEST_WEIGHT = 1e9  # real images that one can stand for; sums of such weights are finite


class ServerTraining(Section):
    """How the server trains on the union of the images that clients send."""

    lr: PositiveFloat = Field(0.01, description="Learning rate (eta_s).")
    epochs: PositiveInt = Field(500, description="Passes over the union.")
    batch_size: PositiveInt = Field(256, description="Images per step.")
    momentum: Fraction = Field(0.0, description="Momentum of SGD.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Weight decay of SGD.")
    schedule: Schedule = Field(
        "constant", description="cosine: the learning rate falls to 0 within a round."
    )
    radius: PositiveFloat = Field(5.0, description="Largest distance from w_r (rho).")
    weighting: Literal["synthetic", "examples"] = Field(
        "synthetic",
        description="synthetic: every image counts the same; examples: each image counts as "
        "many real ones as it stands for, which approximates the mean over all examples.",
    )
    augment: bool = Field(False, description="Train on randomly changed images.")
    replay: NonNegativeInt = Field(
        0,
        description="Number of earlier rounds whose images are trained on again. The server "
        "makes fewer epochs then, so that a round takes as many steps as without; and clients "
        "learn images that match together with those of theirs that the server still has.",
    )

    def sgd(self, augmentation: Augmentation, share: float = 1.0) -> SGD:
        """Returns how the server trains, if new images are this share of all images."""
        return SGD(
            lr=self.lr,
            epochs=math.ceil(self.epochs * share),
            batch_size=self.batch_size,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            augmentation=augmentation if self.augment else None,
            schedule=self.schedule,
        )


_PRESETS: Choices = {
    "paper": {"cifar100": {"images_per_class": 5}},
    "quick": {
        "": {
            "coding": "uint8",
            "synthesis": {
                "distance": "relative",
                "lr": 100.0,
                "momentum": 0.5,
                "steps": 100,
                "networks": 10,
                "augment": True,
            },
            "server": {
                "lr": 0.02,
                "schedule": "cosine",
                "epochs": 60,
                "momentum": 0.9,
                "augment": True,
                "replay": 3,
            },
        },
        # Small and easy: fewer steps do as well.
        "digits": {"min_class_size": 5, "synthesis": {"steps": 30, "networks": 6}},
    },
}


class UnionSettings(AlgorithmSettings):
    """Settings of FedDM and REAL: which images clients send, and how the server trains."""

    images_per_class: PositiveInt = Field(
        10, description="Images that a client sends per class."
    )
    min_class_size: PositiveInt = Field(
        10, description="A client leaves out a class with fewer real images."
    )
    coding: Type = Field(
        "float32",
        description="How images travel: float32, uint8 (256 levels per channel), or webp "
        "(these levels, compressed with losses as one sheet per class).",
    )
    quality: Annotated[int, Field(ge=0, le=100)] = Field(
        50, description="Quality of webp; more is larger."
    )
    server: ServerTraining = ServerTraining()

    @classmethod
    def preset(cls, preset: str, dataset: str) -> Values:
        return chosen(_PRESETS, preset, dataset)


@dataclass(frozen=True)
class TrainsOnUnion(ConfiguredAlgorithm):
    """The server of FedDM and REAL: it trains on the labelled images that clients upload."""

    Settings: ClassVar[type[UnionSettings]] = UnionSettings
    settings: UnionSettings

    def __post_init__(self) -> None:
        self.coding.check(self.model.shape, self.settings.images_per_class)

    @property
    def coding(self) -> Coding:
        """How images travel."""
        return Coding(self.settings.coding, self.settings.quality)

    def init(self, params: Tensors) -> Records:
        return {"params": params}

    def broadcast(self, state: Records) -> Records:
        return {"params": state["params"]}

    def pack(
        self, images: Tensor, classes: Sequence[int], slots: Tensor, sizes: Tensor
    ) -> Records:
        """Returns an upload.

        Args:
            images: Images as the model takes them.
            classes: The class of each slot.
            slots: The slot of each image.
            sizes: Number of real images that the client has for each slot.
        """
        labels = torch.tensor(classes, dtype=label_dtype(self.model.num_classes))
        examples = {**self.coding.encode(images.cpu(), slots), "y": labels[slots]}
        if self.settings.server.weighting == "examples":
            examples["weight"] = (sizes / torch.bincount(slots))[slots].float()
        return {"examples": examples}

    def pack_nothing(self) -> Records:
        """Returns the upload of a client that has no class large enough."""
        nothing = torch.empty(0, dtype=torch.int64)
        return self.pack(torch.empty(0, *self.model.shape), [], nothing, nothing)

    def real_start(
        self, data: Examples, members: Members, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns random real images, at most ``ipc`` per slot, and the slot of each."""
        chosen = members.sample(self.settings.images_per_class, rng)
        return data[chosen.index].x, chosen.slots

    def parse(self, upload: Records, download: Records) -> Records:
        del download
        names = self.coding.names | {"y"}
        if self.settings.server.weighting == "examples":
            names |= {"weight"}
        if set(upload) != {"examples"} or set(upload["examples"]) != names:
            raise UploadError(f"an upload is examples with {', '.join(sorted(names))}, no more")
        sent = upload["examples"]
        coded = {name: sent[name] for name in self.coding.names}
        most = self.settings.images_per_class * self.model.num_classes
        y = sent["y"]
        if y.dtype != label_dtype(self.model.num_classes):
            raise UploadError("an upload has one label per image, in the smallest type")
        if (y.long() < 0).any() or (y.long() >= self.model.num_classes).any():
            raise UploadError(f"labels are below {self.model.num_classes}")
        x = self.coding.decode(coded, y, self.model.shape, most)
        if "weight" not in sent:
            return {"examples": {"x": x, "y": y}}
        weight = sent["weight"]
        sane = (weight > 0) & (weight <= LARGEST_WEIGHT)
        if weight.dtype != torch.float32 or weight.shape != y.shape or not sane.all():
            raise UploadError(
                "an upload has one float32 weight per image, "
                f"above 0 and up to {LARGEST_WEIGHT:g}"
            )
        return {"examples": {"x": x, "y": y, "weight": weight}}

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        union = united((upload.client, upload.records["examples"]) for upload in uploads)
        if not len(union.get("y", ())):
            raise EmptyRoundError(
                f"no client found a class with {self.settings.min_class_size} images or more; "
                "lower min_class_size or use fewer clients"
            )
        return self.learned(state, union, rng, tick)

    def learned(
        self, state: Records, union: Tensors, rng: torch.Generator, tick: Tick
    ) -> Records:
        """Returns the state after training on a union of labelled images."""
        number = round_of(state)
        memory = self._remembered(union, state.get("replay"), number)
        weight = memory.get("weight", torch.ones(len(memory["y"])))
        even = bool((weight == weight[0]).all())
        examples = Examples(
            memory["x"], memory["y"].long(), weight=None if even else weight / weight.mean()
        )
        center = moved(state, self.context.device)["params"]
        trained = train(
            self.model,
            center,
            examples.to(self.context.device),
            self.settings.server.sgd(
                self.context.augmentation, share=len(union["y"]) / len(memory["y"])
            ),
            rng,
            project=ball(center, self.settings.server.radius),
            tick=tick,
        )
        after: dict[str, Tensors] = {"params": trained.params, "synthetic": union}
        if self.settings.server.replay:
            after |= {"replay": memory, "clock": {"round": torch.tensor(number + 1)}}
        return moved(after, CPU)

    def _remembered(self, union: Tensors, before: Tensors | None, number: int) -> Tensors:
        """Returns the union with those of earlier rounds, and the round of each image."""
        union = {**union, "round": torch.full((len(union["y"]),), number, dtype=torch.int32)}
        if before is None:
            return union
        older = self.replayed(before, number)
        return {name: torch.cat([union[name], older[name]]) for name in union}

    def replayed(self, images: Tensors, number: int) -> Tensors:
        """Returns those of earlier images that the server trains on in a round, too."""
        recent = images["round"] >= number - self.settings.server.replay
        return {name: tensor[recent] for name, tensor in images.items()}

    @property
    def starts_from_real_images(self) -> bool:
        """Whether a class with fewer than ``ipc`` real images sends only as many."""
        return True

    @property
    def class_noise(self) -> float:
        """Standard deviation of the noise on the class sizes that clients go by."""
        return 0.0

    def num_images(self, table: ClassTable) -> ClassTable:
        """Returns how many images each client sends of each class, if it sends any."""
        most = self.settings.images_per_class
        if self.starts_from_real_images:
            return np.minimum(table, most)
        return np.full_like(table, most)

    def server_passes(self, images: float) -> Passes:
        """Returns the server's work on so many images per round."""
        return Passes(weights=images * self.settings.server.epochs)

    def upload_size(self, table: ClassTable) -> UploadSize:
        shape, weight = self.model.shape, self.settings.server.weighting == "examples"
        label_bytes = label_dtype(self.model.num_classes).itemsize
        return UploadSize.of_images(
            self.num_images(table),
            chances(table, self.settings.min_class_size, self.class_noise),
            floats=math.prod(shape) + weight,
            num_bytes=self.coding.image_bytes(shape) + 4 * weight + label_bytes,
            client_bytes=self.coding.range_bytes(shape[0]),
        )


class ImageSteps(Section):
    """Steps of SGD on synthetic images."""

    lr: PositiveFloat = Field(1.0, description="Learning rate on the images (eta_c).")
    momentum: Fraction = Field(0.0, description="Momentum on the images.")
    radius: NonNegativeFloat = Field(
        5.0, description="Distance of the networks from w_r (rho)."
    )


class Synthesis(ImageSteps):
    """How a client learns its synthetic images."""

    steps: NonNegativeInt = Field(
        1000, description="Steps on the images (T); 0 sends the start itself, which is REAL."
    )
    networks: PositiveInt | Literal["fresh"] = Field(
        "fresh", description="Networks to sample once and use in turn; fresh: one per step."
    )
    real_batch: PositiveInt | Literal["all"] = Field(
        256, description="Real images of a class that a network sees."
    )
    start: Literal["real", "noise"] = Field("real", description="First images: real, or noise.")
    distance: Literal["squared", "relative"] = Field(
        "squared",
        description="What matching minimizes. squared: the paper's distance; relative: divided "
        "by the squared length of the real means, so that steps do not grow with the weights, "
        "which needs a larger lr.",
    )
    augment: bool = Field(False, description="Match randomly changed images.")


class FedDMSettings(UnionSettings):
    """Settings of FedDM."""

    synthesis: Synthesis = Synthesis()


@dataclass(frozen=True)
class FedDM(TrainsOnUnion):
    """Clients upload synthetic sets that they learned; the server trains on their union."""

    Settings = FedDMSettings
    # The class for each mechanism; a budget alone gives the first.
    variants: ClassVar[Mapping[str, str]] = {
        "surrogate": "feddm.algorithms.surrogate_feddm:SurrogateFedDM",
        "features": "feddm.algorithms.feature_feddm:LearnsFromSums",
        "gradients": "feddm.algorithms.gradient_feddm:GradientFedDM",
        "paper": "feddm.algorithms.noisy_feddm:NoisyFedDM",
    }
    settings: FedDMSettings

    @classmethod
    def settings_type(cls, mechanism: str | None) -> type[AlgorithmSettings]:
        return cls._variant(mechanism).Settings

    @classmethod
    def default_mechanism(cls) -> str:
        return next(iter(cls.variants))

    @classmethod
    def build(cls, settings: AlgorithmSettings, context: Context) -> ConfiguredAlgorithm:
        variant = cls._variant(None if context.privacy is None else context.privacy.mechanism)
        if variant is cls:
            return super().build(settings, context)
        return variant.build(settings, context)

    @classmethod
    def _variant(cls, mechanism: str | None) -> type[ConfiguredAlgorithm]:
        """Returns the class for a mechanism, loaded only if it is needed."""
        if mechanism is None:
            return cls
        if mechanism not in cls.variants:
            raise UnfitAlgorithmError(f"feddm cannot run with --privacy {mechanism}")
        module, _, name = cls.variants[mechanism].partition(":")
        found: type[ConfiguredAlgorithm] = getattr(import_module(module), name)
        return found

    @property
    def planned(self) -> tuple[Event, ...]:
        return (Unprotected(UNPROTECTED),)

    def broadcast(self, state: Records) -> Records:
        download = super().broadcast(state)
        if self.settings.server.replay:
            # By it a client knows which of its images the server still has.
            download = {**download, "clock": {"round": torch.tensor(round_of(state))}}
        return download

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        classes, members = data.by_class(self.settings.min_class_size)
        sent = self.replayed(memory["sent"], round_of(download)) if memory else {}
        if not classes:
            return LocalResult(self.pack_nothing(), {"sent": sent} if sent else {})
        images, slots = self._start(data, members, rng)
        targets = self._targets(download, data, members, rng)
        if sent:
            new = torch.bincount(slots)
            earlier = torch.bucketize(sent["y"].cpu().long(), torch.tensor(classes))
            targets = completing(self.model, targets, sent["x"], earlier, new)
        images, losses = synthesize(
            self.model,
            images,
            slots,
            self._in_turn(targets),
            lr=self.settings.synthesis.lr,
            momentum=self.settings.synthesis.momentum,
            steps=self.settings.synthesis.steps,
            distance=DISTANCES[self.settings.synthesis.distance],
            perturb=self.perturb(members, noise),
            tick=tick,
        )
        metrics: dict[str, float] = {"classes": len(classes), "images": len(images)}
        if losses:
            metrics |= {"first_loss": losses[0], "last_loss": losses[-1]}
        upload = self.pack(images, classes, slots, members.counts)
        return LocalResult(upload, self._memory(upload, download, sent), metrics)

    def _memory(self, upload: Records, download: Records, before: Tensors) -> Records:
        """Returns the images that the server will have from this client, and their rounds."""
        if not self.settings.server.replay:
            return {}
        images = self.parse(upload, download)["examples"]
        number = torch.full((len(images["y"]),), round_of(download), dtype=torch.int32)
        sent = {"x": images["x"], "y": images["y"].cpu(), "round": number}
        if before:
            sent = {
                name: torch.cat([tensor, before[name].cpu()]) for name, tensor in sent.items()
            }
        return {"sent": sent}

    def _start(
        self, data: Examples, members: Members, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns the first images and their slots."""
        if self.settings.synthesis.start == "real":
            return self.real_start(data, members, rng)
        slots = torch.arange(len(members.counts)).repeat_interleave(
            self.settings.images_per_class
        )
        images = torch.randn(len(slots), *self.model.shape, generator=rng)
        return images.to(data.x.device), slots

    def _targets(
        self, download: Records, data: Examples, members: Members, rng: torch.Generator
    ) -> Iterator[Target]:
        """Yields new networks with their real means without end."""
        synthesis = self.settings.synthesis
        return fresh_targets(
            self.model,
            download["params"],
            synthesis.radius,
            data,
            members,
            None if synthesis.real_batch == "all" else synthesis.real_batch,
            rng,
            self.context.augmentation if synthesis.augment else None,
        )

    def _in_turn(self, targets: Iterator[Target]) -> Iterator[Target]:
        """Returns the target of each step: a new one, or those of a few networks in turn."""
        if self.settings.synthesis.networks == "fresh":
            return targets
        return itertools.cycle(itertools.islice(targets, self.settings.synthesis.networks))

    def perturb(self, members: Members, noise: Noise | None) -> Perturb:
        """Returns what is done to gradients: nothing here."""
        del members, noise
        return unperturbed

    @property
    def starts_from_real_images(self) -> bool:
        return self.settings.synthesis.start == "real"

    def passes(self, table: ClassTable) -> Work:
        synthesis = self.settings.synthesis
        large = table >= self.settings.min_class_size
        images = float(self.num_images(table)[large].sum())
        batch = (
            table if synthesis.real_batch == "all" else np.minimum(table, synthesis.real_batch)
        )
        networks = synthesis.steps
        if synthesis.networks != "fresh":
            networks = min(synthesis.networks, synthesis.steps)
        replay, rounds = self.settings.server.replay, self.context.rounds
        # The first rounds have no earlier sets, or few.
        sets = statistics.fmean(min(earlier, replay) for earlier in range(rounds))
        forward = (float(batch[large].sum()) + images * sets) * networks
        return Work(
            Passes(forward=forward, images=images * synthesis.steps), self.server_passes(images)
        )


def without_matching(preset: Values) -> Values:
    """Returns a preset of FedDM without what was chosen for matching real images.

    Momentum stays; steps, networks and learning rate differ for images that start as noise.
    """
    synthesis = preset.get("synthesis", {})
    kept = {key: value for key, value in synthesis.items() if key == "momentum"}
    return {**preset, "synthesis": kept}


def round_of(records: Records) -> int:
    """Returns the number of the round that a state or a download is for, from 1."""
    return int(records["clock"]["round"]) if "clock" in records else 1


def label_dtype(num_classes: int) -> torch.dtype:
    """Returns the smallest type that holds the labels: a label need not be 64 bits."""
    return torch.uint8 if num_classes <= 256 else torch.int32


def united(sets: Iterable[tuple[int, Tensors]]) -> dict[str, Tensor]:
    """Returns all examples of clients, with the client that each came from."""
    parts: dict[str, list[Tensor]] = {}
    for client, examples in sets:
        number = torch.full((len(examples["y"]),), client, dtype=torch.int32)
        for name, tensor in {**examples, "client": number}.items():
            parts.setdefault(name, []).append(tensor)
    return {name: torch.cat(tensors) for name, tensors in parts.items()}
