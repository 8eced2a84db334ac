"""``scripts/record`` and ``scripts/docs``, on a study in which something failed."""

import json
import math
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from feddm.analysis.studies import Cell, StudyObserver, run_cells, write_results
from feddm.analysis.tables import summarize, to_json
from feddm.cli import app
from feddm.config.resolve import resolve
from feddm.runtime.federation import RoundRecord
from feddm.runtime.rundir import RunDirectory
from tiny import SETTINGS

SCRIPTS = Path(__file__).parents[1] / "scripts"


def script(name: str, studies: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Returns a script that reads and writes studies elsewhere."""
    loader = SourceFileLoader(f"script_{name}", str(SCRIPTS / name))
    module = ModuleType(loader.name)
    module.__file__ = str(SCRIPTS / name)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader.exec_module(module)
    monkeypatch.setattr(module, "STUDIES", studies)
    return module


def test_what_failed_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, dict[str, object]] = {"wild": {"local.lr": 1e6}, "base": {}}
    cells = [
        Cell(
            name,
            0,
            resolve(
                options={"algorithm": "fedavg", "rounds": 2, "clients": 3, "workers": 1},
                settings=SETTINGS | settings,
                shared=True,
            ),
        )
        for name, settings in changes.items()
    ]
    study = tmp_path / "study"
    rows = summarize(run_cells(cells, study, StudyObserver()), (), against="base")
    assert [row.failed for row in rows] == [1, 0]
    write_results(study, cells, rows, ["feddm", "ablate", "--seeds", "0"], changes)

    record = script("record", tmp_path, monkeypatch)
    record.main("mine", study)
    kept = json.loads((tmp_path / "mine.json").read_text())
    assert list(kept["accuracies"]) == ["base-seed0"]
    assert len(kept["bytes_up"]["base-seed0"]) == 2
    assert (tmp_path / "mine.png").exists()

    docs = script("docs", tmp_path, monkeypatch)
    assert "| wild (1 failed) | `local.lr=1000000.0` | - | - | - | - |" in docs.ablation("mine")
    assert "| wild (1 failed) | - | - |" in docs.study("mine")


def test_a_study_without_any_run_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "cells": ["a-seed0"]}))
    with pytest.raises(SystemExit, match="no run that ended"):
        script("record", tmp_path, monkeypatch).main("mine", tmp_path)


def test_an_ablation_with_privacy_says_what_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RoundRecord(1, 0.5, 1.0, 1, 1, 10, 10, math.nan, 0.5, ())
    ours = replace(record, epsilon=1.5, delta=1e-5, unit="client", privacy="features")
    paper = replace(record, epsilon=math.inf, privacy="no guarantee")
    rows = summarize({"base": [[ours]], "paper": [[paper]], "plain": [[record]]}, ())
    what = {
        "command": "feddm ablate",
        "commit": "",
        "machine": "",
        "versions": {"torch": ""},
        "rows": json.loads(to_json(rows)),
        "changes": {row.name: {} for row in rows},
    }
    (tmp_path / "mine.json").write_text(json.dumps(what))
    docs = script("docs", tmp_path, monkeypatch)
    text = docs.ablation("mine")
    assert "| base |  | 50.00 | - | 1.500 | 1e-05 | - |" in text
    assert "| paper |  | 50.00 | - | no guarantee | 1e-05 | - |" in text
    assert "epsilon: spent after the last round, at delta 1e-05 for all examples of one" in text
    study = docs.study("mine")
    assert "| paper | 50.00 | no guarantee |" in study
    assert "`epsilon`: spent after the last round, at delta 1e-05" in study


def test_what_feddm_paper_made_is_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, studies = tmp_path / "made", tmp_path / "studies"
    studies.mkdir()
    command = ["paper", "real", "--scale", "smoke", "--out", str(made)]
    monkeypatch.setattr("sys.argv", ["feddm", *command])  # it is written down
    CliRunner().invoke(app, command, catch_exceptions=False)
    what = json.loads((made / "paper.json").read_text())

    docs = script("docs", studies, monkeypatch)
    assert docs.result("real") == ""
    assert "`make study-paper-real`" in docs.paper("left")

    record = script("record", studies, monkeypatch)
    with pytest.raises(SystemExit, match="only proves that it works"):
        record.main("paper-real", made)
    (made / "paper.json").write_text(json.dumps(what | {"scale": "small"}))
    record.main("paper-real", made)
    kept = json.loads((studies / "paper-real.json").read_text())
    assert kept["rows"] == what["rows"]
    assert {cell: len(values) for cell, values in kept["accuracies"].items()} == {
        "cifar10-dir10-0.5-real-seed0": 2,
        "cifar10-dir10-0.5-feddm-seed0": 2,
    }
    picture = studies / "paper-real-curves.png"
    assert picture.read_bytes() == (made / "curves.png").read_bytes()

    page = docs.result("real")
    assert page.startswith("## Figure 13, Section 4.5: FedDM beside sending as many real")
    assert "](studies/paper-real-curves.png)\n" in page
    records = RunDirectory.open(made / "cells" / "cifar10-dir10-0.5-feddm-seed0").records()
    final = 100 * records[-1].accuracy
    assert f"| CIFAR10, Dir10(0.5) | FedDM | {final:.2f} | 69.62 ± 0.14 |" in page
    assert "`rounds 20 -> 2`" in page
    assert f"Commit {kept['commit']}, torch " in page and kept["machine"] in page
    left = docs.paper("left")
    assert "study-paper-real" not in left and "`make study-paper-rho`" in left

    del what["lines"]
    (made / "paper.json").write_text(json.dumps(what))
    with pytest.raises(SystemExit, match="run its command again: feddm "):
        record.main("paper-real", made)
