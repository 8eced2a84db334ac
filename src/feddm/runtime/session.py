"""Where the clients of a run are: on this machine, or wherever else a `Place` finds them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from feddm.config.schema import Config
from feddm.core.tensors import Records
from feddm.data.datasets import fingerprint
from feddm.errors import LedgerError
from feddm.privacy.vault import Vaults
from feddm.runtime.build import LocalSetup, Setup, build, num_workers
from feddm.runtime.client import Engine
from feddm.runtime.federation import Evaluator, RoundRecord, cohort_size, evaluator_on
from feddm.runtime.local import InProcess
from feddm.runtime.protection import ledger_of, locked_ledger

# The fingerprint of data that are elsewhere.
ON_NODES = "on nodes"


class Clients(Engine, Protocol):
    """An engine that knows what its clients remember, or how to have them remember it."""

    @property
    def memories(self) -> Mapping[int, Records]:
        """What a checkpoint keeps about each client."""


class Session(Protocol):
    """The clients of one run, and the server that goes with them."""

    @property
    def retries(self) -> int:
        """How often a round is tried again that lost too many clients."""

    @property
    def setup(self) -> Setup:
        """The server."""

    @property
    def environment(self) -> dict[str, Any]:
        """What can change the bits of a run beside its configuration and the versions."""

    def check(self, records: Sequence[RoundRecord]) -> None:
        """Raises an error if the clients cannot go on after these rounds."""

    def clients(
        self, memories: Mapping[int, Records]
    ) -> contextlib.AbstractContextManager[Clients]:
        """Returns the clients, with what a checkpoint kept about them."""

    def judge(self, clients: Clients) -> Evaluator:
        """Returns who says how good a model is."""

    def epsilon(self, records: Sequence[RoundRecord]) -> float | None:
        """Returns the most that any client has spent by now; ``None`` without privacy."""


class Place(Protocol):
    """Where clients are."""

    def opened(
        self, config: Config, run: str, before: Mapping[str, Any]
    ) -> contextlib.AbstractContextManager[Session]:
        """Returns the clients of a run while they are ours.

        Args:
            config: What is run.
            run: Name of the federation, unlike any other.
            before: The environment that the run began with; empty for a new one.
        """


class Here:
    """Clients on this machine, simulated one after another or side by side."""

    @contextlib.contextmanager
    def opened(
        self, config: Config, run: str, before: Mapping[str, Any]
    ) -> Iterator[LocalSession]:
        if before:
            _check_ledger(config, before)
        with locked_ledger(config, run):
            yield LocalSession(build(config, run))


@dataclasses.dataclass(frozen=True)
class LocalSession:
    """Clients on this machine, for one run."""

    setup: LocalSetup
    retries: int = 0  # the same clients would give the same bits

    @property
    def environment(self) -> dict[str, Any]:
        """The data and their ledger.

        With privacy only the ledger's owner can compute the fingerprint of the data.
        """
        setup, vaults = self.setup, self.setup.vaults
        if vaults is None:
            return {"data": fingerprint(setup.dataset, setup.shards)}
        ledger = {"ledger": str(vaults.ledger.folder), "ledger_id": vaults.ledger.id}
        return {"data": vaults.split, **ledger}

    def check(self, records: Sequence[RoundRecord]) -> None:
        if self.setup.vaults is not None and records:
            _check_paid(self.setup.vaults, records)

    def clients(self, memories: Mapping[int, Records]) -> InProcess:
        setup, config = self.setup, self.setup.config
        cohort = cohort_size(len(setup.shards), config.participation)
        return InProcess(
            setup.algorithm,
            setup.dataset.train,
            setup.shards,
            num_workers(config.runtime, cohort, setup.device),
            memories,
            setup.device,
            setup.vaults,
        )

    def judge(self, clients: Clients) -> Evaluator:
        del clients
        return evaluator_on(self.setup.algorithm, self.setup.dataset.test, self.setup.device)

    def epsilon(self, records: Sequence[RoundRecord]) -> float | None:
        del records
        return None if self.setup.vaults is None else self.setup.vaults.epsilon()


def _check_ledger(config: Config, before: Mapping[str, Any]) -> None:
    """Raises `LedgerError` unless the ledger is the one that the run began with."""
    ledger = ledger_of(config, str(before.get("run", "")))
    if ledger is None or (ledger.id is not None and ledger.id == before.get("ledger_id")):
        return
    what = "is missing" if ledger.id is None else "is another one"
    raise LedgerError(
        f"the ledger {ledger.folder} {what}; put back what the run began with, which was in "
        f"{before.get('ledger')}, or start a new run"
    )


def _check_paid(vaults: Vaults, records: Sequence[RoundRecord]) -> None:
    """Raises `LedgerError` unless all rounds so far are on the ledger."""
    uploads = [(record.round, part.client) for record in records for part in record.clients]
    vaults.check_paid(uploads, least=records[-1].epsilon or 0.0)
