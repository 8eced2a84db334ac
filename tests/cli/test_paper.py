"""``feddm paper``: every table and figure, at the scale that takes seconds."""

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feddm.algorithms.feddm import UnionSettings
from feddm.analysis.studies import Cell, StudyObserver
from feddm.cli import app
from feddm.config.resolve import resolve
from feddm.errors import FedDMError
from feddm.paper import making
from feddm.paper.experiments import EXPERIMENTS
from feddm.paper.scales import SCALES
from feddm.runtime.rundir import RunDirectory


def paper(*arguments: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["feddm", "paper", *arguments])  # it is recorded
        result = CliRunner(env={"COLUMNS": "200"}).invoke(
            app, ["paper", *arguments], catch_exceptions=False
        )
    assert result.exit_code == 0, result.output
    return result.output


def rows_in(study: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((study / "paper.json").read_text())["rows"]
    return rows


def points_in(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all experiments, so that they can reuse each other's runs."""
    return tmp_path_factory.mktemp("paper")


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test here needs data that does not come with the package."""
    monkeypatch.setenv("FEDDM_DATA", str(tmp_path / "none"))


def test_list() -> None:
    output = paper("list")
    for experiment in EXPERIMENTS.values():
        assert experiment.name in output
        assert f"  {experiment.place}\n  {experiment.shows}\n" in output
    assert max(map(len, output.splitlines())) <= 80
    rows = json.loads(paper("list", "--json"))
    assert [row["name"] for row in rows] == list(EXPERIMENTS)


def test_a_table_fits_80_columns(tmp_path: Path) -> None:
    output = CliRunner(env={"COLUMNS": "80"}).invoke(
        app, ["paper", "cost", "--scale", "smoke", "--out", str(tmp_path)]
    )
    table = output.output.split("Scaled down")[1].splitlines()[1:]
    assert table[0].split() == ["method", "floats", "on", "digits", "std", "paper", "MB"]
    assert table[1].rstrip() == "MNIST, Dir10(0.5)"
    assert table[2].startswith("  FedDM, dirichlet 0.5, ")
    # The paper's count for MNIST: 81 pairs of ten images with 784 pixels.
    assert table[2].split()[-2] == "635,040"
    assert max(map(len, table[:20])) <= 80


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment(name: str, folder: Path) -> None:
    experiment, study = EXPERIMENTS[name], folder / name
    output = paper(name, "--scale", "smoke", "--out", str(study))
    assert f"{experiment.place}: {experiment.shows}." in output
    assert f"Results: {study}" in output
    what = json.loads((study / "paper.json").read_text())
    assert (what["experiment"], what["scale"]) == (name, "smoke")
    assert what["command"] == f"feddm paper {name} --scale smoke --out {study}"
    assert set(what["versions"]) == {"feddm", "torch"}
    page = (study / "paper.md").read_text()
    assert page.startswith(f"# {experiment.place}: {experiment.shows}\n")
    assert (study / "paper.csv").read_text().count("\n") == 1 + len(what["rows"])
    if not experiment.runs:
        return
    assert "This takes roughly" in output
    assert "data.name " in output and "-> digits" in output
    assert what["seeds"] == [0]
    assert [row["run"] for row in what["rows"]] == [run.name for run in experiment.runs]
    assert {row["seeds"] for row in what["rows"]} == {1}
    for run in experiment.runs:
        if run.paper is not None:
            assert f"| {run.method} |" in page and f"| {run.paper} |" in page
    assert (study / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (study / "curves.pdf").read_bytes().startswith(b"%PDF")
    points = points_in(study / "curves.csv")
    assert len(points) == len(experiment.runs) * (1 if name == "resnet18" else 2)
    # It is also an ordinary study.
    cells = json.loads((study / "study.json").read_text())["cells"]
    assert cells == [f"{run.name}-seed0" for run in experiment.runs]
    assert all((study / "cells" / cell / "results.jsonl").exists() for cell in cells)
    assert len(json.loads((study / "table.json").read_text())) == len(experiment.runs)


def test_the_noise_of_the_paper_has_no_guarantee(folder: Path) -> None:
    rows = rows_in(folder / "noise")
    by_method: dict[str, list[str]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row["privacy"])
    assert by_method.pop("FedDM") == [None]
    assert by_method.pop("FedDM, the paper's noise") == 3 * ["no guarantee"]
    assert by_method.pop("FedDM, our mechanism") == 3 * ["features"]
    assert set(map(tuple, by_method.values())) == {("gradients",) * 3}
    ours = [row["epsilon"] for row in rows if row["privacy"] == "features"]
    assert ours == pytest.approx([23.03, 2.56, 0.92], abs=1e-3)
    page = (folder / "noise" / "paper.md").read_text()
    assert "NO GUARANTEE" in page and "| no guarantee |" in page


def test_images_are_drawn_for_each_noise_level(folder: Path) -> None:
    names = {file.name for file in (folder / "images").glob("images-*.png")}
    expected = ("nonoise", "sigma2", "sigma3", "sigma5")
    assert names == {f"images-{name}.png" for name in expected}


def test_the_surrogate_is_drawn_with_its_points(folder: Path) -> None:
    study = folder / "surrogate"
    assert (study / "surrogate.png").read_bytes().startswith(b"\x89PNG")
    assert (study / "surrogate.pdf").read_bytes().startswith(b"%PDF")
    rows = points_in(study / "surrogate.csv")
    assert set(rows[0]) == {"w", "objective", "surrogate", "tangent at w = 0"}
    assert "As printed in Appendix A" in (study / "paper.md").read_text()


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    study = tmp_path / "one" / "real"
    command = ["real", "--scale", "smoke", "--out", str(study)]
    assert "cifar10-dir10-0.5-real seed 0: round 1/2" in paper(*command)
    rows = rows_in(study)
    again = paper(*command)
    assert (
        "round" not in again.replace("rounds", "").split("This takes")[1].split("Accuracy")[0]
    )
    assert rows_in(study) == rows
    # One of two seeds is new, and one cell was lost.
    shutil.rmtree(study / "cells" / "cifar10-dir10-0.5-feddm-seed0")
    more = paper(*command, "--seeds", "2")
    assert "cifar10-dir10-0.5-feddm seed 0: round 1/2" in more
    assert "cifar10-dir10-0.5-real seed 0: round" not in more
    assert "cifar10-dir10-0.5-real seed 1: round 1/2" in more
    assert json.loads((study / "paper.json").read_text())["seeds"] == [0, 1]


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    study = tmp_path / "rho"
    command = ["rho", "--scale", "smoke", "--out", str(study), "--json"]
    before = json.loads(paper(*command))["rows"]
    cell = study / "cells" / "cifar10-dir10-0.5-feddm-rho5-seed0"
    kept = (cell / "config.toml").read_text(), (cell / "environment.json").read_text()
    (cell / "model.safetensors").unlink()  # the last file of a run
    assert json.loads(paper(*command))["rows"] == before
    assert (cell / "model.safetensors").exists()
    assert kept == ((cell / "config.toml").read_text(), (cell / "environment.json").read_text())


def test_runs_of_another_experiment_are_reused(tmp_path: Path) -> None:
    paper("ipc", "--scale", "smoke", "--out", str(tmp_path / "ipc"))
    output = paper("rho", "--scale", "smoke", "--out", str(tmp_path / "rho"))
    assert "Note: reusing cifar10-dir10-0.5-feddm-rho5-seed0 from " in output
    assert "feddm-rho5 seed 0: round" not in output
    assert "feddm-rho3 seed 0: round 1/2" in output
    ipc, rho = (
        {row["method"]: row for row in rows_in(tmp_path / name)} for name in ("ipc", "rho")
    )
    assert ipc["ipc 10"]["accuracy_percent"] == rho["rho 5"]["accuracy_percent"]
    assert rho["rho 5"]["paper_percent"] == 69.66


def test_tuned_settings_of_a_method(tmp_path: Path) -> None:
    file, study = tmp_path / "tuned.toml", tmp_path / "real"
    file.write_text('[algorithm]\nname = "real"\n[algorithm.server]\nlr = 0.03\n')
    command = ["real", "--scale", "smoke", "--out", str(study), "--with"]
    assert "REAL uses these settings" in paper(*command, f"real={file}")
    for name, lr in (("real", 0.03), ("feddm", 0.02)):
        cell = study / "cells" / f"cifar10-dir10-0.5-{name}-seed0"
        settings = RunDirectory.open(cell).config().algorithm
        assert isinstance(settings, UnionSettings)
        assert (settings.name, settings.server.lr) == (name, lr)
    page = (study / "paper.md").read_text()
    assert "REAL uses these settings where they apply: server.lr 0.03." in page
    for wrong, why in (("feddm", "tuned.toml is for real"), ("fedavg", "one of real, feddm,")):
        with pytest.raises(FedDMError, match=why):
            paper(*command, f"{wrong}={file}")
    file.write_text("[algorithm.server]\nlrr = 0.02\n")
    with pytest.raises(FedDMError, match=r"--with sets server\.lrr, which real does not have"):
        paper(*command, f"real={file}")
    with pytest.raises(FedDMError, match="--with does not apply to cost: it trains nothing"):
        paper("cost", "--with", f"real={file}")


def test_other_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    for name in ("surrogate", "ipc"):
        with pytest.raises(FedDMError, match="choose another with --out"):
            paper(name, "--scale", "smoke", "--out", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    # Other studies are left alone, too.
    compared = tmp_path / "compared"
    (compared / "cells" / "fedavg-seed0").mkdir(parents=True)
    paper("surrogate", "--out", str(tmp_path / "surrogate"))
    for other in (compared, tmp_path / "surrogate"):
        with pytest.raises(FedDMError, match="is not a directory of ipc; choose another"):
            paper("ipc", "--scale", "smoke", "--out", str(other))


def test_missing_data_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    plan = making.Plan(EXPERIMENTS["real"], SCALES["small"], 1, "feddm paper real")
    digits, cifar = (resolve(options={"dataset": name}) for name in ("digits", "cifar10"))
    cells = [Cell("first", 0, digits), Cell("second", 0, cifar)]
    with pytest.raises(FedDMError, match="get it with `feddm data fetch cifar10`"):
        making.make(plan, cells, tmp_path / "study", StudyObserver(), {})
    assert not (tmp_path / "study").exists()


def test_wrong_names() -> None:
    with pytest.raises(FedDMError, match=r"did you mean curves-dir10-0\.5"):
        paper("curves-dir10-0,5")
    with pytest.raises(FedDMError, match=r"curves-dir10-50 or curves-dir50-0\.5\?"):
        paper("curves-")
    with pytest.raises(FedDMError, match="one of smoke, small, full"):
        paper("ipc", "--scale", "tiny")


def test_the_commit_is_only_of_a_repository_with_this_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "feddm" / "paper" / "making.py"
    code.parent.mkdir(parents=True)
    code.write_text("")
    monkeypatch.setattr(making, "__file__", str(code))
    assert making.commit() == ""

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", *identity, *words]
        said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return said.stdout.strip()

    git("init")
    (tmp_path / "docs.md").write_text("")
    git("add", "docs.md")
    git("commit", "-m", "docs")
    assert making.commit() == ""
    git("add", ".")
    git("commit", "-m", "code")
    head = git("rev-parse", "--short", "HEAD")
    (tmp_path / "docs.md").write_text("changed")
    assert making.commit() == head
    code.write_text("changed")
    assert making.commit() == f"{head}-dirty"
