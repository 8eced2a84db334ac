"""REAL: clients send real images, as many as FedDM would send synthetic ones.

The paper's control: what the learning of images adds to merely sending some. It gives up the
data it sends, and is here to compare with, not to use.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from feddm.algorithms.base import LocalResult
from feddm.algorithms.feddm import TrainsOnUnion
from feddm.core.examples import Examples
from feddm.core.tensors import Records
from feddm.core.training import Tick
from feddm.privacy.accounting import Event, Unprotected
from feddm.privacy.release import Noise


@dataclass(frozen=True)
class Real(TrainsOnUnion):
    """Clients upload random real images of each class; the server trains on their union."""

    @property
    def planned(self) -> tuple[Event, ...]:
        return (Unprotected("real images"),)

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        del download, memory, tick, noise
        classes, members = data.by_class(self.min_class_size)
        if not classes:
            return LocalResult(self.pack_nothing())
        images, slots = self.real_start(data, members, rng)
        upload = self.pack(images, classes, slots, members.counts)
        return LocalResult(upload, metrics={"classes": len(classes), "images": len(images)})
