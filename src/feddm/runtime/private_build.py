"""Config -> algorithms under a guarantee, for `build`: clips, noise, and what is released."""

from __future__ import annotations

import math
from typing import Any

from feddm.algorithms.base import Algorithm
from feddm.algorithms.feature_feddm import (
    FeatureFedDM,
    FeatureRelease,
    ImageSteps,
    ServerFedDM,
)
from feddm.algorithms.gradient_feddm import GradientFedDM, GradientRelease
from feddm.config.schema import Config
from feddm.core.augmentation import Augmentation
from feddm.core.coding import Coding
from feddm.core.models import num_features
from feddm.core.training import SGD
from feddm.privacy.features import Bound
from feddm.privacy.gradients import PrivateSGD
from feddm.runtime.protection import expected_examples


def build_private_sgd(config: Config, sgd: SGD) -> PrivateSGD:
    """Returns how clients train under privacy."""
    privacy = config.privacy
    return PrivateSGD(
        sgd,
        steps=privacy.steps,
        sample_rate=privacy.sample_rate,
        expected_batch=privacy.sample_rate * expected_examples(config),
        most=privacy.clip,
        noise_multiplier=privacy.noise_multiplier,
        unit=privacy.unit,
    )


def build_private_feddm(
    config: Config, augmentation: Augmentation, union: dict[str, Any]
) -> Algorithm:
    """Returns FedDM with its mechanism of privacy."""
    privacy, synthesis = config.privacy, config.synthesis
    if privacy.mechanism == "gradients":
        gradients = GradientRelease(
            steps=privacy.steps,
            radius=synthesis.radius,
            sample_rate=privacy.sample_rate,
            expected_batch=privacy.sample_rate
            * expected_examples(config)
            / union["model"].num_classes,
            most=privacy.clip,
            noise_multiplier=privacy.noise_multiplier,
            unit=privacy.unit,
        )
        return GradientFedDM(
            **union, release=gradients, lr=synthesis.lr, momentum=synthesis.momentum
        )
    assert synthesis.networks != "fresh"  # the configuration was checked
    numbers = privacy.projection or num_features(union["model"])
    release = FeatureRelease(
        networks=synthesis.networks,
        radius=synthesis.radius,
        bound=Bound(privacy.clip * math.sqrt(numbers + union["model"].num_classes)),
        noise_multiplier=privacy.noise_multiplier,
        projection=privacy.projection or None,
        augmentation=augmentation if synthesis.augment else None,
        unit=privacy.unit,
    )
    steps = ImageSteps(synthesis.steps, synthesis.lr, synthesis.momentum)
    if privacy.learn == "server":
        # Images that do not travel are not rounded for it.
        return ServerFedDM(**union | {"coding": Coding()}, release=release, image_steps=steps)
    return FeatureFedDM(**union, release=release, image_steps=steps)
