"""Whole runs with the real server and client app, but without a network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fake_grid import FakeGrid, Node
from feddm.config.registry import algorithm_names
from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.core.tensors import to_bytes
from feddm.errors import ConfigError, LostClientsError, RunDirectoryError
from feddm.flower.client_app import app
from feddm.flower.engine import Patience
from feddm.flower.session import on_nodes, reported_epsilon
from feddm.runtime.federation import ClientRecord, RoundRecord
from feddm.runtime.run import Observer, RunResult, execute, resume
from feddm.runtime.session import OpenSession
from tiny import CLIENTS, SETTINGS

pytestmark = pytest.mark.usefixtures("inside_an_app")

REPLAYED = {"coding": "uint8", "server.replay": 1}


def config(algorithm: str = "feddm", rounds: int = 2, **settings: Any) -> Config:
    return resolve(
        options={"algorithm": algorithm, "clients": CLIENTS, "rounds": rounds, "workers": 1},
        settings={**SETTINGS, **settings},
        shared=True,
    )


def node(client: int, folder: Path) -> Node:
    """Returns a node that answers with the client app."""
    values: dict[str, Any] = {"partition-id": client, "folder": str(folder / str(client))}
    context = Context(1, client, values, RecordDict(), {})
    return lambda message: app(message, context).content


def nodes(folder: Path, retries: int = 0) -> OpenSession:
    grid = FakeGrid({50 + client: node(client, folder) for client in range(CLIENTS)})
    patience = Patience(nodes=1, reply=60, poll=0.01)
    return on_nodes(grid, lambda text: None, patience, retries)


def params(result: RunResult) -> bytes:
    return to_bytes({"params": result.model.params})


class StopAfterOne(Observer):
    def finished_round(self, record: RoundRecord) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("algorithm", algorithm_names())
def test_every_algorithm_gives_the_same_bits_as_in_process(
    algorithm: str, tmp_path: Path
) -> None:
    there = execute(config(algorithm), None, Observer(), nodes(tmp_path))
    here = execute(config(algorithm), None, Observer())
    assert params(there) == params(here)
    for ours, theirs in zip(there.records, here.records, strict=True):
        assert (ours.accuracy, ours.loss) == (theirs.accuracy, theirs.loss)
        assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("scaffold", {}), ("scaffold", {"bits": 4}), ("fedavg", {"bits": 8}), ("feddm", REPLAYED)],
    ids=["scaffold", "4 bits", "8 bits", "replayed"],
)
def test_resumed_it_has_the_same_bits(
    algorithm: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Clients keep their memories on their own disks; the run directory has none of them."""
    ours = config(algorithm, rounds=3, **settings)
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        execute(ours, run, StopAfterOne(), nodes(tmp_path))
    kept = run / "checkpoints" / "round_00000001" / "memories.safetensors"
    assert kept.stat().st_size < 1000  # only round numbers
    there = resume(run, opened=nodes(tmp_path))
    assert params(there) == params(execute(ours, None, Observer()))


def test_it_cannot_be_resumed_in_process(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(config(), tmp_path / "run", StopAfterOne(), nodes(tmp_path))
    with pytest.raises(RunDirectoryError, match="on Flower nodes; resume it with"):
        resume(tmp_path / "run")


def test_a_node_that_lost_its_memory_drops_out(tmp_path: Path) -> None:
    ours = config("scaffold")
    with pytest.raises(KeyboardInterrupt):
        execute(ours, tmp_path / "run", StopAfterOne(), nodes(tmp_path / "before"))
    with pytest.raises(LostClientsError, match="client 0: the memory of round 1 is no longer"):
        resume(tmp_path / "run", opened=nodes(tmp_path / "after"))


def test_nodes_evaluate_if_the_server_has_no_test_set(tmp_path: Path) -> None:
    ours = config("feddm", 2, **{"data.holdout": 0.25})
    result = execute(ours, tmp_path / "run", Observer(), nodes(tmp_path))
    for record in result.records:
        assert [site.client for site in record.sites] == list(range(CLIENTS))
        mean = sum(site.accuracy for site in record.sites) / CLIENTS
        assert record.accuracy == pytest.approx(mean)
    again = resume(tmp_path / "run", opened=nodes(tmp_path))  # it is already finished
    assert again.records == result.records


PRIVATE: dict[str, Any] = {
    "privacy.mechanism": "features",
    "privacy.epsilon": 4.0,
    "privacy.delta": 1e-5,
}


class TestPrivacy:
    def test_records_say_what_was_spent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        ours = config(**PRIVATE)
        result = execute(ours, None, Observer(), nodes(tmp_path))
        first, second = (record.epsilon for record in result.records)
        assert first is not None and second is not None
        assert 0 < first < second <= 4.0 * (1 + 1e-6)
        # Nodes do not reveal how long they worked.
        assert all(math.isnan(record.client_seconds) for record in result.records)
        # The budget of these examples is spent, so another federation is refused.
        with pytest.raises(LostClientsError, match="privacy budget does not allow this round"):
            execute(ours, None, Observer(), nodes(tmp_path))

    @pytest.mark.parametrize("said", [{}, {"epsilon": math.nan}, {"epsilon": -1.0}])
    def test_a_client_that_reports_no_epsilon_guarantees_nothing(
        self, said: dict[str, float]
    ) -> None:
        clients = [
            ClientRecord(0, 0.0, 0, 0, {"epsilon": 1.0}),
            ClientRecord(1, 0.0, 0, 0, said),
        ]
        for order in (clients, clients[::-1]):
            record = RoundRecord(1, 0.0, 0.0, 0, 0, 0, 0, 0.0, 0.0, tuple(order))
            assert reported_epsilon([record]) == math.inf

    def test_epsilon_of_earlier_rounds_counts(self) -> None:
        # Client 0 has spent 3 by round 1 and is not in the cohort of round 2.
        first, second = (
            RoundRecord(number, 0.0, 0.0, 0, 0, 0, 0, 0.0, 0.0, (client,))
            for number, client in (
                (1, ClientRecord(0, 0.0, 0, 0, {"epsilon": 3.0})),
                (2, ClientRecord(1, 0.0, 0, 0, {"epsilon": 0.5})),
            )
        )
        assert reported_epsilon([first, second]) == 3.0

    def test_no_node_evaluates(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        ours = config(rounds=1, **PRIVATE | {"data.holdout": 0.25})
        with pytest.raises(ConfigError, match=r"data\.holdout must be 0 with privacy"):
            execute(ours, None, Observer(), nodes(tmp_path))
