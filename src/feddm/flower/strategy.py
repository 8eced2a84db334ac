"""FedDM as a strategy, for those who have a Flower project already.

The server:

    strategy = FedDM(classes=["ill", "well"], shape=(1, 64, 64), clients=10)
    strategy.start(grid, initial_arrays=strategy.initial_arrays, num_rounds=5)

The client, with whatever reads its data:

    app = client_app(lambda context: (images, labels))

The model is that of the configuration; ``strategy.model`` is what it learned. All other
algorithms work as well: ``FedDM(..., algorithm="scaffold")``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from feddm.algorithms.base import Upload
from feddm.config.schema import resolve
from feddm.core.examples import Normalization
from feddm.core.seeding import generator
from feddm.core.tensors import Records
from feddm.core.training import ignore
from feddm.data.catalog import described
from feddm.errors import EngineError, UploadError
from feddm.flower import wire
from feddm.flower.engine import content_of
from feddm.flower.node import OWN_DATA, Job
from feddm.runtime.build import build_model, build_server, check
from feddm.runtime.client import Reply, threads
from feddm.runtime.federation import start
from feddm.runtime.model_file import TrainedModel
from feddm.runtime.protection import with_noise


class FedDM(Strategy):
    """Clients send small synthetic data sets, and the server trains on their union.

    Args:
        classes: Names of the classes; without them the data are a known set.
        shape: Channels, height and width of an image.
        clients: How many nodes there are; a node says its number by ``partition-id``.
        settings: Any other values by their keys, as ``{"server.lr": 0.1}``.
        options: The options of `feddm.run`, as ``algorithm="fedavg"``.
    """

    def __init__(
        self,
        classes: Sequence[str] = (),
        shape: Sequence[int] = (1, 28, 28),
        *,
        clients: int,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        own = {"data.own.classes": list(classes), "data.own.shape": list(shape)}
        named = {"dataset": OWN_DATA} if classes else {}
        config = resolve(
            preset=options.pop("preset", None),
            options={**named, "clients": clients, **options},
            settings={**(own if classes else {}), **(settings or {})},
        )
        check(config)
        config = with_noise(config, [])
        self._setup = build_server(config, described(config.data), None)
        self._federation = uuid.uuid4().hex
        self._state = start(self._setup.algorithm, config.seed).state
        self._download: Records = {}
        self._memories: dict[int, int] = {}  # node -> the round whose memory is in force

    @property
    def initial_arrays(self) -> ArrayRecord:
        """What `start` begins with."""
        return wire.to_arrays({"params": self._state["params"]})["params"]

    @property
    def model(self) -> TrainedModel:
        """What was learned so far."""
        info, config = self._setup.info, self._setup.config
        return TrainedModel(
            config.model,
            build_model(config.model, info.shape, len(info.classes)),
            self._state["params"],
            info.classes,
            Normalization(info.mean, info.std),
        )

    def summary(self) -> None:
        """Says what is run."""
        config = self._setup.config
        log(INFO, "\t└──> feddm: %s, preset %s", config.algorithm, config.preset)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks all nodes for their part of a round."""
        del arrays, config  # what counts is the state, of which the model is a part
        self._download = self._setup.algorithm.broadcast(self._state)
        download = wire.to_arrays(self._download)
        return [
            Message(
                wire.to_job(self._job(server_round, self._memories.get(node, 0)), download),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
            )
            for node in grid.get_node_ids()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Learns from what came; who brought nothing is named in the log."""
        algorithm, config = self._setup.algorithm, self._setup.config
        good = self._accepted(replies)
        if not good:
            return None, None
        remembering = {node: server_round for _, node, remembers in good.values() if remembers}
        # In the order of clients, because float addition depends on order.
        uploads = [Upload(client, good[client][0].upload) for client in sorted(good)]
        with threads(config.runtime.server_threads):
            self._state = algorithm.aggregate(
                self._state,
                iter(uploads),
                generator(config.seed, "server", server_round),
                ignore,
            )
        self._memories |= remembering
        return self.initial_arrays, MetricRecord({"clients": len(good)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks all nodes how good the model is, if they hold out examples."""
        del config
        if not self._setup.config.data.holdout:
            return []
        content = wire.to_job(self._job(server_round), {"params": arrays})
        return [
            Message(content, dst_node_id=node, message_type=MessageType.EVALUATE)
            for node in grid.get_node_ids()
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Returns the mean and the worst of what the nodes say."""
        del server_round
        sites = []
        for reply in replies:
            try:
                content = content_of(reply)
                sites.append(wire.from_site(content, wire.from_hello(content)))
            except (EngineError, UploadError) as error:
                log(WARNING, "feddm: a node does not judge: %s", error)
        if not sites:
            return None
        right = [site.accuracy for site in sites]
        balanced = [site.balanced_accuracy for site in sites]
        return MetricRecord(
            {
                "accuracy": sum(right) / len(right),
                "worst_accuracy": min(right),
                "balanced_accuracy": sum(balanced) / len(balanced),
            }
        )

    def _job(self, number: int, memory: int = 0) -> Job:
        setup = self._setup
        return Job(self._federation, setup.config, setup.compiled, number, memory)

    def _accepted(self, replies: Iterable[Message]) -> dict[int, tuple[Reply, int, bool]]:
        """Returns the good replies by client, with their node and whether it remembers."""
        good: dict[int, tuple[Reply, int, bool]] = {}
        for message in replies:
            try:
                content = content_of(message)
                client = wire.from_hello(content)
                if client in good or client >= self._setup.config.partition.clients:
                    raise UploadError(f"there is no place for another client {client}")
                reply, remembers = wire.from_reply(content, client)
                self._setup.algorithm.check(reply.upload, self._download)
                good[client] = reply, message.metadata.src_node_id, remembers
            except (EngineError, UploadError) as error:
                log(WARNING, "feddm: a node brought nothing: %s", error)
        return good
