"""The round loop: broadcast, local work, checks, aggregation and evaluation, with counts."""

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
    """The state after a number of rounds: all a run needs to continue, except memories."""

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
    """The new model evaluated on a client's held-out examples.

    Args:
        client: Client number.
        accuracy: Fraction of correct predictions.
        balanced_accuracy: Mean of the accuracies per class.
        loss: Mean cross-entropy.
    """

    client: int
    accuracy: float
    balanced_accuracy: float
    loss: float


@dataclass(frozen=True)
class RoundEvaluation:
    """Evaluation of a model, with the clients' own evaluations if they made it."""

    accuracy: float
    loss: float
    sites: tuple[SiteRecord, ...] = ()


Evaluator = Callable[[Tensors, int], RoundEvaluation]  # parameters, round


@dataclass(frozen=True)
class RoundRecord:
    """The record of a round.

    Args:
        round: Round number, from 1.
        accuracy: Accuracy of the new model on the test set; without a test set, the mean over
            the sites.
        loss: Mean cross-entropy of the new model on the test set, or the mean over the sites.
        floats_up: Floating-point numbers sent by all clients.
        floats_down: Floating-point numbers received by all clients.
        bytes_up: Bytes sent by all clients, including labels, before any framing.
        bytes_down: Bytes received by all clients.
        client_seconds: Total computing time of the clients; nan if they do not report it.
        server_seconds: Computing time of the server, without evaluation.
        clients: One record per client that delivered.
        dropouts: Clients that were asked but did not deliver, with the reason.
        sites: The clients' evaluations of the new model, if they evaluate it.
        epsilon: Largest epsilon spent by any client so far, including earlier runs; infinite
            without a guarantee, ``None`` without privacy.
        delta: Delta of the guarantee.
        unit: Unit of privacy.
        privacy: Mechanism of the guarantee, or a text saying that there is none.
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
    """What determines the rounds of a run, besides the algorithm.

    Args:
        rounds: Number of rounds.
        clients: Number of clients.
        participation: Fraction of the clients that take part in a round.
        seed: Seed of all randomness.
        min_clients: Clients that must deliver for a round to count; ``None`` means all.
        retries: How often to repeat a round that lost too many clients.
        server_threads: Number of threads for the server's work.
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
    """Returns an evaluator for a test set."""
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
    """Yields the federation and a record after each round, until the plan is complete.

    It prints and writes nothing. Each round depends only on the seed and on the state before
    it, so an interrupted run can continue from its last checkpoint with the same bits.
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
    """Returns the next state, and the server's computing time in seconds."""
    number, cohort = federation.round + 1, intake.cohort
    done = dict.fromkeys(cohort, 0.0)

    def tick(client: int, fraction: float) -> None:
        done[client] = fraction
        progress("clients", sum(done.values()) / len(done))

    tasks = (Task(client, number, plan.seed, intake.download) for client in cohort)
    # In client order, because float addition depends on the order and engines finish in any.
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
    """Returns the number of clients in a round, at least one.

    >>> cohort_size(10, 1.0), cohort_size(10, 0.25), cohort_size(10, 0.01)
    (10, 2, 1)
    """
    return max(1, round(clients * participation))


def sampled_cohort(clients: int, participation: float, rng: torch.Generator) -> list[int]:
    """Returns a random cohort, in ascending order."""
    number = cohort_size(clients, participation)
    return sorted(torch.randperm(clients, generator=rng)[:number].tolist())


class Timed(Iterator[Reply | Dropout]):
    """Passes replies on, and measures the seconds spent waiting for them."""

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
    """Yields the replies, and reports each client as done."""
    for reply in replies:
        tick(reply.client, 1.0)
        yield reply


def in_order(
    replies: Iterable[Reply | Dropout], cohort: Sequence[int]
) -> Iterator[Reply | Dropout]:
    """Yields the replies in the order of the cohort, each as soon as possible."""
    early: dict[int, Reply | Dropout] = {}
    due = iter(cohort)
    client = next(due)
    for reply in replies:
        early[reply.client] = reply
        while client in early:
            yield early.pop(client)
            client = next(due, -1)


class Intake:
    """Checks the uploads of a round, and records who delivered and who dropped out.

    Args:
        algorithm: Parses the uploads.
        download: What the clients received.
        cohort: The clients of the round.
        min_clients: Clients that must deliver; ``None`` means all.
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
        """Yields the valid uploads; raises `LostClientsError` as soon as too few are left."""
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
                f"{lost} ({left} of {len(self.cohort)} clients are left, but min_clients is "
                f"{self._needed})"
            )
