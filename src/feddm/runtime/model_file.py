"""A trained model in a file that you can use without the run that made it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feddm.config import code
from feddm.config.schema import ModelConfig
from feddm.core.examples import Normalization, normalization_in, scale_of
from feddm.core.models import Model, num_params
from feddm.core.tensors import Tensors, file_content, read_file
from feddm.errors import DataError
from feddm.runtime.build import build_model

KIND = "model"


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A model with its parameters and everything needed to apply it to pixels."""

    config: ModelConfig
    model: Model
    params: Tensors
    classes: tuple[str, ...]
    normalization: Normalization

    def __repr__(self) -> str:
        name, size = code.label(self.config.name), num_params(self.params)
        shape = " x ".join(map(str, self.model.shape))
        return f"<{name} with {size:,} parameters: {shape} to {len(self.classes)} classes>"

    def logits(self, pixels: Tensor) -> Tensor:
        """Returns the logits of stored values: uint8 images, or rows of numbers.

        Args:
            pixels: Of shape (n, channels, height, width), or (n, features).
        """
        with torch.inference_mode():
            x = self.normalization.inputs(pixels.reshape(-1, *self.model.shape))
            return self.model(self.params, x).logits

    def predict(self, pixels: Tensor) -> list[str]:
        """Returns the name of the most likely class of each example."""
        return [self.classes[label] for label in self.logits(pixels).argmax(1).tolist()]

    def to_bytes(self) -> bytes:
        """Returns the content of the file."""
        about = {
            "model": self.config.model_dump(),
            "shape": self.model.shape,
            "classes": self.classes,
            "mean": self.normalization.mean,
            "std": self.normalization.std,
            **scale_of(self.normalization),
        }
        return file_content(KIND, self.params, about)


def load_model(path: str | Path, model: object = None) -> TrainedModel:
    """Loads the ``model.safetensors`` of a run.

    Args:
        path: The file.
        model: The module of a model of your own, or what makes it: a file runs no code.
    """
    params, about = read_file(path, KIND)
    try:
        config = ModelConfig.model_validate(about["model"])
        channels, height, width = about["shape"]
        classes = tuple(about["classes"])
        normalization = normalization_in(about)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} has no valid description of its model") from error
    if model is not None:
        config = config.model_copy(update={"name": code.reference_to(model)})
    elif code.is_reference(config.name):
        raise DataError(
            f"{path} has a model of your own, {code.label(config.name)}, and loading a file "
            "runs no code: give the class itself, as load_model(path, model=Net)"
        )
    built = build_model(config, (channels, height, width), len(classes))
    expected = built.init(torch.Generator())
    if {name: t.shape for name, t in params.items()} != {
        n: t.shape for n, t in expected.items()
    }:
        raise DataError(f"{path} does not have the parameters of the model it describes")
    return TrainedModel(config, built, params, classes, normalization)
