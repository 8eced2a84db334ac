"""A model of your own: any ``torch.nn.Module`` whose last layer is linear.

The input of that layer is the embedding, and what it returns are the logits. A module of
another kind returns the two itself: ``(embedding, logits)``.

What such a module computes for an example must not depend on the others, nor on chance, nor on
what it computed before. Batch norm is replaced by group norm, dropout is left out, and buffers
are constants; whatever else breaks this rule is refused.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from feddm.config import code
from feddm.core.models import Outputs
from feddm.core.tensors import Tensors
from feddm.errors import ConfigError

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class OwnModel:
    """A module as a function of its parameters.

    Args:
        source: The class, or a function that makes the module.
        shape: Channels, height and width of an example.
        num_classes: Number of classes, and of logits.
        digest: Of its code, so that an edited file is another model.
    """

    source: str
    shape: tuple[int, int, int]
    num_classes: int
    digest: str = ""

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        """Returns new random parameters; a module that was given has its own."""
        seed = int(torch.randint(2**62, (), generator=rng))
        module, _ = _made(self, seed)
        return {
            name: parameter.detach().clone()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        template = _template_on(self, x.device)
        x = x.flatten(1) if self.shape[1:] == (1, 1) else x
        if template.last is None:
            return Outputs(*_called(template.module, params, x))
        seen: list[Tensor] = []
        hook = template.module.get_submodule(template.last).register_forward_pre_hook(
            lambda module, inputs: seen.append(inputs[0])
        )
        try:
            logits = _called(template.module, params, x)
        finally:
            hook.remove()
        return Outputs(seen[-1], logits)

    @property
    def notices(self) -> tuple[str, ...]:
        """What was changed so that it can be used, if anything."""
        return _template(self).notices


class _Template(NamedTuple):
    """A module whose parameters do not matter, and the name of its last layer."""

    module: nn.Module
    last: str | None
    notices: tuple[str, ...]


def _called(module: nn.Module, params: Tensors, x: Tensor) -> Any:
    return torch.func.functional_call(module, dict(params), (x,))


@functools.lru_cache(maxsize=8)
def _template_on(model: OwnModel, device: torch.device) -> _Template:
    """Returns the module on a device: it has constants, if no parameters that matter."""
    template = _template(model)
    if device.type == "cpu":
        return template
    return template._replace(module=copy.deepcopy(template.module).to(device))


@functools.lru_cache(maxsize=8)
def _template(model: OwnModel) -> _Template:
    """Returns the module after checking that it can be used."""
    module, notices = _made(model, 0)
    name = code.label(model.source)
    buffers = {key: buffer.clone() for key, buffer in module.named_buffers()}
    shape = model.shape[:1] if model.shape[1:] == (1, 1) else model.shape
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    last, logits, embedding = _tried(module, name, x)
    if logits.shape != (3, model.num_classes) or embedding.dim() != 2:
        raise ConfigError(
            f"{name} must return {model.num_classes} logits for each example and an embedding "
            f"that is a vector, got {tuple(logits.shape[1:])} and {tuple(embedding.shape[1:])}"
        )
    changed = [key for key, b in module.named_buffers() if not torch.equal(b, buffers[key])]
    if changed:
        raise ConfigError(
            f"{name} changes its buffer {changed[0]} while it computes, so its outputs would "
            "depend on what it saw before"
        )
    alone = _tried(module, name, x[:1])[1]
    again = _tried(module, name, x)[1]
    if not torch.allclose(logits[:1], alone, rtol=1e-3, atol=1e-4):
        raise ConfigError(
            f"{name} mixes the examples of a batch: what it returns for one depends on others"
        )
    if not torch.equal(logits, again):
        raise ConfigError(f"{name} is random: the same example gives other outputs each time")
    return _Template(module, last, notices)


def _tried(module: nn.Module, name: str, x: Tensor) -> tuple[str | None, Tensor, Tensor]:
    """Returns the name of the last layer, the logits and the embedding of some examples."""
    linear: list[tuple[str, Tensor, Tensor]] = []

    def watch(key: str) -> Any:
        return lambda layer, inputs, output: linear.append((key, inputs[0], output))

    hooks = [
        layer.register_forward_hook(watch(key))
        for key, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        with torch.no_grad():
            result = module(x)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise ConfigError(
            f"{name} cannot compute examples of shape {tuple(x.shape[1:])}: "
            f"{type(error).__name__}: {lines[0]}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if isinstance(result, tuple | list) and len(result) == 2:
        return None, result[1], result[0]
    for key, inputs, output in reversed(linear):
        if output is result:
            return key, result, inputs
    raise ConfigError(
        f"the last layer of {name} is not linear: let it return (embedding, logits) instead"
    )


def _made(model: OwnModel, seed: int) -> tuple[nn.Module, tuple[str, ...]]:
    """Returns a new module, made with a seed, and what was changed in it."""
    found, name = code.load(model.source), code.label(model.source)
    if isinstance(found, nn.Module):
        module: Any = copy.deepcopy(found)
    else:
        offered = {
            "num_classes": model.num_classes,
            "shape": model.shape,
            "in_channels": model.shape[0],
            "in_features": math.prod(model.shape),
        }
        taken = _taken(found, offered, name)
        # Modules draw their weights from torch's global generator, which stays as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = found(**taken)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name} must make a torch.nn.Module, got {type(module).__name__}")
    notices = []
    if replaced := _without_batch_norm(module):
        notices.append(
            f"{replaced} layers of batch norm in {name} are group norm here: batch statistics "
            "mix examples"
        )
    if any(isinstance(layer, _DROPOUT) and layer.p for layer in module.modules()):
        notices.append(f"dropout in {name} is left out: outputs must not depend on chance")
    return module.eval(), tuple(notices)


def _taken(make: Any, offered: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the arguments that a class or function knows, of those that can be offered."""
    if not callable(make):
        raise ConfigError(f"{name} must be a class or function that makes a torch.nn.Module")
    parameters = inspect.signature(make).parameters.values()
    named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    needed = {
        p.name for p in parameters if p.name in named and p.default is inspect.Parameter.empty
    }
    if missing := sorted(needed - set(offered)):
        raise ConfigError(
            f"{name} needs an argument {missing[0]}; only {', '.join(offered)} are given: name "
            "a function that makes the module with all it needs"
        )
    return {key: value for key, value in offered.items() if key in named}


def _without_batch_norm(module: nn.Module) -> int:
    """Replaces batch norm by group norm with the same parameters; returns how many layers."""
    number = 0
    for key, layer in list(module.named_children()):
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if (
                type(layer) not in _BATCH_NORM
            ):  # it may do more than that, such as an activation
                raise ConfigError(
                    f"{key} is a {type(layer).__name__}, which mixes the examples of a batch; "
                    "use group norm there"
                )
            channels = layer.num_features
            groups = 1 if isinstance(layer, nn.BatchNorm1d) else math.gcd(32, channels)
            norm = nn.GroupNorm(groups, channels, layer.eps, affine=layer.affine)
            if layer.affine:
                norm.load_state_dict({k: getattr(layer, k) for k in ("weight", "bias")})
            setattr(module, key, norm)
            number += 1
        else:
            number += _without_batch_norm(layer)
    return number
