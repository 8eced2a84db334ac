"""REAL: clients send real images, as many as FedDM would send synthetic ones.

The paper's control: what the learning of images adds to merely sending some. It gives up the
data it sends, and is here to compare with, not to use.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from feddm.algorithms.base import LocalResult
from feddm.algorithms.costs import ClassTable, Work
from feddm.algorithms.feddm import TrainsOnUnion
from feddm.config.schema import AlgorithmSettings
from feddm.core.examples import Examples
from feddm.core.tensors import Records
from feddm.core.training import Tick
from feddm.errors import UnfitAlgorithmError
from feddm.privacy.accounting import Event, Unprotected
from feddm.privacy.release import Noise


@dataclass(frozen=True)
class Real(TrainsOnUnion):
    """Clients upload random real images of each class; the server trains on their union."""

    @classmethod
    def settings_type(cls, mechanism: str | None) -> type[AlgorithmSettings]:
        if mechanism is not None:
            raise UnfitAlgorithmError("real sends real images, which nothing makes private")
        return cls.Settings

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
        classes, members = data.by_class(self.settings.min_class_size)
        if not classes:
            return LocalResult(self.pack_nothing())
        images, slots = self.real_start(data, members, rng)
        upload = self.pack(images, classes, slots, members.counts)
        return LocalResult(upload, metrics={"classes": len(classes), "images": len(images)})

    def passes(self, table: ClassTable) -> Work:
        large = table >= self.settings.min_class_size
        return Work(server=self.server_passes(float(self.num_images(table)[large].sum())))
