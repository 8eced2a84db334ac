"""What every algorithm keeps to, whatever it does."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from feddm.algorithms.base import Context, LocalResult
from feddm.algorithms.fedavg import FedAvg, FedAvgSettings
from feddm.algorithms.local_training import Training
from feddm.config.registry import algorithm_names
from feddm.core.examples import Examples
from feddm.core.models import ConvNet, num_params
from feddm.core.seeding import generator
from feddm.core.tensors import Records, num_floats, to_bytes
from feddm.core.training import ignore, shuffled_batches
from feddm.data.datasets import load
from feddm.errors import UploadError
from feddm.runtime import federation
from feddm.runtime.local import InProcess
from feddm.testing import AlgorithmContract, built

NAMES = algorithm_names()
BASELINES = ("fedavg", "fedprox", "fednova", "scaffold")
CASES = [pytest.param(name, {}, id=name) for name in NAMES] + [
    pytest.param(name, {"bits": bits}, id=f"{name}-{bits}")
    for name in BASELINES
    for bits in (8, 4)
]
DIGITS = load("digits")


class Careless(FedAvg):
    """FedAvg that checks nothing, and changes the examples of its clients."""

    Settings = FedAvgSettings

    def local(self, download: Records, data: Examples, *rest: Any) -> LocalResult:
        data.x[0] = 0
        return super().local(download, data, *rest)

    def parse(self, upload: Records, download: Records) -> Records:
        del download
        return upload


CHECKS = sorted(name for name in dir(AlgorithmContract) if name.startswith("test_"))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_every_algorithm_keeps_the_contract(
    name: str, settings: dict[str, Any], check: str
) -> None:
    class Contract(AlgorithmContract):
        pass

    Contract.algorithm, Contract.settings = name, settings
    getattr(Contract(), check)()


class TestFedAvgM(AlgorithmContract):
    """Of somebody's own: the example."""

    algorithm = f"{Path(__file__).parents[2] / 'examples' / 'fedavgm.py'}:FedAvgM"
    settings: ClassVar = {"beta": 0.5}


def test_a_broken_algorithm_does_not_keep_it() -> None:
    class Forgets(AlgorithmContract):
        algorithm = Careless

    for check in ("test_other_uploads_are_refused", "test_leaves_its_arguments_unchanged"):
        with pytest.raises(AssertionError):
            getattr(Forgets(), check)()
    Forgets().test_pickles_and_compares()


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
