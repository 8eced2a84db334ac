"""The engine on Flower: replies, dropouts, refused nodes and the clients' memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

import pytest
import torch
from flwr.app import Error, Message, MessageType, RecordDict

from fake_grid import FakeGrid, Node
from feddm.config.resolve import resolve
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
    """Returns a node that answers as a client and uploads its download plus its number."""

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


def test_a_node_replies_for_the_client_it_claims_to_be() -> None:
    grid = FakeGrid({70: node(2), 50: node(0), 60: node(1)})
    outcomes = ran(engine(grid))
    for client in range(3):
        reply = outcomes[client]
        assert isinstance(reply, Reply)
        assert reply.upload["params"]["w"].tolist() == [1.0 + client, 2.0 + client]
        assert reply.seconds == 1.5


def test_nodes_are_asked_only_once_which_client_they_are() -> None:
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid)
    ran(clients, 1)
    ran(clients, 2)
    kinds = [message.metadata.message_type for message in grid.sent]
    assert kinds.count(MessageType.QUERY) == 3
    assert kinds.count(MessageType.TRAIN) == 6


def test_a_client_that_does_not_answer_drops_out() -> None:
    grid = FakeGrid({50: node(0), 60: node(1, answer=None), 70: node(2)})
    outcomes = ran(engine(grid))
    assert outcomes[1] == Dropout(1, "no reply within 0.2 s")
    assert isinstance(outcomes[0], Reply) and isinstance(outcomes[2], Reply)


def test_clients_that_cannot_be_reached_drop_out_at_once() -> None:
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid)
    ran(clients)
    grid.lost = {50, 60, 70}
    assert {str(loss) for loss in ran(clients, 2).values()} == {
        str(Dropout(client, "Flower could not send the message")) for client in range(3)
    }


def test_only_the_clients_that_cannot_be_reached_drop_out() -> None:
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid)
    ran(clients)
    grid.lost = {60}
    outcomes = ran(clients, 2)
    assert outcomes[1] == Dropout(1, "Flower could not send the message")
    assert isinstance(outcomes[0], Reply) and isinstance(outcomes[2], Reply)


def test_a_slow_server_accepts_replies_that_came_in_time() -> None:
    class Slow(FakeGrid):
        """Takes longer to fetch replies than the server waits for them."""

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            time.sleep(1.2 * HASTY.reply)
            return super().pull_messages(message_ids)

    grid = Slow({50: node(0), 60: node(1, answer=None), 70: node(2)})
    outcomes = ran(engine(grid))
    assert isinstance(outcomes[0], Reply) and isinstance(outcomes[2], Reply)
    assert outcomes[1] == Dropout(1, "no reply within 0.2 s")


def test_the_reason_of_a_failure_is_reported() -> None:
    broken = Error(code=1, reason="it is on\nfire")
    refused = wire.to_error("the policy says no\nand more")
    grid = FakeGrid({50: node(0, answer=broken), 60: node(1, answer=refused), 70: node(2)})
    outcomes = ran(engine(grid))
    assert outcomes[0] == Dropout(0, "the node failed (Flower error 1: it is on fire)")
    assert outcomes[1] == Dropout(1, "the policy says no and more")


def test_a_client_that_sends_junk_drops_out() -> None:
    junk = RecordDict()
    liar = wire.to_reply(Reply(2, {}, {}, 0.0), False)  # claims to be client 2
    grid = FakeGrid({50: node(0, answer=junk), 60: node(1, answer=liar), 70: node(2)})
    outcomes = ran(engine(grid))
    assert outcomes[0] == Dropout(0, "the message is not one of feddm")
    assert outcomes[1] == Dropout(1, "the answer is of client 2")


def test_a_client_without_a_node_drops_out() -> None:
    outcomes = ran(engine(FakeGrid({50: node(0), 60: node(1)})))
    assert outcomes[2] == Dropout(2, "no node found within 0.2 s")


def test_two_nodes_cannot_be_the_same_client() -> None:
    notices: list[str] = []
    grid = FakeGrid({50: node(0), 60: node(0), 70: node(2)})
    outcomes = ran(engine(grid, notices=notices))
    assert isinstance(outcomes[0], Reply)
    assert notices == ["a node is not taking part: another node is already client 0"]
    assert outcomes[1] == Dropout(
        1, "no node found; other nodes were refused: another node is already client 0"
    )


def test_a_client_number_that_is_too_large_is_refused() -> None:
    notices: list[str] = []
    grid = FakeGrid({50: node(0), 60: node(1), 80: node(3)})
    assert isinstance(ran(engine(grid, notices=notices))[2], Dropout)
    assert notices == ["a node is not taking part: its client must be from 0 to 2, got 3"]


def test_the_server_does_not_wait_for_a_client_that_refuses() -> None:
    notices: list[str] = []
    grid = FakeGrid({50: node(0), 60: node(1), 70: lambda message: wire.to_error("no!", 2)})
    patient = Patience(nodes=3600, reply=3600, poll=0.01)
    clients = OnFlower(grid, FEDERATION, CONFIG, False, {}, patient, notices.append)
    assert ran(clients)[2] == Dropout(2, "no!")
    assert notices == ["client 2 is not taking part: no!"]


def test_a_silent_node_does_not_hold_up_the_others() -> None:
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
def test_a_node_that_was_offline_when_asked_is_asked_again(code: int) -> None:
    """Flower answers in its place that the node or the message is gone."""
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


def test_the_server_does_not_wait_longer_for_a_node_that_stays_offline() -> None:
    gone = Error(code=5, reason="gone")
    grid = FakeGrid({50: node(0), 60: node(1), 70: lambda message: gone})
    assert ran(engine(grid))[2] == Dropout(2, "no node found within 0.2 s")


def test_a_refused_node_can_take_part_once_it_is_fixed() -> None:
    notices: list[str] = []
    grid = FakeGrid({50: node(0), 60: node(1), 70: lambda _: wire.to_error("too large", 2)})
    clients = engine(grid, notices=notices)
    assert ran(clients, 1)[2] == Dropout(2, "too large")
    assert ran(clients, 2)[2] == Dropout(2, "too large")
    assert notices == ["client 2 is not taking part: too large"]  # told once
    grid.nodes[70] = node(2)  # the same node, by its key
    assert isinstance(ran(clients, 3)[2], Reply)


def test_a_node_that_replaces_a_dead_one_is_found() -> None:
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid)
    ran(clients, 1)
    grid.nodes[71] = node(2)  # restarted without a key; the SuperLink lists both
    grid.nodes[70] = lambda message: None
    assert isinstance(ran(clients, 2)[2], Dropout)
    del grid.nodes[70]
    assert isinstance(ran(clients, 3)[2], Reply)


def test_a_reply_that_flower_cannot_read_costs_a_round_but_not_the_run() -> None:
    class Fragile(FakeGrid):
        """Fails on the reply of node 60 and loses all that it fetched at the same time."""

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
    unread = {client: Dropout(client, "Flower could not read the reply") for client in range(3)}
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
    def test_a_task_names_the_round_whose_memory_is_valid(self) -> None:
        grid = FakeGrid({50: node(0, True), 60: node(1, True), 70: node(2)})
        clients = engine(grid)
        assert self.named(ran(clients, 1)) == [0, 0, 0]
        clients.commit([0, 1, 2])
        # In round 2 the upload of client 1 is not accepted: it continues from round 1.
        assert self.named(ran(clients, 2)) == [1, 1, 0]
        clients.commit([0, 2])
        assert self.named(ran(clients, 3)) == [2, 1, 0]

    def test_a_checkpoint_keeps_it(self) -> None:
        grid = FakeGrid({50: node(0, True), 60: node(1, True), 70: node(2)})
        first = engine(grid)
        ran(first, 7)
        first.commit([0, 1, 2])
        assert set(first.memories) == {0, 1}  # client 2 has no memory
        assert self.named(ran(engine(grid, first.memories), 8)) == [7, 7, 0]

    def named(self, outcomes: dict[int, Reply | Dropout]) -> list[float]:
        replies = [outcomes[client] for client in range(3)]
        return [reply.metrics["memory"] for reply in replies if isinstance(reply, Reply)]


def test_nodes_evaluate() -> None:
    notices: list[str] = []
    refused = wire.to_error("not mine")
    grid = FakeGrid({50: node(0), 60: node(1), 70: node(2)})
    clients = engine(grid, notices=notices)
    ran(clients)
    grid.nodes[60] = node(1, answer=refused)
    evaluation = clients.evaluate(DOWNLOAD["params"], 1)
    # Clients 0 and 2 have accuracies 0 and 2/4.
    assert [site.client for site in evaluation.sites] == [0, 2]
    assert evaluation.accuracy == 0.25
    assert notices == ["client 1 cannot evaluate round 1: not mine"]


def test_without_evaluating_nodes_the_accuracy_is_nan() -> None:
    assert math.isnan(engine(FakeGrid({})).evaluate(DOWNLOAD["params"], 1).accuracy)
