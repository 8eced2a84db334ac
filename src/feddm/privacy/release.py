"""The only way anything that depends on examples leaves a private client.

`release` is the whole transaction. It makes the upload under `Noise`, which records what was
released, then stores it, pays for it, lists it, and only then returns it.
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

# Upper limit of the noise multiplier; beyond it, noise has gaps between whole numbers.
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
    """Returns what leaves a client in a round, and the epsilon spent after it.

    The text of an unexpected error may be about examples. It stays in the client's own log.

    Args:
        make: Computes the upload and the memory under the noise it is given.
        planned: What it releases, known beforehand.
        context: Returns a digest of everything that decides the upload, except the noise.
        vault: The client's secret, ledger and last upload.
        client: Number of the client.
        round_: Number of the round.
    """
    try:
        return _release(make, planned, context(), vault, round_)
    except (BudgetError, LedgerError):
        raise  # about earlier releases, never about examples
    except Exception:
        trace = traceback.format_exc()
    # Outside the handler, because the new error would carry the old one along.
    vault.log_error(trace)
    raise EngineError(f"client {client} failed; {vault.errors} says why")


def _release(
    make: Make, planned: tuple[Event, ...], context: bytes, vault: Vault, round_: int
) -> tuple[Sent, float]:
    """Returns the stored upload of this very context, or makes a new one.

    The upload is stored, paid for, listed and then returned, so that a crash anywhere in
    between costs neither more nor less. An upload that is no longer stored is made again under
    new noise and paid for again. Reusing the noise would be cheaper, but would reveal whatever
    another machine or version rounds differently. The cost is what was planned, so that it does
    not depend on the examples.
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
            raise ValueError(f"released {noise.released}, not {planned}")
        sent = Sent(name, upload, memory)
        vault.keep(context, sent)
    entry = vault.entry(round_, sent.release, planned)
    vault.spend(entry)
    vault.list_upload(entry, sent)
    return sent, vault.epsilon()


class Noise:
    """A client's noise of one round, which also keeps what was released under it.

    Whoever adds noise through this object cannot forget to account for it, and cannot use the
    same noise for two sums.

    Args:
        secret: Of the client.
        round_: Number of the round.
        context: Digest of a number that never comes again, and of all that decides the sums:
            what was downloaded, the settings, and the examples themselves. With another one of
            these, the noise is another.
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
        """What left under noise so far."""
        return (*self._unprotected, *self._released.values())

    def sample(self, number: int, num: int, rate: float) -> Tensor:
        """Returns which of `num` examples the sum of this number is over.

        Each is in the sample by itself with probability `rate`. A sum whose sample was not
        drawn here is over all examples.
        """
        if number in self._rates or number in self._released:
            raise ValueError(f"the sample of sum {number} was drawn already")
        self._rates[number] = rate
        return poisson_sample(self._secret, self._label("sample", number), num, rate)

    def added(self, number: int, total: Tensor, bound: float, multiplier: float) -> Tensor:
        """Returns a sum with noise of ``multiplier * bound`` deviations on each of its numbers.

        Args:
            number: Of the sum in this round; every sum has one of its own.
            total: The sum in whole numbers, as `clipping.whole` makes them.
            bound: The most that one unit of privacy can change it, in Euclidean length.
            multiplier: Deviations of the noise over the bound.
        """
        if number in self._released:
            raise ValueError(f"sum {number} was released already")
        event = Released(1, multiplier, self._rates.get(number, 1.0))
        if total.dtype != torch.int64:
            raise ValueError("a sum must be in whole numbers, because others are not exact")
        if multiplier > _MOST_NOISE:
            raise ValueError(f"noise must be at most {_MOST_NOISE}, got {multiplier}")
        noise = gaussian(self._secret, self._label("sum", number), total.shape)
        noise.mul_(multiplier * GRID).round_()
        self._released[number] = event
        return real(total + noise.long().to(total.device), bound)

    def unprotected(self, number: int, shape: Sequence[int], what: str) -> Tensor:
        """Returns noise for a release that it does not protect, which then has no guarantee."""
        self._unprotected = (Unprotected(what),)
        return gaussian(self._secret, self._label("unprotected", number), shape)

    def _label(self, purpose: str, number: int) -> Label:
        return Label(purpose, self._round, number, self._context)


def needed(noise: Noise | None) -> Noise:
    """Returns the noise of a client that cannot do without."""
    if noise is None:
        raise ValueError("private clients need noise")
    return noise
