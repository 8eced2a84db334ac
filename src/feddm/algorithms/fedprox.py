"""FedProx, with the same number of local epochs for every client.

Li et al. Federated Optimization in Heterogeneous Networks. MLSys 2020.
https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field, NonNegativeFloat

from feddm.algorithms.fedavg import FedAvg, FedAvgSettings
from feddm.core.tensors import Tensors, zip_map
from feddm.core.training import Adjust


class FedProxSettings(FedAvgSettings):
    """Settings of FedProx."""

    mu: NonNegativeFloat = Field(0.01, description="Weight of the proximal term; 0 is FedAvg.")


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with the local loss ``+ mu/2 |w - w_r|^2``; ``mu = 0`` is FedAvg."""

    Settings = FedProxSettings
    settings: FedProxSettings

    def adjust(self, anchor: Tensors) -> Adjust:
        mu = self.settings.mu

        def proximal(grads: Tensors, params: Tensors) -> Tensors:
            return zip_map(lambda g, w, a: g + mu * (w - a), grads, params, anchor)

        return proximal
