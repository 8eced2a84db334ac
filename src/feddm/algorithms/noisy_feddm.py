"""FedDM with the noise of the paper's Algorithm 1, which gives no guarantee."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from feddm.algorithms.feddm import FedDM, FedDMSettings
from feddm.config.presets import merged
from feddm.config.schema import PrivacySettings, Values
from feddm.core.examples import Members
from feddm.core.matching import Perturb
from feddm.errors import ConfigError
from feddm.privacy.paper_noise import PaperNoise
from feddm.privacy.release import Noise, needed


class NoisyFedDMSettings(FedDMSettings):
    """Settings of FedDM with the paper's noise, whose size is chosen for squared distances."""

    @classmethod
    def preset(cls, preset: str, dataset: str) -> Values:
        squared = {"synthesis": {"distance": "squared", "lr": 1.0}}
        return merged(super().preset(preset, dataset), squared)

    def check(self, privacy: PrivacySettings | None) -> None:
        super().check(privacy)
        if self.synthesis.distance != "squared":
            raise ConfigError(
                "synthesis.distance must be squared with --privacy paper, whose bound is made "
                "for it; choose a smaller synthesis.lr with it, such as 1"
            )


@dataclass(frozen=True)
class NoisyFedDM(FedDM):
    """FedDM whose clients clip the gradient of each class, and add noise to it."""

    Settings = NoisyFedDMSettings

    def perturb(self, members: Members, noise: Noise | None) -> Perturb:
        privacy = self.context.privacy
        assert isinstance(privacy, PaperNoise)
        batches = members.counts
        if self.settings.synthesis.real_batch != "all":
            batches = batches.clamp(max=self.settings.synthesis.real_batch)
        return functools.partial(privacy.perturbed, batches=batches, noise=needed(noise))
