from typing import Any, cast

import pytest
import torch
from torch import Tensor

from feddm.algorithms.base import Context
from feddm.algorithms.noisy_feddm import NoisyFedDM, NoisyFedDMSettings
from feddm.config.resolve import resolve
from feddm.core.examples import Examples
from feddm.core.models import ConvNet
from feddm.core.seeding import generator
from feddm.core.training import ignore
from feddm.errors import ConfigError
from feddm.privacy.paper_noise import PaperNoise
from feddm.privacy.release import Noise


@pytest.mark.parametrize(("real_batch", "batches"), [(16, [16, 12]), ("all", [40, 12])])
def test_noise_goes_by_the_size_of_classes(real_batch: int | str, batches: list[int]) -> None:
    drawn: list[list[int]] = []

    class Recorded(PaperNoise):
        def perturbed(
            self, gradient: Tensor, slots: Tensor, step: int, batches: Tensor, noise: Noise
        ) -> Tensor:
            drawn.append(batches.tolist())
            return gradient

    settings = NoisyFedDMSettings.model_validate(
        {"synthesis": {"steps": 1, "real_batch": real_batch}}
    )
    context = Context(ConvNet((1, 8, 8), 10, width=4, depth=2), privacy=Recorded())
    algorithm = NoisyFedDM(settings, context)
    data = Examples(torch.rand(52, 1, 8, 8), torch.tensor([2] * 40 + [5] * 12))
    download = {"params": algorithm.model.init(generator(0, "test"))}
    noise = cast(Noise, object())  # nobody asks it for anything
    algorithm.local(download, data, {}, generator(0, "c"), ignore, noise)
    assert drawn == [batches]


def test_every_preset_has_squared_distances() -> None:
    # The noise is sized for them; with relative ones it would be hundreds of times too large.
    for preset in ("quick", "paper"):
        config: Any = resolve(preset=preset, options={"dataset": "cifar10", "privacy": "paper"})
        assert isinstance(config.algorithm, NoisyFedDMSettings)
        assert config.algorithm.synthesis.distance == "squared"
        assert config.algorithm.synthesis.lr == 1


def test_relative_distances_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^synthesis\.distance must be squared with"):
        resolve(options={"privacy": "paper"}, settings={"synthesis.distance": "relative"})
