"""The 1-D example of Appendix A: a learned surrogate compared with the objective itself.

The objective ``f(w)`` is the binary cross entropy of the prediction ``sigmoid(w x)`` on 100
points ``x ~ N(0, 1)`` with labels 0 and 1. The surrogate is the same loss on 20 synthetic
points, ten per class, which start as ``N(0, 1)`` and are learned by distribution matching
around ``w = 0``. The model has one layer: its logit is ``w x``, and its embedding is ``x``.

As printed, ``y = 1`` has probability .1 on both sides of 0, so ``x`` would say nothing about
``y``. The paper must mean .9 for ``x >= 0`` and .1 for ``x < 0``; this module uses that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.core.matching import Target, class_means, sample_near, synthesize
from feddm.core.models import Outputs
from feddm.core.seeding import generator
from feddm.core.tensors import Tensors

SEED = 0
POINTS, SYNTHETIC = 100, 20
STEPS, LR, RADIUS = 1000, 1.0, 5.0  # as in the paper's other experiments
GRADIENT_STEP = 1.0  # learning rate of the gradient step to compare with
MISPRINT = (
    "As printed in Appendix A, y = 1 has probability 0.1 on both sides of x = 0, so y would "
    "not depend on x. Here it is 0.9 for x >= 0 and 0.1 for x < 0."
)


@dataclass(frozen=True)
class Points:
    """Points on a line with their classes, 0 or 1."""

    x: Tensor
    y: Tensor

    def loss(self, w: float | Tensor) -> Tensor:
        """Returns the mean binary cross entropy of ``sigmoid(w x)``, for each `w`."""
        z = torch.as_tensor(w, dtype=torch.float64)[..., None] * self.x
        return (F.softplus(z) - self.y * z).mean(-1)

    def slope(self, w: float) -> float:
        """Returns the derivative of the loss: the mean of ``(sigmoid(w x) - y) x``."""
        return float(((torch.sigmoid(w * self.x) - self.y) * self.x).mean())


@dataclass(frozen=True)
class Example:
    """The example and its results.

    Args:
        real: Points of the objective.
        start: Synthetic points before learning.
        synthetic: Synthetic points after learning: those of the surrogate.
        minimiser: Minimiser of the objective.
        surrogate_minimiser: Minimiser of the surrogate.
        gradient_step: Result of one gradient step from 0.
        printed_minimiser: Minimiser of the objective with the labels as printed.
    """

    real: Points
    start: Points
    synthetic: Points
    minimiser: float
    surrogate_minimiser: float
    gradient_step: float
    printed_minimiser: float

    def tangent(self, w: Tensor) -> Tensor:
        """Returns the tangent of the objective at 0."""
        return self.real.loss(0.0) + self.real.slope(0.0) * w


def example(seed: int = SEED) -> Example:
    """Returns the example for a seed, the same bits every time."""
    rng = generator(seed, "1-D example")
    x = torch.randn(POINTS, dtype=torch.float64, generator=rng)
    p = torch.rand(POINTS, dtype=torch.float64, generator=rng)
    real = Points(x, torch.where(x >= 0, p < 0.9, p < 0.1).double())
    printed = Points(x, torch.where(x >= 0, p >= 0.9, p < 0.1).double())
    start = Points(
        torch.randn(SYNTHETIC, dtype=torch.float64, generator=rng),
        torch.arange(2, dtype=torch.float64).repeat_interleave(SYNTHETIC // 2),
    )
    synthetic = _learned(real, start, rng)
    return Example(
        real=real,
        start=start,
        synthetic=synthetic,
        minimiser=minimiser(real.slope),
        surrogate_minimiser=minimiser(synthetic.slope),
        gradient_step=-GRADIENT_STEP * real.slope(0.0),
        printed_minimiser=minimiser(printed.slope),
    )


class _Line:
    """The model: the embedding is ``x`` itself, and the only logit is ``w x``."""

    shape = (1, 1, 1)
    num_classes = 1

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        del rng
        return {"w": torch.zeros((), dtype=torch.float64)}

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        x = x.flatten(1)
        return Outputs(x, params["w"] * x)


def _learned(real: Points, start: Points, rng: torch.Generator) -> Points:
    """Returns synthetic points whose class means match the real ones for networks around 0."""
    model = _Line()

    def targets() -> Iterator[Target]:
        while True:
            near = sample_near(model.init(rng), RADIUS, rng)
            outputs = model(near, real.x[:, None, None, None])
            yield Target(near, class_means(outputs, real.y.long(), 2))

    learned, _ = synthesize(
        model,
        start.x[:, None, None, None],
        start.y.long(),
        targets(),
        lr=LR,
        steps=STEPS,
    )
    return Points(learned.flatten(), start.y)


def minimiser(slope: Callable[[float], float]) -> float:
    """Returns where a convex function has slope 0, by bisection to the last bit."""
    low, high = -1.0, 1.0
    while slope(low) > 0:
        low *= 2
    while slope(high) < 0:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low
