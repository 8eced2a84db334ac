import math
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from feddm.core.examples import Examples
from feddm.core.seeding import generator
from feddm.errors import LostClientsError
from feddm.runtime import federation
from feddm.runtime.client import Dropout, Reply
from feddm.runtime.federation import (
    Federation,
    RoundPlan,
    RoundRecord,
    cohort_size,
    in_order,
    sampled_cohort,
)
from toy import Backwards, Summing

CLIENTS = 4
DATA = {
    k: Examples(torch.full((2, 1, 1, 1), float(k)), torch.tensor([k, k]))
    for k in range(CLIENTS)
}
TEST = Examples(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1), torch.tensor([0, 1]))


def rounds(
    algorithm: Summing | None = None,
    start: Federation | None = None,
    participation: float = 1.0,
    engine: Backwards | None = None,
    stages: list[tuple[str, float]] | None = None,
    min_clients: int | None = None,
    retries: int = 0,
) -> Iterator[tuple[Federation, RoundRecord]]:
    algorithm = algorithm or Summing()
    seen = [] if stages is None else stages
    return federation.run(
        algorithm,
        engine or Backwards(algorithm, DATA),
        start or federation.start(algorithm, seed=5),
        federation.evaluator_on(algorithm, TEST),
        RoundPlan(3, CLIENTS, participation, seed=5, min_clients=min_clients, retries=retries),
        lambda stage, done: seen.append((stage, done)),
    )


def test_three_rounds_are_counted() -> None:
    records = [record for _, record in rounds()]
    assert [record.round for record in records] == [1, 2, 3]
    for record in records:
        # A client sends and receives a single float.
        assert (record.floats_up, record.floats_down) == (CLIENTS, CLIENTS)
        assert (record.bytes_up, record.bytes_down) == (4 * CLIENTS, 4 * CLIENTS)
        assert record.client_seconds == CLIENTS
        assert [client.client for client in record.clients] == list(range(CLIENTS))
        assert record.server_seconds >= 0
        assert record.accuracy in (0.0, 0.5, 1.0)


def test_a_run_can_continue_from_any_round() -> None:
    whole = list(rounds())
    for done in (0, 1, 2):
        rest = list(rounds(start=whole[done][0]))
        assert len(rest) == 2 - done
        if rest:
            final = rest[-1][0].state["sum"]["value"]
            assert torch.equal(final, whole[-1][0].state["sum"]["value"])


def test_memories_are_committed_after_the_aggregation() -> None:
    engine = Backwards(Summing(), DATA)
    loop = rounds(engine=engine)
    assert engine.committed == []
    next(loop)
    assert engine.committed == list(range(CLIENTS))


def test_a_refused_upload_names_its_client() -> None:
    algorithm = Summing(refuse=4)
    engine = Backwards(algorithm, DATA)
    with pytest.raises(LostClientsError, match=r"round 1: client [23]: the sum is too large"):
        list(rounds(algorithm, engine=engine))
    assert engine.committed == []


def test_a_round_continues_without_dropouts() -> None:
    engine = Backwards(Summing(), DATA, lost=[{1}, {0, 3}])
    (_, first), (_, second), (_, third) = rounds(engine=engine, min_clients=2)
    assert [client.client for client in first.clients] == [0, 2, 3]
    assert first.dropouts == (Dropout(1, "the line is dead"),)
    # Clients that dropped out had received the model.
    assert (first.floats_up, first.floats_down) == (3, CLIENTS)
    assert [dropout.client for dropout in second.dropouts] == [0, 3]
    assert third.dropouts == ()
    # Memories of dropouts are not committed.
    assert engine.committed == [0, 2, 3, 1, 2, 0, 1, 2, 3]


def test_a_refused_upload_counts_as_a_dropout() -> None:
    # A client sends a number of its own and twice its pixel: 0, 2, 4 or 6.
    number = float(torch.randn((), generator=torch.Generator().manual_seed(5)))
    _, record = next(rounds(Summing(refuse=5 + math.floor(number)), min_clients=1))
    assert [client.client for client in record.clients] == [0, 1, 2]
    assert record.dropouts == (Dropout(3, "the sum is too large"),)


def test_a_round_with_too_few_clients_is_retried() -> None:
    engine = Backwards(Summing(), DATA, lost=[{0, 1, 2}, {0, 1, 2}, {1}])
    _, record = next(rounds(engine=engine, min_clients=3, retries=2))
    assert [dropout.client for dropout in record.dropouts] == [1]
    assert engine.committed == [0, 2, 3]


def test_too_few_clients_are_an_error_that_names_the_dropouts() -> None:
    engine = Backwards(Summing(), DATA, lost=[{0, 1}, {2, 3}])
    says = (
        r"round 1: client 2: the line is dead; client 3: the line is dead "
        r"\(2 of 4 clients are left, but min_clients is 3\)"
    )
    with pytest.raises(LostClientsError, match=says):
        list(rounds(engine=engine, min_clients=3, retries=1))


def test_a_retried_round_has_the_same_bits() -> None:
    engine = Backwards(Summing(), DATA, lost=[{2}])
    (again, _), (once, _) = next(rounds(engine=engine, retries=1)), next(rounds())
    assert torch.equal(again.state["sum"]["value"], once.state["sum"]["value"])


def test_progress_reaches_the_end_of_both_stages() -> None:
    stages: list[tuple[str, float]] = []
    next(rounds(stages=stages))
    assert stages[-1] == ("server", 1.0)
    assert ("clients", 1.0) in stages


def test_participation_samples_new_clients_every_round() -> None:
    cohorts = [[c.client for c in record.clients] for _, record in rounds(participation=0.5)]
    assert all(len(cohort) == 2 for cohort in cohorts)
    for _, record in rounds(participation=0.5):  # the others receive nothing
        assert (record.floats_up, record.floats_down, record.bytes_down) == (2, 2, 8)
    assert len({tuple(cohort) for cohort in cohorts}) > 1


def test_sampling_is_uniform() -> None:
    counts = Counter(
        client
        for round_ in range(2000)
        for client in sampled_cohort(10, 0.3, generator(0, "cohort", round_))
    )
    # 600 expected each, with a standard deviation of about 20.
    assert min(counts.values()) > 500
    assert max(counts.values()) < 700
    assert cohort_size(10, 0.3) == 3


def test_in_order_waits_for_earlier_clients() -> None:
    replies = [Reply(client, {}, {}, 0.0) for client in (7, 2, 5)]
    assert [reply.client for reply in in_order(replies, [2, 5, 7])] == [2, 5, 7]


def test_in_order_yields_as_soon_as_possible() -> None:
    ordered = in_order((Reply(client, {}, {}, 0.0) for client in (2, 7, 5)), [2, 5, 7])
    assert next(ordered).client == 2
