import math

import numpy as np
import pytest

from feddm.analysis.costs import (
    ImageSize,
    model_sizes,
    sums_size,
    synthetic_size,
)
from feddm.core.models import ConvNet, num_params
from feddm.core.seeding import generator
from feddm.paper.published import BASELINE_MESSAGES, MESSAGES


def test_size_by_hand() -> None:
    # Client 0 has 12 of class 0 and 3 of class 1; client 1 has 9 of class 1 in one split, and
    # 12 in the other. With ten images a class and classes of fewer than nine left out, that is
    # 10 + 9 = 19 and 10 + 10 = 20 images of 2 x 3 x 3 = 18 floats.
    labels = np.array([0] * 12 + [1] * 15)
    splits = [
        [np.arange(15), np.arange(15, 24)],
        [np.arange(15), np.arange(15, 27)],
    ]
    size = synthetic_size(
        "FedDM",
        labels,
        splits.__getitem__,
        range(2),
        num_classes=2,
        images_per_class=10,
        min_class_size=9,
        image=ImageSize(floats=18, num_bytes=73),
        client_bytes=16,
    )
    assert size.floats == 19.5 * 18
    assert size.num_bytes == 19.5 * 73 + 2 * 16
    assert size.std == np.std([19, 20], ddof=1) * 18
    assert size.what == "FedDM, 2.0 pairs"


def test_baselines_by_hand() -> None:
    # Three clients with a model of 100 numbers.
    assert [size.floats for size in model_sizes(100, 3)] == [300, 303, 600]
    # Four bytes a float, and eight for the number of examples, which SCAFFOLD does not send.
    assert [size.num_bytes for size in model_sizes(100, 3)] == [1224, 1236, 2400]


def test_noise_needs_no_examples() -> None:
    image = ImageSize(floats=10, num_bytes=11, holds=0)
    assert image.numbers(np.array([13, 7, 40]), 5).tolist() == [5, 5, 5]


def test_noisy_sizes_by_hand() -> None:
    # Noise of deviation 10 on classes of 20, 10 and 0, of which 10 are needed: one deviation
    # more than enough, just enough, and one too few. So they are sent with probabilities
    # .8413, .5 and .1587, which add up to 1.5, and there are four images of each.
    size = synthetic_size(
        "FedDM",
        np.array([0] * 20 + [1] * 10),
        lambda seed: [np.arange(30)],
        range(2),
        num_classes=3,
        images_per_class=4,
        min_class_size=10,
        image=ImageSize(floats=10, num_bytes=41, holds=0),
        class_noise=10.0,
    )
    assert size.what == "FedDM, 1.5 pairs"
    assert size.floats == pytest.approx(4 * 1.5 * 10)
    assert size.num_bytes == pytest.approx(4 * 1.5 * 41)
    # Both splits are the same, so what varies is whether a class is sent: p (1 - p) each.
    variance = 2 * 0.8413447 * 0.1586553 + 0.25
    assert size.std == pytest.approx(4 * math.sqrt(variance) * 10, rel=1e-6)


def test_sums_by_hand() -> None:
    # Two clients and three networks: of each of ten classes 64 features, 10 logits, a count.
    size = sums_size(2, 3, num_classes=10, features=64)
    assert (size.floats, size.num_bytes, size.std) == (4500, 18_000, 0)


def test_the_papers_figures_are_whole_pairs() -> None:
    image = {"mnist": 784, "cifar10": 3072, "cifar100": 3072}
    pairs = {"mnist": [81, 47, 14], "cifar10": [87, 44, 15], "cifar100": [654, 310, 139]}
    for name, figures in MESSAGES.items():
        ipc = 5 if name == "cifar100" else 10
        assert [f / (ipc * image[name]) for f in figures.values()] == pairs[name]


def test_the_papers_baselines_are_ten_convnets() -> None:
    for name, shape, classes in (
        ("mnist", (1, 28, 28), 10),
        ("cifar10", (3, 32, 32), 10),
        ("cifar100", (3, 32, 32), 100),
    ):
        model = ConvNet(shape, classes)
        assert BASELINE_MESSAGES[name] == 10 * num_params(model.init(generator(0, "t")))
