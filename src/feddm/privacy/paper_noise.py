"""The noise of the paper's Algorithm 1, for sigma > 0. It gives no guarantee.

It clips the mean gradient of a batch, which one example can move by more than the noise hides;
and the images start from real ones, of the classes that a client has.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from feddm.config.schema import PrivacySettings
from feddm.privacy.release import Noise

UNPROTECTED = "synthetic images"


class PaperNoise(PrivacySettings):
    """The paper's noise, which gives no guarantee."""

    mechanism: Literal["paper"] = "paper"
    noise_multiplier: PositiveFloat = Field(
        1.0, description="Noise standard deviation, in units of clip / batch (sigma)."
    )
    clip: Annotated[float, Field(ge=1e-6, le=1e6)] = Field(
        5.0, description="Clipping norm of the mean gradient of a class (C)."
    )
    unit: Literal["example"] = Field("example", description="There is no guarantee for more.")
    # What it releases would void the guarantee of all other runs on the same ledger.
    ledger: str = Field("new", description="Folder of the ledgers; new: for this run.")

    instead = {  # noqa: RUF012  # a ClassVar
        "epsilon": "--privacy paper gives no guarantee, so it has no epsilon; set its noise "
        "with privacy.noise_multiplier",
        "steps": "it is for --privacy gradients",
        "sample_rate": "it is for --privacy gradients",
        "projection": "it is for --privacy features",
        "learn": "it is for --privacy features",
    }

    def perturbed(
        self, gradient: Tensor, slots: Tensor, step: int, batches: Tensor, noise: Noise
    ) -> Tensor:
        """Returns the gradient clipped class by class, with noise.

        Args:
            gradient: Gradient with respect to the images.
            slots: The slot of each image.
            step: Number of the step.
            batches: Number of real images behind the gradient of each slot.
            noise: Source of the noise.
        """
        result = torch.empty_like(gradient)
        for slot in slots.unique().tolist():
            mine = slots == slot
            part = gradient[mine]
            number = step * len(batches) + slot
            drawn = noise.unprotected(number, part.shape, UNPROTECTED).float().to(part.device)
            shorter = part / max(1.0, float(part.norm()) / self.clip)
            scale = self.noise_multiplier * self.clip / int(batches[slot])
            result[mine] = shorter + scale * drawn
        return result
