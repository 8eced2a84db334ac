import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from feddm.core.flops import forward_flops
from feddm.core.models import ConvNet, Model, ResNet18
from feddm.core.seeding import generator


def test_by_hand() -> None:
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
def test_they_are_those_that_torch_counts(model: Model) -> None:
    with FlopCounterMode(display=False) as counter:
        model(model.init(generator(0, "test")), torch.zeros(1, *model.shape))
    assert forward_flops(model) == counter.get_total_flops()
