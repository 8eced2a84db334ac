"""What an engine is: it runs one round's clients somewhere and yields their replies."""

from __future__ import annotations

import contextlib
import hashlib
import time
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
from feddm.privacy.noise import digest
from feddm.privacy.release import Noise, release
from feddm.privacy.vault import Vault


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
class Dropout:
    """A client from which nothing came back, and why."""

    client: int
    reason: str


ClientTick = Callable[[int, float], None]  # client, fraction of its work that is done


class Engine(Protocol):
    """Runs tasks anywhere and yields the replies as they arrive, in any order.

    Every task yields one reply or one dropout; an engine does not wait forever.

    A client's memory stays on its side, and is kept only if its upload was accepted: after
    `run` it is pending, and `commit` makes it the memory of the next round.
    """

    def run(self, tasks: Iterable[Task], tick: ClientTick) -> Iterator[Reply | Dropout]: ...

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

    def make(noise: Noise) -> tuple[Records, Records]:
        result = work(noise)
        return result.upload, result.memory

    with threads(1):
        begin = time.perf_counter()
        if vault is None:
            return work(None), time.perf_counter() - begin
        sent, epsilon = release(
            make,
            algorithm.planned,
            lambda: context_of(vault.terms.run, algorithm, task, data, memory),
            vault,
            client=task.client,
            round_=task.round,
        )
        return LocalResult(sent.upload, sent.memory, {"epsilon": epsilon}), 0.0


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
