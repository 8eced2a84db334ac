"""Arithmetic on named tensors, and their serialization.

Server state, downloads, uploads, client memory and checkpoints are all `Records`, so one
function measures them and one pair of functions writes and reads them.
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
    """Returns ``sum_i w_i r_i / sum_i w_i``; keeps only the running sum in memory.

    >>> one, four = ({"params": {"w": torch.tensor(value)}} for value in (1.0, 4.0))
    >>> weighted_mean([(one, 1), (four, 2)])
    {'params': {'w': tensor(3.)}}
    """
    total: dict[str, dict[str, Tensor]] = {}
    weights = 0.0
    for records, weight in pairs:
        for record, tensors in records.items():
            # Summed in double precision, so that many clients lose no accuracy.
            scaled = {name: tensor.double() * weight for name, tensor in tensors.items()}
            before = total.get(record)
            total[record] = scaled if before is None else zip_map(Tensor.add_, before, scaled)
        weights += weight
    if not weights > 0:
        raise ValueError(f"the weights of a mean must sum to more than 0, got {weights:g}")
    return {
        r: zip_map(lambda t: (t / weights).float(), tensors) for r, tensors in total.items()
    }


def norm(tensors: Tensors) -> float:
    """Returns the Euclidean norm of all tensors concatenated.

    >>> norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])})
    5.0
    """
    # Sorted: float addition depends on order, and files do not keep the order of a mapping.
    return math.hypot(
        *(float(torch.linalg.vector_norm(tensors[name])) for name in sorted(tensors))
    )


def leaves(records: Records) -> Iterator[Tensor]:
    """Yields every tensor in the records."""
    for tensors in records.values():
        yield from tensors.values()


def moved(records: Records, device: torch.device) -> dict[str, dict[str, Tensor]]:
    """Returns the records on a device; tensors already there are not copied."""
    return {
        record: {name: tensor.to(device) for name, tensor in tensors.items()}
        for record, tensors in records.items()
    }


def num_floats(records: Records) -> int:
    """Returns the number of floating-point values in the records; labels are integers.

    >>> examples = {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.uint8)}
    >>> num_floats({"examples": examples})
    6
    """
    return sum(t.numel() for t in leaves(records) if t.is_floating_point())


def num_bytes(records: Records) -> int:
    """Returns the size of the tensors in bytes, without any framing.

    >>> examples = {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.uint8)}
    >>> num_bytes({"examples": examples})
    26
    """
    return sum(t.numel() * t.element_size() for t in leaves(records))


def to_bytes(records: Records) -> bytes:
    """Returns the records in the safetensors format.

    Tensors are named ``record/name``. A tensor name may contain slashes, a record name may not.
    """
    flat = {}
    for record, tensors in records.items():
        if "/" in record:
            raise ValueError(f"a record name must not contain a slash, got {record!r}")
        for name, tensor in tensors.items():
            # Copied, because safetensors rejects tensors that share storage.
            flat[f"{record}/{name}"] = tensor.detach().contiguous().clone()
    return safetensors.torch.save(flat)


def from_bytes(data: bytes) -> dict[str, dict[str, Tensor]]:
    """Returns the records that `to_bytes` wrote, without executing anything in them.

    >>> records = {"params": {"block/weight": torch.ones(2)}}
    >>> from_bytes(to_bytes(records))
    {'params': {'block/weight': tensor([1., 1.])}}
    """
    records: dict[str, dict[str, Tensor]] = {}
    for key, tensor in sorted(safetensors.torch.load(data).items()):
        record, _, name = key.partition("/")
        records.setdefault(record, {})[name] = tensor
    return records


def file_content(what: str, tensors: Tensors, about: Mapping[str, Any]) -> bytes:
    """Returns the content of a safetensors file with a description of its kind, `what`.

    The description is one JSON text under the key ``feddm``. With several keys, whose order the
    format does not preserve, equal tensors could produce different files.
    """
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"what": what, "version": 1, **about}, sort_keys=True)
    return safetensors.torch.save(contiguous, {"feddm": text})


def read_file(path: str | Path, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the tensors and the description of a file that `file_content` made."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("feddm", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(about, dict) or (about.get("what"), about.get("version")) != (what, 1):
        raise DataError(f"{path} is not a feddm {what}")
    return tensors, about
