"""What an engine is: it runs one round's clients somewhere and yields their replies."""

from __future__ import annotations

import contextlib
import hashlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from feddm.algorithms.base import Algorithm, LocalResult
from feddm.core.examples import Examples
from feddm.core.seeding import generator
from feddm.core.tensors import CPU, Records, moved
from feddm.core.training import Tick
from feddm.errors import BudgetError, EngineError, LedgerError
from feddm.privacy.accounting import Event, covered
from feddm.privacy.noise import digest
from feddm.privacy.release import Noise
from feddm.privacy.vault import Sent, Vault


@dataclass(frozen=True)
class Task:
    """One client's work of one round; all randomness in it comes from the three numbers."""

    client: int
    round: int
    seed: int
    download: Records


@dataclass(frozen=True)
class Reply:
    """What came back from one client."""

    client: int
    upload: Records
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class Loss:
    """A client from which nothing came back, and why."""

    client: int
    reason: str


ClientTick = Callable[[int, float], None]  # client, fraction of its work that is done


class Engine(Protocol):
    """Runs tasks anywhere and yields the replies as they arrive, in any order.

    For every task comes one reply, or one loss: an engine does not wait for ever.

    What a client wants to remember is kept on its side, and only once its upload was accepted:
    after `run` it is pending, and `commit` makes it the memory of the next round.
    """

    def run(self, tasks: Iterable[Task], tick: ClientTick) -> Iterator[Reply | Loss]: ...

    def commit(self, clients: Iterable[int]) -> None: ...


def perform(
    algorithm: Algorithm,
    task: Task,
    data: Examples,
    memory: Records,
    tick: Tick,
    device: torch.device = CPU,
    vault: Vault | None = None,
) -> tuple[LocalResult, float]:
    """Does a client's work on one thread, and returns the result with the seconds it took.

    One thread, because the order of float additions depends on their number: so a client gives
    the same bits wherever it runs. What comes back is in the memory of the CPU.

    With a vault the work is private: all that comes back is what was released, and what it
    cost. Neither the time that it took nor the text of an error is told.
    """
    rng = generator(task.seed, "client", task.round, task.client)

    def work(noise: Noise | None) -> LocalResult:
        result = algorithm.local(
            moved(task.download, device),
            data.to(device),
            moved(memory, device),
            rng,
            tick,
            noise,
        )
        return LocalResult(
            moved(result.upload, CPU),
            moved(result.memory, CPU),
            result.metrics,
        )

    with threads(1):
        begin = time.perf_counter()
        if vault is None:
            return work(None), time.perf_counter() - begin

        def context() -> bytes:
            return context_of(vault.terms.run, algorithm, task, data, memory)

        return protected(work, algorithm.planned, task, context, vault), 0.0


def protected(
    work: Callable[[Noise], LocalResult],
    planned: tuple[Event, ...],
    task: Task,
    context: Callable[[], bytes],
    vault: Vault,
) -> LocalResult:
    """Does private work; an error is told without its text, which may be about examples."""
    try:
        return _released_once(work, planned, task, context(), vault)
    except (BudgetError, LedgerError):
        raise  # about what was released before, never about examples
    except Exception:
        trace = traceback.format_exc()
    # Not while the error is handled: the new one would carry it along.
    vault.log_error(trace)
    raise EngineError(f"client {task.client} failed; {vault.errors} says why")


def _released_once(
    work: Callable[[Noise], LocalResult],
    planned: tuple[Event, ...],
    task: Task,
    context: bytes,
    vault: Vault,
) -> LocalResult:
    """Returns what was made in this very context before, if that is still there, or makes it.

    It is stored, then paid for, then listed, and then returned: a crash in between costs no
    more, and never less. What is no longer there is made anew under other noise and paid for
    anew. The same noise would be cheaper, and show whatever another machine or version rounds
    otherwise. It costs what was planned, so that the cost does not depend on the examples.
    """
    sent = vault.sent_before(context)
    paid = sent is not None and any(e.release == sent.release for e in vault.entries())
    if not paid:
        vault.agree(planned)
    if sent is None:
        release = hashlib.sha256(context + vault.secret.nonce()).digest()
        noise = Noise(vault.secret, task.round, release)
        result = work(noise)
        if not covered(noise.released, planned):
            raise ValueError(f"released {noise.released}, not {planned}")
        sent = Sent(release, result.upload, result.memory)
        vault.keep(context, sent)
    entry = vault.entry(task.round, sent.release, planned)
    vault.spend(entry)
    vault.list_upload(entry, sent)
    return LocalResult(sent.upload, sent.memory, {"epsilon": vault.epsilon()})


def context_of(
    run: str, algorithm: Algorithm, task: Task, data: Examples, memory: Records
) -> bytes:
    """Returns a digest of all that decides what a client releases, beside its noise."""
    tensors = {name: part for name, part in vars(data).items() if isinstance(part, Tensor)}
    parts = [
        repr((run, algorithm, data.normalization, task.client, task.round, task.seed)).encode(),
        digest(task.download),
        digest(memory),
        digest({"data": tensors}),
    ]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Lets torch use this many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
