"""An algorithm of another package, really installed: FedAvg with momentum on the server."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tiny import arguments, timeless, timeless_results

# Hsu et al. 2019, https://arxiv.org/abs/1909.06335.
MODULE = """\
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from feddm.algorithms.base import Upload
from feddm.algorithms.fedavg import FedAvg, FedAvgSettings
from feddm.core.tensors import Records, Tensors, zip_map
from feddm.core.training import Tick
from pydantic import Field


class FedAvgMSettings(FedAvgSettings):
    beta: float = Field(0.9, ge=0, lt=1, description="Momentum of the server; 0 is FedAvg.")


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    # v <- beta v + (x - mean), x <- x - v.

    Settings = FedAvgMSettings
    settings: FedAvgMSettings

    def init(self, params: Tensors) -> Records:
        return {"params": params, "velocity": zip_map(torch.zeros_like, params)}

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        x, mean = state["params"], super().aggregate(state, uploads, rng, tick)["params"]
        kept = zip_map(lambda v: self.settings.beta * v, state["velocity"])
        return {
            # x - (kept + x - mean), so that beta = 0 is the mean itself, bit for bit.
            "params": zip_map(torch.sub, mean, kept),
            "velocity": zip_map(lambda k, x, m: k + (x - m), kept, x, mean),
        }
"""
METADATA = "Metadata-Version: 2.1\nName: fedavgm\nVersion: 1.0\n"
ENTRY_POINTS = "[feddm.algorithms]\nfedavgm = fedavgm:FedAvgM\n"
TINY = arguments(algorithm="fedavg")
FEDAVGM = ("--algorithm", "fedavgm")
COMMANDS = {
    "config": ("config", *FEDAVGM),
    "wrong": ("run", *FEDAVGM, "--set", "beta=1.5"),
    "run": ("run", *FEDAVGM, *TINY, "--set=beta=0.5", "--no-report", "--out=run"),
    "compare": (
        *("compare", "--algorithms", "fedavg,fedavgm", *TINY, "--set=beta=0"),
        *("--no-report", "--out=study"),
    ),
    "private": (
        *("run", *FEDAVGM, *(word for word in TINY if "local.epochs" not in word)),
        # All examples in one step, so that the noise has a closed form.
        *("--rounds=1", "--set=privacy.steps=1", "--set=privacy.sample_rate=1"),
        *("--epsilon=4", "--ledger=ledger", "--no-report", "--out=private"),
    ),
}

Done = subprocess.CompletedProcess[str]
Command = Callable[[Sequence[str]], Done]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands work; the package is elsewhere."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def feddm(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Installs the package, and returns ``python -m feddm`` as a function."""
    site = tmp_path_factory.mktemp("site")
    (site / "fedavgm.py").write_text(MODULE)
    info = site / "fedavgm-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(site), *([before] if before else [])])

    def call(words: Sequence[str]) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "feddm", *words],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


@pytest.fixture(scope="module")
def done(feddm: Command) -> dict[str, Done]:
    """Runs all commands, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(COMMANDS, pool.map(feddm, COMMANDS.values()), strict=True))
    assert {name: end.returncode for name, end in found.items()} == {
        name: 2 if name == "wrong" else 0 for name in COMMANDS
    }, [end.stderr for end in found.values()]
    return found


def test_its_setting_is_shown(done: dict[str, Done]) -> None:
    shown = tomllib.loads(done["config"].stdout)["algorithm"]
    assert (shown["name"], shown["beta"]) == ("fedavgm", 0.9)


def test_a_wrong_setting_is_one_line(done: dict[str, Done]) -> None:
    assert done["wrong"].stdout == ""
    assert done["wrong"].stderr == (
        "feddm: beta must be a number of at least 0 and below 1, got 1.5\n"
    )


@pytest.mark.usefixtures("done")
def test_its_state_is_in_the_checkpoint(folder: Path) -> None:
    config = tomllib.loads((folder / "run" / "config.toml").read_text())
    assert config["algorithm"]["beta"] == 0.5
    (file,) = folder.glob("run/checkpoints/*/state.safetensors")
    state = load_file(file)
    params, velocity = (
        {key.removeprefix(record) for key in state if key.startswith(record)}
        for record in ("params/", "velocity/")
    )
    assert params == velocity
    assert len(state) == 2 * len(params)
    assert state["velocity/linear.weight"].any()


@pytest.mark.usefixtures("done")
def test_a_finished_run_is_resumed_as_it_is(feddm: Command, folder: Path) -> None:
    files = [folder / "run" / name for name in ("results.jsonl", "model.safetensors")]
    before = [file.read_bytes() for file in files]
    resumed = feddm(("resume", "run", "--no-report", "--json"))
    assert resumed.returncode == 0, resumed.stderr
    assert [timeless(line) for line in resumed.stdout.splitlines()] == timeless_results(
        folder / "run"
    )
    assert [file.read_bytes() for file in files] == before


@pytest.mark.usefixtures("done")
def test_beta_zero_is_fedavg(folder: Path) -> None:
    cells = [folder / "study" / "cells" / f"{name}-seed0" for name in ("fedavg", "fedavgm")]
    ours, theirs = map(timeless_results, cells)
    assert theirs == ours
    ours_model, theirs_model = (load_file(cell / "model.safetensors") for cell in cells)
    assert set(theirs_model) == set(ours_model)
    assert all(torch.equal(theirs_model[name], ours_model[name]) for name in ours_model)
    rows = json.loads((folder / "study" / "table.json").read_text())
    assert [row["name"] for row in rows] == ["fedavg", "fedavgm"]


@pytest.mark.usefixtures("done")
def test_momentum_begins_in_the_second_round(folder: Path) -> None:
    first, second = timeless_results(folder / "run")
    plain_first, plain_second = timeless_results(folder / "study" / "cells" / "fedavg-seed0")
    assert first == plain_first
    assert second["loss"] != plain_second["loss"]


def test_with_a_budget_it_is_private_by_gradients(done: dict[str, Done], folder: Path) -> None:
    assert "Private by gradients: budget epsilon 4 " in done["private"].stdout
    (record,) = timeless_results(folder / "private")
    assert record["privacy"] == "gradients"
    assert 3.9 < record["epsilon"] <= 4.0
    assert any((folder / "ledger").iterdir())
