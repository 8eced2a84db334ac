"""A trained model as a file that can be used without the run that made it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feddm.config.schema import ModelConfig
from feddm.core.examples import Normalization
from feddm.core.models import Model
from feddm.core.tensors import Tensors, described, read_described
from feddm.errors import DataError
from feddm.runtime.build import build_model

KIND = "model"


@dataclass(frozen=True)
class TrainedModel:
    """A model with its parameters, and all that is needed to use it on pixels."""

    config: ModelConfig
    model: Model
    params: Tensors
    classes: tuple[str, ...]
    normalization: Normalization

    def logits(self, pixels: Tensor) -> Tensor:
        """Returns the logits of uint8 images of shape (n, channels, height, width)."""
        with torch.inference_mode():
            return self.model(self.params, self.normalization.inputs(pixels)).logits

    def predict(self, pixels: Tensor) -> list[str]:
        """Returns the name of the most likely class of each uint8 image."""
        return [self.classes[label] for label in self.logits(pixels).argmax(1).tolist()]

    def to_bytes(self) -> bytes:
        """Returns the content of the file."""
        about = {
            "model": self.config.model_dump(),
            "shape": self.model.shape,
            "classes": self.classes,
            "mean": self.normalization.mean,
            "std": self.normalization.std,
        }
        return described(KIND, self.params, about)


def load_model(path: str | Path) -> TrainedModel:
    """Returns the model that a run wrote as ``model.safetensors``."""
    params, about = read_described(path, KIND)
    try:
        config = ModelConfig.model_validate(about["model"])
        channels, height, width = about["shape"]
        classes = tuple(about["classes"])
        normalization = Normalization(tuple(about["mean"]), tuple(about["std"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} does not say how to use the model in it") from error
    model = build_model(config, (channels, height, width), len(classes))
    expected = model.init(torch.Generator())
    if {name: t.shape for name, t in params.items()} != {
        n: t.shape for n, t in expected.items()
    }:
        raise DataError(f"{path} does not have the parameters of the model that it describes")
    return TrainedModel(config, model, params, classes, normalization)
