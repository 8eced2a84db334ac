"""FedAvg.

McMahan et al. Communication-Efficient Learning of Deep Networks from Decentralized Data.
AISTATS 2017. https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from feddm.algorithms.base import LocalResult, Upload, parse_like
from feddm.algorithms.local_training import LocalSettings, Training, TrainsLocally
from feddm.core.examples import Examples
from feddm.core.tensors import Records, Tensors, weighted_mean, zip_map
from feddm.core.training import Adjust, Tick, unchanged
from feddm.errors import UploadError
from feddm.privacy.release import Noise


class FedAvgSettings(LocalSettings):
    """Settings of FedAvg."""

    local: Training = Training()


@dataclass(frozen=True)
class FedAvg(TrainsLocally):
    """Clients train on their data; the server averages their weights by ``n_k / n``.

    With fewer than 32 bits they send updates ``w - w_r``, and the server adds ``w_r`` again.
    With privacy they train by DP-SGD, and all count the same, because ``n_k`` would tell about
    their data.
    """

    Settings = FedAvgSettings

    def init(self, params: Tensors) -> Records:
        return {"params": params}

    def broadcast(self, state: Records) -> Records:
        return {"params": state["params"]}

    def adjust(self, anchor: Tensors) -> Adjust:
        """Returns what changes a client's gradient: here nothing."""
        del anchor
        return unchanged

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        anchor = download["params"]
        trained = self.trained(anchor, data, rng, noise, tick, self.adjust(anchor))
        sent: Records = {"params": trained.params}
        left: Records = {}
        if self.settings.bits < 32:  # an update has a smaller range than weights
            update = zip_map(torch.sub, trained.params, anchor)
            sent, left = self.encoded("update", update, memory, rng)
        size = {"examples": torch.tensor(trained.size)}
        return LocalResult({**sent, "size": size}, left, trained.metrics)

    def parse(self, upload: Records, download: Records) -> Records:
        anchor, size = download["params"], {"examples": torch.tensor(0)}
        if self.settings.bits == 32:
            return parse_sized(upload, {"params": anchor, "size": size})
        upload = self.decoded(upload, "update", anchor)
        upload = parse_sized(upload, {"update": anchor, "size": size})
        params = zip_map(torch.add, anchor, upload["update"])
        return {"params": params, "size": upload["size"]}

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        del state, rng, tick
        return weighted_mean(({"params": u.records["params"]}, size(u)) for u in uploads)


def size(upload: Upload) -> int:
    """Returns the number of examples that an upload stands for, ``n_k``."""
    return int(upload.records["size"]["examples"])


def parse_sized(upload: Records, template: Records) -> Records:
    """Returns the upload, which must be like the template and stand for some examples."""
    upload = parse_like(upload, template)
    if upload["size"]["examples"] < 1:
        raise UploadError("an upload stands for at least one example")
    return upload
