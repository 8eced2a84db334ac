"""Where and how fast a model is computed: the device, a compiler, a shorter float.

Device and compiler change only the last bits of what is computed, a shorter float more.
`Accelerated` is itself a model, so nothing else in the package knows whether it runs a compiled
one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from feddm.core.models import Around, Model, Outputs
from feddm.core.tensors import CPU, Tensors
from feddm.errors import ConfigError

Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Accelerated(Around):
    """A model that is compiled, or computed in a shorter float; its outputs are float32.

    Args:
        model: What is computed.
        compiled: Whether torch.compile turns it into code of its own for this machine.
        precision: Type of the matrix products; ``float32`` is the only exact one.
    """

    compiled: bool = False
    precision: Precision = "float32"

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        call: Callable[[Tensors, Tensor], Outputs] = self.model
        if self.compiled and len(x) > 1:  # torch compiles 1 apart from all other numbers
            torch._dynamo.mark_dynamic(x, 0)
            call = _compiled(cast(Hashable, self.model))
        if self.precision == "float32":
            return call(params, x)
        with torch.autocast(x.device.type, getattr(torch, self.precision)):
            outputs = call(params, x)
        return Outputs(*(output.float() for output in outputs))


@functools.cache
def _compiled(model: Hashable) -> Callable[[Tensors, Tensor], Outputs]:
    # Programs that torch keeps for one function: every model of a process has a few of them.
    # Set here and not above, because torch's compiler takes more than a second to import.
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(cast(Model, model).__call__)


def accelerated(model: Model, compiled: bool, precision: Precision) -> Model:
    """Returns the model itself if there is nothing to accelerate."""
    if not compiled and precision == "float32":
        return model
    return Accelerated(model, compiled, precision)


@functools.cache
def compiler_problem(device: torch.device = CPU) -> str | None:
    """Returns why nothing can be compiled here, or ``None`` if it can: it tries.

    The first time on a machine this takes some seconds; torch keeps what it compiled.
    """
    try:
        with _silenced():
            torch.compile(lambda x: (x * x).sum())(torch.ones(3, 5, device=device))
    except Exception as error:  # whatever a compiler, a linker or a full disk may do
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return lines[0][:200]
    return None


def find_device(wanted: str) -> torch.device:
    """Returns the device that is asked for; ``auto`` takes a GPU if there is one."""
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": _has_mps()}
    if wanted == "auto":
        wanted = next(name for name in ("cuda", "mps", "cpu") if present[name])
    if not present[wanted]:
        raise ConfigError(f"runtime.device is {wanted}, but torch finds no such device here")
    # Else convolutions on some GPUs would be computed with ten bits, float32 or not.
    torch.backends.cudnn.allow_tf32 = False
    return torch.device(wanted)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raises `ConfigError` if the device cannot compute in that type."""
    if precision == "float16" and device.type == "cpu":
        raise ConfigError("runtime.precision float16 needs a GPU; a CPU can take bfloat16")


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Keeps what torch's compiler says about a failure off the screen: we say it in a line."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
