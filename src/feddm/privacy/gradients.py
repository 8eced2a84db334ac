"""Sums of gradients in which no example counts for more than a bound.

Abadi et al. Deep Learning with Differential Privacy. CCS 2016.
https://arxiv.org/abs/1607.00133

    sum_i g_i min(1, C / |g_i|)

over a Poisson sample. Its noisy value is divided by the size that a sample has on average: the
true size depends on the data.

Gradients are taken one example at a time, so that none depends on the others, not even in its
last bits (`feddm.privacy.per_example`). On a CPU that is as fast as a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from feddm.config.schema import GuaranteedSettings
from feddm.core.examples import Examples
from feddm.core.models import Model
from feddm.core.tensors import Tensors
from feddm.core.training import SGD, Adjust, Descent, Tick, ignore, unchanged
from feddm.privacy.accounting import Released
from feddm.privacy.clipping import shortened, whole
from feddm.privacy.per_example import alone
from feddm.privacy.release import Noise
from feddm.privacy.units import Sampler, Unit


class GradientSettings(GuaranteedSettings):
    """Steps of DP-SGD, on the weights or on the images."""

    mechanism: Literal["gradients"] = "gradients"
    steps: PositiveInt = Field(50, description="Noisy gradient steps per client and round.")
    sample_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="Probability that an example is in the sample of a step."
    )

    instead = {  # noqa: RUF012  # a ClassVar
        "projection": "it is for --privacy features",
        "learn": "it is for --privacy features",
    }


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
    names = sorted(params)
    sizes = [params[name].numel() for name in names]
    sampler = Sampler(data, private.unit)
    for step in range(private.steps):
        sample = sampler.sample(partial(noise.sample, step, rate=private.sample_rate))
        chosen = data.subset(sample.examples.to(data.x.device))
        total = clipped_gradient_sum(model, descent.params, chosen, private.most, sample.sizes)
        noisy = noise.added(step, total, private.most, private.noise_multiplier)
        parts = (noisy / private.expected_batch).float().split(sizes)
        grads = {
            name: part.view_as(params[name]) for name, part in zip(names, parts, strict=True)
        }
        descent.step(grads, step / private.steps)
        tick((step + 1) / private.steps)
    return descent.params


def clipped_gradient_sum(
    model: Model,
    params: Tensors,
    data: Examples,
    most: float,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """Returns the sum of the units' gradients, each of length `most` at most.

    The loss of an example is its cross entropy, and the gradient of a unit is the sum over its
    examples. One that is not finite adds nothing.

    The sum is one vector of all parameters by their names, because files and messages do not
    keep the order of a mapping, and the same sums with noise in another order would be a second
    release. It is in whole numbers of ``most / GRID``.

    Args:
        model: The model.
        params: Where the gradient is taken.
        data: Examples; none at all give 0.
        most: Length of all parameters' gradients of a unit taken as one vector.
        sizes: How many examples each unit has, in their order; by default each has one.
    """
    names = sorted(params)
    leaves = {name: params[name].detach().requires_grad_() for name in names}

    def gradient(number: int) -> Tensor:
        one = alone(data, number)
        loss = F.cross_entropy(model(leaves, one.x).logits, one.y)
        parts = torch.autograd.grad(loss, [leaves[name] for name in names])
        return torch.cat([part.flatten() for part in parts])[None]

    numbers = sum(tensor.numel() for tensor in params.values())
    total = torch.zeros(numbers, dtype=torch.int64, device=data.x.device)
    examples = iter(range(len(data)))
    for size in [1] * len(data) if sizes is None else sizes:
        unit = torch.zeros(1, numbers, dtype=torch.float64, device=data.x.device)
        for number in itertools.islice(examples, size):
            unit += gradient(number)
        total += whole(shortened(unit, most), most)[0]
    return total
