"""The round loop: broadcast, local work, checks, aggregation, evaluation, all counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from feddm.algorithms.base import Algorithm, Upload
from feddm.data.examples import Examples
from feddm.engines.base import Engine, Reply, Task, threads
from feddm.errors import UploadError
from feddm.metrics import evaluate
from feddm.seeding import generator
from feddm.tensors import CPU, Records, moved, num_bytes, num_floats

Progress = Callable[[str, float], None]  # stage ("clients" or "server"), fraction done


@dataclass(frozen=True)
class Federation:
    """All that a run needs to go on after this many rounds, but for the clients' memories."""

    round: int
    state: Records


@dataclass(frozen=True)
class ClientRecord:
    """One client's part of a round."""

    client: int
    seconds: float
    floats_up: int
    bytes_up: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round.

    Args:
        round: Its number, from 1.
        accuracy: Share of test examples that the new model gets right.
        loss: Mean cross entropy of the new model on the test examples.
        floats_up: Floating-point numbers that all clients sent.
        floats_down: Floating-point numbers that all clients received.
        bytes_up: Bytes that all clients sent, labels and all, before any framing.
        bytes_down: Bytes that all clients received.
        client_seconds: Computing time of all clients together; nan if they do not tell.
        server_seconds: Computing time of the server, without evaluation.
        clients: Each client's part.
        epsilon: The most that any client has spent so far, in this run or before; infinite if
            nothing is guaranteed, and ``None`` without privacy.
        delta: Of that guarantee.
        unit: What it protects.
        privacy: The mechanism that gives it, or in words that there is none.
    """

    round: int
    accuracy: float
    loss: float
    floats_up: int
    floats_down: int
    bytes_up: int
    bytes_down: int
    client_seconds: float
    server_seconds: float
    clients: tuple[ClientRecord, ...]
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    privacy: str | None = None


def start(algorithm: Algorithm, seed: int) -> Federation:
    """Returns the federation before its first round."""
    params = algorithm.model.init(generator(seed, "model"))
    return Federation(0, algorithm.init(params))


def run(
    algorithm: Algorithm,
    engine: Engine,
    federation: Federation,
    test: Examples,
    *,
    rounds: int,
    clients: int,
    participation: float,
    seed: int,
    server_threads: int,
    progress: Progress,
    device: torch.device = CPU,
) -> Iterator[tuple[Federation, RoundRecord]]:
    """Yields the federation and a record after each round, up to round `rounds`.

    It prints and writes nothing, and every round depends only on the seed and on the state
    before it: so a run that is stopped anywhere can go on from its last checkpoint with the
    same bits.
    """
    test = test.to(device)
    while federation.round < rounds:
        number = federation.round + 1
        cohort = sampled_cohort(clients, participation, generator(seed, "cohort", number))
        download = algorithm.broadcast(federation.state)
        tasks = (Task(client, number, seed, download) for client in cohort)
        done = dict.fromkeys(cohort, 0.0)

        def tick(client: int, fraction: float, done: dict[int, float] = done) -> None:
            done[client] = fraction
            progress("clients", sum(done.values()) / len(done))

        # In client order, because float addition depends on order and engines finish in any.
        replies = Timed(in_order(finished(engine.run(tasks, tick), tick), cohort))
        records: list[ClientRecord] = []
        begin = time.perf_counter()
        with threads(server_threads):
            state = algorithm.aggregate(
                federation.state,
                (accepted(algorithm, download, reply, records) for reply in replies),
                generator(seed, "server", number),
                lambda fraction: progress("server", fraction),
            )
            server_seconds = time.perf_counter() - begin - replies.seconds
            result = evaluate(algorithm.model, moved(state, device)["params"], test)
        engine.commit(cohort)
        federation = Federation(number, state)
        yield (
            federation,
            RoundRecord(
                round=number,
                accuracy=result.accuracy,
                loss=result.loss,
                floats_up=sum(record.floats_up for record in records),
                floats_down=num_floats(download) * len(cohort),
                bytes_up=sum(record.bytes_up for record in records),
                bytes_down=num_bytes(download) * len(cohort),
                client_seconds=sum(record.seconds for record in records),
                server_seconds=server_seconds,
                clients=tuple(records),
            ),
        )


def cohort_size(clients: int, participation: float) -> int:
    """Returns how many clients take part in a round: a share of them, at least one.

    >>> cohort_size(10, 1.0), cohort_size(10, 0.25), cohort_size(10, 0.01)
    (10, 2, 1)
    """
    return max(1, round(clients * participation))


def sampled_cohort(clients: int, participation: float, rng: torch.Generator) -> list[int]:
    """Returns the clients of a round, drawn at random, in ascending order."""
    number = cohort_size(clients, participation)
    return sorted(torch.randperm(clients, generator=rng)[:number].tolist())


class Timed(Iterator[Reply]):
    """Passes replies on, and adds up the seconds that were spent waiting for them."""

    def __init__(self, replies: Iterator[Reply]) -> None:
        self.seconds = 0.0
        self._replies = replies

    def __next__(self) -> Reply:
        begin = time.perf_counter()
        try:
            return next(self._replies)
        finally:
            self.seconds += time.perf_counter() - begin


def finished(replies: Iterable[Reply], tick: Callable[[int, float], None]) -> Iterator[Reply]:
    """Yields the replies and counts each as wholly done."""
    for reply in replies:
        tick(reply.client, 1.0)
        yield reply


def in_order(replies: Iterable[Reply], cohort: Sequence[int]) -> Iterator[Reply]:
    """Yields the replies in the order of the cohort, each as soon as it can."""
    early: dict[int, Reply] = {}
    due = iter(cohort)
    client = next(due)
    for reply in replies:
        early[reply.client] = reply
        while client in early:
            yield early.pop(client)
            client = next(due, -1)


def accepted(
    algorithm: Algorithm, download: Records, reply: Reply, records: list[ClientRecord]
) -> Upload:
    """Returns the upload of a reply after its check, and adds its record."""
    try:
        algorithm.check(reply.upload, download)
    except UploadError as error:
        raise UploadError(f"client {reply.client}: {error}") from error
    records.append(
        ClientRecord(
            client=reply.client,
            seconds=reply.seconds,
            floats_up=num_floats(reply.upload),
            bytes_up=num_bytes(reply.upload),
            metrics=dict(reply.metrics),
        )
    )
    return Upload(reply.client, reply.upload)
