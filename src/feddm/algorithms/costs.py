"""What a round costs, known before anything runs: passes through the model, and messages.

A forward pass of one image is the unit of work.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Number of examples of each class (column) that each client (row) has.
ClassTable = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Passes:
    """Number of images that pass through the model.

    Args:
        forward: Only forward, like real images in matching.
        images: Forward, and back to the image, like synthetic images in matching.
        weights: Forward, and back to the weights, as in training.
    """

    forward: float = 0.0
    images: float = 0.0
    weights: float = 0.0

    @property
    def weight(self) -> float:
        """All of them in forward passes: a gradient takes about two more, or one for images."""
        return self.forward + 2 * self.images + 3 * self.weights

    def times(self, share: float) -> Passes:
        """Returns this multiplied by a number."""
        return Passes(share * self.forward, share * self.images, share * self.weights)


@dataclass(frozen=True)
class Work:
    """Passes of all clients of a round together, and of the server after them."""

    clients: Passes = Passes()
    server: Passes = Passes()


@dataclass(frozen=True)
class UploadSize:
    """What all clients together upload in a round; expected values, if noise decides.

    Args:
        floats: Numbers other than labels and sizes; floats, as the paper counts them, unless
            they travel in a shorter form.
        num_bytes: All bytes.
        variance: Variance of `floats` over the noise.
        pairs: Number of (client, class) pairs with images, if images are sent.
    """

    floats: float
    num_bytes: float
    variance: float = 0.0
    pairs: float | None = None

    @classmethod
    def of_images(
        cls,
        numbers: ClassTable,
        chances: npt.NDArray[np.float64],
        *,
        floats: int,
        num_bytes: float,
        client_bytes: int,
    ) -> UploadSize:
        """Returns the size of labelled images.

        Args:
            numbers: Images that each client sends of each class, if it sends any.
            chances: How likely it is to send any.
            floats: Numbers per image.
            num_bytes: Bytes per image, with its label.
            client_bytes: Bytes that a client sends once, whatever the number of its images.
        """
        images = float((chances * numbers).sum())
        return cls(
            floats=images * floats,
            num_bytes=images * num_bytes + len(numbers) * client_bytes,
            variance=float((chances * (1 - chances) * numbers**2).sum()) * floats**2,
            pairs=float(chances.sum()),
        )


def chances(table: ClassTable, least: int, noise: float) -> npt.NDArray[np.float64]:
    """Returns how likely class sizes are to be at least `least`, with Gaussian noise on them.

    >>> chances(np.array([[9, 10]]), 10, 0.0)
    array([[0., 1.]])
    >>> chances(np.array([[0, 10]]), 10, 10.0).round(4)  # one deviation too few, and none
    array([[0.1587, 0.5   ]])
    """
    if not noise:
        return (table >= least).astype(np.float64)
    normal = statistics.NormalDist()
    return np.array([[normal.cdf((size - least) / noise) for size in row] for row in table])
