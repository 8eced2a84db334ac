"""The tests that every algorithm must pass, for you to run on yours with pytest.

    from feddm.testing import AlgorithmContract
    from mine import FedAvgM

    class TestFedAvgM(AlgorithmContract):
        algorithm = FedAvgM
        settings = {"beta": 0.5}

Each takes seconds: they run a small model on the digits that come with feddm.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from feddm.algorithms.base import Algorithm, Upload
from feddm.config.code import reference_to
from feddm.config.resolve import resolve
from feddm.core.seeding import generator
from feddm.core.tensors import Records, to_bytes
from feddm.core.training import ignore
from feddm.data.datasets import Dataset, load
from feddm.data.partition import iid
from feddm.errors import UploadError
from feddm.runtime import federation
from feddm.runtime.build import build
from feddm.runtime.federation import Federation
from feddm.runtime.local import InProcess

# As small as can be; an algorithm takes what it has of these.
SMALL = {
    "model.width": 4,
    "model.depth": 2,
    "synthesis.steps": 2,
    "synthesis.networks": 2,
    "server.epochs": 2,
    "local.batch_size": 16,
    "mu": 0.1,
}
# Enough to learn the digits.
ENOUGH = {
    "model.width": 16,
    "server.epochs": 20,
    "server.lr": 0.05,
    "local.lr": 0.05,
    "local.epochs": 4,
}
CLIENTS = 3


def built(algorithm: object, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """Returns an algorithm with a small model.

    Args:
        algorithm: Its name, or its class.
        settings: Settings of its own.
    """
    config = resolve(
        options={"algorithm": reference_to(algorithm), "clients": CLIENTS},
        settings={**SMALL, **(settings or {})},
        shared=True,
    )
    return build(config).algorithm


def run(
    algorithm: Algorithm,
    rounds: int,
    start: Federation | None = None,
    memories: Mapping[int, Records] | None = None,
) -> tuple[Federation, dict[int, Records], list[federation.RoundRecord]]:
    """Runs a federation; returns its end, the clients' memories and a record of each round."""
    data = digits()
    shards = iid(len(data.train), CLIENTS, np.random.default_rng(0))
    with InProcess(algorithm, data.train, shards, 1, memories) as engine:
        done = list(
            federation.run(
                algorithm,
                engine,
                start or federation.start(algorithm, 0),
                federation.evaluator_on(algorithm, data.test),
                federation.RoundPlan(rounds, clients=CLIENTS, participation=0.7),
                lambda stage, fraction: None,
            )
        )
        return done[-1][0], engine.memories, [record for _, record in done]


def digits() -> Dataset:
    """Returns the digits that come with feddm."""
    return load("digits")


class AlgorithmContract:
    """Subclass it, name your algorithm, and let pytest find it."""

    algorithm: ClassVar[object] = "fedavg"
    settings: ClassVar[Mapping[str, Any]] = {}

    def test_resumed_is_uninterrupted(self) -> None:
        algorithm = built(self.algorithm, self.settings)
        whole, memories, _ = run(algorithm, 4)
        half, remembered, _ = run(algorithm, 2)
        rest, remembered, _ = run(algorithm, 4, half, remembered)
        assert to_bytes(rest.state) == to_bytes(whole.state)
        assert sorted(remembered) == sorted(memories)
        for client, memory in memories.items():
            assert to_bytes(remembered[client]) == to_bytes(memory)

    def test_pickles_and_compares(self) -> None:
        algorithm = built(self.algorithm, self.settings)
        assert pickle.loads(pickle.dumps(algorithm)) == algorithm
        assert algorithm == built(self.algorithm, self.settings)

    def test_leaves_its_arguments_unchanged(self) -> None:
        algorithm = built(self.algorithm, self.settings)
        state = algorithm.init(algorithm.model.init(generator(0, "t")))
        before = to_bytes(state)
        download = algorithm.broadcast(state)
        data = digits().train.subset(torch.arange(300))
        pixels = data.x.clone()
        result = algorithm.local(download, data, {}, generator(0, "c"), ignore)
        memory = to_bytes(result.memory)
        algorithm.local(download, data, result.memory, generator(0, "c"), ignore)
        upload = to_bytes(result.upload)
        parsed = algorithm.parse(result.upload, download)
        decoded = to_bytes(parsed)
        algorithm.aggregate(state, [Upload(0, parsed)], generator(0, "s"), ignore)
        assert to_bytes(parsed) == decoded
        assert to_bytes(state) == before
        assert to_bytes(result.memory) == memory
        assert to_bytes(result.upload) == upload
        assert torch.equal(data.x, pixels)

    def test_other_uploads_are_refused(self) -> None:
        algorithm = built(self.algorithm, self.settings)
        state = algorithm.init(algorithm.model.init(generator(0, "t")))
        download = algorithm.broadcast(state)
        data = digits().train.subset(torch.arange(300))
        upload = algorithm.local(download, data, {}, generator(0, "c"), ignore).upload
        algorithm.parse(upload, download)
        for record, tensors in upload.items():
            for key, tensor in tensors.items():
                bad = [torch.zeros(2, 3), tensor.to(torch.float64)]
                if tensor.is_floating_point():
                    bad.append(torch.full_like(tensor, torch.nan))
                for wrong in bad:
                    changed = {**upload, record: {**tensors, key: wrong}}
                    _refused(algorithm, changed, download)
            for wrong_records in ({}, {**upload, "more": tensors}):
                _refused(algorithm, wrong_records, download)

    def test_it_learns(self) -> None:
        _, _, records = run(built(self.algorithm, {**ENOUGH, **self.settings}), 4)
        assert records[-1].accuracy > 0.85


def _refused(algorithm: Algorithm, upload: Records, download: Records) -> None:
    try:
        algorithm.parse(upload, download)
    except UploadError:
        return
    raise AssertionError("an upload that is not as it should be was accepted")
