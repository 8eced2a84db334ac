"""The only way for data that depend on examples to leave a private client.

`release` is the whole transaction. It makes the upload with `Noise`, which records every
release, then stores it, pays for it, lists it, and only then returns it.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from feddm.core.tensors import Records
from feddm.errors import BudgetError, EngineError, LedgerError
from feddm.privacy.accounting import Event, Released, Unprotected, covered
from feddm.privacy.clipping import GRID, real
from feddm.privacy.noise import Label, Secret, gaussian, poisson_sample
from feddm.privacy.vault import Sent, Vault

# Largest noise multiplier; beyond it the noise skips some integers of the grid.
_MOST_NOISE = 2**17

Make = Callable[["Noise"], tuple[Records, Records]]  # returns the upload and the memory


def release(
    make: Make,
    planned: tuple[Event, ...],
    context: Callable[[], bytes],
    vault: Vault,
    *,
    client: int,
    round_: int,
) -> tuple[Sent, float]:
    """Returns a client's result of a round, and the epsilon spent after it.

    The text of an unexpected error may reveal examples, so it stays in the client's own log.

    Args:
        make: Computes the upload and the memory with the noise it is given.
        planned: The releases of `make`, known in advance.
        context: Returns a digest of everything that determines the upload, except the noise.
        vault: The client's secret, ledger and last upload.
        client: Client number.
        round_: Round number.
    """
    try:
        return _release(make, planned, context(), vault, round_)
    except (BudgetError, LedgerError):
        raise  # these describe earlier releases, never examples
    except Exception:
        trace = traceback.format_exc()
    # Raised outside the handler, so that the new error does not carry the old one as context.
    vault.log_error(trace)
    raise EngineError(f"client {client} failed; see {vault.errors}")


def _release(
    make: Make, planned: tuple[Event, ...], context: bytes, vault: Vault, round_: int
) -> tuple[Sent, float]:
    """Returns the stored result of exactly this context, or makes a new one.

    The upload is stored, paid for, listed and then returned, in this order, so a crash at any
    point does not change the cost. An upload that is no longer stored is made again with new
    noise and paid for again. Reusing the noise would be cheaper, but would reveal any rounding
    difference between two machines or versions. The cost is that of the planned releases, so
    it does not depend on the examples.
    """
    sent = vault.sent_before(context)
    paid = sent is not None and any(e.release == sent.release for e in vault.entries())
    if not paid:
        vault.agree(planned)
    if sent is None:
        name = hashlib.sha256(context + vault.secret.nonce()).digest()
        noise = Noise(vault.secret, round_, name)
        upload, memory = make(noise)
        if not covered(noise.released, planned):
            raise ValueError(f"released {noise.released}, but planned {planned}")
        sent = Sent(name, upload, memory)
        vault.keep(context, sent)
    entry = vault.entry(round_, sent.release, planned)
    vault.spend(entry)
    vault.list_upload(entry, sent)
    return sent, vault.epsilon()


class Noise:
    """A client's noise in one round, which also records what is released with it.

    Code that adds noise through this object cannot forget to account for it, and cannot use
    the same noise for two sums.

    Args:
        secret: The client's secret.
        round_: Round number.
        context: Digest of a nonce and of everything that determines the sums: the download, the
            settings and the examples themselves. If any of these changes, so does the noise.
    """

    def __init__(self, secret: Secret, round_: int, context: bytes) -> None:
        self._secret = secret
        self._round = round_
        self._context = context
        self._rates: dict[int, float] = {}
        self._released: dict[int, Released] = {}
        self._unprotected: tuple[Unprotected, ...] = ()

    @property
    def released(self) -> tuple[Event, ...]:
        """The releases so far."""
        return (*self._unprotected, *self._released.values())

    def sample(self, number: int, num: int, rate: float) -> Tensor:
        """Returns the sample for sum `number`: indices below `num`.

        Each index is included independently with probability `rate`. A sum without a sample is
        accounted for as a sum over all examples.
        """
        if number in self._rates or number in self._released:
            raise ValueError(f"the sample of sum {number} was already drawn")
        self._rates[number] = rate
        return poisson_sample(self._secret, self._label("sample", number), num, rate)

    def added(self, number: int, total: Tensor, bound: float, multiplier: float) -> Tensor:
        """Returns a sum plus Gaussian noise with standard deviation ``multiplier * bound``.

        Args:
            number: Unique number of the sum in this round.
            total: The sum as integers, from `clipping.whole`.
            bound: L2 sensitivity: the most that one unit of privacy can change the sum.
            multiplier: Noise multiplier.
        """
        if number in self._released:
            raise ValueError(f"sum {number} was already released")
        event = Released(1, multiplier, self._rates.get(number, 1.0))
        if total.dtype != torch.int64:
            raise ValueError(f"a sum must be int64, to be exact, got {total.dtype}")
        if multiplier > _MOST_NOISE:
            raise ValueError(f"multiplier must be at most {_MOST_NOISE}, got {multiplier}")
        noise = gaussian(self._secret, self._label("sum", number), total.shape)
        noise.mul_(multiplier * GRID).round_()
        self._released[number] = event
        return real(total + noise.long().to(total.device), bound)

    def unprotected(self, number: int, shape: Sequence[int], what: str) -> Tensor:
        """Returns noise for a release without a guarantee, and records it as unprotected."""
        self._unprotected = (Unprotected(what),)
        return gaussian(self._secret, self._label("unprotected", number), shape)

    def _label(self, purpose: str, number: int) -> Label:
        return Label(purpose, self._round, number, self._context)


def needed(noise: Noise | None) -> Noise:
    """Returns the noise; raises `ValueError` if there is none."""
    if noise is None:
        raise ValueError("a private client needs noise, got None")
    return noise
