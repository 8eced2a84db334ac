"""Noise and samples come from the client's secret: not from torch, numpy or the run's seed."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from feddm.algorithms.base import LocalResult
from feddm.core.examples import Examples
from feddm.core.seeding import generator
from feddm.core.training import ignore
from feddm.privacy.clipping import real
from feddm.privacy.noise import Label, Secret, gaussian, poisson_sample
from feddm.privacy.release import Noise
from private import NAMES, OTHER_SECRET, SECRET, built, download, examples

DATA = examples(*[0, 1, 2] * 5)
# Methods and functions of torch that draw random numbers from its generators.
OF_TORCH = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial")
OF_TENSORS = ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_")


class Watched(Noise):
    """Keeps the noise that was added, and the samples."""

    def __init__(self, secret: Secret) -> None:
        super().__init__(secret, 1, b"context")
        self.noise: dict[int, Tensor] = {}
        self.samples: dict[int, list[int]] = {}

    def sample(self, number: int, num: int, rate: float) -> Tensor:
        index = super().sample(number, num, rate)
        self.samples[number] = index.tolist()
        return index

    def added(self, number: int, total: Tensor, bound: float, multiplier: float) -> Tensor:
        noisy = super().added(number, total, bound, multiplier)
        # The sum has 53 bits, so what is left without it is off by about 1e-15.
        self.noise[number] = ((noisy - real(total, bound)) / (multiplier * bound)).float()
        return noisy


def local(
    name: str, secret: Secret, seed: int, data: Examples = DATA
) -> tuple[Watched, LocalResult]:
    algorithm = built(name, rate=0.5, steps=3)
    watched = Watched(secret)
    # Code that draws from a global generator would now draw other numbers.
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    result = algorithm.local(
        download(algorithm), data, {}, generator(seed, "client"), ignore, watched
    )
    return watched, result


def same_noise(first: Watched, second: Watched) -> list[bool]:
    assert first.noise.keys() == second.noise.keys()
    return [
        torch.allclose(drawn, second.noise[number], rtol=0, atol=1e-5)
        for number, drawn in first.noise.items()
    ]


@pytest.mark.parametrize("name", NAMES)
class TestEveryPrivateAlgorithm:
    def test_the_seed_of_a_run_does_not_change_noise_or_samples(self, name: str) -> None:
        first, _ = local(name, SECRET, seed=1)
        second, _ = local(name, SECRET, seed=2)
        assert all(same_noise(first, second))
        assert first.samples == second.samples

    def test_another_secret_does(self, name: str) -> None:
        first, one = local(name, SECRET, seed=1)
        second, other = local(name, OTHER_SECRET, seed=1)
        assert not any(same_noise(first, second))
        if first.samples:
            assert first.samples != second.samples
        assert any(
            tensor.shape != other.upload[record][key].shape
            or not torch.equal(tensor, other.upload[record][key])
            for record, tensors in one.upload.items()
            for key, tensor in tensors.items()
        )

    def test_every_sum_has_its_own_noise(self, name: str) -> None:
        drawn = list(local(name, SECRET, seed=1)[0].noise.values())
        assert len(drawn) > 1
        heads = {tuple(noise.flatten()[:3].tolist()) for noise in drawn}
        assert len(heads) == len(drawn)


@pytest.mark.parametrize("name", ["server", "fedavg", "fedprox", "fednova", "scaffold"])
def test_the_seed_of_a_run_changes_nothing_at_all(name: str) -> None:
    # Without initial images, all randomness comes from the client's secret.
    _, first = local(name, SECRET, seed=1)
    _, second = local(name, SECRET, seed=2)
    for record, tensors in first.upload.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, second.upload[record][key])


def refused(*_: object, **__: object) -> None:
    raise AssertionError("random numbers of torch or numpy are for simulation only")


@pytest.fixture
def no_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_TORCH:
        monkeypatch.setattr(torch, name, refused)
    for name in OF_TENSORS:
        monkeypatch.setattr(Tensor, name, refused)
    for name in ("default_rng", "normal", "standard_normal", "random", "rand", "randn"):
        monkeypatch.setattr(np.random, name, refused)
    for name in ("random", "gauss", "normalvariate"):
        monkeypatch.setattr(random, name, refused)


def test_generators_are_watched(no_generators: None) -> None:
    with pytest.raises(AssertionError):
        torch.randn(3)
    with pytest.raises(AssertionError):
        torch.empty(3).normal_()
    with pytest.raises(AssertionError):
        np.random.default_rng(0)


def test_noise_and_samples_need_no_generator(no_generators: None) -> None:
    label = Label("test", 1, 0, b"")
    assert gaussian(SECRET, label, (3,)).isfinite().all()
    assert len(poisson_sample(SECRET, label, 9, 1.0)) == 9
    assert Secret.fresh() != Secret.fresh()


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fednova", "scaffold"])
def test_private_training_needs_no_generator(name: str, request: pytest.FixtureRequest) -> None:
    algorithm = built(name, rate=0.5)
    weights, rng = download(algorithm), generator(0, "client")
    request.getfixturevalue("no_generators")
    result = algorithm.local(weights, DATA, {}, rng, ignore, Watched(SECRET))
    algorithm.parse(result.upload, weights)


@pytest.mark.parametrize("name", ["features", "server"])
def test_noisy_sums_need_no_generator(name: str, request: pytest.FixtureRequest) -> None:
    algorithm = built(name)
    # Networks are public, so they may come from any generator.
    model, networks = algorithm.release.shown(algorithm.model, download(algorithm))  # type: ignore[attr-defined]
    request.getfixturevalue("no_generators")
    totals = algorithm.release.noisy_totals(model, networks, DATA, Watched(SECRET))  # type: ignore[attr-defined]
    assert len(totals) == 2
