"""How much a round computes: images that pass through the model, counted before anything runs.

A forward pass of one image is the unit. A pass with its gradient counts as three: forward, and
two of about the same size backward; where only images are learned the weights' part falls away.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from feddm.config.schema import Config
from feddm.core.models import Model


@dataclass(frozen=True)
class Passes:
    """Images that pass through the model.

    Args:
        forward: Only forward, as real images in matching.
        images: Forward, and back to the image, as synthetic images in matching.
        weights: Forward, and back to the weights, as in training.
    """

    forward: float = 0.0
    images: float = 0.0
    weights: float = 0.0

    @property
    def weight(self) -> float:
        """All of them in forward passes."""
        return self.forward + 2 * self.images + 3 * self.weights


@dataclass(frozen=True)
class Round:
    """Passes of all clients of a round together, and of the server after them."""

    clients: Passes
    server: Passes


def passes(config: Config, table: np.ndarray[Any, Any]) -> Round:
    """Returns what the average round with the average cohort computes.

    Args:
        config: What is run.
        table: Examples of each class (column) that each client (row) has.
    """
    share = config.participation
    if config.algorithm not in ("feddm", "real"):
        privacy = config.privacy
        private = privacy.mechanism == "gradients"
        epochs = privacy.steps * privacy.sample_rate if private else config.local.epochs
        trained = share * float(table.sum()) * epochs
        return Round(Passes(weights=trained), Passes())
    synthesis = config.synthesis
    large = table >= synthesis.min_class_size
    # With real images as the start, a class with fewer than ipc of them sends what it has.
    sent = np.minimum(table, synthesis.images_per_class)
    if synthesis.start == "noise" and config.algorithm == "feddm":
        sent = np.full_like(table, synthesis.images_per_class)
    images = share * float(sent[large].sum())
    # The first rounds have no earlier sets, or few, to replay.
    sets = statistics.fmean(
        min(number, config.server.replay + 1) for number in range(1, config.rounds + 1)
    )
    server = Passes(weights=images * sets * config.server.epochs)
    if config.algorithm == "real":
        return Round(Passes(), server)
    batch = table
    if synthesis.real_batch != "all":
        batch = np.minimum(table, synthesis.real_batch)
    networks = (
        synthesis.steps
        if synthesis.networks == "fresh"
        else min(synthesis.networks, synthesis.steps)
    )
    real = share * float(batch[large].sum()) * networks
    return Round(Passes(forward=real, images=images * synthesis.steps), server)


def forward_flops(model: Model) -> int:
    """Returns the operations of one image's forward pass, two for each multiply-add.

    Counted are convolutions and matrix products, as is usual: all else is small beside them.
    """
    params = model.init(torch.Generator())
    counter = _Counter()
    with torch.no_grad(), counter:
        model(params, torch.zeros(1, *model.shape))
    return counter.flops


class _Counter(TorchFunctionMode):
    """Counts while it is entered. torch has a counter too, which takes seconds to import."""

    flops: int = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (F.conv2d, F.linear):
            weight = args[1]
            self.flops += 2 * result.numel() * weight[0].numel()
        return result
