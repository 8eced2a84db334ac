"""The engine that runs clients on Flower nodes, for our round loop.

A client's memory stays on its node. The server only knows from which round's memory each
client continues; it stores that round in checkpoints and names it in each task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx
import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from feddm.config.schema import Config
from feddm.core.tensors import Records, Tensors
from feddm.errors import EngineError, FedDMError, UploadError
from feddm.flower import wire
from feddm.flower.node import Job
from feddm.flower.wire import RefusedError
from feddm.runtime.client import ClientTick, Dropout, Reply, Task
from feddm.runtime.federation import RoundEvaluation, SiteRecord

Answer = TypeVar("Answer")
Notice = Callable[[str], None]


# Extra seconds for which Flower keeps a message and its reply after our deadline, so that a
# reply that came in time is still there when we fetch it.
GRACE = 60.0


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds.

    Args:
        nodes: For the nodes of all clients, at the start of a round.
        reply: For a client's reply.
        poll: Between two polls.
    """

    nodes: float = 300.0
    reply: float = 3600.0
    poll: float = 1.0


PATIENT = Patience()


class OnFlower:
    """Clients on Flower nodes.

    Args:
        grid: Flower's connection to the nodes.
        federation: Unique name of the federation.
        config: Configuration of the run.
        compiled: Whether nodes compile models.
        memories: From a checkpoint: for each client, the round whose memory to continue from.
        patience: How long the server waits.
        notice: Receives what the user should know.
    """

    def __init__(
        self,
        grid: Grid,
        federation: str,
        config: Config,
        compiled: bool,
        memories: Mapping[int, Records],
        patience: Patience,
        notice: Notice,
    ) -> None:
        self.memories: dict[int, Records] = dict(memories)
        self._grid = grid
        self._federation = federation
        self._config = config
        self._compiled = compiled
        self._patience = patience
        self._notice = notice
        self._nodes: dict[int, int] = {}  # client -> node
        self._refused: dict[int, RefusedError] = {}  # node -> reason
        self._notices: dict[int, str] = {}  # node -> last notice about it
        self._one_by_one = False  # whether each reply is fetched alone
        self._pending: dict[int, Records] = {}

    def run(self, tasks: Iterable[Task], tick: ClientTick) -> Iterator[Reply | Dropout]:
        del tick  # nodes report no progress
        self._pending.clear()
        waiting = {task.client: task for task in tasks}
        self._find_nodes(set(waiting))
        for client in [client for client in waiting if client not in self._nodes]:
            del waiting[client]
            yield Dropout(client, self._why_missing(client))
        if not waiting:
            return
        first = next(iter(waiting.values()))
        arrays = wire.to_arrays(first.download)  # the same for all clients, encoded once
        contents = {
            client: wire.to_job(self._job(first.round, self._memory_of(client)), arrays)
            for client in waiting
        }
        for client, answer in self._answers(contents, MessageType.TRAIN, wire.from_reply):
            if isinstance(answer, Dropout):
                yield answer
                continue
            reply, remembers = answer
            self._pending[client] = _round_record(first.round) if remembers else {}
            yield reply

    def commit(self, clients: Iterable[int]) -> None:
        for client in clients:
            memory = self._pending.pop(client)
            if memory:
                self.memories[client] = memory

    def evaluate(self, params: Tensors, number: int) -> RoundEvaluation:
        """Evaluates a model on the held-out examples of all nodes that are online."""
        content = wire.to_job(self._job(number), wire.to_arrays({"params": params}))
        contents = dict.fromkeys(self._nodes, content)
        sites: list[SiteRecord] = []
        for client, answer in self._answers(contents, MessageType.EVALUATE, wire.from_site):
            if isinstance(answer, Dropout):
                self._notice(f"client {client} cannot evaluate round {number}: {answer.reason}")
            else:
                sites.append(answer)
        if not sites:
            return RoundEvaluation(float("nan"), float("nan"))
        sites.sort(key=lambda site: site.client)
        return RoundEvaluation(
            sum(site.accuracy for site in sites) / len(sites),
            sum(site.loss for site in sites) / len(sites),
            tuple(sites),
        )

    def _find_nodes(self, clients: set[int]) -> None:
        """Asks nodes which client they are, until every client has a node.

        Nodes refused in an earlier round are asked again, because their owners may have fixed
        the problem. A node that does not answer does not hold up the others.
        """
        deadline = time.monotonic() + self._patience.nodes
        content = wire.to_job(self._job())
        asked: dict[str, int] = {}  # message -> node
        self._refused = {}
        late = False  # past the deadline: no new questions, but replies still count
        while True:
            there = set(self._grid.get_node_ids())
            self._nodes = {c: node for c, node in self._nodes.items() if node in there}
            asked = {message: node for message, node in asked.items() if node in there}
            known = {*self._nodes.values(), *self._refused, *asked.values()}
            asked |= self._sent(
                {
                    node: self._message(content, node, MessageType.QUERY, deadline)
                    for node in (() if late else there - known)
                }
            )
            # If a question could not be delivered, ask again: the node may come back.
            heard = [(n, reply) for n, reply in self._arrived(asked) if not _undelivered(reply)]
            for node, reply in heard:
                self._assign(node, reply)
            if clients <= set(self._nodes) | set(self._declined()):
                return
            if late and not heard:
                return
            late = time.monotonic() >= deadline
            time.sleep(self._patience.poll)

    def _assign(self, node: int, reply: Message | None) -> None:
        """Assigns a node to the client it claims to be, or refuses it."""
        try:
            client = wire.from_hello(content_of(reply))
            most = self._config.partition.clients - 1
            if client > most:
                raise RefusedError(f"its client must be from 0 to {most}, got {client}", None)
            if client in self._nodes:
                raise RefusedError(f"another node is already client {client}", None)
            self._nodes[client] = node
        except RefusedError as error:
            self._refuse(node, error)
        except FedDMError as error:
            self._refuse(node, RefusedError(str(error), None))

    def _refuse(self, node: int, why: RefusedError) -> None:
        self._refused[node] = why
        who = "a node" if why.client is None else f"client {why.client}"
        text = f"{who} is not taking part: {why}"
        if self._notices.get(node) != text:  # don't repeat it every round
            self._notice(text)
        self._notices[node] = text

    def _declined(self) -> dict[int, str]:
        """Returns the clients whose nodes are online but refuse, and why."""
        return {
            why.client: str(why) for why in self._refused.values() if why.client is not None
        }

    def _why_missing(self, client: int) -> str:
        if client in self._declined():
            return self._declined()[client]
        strangers = sorted(str(why) for why in self._refused.values() if why.client is None)
        if not strangers:
            return f"no node found within {self._patience.nodes:g} s"
        return f"no node found; other nodes were refused: {'; '.join(strangers)}"

    def _job(self, number: int = 0, memory: int = 0) -> Job:
        return Job(self._federation, self._config, self._compiled, number, memory)

    def _memory_of(self, client: int) -> int:
        memory = self.memories.get(client)
        return int(memory[_MEMORY][_ROUND]) if memory else 0

    def _answers(
        self,
        contents: Mapping[int, RecordDict],
        kind: str,
        read: Callable[[RecordDict, int], Answer],
    ) -> Iterator[tuple[int, Answer | Dropout]]:
        """Yields the answer of each client, or why it dropped out."""
        waiting = {client: self._nodes[client] for client in contents}
        deadline = time.monotonic() + self._patience.reply
        messages = {
            client: self._message(contents[client], node, kind, deadline)
            for client, node in waiting.items()
        }
        sent = self._sent(messages)
        for client in [client for client in waiting if client not in sent.values()]:
            del waiting[client]
            yield client, Dropout(client, "Flower could not send the message")
        for client, reply in self._replies(sent, deadline):
            del waiting[client]
            try:
                yield client, read(content_of(reply), client)
            except (EngineError, UploadError) as error:
                yield client, Dropout(client, str(error))
        for client in waiting:
            yield client, Dropout(client, f"no reply within {self._patience.reply:g} s")

    def _message(self, content: RecordDict, node: int, kind: str, deadline: float) -> Message:
        seconds = max(0.0, deadline - time.monotonic()) + GRACE
        return Message(content, dst_node_id=node, message_type=kind, ttl=seconds)

    def _replies(
        self, keys: dict[str, int], deadline: float
    ) -> Iterator[tuple[int, Message | None]]:
        """Yields replies as they arrive, with the keys of their messages."""
        while keys:
            late = time.monotonic() >= deadline
            arrived = self._arrived(keys)
            yield from arrived
            if late and not arrived:  # fetch all that came in time, however slow fetching is
                return
            if keys and not arrived:
                time.sleep(self._patience.poll)

    def _sent(self, messages: Mapping[int, Message]) -> dict[str, int]:
        """Sends messages; returns the keys of those that were sent, by message id."""
        sent = set(self._grid.push_messages(list(messages.values()))) if messages else set()
        # Sending sets the ids of all messages but returns only those that were sent.
        keys = {message.metadata.message_id: key for key, message in messages.items()}
        return {name: key for name, key in keys.items() if name in sent}

    def _arrived(self, keys: dict[str, int]) -> list[tuple[int, Message | None]]:
        """Returns the replies that have arrived and removes them from `keys`.

        Flower raises an error for a malformed reply and loses all others that it fetched at
        the same time. They are returned as ``None``; after that, each reply is fetched alone.
        """
        if not keys:
            return []
        arrived: dict[str, Message | None] = {}
        for some in [[name] for name in keys] if self._one_by_one else [list(keys)]:
            try:
                replies = list(self._grid.pull_messages(some))
                arrived |= {reply.metadata.reply_to_message_id: reply for reply in replies}
            except httpx.HTTPError:
                raise  # the SuperLink failed, not a node
            except Exception:  # Flower does not document what it may raise
                self._one_by_one = True
                arrived |= dict.fromkeys(some)
        return [(keys.pop(name), reply) for name, reply in arrived.items() if name in keys]


# A checkpoint stores records only, so the round whose memory is valid is one, too.
_MEMORY, _ROUND = "on_node", "round"


def _round_record(number: int) -> Records:
    return {_MEMORY: {_ROUND: torch.tensor(number)}}


_UNDELIVERED = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


def _undelivered(reply: Message | None) -> bool:
    return reply is not None and reply.has_error() and reply.error.code in _UNDELIVERED


def content_of(reply: Message | None) -> RecordDict:
    """Returns the content of a reply; raises `EngineError` if it is unreadable or an error."""
    if reply is None:
        raise EngineError("Flower could not read the reply")
    if not reply.has_error():
        return reply.content
    reason = wire.one_line(reply.error.reason or "no reason given")
    raise EngineError(f"the node failed (Flower error {reply.error.code}: {reason})")
