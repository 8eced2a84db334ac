"""Random generators derived from (seed, purpose, round, client).

Every random draw of a run comes from a generator for its purpose, so results do not depend on
the engine, the order of clients or where a run was interrupted.

Use these generators for simulation only. torch's CPU generator keeps only 32 bits of its seed,
so never draw privacy noise from them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derived_seed(seed: int, purpose: str, round_: int = 0, client: int = 0) -> int:
    """Returns 63 bits that depend on every argument.

    >>> derived_seed(0, "start") == derived_seed(0, "start")
    True
    >>> derived_seed(0, "start", round_=1) == derived_seed(0, "start", client=1)
    False
    """
    name = f"{seed}\x1f{purpose}\x1f{round_}\x1f{client}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "little") >> 1


def generator(seed: int, purpose: str, round_: int = 0, client: int = 0) -> torch.Generator:
    """Returns the torch generator for one purpose, round and client.

    You can rerun a round, or resume a run, without replaying the rounds before it.
    """
    import torch

    return torch.Generator().manual_seed(derived_seed(seed, purpose, round_, client))


def numpy_generator(seed: int, purpose: str) -> np.random.Generator:
    """Returns the numpy generator for one purpose, for draws that do not need torch."""
    return np.random.default_rng(derived_seed(seed, purpose))
