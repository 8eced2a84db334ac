"""The server of FedDM and of REAL: it trains on the union of what clients sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feddm.algorithms.base import Upload
from feddm.data.examples import Examples
from feddm.errors import EmptyRoundError, UploadError
from feddm.models import Model
from feddm.tensors import CPU, Records, Tensors, moved
from feddm.training import SGD, Tick, ball, train


@dataclass(frozen=True)
class TrainsOnUnion:
    """Clients upload labelled images; the server trains on all of them, near where it was.

    Args:
        model: What is learned.
        images_per_class: Images of each class that a client sends at most, ``ipc``.
        min_class_size: A client leaves out a class of which it has fewer real images than this.
        server_sgd: How the server trains on the union.
        server_radius: How far from ``w_r`` the server goes, ``rho``.
        weighting: ``"synthetic"`` counts every image the same, as the paper does;
            ``"examples"`` counts it by the number of real images that it stands for, so that
            the server's loss approximates the mean over all real examples.
        device: Where the server trains; the union lies in its memory meanwhile.
    """

    model: Model
    images_per_class: int
    min_class_size: int
    server_sgd: SGD
    server_radius: float
    weighting: Literal["synthetic", "examples"]
    device: torch.device

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
            sizes: Real images of each slot that the client has.
        """
        labels = torch.tensor(classes, dtype=label_dtype(self.model.num_classes))
        examples = {"x": images, "y": labels[slots]}
        if self.weighting == "examples":
            examples["weight"] = (sizes / torch.bincount(slots))[slots]
        return {"examples": examples}

    def pack_nothing(self) -> Records:
        """Returns the upload of a client that has no class large enough."""
        nothing = torch.empty(0, dtype=torch.int64)
        return self.pack(torch.empty(0, *self.model.shape), [], nothing, nothing)

    def check(self, upload: Records, download: Records) -> None:
        del download
        names = {"x", "y"} | ({"weight"} if self.weighting == "examples" else set())
        if set(upload) != {"examples"} or set(upload["examples"]) != names:
            raise UploadError(f"an upload is examples with {', '.join(sorted(names))}, no more")
        x, y = upload["examples"]["x"], upload["examples"]["y"]
        most = self.images_per_class * self.model.num_classes
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
        union = united(uploads)
        if not len(union.get("y", ())):
            raise EmptyRoundError(
                f"no client has a class with {self.min_class_size} images or more; "
                "lower synthesis.min_class_size or use fewer clients"
            )
        weight = union.get("weight")
        data = Examples(
            union["x"],
            union["y"].long(),
            weight=None if weight is None else weight / weight.mean(),
        )
        center = moved(state, self.device)["params"]
        trained = train(
            self.model,
            center,
            data.to(self.device),
            self.server_sgd,
            rng,
            project=ball(center, self.server_radius),
            tick=tick,
        )
        return moved({"params": trained.params, "synthetic": union}, CPU)


def label_dtype(num_classes: int) -> torch.dtype:
    """Returns the smallest type that holds the labels: a label need not be 64 bits."""
    return torch.uint8 if num_classes <= 256 else torch.int32


def united(uploads: Iterable[Upload]) -> dict[str, Tensor]:
    """Returns all uploaded examples, with the client that each came from."""
    parts: dict[str, list[Tensor]] = {}
    for upload in uploads:
        examples = dict(upload.records["examples"])
        examples["client"] = torch.full((len(examples["y"]),), upload.client, dtype=torch.int32)
        for name, tensor in examples.items():
            parts.setdefault(name, []).append(tensor)
    return {name: torch.cat(tensors) for name, tensors in parts.items()}
