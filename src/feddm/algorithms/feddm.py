"""FedDM, Algorithm 1.

Xiong et al. FedDM: Iterative Distribution Matching for Communication-Efficient Federated
Learning. CVPR 2023. https://arxiv.org/abs/2207.09653

Each client learns a few synthetic images per class that, near the server's weights ``w_r``,
have the mean embedding and the mean logits of its real images (`FedDM.local`). The server
trains on the union of these sets, and stays in the ball of radius ``rho`` around ``w_r`` in
which they were made to match (`TrainsOnUnion.aggregate`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from feddm.algorithms.base import LocalResult, Upload
from feddm.core.augmentation import Augmentation
from feddm.core.coding import Coding
from feddm.core.examples import Examples, Members
from feddm.core.matching import (
    Perturb,
    Target,
    fresh_targets,
    matching_loss,
    relative_loss,
    synthesize,
    unperturbed,
)
from feddm.core.models import Model
from feddm.core.tensors import CPU, Records, Tensors, moved
from feddm.core.training import SGD, Tick, ball, train
from feddm.errors import EmptyRoundError, UploadError
from feddm.privacy.accounting import Event, Unprotected
from feddm.privacy.release import Noise, needed

LARGEST_WEIGHT = 1e9  # real images that one can stand for; sums of such weights are finite
UNPROTECTED = "synthetic images"


@dataclass(frozen=True)
class TrainsOnUnion:
    """The server of FedDM and REAL: it trains on the labelled images that clients upload.

    Args:
        model: The model to train.
        images_per_class: Most images of a class that a client sends, ``ipc``.
        min_class_size: A client leaves out a class with fewer real images than this.
        server_sgd: How the server trains on the union.
        server_radius: How far from ``w_r`` the server may move, ``rho``.
        weighting: ``"synthetic"`` weighs all images equally, as the paper does;
            ``"examples"`` weighs an image by the number of real images it stands for, so that
            the server's loss approximates the mean over all real examples.
        device: Where the server trains; the union is kept in its memory meanwhile.
        coding: How images travel.
        replay: Number of earlier rounds whose sets the server trains on again.
    """

    model: Model
    images_per_class: int
    min_class_size: int
    server_sgd: SGD
    server_radius: float
    weighting: Literal["synthetic", "examples"]
    device: torch.device
    coding: Coding = field(default=Coding(), kw_only=True)
    replay: int = field(default=0, kw_only=True)

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
        examples = {**self.coding.encode(images.cpu()), "y": labels[slots]}
        if self.weighting == "examples":
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
        chosen = members.sample(self.images_per_class, rng)
        return data[chosen.index].x, chosen.slots

    def parse(self, upload: Records, download: Records) -> Records:
        del download
        names = self.coding.names | {"y"}
        if self.weighting == "examples":
            names |= {"weight"}
        if set(upload) != {"examples"} or set(upload["examples"]) != names:
            raise UploadError(f"an upload is examples with {', '.join(sorted(names))}, no more")
        sent = upload["examples"]
        coded = {name: sent[name] for name in self.coding.names}
        most = self.images_per_class * self.model.num_classes
        x, y = self.coding.decode(coded, self.model.shape, most), sent["y"]
        if y.dtype != label_dtype(self.model.num_classes) or y.shape != x.shape[:1]:
            raise UploadError("an upload has one label per image, in the smallest type")
        if (y.long() < 0).any() or (y.long() >= self.model.num_classes).any():
            raise UploadError(f"labels are below {self.model.num_classes}")
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
                f"no client found a class with {self.min_class_size} images or more; "
                "lower synthesis.min_class_size or use fewer clients"
            )
        return self.learned(state, union, rng, tick)

    def learned(
        self, state: Records, union: Tensors, rng: torch.Generator, tick: Tick
    ) -> Records:
        """Returns the state after training on a union of labelled images."""
        memory = self._remembered(union, state.get("replay"))
        weight = memory.get("weight", torch.ones(len(memory["y"])))
        even = bool((weight == weight[0]).all())
        examples = Examples(
            memory["x"], memory["y"].long(), weight=None if even else weight / weight.mean()
        )
        center = moved(state, self.device)["params"]
        trained = train(
            self.model,
            center,
            examples.to(self.device),
            self.server_sgd,
            rng,
            project=ball(center, self.server_radius),
            tick=tick,
        )
        after: dict[str, Tensors] = {"params": trained.params, "synthetic": union}
        if self.replay:
            after["replay"] = memory
        return moved(after, CPU)

    def _remembered(self, union: Tensors, before: Tensors | None) -> Tensors:
        """Returns the union with those of earlier rounds, and the age of each image."""
        union = {**union, "age": torch.zeros(len(union["y"]), dtype=torch.int32)}
        if not self.replay or before is None:
            return union
        young = before["age"] < self.replay
        older = {name: tensor[young] for name, tensor in before.items()}
        older["age"] = older["age"] + 1
        return {name: torch.cat([union[name], older[name]]) for name in union}


@dataclass(frozen=True)
class Synthesis:
    """How a client learns its synthetic images.

    Args:
        steps: Steps of SGD on the images, ``T``; 0 sends the start itself, which is REAL.
        lr: Learning rate on the images, ``eta_c``.
        momentum: Momentum of SGD on the images.
        networks: Number of networks to sample once and use in turn; ``None`` samples a new one
            for every step, as the paper does.
        real_batch: Real images of a class that a network sees; ``None`` shows it all of them.
        radius: Distance from ``w_r`` within which networks are sampled, ``rho``.
        start: First images: random real ones, or Gaussian noise.
        relative: Whether distances are divided by the squared length of the real means, so
            that steps do not grow with the weights; the paper's are not.
        augmentation: Changes the real and the synthetic images of a network alike.
    """

    steps: int
    lr: float
    momentum: float
    networks: int | None
    real_batch: int | None
    radius: float
    start: Literal["real", "noise"]
    relative: bool = False
    augmentation: Augmentation | None = None


@dataclass(frozen=True)
class PaperNoise:
    """The noise of Algorithm 1, for sigma > 0. It gives no guarantee.

    It clips the mean gradient of a batch, which one example can move by more than the noise
    hides; and the images start from real ones, of the classes that a client has.

    Args:
        sigma: Standard deviation of the noise, in units of ``clip / batch``.
        clip: Clipping norm of the gradient of a class, ``C``.
    """

    sigma: float
    clip: float

    def perturbed(
        self, gradient: Tensor, slots: Tensor, step: int, batches: Tensor, noise: Noise
    ) -> Tensor:
        """Returns the gradient clipped class by class, with noise.

        Args:
            gradient: Gradient with respect to the images.
            slots: The slot of each image.
            step: Number of the step.
            batches: Number of real images behind the gradient of each slot.
            noise: Source of the noise.
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
        del memory
        classes, members = data.by_class(self.min_class_size)
        if not classes:
            return LocalResult(self.pack_nothing())
        images, slots = self._start(data, members, rng)
        images, losses = synthesize(
            self.model,
            images,
            slots,
            self._targets(download, data, members, rng),
            lr=self.synthesis.lr,
            momentum=self.synthesis.momentum,
            steps=self.synthesis.steps,
            distance=relative_loss if self.synthesis.relative else matching_loss,
            perturb=self._perturb(members, noise),
            tick=tick,
        )
        metrics: dict[str, float] = {"classes": len(classes), "images": len(images)}
        if losses:
            metrics |= {"first_loss": losses[0], "last_loss": losses[-1]}
        return LocalResult(self.pack(images, classes, slots, members.counts), metrics=metrics)

    def _start(
        self, data: Examples, members: Members, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns the first images and their slots."""
        if self.synthesis.start == "real":
            return self.real_start(data, members, rng)
        slots = torch.arange(len(members.counts)).repeat_interleave(self.images_per_class)
        images = torch.randn(len(slots), *self.model.shape, generator=rng)
        return images.to(data.x.device), slots

    def _targets(
        self, download: Records, data: Examples, members: Members, rng: torch.Generator
    ) -> Iterator[Target]:
        """Yields without end the network of each step with its real means."""
        targets = fresh_targets(
            self.model,
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

    def _perturb(self, members: Members, noise: Noise | None) -> Perturb:
        """Returns what is done to gradients: nothing, unless the paper's noise is asked for."""
        if self.paper_noise is None:
            return unperturbed
        batches = members.counts
        if self.synthesis.real_batch is not None:
            batches = batches.clamp(max=self.synthesis.real_batch)
        return functools.partial(
            self.paper_noise.perturbed, batches=batches, noise=needed(noise)
        )


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
