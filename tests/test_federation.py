from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from feddm import federation
from feddm.data.examples import Examples
from feddm.engines.base import Reply
from feddm.errors import UploadError
from feddm.federation import Federation, RoundRecord, cohort_size, in_order, sampled_cohort
from feddm.seeding import generator
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
) -> Iterator[tuple[Federation, RoundRecord]]:
    algorithm = algorithm or Summing()
    seen = [] if stages is None else stages
    return federation.run(
        algorithm,
        engine or Backwards(algorithm, DATA),
        start or federation.start(algorithm, seed=5),
        TEST,
        rounds=3,
        clients=CLIENTS,
        participation=participation,
        seed=5,
        server_threads=1,
        progress=lambda stage, done: seen.append((stage, done)),
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


def test_a_run_can_go_on_from_any_round() -> None:
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
    with pytest.raises(UploadError, match=r"client [23]: the sum is too large"):
        list(rounds(algorithm, engine=engine))
    assert engine.committed == []


def test_progress_reaches_the_end_of_both_stages() -> None:
    stages: list[tuple[str, float]] = []
    next(rounds(stages=stages))
    assert stages[-1] == ("server", 1.0)
    assert ("clients", 1.0) in stages


def test_participation_samples_other_clients_every_round() -> None:
    cohorts = [[c.client for c in record.clients] for _, record in rounds(participation=0.5)]
    assert all(len(cohort) == 2 for cohort in cohorts)
    for _, record in rounds(participation=0.5):  # who sits out receives nothing
        assert (record.floats_up, record.floats_down, record.bytes_down) == (2, 2, 8)
    assert len({tuple(cohort) for cohort in cohorts}) > 1


def test_sampling_is_even() -> None:
    counts = Counter(
        client
        for round_ in range(2000)
        for client in sampled_cohort(10, 0.3, generator(0, "cohort", round_))
    )
    # 600 expected each, with a standard deviation of about 20.
    assert min(counts.values()) > 500
    assert max(counts.values()) < 700
    assert cohort_size(10, 0.3) == 3


def test_in_order_waits_for_those_before() -> None:
    replies = [Reply(client, {}, {}, 0.0) for client in (7, 2, 5)]
    assert [reply.client for reply in in_order(replies, [2, 5, 7])] == [2, 5, 7]


def test_in_order_hands_on_what_it_can() -> None:
    ordered = in_order((Reply(client, {}, {}, 0.0) for client in (2, 7, 5)), [2, 5, 7])
    assert next(ordered).client == 2
