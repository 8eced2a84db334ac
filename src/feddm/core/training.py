"""The one SGD loop: clients of the averaging methods and the server of FedDM use it alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.core.augmentation import Augmentation
from feddm.core.examples import Batch, Examples
from feddm.core.models import Model, chunks
from feddm.core.tensors import Tensors, norm, zip_map

Tick = Callable[[float], None]  # told the fraction of a piece of work that is done
Gradient = Callable[[Model, Tensors, Batch], tuple[dict[str, Tensor], float]]
Adjust = Callable[[Tensors, Tensors], Tensors]  # gradient, parameters -> gradient
Project = Callable[[Tensors], Tensors]
Schedule = Literal["constant", "cosine"]


@dataclass(frozen=True)
class SGD:
    """Settings of stochastic gradient descent; ``momentum = 0`` is the plain one.

    With an augmentation, every image of every batch is changed at random before it is learned.
    With the schedule ``"cosine"``, the learning rate falls to 0 along half a wave.
    """

    lr: float
    epochs: int
    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    augmentation: Augmentation | None = None
    schedule: Schedule = "constant"

    def lr_at(self, fraction: float) -> float:
        """Returns the learning rate when this fraction of the steps is done.

        >>> SGD(lr=0.2, epochs=1, batch_size=1, schedule="cosine").lr_at(0.5)
        0.1
        """
        if self.schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * fraction)) / 2


@dataclass(frozen=True)
class TrainingResult:
    """Parameters after training, the mean loss of the last epoch, and the steps it took."""

    params: dict[str, Tensor]
    loss: float
    steps: int


def ignore(fraction: float) -> None:
    """A `Tick` that tells nobody."""
    del fraction


def unchanged(tensors: Tensors, *_: Tensors) -> Tensors:
    """An `Adjust` and a `Project` that leave what they are given as it is."""
    return tensors


def train(
    model: Model,
    params: Tensors,
    data: Examples,
    sgd: SGD,
    rng: torch.Generator,
    *,
    gradient: Gradient | None = None,
    adjust: Adjust = unchanged,
    project: Project = unchanged,
    tick: Tick = ignore,
) -> TrainingResult:
    """Returns the parameters after ``sgd.epochs`` passes over the data in random order.

    Args:
        model: What is trained.
        params: Where training starts; they are left as they are.
        data: What is learned.
        sgd: How.
        rng: Draws the order of the examples, and their changes.
        gradient: The only function that sees examples; by default `mean_gradient`.
        adjust: Changes the gradient without seeing examples, as a proximal term does.
        project: Applied after every step, as to stay in a ball.
        tick: Told how far training is.
    """
    gradient = gradient or mean_gradient
    descent = Descent(params, sgd, adjust, project)
    loss = float("nan")
    all_steps = sgd.epochs * math.ceil(len(data) / sgd.batch_size)
    for epoch in range(sgd.epochs):
        total = 0.0
        for index in shuffled_batches(len(data), sgd.batch_size, rng):
            batch = data[index]
            if sgd.augmentation is not None:
                batch = batch._replace(x=sgd.augmentation.each(batch.x, rng))
            grads, batch_loss = gradient(model, descent.params, batch)
            total += batch_loss * len(index)
            descent.step(grads, descent.steps / all_steps)
        loss = total / len(data)
        tick((epoch + 1) / sgd.epochs)
    return TrainingResult(descent.params, loss, descent.steps)


class Descent:
    """Parameters on their way down: SGD, apart from where its gradients come from.

    Args:
        params: Where it starts; they are left as they are.
        sgd: How it steps.
        adjust: Changes the gradient without seeing examples.
        project: Applied after every step.
    """

    def __init__(
        self,
        params: Tensors,
        sgd: SGD,
        adjust: Adjust = unchanged,
        project: Project = unchanged,
    ) -> None:
        self.params = {name: tensor.detach().clone() for name, tensor in params.items()}
        self.steps = 0
        self._sgd = sgd
        self._adjust = adjust
        self._project = project
        self._velocity: dict[str, Tensor] | None = None

    def step(self, grads: Tensors, fraction: float) -> None:
        """Takes one step, when this fraction of all steps is done."""
        sgd = self._sgd
        grads = dict(self._adjust(grads, self.params))
        if sgd.weight_decay:
            grads = zip_map(lambda g, w: g.add_(w, alpha=sgd.weight_decay), grads, self.params)
        if sgd.momentum and self._velocity is not None:
            grads = zip_map(lambda v, g: v.mul_(sgd.momentum).add_(g), self._velocity, grads)
        self._velocity = grads
        lr = sgd.lr_at(fraction)
        params = zip_map(lambda w, g: w.sub_(g, alpha=lr), self.params, grads)
        self.params = dict(self._project(params))
        self.steps += 1


def shuffled_batches(num: int, batch_size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yields the numbers below `num` in random order, in as few batches as the size allows.

    Batches are nearly equal. A last one of two left-over examples would count as much as a full
    one, and with momentum such steps can spoil the training altogether.

    >>> [len(batch) for batch in shuffled_batches(770, 256, torch.Generator())]
    [193, 193, 192, 192]
    """
    yield from torch.randperm(num, generator=rng).tensor_split(math.ceil(num / batch_size))


def mean_gradient(
    model: Model, params: Tensors, batch: Batch
) -> tuple[dict[str, Tensor], float]:
    """Returns gradient and value of the mean cross entropy over a batch.

    With weights it is ``mean_i weight_i loss_i``: weights that average 1 over the whole data
    give its weighted mean.
    """
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    total = 0.0
    grads: dict[str, Tensor] | None = None
    weights = None if batch.weight is None else iter(chunks(batch.weight))
    for x, y in zip(chunks(batch.x), chunks(batch.y), strict=True):
        losses = F.cross_entropy(model(leaves, x).logits, y, reduction="none")
        if weights is not None:
            losses = losses * next(weights)
        loss = losses.sum() / len(batch.y)
        chunk = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        grads = chunk if grads is None else zip_map(Tensor.add_, grads, chunk)
        total += loss.item()
    if grads is None:
        raise ValueError("a batch has at least one example")
    return grads, total


def ball(center: Tensors, radius: float) -> Project:
    """Returns the projection onto ``|w - center| <= radius``, all parameters as one vector."""
    return lambda params: into_ball(params, center, radius)


def into_ball(params: Tensors, center: Tensors, radius: float) -> Tensors:
    """Returns the parameters if they are in the ball, else the nearest ones that are.

    >>> into_ball({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([1.0, 0.0])}, radius=2.0)
    {'w': tensor([1., 2.])}
    """
    distance = norm(zip_map(torch.sub, params, center))
    if distance <= radius:
        return params
    return zip_map(lambda w, c: torch.lerp(c, w, radius / distance), params, center)
