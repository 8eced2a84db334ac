"""The Flower strategy, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result, Strategy

from fake_grid import FakeGrid, Node
from feddm.errors import EngineError, LostClientsError
from feddm.flower import strategy as strategy_module
from feddm.flower import wire
from feddm.flower.client_app import client_app
from feddm.flower.engine import Patience
from feddm.flower.strategy import FedDM

pytestmark = pytest.mark.usefixtures("inside_an_app")

CLIENTS = 3


def two_classes(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns dark and bright images."""
    rng = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    labels = torch.arange(40) % 2
    pixels = torch.randint(100, (40, 1, 8, 8), generator=rng)
    return (pixels + 100 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels


def node(client: int, folder: Path) -> Node:
    values: dict[str, Any] = {"partition-id": client, "folder": str(folder / str(client))}
    context = Context(1, client, values, RecordDict(), {})
    app = client_app(two_classes)
    return lambda message: app(message, context).content


def grid(folder: Path) -> FakeGrid:
    return FakeGrid({50 + client: node(client, folder) for client in range(CLIENTS)})


def strategy(**options: Any) -> FedDM:
    return FedDM(["dark", "bright"], (1, 8, 8), clients=CLIENTS, width=8, **options)


def started(chosen: FedDM, nodes: FakeGrid, rounds: int = 2, **more: Any) -> Result:
    return chosen.start(nodes, chosen.initial_arrays, num_rounds=rounds, **more)


def test_it_is_a_strategy_that_learns(tmp_path: Path) -> None:
    # No random changes of brightness, which is what tells the classes apart.
    plain = {"synthesis.augment": False, "server.augment": False}
    chosen = strategy(settings={"data.holdout": 0.2, **plain})
    assert isinstance(chosen, Strategy)
    result = started(chosen, grid(tmp_path))
    images, labels = two_classes(Context(1, 9, {"partition-id": 9}, RecordDict(), {}))
    expected = [["dark", "bright"][label] for label in labels.tolist()]
    found = chosen.model.predict(images)
    assert sum(map(str.__eq__, found, expected)) >= 36  # of 40
    assert [dict(result.train_metrics_clientapp[number]) for number in (1, 2)] == [
        {"clients": CLIENTS}
    ] * 2
    assert set(result.evaluate_metrics_clientapp[2]) == {
        "accuracy",
        "worst_accuracy",
        "balanced_accuracy",
    }
    assert wire.from_arrays(RecordDict({"params": result.arrays}))["params"].keys() == (
        chosen.model.params.keys()
    )


def test_rounds_in_two_calls_are_the_same_as_in_one(tmp_path: Path) -> None:
    """The second call continues from the nodes' memories."""
    whole, parts = strategy(algorithm="scaffold"), strategy(algorithm="scaffold")
    started(whole, grid(tmp_path / "whole"), rounds=2)
    for _ in range(2):
        started(parts, grid(tmp_path / "parts"), rounds=1)
    assert whole.model.to_bytes() == parts.model.to_bytes()


def test_a_client_may_fail_but_not_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        strategy_module, "Patience", lambda reply: Patience(nodes=0.1, reply=reply, poll=0.01)
    )
    nodes = grid(tmp_path)
    del nodes.nodes[51]
    result = started(strategy(), nodes, rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"clients": 2}
    with pytest.raises(LostClientsError, match="round 1: client 1: no node"):
        started(strategy(settings={"min_clients": 3}), nodes, rounds=1)
    with pytest.raises(LostClientsError, match="0 of 3 clients are left"):
        started(strategy(), FakeGrid({}), rounds=1)


def test_your_own_evaluation_runs_before_the_first_and_after_each_round(tmp_path: Path) -> None:
    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        return MetricRecord({"arrays": len(arrays)}) if number != 1 else None

    result = started(strategy(), grid(tmp_path), evaluate_fn=evaluate)
    assert sorted(result.evaluate_metrics_serverapp) == [0, 2]


def test_the_steps_of_a_round_cannot_be_called() -> None:
    with pytest.raises(EngineError, match="call start"):
        strategy().aggregate_train(1, [])
