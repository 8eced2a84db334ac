"""What every algorithm keeps to, whatever it does."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from feddm.algorithms.base import Algorithm, Context, Upload
from feddm.algorithms.fedavg import FedAvg, FedAvgSettings
from feddm.algorithms.local_training import Training
from feddm.config.registry import algorithm_names
from feddm.config.resolve import resolve
from feddm.core.models import ConvNet, num_params
from feddm.core.seeding import generator
from feddm.core.tensors import Records, num_floats, to_bytes
from feddm.core.training import ignore, shuffled_batches
from feddm.data.datasets import load
from feddm.data.partition import iid
from feddm.errors import UploadError
from feddm.runtime import federation
from feddm.runtime.build import build
from feddm.runtime.federation import Federation
from feddm.runtime.local import InProcess

NAMES = algorithm_names()
BASELINES = ("fedavg", "fedprox", "fednova", "scaffold")
CASES = [pytest.param(name, {}, id=name) for name in NAMES] + [
    pytest.param(name, {"bits": bits}, id=f"{name}-{bits}")
    for name in BASELINES
    for bits in (8, 4)
]
SMALL = {
    "model.width": 4,
    "model.depth": 2,
    "synthesis.steps": 2,
    "synthesis.networks": 2,
    "server.epochs": 2,
    "local.batch_size": 16,
    "mu": 0.1,
}
DIGITS = load("digits")


def built(name: str, settings: dict[str, Any] | None = None) -> Algorithm:
    config = resolve(
        options={"algorithm": name, "clients": 3},
        settings=SMALL | (settings or {}),
        shared=True,
    )
    return build(config).algorithm


def run(
    algorithm: Algorithm, rounds: int, start: Federation | None = None, memories: Any = None
) -> tuple[Federation, dict[int, Records], list[federation.RoundRecord]]:
    shards = iid(len(DIGITS.train), 3, np.random.default_rng(0))
    with InProcess(algorithm, DIGITS.train, shards, 1, memories) as engine:
        done = list(
            federation.run(
                algorithm,
                engine,
                start or federation.start(algorithm, 0),
                federation.evaluator_on(algorithm, DIGITS.test),
                federation.RoundPlan(rounds, clients=3, participation=0.7),
                lambda stage, fraction: None,
            )
        )
        return done[-1][0], engine.memories, [record for _, record in done]


@pytest.mark.parametrize(("name", "settings"), CASES)
class TestEveryAlgorithm:
    def test_resumed_is_uninterrupted(self, name: str, settings: dict[str, Any]) -> None:
        algorithm = built(name, settings)
        whole, memories, _ = run(algorithm, 4)
        half, remembered, _ = run(algorithm, 2)
        rest, remembered, _ = run(algorithm, 4, half, remembered)
        assert to_bytes(rest.state) == to_bytes(whole.state)
        assert sorted(remembered) == sorted(memories)
        for client, memory in memories.items():
            assert to_bytes(remembered[client]) == to_bytes(memory)

    def test_pickles_and_compares(self, name: str, settings: dict[str, Any]) -> None:
        algorithm = built(name, settings)
        assert pickle.loads(pickle.dumps(algorithm)) == algorithm
        assert algorithm == built(name, settings)

    def test_leaves_its_arguments_unchanged(self, name: str, settings: dict[str, Any]) -> None:
        algorithm = built(name, settings)
        state = algorithm.init(algorithm.model.init(generator(0, "t")))
        before = to_bytes(state)
        download = algorithm.broadcast(state)
        data = DIGITS.train.subset(torch.arange(300))
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

    def test_other_uploads_are_refused(self, name: str, settings: dict[str, Any]) -> None:
        algorithm = built(name, settings)
        state = algorithm.init(algorithm.model.init(generator(0, "t")))
        download = algorithm.broadcast(state)
        data = DIGITS.train.subset(torch.arange(300))
        upload = algorithm.local(download, data, {}, generator(0, "c"), ignore).upload
        algorithm.parse(upload, download)
        for record, tensors in upload.items():
            for key, tensor in tensors.items():
                bad = [torch.zeros(2, 3), tensor.to(torch.float64)]
                if tensor.is_floating_point():
                    bad.append(torch.full_like(tensor, torch.nan))
                for wrong in bad:
                    changed = {**upload, record: {**tensors, key: wrong}}
                    with pytest.raises(UploadError):
                        algorithm.parse(changed, download)
            for wrong_records in ({}, {**upload, "more": tensors}):
                with pytest.raises(UploadError):
                    algorithm.parse(wrong_records, download)

    def test_it_learns(self, name: str, settings: dict[str, Any]) -> None:
        enough = {"model.width": 16, "server.epochs": 20, "server.lr": 0.05, "local.lr": 0.05}
        _, _, records = run(built(name, settings | enough | {"local.epochs": 4}), 4)
        assert records[-1].accuracy > 0.85


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [("fedavg", 1, 1), ("fedprox", 1, 1), ("fednova", 1, 1), ("scaffold", 2, 2)],
)
def test_messages_are_models(name: str, up: int, down: int) -> None:
    algorithm = built(name)
    state = algorithm.init(algorithm.model.init(generator(0, "t")))
    size = num_params(state["params"])
    download = algorithm.broadcast(state)
    data = DIGITS.train.subset(torch.arange(50))
    upload = algorithm.local(download, data, {}, generator(0, "c"), ignore).upload
    coefficient = 1 if name == "fednova" else 0
    assert num_floats(upload) == up * size + coefficient
    assert num_floats(download) == down * size


def test_sizes_and_coefficients_below_one_are_refused() -> None:
    for name, record, key, wrong in (
        ("fedavg", "size", "examples", torch.tensor(0)),
        ("fednova", "size", "examples", torch.tensor(-5)),
        ("fednova", "coefficient", "a", torch.tensor(0.0)),
    ):
        algorithm = built(name)
        download = algorithm.broadcast(algorithm.init(algorithm.model.init(generator(0, "t"))))
        data = DIGITS.train.subset(torch.arange(20))
        upload = algorithm.local(download, data, {}, generator(0, "c"), ignore).upload
        with pytest.raises(UploadError):
            algorithm.parse({**upload, record: {**upload[record], key: wrong}}, download)


def test_real_sends_what_feddm_starts_from() -> None:
    feddm, real = built("feddm", {"synthesis.steps": 0}), built("real")
    data = DIGITS.train.subset(torch.arange(400))
    download = feddm.broadcast(feddm.init(feddm.model.init(generator(0, "t"))))
    first, second = (
        algorithm.local(download, data, {}, generator(3, "client", 2, 1), ignore).upload
        for algorithm in (feddm, real)
    )
    assert to_bytes(first) == to_bytes(second)


def test_fedavg_is_the_loop_that_anybody_would_write() -> None:
    """Three rounds of FedAvg against torch.nn and torch.optim."""
    model = ConvNet((1, 8, 8), 10, width=4, depth=1)
    local = Training(lr=0.05, epochs=2, batch_size=32, momentum=0.9, weight_decay=1e-3)
    shards = [np.arange(0, 300), np.arange(300, 420), np.arange(420, 1000)]
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.GroupNorm(4, 4),
        torch.nn.ReLU(),
        torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )
    ours = ["conv0.weight", "conv0.bias", "norm0.weight", "norm0.bias"]
    ours += ["linear.weight", "linear.bias"]
    names = dict(zip(network.state_dict(), ours, strict=True))
    algorithm = FedAvg(FedAvgSettings(local=local), Context(model))
    begin = federation.start(algorithm, 5)
    weights = {name: begin.state["params"][our] for name, our in names.items()}
    with InProcess(algorithm, DIGITS.train, shards) as engine:
        *_, (final, _) = federation.run(
            algorithm,
            engine,
            begin,
            federation.evaluator_on(algorithm, DIGITS.test),
            federation.RoundPlan(rounds=3, clients=3, seed=5),
            lambda stage, done: None,
        )
    for round_ in (1, 2, 3):
        total = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        for client, shard in enumerate(shards):
            network.load_state_dict(weights)
            optimizer = torch.optim.SGD(
                network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3
            )
            rng = generator(5, "client", round_, client)
            for _ in range(2):
                for index in shuffled_batches(len(shard), 32, rng):
                    x, y, _ = DIGITS.train[torch.from_numpy(shard)[index]]
                    optimizer.zero_grad()
                    F.cross_entropy(network(x), y).backward()
                    optimizer.step()
            for name, tensor in network.state_dict().items():
                total[name] += tensor * len(shard) / 1000
        weights = total
    for name, our in names.items():
        torch.testing.assert_close(
            final.state["params"][our], weights[name], rtol=1e-3, atol=1e-5
        )
