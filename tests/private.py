"""Private algorithms that take milliseconds, and clients for them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from feddm.algorithms.base import Algorithm
from feddm.algorithms.feature_feddm import (
    FeatureFedDM,
    FeatureRelease,
    ImageSteps,
    ServerFedDM,
)
from feddm.algorithms.fedavg import FedAvg
from feddm.algorithms.fednova import FedNova
from feddm.algorithms.fedprox import FedProx
from feddm.algorithms.gradient_feddm import GradientFedDM, GradientRelease
from feddm.algorithms.scaffold import Scaffold
from feddm.core.examples import Examples
from feddm.core.models import ConvNet, Model
from feddm.core.seeding import generator
from feddm.core.tensors import CPU, Records, Tensors
from feddm.core.training import SGD
from feddm.privacy.features import Bound
from feddm.privacy.gradients import PrivateSGD
from feddm.privacy.noise import Secret
from feddm.privacy.release import Noise

MODEL = ConvNet((1, 8, 8), 3, width=4, depth=2)
SECRET = Secret(bytes(range(32)), for_tests=True)
OTHER_SECRET = Secret(bytes(reversed(range(32))), for_tests=True)
# Where images are learned from sums of features, or gradients have noise.
BASELINES = ("fedavg", "fedprox", "fednova", "scaffold")
NAMES = ("features", "server", "gradients", *BASELINES)


def built(
    name: str,
    multiplier: float = 1.0,
    *,
    model: Model = MODEL,
    rate: float = 1.0,
    steps: int = 2,
    **union: Any,
) -> Algorithm:
    """Returns a private algorithm with so much noise."""
    sgd = SGD(lr=0.5, epochs=1, batch_size=8)
    private = PrivateSGD(sgd, steps, rate, 10.0 * rate, 1.0, multiplier)
    if name == "fedavg":
        return FedAvg(model, sgd, private=private)
    if name == "fedprox":
        return FedProx(model, sgd, 0.5, private=private)
    if name == "fednova":
        return FedNova(model, sgd, private=private)
    if name == "scaffold":
        return Scaffold(model, sgd, 1.0, clients=2, private=private)
    settings: dict[str, Any] = {
        "model": model,
        "images_per_class": 2,
        "min_class_size": 2,
        "server_sgd": sgd,
        "server_radius": 5.0,
        "weighting": "synthetic",
        "device": CPU,
    } | union
    if name == "gradients":
        release = GradientRelease(steps, 1.0, rate, 3.0 * rate, 1.0, multiplier, multiplier)
        return GradientFedDM(**settings, release=release, lr=1.0, momentum=0.5)
    features = FeatureRelease(2, 1.0, Bound(3.0), multiplier, projection=5)
    kind = {"features": FeatureFedDM, "server": ServerFedDM}[name]
    return cast(
        Algorithm, kind(**settings, release=features, image_steps=ImageSteps(3, 1.0, 0.5))
    )


def examples(*labels: int, seed: int = 0) -> Examples:
    """Returns random images with these labels."""
    x = torch.randn(len(labels), 1, 8, 8, generator=generator(seed, "images"))
    return Examples(x, torch.tensor(labels, dtype=torch.int64))


def download(algorithm: Algorithm, seed: int = 0) -> Records:
    """Returns what clients get in a first round."""
    return algorithm.broadcast(algorithm.init(algorithm.model.init(generator(seed, "test"))))


def noise(secret: Secret = SECRET, round_: int = 1, context: bytes = b"") -> Noise:
    """Returns the noise of one client in one round."""
    return Noise(secret, round_, context)


def cancelling(params: Tensors) -> dict[str, Tensor]:
    """Returns weights that turn last bits into large numbers.

    Two channels see almost the same, and the next layer takes ten million times the difference.
    """
    params = {name: tensor.clone() for name, tensor in params.items()}
    params["conv0.weight"][1] = params["conv0.weight"][0]
    params["norm0.bias"][:2] = 3.0
    params["conv1.weight"][:, 0] = 1e7
    params["conv1.weight"][:, 1] = -1e7
    return params
