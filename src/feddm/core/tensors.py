"""Arithmetic on named tensors, and their form as bytes.

One type travels: server state, downloads, uploads, client memory and checkpoints are all
`Records`, so one function counts them and one pair of functions writes and reads them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from feddm.errors import DataError

Tensors = Mapping[str, Tensor]  # parameter name -> tensor
Records = Mapping[str, Tensors]  # "params", "control", "examples" -> tensors

CPU = torch.device("cpu")


def zip_map(function: Callable[..., Tensor], *trees: Tensors) -> dict[str, Tensor]:
    """Returns ``{name: function(first[name], second[name], ...)}``.

    >>> a, b = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([10.0, 20.0])}
    >>> zip_map(torch.add, a, b)
    {'w': tensor([11., 22.])}
    """
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def weighted_mean(pairs: Iterable[tuple[Records, float]]) -> dict[str, dict[str, Tensor]]:
    """Returns ``sum_i w_i r_i / sum_i w_i``, in the memory of one sum.

    >>> one, four = ({"params": {"w": torch.tensor(value)}} for value in (1.0, 4.0))
    >>> weighted_mean([(one, 1), (four, 2)])
    {'params': {'w': tensor(3.)}}
    """
    total: dict[str, dict[str, Tensor]] = {}
    weights = 0.0
    for records, weight in pairs:
        for record, tensors in records.items():
            # Added up in double precision, so that many clients lose nothing.
            scaled = {name: tensor.double() * weight for name, tensor in tensors.items()}
            before = total.get(record)
            total[record] = scaled if before is None else zip_map(Tensor.add_, before, scaled)
        weights += weight
    if not weights > 0:
        raise ValueError("a mean needs weights that sum to more than 0")
    return {
        r: zip_map(lambda t: (t / weights).float(), tensors) for r, tensors in total.items()
    }


def norm(tensors: Tensors) -> float:
    """Returns the Euclidean length of all tensors taken as one vector.

    >>> norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])})
    5.0
    """
    # By name, because float addition depends on order, and files do not keep that of a mapping.
    return math.hypot(
        *(float(torch.linalg.vector_norm(tensors[name])) for name in sorted(tensors))
    )


def leaves(records: Records) -> Iterator[Tensor]:
    """Yields every tensor of the records."""
    for tensors in records.values():
        yield from tensors.values()


def moved(records: Records, device: torch.device) -> dict[str, dict[str, Tensor]]:
    """Returns the records in the memory of a device; what is there already is not copied."""
    return {
        record: {name: tensor.to(device) for name, tensor in tensors.items()}
        for record, tensors in records.items()
    }


def num_floats(records: Records) -> int:
    """Returns how many floating-point numbers the records hold; labels are integers.

    >>> examples = {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.uint8)}
    >>> num_floats({"examples": examples})
    6
    """
    return sum(t.numel() for t in leaves(records) if t.is_floating_point())


def num_bytes(records: Records) -> int:
    """Returns how many bytes the tensors hold, before anybody adds framing.

    >>> examples = {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.uint8)}
    >>> num_bytes({"examples": examples})
    26
    """
    return sum(t.numel() * t.element_size() for t in leaves(records))


def to_bytes(records: Records) -> bytes:
    """Returns the records in the safetensors format.

    A tensor is named ``record/name``; the name of a record has no slash, that of a tensor may.
    """
    flat = {}
    for record, tensors in records.items():
        if "/" in record:
            raise ValueError(f"the name of a record has no slash, got {record!r}")
        for name, tensor in tensors.items():
            # A copy of its own for each: safetensors refuses tensors that share storage.
            flat[f"{record}/{name}"] = tensor.detach().contiguous().clone()
    return safetensors.torch.save(flat)


def from_bytes(data: bytes) -> dict[str, dict[str, Tensor]]:
    """Returns the records that `to_bytes` wrote; nothing in them is executed.

    >>> records = {"params": {"block/weight": torch.ones(2)}}
    >>> from_bytes(to_bytes(records))
    {'params': {'block/weight': tensor([1., 1.])}}
    """
    records: dict[str, dict[str, Tensor]] = {}
    for key, tensor in sorted(safetensors.torch.load(data).items()):
        record, _, name = key.partition("/")
        records.setdefault(record, {})[name] = tensor
    return records


def described(what: str, tensors: Tensors, about: Mapping[str, Any]) -> bytes:
    """Returns the content of a safetensors file that says what is in it.

    The description is one JSON text under the key ``feddm``: of several keys the format does
    not keep the order, and equal tensors would not make equal files.
    """
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"what": what, "version": 1, **about}, sort_keys=True)
    return safetensors.torch.save(contiguous, {"feddm": text})


def read_described(path: str | Path, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns tensors and description of a file of that kind which `described` made."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("feddm", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(about, dict) or (about.get("what"), about.get("version")) != (what, 1):
        raise DataError(f"{path} is not a {what} of feddm")
    return tensors, about
