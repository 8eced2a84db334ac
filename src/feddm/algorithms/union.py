"""The server of FedDM and of REAL: it trains on the union of what clients sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from feddm.algorithms.base import Upload
from feddm.core.coding import Coding
from feddm.core.examples import Examples, Members
from feddm.core.formation import composed, expanded
from feddm.core.models import Model
from feddm.core.tensors import CPU, Records, Tensors, moved
from feddm.core.training import SGD, Tick, ball, train
from feddm.errors import EmptyRoundError, UploadError

LARGEST_WEIGHT = 1e9  # real images that one can stand for; sums of such weights are finite


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
        coding: How images travel.
        formation: Each image that travels holds so many small ones a side.
        replay: The server trains on the sets of so many earlier rounds too.
        replay_decay: The weight of a set is times this for every round of its age.
    """

    model: Model
    images_per_class: int
    min_class_size: int
    server_sgd: SGD
    server_radius: float
    weighting: Literal["synthetic", "examples"]
    device: torch.device
    coding: Coding = field(default=Coding(), kw_only=True)
    formation: int = field(default=1, kw_only=True)
    replay: int = field(default=0, kw_only=True)
    replay_decay: float = field(default=1.0, kw_only=True)

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
        examples = {**self.coding.encode(images.cpu()), "y": labels[slots]}
        if self.weighting == "examples":
            examples["weight"] = (sizes / torch.bincount(slots))[slots].float()
        return {"examples": examples}

    def pack_nothing(self) -> Records:
        """Returns the upload of a client that has no class large enough."""
        nothing = torch.empty(0, dtype=torch.int64)
        return self.pack(torch.empty(0, *self.model.shape), [], nothing, nothing)

    def real_images(self, sizes: Tensor) -> Tensor:
        """Returns how many images are sent of classes of such sizes, if they begin as real."""
        return (sizes // self.formation**2).clamp(max=self.images_per_class)

    def real_start(
        self, data: Examples, members: Members, images: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns random real images as they would be sent, and their slots.

        Args:
            data: The client's examples.
            members: Those of each slot, as many as its images hold or more.
            images: How many images each slot gets.
            rng: Draws them.
        """
        small = self.formation**2
        chosen = members.sample(images * small, rng)
        return composed(data[chosen.index].x, self.formation), chosen.slots[::small]

    def check(self, upload: Records, download: Records) -> None:
        del download
        names = self.coding.names | {"y"}
        if self.weighting == "examples":
            names |= {"weight"}
        if set(upload) != {"examples"} or set(upload["examples"]) != names:
            raise UploadError(f"an upload is examples with {', '.join(sorted(names))}, no more")
        examples = self.decoded(upload["examples"])
        y, shape = examples["y"], examples["x"].shape[:1]
        if y.dtype != label_dtype(self.model.num_classes) or y.shape != shape:
            raise UploadError("an upload has one label an image, in the smallest type")
        if (y.long() < 0).any() or (y.long() >= self.model.num_classes).any():
            raise UploadError(f"labels are below {self.model.num_classes}")
        weight = examples.get("weight", torch.ones(shape))
        sane = (weight > 0) & (weight <= LARGEST_WEIGHT)
        if weight.dtype != torch.float32 or weight.shape != shape or not sane.all():
            raise UploadError(
                "an upload has one float32 weight an image, "
                f"above 0 and up to {LARGEST_WEIGHT:g}"
            )

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        union = united((u.client, self.decoded(u.records["examples"])) for u in uploads)
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
        center = moved(state, self.device)["params"]
        trained = train(
            self.model,
            center,
            self._training_set(memory).to(self.device),
            self.server_sgd,
            rng,
            project=ball(center, self.server_radius),
            tick=tick,
        )
        after: dict[str, Tensors] = {"params": trained.params, "synthetic": union}
        if self.replay:
            after["replay"] = memory
        return moved(after, CPU)

    def decoded(self, sent: Tensors) -> dict[str, Tensor]:
        """Returns the examples of an upload, with images as a model takes them."""
        coded = {name: tensor for name, tensor in sent.items() if name in self.coding.names}
        rest = {name: tensor for name, tensor in sent.items() if name not in coded}
        most = self.images_per_class * self.model.num_classes
        return {"x": self.coding.decode(coded, self.model.shape, most), **rest}

    def _remembered(self, union: Tensors, before: Tensors | None) -> Tensors:
        """Returns the union with those of earlier rounds, and the age of each image."""
        union = {**union, "age": torch.zeros(len(union["y"]), dtype=torch.int32)}
        if not self.replay or before is None:
            return union
        young = before["age"] < self.replay
        older = {name: tensor[young] for name, tensor in before.items()}
        older["age"] = older["age"] + 1
        return {name: torch.cat([union[name], older[name]]) for name in union}

    def _training_set(self, memory: Tensors) -> Examples:
        """Returns what the server learns: small images enlarged, with their weights."""
        weight = memory.get("weight", torch.ones(len(memory["y"])))
        weight = weight * self.replay_decay ** memory["age"]
        small = self.formation**2
        even = bool((weight == weight[0]).all())
        return Examples(
            expanded(memory["x"], self.formation),
            memory["y"].long().repeat_interleave(small),
            weight=None if even else (weight / weight.mean()).repeat_interleave(small),
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
