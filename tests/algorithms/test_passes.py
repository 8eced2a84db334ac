from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import private
from feddm.algorithms.base import Upload
from feddm.algorithms.costs import Passes, Work
from feddm.config.resolve import resolve
from feddm.core.models import Around, ConvNet, Outputs
from feddm.core.seeding import generator
from feddm.core.tensors import Tensors
from feddm.core.training import ignore
from feddm.data.partition import class_table
from feddm.runtime.build import build_algorithm, build_dataset, build_shards

MODEL = ConvNet((1, 8, 8), 3, width=2, depth=1)
# Two clients and three classes: 70 examples. Classes with at least five of them, here and below
# the smallest that count, have 12, 5, 40 and 10.
TABLE = np.array([[12, 3, 0], [5, 40, 10]])
SETTINGS = {
    "images_per_class": 10,
    "synthesis.steps": 7,
    "synthesis.networks": "fresh",
    "synthesis.real_batch": 8,
    "synthesis.start": "real",
    "min_class_size": 5,
    "server.epochs": 4,
    "server.replay": 0,
    "coding": "float32",
    "local.epochs": 6,
}


def passes(algorithm: str = "feddm", **settings: Any) -> Work:
    named = {key.replace("_", ".", 1): value for key, value in settings.items()}
    config = resolve(options={"algorithm": algorithm}, settings=SETTINGS | named, shared=True)
    return build_algorithm(config, MODEL).passes(TABLE)


def test_weight_by_hand() -> None:
    assert Passes(forward=2, images=3, weights=5).weight == 2 + 2 * 3 + 3 * 5


class TestPasses:
    """All by hand."""

    # Ten images a class, or what there is: 10 + 5 + 10 + 10. The server sees them four times.
    SENT = 35
    SERVER = Passes(weights=4 * SENT)

    @pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fednova", "scaffold"])
    def test_of_averaging(self, algorithm: str) -> None:
        assert passes(algorithm) == Work(Passes(weights=6 * 70), Passes())

    # Of 70 examples, each is in a step with probability .2: 14 in each of five.
    GRADIENTS: ClassVar[dict[str, Any]] = {
        "privacy_mechanism": "gradients",
        "privacy_noise_multiplier": 1.0,
        "privacy_sample_rate": 0.2,
        "privacy_steps": 5,
    }

    def test_of_private_averaging(self) -> None:
        assert passes("fedavg", **self.GRADIENTS) == Work(Passes(weights=70), Passes())

    def test_of_private_gradients_on_images(self) -> None:
        # Forty images of four classes are sent.
        assert passes(**self.GRADIENTS) == Work(
            Passes(forward=70, images=70), Passes(weights=4 * 40)
        )

    @pytest.mark.parametrize("learn", ["client", "server"])
    def test_of_noisy_sums(self, learn: str) -> None:
        mechanism: dict[str, Any] = {
            "privacy_mechanism": "features",
            "privacy_noise_multiplier": 1.0,
            "privacy_learn": learn,
            "synthesis_networks": 2,
            "server_replay": 0,
        }
        seen = Passes(forward=2 * 70)
        if learn == "client":
            # Forty images of four classes.
            expected = Work(replace(seen, images=7 * 40), Passes(weights=4 * 40))
        else:
            # Together the clients have 17, 43 and 10 examples of the classes: thirty images.
            expected = Work(seen, Passes(images=7 * 30, weights=4 * 30))
        assert passes(**mechanism) == expected

    def test_of_real(self) -> None:
        assert passes("real") == Work(Passes(), self.SERVER)

    @pytest.mark.parametrize(
        ("networks", "drawn"),
        [("fresh", 7), (3, 3), (7, 7), (20, 7)],  # no more than there are steps
    )
    def test_of_feddm(self, networks: int | str, drawn: int) -> None:
        clients = Passes(forward=drawn * (8 + 5 + 8 + 8), images=7 * self.SENT)
        found = passes(synthesis_networks=networks)
        assert found == Work(clients, self.SERVER)

    def test_all_real_images(self) -> None:
        clients = Passes(forward=7 * (12 + 5 + 40 + 10), images=7 * self.SENT)
        found = passes(synthesis_real_batch="all")
        assert found == Work(clients, self.SERVER)

    def test_a_start_with_noise_has_all_images(self) -> None:
        found = passes(synthesis_start="noise")
        clients = Passes(forward=7 * 29, images=7 * 40)
        assert found == Work(clients, Passes(weights=4 * 40))

    @pytest.mark.parametrize("algorithm", ["feddm", "real"])
    def test_replay_costs_the_server_nothing(self, algorithm: str) -> None:
        assert passes(algorithm, rounds=5, server_replay=2).server == self.SERVER

    def test_with_replay_networks_see_earlier_images_too(self) -> None:
        # In five rounds there are 0, 1, 2, 2 and 2 earlier sets.
        clients = Passes(forward=3 * (29 + self.SENT * 7 / 5), images=7 * self.SENT)
        assert passes(synthesis_networks=3, rounds=5, server_replay=2).clients == clients

    def test_no_step(self) -> None:
        assert passes(synthesis_steps=0) == Work(Passes(), self.SERVER)


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
        ("feddm", {"synthesis.real_batch": 2, "images_per_class": 3}),
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
        shared=True,
    )
    dataset = build_dataset(chosen.data)
    shards = build_shards(chosen.partition, dataset, 0)
    model = Counting(ConvNet((1, 8, 8), 10, width=2, depth=1))
    method = build_algorithm(chosen, model)
    expected = method.passes(class_table(dataset.train.y.numpy(), shards, 10))
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


def test_a_server_that_learns_images_computes_what_was_counted_before() -> None:
    model = Counting(private.MODEL)
    method: Any = private.built("server", 0.01, model=model)
    state = method.init(model.init(generator(0, "test")))
    labels = [[0, 0, 1], [0, 1, 1, 2]]  # three examples of two classes, one of the third
    uploads = [
        Upload(
            client,
            method.local(
                method.broadcast(state),
                private.examples(*mine),
                {},
                generator(client, "test"),
                ignore,
                private.noise(),
            ).upload,
        )
        for client, mine in enumerate(labels)
    ]
    assert not {"images", "weights"} & set(model.counts)
    model.counts.clear()
    method.aggregate(state, uploads, generator(0, "test"), ignore)
    expected = method.passes(np.array([[2, 1, 0], [1, 2, 1]])).server
    assert model.counts["images"] == expected.images == 3 * 4
    assert model.counts["weights"] == expected.weights == 4
