"""A model and an algorithm of your own: whatever is built in works with them, too."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import feddm
import feddm.cli
from feddm.config import code
from feddm.config.resolve import load_toml, resolve, schema
from feddm.errors import ConfigError, DataError, RunDirectoryError
from feddm.flower.wire import refuse_code
from feddm.runtime.rundir import RunDirectory
from residual import ResNet
from tiny import SETTINGS, arguments, timeless_results

ROOT = Path(__file__).parents[1]
FEDAVGM = ROOT / "examples" / "fedavgm.py"
OWN = f"{FEDAVGM}:FedAvgM"
RESIDUAL = f"{ROOT / 'tests' / 'residual.py'}:ResNet"
TINY = [word for word in arguments(algorithm="fedavg") if "model" not in word]


def feddm_(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Runs a command, and returns what it prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["feddm", *map(str, words)])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            feddm.cli.main()
    seen = capsys.readouterr()
    assert ended.value.code in (None, 0, 2), seen
    return seen.err if ended.value.code else seen.out


def fedavgm() -> Any:
    return code.load(OWN)


class TestAlgorithm:
    def test_the_example_is_short(self) -> None:
        lines = FEDAVGM.read_text().splitlines()
        assert len(lines) <= 25
        assert max(map(len, lines)) <= 96
        imported = re.findall(r"^(?:from|import) (\S+)", FEDAVGM.read_text(), re.MULTILINE)
        assert imported == ["dataclasses", "feddm.extend"]

    def test_it_is_compared_with_others_and_its_settings_are_in_the_report(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        said = feddm_(
            capsys,
            *("compare", "--algorithms", f"feddm,fedavg,{OWN}", "--set=beta=0.5"),
            *arguments(algorithm="fedavg", rounds=2, synthesis__steps=2, server__epochs=2),
            "--out=study",
        )
        assert [name for name in ("feddm", "fedavg", "FedAvgM") if name in said] == [
            "feddm",
            "fedavg",
            "FedAvgM",
        ]
        rows = json.loads((tmp_path / "study/table.json").read_text())
        assert [row["name"] for row in rows] == ["feddm", "fedavg", "FedAvgM"]
        page = (tmp_path / "study/report.html").read_text()
        assert "beta = 0.5" in page
        assert "algorithm.beta" in page
        first, own = (
            timeless_results(tmp_path / f"study/cells/{name}-seed0")
            for name in ("fedavg", "FedAvgM")
        )
        assert own[0] == first[0]  # there is no momentum yet
        assert own[1]["loss"] != first[1]["loss"]

    def test_beta_zero_is_fedavg(self) -> None:
        options: dict[str, Any] = {"clients": 3, "rounds": 2, "workers": 1}
        settings = {
            key: SETTINGS[key] for key in ("model.width", "model.depth", "local.epochs")
        }
        own = feddm.run(algorithm=fedavgm(), set={**settings, "beta": 0.0}, **options)
        plain = feddm.run(algorithm="fedavg", set=settings, **options)
        assert [r.loss for r in own.records] == [r.loss for r in plain.records]

    def test_its_settings_are_checked_and_in_the_schema(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = feddm_(capsys, "run", "--algorithm", OWN, "--set", "beta=1.5")
        assert said == "feddm: beta must be a number of at least 0 and below 1, got 1.5\n"
        config = resolve(options={"algorithm": OWN})
        assert config.model_dump()["algorithm"]["beta"] == 0.9
        assert "Momentum of the server" in schema(config)
        assert config == resolve(load_toml_text(config.to_toml()))

    def test_its_settings_are_in_the_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = feddm_(capsys, "run", "--algorithm", OWN, "--help")
        assert "Settings of FedAvgM, as in --set beta=...:" in said
        assert re.search(r"beta +Momentum of the server; 0 is FedAvg\. \[default: 0\.9\]", said)
        assert re.search(r"local\.lr +Learning rate\. \[default: 0\.01\]", said)
        assert "Settings of" not in feddm_(capsys, "run", "--help")

    def test_it_runs_in_worker_processes_and_is_resumed(self, tmp_path: Path) -> None:
        settings = {
            key: SETTINGS[key] for key in ("model.width", "model.depth", "local.epochs")
        }
        options: dict[str, Any] = {"algorithm": OWN, "clients": 3, "rounds": 2, "set": settings}
        one = feddm.run(**options, workers=1)
        two = feddm.run(**options, workers=2, out=tmp_path / "run")
        assert one.model.to_bytes() == two.model.to_bytes()
        (tmp_path / "run/model.safetensors").unlink()
        assert feddm.resume(tmp_path / "run").model.to_bytes() == two.model.to_bytes()
        environment = json.loads((tmp_path / "run/environment.json").read_text())
        assert environment["algorithm_source"] == code.source_hash(OWN)

    def test_it_moves_with_resume_and_a_report_runs_no_code(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "mine.py"
        file.write_text(
            f"{FEDAVGM.read_text()}\nopen({str(tmp_path / 'ran')!r}, 'a').close()\n"
        )
        words = (*TINY, "--set=model.width=4", "--set=model.depth=2", "--out", tmp_path / "run")
        feddm_(capsys, "run", "--algorithm", f"{file}:FedAvgM", *words, "--no-report")
        moved = file.rename(tmp_path / "moved.py")
        (tmp_path / "ran").unlink()
        assert "Report: " in feddm_(capsys, "report", tmp_path / "run")
        assert "FedAvgM" in (tmp_path / "run/report.html").read_text()
        assert not (tmp_path / "ran").exists()
        assert (
            RunDirectory.open(tmp_path / "run").config().model_dump()["algorithm"]["beta"]
            == 0.9
        )
        with pytest.raises(RunDirectoryError, match=r"mine\.py cannot be read"):
            feddm.resume(tmp_path / "run")
        feddm_(
            capsys, "resume", tmp_path / "run", "--algorithm", f"{moved}:FedAvgM", "--no-report"
        )
        assert (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("nothing.py:FedAvgM", "nothing.py cannot be read: No such file or directory"),
            (f"{FEDAVGM}:FedAvg2", "fedavgm.py has no FedAvg2"),
            (f"{FEDAVGM}:Settings", "is no algorithm: it must be a class below Configured"),
            ("no.such.module:X", "no.such can't be loaded: ModuleNotFoundError"),
            ("fedavgm", "algorithm must be one of feddm, .* or FILE.py:NAME, got 'fedavgm'"),
        ],
    )
    def test_mistakes(self, name: str, says: str) -> None:
        with pytest.raises(ConfigError, match=says.replace("no.such c", "no.such.module c")):
            resolve(options={"algorithm": name})

    def test_a_file_that_fails_says_how(self, tmp_path: Path) -> None:
        (tmp_path / "bad.py").write_text("1 / 0\n")
        with pytest.raises(ConfigError, match="bad\\.py can't be loaded: ZeroDivisionError"):
            resolve(options={"algorithm": f"{tmp_path / 'bad.py'}:X"})

    def test_an_edited_file_is_loaded_again(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        for beta in ("0.9", "0.7"):
            file.write_text(FEDAVGM.read_text().replace("0.9", beta))
            config = resolve(options={"algorithm": f"{file}:FedAvgM"})
            assert config.model_dump()["algorithm"]["beta"] == float(beta)

    @pytest.mark.parametrize(
        "values", [{"algorithm": OWN}, {"algorithm": {"name": OWN}}, {"model": {"name": OWN}}]
    )
    def test_a_node_runs_no_code_that_a_server_names(self, values: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="this node runs only what is installed here"):
            refuse_code(values)


def load_toml_text(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


class TestModel:
    @pytest.mark.parametrize("algorithm", ["feddm", "fedavg"])
    def test_a_residual_network_is_used_unchanged(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str
    ) -> None:
        words = [w for w in arguments(algorithm=algorithm, rounds=1) if "model" not in w]
        out = tmp_path / "run"
        said = feddm_(
            capsys, "run", "--algorithm", algorithm, "--model", RESIDUAL, *words, "--out", out
        )
        assert "Note: 6 layers of batch norm in ResNet are group norm here" in said
        assert "ResNet with 5,122 parameters" in said.replace("\n", " ")
        assert (out / "report.html").stat().st_size > 10_000
        assert load_toml(out / "config.toml")["model"]["name"] == RESIDUAL
        environment = json.loads((out / "environment.json").read_text())
        assert environment["model_source"] == code.source_hash(RESIDUAL)
        params = load_file(out / "model.safetensors")
        assert sum(tensor.numel() for tensor in params.values()) == 5122

    def test_a_file_of_a_model_runs_no_code(self, tmp_path: Path) -> None:
        out = tmp_path / "run"
        options: dict[str, Any] = {"algorithm": "fedavg", "rounds": 1, "clients": 2}
        result = feddm.run(model=ResNet, out=out, set={"local.epochs": 1}, **options)
        with pytest.raises(
            DataError, match="your own, ResNet, and loading a file runs no code"
        ):
            feddm.load_model(out / "model.safetensors")
        model = feddm.load_model(out / "model.safetensors", model=ResNet)
        pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        assert torch.equal(model.logits(pixels), result.model.logits(pixels))

    def test_what_only_this_process_has_stays_in_it(self, tmp_path: Path) -> None:
        def make(num_classes: int) -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))

        options: dict[str, Any] = {"algorithm": "fedavg", "rounds": 1, "clients": 2}
        result = feddm.run(model=make, out=tmp_path / "run", **options)
        assert feddm.resume(tmp_path / "run", model=make).records == result.records
        with pytest.raises(ConfigError, match=r"runtime\.workers must be 1: make was given in"):
            feddm.run(model=make, workers=2, **options)
        file = tmp_path / "run/config.toml"
        file.write_text(re.sub(r"python:\d+:make", "python:999:make", file.read_text()))
        with pytest.raises(
            ConfigError, match="make was given in Python, and this process does"
        ):
            feddm.resume(tmp_path / "run")
