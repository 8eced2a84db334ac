import dataclasses

import pytest

from feddm.analysis.studies import Cell
from feddm.config.resolve import resolve
from feddm.data.catalog import describe
from feddm.paper import estimate
from feddm.paper.estimate import listed, seconds
from feddm.paper.experiments import EXPERIMENTS
from feddm.paper.scales import SCALES, TWO_CORES, Machine


def cell(**settings: object) -> Cell:
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    named = {"algorithm": "fedavg", "data.name": "cifar10", "rounds": 3}
    return Cell("a", 0, resolve(preset="paper", settings=named | keys))


def test_seconds_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a round, 50,000 images pass ten times forward and back, as two clients at a time, and
    # 10,000 test images forward.
    monkeypatch.setattr(estimate, "_flops", lambda model, dataset: 1000)
    machine = Machine("a dream", flops=1e6, large_flops=1e9, workers=2)
    work = 3 * (3 * 50_000 * 10 / 2 + 10_000)
    assert seconds([cell()], machine) == pytest.approx(1 + work * 1000 / 1e6)
    assert seconds([cell(), cell()], machine) == pytest.approx(2 + 2 * work * 1000 / 1e6)
    monkeypatch.setattr(estimate, "_flops", lambda model, dataset: 10**9)
    assert seconds([cell()], machine) == pytest.approx(1 + work)


def test_private_runs_are_computed_on_the_processor() -> None:
    private = cell(privacy__mechanism="gradients", privacy__noise_multiplier=1.0)
    endless = dataclasses.replace(TWO_CORES, flops=1e30, large_flops=1e30)
    assert seconds([cell()], endless) == pytest.approx(1)
    assert seconds([private], endless) == seconds([private], TWO_CORES) > 100


def test_the_split_has_all_examples_and_the_skew() -> None:
    for alpha, least, most in ((0.5, 60, 100), (0.01, 10, 25)):
        config = cell(partition__alpha=alpha).config
        table = estimate._table(config.partition, "cifar10")
        assert table.sum() == describe("cifar10").num_train
        assert least <= (table >= 10).sum() <= most  # the paper has 87 and 15 pairs


def test_all_are_listed_with_all_scales() -> None:
    rows = listed()
    assert [row["name"] for row in rows] == list(EXPERIMENTS)
    assert all(set(row["estimates"]) == set(SCALES) for row in rows)
    by_name = {row["name"]: row["estimates"] for row in rows}
    assert by_name["surrogate"]["full"] == by_name["cost"]["full"] == "seconds"
    assert by_name["ipc"]["smoke"].endswith(" s")
