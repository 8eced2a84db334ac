"""The clients of FedAvg and its kin: they train the weights on their own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, create_model
from torch import Tensor

from feddm.algorithms.base import NUMBER_NEEDED, ConfiguredAlgorithm, guaranteed
from feddm.algorithms.costs import ClassTable, Passes, UploadSize, Work
from feddm.config.presets import Choices, chosen
from feddm.config.schema import (
    AlgorithmSettings,
    Fraction,
    GuaranteedSettings,
    Releases,
    Section,
    Values,
)
from feddm.core.augmentation import Augmentation
from feddm.core.examples import Examples
from feddm.core.models import num_params
from feddm.core.quantize import Quantized, decode, dequantize, quantize, quantized_bytes
from feddm.core.seeding import generator
from feddm.core.tensors import Records, Tensors, zip_map
from feddm.core.training import SGD, Adjust, Tick, train, unchanged
from feddm.errors import ConfigError, UnfitAlgorithmError, UploadError
from feddm.privacy.accounting import Event, Unprotected
from feddm.privacy.gradients import GradientSettings, PrivateSGD, train_privately
from feddm.privacy.release import Noise, needed


class PlainSteps(Section):
    """Steps of plain SGD on the weights."""

    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Weight decay of SGD.")

    def sgd(self, augmentation: Augmentation) -> SGD:
        """Returns how a client trains. Under privacy, epochs and batches are not used."""
        own = self.model_dump(exclude={"augment"})
        augment = getattr(self, "augment", False)
        return SGD(
            **{"epochs": 1, "batch_size": 1, **own},
            augmentation=augmentation if augment else None,
        )


class Steps(PlainSteps):
    """Steps of SGD on the weights."""

    momentum: Fraction = Field(0.0, description="Momentum of SGD.")


class PlainTraining(PlainSteps):
    """Training on a client with plain SGD."""

    epochs: PositiveInt = Field(10, description="Passes over the client's data.")
    batch_size: PositiveInt = Field(256, description="Examples per step.")
    augment: bool = Field(False, description="Train on randomly changed images.")


class Training(PlainTraining, Steps):
    """Training on a client with SGD."""


_QUICK: Choices = {
    "quick": {
        "": {"local": {"epochs": 2, "momentum": 0.9}},
        "digits": {"local": {"batch_size": 16}},  # clients have some 140 images
    }
}


class LocalSettings(AlgorithmSettings):
    """Settings of an algorithm whose clients train the weights."""

    local: PlainTraining = PlainTraining()
    bits: Literal[32, 8, 4] = Field(
        32,
        description="Bits per number of an upload; below 32, updates are rounded at random, "
        "and what rounding left is added to the next update.",
    )

    @classmethod
    def preset(cls, preset: str, dataset: str) -> Values:
        return chosen(_QUICK, preset, dataset)

    def releases(self, privacy: GuaranteedSettings) -> Releases:
        assert isinstance(privacy, GradientSettings)
        return Releases(privacy.steps, privacy.sample_rate)


def _privately(settings: type[LocalSettings], owner: type) -> type[LocalSettings]:
    """Returns the same settings for DP-SGD, which has neither epochs nor batches."""
    training = type(settings.model_fields["local"].default)
    steps = Steps if "momentum" in training.model_fields else PlainSteps
    private: Any = create_model(
        "PrivateSettings",
        __base__=settings,
        __module__=owner.__module__,
        __doc__=settings.__doc__,
        local=(steps, steps()),
    )
    private.__qualname__ = f"{owner.__qualname__}.PrivateSettings"  # where pickle finds it
    private.instead = {
        **settings.instead,
        "local.epochs": "privacy.steps says how many steps there are, for all clients alike",
        "local.batch_size": "privacy.sample_rate says how likely an example is to be in a step",
        "local.augment": "the change of one image would depend on the others",
    }
    return cast(type[LocalSettings], private)


class Trained(NamedTuple):
    """What a client has after training, and what of it may be told."""

    params: dict[str, Tensor]
    steps: int
    size: int  # how much it counts
    metrics: dict[str, float]


@dataclass(frozen=True)
class TrainsLocally(ConfiguredAlgorithm):
    """Clients start from the server's weights and train on their data.

    Under the mechanism ``gradients`` they train by DP-SGD, whatever the algorithm.
    """

    Settings: ClassVar[type[LocalSettings]]
    PrivateSettings: ClassVar[type[LocalSettings]]

    settings: LocalSettings

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.PrivateSettings = _privately(cls.Settings, cls)

    def __post_init__(self) -> None:
        if self.context.privacy is not None and not self.context.examples:
            raise ConfigError(NUMBER_NEEDED)

    @classmethod
    def settings_type(cls, mechanism: str | None) -> type[AlgorithmSettings]:
        if mechanism not in (None, "gradients"):
            raise UnfitAlgorithmError(
                f"--privacy {mechanism} is for feddm; other algorithms take gradients"
            )
        return cls.Settings if mechanism is None else cls.PrivateSettings

    @property
    def local_sgd(self) -> SGD:
        """How clients train."""
        return self.settings.local.sgd(self.context.augmentation)

    @property
    def private(self) -> PrivateSGD | None:
        """How clients train under privacy; ``None`` without."""
        privacy = self.context.privacy
        if privacy is None:
            return None
        assert isinstance(privacy, GradientSettings)
        return PrivateSGD(
            self.local_sgd,
            steps=privacy.steps,
            sample_rate=privacy.sample_rate,
            expected_batch=privacy.sample_rate * self.context.examples,
            most=privacy.clip,
            noise_multiplier=privacy.noise_multiplier,
            unit=privacy.unit,
        )

    @property
    def planned(self) -> tuple[Event, ...]:
        privacy = self.context.privacy
        if isinstance(privacy, GuaranteedSettings):
            return guaranteed(self.settings, privacy)
        return (Unprotected("weights"),)

    def trained(
        self,
        params: Tensors,
        data: Examples,
        rng: torch.Generator,
        noise: Noise | None,
        tick: Tick,
        adjust: Adjust = unchanged,
    ) -> Trained:
        """Returns what a client learned: with privacy if that is asked for, else as usual."""
        private = self.private
        if private is None:
            after = train(
                self.model, params, data, self.local_sgd, rng, adjust=adjust, tick=tick
            )
            metrics = {"loss": after.loss, "steps": after.steps}
            return Trained(after.params, after.steps, len(data), metrics)
        noisy = train_privately(
            self.model, params, data, private, needed(noise), adjust=adjust, tick=tick
        )
        # All count the same, and there are no figures: both would tell about the examples.
        return Trained(noisy, private.steps, 1, {})

    def passes(self, table: ClassTable) -> Work:
        private = self.private
        epochs = private.steps * private.sample_rate if private else self.local_sgd.epochs
        return Work(Passes(weights=float(table.sum()) * epochs))

    def encoded(
        self, record: str, update: Tensors, memory: Records, rng: torch.Generator
    ) -> tuple[Records, Records]:
        """Returns an update as it travels, and what rounding left of it, to be remembered.

        Under privacy, what is rounded already has its noise, so rounding costs no epsilon.

        Args:
            record: Name of the record to send; its scales are sent beside it.
            update: What was learned in this round.
            memory: What rounding left in the client's last round, as ``residual``, if anything.
            rng: The client's generator, after training; ``bits = 32`` draws nothing.
        """
        bits = self.settings.bits
        if bits == 32:
            return {record: update}, {}
        left = memory.get("residual")
        due = zip_map(torch.add, update, left) if left else update
        sent = quantize(due, bits, rng)
        residual = zip_map(torch.sub, due, dequantize(sent, due, bits))
        return {record: sent.codes, _scales(record): sent.scales}, {"residual": residual}

    def decoded(self, upload: Records, record: str, template: Tensors) -> Records:
        """Returns an upload with an update as numbers; the rest of it is not checked here.

        Raises:
            UploadError: If `encoded` cannot have sent an update like the template so.
        """
        bits = self.settings.bits
        if bits == 32:
            return upload
        rest = dict(upload)
        codes, scales = rest.pop(record, None), rest.pop(_scales(record), None)
        if codes is None or scales is None:
            raise UploadError(f"an upload with {bits} bits has {record} and {_scales(record)}")
        return {**rest, record: decode(Quantized(codes, scales), template, bits)}

    def update_size(self) -> UploadSize:
        """Returns the size of one client's update, and of nothing else."""
        params, bits = self.model.init(generator(0, "size")), self.settings.bits
        numbers = num_params(params)
        num_bytes = 4 * numbers if bits == 32 else quantized_bytes(params, bits)
        return UploadSize(numbers, num_bytes)

    def upload_size(self, table: ClassTable) -> UploadSize:
        update, clients = self.update_size(), len(table)
        # And how many examples a client has, as a 64-bit number.
        return UploadSize(clients * update.floats, clients * (update.num_bytes + 8))


def _scales(record: str) -> str:
    """Returns the name of the record that has the scales of another."""
    return f"{record}_scale"
