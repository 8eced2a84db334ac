"""FedAvg.

McMahan et al. Communication-Efficient Learning of Deep Networks from Decentralized Data.
AISTATS 2017. https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from feddm.algorithms.base import LocalResult, Upload, check_like
from feddm.algorithms.local_training import TrainsLocally
from feddm.core.examples import Examples
from feddm.core.tensors import Records, Tensors, weighted_mean
from feddm.core.training import Adjust, Tick, unchanged
from feddm.errors import UploadError
from feddm.privacy.release import Noise


@dataclass(frozen=True)
class FedAvg(TrainsLocally):
    """Clients train on their data; the server averages their weights by ``n_k / n``.

    With privacy they train by DP-SGD, and all count the same, because ``n_k`` would tell about
    their data.
    """

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
        del memory
        anchor = download["params"]
        trained = self.trained(anchor, data, rng, noise, tick, self.adjust(anchor))
        upload = {"params": trained.params, "size": {"examples": torch.tensor(trained.size)}}
        return LocalResult(upload, metrics=trained.metrics)

    def check(self, upload: Records, download: Records) -> None:
        check_like(
            upload, {"params": download["params"], "size": {"examples": torch.tensor(0)}}
        )
        check_size(upload)

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        del state, rng, tick
        return weighted_mean(({"params": u.records["params"]}, size(u)) for u in uploads)


def size(upload: Upload) -> int:
    """Returns the number of examples that an upload stands for, ``n_k``."""
    return int(upload.records["size"]["examples"])


def check_size(upload: Records) -> None:
    """Raises `UploadError` unless there is at least one example behind the upload."""
    if upload["size"]["examples"] < 1:
        raise UploadError("an upload stands for at least one example")
