"""Clients behind Flower's grid: the engine that our round loop drives.

What a client remembers stays on its node. All that is known here is the round whose memory is
in force, for each client that has any; a checkpoint keeps that, and a task names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx
import torch
from flwr.app import Message, MessageType, RecordDict
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


# Seconds for which Flower keeps a message and its reply longer than they are waited for: what
# came in time must be there when it is fetched.
GRACE = 60.0


@dataclass(frozen=True)
class Patience:
    """For how long the server waits, in seconds.

    Args:
        nodes: For a node of every client, at the start of a round.
        reply: For the reply of a client.
        poll: Between two looks.
    """

    nodes: float = 300.0
    reply: float = 3600.0
    poll: float = 1.0


PATIENT = Patience()


class OnFlower:
    """Clients on Flower's nodes.

    Args:
        grid: Flower's way to the nodes.
        federation: Name of the federation, unlike any other.
        config: What is run.
        compiled: Whether models are compiled.
        memories: What a checkpoint kept: for each client the round whose memory is in force.
        patience: For how long the server waits.
        notice: Is told what the user should know.
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
        self._refused: dict[int, RefusedError] = {}  # node -> why
        self._told: dict[int, str] = {}  # node -> what the user was told of it
        self._one_by_one = False  # replies are fetched so
        self._pending: dict[int, Records] = {}

    def run(self, tasks: Iterable[Task], tick: ClientTick) -> Iterator[Reply | Dropout]:
        del tick  # nodes say nothing until they are done
        self._pending.clear()
        waiting = {task.client: task for task in tasks}
        self._find_nodes(set(waiting))
        for client in [client for client in waiting if client not in self._nodes]:
            del waiting[client]
            yield Dropout(client, self._why_missing(client))
        if not waiting:
            return
        first = next(iter(waiting.values()))
        arrays = wire.to_arrays(first.download)  # the same for all, and made ready once
        contents = {
            client: wire.to_job(self._job(first.round, self._memory_of(client)), arrays)
            for client in waiting
        }
        for client, answer in self._answers(contents, MessageType.TRAIN, wire.from_reply):
            if isinstance(answer, Dropout):
                yield answer
                continue
            reply, remembers = answer
            self._pending[client] = _kept(first.round) if remembers else {}
            yield reply

    def commit(self, clients: Iterable[int]) -> None:
        for client in clients:
            memory = self._pending.pop(client)
            if memory:
                self.memories[client] = memory

    def evaluate(self, params: Tensors, number: int) -> RoundEvaluation:
        """Asks every node that is there how good a model is."""
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
        """Asks nodes who they are, until there is one for each of the clients.

        One that was refused before is asked again: its owner may have mended it since. One
        that says nothing keeps nobody else from being asked and found.
        """
        deadline = time.monotonic() + self._patience.nodes
        content = wire.to_job(self._job())
        asked: dict[str, int] = {}  # message -> node
        self._refused = {}
        late = False  # then nobody is asked any more, but heard
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
            # To whom nothing could be delivered is asked again: it may be back by then.
            heard = [(n, reply) for n, reply in self._arrived(asked) if not _undelivered(reply)]
            for node, reply in heard:
                self._meet(node, reply)
            if clients <= set(self._nodes) | set(self._declined()):
                return
            if late and not heard:
                return
            late = time.monotonic() >= deadline
            time.sleep(self._patience.poll)

    def _meet(self, node: int, reply: Message | None) -> None:
        """Makes a node the client that it says it is, or refuses it."""
        try:
            client = wire.from_hello(content_of(reply))
            if client >= self._config.partition.clients:
                raise RefusedError(f"there is no client {client}", None)
            if client in self._nodes:
                raise RefusedError(f"another node is client {client}, too", None)
            self._nodes[client] = node
        except RefusedError as error:
            self._refuse(node, error)
        except FedDMError as error:
            self._refuse(node, RefusedError(str(error), None))

    def _refuse(self, node: int, why: RefusedError) -> None:
        self._refused[node] = why
        who = "a node" if why.client is None else f"client {why.client}"
        text = f"{who} does not take part: {why}"
        if self._told.get(node) != text:  # the same words every round are no news
            self._notice(text)
        self._told[node] = text

    def _declined(self) -> dict[int, str]:
        """Returns the clients whose nodes are there and do not take part, and why."""
        return {
            why.client: str(why) for why in self._refused.values() if why.client is not None
        }

    def _why_missing(self, client: int) -> str:
        if client in self._declined():
            return self._declined()[client]
        strangers = sorted(str(why) for why in self._refused.values() if why.client is None)
        if not strangers:
            return f"no node within {self._patience.nodes:g} s"
        return f"no node; others were refused: {'; '.join(strangers)}"

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
        """Yields what each client answers, or why nothing came."""
        waiting = {client: self._nodes[client] for client in contents}
        deadline = time.monotonic() + self._patience.reply
        messages = {
            client: self._message(contents[client], node, kind, deadline)
            for client, node in waiting.items()
        }
        sent = self._sent(messages)
        for client in [client for client in waiting if client not in sent.values()]:
            del waiting[client]
            yield client, Dropout(client, "Flower did not send it")
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
        """Yields the replies as they arrive, by the keys of what they reply to."""
        while keys:
            late = time.monotonic() >= deadline
            arrived = self._arrived(keys)
            yield from arrived
            if late and not arrived:  # what was there in time is fetched, however slowly
                return
            if keys and not arrived:
                time.sleep(self._patience.poll)

    def _sent(self, messages: Mapping[int, Message]) -> dict[str, int]:
        """Sends messages, and returns the keys of those that were sent by their identities."""
        sent = set(self._grid.push_messages(list(messages.values()))) if messages else set()
        # Sending gave them their identities; one that was not sent is not among those.
        keys = {message.metadata.message_id: key for key, message in messages.items()}
        return {identity: key for identity, key in keys.items() if identity in sent}

    def _arrived(self, keys: dict[str, int]) -> list[tuple[int, Message | None]]:
        """Returns the replies that are there, and takes them off the list.

        Flower fails on a reply that is not well made, and loses all that it fetched with it.
        Those are ``None``, and from then on each reply is fetched alone.
        """
        if not keys:
            return []
        arrived: dict[str, Message | None] = {}
        for some in [[identity] for identity in keys] if self._one_by_one else [list(keys)]:
            try:
                replies = list(self._grid.pull_messages(some))
                arrived |= {reply.metadata.reply_to_message_id: reply for reply in replies}
            except httpx.HTTPError:
                raise  # of the SuperLink, and of no node
            except Exception:  # nobody says what it may be
                self._one_by_one = True
                arrived |= dict.fromkeys(some)
        return [(keys.pop(name), reply) for name, reply in arrived.items() if name in keys]


# How a checkpoint keeps the round whose memory is in force: records, as all that it keeps.
_MEMORY, _ROUND = "on_node", "round"


def _kept(number: int) -> Records:
    return {_MEMORY: {_ROUND: torch.tensor(number)}}


# Flower's codes for a message or its reply that is gone, and for a node that is.
_UNDELIVERED = (3, 4, 5)


def _undelivered(reply: Message | None) -> bool:
    return reply is not None and reply.has_error() and reply.error.code in _UNDELIVERED


def content_of(reply: Message | None) -> RecordDict:
    """Returns what a reply says; an `EngineError` if it is not there or no good."""
    if reply is None:
        raise EngineError("the reply cannot be read")
    if not reply.has_error():
        return reply.content
    reason = wire.one_line(reply.error.reason or "no reason is given")
    raise EngineError(f"the node failed (Flower's code {reply.error.code}: {reason})")
