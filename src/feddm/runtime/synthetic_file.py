"""Synthetic sets in a file that you can use without the run that made it.

The images are normalized model inputs. If you mix them with other images, normalize those with
the same constants, which are in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.utils.data import TensorDataset

from feddm.core.examples import Examples, Normalization, normalization_in, scale_of
from feddm.core.tensors import Tensors, file_content, read_file
from feddm.errors import DataError

KIND = "synthetic set"


@dataclass(frozen=True)
class SyntheticSet:
    """The synthetic sets of one round.

    Args:
        examples: Images as model inputs, and class numbers.
        clients: The client of each image.
        classes: Names of the classes.
        normalization: The normalization that real pixels need to match the images.
    """

    examples: Examples
    clients: Tensor
    classes: tuple[str, ...]
    normalization: Normalization

    def __len__(self) -> int:
        return len(self.examples)

    def pixels(self) -> Tensor:
        """Returns the images as uint8 pixels, for viewing."""
        return self.normalization.pixels(self.examples.x)

    def to_torch(self) -> TensorDataset:
        """Returns the set as a data set of torch: model inputs and class numbers."""
        return TensorDataset(self.examples.x, self.examples.y)

    def to_bytes(self) -> bytes:
        """Returns the content of the file: the set and everything needed to use it."""
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
            "use": f"images = (pixels / {self.normalization.scale:g} - mean) / std by channel",
            **scale_of(self.normalization),
        }
        return file_content(KIND, tensors, about)


def from_state(
    synthetic: Tensors, classes: tuple[str, ...], normalization: Normalization
) -> SyntheticSet:
    """Returns the synthetic set in an algorithm's state."""
    weight = synthetic.get("weight")
    examples = Examples(synthetic["x"], synthetic["y"].long(), weight=weight)
    return SyntheticSet(examples, synthetic["client"], classes, normalization)


def load_synthetic(path: str | Path) -> SyntheticSet:
    """Loads the ``synthetic.safetensors`` of a run."""
    tensors, about = read_file(path, KIND)
    try:
        return SyntheticSet(
            Examples(tensors["images"], tensors["labels"], weight=tensors.get("weights")),
            tensors["clients"],
            tuple(about["classes"]),
            normalization_in(about),
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} is not a complete synthetic set: {error}") from error
