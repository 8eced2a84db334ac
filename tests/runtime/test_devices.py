"""What is computed on another device stays there, and is what the CPU computes."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import private
from elsewhere import ELSEWHERE, Elsewhere
from feddm.algorithms.base import Upload
from feddm.config.resolve import resolve
from feddm.core.augmentation import Augmentation
from feddm.core.examples import Examples, Normalization
from feddm.core.matching import fresh_targets, real_means, sample_near, synthesize
from feddm.core.metrics import evaluate
from feddm.core.models import ConvNet
from feddm.core.seeding import generator
from feddm.core.tensors import CPU, Records, Tensors, leaves, moved
from feddm.core.training import SGD, ball, ignore, mean_gradient, train
from feddm.runtime import federation
from feddm.runtime.build import build_algorithm
from feddm.runtime.client import Task, perform
from feddm.runtime.federation import Federation, RoundRecord
from feddm.runtime.local import InProcess

MODEL = ConvNet((1, 8, 8), 4, width=4, depth=2)
PARAMS = MODEL.init(generator(0, "test"))
RNG = generator(1, "test")
# More than one chunk, with pixels, and with weights.
DATA = Examples(
    torch.randint(0, 256, (70, 1, 8, 8), dtype=torch.uint8, generator=RNG),
    torch.arange(70) % 4,
    Normalization((0.3,), (0.4,)),
    torch.rand(70, generator=RNG),
)
SHARDS = [np.arange(0, 40), np.arange(40, 70)]
SETTINGS = {
    "synthesis.steps": 1,
    "images_per_class": 10,  # forty images are more than one group
    "min_class_size": 5,
    "server.epochs": 1,
    "server.batch_size": 40,
    "local.epochs": 1,
    "local.batch_size": 20,
    "mu": 0.1,
}


@pytest.fixture(autouse=True)
def entered() -> Iterator[None]:
    with Elsewhere():
        yield


def there(params: Tensors = PARAMS) -> dict[str, Tensor]:
    return moved({"params": params}, ELSEWHERE)["params"]


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Returns whether the first is elsewhere and equals the second, which is here."""
    return (ours.device, theirs.device) == (ELSEWHERE, CPU) and torch.equal(ours.cpu(), theirs)


class TestElsewhere:
    """The device is worth something only if it refuses what a GPU refuses."""

    @pytest.mark.parametrize("shape", [(3,), (3, 3)])
    def test_devices_do_not_mix(self, shape: tuple[int, ...]) -> None:
        here, far = torch.ones(shape), torch.ones(shape, device=ELSEWHERE)
        for mixed in (lambda: here + far, lambda: far @ here, lambda: far.add_(here)):
            with pytest.raises(RuntimeError, match="on the CPU and elsewhere"):
                mixed()

    def test_indices_elsewhere_are_not_for_the_cpu(self) -> None:
        index = torch.tensor([1, 0])
        assert same(torch.arange(3).to(ELSEWHERE)[index], index)
        with pytest.raises(RuntimeError, match="on the CPU and elsewhere"):
            torch.arange(3)[index.to(ELSEWHERE)]

    def test_the_generator_is_one_of_the_cpu(self) -> None:
        with pytest.raises(RuntimeError, match="generator of the CPU"):
            torch.randn(3, device=ELSEWHERE, generator=torch.Generator())

    def test_single_numbers_mix_but_keep_their_place(self) -> None:
        here, far = torch.tensor(2.0), torch.ones(3, device=ELSEWHERE).sum()
        assert same(here * far, torch.tensor(6.0))
        with pytest.raises(RuntimeError, match="on the CPU and elsewhere"):
            here += far


def test_examples_go_there_with_labels_and_weights() -> None:
    far = DATA.to(ELSEWHERE)
    index = torch.tensor([3, 1])
    for ours, theirs in zip(far[index], DATA[index], strict=True):
        assert ours is not None and theirs is not None
        assert same(ours, theirs)
    classes, members = far.by_class(1)
    assert classes == [0, 1, 2, 3]
    # Which examples to take is drawn on the CPU, wherever they lie.
    assert members.index.device == members.slots.device == CPU
    assert torch.equal(members.index, DATA.by_class(1)[1].index)


NOTHING = Augmentation(
    flip=False,
    shift=0,
    scale=0,
    rotate=0,
    brightness=0,
    saturation=0,
    contrast=0,
    cutout=0,
)


@pytest.mark.parametrize(
    "strengths",
    [
        {"flip": True},
        {"shift": 0.25},
        {"scale": 0.2},
        {"rotate": 15.0},
        {"brightness": 0.5, "saturation": 0.5, "contrast": 0.5},
        {"cutout": 0.5},
    ],
    ids=["flip", "shift", "scale", "rotate", "color", "cutout"],
)
def test_augmentation(strengths: dict[str, float]) -> None:
    augmentation = NOTHING.model_copy(update=strengths)
    here = DATA[torch.arange(9)].x
    far = here.to(ELSEWHERE)
    ours, theirs = (augmentation.each(x, generator(0, "test")) for x in (far, here))
    assert same(ours, theirs)
    change = augmentation.shared(generator(0, "test"))
    assert same(change(far), change(here))
    assert not torch.equal(theirs, here)


def test_without_weights() -> None:
    far = Examples(DATA.x, DATA.y).to(ELSEWHERE)
    assert far.weight is None
    assert far.normalization is None


def test_networks_are_the_same_on_every_device() -> None:
    ours = sample_near(there(), 1.0, generator(0, "test"))
    theirs = sample_near(PARAMS, 1.0, generator(0, "test"))
    assert all(same(ours[name], theirs[name]) for name in theirs)


def test_real_means() -> None:
    _, members = DATA.by_class(1)
    ours = real_means(MODEL, there(), DATA.to(ELSEWHERE), members)
    theirs = real_means(MODEL, PARAMS, DATA, members)
    assert all(map(same, ours, theirs))


def test_synthesize() -> None:
    _, members = DATA.by_class(1)
    start = members.sample(10, generator(0, "test"))
    results = []
    for params, data in ((there(), DATA.to(ELSEWHERE)), (PARAMS, DATA)):
        rng = generator(2, "test")
        targets = fresh_targets(MODEL, params, 1.0, data, members, 8, rng)
        images = data[start.index].x
        results.append(
            synthesize(MODEL, images, start.slots, targets, lr=1.0, momentum=0.5, steps=3)
        )
    (ours, our_losses), (theirs, their_losses) = results
    assert same(ours, theirs)
    assert our_losses == their_losses
    assert not torch.equal(theirs, DATA[start.index].x)


def test_mean_gradient() -> None:
    index = torch.arange(70)
    ours, our_loss = mean_gradient(MODEL, there(), DATA.to(ELSEWHERE)[index])
    theirs, their_loss = mean_gradient(MODEL, PARAMS, DATA[index])
    assert all(same(ours[name], theirs[name]) for name in theirs)
    assert our_loss == their_loss


def test_train_in_a_ball() -> None:
    sgd = SGD(lr=0.1, epochs=2, batch_size=16, momentum=0.9, weight_decay=0.1)
    ours, theirs = (
        train(MODEL, params, data, sgd, generator(0, "test"), project=ball(params, radius=0.1))
        for params, data in ((there(), DATA.to(ELSEWHERE)), (PARAMS, DATA))
    )
    assert all(same(ours.params[name], theirs.params[name]) for name in PARAMS)
    assert ours.loss == theirs.loss


def test_evaluate() -> None:
    assert evaluate(MODEL, there(), DATA.to(ELSEWHERE)) == evaluate(MODEL, PARAMS, DATA)


def equal(ours: Records, theirs: Records) -> bool:
    """Returns whether both are the same and here."""
    pairs = itertools.zip_longest(leaves(ours), leaves(theirs))
    return all(a.device == b.device == CPU and torch.equal(a, b) for a, b in pairs)


OTHERWISE = {
    "synthesis.start": "noise",
    "synthesis.networks": "fresh",
    "synthesis.augment": True,
    "server.weighting": "examples",
    "server.augment": True,
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "feddm": ("feddm", {}),
    "feddm, otherwise": ("feddm", OTHERWISE),
    "real": ("real", {}),
    "fedavg": ("fedavg", {}),
    "fedprox": ("fedprox", {}),
    "fednova": ("fednova", {}),
    "scaffold": ("scaffold", {}),
}


@pytest.mark.parametrize("method", METHODS)
class TestEveryAlgorithm:
    @staticmethod
    def built(method: str, device: torch.device) -> Any:
        name, settings = METHODS[method]
        options = {"algorithm": name, "clients": len(SHARDS)}
        return build_algorithm(
            resolve(options=options, settings=SETTINGS | settings, shared=True), MODEL, device
        )

    def test_a_client_brings_back_what_it_computed(self, method: str) -> None:
        algorithm = self.built(method, ELSEWHERE)
        download = algorithm.broadcast(algorithm.init(PARAMS))
        task = Task(0, 1, 0, download)
        data = Examples(DATA.x, DATA.y, DATA.normalization)
        (there_, _), (here, _) = (
            perform(algorithm, task, data, {}, ignore, device) for device in (ELSEWHERE, CPU)
        )
        assert equal(there_.upload, here.upload)
        assert equal(there_.memory, here.memory)
        assert there_.metrics == here.metrics

    def test_rounds_are_those_of_the_cpu(self, method: str) -> None:
        ours, theirs = (self.rounds(method, device) for device in (ELSEWHERE, CPU))
        for (latest, record), (expected, expected_record) in zip(ours, theirs, strict=True):
            assert equal(latest.state, expected.state)
            assert (record.accuracy, record.loss) == (
                expected_record.accuracy,
                expected_record.loss,
            )

    def rounds(self, method: str, device: torch.device) -> list[tuple[Federation, RoundRecord]]:
        algorithm = self.built(method, device)
        data = Examples(DATA.x, DATA.y, DATA.normalization)
        return list(
            federation.run(
                algorithm,
                InProcess(algorithm, data, SHARDS, device=device),
                federation.start(algorithm, 0),
                federation.evaluator_on(algorithm, data, device),
                federation.RoundPlan(rounds=2, clients=len(SHARDS)),
                lambda stage, fraction: None,
            )
        )


@pytest.mark.parametrize("name", ["features", "server"])
@pytest.mark.parametrize("labels", [[], [0, 0, 0, 1, 2, 2, 2]], ids=["nothing", "something"])
def test_private_clients(name: str, labels: list[int]) -> None:
    algorithm = private.built(name, 0.01)
    download, data = private.download(algorithm), private.examples(*labels)
    ours, theirs = (
        algorithm.local(
            moved(download, device),
            data.to(device),
            {},
            generator(0, "test"),
            ignore,
            private.noise(),
        )
        for device in (ELSEWHERE, CPU)
    )
    assert equal(moved(ours.upload, CPU), theirs.upload)


def test_the_server_learns_images() -> None:
    states = []
    for device in (ELSEWHERE, CPU):
        built: Any = private.built("server", 0.01)
        algorithm = replace(built, context=replace(built.context, device=device))
        state = algorithm.init(private.MODEL.init(generator(0, "test")))
        data = private.examples(*[0, 1, 2] * 4)
        upload = algorithm.local(
            algorithm.broadcast(state), data, {}, generator(0, "test"), ignore, private.noise()
        ).upload
        rng = generator(0, "server")
        states.append(algorithm.aggregate(state, [Upload(0, upload)], rng, ignore))
    assert equal(*states)
