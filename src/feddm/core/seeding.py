"""Generators from (seed, purpose, round, client).

Every random draw of a run comes from a generator that is named by what it is for, so that
results do not depend on the engine, on the order of clients or on where a run was interrupted.

These generators are for simulation only. torch's CPU generator keeps 32 bits of its seed, so
nothing that protects privacy may come from here.
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
    """Returns torch's generator of one purpose, round and client.

    A round can be rerun, or a run resumed, without replaying the rounds before it.
    """
    import torch

    return torch.Generator().manual_seed(derived_seed(seed, purpose, round_, client))


def numpy_generator(seed: int, purpose: str) -> np.random.Generator:
    """Returns numpy's generator of one purpose, for what is drawn before torch is needed."""
    return np.random.default_rng(derived_seed(seed, purpose))
