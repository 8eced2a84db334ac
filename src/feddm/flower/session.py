"""Sessions with clients on Flower nodes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from feddm.config.schema import Config
from feddm.core.examples import Examples
from feddm.core.tensors import Tensors
from feddm.data.catalog import described
from feddm.data.own import read_own
from feddm.errors import ConfigError
from feddm.flower.engine import PATIENT, Notice, OnFlower, Patience
from feddm.runtime.build import Setup, build_dataset, build_server, check_config
from feddm.runtime.federation import Evaluator, RoundEvaluation, RoundRecord, evaluator_on
from feddm.runtime.private_setup import with_noise
from feddm.runtime.session import ON_NODES, OpenSession, Session


def on_nodes(
    grid: Grid, notice: Notice, patience: Patience = PATIENT, retries: int = 1
) -> OpenSession:
    """Returns a function that opens sessions with clients on Flower nodes.

    Args:
        grid: Flower's connection to the nodes.
        notice: Receives what the user should know.
        patience: How long the server waits.
        retries: How often a round is repeated if too many clients drop out.
    """

    @contextlib.contextmanager
    def opened(config: Config, run: str, before: Mapping[str, Any]) -> Iterator[Session]:
        del before
        setup = server_of(config)
        engine = OnFlower(grid, run, setup.config, setup.compiled, {}, patience, notice)
        private = setup.config.privacy is not None
        yield Session(
            setup,
            engine,
            engine.memories,
            _evaluator(setup, engine),
            lambda: {"data": ON_NODES},
            lambda records: reported_epsilon(records) if private else None,
            retries=retries,
        )  # nothing to check or close: nodes check for themselves and belong to others

    return opened


def reported_epsilon(records: Sequence[RoundRecord]) -> float:
    """Returns the most that any client of any round reports as spent."""
    reported = [
        client.metrics.get("epsilon", math.inf)
        for record in records
        for client in record.clients
    ]
    # A client that reports no number guarantees nothing.
    return max((each if each >= 0 else math.inf for each in reported), default=math.inf)


def _evaluator(setup: Setup, engine: OnFlower) -> Evaluator:
    if setup.test is not None:
        return evaluator_on(setup.algorithm, setup.test, setup.device)
    return engine.evaluate if setup.config.data.holdout else unevaluated


def server_of(config: Config) -> Setup:
    """Returns the server of a run on nodes, after checking what can be checked there."""
    check_config(config)
    if config.privacy is not None and config.privacy.test_secret:
        raise ConfigError("privacy.test_secret must be left out: nodes have their own secrets")
    # Only the nodes know what they have spent before; one that cannot afford this refuses.
    config = with_noise(config, [])
    return build_server(config, described(config.data), test_set(config))


def test_set(config: Config) -> Examples | None:
    """Returns the server's test set, if it has one.

    With `data.holdout` the nodes evaluate, unless the server has its own test set.
    """
    if config.data.own.test:
        return read_own(Path(config.data.own.test), config.data)
    if config.data.own.classes or config.data.holdout:
        return None
    return build_dataset(config.data).test


def unevaluated(params: Tensors, number: int) -> RoundEvaluation:
    """Returns NaN: nodes cannot evaluate without held-out examples or under privacy."""
    del params, number
    return RoundEvaluation(math.nan, math.nan)
