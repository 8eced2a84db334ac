"""Sums of gradients in which no example counts for more than a bound.

Abadi et al. Deep Learning with Differential Privacy. CCS 2016.
https://arxiv.org/abs/1607.00133

    sum_i g_i min(1, C / |g_i|)

over a Poisson sample. Its noisy value is divided by the size that a sample has on average: the
true size depends on the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.data.examples import Batch, Examples
from feddm.models import CHUNK, Model
from feddm.privacy.accounting import Released
from feddm.privacy.features import shortened
from feddm.privacy.release import Noise, needed
from feddm.privacy.units import Sampler, Unit
from feddm.tensors import Tensors
from feddm.training import SGD, Adjust, Descent, Tick, ignore, train, unchanged

# Of the gradients that are in memory at once.
_NUMBERS = 2**23


@dataclass(frozen=True)
class PrivateSGD:
    """How a client trains under privacy; all of it is public.

    Args:
        sgd: Learning rate, momentum and weight decay; epochs and batches are not used.
        steps: Of a round, however many examples a client has.
        sample_rate: Probability of an example to be in the sample of a step.
        expected_batch: What noisy sums are divided by.
        most: Length to which gradients are clipped, ``C``.
        noise_multiplier: Deviations of the noise over ``C``.
        unit: What is sampled and clipped as a whole.
    """

    sgd: SGD
    steps: int
    sample_rate: float
    expected_batch: float
    most: float
    noise_multiplier: float
    unit: Unit = "example"

    @property
    def planned(self) -> tuple[Released, ...]:
        """What a client will have released after one round."""
        return (Released(self.steps, self.noise_multiplier, self.sample_rate),)


class Local(NamedTuple):
    """What a client has after training, and what of it may be told."""

    params: dict[str, Tensor]
    steps: int
    size: int  # how much it counts
    metrics: dict[str, float]


def train_privately(
    model: Model,
    params: Tensors,
    data: Examples,
    private: PrivateSGD,
    noise: Noise,
    *,
    adjust: Adjust = unchanged,
    tick: Tick = ignore,
) -> dict[str, Tensor]:
    """Returns the parameters after DP-SGD.

    Args:
        model: What is trained.
        params: Where training starts; they are left as they are.
        data: What is learned; there may be no examples.
        private: How.
        noise: Draws the samples and protects the sums.
        adjust: Changes the noisy gradient without seeing examples.
        tick: Told how far training is.
    """
    descent = Descent(params, private.sgd, adjust)
    # By name, because files and messages do not keep the order of a mapping: the same sums with
    # noise in another order would be a second release.
    names = sorted(params)
    sizes = [params[name].numel() for name in names]
    sampler = Sampler(data, private.unit)
    for step in range(private.steps):
        sample = sampler.sample(partial(noise.sample, step, rate=private.sample_rate))
        batch = data[sample.examples.to(data.x.device)]
        sums = clipped_gradient_sum(model, descent.params, batch, private.most, sample.sizes)
        flat = torch.cat([sums[name].flatten() for name in names])
        noisy = noise.added(step, flat, private.most, private.noise_multiplier)
        parts = (noisy / private.expected_batch).float().split(sizes)
        grads = {
            name: part.view_as(params[name]) for name, part in zip(names, parts, strict=True)
        }
        descent.step(grads, step / private.steps)
        tick((step + 1) / private.steps)
    return descent.params


def trained_locally(
    model: Model,
    params: Tensors,
    data: Examples,
    sgd: SGD,
    private: PrivateSGD | None,
    rng: torch.Generator,
    noise: Noise | None,
    *,
    adjust: Adjust = unchanged,
    tick: Tick = ignore,
) -> Local:
    """Returns what a client learned: with privacy if that is asked for, else as usual."""
    if private is None:
        trained = train(model, params, data, sgd, rng, adjust=adjust, tick=tick)
        metrics = {"loss": trained.loss, "steps": trained.steps}
        return Local(trained.params, trained.steps, len(data), metrics)
    after = train_privately(
        model, params, data, private, needed(noise), adjust=adjust, tick=tick
    )
    # All count the same, and there are no figures: both would tell about the examples.
    return Local(after, private.steps, 1, {})


def clipped_gradient_sum(
    model: Model,
    params: Tensors,
    batch: Batch,
    most: float,
    sizes: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Returns the sum of the units' gradients, each of length `most` at most, as float64.

    The loss of an example is its cross entropy, and the gradient of a unit is the sum over its
    examples. One that is not finite adds nothing. A few examples at a time, so that memory does
    not grow with their number.

    Args:
        model: The model.
        params: Where the gradient is taken.
        batch: Examples; none at all give 0.
        most: Length of all parameters' gradients of a unit taken as one vector.
        sizes: How many examples each unit has, in their order; by default each has one.
    """

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(params, x[None]).logits, y[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    names = sorted(params)  # the bits of a length depend on the order of what is added up
    numbers = [params[name].numel() for name in names]
    at_once = max(1, min(CHUNK, _NUMBERS // sum(numbers)))

    def rows(x: Tensor, y: Tensor) -> Tensor:
        each = gradients(dict(params), x, y)
        return torch.cat([each[name].reshape(len(y), -1) for name in names], 1)

    # In double precision, so that what many units add up to loses nothing.
    total = torch.zeros(sum(numbers), dtype=torch.float64, device=batch.x.device)
    if sizes is None or all(size == 1 for size in sizes):
        for x, y in zip(batch.x.split(at_once), batch.y.split(at_once), strict=True):
            if len(y):  # torch cannot map over nothing
                total += shortened(rows(x, y), most).sum(0, dtype=torch.float64)
    else:
        for xs, ys in zip(batch.x.split(list(sizes)), batch.y.split(list(sizes)), strict=True):
            one = torch.zeros_like(total)
            for x, y in zip(xs.split(at_once), ys.split(at_once), strict=True):
                one += rows(x, y).sum(0, dtype=torch.float64)
            total += shortened(one[None], most)[0]
    parts = zip(names, total.split(numbers), strict=True)
    return {name: part.view_as(params[name]) for name, part in parts}
