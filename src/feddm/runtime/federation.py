"""The round loop: broadcast, local work, checks, aggregation, evaluation, all counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from feddm.algorithms.base import Algorithm, Upload
from feddm.core.examples import Examples
from feddm.core.metrics import evaluate
from feddm.core.seeding import generator
from feddm.core.tensors import CPU, Records, Tensors, moved, num_bytes, num_floats
from feddm.errors import LostClientsError, UploadError
from feddm.runtime.client import Dropout, Engine, Reply, Task, threads

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
class SiteRecord:
    """How well the new model does on what a client holds out.

    Args:
        client: Who says so.
        accuracy: Share of its examples that the model gets right.
        balanced_accuracy: Mean of that share over its classes.
        loss: Mean cross entropy.
    """

    client: int
    accuracy: float
    balanced_accuracy: float
    loss: float


@dataclass(frozen=True)
class RoundEvaluation:
    """How well a model does, and who says so if it is not the server."""

    accuracy: float
    loss: float
    sites: tuple[SiteRecord, ...] = ()


Evaluator = Callable[[Tensors, int], RoundEvaluation]  # of the model after this round


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round.

    Args:
        round: Its number, from 1.
        accuracy: Share of test examples that the new model gets right; without a test set the
            mean of what the sites say.
        loss: Mean cross entropy of the new model on the test examples, or the same mean.
        floats_up: Floating-point numbers that all clients sent.
        floats_down: Floating-point numbers that all clients received.
        bytes_up: Bytes that all clients sent, labels and all, before any framing.
        bytes_down: Bytes that all clients received.
        client_seconds: Computing time of all clients together; nan if they do not tell.
        server_seconds: Computing time of the server, without evaluation.
        clients: Each client's part.
        dropouts: Who was asked and brought nothing, and why.
        sites: What clients say about the new model, if they are asked.
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
    dropouts: tuple[Dropout, ...] = ()
    sites: tuple[SiteRecord, ...] = ()
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    privacy: str | None = None


@dataclass(frozen=True)
class RoundPlan:
    """What decides the rounds of a run, beside the algorithm.

    Args:
        rounds: How many there are.
        clients: Number of clients.
        participation: Share of them that takes part in a round.
        seed: Everything random comes from it.
        min_clients: A round counts if so many of its clients delivered; ``None``: all.
        retries: How often a round is tried again that lost too many.
        server_threads: Threads of the server's work.
    """

    rounds: int
    clients: int
    participation: float = 1.0
    seed: int = 0
    min_clients: int | None = None
    retries: int = 0
    server_threads: int = 1


def start(algorithm: Algorithm, seed: int) -> Federation:
    """Returns the federation before its first round."""
    params = algorithm.model.init(generator(seed, "model"))
    return Federation(0, algorithm.init(params))


def evaluator_on(algorithm: Algorithm, test: Examples, device: torch.device = CPU) -> Evaluator:
    """Returns an evaluator with its own test set."""
    test = test.to(device)

    def evaluator(params: Tensors, number: int) -> RoundEvaluation:
        del number
        result = evaluate(algorithm.model, moved({"params": params}, device)["params"], test)
        return RoundEvaluation(result.accuracy, result.loss)

    return evaluator


def run(
    algorithm: Algorithm,
    engine: Engine,
    federation: Federation,
    evaluator: Evaluator,
    plan: RoundPlan,
    progress: Progress,
) -> Iterator[tuple[Federation, RoundRecord]]:
    """Yields the federation and a record after each round, up to the last of the plan.

    It prints and writes nothing, and every round depends only on the seed and on the state
    before it: so a run that is stopped anywhere can go on from its last checkpoint with the
    same bits.
    """
    while federation.round < plan.rounds:
        federation, record = _next_round(
            algorithm, engine, federation, evaluator, plan, progress
        )
        yield federation, record


def _next_round(
    algorithm: Algorithm,
    engine: Engine,
    federation: Federation,
    evaluator: Evaluator,
    plan: RoundPlan,
    progress: Progress,
) -> tuple[Federation, RoundRecord]:
    number = federation.round + 1
    rng = generator(plan.seed, "cohort", number)
    cohort = sampled_cohort(plan.clients, plan.participation, rng)
    download = algorithm.broadcast(federation.state)
    for left in reversed(range(plan.retries + 1)):
        intake = Intake(algorithm, download, cohort, plan.min_clients)
        try:
            state, seconds = _aggregated(intake, engine, federation, plan, progress)
            break
        except LostClientsError as error:
            if not left:
                raise LostClientsError(f"round {number}: {error}") from None
    engine.commit(record.client for record in intake.records)
    with threads(plan.server_threads):
        evaluation = evaluator(state["params"], number)
    records = tuple(intake.records)
    return Federation(number, state), RoundRecord(
        round=number,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        floats_up=sum(record.floats_up for record in records),
        floats_down=num_floats(download) * len(cohort),
        bytes_up=sum(record.bytes_up for record in records),
        bytes_down=num_bytes(download) * len(cohort),
        client_seconds=sum(record.seconds for record in records),
        server_seconds=seconds,
        clients=records,
        dropouts=tuple(intake.dropouts),
        sites=evaluation.sites,
    )


def _aggregated(
    intake: Intake, engine: Engine, federation: Federation, plan: RoundPlan, progress: Progress
) -> tuple[Records, float]:
    """Returns the next state, and the seconds that the server took for it."""
    number, cohort = federation.round + 1, intake.cohort
    done = dict.fromkeys(cohort, 0.0)

    def tick(client: int, fraction: float) -> None:
        done[client] = fraction
        progress("clients", sum(done.values()) / len(done))

    tasks = (Task(client, number, plan.seed, intake.download) for client in cohort)
    # In client order, because float addition depends on order and engines finish in any.
    replies = Timed(in_order(finished(engine.run(tasks, tick), tick), cohort))
    begin = time.perf_counter()
    with threads(plan.server_threads):
        state = intake.algorithm.aggregate(
            federation.state,
            intake.accepted(replies),
            generator(plan.seed, "server", number),
            lambda fraction: progress("server", fraction),
        )
    return state, time.perf_counter() - begin - replies.seconds


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


class Timed(Iterator[Reply | Dropout]):
    """Passes replies on, and adds up the seconds that were spent waiting for them."""

    def __init__(self, replies: Iterator[Reply | Dropout]) -> None:
        self.seconds = 0.0
        self._replies = replies

    def __next__(self) -> Reply | Dropout:
        begin = time.perf_counter()
        try:
            return next(self._replies)
        finally:
            self.seconds += time.perf_counter() - begin


def finished(
    replies: Iterable[Reply | Dropout], tick: Callable[[int, float], None]
) -> Iterator[Reply | Dropout]:
    """Yields the replies and counts each as wholly done."""
    for reply in replies:
        tick(reply.client, 1.0)
        yield reply


def in_order(
    replies: Iterable[Reply | Dropout], cohort: Sequence[int]
) -> Iterator[Reply | Dropout]:
    """Yields the replies in the order of the cohort, each as soon as it can."""
    early: dict[int, Reply | Dropout] = {}
    due = iter(cohort)
    client = next(due)
    for reply in replies:
        early[reply.client] = reply
        while client in early:
            yield early.pop(client)
            client = next(due, -1)


class Intake:
    """Lets the good uploads of a round in, and writes down who brought which and who none.

    Args:
        algorithm: It knows what an upload is.
        download: What the clients had.
        cohort: Who was asked.
        min_clients: How many must deliver; ``None``: all.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        download: Records,
        cohort: Sequence[int],
        min_clients: int | None,
    ) -> None:
        self.records: list[ClientRecord] = []
        self.dropouts: list[Dropout] = []
        self.algorithm = algorithm
        self.download = download
        self.cohort = cohort
        self._needed = len(cohort) if min_clients is None else min(min_clients, len(cohort))

    def accepted(self, replies: Iterable[Reply | Dropout]) -> Iterator[Upload]:
        """Yields the uploads that pass; too few are a `LostClientsError`, at once."""
        for reply in replies:
            try:
                upload = self._checked(reply)
            except UploadError as error:
                self._lose(reply.client, str(error))
            else:
                yield upload

    def _checked(self, reply: Reply | Dropout) -> Upload:
        if isinstance(reply, Dropout):
            raise UploadError(reply.reason)
        parsed = self.algorithm.parse(reply.upload, self.download)
        self.records.append(
            ClientRecord(
                client=reply.client,
                seconds=reply.seconds,
                floats_up=num_floats(reply.upload),
                bytes_up=num_bytes(reply.upload),
                metrics=dict(reply.metrics),
            )
        )
        return Upload(reply.client, parsed)

    def _lose(self, client: int, reason: str) -> None:
        self.dropouts.append(Dropout(client, reason))
        left = len(self.cohort) - len(self.dropouts)
        if left < self._needed:
            lost = "; ".join(
                f"client {dropout.client}: {dropout.reason}" for dropout in self.dropouts
            )
            raise LostClientsError(
                f"{lost} ({left} of {len(self.cohort)} clients are left, and min_clients is "
                f"{self._needed})"
            )
