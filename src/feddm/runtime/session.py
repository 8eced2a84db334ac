"""The session of a run: its server and its clients, on this machine or elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feddm.config.code import is_given
from feddm.config.schema import Config
from feddm.core.tensors import Records
from feddm.data.datasets import fingerprint
from feddm.errors import LedgerError
from feddm.privacy.vault import Vaults
from feddm.runtime.build import LocalSetup, Setup, build, num_workers
from feddm.runtime.client import Engine
from feddm.runtime.federation import Evaluator, RoundRecord, cohort_size, evaluator_on
from feddm.runtime.local import InProcess
from feddm.runtime.private_setup import ledger_of, locked_ledger

# Takes the place of the fingerprint if the data are on nodes.
ON_NODES = "on nodes"


def _unchecked(records: Sequence[RoundRecord]) -> None:
    del records


@dataclass(frozen=True)
class Session:
    """What a run needs while it runs, wherever its clients are.

    Args:
        setup: The server.
        engine: Runs the clients.
        memories: What a checkpoint stores about each client; a resumed run fills it in.
        evaluator: Evaluates the model after each round.
        environment: Returns what can change the bits of a run, besides its configuration and
            the versions.
        epsilon: Returns the most any client has spent after these rounds; ``None`` without
            privacy.
        check: Raises an error if the clients cannot continue after these rounds.
        retries: How often a round is repeated if too many clients drop out.
    """

    setup: Setup
    engine: Engine
    memories: dict[int, Records]
    evaluator: Evaluator
    environment: Callable[[], dict[str, Any]]
    epsilon: Callable[[Sequence[RoundRecord]], float | None]
    check: Callable[[Sequence[RoundRecord]], None] = _unchecked
    retries: int = 0


# Opens the session of a configuration. The other arguments are the unique name of the run, and
# the environment that it began with (empty for a new run).
OpenSession = Callable[
    [Config, str, Mapping[str, Any]], contextlib.AbstractContextManager[Session]
]


@contextlib.contextmanager
def local_session(config: Config, run: str, before: Mapping[str, Any]) -> Iterator[Session]:
    """Opens a session that simulates the clients on this machine, in one or more processes."""
    if before:
        _check_ledger(config, before)
    with locked_ledger(config, run):
        setup = build(config, run)
        vaults, config = setup.vaults, setup.config
        cohort = cohort_size(len(setup.shards), config.participation)
        here = is_given(config.algorithm.name) or is_given(config.model.name)
        with InProcess(
            setup.algorithm,
            setup.dataset.train,
            setup.shards,
            1 if here else num_workers(config.runtime, cohort, setup.device),
            device=setup.device,
            vaults=vaults,
        ) as engine:
            yield Session(
                setup,
                engine,
                engine.memories,
                evaluator_on(setup.algorithm, setup.dataset.test, setup.device),
                lambda: _environment(setup),
                lambda records: None if vaults is None else vaults.epsilon(),
                lambda records: _check_paid(vaults, records),
            )  # no retries: a client would fail again in the same way


def _environment(setup: LocalSetup) -> dict[str, Any]:
    """Returns the fingerprint of the data and the identity of their ledger.

    With privacy, only the owner of the ledger can compute the fingerprint.
    """
    if setup.vaults is None:
        notes = "; ".join(setup.dataset.notices)
        digest = {"data": fingerprint(setup.dataset, setup.shards)}
        return {**digest, "data_notes": notes} if notes else digest
    ledger = setup.vaults.ledger
    return {"data": setup.vaults.split, "ledger": str(ledger.folder), "ledger_id": ledger.id}


def _check_ledger(config: Config, before: Mapping[str, Any]) -> None:
    """Raises `LedgerError` if the ledger is not the one that the run began with."""
    ledger = ledger_of(config, str(before.get("run", "")))
    if ledger is None or (ledger.id is not None and ledger.id == before.get("ledger_id")):
        return
    what = "is missing" if ledger.id is None else "is not the one that the run began with"
    raise LedgerError(
        f"the ledger {ledger.folder} {what}; restore the original, which was in "
        f"{before.get('ledger')}, or start a new run"
    )


def _check_paid(vaults: Vaults | None, records: Sequence[RoundRecord]) -> None:
    """Raises `LedgerError` if a round so far is missing from the ledger."""
    if vaults is None or not records:
        return
    uploads = [(record.round, part.client) for record in records for part in record.clients]
    vaults.check_paid(uploads, least=records[-1].epsilon or 0.0)
