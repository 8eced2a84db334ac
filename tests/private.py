"""Private algorithms that take milliseconds, and clients for them."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from feddm.algorithms.base import Algorithm, ConfiguredAlgorithm, Context
from feddm.config.presets import merged
from feddm.config.registry import find_algorithm
from feddm.config.schema import PrivacySettings
from feddm.core.examples import Examples
from feddm.core.models import ConvNet, Model
from feddm.core.seeding import generator
from feddm.core.tensors import CPU, Records, Tensors
from feddm.privacy.features import FeatureSettings
from feddm.privacy.gradients import GradientSettings
from feddm.privacy.noise import Secret
from feddm.privacy.release import Noise

MODEL = ConvNet((1, 8, 8), 3, width=4, depth=2)
SECRET = Secret(bytes(range(32)), for_tests=True)
OTHER_SECRET = Secret(bytes(reversed(range(32))), for_tests=True)
# Where images are learned from sums of features, or gradients have noise.
BASELINES = ("fedavg", "fedprox", "fednova", "scaffold")
NAMES = ("features", "server", "gradients", *BASELINES)
# With a projection to 5 numbers and 3 logits, the bound of features is 3.
CLIP = 3.0 / math.sqrt(8)


def built(
    name: str,
    multiplier: float = 1.0,
    *,
    model: Model = MODEL,
    rate: float = 1.0,
    steps: int = 2,
    clip: float | None = None,
    device: torch.device = CPU,
    **settings: Any,
) -> Algorithm:
    """Returns a private algorithm with so much noise; ``server`` is FedDM that learns there.

    Args:
        name: One of `NAMES`.
        multiplier: Noise multiplier.
        model: The model.
        rate: Sample rate of DP-SGD.
        steps: Steps of DP-SGD.
        clip: Clipping norm, if not the usual one.
        device: Where the server trains.
        settings: Settings of the algorithm, over those of these tests.
    """
    algorithm = name if name in BASELINES else "feddm"
    noise: dict[str, Any] = {"noise_multiplier": multiplier}
    if clip is not None:
        noise["clip"] = clip
    privacy: PrivacySettings
    own: dict[str, Any] = {
        "images_per_class": 2,
        "min_class_size": 2,
        "server": {"lr": 0.5, "epochs": 1, "batch_size": 8},
        "synthesis": {"lr": 1.0, "momentum": 0.5, "radius": 1.0},
    }
    if name in ("features", "server"):
        noise["learn"] = "server" if name == "server" else "client"
        privacy = FeatureSettings(**{"projection": 5, "clip": CLIP, **noise})
        own["synthesis"] |= {"networks": 2, "steps": 3}
    else:
        privacy = GradientSettings(**noise, steps=steps, sample_rate=rate)
        own["count_multiplier"] = multiplier
    if algorithm != "feddm":
        own = {"local": {"lr": 0.5}, "mu": 0.5} if name == "fedprox" else {"local": {"lr": 0.5}}
    kind = cast(type[ConfiguredAlgorithm], find_algorithm(algorithm))
    return kind.build(
        kind.settings_type(privacy.mechanism).model_validate(merged(own, settings)),
        Context(model, clients=2, examples=9.0, privacy=privacy, device=device),
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
