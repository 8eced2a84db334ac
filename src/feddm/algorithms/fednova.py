"""FedNova, with plain SGD or SGD with momentum on the clients.

Wang et al. Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020. https://arxiv.org/abs/2007.07481
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from feddm.algorithms.base import LocalResult, Upload
from feddm.algorithms.costs import ClassTable, UploadSize
from feddm.algorithms.fedavg import parse_sized, size
from feddm.algorithms.local_training import LocalSettings, Training, TrainsLocally
from feddm.core.examples import Examples
from feddm.core.tensors import Records, Tensors, weighted_mean, zip_map
from feddm.core.training import Tick
from feddm.errors import UploadError
from feddm.privacy.release import Noise


class FedNovaSettings(LocalSettings):
    """Settings of FedNova."""

    local: Training = Training()


@dataclass(frozen=True)
class FedNova(TrainsLocally):
    """Clients send their update divided by ``a``, the weight of all gradients in it.

    So a client that takes more steps does not pull harder. The server goes
    ``sum_k p_k a_k`` times the mean direction, with ``p_k = n_k / n``. If all clients take the
    same number of steps, this is FedAvg; under privacy they do, since a number of steps that
    depends on the data would tell about them.
    """

    Settings = FedNovaSettings
    settings: FedNovaSettings

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
        noise: Noise | None = None,
    ) -> LocalResult:
        trained = self.trained(download["params"], data, rng, noise, tick)
        a = gradient_weight(trained.steps, self.settings.local.momentum)
        direction = zip_map(
            lambda before, after: (before - after) / a, download["params"], trained.params
        )
        sent, left = self.encoded("direction", direction, memory, rng)
        upload = {
            **sent,
            "coefficient": {"a": torch.tensor(a)},
            "size": {"examples": torch.tensor(trained.size)},
        }
        return LocalResult(upload, left, trained.metrics)

    def parse(self, upload: Records, download: Records) -> Records:
        template = {
            "direction": download["params"],
            "coefficient": {"a": torch.tensor(0.0)},
            "size": {"examples": torch.tensor(0)},
        }
        upload = self.decoded(upload, "direction", download["params"])
        upload = parse_sized(upload, template)
        if upload["coefficient"]["a"] <= 0:
            raise UploadError("the coefficient is above 0")
        return upload

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        del rng, tick
        mean = weighted_mean(
            ({name: u.records[name] for name in ("direction", "coefficient")}, size(u))
            for u in uploads
        )
        a = mean["coefficient"]["a"]
        return {"params": zip_map(lambda w, d: w - a * d, state["params"], mean["direction"])}

    def upload_size(self, table: ClassTable) -> UploadSize:
        size = super().upload_size(table)  # and a coefficient for each client
        return UploadSize(size.floats + len(table), size.num_bytes + 4 * len(table))


def gradient_weight(steps: int, momentum: float) -> float:
    """Returns ``|a|_1``: how much all gradients together count in an update of so many steps.

    Without momentum each counts once. With momentum ``m``, the gradient of a step counts
    ``1 + m + m^2 + ...`` up to the last step.

    >>> gradient_weight(3, 0.0)
    3.0
    >>> gradient_weight(3, 0.5)  # 1.75 + 1.5 + 1
    4.25
    """
    return sum((1 - momentum ** (steps - step)) / (1 - momentum) for step in range(steps))
