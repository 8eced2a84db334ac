"""SCAFFOLD, option II, plain SGD, uniform averaging.

Karimireddy et al. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML 2020.
https://arxiv.org/abs/1910.06378

Clients are averaged with equal weights, as the paper does, so that the server's variate ``c``
stays the mean of the clients' ``c_i``. A client's own variate never leaves it: what it sends is
the change. With fewer than 32 bits, its variate is the sum of what it sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from pydantic import Field, PositiveFloat

from feddm.algorithms.base import LocalResult, Upload, parse_like
from feddm.algorithms.costs import ClassTable, UploadSize
from feddm.algorithms.local_training import LocalSettings, TrainsLocally
from feddm.core.examples import Examples
from feddm.core.tensors import Records, Tensors, weighted_mean, zip_map
from feddm.core.training import Tick
from feddm.privacy.release import Noise


class ScaffoldSettings(LocalSettings):
    """Settings of SCAFFOLD, whose clients take plain steps of SGD."""

    server_lr: PositiveFloat = Field(1.0, description="How far to follow the mean update.")

    instead = {  # noqa: RUF012  # a ClassVar
        "local.momentum": "SCAFFOLD has none, because momentum would count a correction many "
        "times"
    }


@dataclass(frozen=True)
class Scaffold(TrainsLocally):
    """Clients correct their gradients by ``c - c_i``, the drift that they can foresee.

    In the first round all variates are 0; with one client and ``server_lr = 1`` it is FedAvg.
    Under privacy, a variate is made of what is uploaded, and so is as private as that.
    """

    Settings = ScaffoldSettings
    settings: ScaffoldSettings

    def init(self, params: Tensors) -> Records:
        return {"params": params, "control": zip_map(torch.zeros_like, params)}

    def broadcast(self, state: Records) -> Records:
        return {"params": state["params"], "control": state["control"]}

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        x, c = download["params"], download["control"]
        c_i = memory["control"] if memory else zip_map(torch.zeros_like, c)
        drift = zip_map(torch.sub, c, c_i)

        def corrected(grads: Tensors, params: Tensors) -> Tensors:
            del params
            return zip_map(torch.add, grads, drift)

        trained = self.trained(x, data, rng, noise, tick, corrected)
        y = trained.params
        scale = 1 / (trained.steps * self.local_sgd.lr)
        c_next = zip_map(lambda d, x, y: (x - y) * scale - d, drift, x, y)
        update, left = self.encoded("update", zip_map(torch.sub, y, x), memory, rng)
        change, rest = self.encoded("control", zip_map(torch.sub, c_next, c_i), {}, rng)
        if rest:
            # The client keeps the variate that the server has from it, so that c stays the mean
            # of all c_i. The next change starts from there and thus has what rounding left in
            # it; a residual in memory would add that twice.
            c_next = zip_map(torch.sub, c_next, rest["residual"])
        return LocalResult({**update, **change}, {"control": c_next, **left}, trained.metrics)

    def parse(self, upload: Records, download: Records) -> Records:
        template = {"update": download["params"], "control": download["control"]}
        for record, tensors in template.items():
            upload = self.decoded(upload, record, tensors)
        return parse_like(upload, template)

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        del rng, tick
        cohort = 0

        def changes() -> Iterator[tuple[Records, float]]:
            nonlocal cohort
            for upload in uploads:
                cohort += 1
                yield upload.records, 1.0

        mean = weighted_mean(changes())
        share, lr = cohort / self.context.clients, self.settings.server_lr
        return {
            "params": zip_map(
                lambda x, update: x + lr * update,
                state["params"],
                mean["update"],
            ),
            "control": zip_map(
                lambda c, change: c + share * change, state["control"], mean["control"]
            ),
        }

    def upload_size(self, table: ClassTable) -> UploadSize:
        update, number = self.update_size(), 2 * len(table)  # and as much for the variate
        return UploadSize(number * update.floats, number * update.num_bytes)
