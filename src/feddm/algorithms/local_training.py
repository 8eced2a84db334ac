"""The clients of FedAvg and its kin: they train the weights on their own data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from feddm.core.examples import Examples
from feddm.core.models import Model
from feddm.core.tensors import Tensors
from feddm.core.training import SGD, Adjust, Tick, train, unchanged
from feddm.privacy.accounting import Event, Unprotected
from feddm.privacy.gradients import PrivateSGD, train_privately
from feddm.privacy.release import Noise, needed


class Trained(NamedTuple):
    """What a client has after training, and what of it may be told."""

    params: dict[str, Tensor]
    steps: int
    size: int  # how much it counts
    metrics: dict[str, float]


@dataclass(frozen=True)
class TrainsLocally:
    """Clients start from the server's weights and train on their data.

    Args:
        model: What is learned.
        local_sgd: How clients train.
        private: How they train under privacy, by DP-SGD; ``None`` trains as usual.
    """

    model: Model
    local_sgd: SGD
    private: PrivateSGD | None = field(default=None, kw_only=True)

    @property
    def planned(self) -> tuple[Event, ...]:
        return self.private.planned if self.private else (Unprotected("weights"),)

    def trained(
        self,
        params: Tensors,
        data: Examples,
        rng: torch.Generator,
        noise: Noise | None,
        tick: Tick,
        adjust: Adjust = unchanged,
    ) -> Trained:
        """Returns what a client learned: with privacy if that is asked for, else as usual."""
        if self.private is None:
            after = train(
                self.model, params, data, self.local_sgd, rng, adjust=adjust, tick=tick
            )
            metrics = {"loss": after.loss, "steps": after.steps}
            return Trained(after.params, after.steps, len(data), metrics)
        private = train_privately(
            self.model, params, data, self.private, needed(noise), adjust=adjust, tick=tick
        )
        # All count the same, and there are no figures: both would tell about the examples.
        return Trained(private, self.private.steps, 1, {})
