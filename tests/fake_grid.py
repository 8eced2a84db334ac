"""A grid without a network: nodes are functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

# What a node does with a message: answers, fails, or says nothing.
Node = Callable[[Message], RecordDict | Error | None]


class FakeGrid(Grid):
    """Answers messages in the reverse order of sending, one with every look.

    As in Flower, who asks for a reply after the time of the message has no reply but an error.
    """

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.sent: list[Message] = []
        self.lost: set[int] = set()  # nodes to which no message can be sent
        self._ready: list[Message] = []

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            if message.metadata.dst_node_id in self.lost:
                continue
            names.append(name)
            said = self.nodes[message.metadata.dst_node_id](message)
            if said is not None:
                self._ready.append(Message(said, reply_to=message))
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        for message in self.sent:
            name, about = message.metadata.message_id, message.metadata
            if name in wanted and time.time() > about.created_at + about.ttl:
                return [Message(Error(3, "expired"), reply_to=message)]
        for message in reversed(self._ready):
            if message.metadata.reply_to_message_id in wanted:
                self._ready.remove(message)
                return [message]
        return []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        names = list(self.push_messages(messages))
        replies: list[Message] = []
        while arrived := list(self.pull_messages(names)):
            replies += arrived
        return replies
