"""Runs whose clients are Flower's nodes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from feddm.config.schema import Config
from feddm.core.examples import Examples
from feddm.core.tensors import Records, Tensors
from feddm.data.catalog import described
from feddm.data.own import read_own
from feddm.errors import ConfigError
from feddm.flower.engine import PATIENT, Notice, OnFlower, Patience
from feddm.runtime.build import Setup, build_dataset, build_server, check
from feddm.runtime.federation import Evaluator, RoundEvaluation, RoundRecord, evaluator_on
from feddm.runtime.protection import with_noise
from feddm.runtime.session import ON_NODES, Clients


@dataclass(frozen=True)
class FlowerNodes:
    """Clients on Flower's nodes.

    Args:
        grid: Flower's way to the nodes.
        notice: Is told what the user should know.
        patience: For how long the server waits.
        retries: How often a round is tried again that lost too many clients.
    """

    grid: Grid
    notice: Notice
    patience: Patience = PATIENT
    retries: int = 1

    @contextlib.contextmanager
    def opened(
        self, config: Config, run: str, before: Mapping[str, Any]
    ) -> Iterator[FlowerSession]:
        del before
        yield FlowerSession(self, server_of(config), run)


@dataclass(frozen=True)
class FlowerSession:
    """Clients on Flower's nodes, for one run."""

    place: FlowerNodes
    setup: Setup
    run: str

    @property
    def retries(self) -> int:
        return self.place.retries

    @property
    def environment(self) -> dict[str, Any]:
        return {"data": ON_NODES}

    def check(self, records: Sequence[RoundRecord]) -> None:
        """Nodes check for themselves."""

    def clients(
        self, memories: Mapping[int, Records]
    ) -> contextlib.AbstractContextManager[OnFlower]:
        place, setup = self.place, self.setup
        clients = OnFlower(
            place.grid,
            self.run,
            setup.config,
            setup.compiled,
            memories,
            place.patience,
            place.notice,
        )
        return contextlib.nullcontext(clients)  # nodes belong to others, and are not closed

    def judge(self, clients: Clients) -> Evaluator:
        setup = self.setup
        if setup.test is not None:
            return evaluator_on(setup.algorithm, setup.test, setup.device)
        if not setup.config.data.holdout:
            return _nobody
        assert isinstance(clients, OnFlower)
        return clients.evaluate

    def epsilon(self, records: Sequence[RoundRecord]) -> float | None:
        """Returns the most that any client says it has spent, whether or not asked now."""
        if self.setup.config.privacy.mechanism == "none":
            return None
        said = [
            client.metrics.get("epsilon", math.inf)
            for record in records
            for client in record.clients
        ]
        # One that says no number makes no promise.
        return max((each if each >= 0 else math.inf for each in said), default=math.inf)


def server_of(config: Config) -> Setup:
    """Returns the server of a run on nodes; an error says what can be known to fail."""
    check(config)
    if config.privacy.test_secret:
        raise ConfigError("privacy.test_secret must be left out: nodes have their own secrets")
    # What nodes have spent before is theirs to know; one that cannot afford this says so.
    config = with_noise(config, [])
    return build_server(config, described(config.data), test_set(config))


def test_set(config: Config) -> Examples | None:
    """Returns what the server judges models by, if it has anything.

    With `data.holdout` nodes judge, unless the server has a test set of its own.
    """
    if config.data.own.test:
        return read_own(Path(config.data.own.test), described(config.data))
    if config.data.own.classes or config.data.holdout:
        return None
    return build_dataset(config.data).test


def _nobody(params: Tensors, number: int) -> RoundEvaluation:
    """Without examples held out nodes cannot judge; under privacy they never do."""
    del params, number
    return RoundEvaluation(math.nan, math.nan)
