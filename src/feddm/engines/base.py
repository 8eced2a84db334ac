"""What an engine is: it runs one round's clients somewhere and yields their replies."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from feddm.algorithms.base import Algorithm, LocalResult
from feddm.data.examples import Examples
from feddm.seeding import generator
from feddm.tensors import CPU, Records, moved
from feddm.training import Tick


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


ClientTick = Callable[[int, float], None]  # client, fraction of its work that is done


class Engine(Protocol):
    """Runs tasks anywhere and yields the replies as they arrive, in any order.

    What a client wants to remember is kept on its side, and only once its upload was accepted:
    after `run` it is pending, and `commit` makes it the memory of the next round.
    """

    def run(self, tasks: Iterable[Task], tick: ClientTick) -> Iterator[Reply]: ...

    def commit(self, clients: Iterable[int]) -> None: ...


def perform(
    algorithm: Algorithm,
    task: Task,
    data: Examples,
    memory: Records,
    tick: Tick,
    device: torch.device = CPU,
) -> tuple[LocalResult, float]:
    """Does a client's work on one thread, and returns the result with the seconds it took.

    One thread, because the order of float additions depends on their number: so a client gives
    the same bits wherever it runs. What comes back is in the memory of the CPU.
    """
    rng = generator(task.seed, "client", task.round, task.client)
    with threads(1):
        begin = time.perf_counter()
        result = algorithm.local(
            moved(task.download, device), data.to(device), moved(memory, device), rng, tick
        )
        result = LocalResult(
            moved(result.upload, CPU), moved(result.memory, CPU), result.metrics
        )
        return result, time.perf_counter() - begin


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Lets torch use this many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
