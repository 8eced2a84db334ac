import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from feddm.analysis.studies import (
    Cell,
    StudyObserver,
    adopt,
    choices,
    run_cells,
    setting_name,
    winner_toml,
)
from feddm.config.resolve import resolve
from feddm.errors import FedDMError, RunDirectoryError
from feddm.runtime.federation import RoundRecord
from feddm.runtime.rundir import RunDirectory

SMALL: dict[str, Any] = {
    "model.width": 4,
    "model.depth": 2,
    "local.batch_size": 64,
    "runtime.workers": 1,
}


def cell(name: str = "fedavg", seed: int = 0, rounds: int = 2, **options: object) -> Cell:
    chosen = {"algorithm": name, "seed": seed, "rounds": rounds, "clients": 3, **options}
    return Cell(name, seed, resolve(options=chosen, settings=SMALL, shared=True))


class Watching(StudyObserver):
    def __init__(self, stop_after: int = -1) -> None:
        self.log: list[str] = []
        self._left = stop_after

    def began(self, cell: Cell) -> None:
        self.log.append(f"{cell.name} {cell.seed}")

    def finished_round(self, record: RoundRecord) -> None:
        self.log.append(f"round {record.round}")
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt

    def notice(self, text: str) -> None:
        self.log.append(text)

    def ended(self, cell: Cell, records: Sequence[RoundRecord]) -> None:
        self.log.append(f"ended after {len(records)}")


def test_what_another_study_has_finished_is_taken_over(tmp_path: Path) -> None:
    other, study = tmp_path / "other", tmp_path / "study"
    ended = run_cells([cell("fedavg"), cell("real", rounds=1)], other, Watching())
    (other / "cells" / "real-seed0" / "model.safetensors").unlink()  # so it did not end
    same = Cell("mine", 0, cell("fedavg", workers=2, data_dir="elsewhere").config)
    wanted = [same, cell("fedavg", seed=1), cell("real", rounds=1)]
    assert adopt(wanted, study, [other, tmp_path / "none"]) == {
        "mine-seed0": other / "cells" / "fedavg-seed0"
    }
    watching = Watching()
    results = run_cells([same], study, watching)
    assert watching.log == ["mine 0", "ended after 2"]
    assert list(results["mine"][0]) == list(ended["fedavg"][0])
    assert adopt([same], study, [other]) == {}  # it is there already


def test_a_finished_cell_is_never_run_again_and_a_killed_one_goes_on(tmp_path: Path) -> None:
    cells = [cell("fedavg"), cell("scaffold")]
    whole = run_cells(cells, tmp_path / "whole", Watching())
    first = Watching(stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, tmp_path / "cut", first)
    assert first.log[-1] == "round 1"
    second = Watching()
    resumed = run_cells(cells, tmp_path / "cut", second)
    assert second.log == ["fedavg 0", "ended after 2", "scaffold 0", "round 2", "ended after 2"]
    for name in ("fedavg", "scaffold"):
        assert [r.accuracy for r in resumed[name][0]] == [r.accuracy for r in whole[name][0]]
        models = [
            (tmp_path / study / "cells" / f"{name}-seed0" / "model.safetensors").read_bytes()
            for study in ("whole", "cut")
        ]
        assert models[0] == models[1]


def test_a_cell_with_other_settings_is_refused(tmp_path: Path) -> None:
    run_cells([cell(rounds=1)], tmp_path, Watching())
    with pytest.raises(RunDirectoryError, match="other settings"):
        run_cells([cell(rounds=1, alpha=3.0)], tmp_path, Watching())


def test_a_ledger_is_the_same_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    private: dict[str, Any] = {"privacy": "gradients", "epsilon": 4.0}
    for key, value in (("privacy.steps", 1), ("privacy.sample_rate", 1.0)):
        monkeypatch.setitem(SMALL, key, value)
    for ledger in ("ledgers", str(tmp_path / "ledgers")):
        watching = Watching()
        run_cells([cell(rounds=1, ledger=ledger, **private)], tmp_path / "study", watching)
    assert watching.log == ["fedavg 0", "ended after 1"]
    with pytest.raises(RunDirectoryError, match="other settings"):
        run_cells([cell(rounds=1, ledger="new", **private)], tmp_path / "study", Watching())


def test_what_is_wrong_with_the_last_cell_is_told_before_the_first_runs(
    tmp_path: Path,
) -> None:
    run_cells([cell("real", rounds=1)], tmp_path / "begun", Watching())
    bad = resolve(options={"algorithm": "real"}, settings={"min_clients": 99})
    for study, last, says in (
        ("new", Cell("bad", 0, bad), "min_clients must be at most"),
        ("begun", cell("real", rounds=1, alpha=3.0), "other settings"),
    ):
        watching = Watching()
        with pytest.raises(FedDMError, match=says):
            run_cells([cell("fedavg", rounds=1), last], tmp_path / study, watching)
        assert watching.log == []
    assert not (tmp_path / "new").exists()


def test_workers_and_the_place_of_data_are_no_other_settings(tmp_path: Path) -> None:
    run_cells([cell(rounds=1)], tmp_path, Watching())
    again = Cell(
        "fedavg",
        0,
        resolve(
            options={"algorithm": "fedavg", "rounds": 1, "clients": 3, "data_dir": "elsewhere"},
            settings=SMALL | {"runtime.workers": 2},
        ),
    )
    watching = Watching()
    run_cells([again], tmp_path, watching)
    assert watching.log == ["fedavg 0", "ended after 1"]


def test_seeds_share_no_cell_and_algorithms_share_the_partition(tmp_path: Path) -> None:
    run_cells([cell("fedavg", rounds=1), cell("real", rounds=1)], tmp_path, Watching())
    prints = {
        RunDirectory.open(folder).environment()["data"]
        for folder in (tmp_path / "cells").iterdir()
    }
    assert len(prints) == 1


def test_choices_are_all_combinations() -> None:
    found = choices({"local.lr": [1, 2], "mu": [3, 4, 5]})
    assert len(found) == 6
    assert len({setting_name(choice) for choice in found}) == 6


def test_the_winner_is_a_configuration_file() -> None:
    text = winner_toml("fedprox", {"local.lr": 0.1, "mu": 1.0})
    config = resolve(tomllib.loads(text))
    tuned = {"local.lr": 0.1, "mu": 1.0}
    assert config == resolve(options={"algorithm": "fedprox"}, settings=tuned)
    assert tomllib.loads(text) == {
        "algorithm": {"name": "fedprox", "mu": 1.0, "local": {"lr": 0.1}}
    }
    assert config.data.validation == 0


def test_a_cell_that_diverges_does_not_end_the_study(tmp_path: Path) -> None:
    wild = Cell(
        "fedavg",
        0,
        resolve(
            options={"algorithm": "fedavg", "rounds": 3, "clients": 3},
            settings=SMALL | {"local.lr": 1e6},
        ),
    )
    cells = [wild, cell("real", rounds=1)]
    for _ in range(2):  # and the same command again ends as well
        watching = Watching()
        results = run_cells(cells, tmp_path, watching)
        assert list(results["fedavg"]) == [()]
        assert len(results["real"][0]) == 1
        assert any("fedavg seed 0 failed: round 1: client" in line for line in watching.log)


def test_a_killed_cell_finds_data_that_were_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_cells([cell()], tmp_path, Watching(stop_after=1))
    asked: list[object] = []

    def resumed(directory: Path, **options: object) -> object:
        asked.append(options["data_dir"])
        raise KeyboardInterrupt

    monkeypatch.setattr("feddm.analysis.studies.resume", resumed)
    moved = cell(data_dir="elsewhere")
    with pytest.raises(KeyboardInterrupt):
        run_cells([moved], tmp_path, Watching())
    assert asked == ["elsewhere"]
