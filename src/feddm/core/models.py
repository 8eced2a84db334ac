"""Models as pure functions of named parameters.

A model is a frozen description that takes its parameters as an argument. One object therefore
serves the server, every client and every network that FedDM samples, and you can pickle, print
and compare it.

Every model here follows two rules: one call returns both the embedding and the logits, and the
output for an image does not depend on the rest of the batch. Batch norm breaks the second rule,
and with it the meaning of a class mean and every privacy guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.core.tensors import Tensors

Norm = Literal["instance", "group"]

# Images per pass. The activations of more would not fit in the cache, and passes would wait for
# memory.
CHUNK = 32


class Outputs(NamedTuple):
    """Outputs of a model for a batch: ``h_w(x)`` and ``z_w(x)`` in the paper."""

    embedding: Tensor  # (n, features), the input of the last layer
    logits: Tensor  # (n, classes)


class Model(Protocol):
    """A family of functions from images to outputs, indexed by parameters."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the input images."""

    @property
    def num_classes(self) -> int:
        """Number of classes, and of logits."""

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        """Returns new random parameters."""

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        """Returns the embeddings and logits of a batch of images."""


@dataclass(frozen=True)
class Around:
    """Wraps another model, with the same parameters; subclasses define the outputs."""

    model: Model

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.model.shape

    @property
    def num_classes(self) -> int:
        return self.model.num_classes

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        return self.model.init(rng)


@dataclass(frozen=True)
class ConvNet:
    """The ConvNet of the dataset-condensation papers.

    Blocks of 3x3 convolution, normalization, ReLU and 2x2 average pooling, then one linear
    layer. Images are zero-padded to a multiple of ``2^depth``: 28x28 becomes 32x32.
    """

    shape: tuple[int, int, int]
    num_classes: int
    width: int = 128
    depth: int = 3
    norm: Norm = "instance"

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        channels, *size = self.shape
        params: dict[str, Tensor] = {}
        for block in range(self.depth):
            params |= _affine(f"conv{block}", (self.width, channels, 3, 3), rng)
            params |= _scale_and_shift(f"norm{block}", self.width)
            channels = self.width
        height, width = (_padded(side, 2**self.depth) // 2**self.depth for side in size)
        return params | _affine("linear", (self.num_classes, channels * height * width), rng)

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        x = _pad(x, 2**self.depth)
        for block in range(self.depth):
            weight, bias = params[f"conv{block}.weight"], params[f"conv{block}.bias"]
            x = F.conv2d(x, weight, bias, padding=1)
            x = F.relu(_normalize(x, params, f"norm{block}", self.norm))
            x = F.avg_pool2d(x, 2)
        embedding = x.flatten(1)
        return Outputs(
            embedding, F.linear(embedding, params["linear.weight"], params["linear.bias"])
        )


@dataclass(frozen=True)
class MLP:
    """A multilayer perceptron, for vectors: linear layers with ReLU, then the last one."""

    shape: tuple[int, int, int]
    num_classes: int
    width: int = 128
    depth: int = 3

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        features = math.prod(self.shape)
        params: dict[str, Tensor] = {}
        for layer in range(self.depth):
            params |= _affine(f"layer{layer}", (self.width, features), rng)
            features = self.width
        return params | _affine("linear", (self.num_classes, features), rng)

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        x = x.flatten(1)
        for layer in range(self.depth):
            x = F.relu(
                F.linear(x, params[f"layer{layer}.weight"], params[f"layer{layer}.bias"])
            )
        return Outputs(x, F.linear(x, params["linear.weight"], params["linear.bias"]))


@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 for small images: the first convolution is 3x3, without pooling after it.

    He et al. Deep Residual Learning for Image Recognition. CVPR 2016. Batch norm is replaced;
    the module docstring says why.
    """

    shape: tuple[int, int, int]
    num_classes: int
    norm: Norm = "group"

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        params = _convolution("conv", (64, self.shape[0], 3, 3), rng) | _scale_and_shift(
            "norm", 64
        )
        for name, c_in, c_out, stride in self._blocks():
            params |= _convolution(f"{name}.conv1", (c_out, c_in, 3, 3), rng)
            params |= _scale_and_shift(f"{name}.norm1", c_out)
            params |= _convolution(f"{name}.conv2", (c_out, c_out, 3, 3), rng)
            params |= _scale_and_shift(f"{name}.norm2", c_out)
            if stride != 1 or c_in != c_out:
                params |= _convolution(f"{name}.conv3", (c_out, c_in, 1, 1), rng)
                params |= _scale_and_shift(f"{name}.norm3", c_out)
        return params | _affine("linear", (self.num_classes, 512), rng)

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        # Leaves at least 2x2 after three strides of 2: instance norm needs more than a pixel.
        x = _pad(x, 8, least=16)
        x = F.relu(self._conv_norm(params, "conv", "norm", x))
        for name, c_in, c_out, stride in self._blocks():
            y = F.relu(self._conv_norm(params, f"{name}.conv1", f"{name}.norm1", x, stride))
            y = self._conv_norm(params, f"{name}.conv2", f"{name}.norm2", y)
            if stride != 1 or c_in != c_out:
                x = self._conv_norm(params, f"{name}.conv3", f"{name}.norm3", x, stride)
            x = F.relu(x + y)
        embedding = x.mean((2, 3))
        return Outputs(
            embedding, F.linear(embedding, params["linear.weight"], params["linear.bias"])
        )

    @staticmethod
    def _blocks() -> Iterator[tuple[str, int, int, int]]:
        """Yields the name, input channels, output channels and stride of the eight blocks."""
        c_in = 64
        for stage, c_out in enumerate((64, 128, 256, 512)):
            for block in range(2):
                yield f"stage{stage}.{block}", c_in, c_out, 2 if stage and not block else 1
                c_in = c_out

    def _conv_norm(
        self, params: Tensors, conv: str, norm: str, x: Tensor, stride: int = 1
    ) -> Tensor:
        weight = params[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        return _normalize(x, params, norm, self.norm)


def chunks(batch: Tensor) -> tuple[Tensor, ...]:
    """Splits a batch into the fewest nearly equal parts of at most `CHUNK`.

    >>> [len(part) for part in chunks(torch.zeros(65))]
    [22, 22, 21]
    """
    return batch.tensor_split(math.ceil(len(batch) / CHUNK)) if len(batch) else ()


def num_params(params: Tensors) -> int:
    """Returns the number of parameters."""
    return sum(tensor.numel() for tensor in params.values())


def num_features(model: Model) -> int:
    """Returns the dimension of an embedding."""
    with torch.no_grad():
        outputs = model(model.init(torch.Generator()), torch.zeros(1, *model.shape))
    return outputs.embedding.shape[1]


def _uniform(shape: tuple[int, ...], bound: float, rng: torch.Generator) -> Tensor:
    return torch.empty(shape).uniform_(-bound, bound, generator=rng)


def _convolution(name: str, shape: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    # torch's default: uniform within 1/sqrt(fan in), for both weights and biases.
    return {f"{name}.weight": _uniform(shape, 1 / math.sqrt(math.prod(shape[1:])), rng)}


def _affine(name: str, shape: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    weight = _convolution(name, shape, rng)
    return weight | {
        f"{name}.bias": _uniform(shape[:1], 1 / math.sqrt(math.prod(shape[1:])), rng)
    }


def _scale_and_shift(name: str, channels: int) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.ones(channels), f"{name}.bias": torch.zeros(channels)}


def _normalize(x: Tensor, params: Tensors, name: str, norm: Norm) -> Tensor:
    channels = int(x.shape[1])  # a number, also where torch traces what is computed
    # Instance norm is group norm with one channel per group, which is faster on the CPU.
    groups = channels if norm == "instance" else math.gcd(32, channels)
    return F.group_norm(x, groups, params[f"{name}.weight"], params[f"{name}.bias"])


def _padded(side: int, multiple: int, least: int = 0) -> int:
    return max(math.ceil(side / multiple) * multiple, least)


def _pad(x: Tensor, multiple: int, least: int = 0) -> Tensor:
    height, width = (_padded(side, multiple, least) - side for side in x.shape[2:])
    if not height and not width:
        return x
    return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
