from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from feddm.algorithms.base import Upload
from feddm.config.schema import Config, resolve
from feddm.core.models import Around, ConvNet, Model, Outputs, ResNet18
from feddm.core.seeding import generator
from feddm.core.tensors import Tensors
from feddm.core.training import ignore
from feddm.data.partition import class_table
from feddm.runtime.build import build_algorithm, build_dataset, build_shards
from feddm.runtime.workload import Passes, Round, forward_flops, passes

# Two clients and three classes: 70 examples. Classes with at least five of them, here and below
# the smallest that count, have 12, 5, 40 and 10.
TABLE = np.array([[12, 3, 0], [5, 40, 10]])
SETTINGS = {
    "participation": 1.0,
    "synthesis.images_per_class": 10,
    "synthesis.steps": 7,
    "synthesis.networks": "fresh",
    "synthesis.real_batch": 8,
    "synthesis.start": "real",
    "synthesis.min_class_size": 5,
    "server.epochs": 4,
    "local.epochs": 6,
}


def config(algorithm: str = "feddm", **settings: Any) -> Config:
    named = {key.replace("_", ".", 1): value for key, value in settings.items()}
    return resolve(options={"algorithm": algorithm}, settings=SETTINGS | named)


def test_weight_by_hand() -> None:
    assert Passes(forward=2, images=3, weights=5).weight == 2 + 2 * 3 + 3 * 5


class TestPasses:
    """All by hand."""

    # Ten images a class, or what there is: 10 + 5 + 10 + 10. The server sees them four times.
    SENT = 35
    SERVER = Passes(weights=4 * SENT)

    @pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fednova", "scaffold"])
    def test_of_averaging(self, algorithm: str) -> None:
        assert passes(config(algorithm), TABLE) == Round(Passes(weights=6 * 70), Passes())

    def test_of_private_averaging(self) -> None:
        # Of 70 examples, each is in a step with probability .2: 14 in each of five.
        chosen = resolve(
            options={"algorithm": "fedavg"},
            settings={
                "privacy.mechanism": "gradients",
                "privacy.noise_multiplier": 1.0,
                "privacy.sample_rate": 0.2,
                "privacy.steps": 5,
            },
        )
        assert passes(chosen, TABLE) == Round(Passes(weights=70), Passes())

    def test_of_real(self) -> None:
        assert passes(config("real"), TABLE) == Round(Passes(), self.SERVER)
        noise = config("real", synthesis_start="noise")  # which is nothing to it
        assert passes(noise, TABLE) == Round(Passes(), self.SERVER)

    @pytest.mark.parametrize(
        ("networks", "drawn"),
        [("fresh", 7), (3, 3), (7, 7), (20, 7)],  # no more than there are steps
    )
    def test_of_feddm(self, networks: int | str, drawn: int) -> None:
        clients = Passes(forward=drawn * (8 + 5 + 8 + 8), images=7 * self.SENT)
        found = passes(config(synthesis_networks=networks), TABLE)
        assert found == Round(clients, self.SERVER)

    def test_all_real_images(self) -> None:
        clients = Passes(forward=7 * (12 + 5 + 40 + 10), images=7 * self.SENT)
        found = passes(config(synthesis_real_batch="all"), TABLE)
        assert found == Round(clients, self.SERVER)

    def test_a_start_with_noise_has_all_images(self) -> None:
        found = passes(config(synthesis_start="noise"), TABLE)
        clients = Passes(forward=7 * 29, images=7 * 40)
        assert found == Round(clients, Passes(weights=4 * 40))

    @pytest.mark.parametrize("algorithm", ["feddm", "real"])
    def test_replay(self, algorithm: str) -> None:
        # Two rounds before: 1, 2, 3, 3 and 3 sets in five rounds, and 1 and 2 in two.
        found = passes(config(algorithm, rounds=5, server_replay=2), TABLE)
        assert found.server.weights == pytest.approx(4 * self.SENT * 12 / 5)
        found = passes(config(algorithm, rounds=2, server_replay=2), TABLE)
        assert found.server.weights == pytest.approx(4 * self.SENT * 1.5)

    def test_no_step(self) -> None:
        assert passes(config(synthesis_steps=0), TABLE) == Round(Passes(), self.SERVER)

    @pytest.mark.parametrize("algorithm", ["feddm", "real", "fedavg"])
    def test_half_of_the_clients_do_half_of_it(self, algorithm: str) -> None:
        all_, half = (
            passes(config(algorithm, participation=share), TABLE) for share in (1.0, 0.5)
        )
        assert half.clients.weight == all_.clients.weight / 2
        assert half.server.weight == all_.server.weight / 2


@dataclass(frozen=True)
class Counting(Around):
    """A model that counts the images that pass, by what is differentiated."""

    counts: Counter[str] = field(default_factory=Counter)

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        outputs = self.model(params, x)
        trained = any(tensor.requires_grad for tensor in params.values())
        kind = "images" if x.requires_grad else "weights" if trained else "forward"
        self.counts[kind] += len(x)
        return outputs


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("feddm", {}),
        ("feddm", {"synthesis.networks": 2, "synthesis.start": "noise"}),
        ("feddm", {"synthesis.networks": 9, "synthesis.real_batch": "all"}),
        ("feddm", {"synthesis.real_batch": 2, "synthesis.images_per_class": 3}),
        ("real", {}),
        ("fedavg", {}),
        ("scaffold", {}),
    ],
)
def test_a_round_computes_what_was_counted_before(
    algorithm: str, settings: dict[str, Any]
) -> None:
    chosen = resolve(
        options={"algorithm": algorithm, "clients": 3},
        settings=SETTINGS | {"synthesis.steps": 3, "local.epochs": 1} | settings,
    )
    dataset = build_dataset(chosen.data)
    shards = build_shards(chosen.partition, dataset, 0)
    expected = passes(chosen, class_table(dataset.train.y.numpy(), shards, 10))

    model = Counting(ConvNet((1, 8, 8), 10, width=2, depth=1))
    method = build_algorithm(chosen, model)
    state = method.init(model.init(generator(0, "test")))
    uploads = []
    for client, shard in enumerate(shards):
        data = dataset.train.subset(torch.from_numpy(shard))
        rng = generator(client, "test")
        result = method.local(method.broadcast(state), data, {}, rng, ignore)
        uploads.append(Upload(client, result.upload))
    assert Passes(**model.counts) == expected.clients
    model.counts.clear()
    method.aggregate(state, uploads, generator(0, "test"), ignore)
    assert Passes(**model.counts) == expected.server


def test_flops_by_hand() -> None:
    # For each output a product with 27 or 9 * 128 numbers, two operations each: on 32x32, 16x16
    # and 8x8 with 128 channels, and ten times 128 * 4 * 4 at last.
    blocks = 128 * (1024 * 27 + 256 * 1152 + 64 * 1152)
    assert 2 * (blocks + 10 * 2048) == 101_490_688
    assert forward_flops(ConvNet((3, 32, 32), 10, width=128)) == 101_490_688


@pytest.mark.parametrize(
    "model",
    [
        ConvNet((3, 32, 32), 10, width=16),
        ConvNet((1, 28, 28), 10, width=5, depth=4, norm="group"),
        ResNet18((3, 32, 32), 10),
        ResNet18((1, 8, 8), 7, norm="instance"),
    ],
    ids=str,
)
def test_flops_are_those_that_torch_counts(model: Model) -> None:
    with FlopCounterMode(display=False) as counter:
        model(model.init(generator(0, "test")), torch.zeros(1, *model.shape))
    assert forward_flops(model) == counter.get_total_flops()
