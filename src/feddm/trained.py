"""A trained model as a file that can be used without the run that made it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from feddm.build import build_model
from feddm.config import ModelConfig
from feddm.data.examples import Normalization
from feddm.errors import DataError
from feddm.models import Model
from feddm.tensors import Tensors

FORMAT = "feddm-model-1"


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
        metadata = {
            "format": FORMAT,
            "model": self.config.model_dump_json(),
            "shape": json.dumps(self.model.shape),
            "classes": json.dumps(self.classes),
            "mean": json.dumps(self.normalization.mean),
            "std": json.dumps(self.normalization.std),
        }
        tensors = {name: tensor.contiguous() for name, tensor in self.params.items()}
        return safetensors.torch.save(tensors, metadata)


def load_model(path: str | Path) -> TrainedModel:
    """Returns the model that a run wrote as ``model.safetensors``."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} cannot be read as a model: {error}") from error
    if metadata.get("format") != FORMAT:
        raise DataError(f"{path} is not a model of feddm")
    config = ModelConfig.model_validate_json(metadata["model"])
    channels, height, width = json.loads(metadata["shape"])
    classes = tuple(json.loads(metadata["classes"]))
    return TrainedModel(
        config,
        build_model(config, (channels, height, width), len(classes)),
        params,
        classes,
        Normalization(tuple(json.loads(metadata["mean"])), tuple(json.loads(metadata["std"]))),
    )
