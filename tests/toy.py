"""Models, algorithms and engines that are small enough to work out on paper."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddm.algorithms.base import LocalResult, Upload
from feddm.core.examples import Examples
from feddm.core.models import Model, Outputs
from feddm.core.tensors import Records, Tensors
from feddm.core.training import Tick
from feddm.errors import UploadError
from feddm.privacy.accounting import Event, Unprotected
from feddm.privacy.release import Noise
from feddm.runtime.client import ClientTick, Dropout, Reply, Task


@dataclass(frozen=True)
class TwoParameters:
    """``h = a x`` and ``z = (b h, 0)`` for a single pixel x."""

    shape: tuple[int, int, int] = (1, 1, 1)
    num_classes: int = 2

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        return {"a": torch.randn((), generator=rng), "b": torch.randn((), generator=rng)}

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        embedding = params["a"] * x.flatten(1)
        logits = torch.cat([params["b"] * embedding, torch.zeros_like(embedding)], 1)
        return Outputs(embedding, logits)


def point(a: float, b: float) -> dict[str, Tensor]:
    """Returns parameters of `TwoParameters`."""
    return {"a": torch.tensor(a), "b": torch.tensor(b)}


def pixels(*values: float) -> Tensor:
    """Returns images of one pixel."""
    return torch.tensor(values).view(-1, 1, 1, 1)


@dataclass(frozen=True)
class Summing:
    """Clients upload noise, the sum of their pixels and what they sent before; it is summed.

    Its clients remember, fail or die on demand.
    """

    model: Model = TwoParameters()
    fail: int = -1
    die: int = -1
    refuse: int = -1

    @property
    def planned(self) -> tuple[Event, ...]:
        return (Unprotected("sums"),)

    @property
    def planned_in_all(self) -> tuple[Event, ...]:
        return self.planned

    def planned_for(self, download: Records) -> tuple[Event, ...]:
        del download
        return self.planned

    def init(self, params: Tensors) -> Records:
        return {"params": params, "sum": {"value": torch.zeros(())}}

    def broadcast(self, state: Records) -> Records:
        return {"sum": state["sum"]}

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        print("what a client prints does no harm")
        tick(0.5)
        client = int(data.y[0])
        if client == self.fail:
            raise ZeroDivisionError(f"client {client} divides by zero")
        if client == self.die:
            os._exit(3)
        before = memory["last"]["value"] if memory else torch.zeros(())
        value = (
            data.x.sum() + before + download["sum"]["value"] + torch.randn((), generator=rng)
        )
        return LocalResult(
            {"sum": {"value": value}}, {"last": {"value": value}}, {"before": float(before)}
        )

    def parse(self, upload: Records, download: Records) -> Records:
        if self.refuse >= 0 and upload["sum"]["value"] > self.refuse:
            raise UploadError("the sum is too large")
        return upload

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        value = state["sum"]["value"]
        for upload in uploads:
            value = value + upload.records["sum"]["value"]
        tick(1.0)
        return {
            "params": state["params"],
            "sum": {"value": value + torch.rand((), generator=rng)},
        }


class Backwards:
    """An engine that works in reverse order, as a slow first client would make it look."""

    def __init__(
        self,
        algorithm: Summing,
        data: dict[int, Examples],
        lost: Sequence[Collection[int]] = (),
    ) -> None:
        self.committed: list[int] = []
        self._lost = list(lost)  # clients that are lost, in the first attempt, the second...
        self._algorithm = algorithm
        self._data = data

    def run(self, tasks: Iterable[Task], tick: ClientTick) -> Iterator[Reply | Dropout]:
        lost = self._lost.pop(0) if self._lost else ()
        for task in reversed(list(tasks)):
            if task.client in lost:
                yield Dropout(task.client, "the line is dead")
                continue
            rng = torch.Generator().manual_seed(task.seed)
            result = self._algorithm.local(
                task.download, self._data[task.client], {}, rng, lambda done: None
            )
            yield Reply(task.client, result.upload, result.metrics, seconds=1.0)

    def commit(self, clients: Iterable[int]) -> None:
        self.committed += clients
