"""Where and how fast a model runs: device, compilation and precision.

The device and the compiler change only the last bits of the results; lower precision changes
more. `Accelerated` is itself a model, so the rest of the package does not need to know whether
a model is compiled.
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
    """A model that is compiled or runs at lower precision; its outputs are float32.

    Args:
        model: The model to accelerate.
        compiled: Whether to compile it for this machine with torch.compile.
        precision: Type of the matrix products; only ``float32`` leaves them unchanged.
    """

    compiled: bool = False
    precision: Precision = "float32"

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        call: Callable[[Tensors, Tensor], Outputs] = self.model
        if self.compiled and len(x) > 1:  # torch always compiles a batch of 1 separately
            torch._dynamo.mark_dynamic(x, 0)
            call = _compiled(cast(Hashable, self.model))
        if self.precision == "float32":
            return call(params, x)
        with torch.autocast(x.device.type, getattr(torch, self.precision)):
            outputs = call(params, x)
        return Outputs(*(output.float() for output in outputs))


@functools.cache
def _compiled(model: Hashable) -> Callable[[Tensors, Tensor], Outputs]:
    # How many compiled versions torch keeps per function: each model in a process needs a few.
    # Set here, not at import, because torch's compiler takes more than a second to import.
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(cast(Model, model).__call__)


def accelerated(model: Model, compiled: bool, precision: Precision) -> Model:
    """Returns the accelerated model, or the model itself if there is nothing to do."""
    if not compiled and precision == "float32":
        return model
    return Accelerated(model, compiled, precision)


@functools.cache
def compiler_problem(device: torch.device = CPU) -> str | None:
    """Tries to compile a function; returns the problem, or ``None`` if it works.

    The first call on a machine takes some seconds; torch caches what it compiled.
    """
    try:
        with _silenced():
            torch.compile(lambda x: (x * x).sum())(torch.ones(3, 5, device=device))
    except Exception as error:  # from a compiler, a linker, a full disk and so on
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return lines[0][:200]
    return None


def find_device(wanted: str) -> torch.device:
    """Returns the requested device; ``auto`` is a GPU if there is one."""
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": _has_mps()}
    if wanted == "auto":
        wanted = next(name for name in ("cuda", "mps", "cpu") if present[name])
    if not present[wanted]:
        raise ConfigError(
            f"runtime.device is {wanted}, but torch finds no such device; use auto or cpu"
        )
    # Otherwise some GPUs compute float32 convolutions with 10-bit mantissas.
    torch.backends.cudnn.allow_tf32 = False
    return torch.device(wanted)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raises `ConfigError` if the device does not support the precision."""
    if precision == "float16" and device.type == "cpu":
        raise ConfigError("runtime.precision float16 needs a GPU; use bfloat16 on a CPU")


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Mutes the log of torch's compiler; we report a failure in one line."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
