import math
from typing import Any

import numpy as np
import pytest
import torch

from feddm.algorithms.base import ConfiguredAlgorithm, Context
from feddm.algorithms.fedavg import FedAvg
from feddm.algorithms.feddm import FedDM, ServerTraining, Synthesis
from feddm.algorithms.fednova import FedNova
from feddm.algorithms.fedprox import FedProx
from feddm.algorithms.real import Real
from feddm.algorithms.scaffold import Scaffold
from feddm.core.examples import Examples
from feddm.core.models import ConvNet, num_params
from feddm.core.seeding import generator
from feddm.core.tensors import num_bytes
from feddm.core.training import ignore
from feddm.errors import ConfigError
from feddm.privacy.features import FeatureSettings
from feddm.privacy.gradients import GradientSettings

MODEL = ConvNet((2, 3, 3), 3, width=4, depth=1)  # images of 18 numbers


def feddm(**settings: Any) -> ConfiguredAlgorithm:
    return FedDM.build(FedDM.Settings(**settings), Context(MODEL))


# Client 0 has 12 of class 0 and 3 of class 1; client 1 has 9 of class 1. With ten images per
# class and classes of fewer than nine left out, that is 10 + 9 = 19 images.
TABLE = np.array([[12, 3, 0], [0, 9, 0]])
TEN: dict[str, Any] = {"images_per_class": 10, "min_class_size": 9}


def test_images_by_hand() -> None:
    # Each of 18 floats, with a label of one byte.
    for algorithm in (feddm(**TEN), Real.build(Real.Settings(**TEN), Context(MODEL))):
        size = algorithm.upload_size(TABLE)
        assert (size.floats, size.num_bytes) == (19 * 18, 19 * (4 * 18 + 1))
        assert (size.variance, size.pairs) == (0, 2)


def test_short_images_with_weights_by_hand() -> None:
    # A byte for each number, a label, a weight; each client sends the range of both channels.
    size = feddm(
        **TEN, coding="uint8", server=ServerTraining(weighting="examples")
    ).upload_size(TABLE)
    assert size.floats == 19 * (18 + 1)
    assert size.num_bytes == 19 * (18 + 1 + 4) + 2 * 2 * 8


def test_noise_needs_no_examples() -> None:
    size = feddm(**TEN, synthesis=Synthesis(start="noise")).upload_size(TABLE)
    assert size.floats == 20 * 18


@pytest.mark.parametrize("kind", [FedAvg, FedProx, FedNova, Scaffold])
def test_weights_by_hand(kind: type[ConfiguredAlgorithm]) -> None:
    # Three clients with a model of so many numbers, whatever their examples; eight bytes for
    # the number of examples, which SCAFFOLD does not send.
    size = kind.build(kind.Settings(), Context(MODEL)).upload_size(np.zeros((3, 3)))
    weights = 3 * num_params(MODEL.init(generator(0, "test")))
    assert (size.floats, size.num_bytes) == {
        FedAvg: (weights, 4 * weights + 24),
        FedProx: (weights, 4 * weights + 24),
        FedNova: (weights + 3, 4 * (weights + 3) + 24),
        Scaffold: (2 * weights, 8 * weights),
    }[kind]
    assert (size.variance, size.pairs) == (0, None)


@pytest.mark.parametrize("kind", [FedAvg, FedProx, FedNova, Scaffold])
def test_few_bits_by_hand(kind: type[ConfiguredAlgorithm]) -> None:
    # The model has 72 + 4 numbers in its convolution, 4 + 4 in its normalization and 48 + 3 in
    # its linear layer: 135 in six tensors, each with a scale of 4 bytes. At 4 bits, the last 3
    # take 2 bytes. FedNova's coefficient is a float32; eight bytes are the number of examples.
    for bits, update in ((8, 135 + 6 * 4), (4, 36 + 2 + 2 + 2 + 24 + 2 + 6 * 4)):
        settings = kind.Settings.model_validate({"bits": bits})
        size = kind.build(settings, Context(MODEL)).upload_size(np.zeros((3, 3)))
        assert (size.floats, size.num_bytes) == {
            FedAvg: (3 * 135, 3 * (update + 8)),
            FedProx: (3 * 135, 3 * (update + 8)),
            FedNova: (3 * 136, 3 * (update + 4 + 8)),
            Scaffold: (3 * 2 * 135, 3 * 2 * update),
        }[kind]


@pytest.mark.parametrize("bits", [32, 8, 4])
@pytest.mark.parametrize("kind", [FedAvg, FedProx, FedNova, Scaffold])
def test_weights_are_counted_as_they_are_sent(
    kind: type[ConfiguredAlgorithm], bits: int
) -> None:
    settings = kind.Settings.model_validate({"bits": bits, "local": {"epochs": 1}})
    algorithm = kind.build(settings, Context(MODEL))
    download = algorithm.broadcast(algorithm.init(MODEL.init(generator(0, "test"))))
    data = Examples(torch.ones(2, *MODEL.shape), torch.tensor([0, 1]))
    upload = algorithm.local(download, data, {}, generator(0, "client"), ignore).upload
    assert algorithm.upload_size(np.zeros((1, 3))).num_bytes == num_bytes(upload)


def test_noisy_class_sizes_by_hand() -> None:
    # Noise of deviation 10 on classes of 20, 10 and 0, of which 10 are needed: one deviation
    # more than enough, just enough, and one too few. So they are sent with probabilities
    # .8413, .5 and .1587, which add up to 1.5, and there are four images of each.
    privacy = GradientSettings(noise_multiplier=1.0)
    settings = FedDM.settings_type("gradients").model_validate(
        {"name": "feddm", "images_per_class": 4, "count_multiplier": 10.0}
    )
    context = Context(MODEL, examples=30.0, privacy=privacy)
    size = FedDM.build(settings, context).upload_size(np.array([[20, 10, 0]]))
    assert size.pairs == pytest.approx(1.5)
    assert size.floats == pytest.approx(4 * 1.5 * 18)
    assert size.num_bytes == pytest.approx(4 * 1.5 * 73)
    # What varies is whether a class is sent: p (1 - p) each.
    variance = 2 * 0.8413447 * 0.1586553 + 0.25
    assert math.sqrt(size.variance) == pytest.approx(4 * math.sqrt(variance) * 18, rel=1e-6)


def test_sums_by_hand() -> None:
    # Two clients and three networks: of each of three classes 5 features, 3 logits, a count.
    privacy = FeatureSettings(noise_multiplier=1.0, projection=5)
    settings = FedDM.settings_type("features").model_validate(
        {"name": "feddm", "synthesis": {"networks": 3}}
    )
    size = FedDM.build(settings, Context(MODEL, privacy=privacy)).upload_size(TABLE)
    assert (size.floats, size.num_bytes) == (2 * 3 * 3 * 9, 4 * 2 * 3 * 3 * 9)
    assert (size.variance, size.pairs) == (0, None)


def test_an_algorithm_that_does_not_say_it_is_named() -> None:
    fedavg = FedAvg.build(FedAvg.Settings(name="mine"), Context(MODEL))
    with pytest.raises(ConfigError, match="mine does not say how much its clients upload"):
        ConfiguredAlgorithm.upload_size(fedavg, TABLE)
