"""The engine interface, and the work of one client in one round."""

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
    """One client's work in one round; the three numbers determine all its randomness."""

    client: int
    round: int
    seed: int
    download: Records


@dataclass(frozen=True)
class Reply:
    """One client's result of a round."""

    client: int
    upload: Records
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class Dropout:
    """A client that returned no result, and the reason."""

    client: int
    reason: str


ClientTick = Callable[[int, float], None]  # client, fraction of its work done


class Engine(Protocol):
    """Runs tasks anywhere and yields the replies as they arrive, in any order.

    Every task yields one reply or one dropout; an engine never waits forever.

    A client's memory stays with the client, and is kept only if its upload is accepted:
    after `run` it is pending, and `commit` makes it the memory of the next round.
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
    """Does a client's work on one thread, and returns the result and the seconds it took.

    The order of float additions depends on the number of threads. With one thread, a client
    gives the same bits wherever it runs. The result is on the CPU.

    With a vault the work is private: only the release and its cost come back. The computing
    time and the text of errors stay with the client.
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
            algorithm.planned_for(task.download),
            lambda: context_of(vault.terms.run, algorithm, task, data, memory),
            vault,
            client=task.client,
            round_=task.round,
        )
        return LocalResult(sent.upload, sent.memory, {"epsilon": epsilon}), 0.0


def context_of(
    run: str, algorithm: Algorithm, task: Task, data: Examples, memory: Records
) -> bytes:
    """Returns a digest of everything that determines a client's release, except the noise."""
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
    """Sets the number of torch threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
