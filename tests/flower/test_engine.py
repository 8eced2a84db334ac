"""The server's side: who answers, who does not, and what becomes of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

import pytest
import torch
from flwr.app import Error, Message, MessageType, RecordDict

from fake_grid import FakeGrid, Node
from feddm.config.schema import resolve
from feddm.core.tensors import Records
from feddm.flower import wire
from feddm.flower.engine import OnFlower, Patience
from feddm.runtime.client import Dropout, Reply, Task
from feddm.runtime.federation import SiteRecord

pytestmark = pytest.mark.usefixtures("inside_an_app")

CONFIG = resolve(options={"clients": 3})
FEDERATION = "0123456789abcdef" * 2
DOWNLOAD = {"params": {"w": torch.tensor([1.0, 2.0])}}
HASTY = Patience(nodes=0.2, reply=0.2, poll=0.01)


def engine(
    grid: FakeGrid, memories: dict[int, Records] | None = None, notices: list[str] | None = None
) -> OnFlower:
    told = [] if notices is None else notices
    return OnFlower(grid, FEDERATION, CONFIG, False, memories or {}, HASTY, told.append)


def tasks(number: int = 1, clients: int = 3) -> Iterator[Task]:
    return (Task(client, number, 0, DOWNLOAD) for client in range(clients))


def ran(clients: OnFlower, number: int = 1) -> dict[int, Reply | Dropout]:
    outcomes = list(clients.run(tasks(number), lambda client, fraction: None))
    assert len(outcomes) == 3  # one for every task
    return {outcome.client: outcome for outcome in outcomes}


def node(
    client: int, remembers: bool = False, answer: RecordDict | Error | str | None = ""
) -> Node:
    """Returns a node that says who it is, and sends what it got plus its number."""

    def answered(message: Message) -> RecordDict | Error | None:
        if message.metadata.message_type == MessageType.QUERY:
            return wire.to_hello(client)
        if not isinstance(answer, str):
            return answer
        job = wire.from_job(message.content)
        if message.metadata.message_type == MessageType.EVALUATE:
            return wire.to_site(SiteRecord(client, client / 4, 0.5, 1.0))
        upload = {"params": {"w": job.download["params"]["w"] + client}}
        reply = Reply(client, upload, {"memory": float(job.memory)}, 1.5)
        return wire.to_reply(reply, remembers)

    return answered


def test_replies_come_from_the_clients_that_nodes_say_they_are() -> None:
    grid = FakeGrid({70: node(2), 50: node(0), 60: node(1)})
    outcomes = ran(engine(grid))
    for client in range(3):
        reply = outcomes[client]
        assert isinstance(reply, Reply)
        assert reply.upload["params"]["w"].tolist() == [1.0 + client, 2.0 + client]
        assert reply.seconds == 1.5


def test_nodes_are_asked_once_who_they_are() -> None:
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid)
    ran(clients, 1)
    ran(clients, 2)
    kinds = [message.metadata.message_type for message in grid.sent]
    assert kinds.count(MessageType.QUERY) == 3
    assert kinds.count(MessageType.TRAIN) == 6


def test_who_does_not_answer_is_lost_and_named() -> None:
    grid = FakeGrid({50: node(0), 60: node(1, answer=None), 70: node(2)})
    outcomes = ran(engine(grid))
    assert outcomes[1] == Dropout(1, "no reply within 0.2 s")
    assert isinstance(outcomes[0], Reply) and isinstance(outcomes[2], Reply)


def test_what_cannot_be_sent_is_lost_at_once() -> None:
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid)
    ran(clients)
    grid.lost = {50, 60, 70}
    assert {str(loss) for loss in ran(clients, 2).values()} == {
        str(Dropout(client, "Flower did not send it")) for client in range(3)
    }


def test_some_can_be_sent_and_some_not() -> None:
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid)
    ran(clients)
    grid.lost = {60}
    outcomes = ran(clients, 2)
    assert outcomes[1] == Dropout(1, "Flower did not send it")
    assert isinstance(outcomes[0], Reply) and isinstance(outcomes[2], Reply)


def test_who_answers_in_time_is_heard_by_a_slow_server() -> None:
    class Slow(FakeGrid):
        """Takes longer for a look than replies are waited for."""

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            time.sleep(1.2 * HASTY.reply)
            return super().pull_messages(message_ids)

    grid = Slow({50: node(0), 60: node(1, answer=None), 70: node(2)})
    outcomes = ran(engine(grid))
    assert isinstance(outcomes[0], Reply) and isinstance(outcomes[2], Reply)
    assert outcomes[1] == Dropout(1, "no reply within 0.2 s")


def test_a_node_that_breaks_says_why() -> None:
    broken = Error(code=1, reason="it is on\nfire")
    refused = wire.to_error("the policy says no\nand more")
    grid = FakeGrid({50: node(0, answer=broken), 60: node(1, answer=refused), 70: node(2)})
    outcomes = ran(engine(grid))
    assert outcomes[0] == Dropout(0, "the node failed (Flower's code 1: it is on fire)")
    assert outcomes[1] == Dropout(1, "the policy says no and more")


def test_junk_is_a_loss() -> None:
    junk = RecordDict()
    liar = wire.to_reply(Reply(2, {}, {}, 0.0), False)  # says that it is client 2
    grid = FakeGrid({50: node(0, answer=junk), 60: node(1, answer=liar), 70: node(2)})
    outcomes = ran(engine(grid))
    assert outcomes[0] == Dropout(0, "the message is not one of feddm")
    assert outcomes[1] == Dropout(1, "the answer is of client 2")


def test_a_client_without_a_node_is_lost() -> None:
    outcomes = ran(engine(FakeGrid({50: node(0), 60: node(1)})))
    assert outcomes[2] == Dropout(2, "no node within 0.2 s")


def test_two_nodes_cannot_be_one_client() -> None:
    notices: list[str] = []
    grid = FakeGrid({50: node(0), 60: node(0), 70: node(2)})
    outcomes = ran(engine(grid, notices=notices))
    assert isinstance(outcomes[0], Reply)
    assert notices == ["a node does not take part: another node is client 0, too"]
    assert outcomes[1] == Dropout(
        1, "no node; others were refused: another node is client 0, too"
    )


def test_there_are_no_more_clients_than_there_are() -> None:
    notices: list[str] = []
    grid = FakeGrid({50: node(0), 60: node(1), 80: node(3)})
    assert isinstance(ran(engine(grid, notices=notices))[2], Dropout)
    assert notices == ["a node does not take part: there is no client 3"]


def test_a_client_that_does_not_want_is_not_waited_for() -> None:
    notices: list[str] = []
    grid = FakeGrid({50: node(0), 60: node(1), 70: lambda message: wire.to_error("no!", 2)})
    patient = Patience(nodes=3600, reply=3600, poll=0.01)
    clients = OnFlower(grid, FEDERATION, CONFIG, False, {}, patient, notices.append)
    assert ran(clients)[2] == Dropout(2, "no!")
    assert notices == ["client 2 does not take part: no!"]


def test_a_node_that_says_nothing_keeps_nobody_from_being_found() -> None:
    grid = FakeGrid({40: lambda message: None, 50: node(0), 60: node(1)})
    patient = Patience(nodes=3600, reply=3600, poll=0.01)
    clients = OnFlower(grid, FEDERATION, CONFIG, False, {}, patient, lambda text: None)
    looks = 0

    def late() -> list[int]:
        nonlocal looks
        looks += 1
        if looks == 3:
            grid.nodes[70] = node(2)
        return list(grid.nodes)

    grid.get_node_ids = late  # type: ignore[method-assign]
    assert all(isinstance(outcome, Reply) for outcome in ran(clients).values())


@pytest.mark.parametrize("code", [3, 4, 5])
def test_a_node_that_was_away_when_it_was_asked_is_asked_again(code: int) -> None:
    """Flower answers for it that it is gone, or that the question is."""
    asked = 0

    def restarting(message: Message) -> RecordDict | Error | None:
        nonlocal asked
        asked += 1
        return Error(code=code, reason="gone") if asked < 3 else node(2)(message)

    notices: list[str] = []
    grid = FakeGrid({50: node(0), 60: node(1), 70: restarting})
    patient = Patience(nodes=60, reply=60, poll=0.01)
    clients = OnFlower(grid, FEDERATION, CONFIG, False, {}, patient, notices.append)
    assert all(isinstance(outcome, Reply) for outcome in ran(clients).values())
    assert notices == []


def test_a_node_that_stays_away_is_not_waited_for_longer_than_any_other() -> None:
    gone = Error(code=5, reason="gone")
    grid = FakeGrid({50: node(0), 60: node(1), 70: lambda message: gone})
    assert ran(engine(grid))[2] == Dropout(2, "no node within 0.2 s")


def test_who_was_refused_and_mended_takes_part_in_the_next_round() -> None:
    notices: list[str] = []
    grid = FakeGrid({50: node(0), 60: node(1), 70: lambda _: wire.to_error("too large", 2)})
    clients = engine(grid, notices=notices)
    assert ran(clients, 1)[2] == Dropout(2, "too large")
    assert ran(clients, 2)[2] == Dropout(2, "too large")
    assert notices == ["client 2 does not take part: too large"]  # told once
    grid.nodes[70] = node(2)  # which by its key is the same node
    assert isinstance(ran(clients, 3)[2], Reply)


def test_a_node_that_took_the_place_of_a_dead_one_is_found() -> None:
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid)
    ran(clients, 1)
    grid.nodes[71] = node(2)  # restarted without a key, while the SuperLink believes in both
    grid.nodes[70] = lambda message: None
    assert isinstance(ran(clients, 2)[2], Dropout)
    del grid.nodes[70]
    assert isinstance(ran(clients, 3)[2], Reply)


def test_a_reply_that_flower_cannot_read_costs_a_try_and_not_the_run() -> None:
    class Fragile(FakeGrid):
        """Falls over what node 60 sends, with all that it has just fetched."""

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            wanted = set(message_ids)
            of_60 = {
                m.metadata.message_id
                for m in self.sent
                if m.metadata.dst_node_id == 60 and m.metadata.message_type == MessageType.TRAIN
            }
            if wanted & of_60:
                self._ready = [
                    m for m in self._ready if m.metadata.reply_to_message_id not in wanted
                ]
                raise ValueError("Invalid object content")
            return super().pull_messages(wanted)

    clients = engine(Fragile({50: node(0), 60: node(1), 70: node(2)}))
    unread = {client: Dropout(client, "the reply cannot be read") for client in range(3)}
    assert ran(clients) == unread
    again = ran(clients)
    assert again[1] == unread[1]
    assert isinstance(again[0], Reply) and isinstance(again[2], Reply)


def test_a_node_that_comes_back_is_asked_again() -> None:
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid)
    ran(clients)
    del grid.nodes[60]
    assert isinstance(ran(clients, 2)[1], Dropout)
    grid.nodes[61] = node(1)
    assert isinstance(ran(clients, 3)[1], Reply)


class TestMemory:
    def test_a_task_names_the_round_whose_memory_counts(self) -> None:
        grid = FakeGrid({50: node(0, True), 60: node(1, True), 70: node(2)})
        clients = engine(grid)
        assert self.named(ran(clients, 1)) == [0, 0, 0]
        clients.commit([0, 1, 2])
        # In round 2 the upload of client 1 is not accepted: its memory is still of round 1.
        assert self.named(ran(clients, 2)) == [1, 1, 0]
        clients.commit([0, 2])
        assert self.named(ran(clients, 3)) == [2, 1, 0]

    def test_a_checkpoint_keeps_it(self) -> None:
        grid = FakeGrid({50: node(0, True), 60: node(1, True), 70: node(2)})
        first = engine(grid)
        ran(first, 7)
        first.commit([0, 1, 2])
        assert set(first.memories) == {0, 1}  # client 2 remembers nothing
        assert self.named(ran(engine(grid, first.memories), 8)) == [7, 7, 0]

    def named(self, outcomes: dict[int, Reply | Dropout]) -> list[float]:
        replies = [outcomes[client] for client in range(3)]
        return [reply.metrics["memory"] for reply in replies if isinstance(reply, Reply)]


def test_sites_judge() -> None:
    notices: list[str] = []
    refused = wire.to_error("not mine")
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid, notices=notices)
    ran(clients)
    grid.nodes[60] = node(1, answer=refused)
    evaluation = clients.evaluate(DOWNLOAD["params"], 1)
    # Of clients 0 and 2: accuracies 0 and 2/4.
    assert [site.client for site in evaluation.sites] == [0, 2]
    assert evaluation.accuracy == 0.25
    assert notices == ["client 1 cannot evaluate round 1: not mine"]


def test_if_nobody_judges_nothing_is_known() -> None:
    assert math.isnan(engine(FakeGrid({})).evaluate(DOWNLOAD["params"], 1).accuracy)
