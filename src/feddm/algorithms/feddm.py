"""FedDM, Algorithm 1 without its noise.

Xiong et al. FedDM: Iterative Distribution Matching for Communication-Efficient Federated
Learning. CVPR 2023. https://arxiv.org/abs/2207.09653

Each client learns a few synthetic images a class that, near the server's weights ``w_r``, have
the mean embedding and the mean logits of its real images. The server trains on the union of
these sets, and stays in the ball of radius ``rho`` around ``w_r`` in which they were made to
match.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feddm.algorithms.base import LocalResult, Upload
from feddm.data.examples import Examples
from feddm.errors import EmptyRoundError, UploadError
from feddm.matching import Target, draw_members, fresh_targets, synthesize
from feddm.models import Model
from feddm.tensors import Records, Tensors
from feddm.training import SGD, Tick, ball, train


@dataclass(frozen=True)
class Synthesis:
    """How a client learns its synthetic images.

    Args:
        images_per_class: Images of each class, ``ipc``.
        steps: Steps of SGD on the images, ``T``; 0 sends the start itself.
        lr: Learning rate on the images, ``eta_c``.
        momentum: Momentum of SGD on the images.
        networks: How many networks to sample and then use in turn; ``None`` takes a fresh one
            for every step, which is the paper's way.
        real_batch: Real images of a class that a network sees; ``None`` shows it all of them.
        radius: Distance from ``w_r`` within which networks are sampled, ``rho``.
        start: Begin with random real images or with Gaussian noise.
        min_class_size: A class with fewer real images than this is left out.
    """

    images_per_class: int
    steps: int
    lr: float
    momentum: float
    networks: int | None
    real_batch: int | None
    radius: float
    start: Literal["real", "noise"]
    min_class_size: int


@dataclass(frozen=True)
class FedDM:
    """Clients upload synthetic sets; the server trains on their union.

    ``weighting = "synthetic"`` counts every synthetic image the same, as the paper does;
    ``"examples"`` counts it by the number of real images that it stands for, so that the
    server's loss approximates the mean over all real examples.
    """

    model: Model
    synthesis: Synthesis
    server_sgd: SGD
    server_radius: float
    weighting: Literal["synthetic", "examples"] = "synthetic"

    def init(self, params: Tensors) -> Records:
        return {"params": params}

    def broadcast(self, state: Records) -> Records:
        return {"params": state["params"]}

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
    ) -> LocalResult:
        del memory
        settings = self.synthesis
        classes, by_class = classes_of(data.y, settings.min_class_size)
        if not classes:
            return LocalResult(self._pack(torch.empty(0, *self.model.shape), [], [], []))
        images, slots = self._start(data, by_class, rng)
        targets: Iterator[Target] = fresh_targets(
            self.model,
            download["params"],
            settings.radius,
            data,
            by_class,
            settings.real_batch,
            rng,
        )
        if settings.networks is not None:
            targets = itertools.cycle(itertools.islice(targets, settings.networks))
        images, losses = synthesize(
            self.model,
            images,
            slots,
            targets,
            lr=settings.lr,
            momentum=settings.momentum,
            steps=settings.steps,
            tick=tick,
        )
        counts = torch.bincount(slots).tolist()
        upload = self._pack(images, classes, counts, [len(members) for members in by_class])
        metrics: dict[str, float] = {"classes": len(classes), "images": len(images)}
        if losses:
            metrics |= {"first_loss": losses[0], "last_loss": losses[-1]}
        return LocalResult(upload, metrics=metrics)

    def check(self, upload: Records) -> None:
        names = {"x", "y"} | ({"weight"} if self.weighting == "examples" else set())
        if set(upload) != {"examples"} or set(upload["examples"]) != names:
            raise UploadError(f"an upload is examples with {', '.join(sorted(names))}, no more")
        x, y = upload["examples"]["x"], upload["examples"]["y"]
        most = self.synthesis.images_per_class * self.model.num_classes
        if x.dtype != torch.float32 or x.shape[1:] != self.model.shape or len(x) > most:
            raise UploadError(
                f"an upload has at most {most} float32 images of shape {self.model.shape}, "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        if not x.isfinite().all():
            raise UploadError("an upload has finite pixels only")
        if y.dtype != label_dtype(self.model.num_classes) or y.shape != x.shape[:1]:
            raise UploadError("an upload has one label an image, in the smallest type")
        if (y.long() < 0).any() or (y.long() >= self.model.num_classes).any():
            raise UploadError(f"labels are below {self.model.num_classes}")
        weight = upload["examples"].get("weight", torch.ones(len(x)))
        positive = weight.isfinite() & (weight > 0)
        if weight.dtype != torch.float32 or weight.shape != y.shape or not positive.all():
            raise UploadError("an upload has one positive float32 weight an image")

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        synthetic = union(uploads)
        if not len(synthetic.get("y", ())):
            raise EmptyRoundError(
                f"no client has a class with {self.synthesis.min_class_size} images or more; "
                "lower synthesis.min_class_size or use fewer clients"
            )
        weight = synthetic.get("weight")
        data = Examples(
            synthetic["x"],
            synthetic["y"].long(),
            weight=None if weight is None else weight / weight.mean(),
        )
        trained = train(
            self.model,
            state["params"],
            data,
            self.server_sgd,
            rng,
            project=ball(state["params"], self.server_radius),
            tick=tick,
        )
        return {"params": trained.params, "synthetic": synthetic}

    def _start(
        self, data: Examples, by_class: list[Tensor], rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns the first images and their slots."""
        settings = self.synthesis
        if settings.start == "real":
            chosen = draw_members(by_class, settings.images_per_class, rng)
            counts = torch.tensor([len(members) for members in chosen])
            return data[torch.cat(chosen)].x, torch.repeat_interleave(counts)
        slots = torch.arange(len(by_class)).repeat_interleave(settings.images_per_class)
        return torch.randn(len(slots), *self.model.shape, generator=rng), slots

    def _pack(
        self, images: Tensor, classes: list[int], counts: list[int], sizes: list[int]
    ) -> Records:
        """Returns the upload: images, labels, and weights if the server wants them."""
        repeats = torch.tensor(counts, dtype=torch.int64)
        labels = torch.tensor(classes, dtype=label_dtype(self.model.num_classes))
        examples = {"x": images, "y": labels.repeat_interleave(repeats)}
        if self.weighting == "examples":
            shares = torch.tensor(
                [size / count for size, count in zip(sizes, counts, strict=True)]
            )
            examples["weight"] = shares.repeat_interleave(repeats)
        return {"examples": examples}


def classes_of(labels: Tensor, min_size: int) -> tuple[list[int], list[Tensor]]:
    """Returns the classes with at least `min_size` examples, and which examples they have.

    >>> classes_of(torch.tensor([4, 1, 4]), min_size=2)
    ([4], [tensor([0, 2])])
    """
    classes, by_class = [], []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        if len(members) >= min_size:
            classes.append(label)
            by_class.append(members)
    return classes, by_class


def label_dtype(num_classes: int) -> torch.dtype:
    """Returns the smallest type that holds the labels: a label need not be 64 bits."""
    return torch.uint8 if num_classes <= 256 else torch.int32


def union(uploads: Iterable[Upload]) -> dict[str, Tensor]:
    """Returns all uploaded examples, with the client that each came from."""
    parts: dict[str, list[Tensor]] = {}
    for upload in uploads:
        examples = dict(upload.records["examples"])
        examples["client"] = torch.full((len(examples["y"]),), upload.client, dtype=torch.int32)
        for name, tensor in examples.items():
            parts.setdefault(name, []).append(tensor)
    return {name: torch.cat(tensors) for name, tensors in parts.items()}
