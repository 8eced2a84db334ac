import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from feddm.analysis import costs
from feddm.analysis.costs import baseline_sizes, feddm_size
from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.core.examples import Examples
from feddm.core.models import ConvNet, num_params
from feddm.core.seeding import generator
from feddm.data.catalog import describe
from feddm.data.datasets import Dataset
from feddm.paper.published import BASELINE_MESSAGES, MESSAGES

# Client 0 has 12 of class 0 and 3 of class 1; client 1 has 9 of class 1 in one split, and 12 in
# the other.
LABELS = [0] * 12 + [1] * 15
SPLITS = [[np.arange(15), np.arange(15, 24)], [np.arange(15), np.arange(15, 27)]]


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Two classes of images of 2 x 3 x 3 = 18 numbers, with the splits above by seed."""
    monkeypatch.setattr(costs, "build_shards", lambda partition, data, seed: SPLITS[seed])
    info = dataclasses.replace(describe("digits"), classes=("a", "b"), shape=(2, 3, 3))
    examples = Examples(torch.zeros(len(LABELS), *info.shape), torch.tensor(LABELS))
    return Dataset(info, examples, examples)


def config(**settings: Any) -> Config:
    small = {"model.depth": 1, "model.width": 4, "partition.clients": 2}
    own = {"images_per_class": 10, "min_class_size": 9, "coding": "float32"}
    return resolve(settings={**small, **own, **settings})


def test_feddm_by_hand(data: Dataset) -> None:
    # With ten images per class and classes of fewer than nine left out, that is 10 + 9 = 19 and
    # 10 + 10 = 20 images of 18 floats, with a label of one byte.
    size = feddm_size(config(), data, 2, paper=123)
    assert size.floats == 19.5 * 18
    assert size.num_bytes == 19.5 * 73
    assert size.std == pytest.approx(np.std([19, 20], ddof=1) * 18)
    assert size.what == "FedDM, dirichlet 0.5, 2.0 pairs"
    assert size.paper == 123
    assert feddm_size(config(), data, 1).std == 0


def test_spread_over_splits_and_noise(data: Dataset) -> None:
    # The noise on class sizes of 12, 3, 0 and 9 or 12 has deviation 3, and 9 are needed: sent
    # with probabilities .8413, .0228, .0013 and .5 or .8413; ten images each, if sent.
    private: dict[str, Any] = {"privacy.mechanism": "gradients", "count_multiplier": 3.0}
    size = feddm_size(config(**private, **{"privacy.noise_multiplier": 1.0}), data, 2)
    both, last = [0.8413447, 0.0227501, 0.0013499], [0.5, 0.8413447]
    means = [sum(both) + each for each in last]
    assert size.floats == pytest.approx(180 * sum(means) / 2)
    assert size.num_bytes == pytest.approx(730 * sum(means) / 2)
    within = sum(p * (1 - p) for p in both) + sum(p * (1 - p) for p in last) / 2
    between = (means[1] - means[0]) ** 2 / 2
    assert size.std == pytest.approx(180 * math.sqrt(between + within), rel=1e-5)


def test_sums_by_hand(data: Dataset) -> None:
    # Two clients and three networks: of both classes 5 features, 2 logits and a count.
    private = {
        "privacy.mechanism": "features",
        "privacy.epsilon": 4.0,
        "privacy.projection": 5,
        "synthesis.networks": 3,
    }
    size = feddm_size(config(**private), data, 2)
    assert size.what == "FedDM (noisy sums)"
    assert (size.floats, size.num_bytes, size.std) == (96, 384, 0)


def test_baselines_by_hand(data: Dataset) -> None:
    # 2 x 4 x 9 + 4 numbers of the convolution and 8 of the normalization; of 3 x 3 pixels,
    # padded to 4 x 4, pooling leaves 2 x 2: the last layer has 4 x 4 x 2 + 2.
    sizes = baseline_sizes(config(), data, paper=456)
    assert [size.floats for size in sizes] == [2 * 118, 2 * 119, 4 * 118]
    # Four bytes a float, and eight for the number of examples, which SCAFFOLD does not send.
    assert [size.num_bytes for size in sizes] == [8 * 118 + 16, 8 * 119 + 16, 16 * 118]
    assert [size.paper for size in sizes] == [456, None, None]
    assert {size.std for size in sizes} == {0}


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
