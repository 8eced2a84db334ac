"""A second device for machines that have none: it refuses what a GPU would refuse.

A tensor there says that it is not on the CPU, and whatever mixes it with one that is fails, as
it would with a GPU. The numbers are real, so that they can be compared with those of the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

# A name that torch knows on every machine, and asks for no driver of.
ELSEWHERE = torch.device("meta")
CPU = torch.device("cpu")

# What a GPU does with tensors of both kinds: copying, and indexing by numbers on the CPU.
_COPIES = {torch.ops.aten.copy_.default}
_INDEXES = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}


class Far(Tensor):
    """A tensor on the other device."""

    here: Tensor  # its numbers

    @staticmethod
    def __new__(cls, here: Tensor) -> Far:
        far: Far = Tensor._make_wrapper_subclass(
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=ELSEWHERE,
        )
        far.here = here
        return far

    # torch calls these as class methods, and types them otherwise.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _computed(func, args, kwargs or {})


class Elsewhere(TorchDispatchMode):
    """While it is entered, tensors can be made on the other device, and moved there."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    _check_devices(func, tensors)
    device = kwargs.get("device")
    if device is None:
        far = any(isinstance(tensor, Far) for tensor in tensors)
    else:
        far = device == ELSEWHERE
        kwargs = {**kwargs, "device": CPU}
    if far and kwargs.get("generator") is not None:
        raise RuntimeError(f"{func} elsewhere cannot draw from a generator of the CPU")
    args, kwargs = tree_map_only(Far, lambda tensor: tensor.here, (args, kwargs))
    result = func(*args, **kwargs)
    if func._schema.is_mutable:
        return tensors[0]
    return tree_map_only(Tensor, Far, result) if far else result


def _check_devices(func: Any, tensors: list[Tensor]) -> None:
    """Raises an error if the operation mixes devices as a GPU does not."""
    if func in _COPIES or (func in _INDEXES and isinstance(tensors[0], Far)):
        return
    # A single number on the CPU can be combined with anything, but nothing can be added to it.
    written = tensors[:1] if func._schema.is_mutable else []
    bound = [tensor for tensor in tensors if isinstance(tensor, Far) or tensor.dim()]
    if len({tensor.device for tensor in written + bound}) > 1:
        raise RuntimeError(f"{func} got tensors on the CPU and elsewhere")
