"""Synthetic sets as a file that can be used without the run that made it.

The images are what a model takes. Whoever uses them with other images must normalize those in
the same way, so the constants are in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from feddm.core.examples import Examples, Normalization
from feddm.core.tensors import Tensors, described, read_described
from feddm.errors import DataError

KIND = "synthetic set"


@dataclass(frozen=True)
class SyntheticSet:
    """The synthetic sets of one round.

    Args:
        examples: Images as a model takes them, and class numbers.
        clients: The client that each image came from.
        classes: Names of the classes.
        normalization: How real pixels must be normalized to go with them.
    """

    examples: Examples
    clients: Tensor
    classes: tuple[str, ...]
    normalization: Normalization

    def __len__(self) -> int:
        return len(self.examples)

    def pixels(self) -> Tensor:
        """Returns the images as uint8 pixels, to look at."""
        return self.normalization.pixels(self.examples.x)

    def to_bytes(self) -> bytes:
        """Returns the content of the file: the set with all that is needed to use it."""
        tensors = {
            "images": self.examples.x,
            "labels": self.examples.y,
            "clients": self.clients,
        }
        if self.examples.weight is not None:
            tensors["weights"] = self.examples.weight
        about = {
            "classes": self.classes,
            "mean": self.normalization.mean,
            "std": self.normalization.std,
            "use": "images = (pixels / 255 - mean) / std by channel",
        }
        return described(KIND, tensors, about)


def from_state(
    synthetic: Tensors, classes: tuple[str, ...], normalization: Normalization
) -> SyntheticSet:
    """Returns the set that an algorithm keeps in its state."""
    weight = synthetic.get("weight")
    examples = Examples(synthetic["x"], synthetic["y"].long(), weight=weight)
    return SyntheticSet(examples, synthetic["client"], classes, normalization)


def load_synthetic(path: str | Path) -> SyntheticSet:
    """Returns the set that a run wrote as ``synthetic.safetensors``."""
    tensors, about = read_described(path, KIND)
    try:
        return SyntheticSet(
            Examples(tensors["images"], tensors["labels"], weight=tensors.get("weights")),
            tensors["clients"],
            tuple(about["classes"]),
            Normalization(tuple(about["mean"]), tuple(about["std"])),
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} lacks a part of the synthetic set: {error}") from error
