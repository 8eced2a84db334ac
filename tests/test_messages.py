import numpy as np

from feddm.messages import PAPER, PAPER_BASELINE, ImageSize, model_sizes, synthetic_size
from feddm.models import ConvNet, num_params
from feddm.seeding import generator


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


def test_images_that_hold_four() -> None:
    # 13 examples are three stored images of four, 7 are one, 40 would be ten: at most five.
    labels = np.array([0] * 13 + [1] * 7 + [2] * 40)
    size = synthetic_size(
        "FedDM",
        labels,
        lambda seed: [np.arange(60)],
        range(1),
        num_classes=3,
        images_per_class=5,
        min_class_size=4,
        image=ImageSize(floats=10, num_bytes=11, holds=4),
    )
    assert (size.floats, size.num_bytes) == (90, 99)


def test_noise_needs_no_examples() -> None:
    assert ImageSize(floats=10, num_bytes=11, holds=0).number(np.array([13, 7, 40]), 5) == 15


def test_the_papers_figures_are_whole_pairs() -> None:
    image = {"mnist": 784, "cifar10": 3072, "cifar100": 3072}
    pairs = {"mnist": [81, 47, 14], "cifar10": [87, 44, 15], "cifar100": [654, 310, 139]}
    for name, figures in PAPER.items():
        ipc = 5 if name == "cifar100" else 10
        assert [f / (ipc * image[name]) for f in figures.values()] == pairs[name]


def test_the_papers_baselines_are_ten_convnets() -> None:
    for name, shape, classes in (
        ("mnist", (1, 28, 28), 10),
        ("cifar10", (3, 32, 32), 10),
        ("cifar100", (3, 32, 32), 100),
    ):
        model = ConvNet(shape, classes)
        assert PAPER_BASELINE[name] == 10 * num_params(model.init(generator(0, "t")))
