"""``feddm privacy``."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feddm.cli import app
from feddm.errors import ConfigError, FedDMError, LedgerError

SMALL = [
    *("--clients", "2", "--rounds", "2", "--workers", "1", "--quiet"),
    *("--set", "model.width=4", "--set", "model.depth=2", "--set", "synthesis.steps=2"),
    *("--set", "server.epochs=1"),
]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_noise_and_epsilon_are_inverse() -> None:
    options = ("--rounds", "5", "--releases", "2", "--json")
    noise = json.loads(run("privacy", "noise", "--epsilon", "4", *options))["noise_multiplier"]
    spent = json.loads(run("privacy", "epsilon", "--noise", str(noise), *options))["epsilon"]
    assert spent == pytest.approx(4.0, rel=1e-4)
    # Ten releases are as one with sqrt(10) times less noise.
    one = json.loads(run("privacy", "noise", "--epsilon", "4", "--json"))["noise_multiplier"]
    assert noise == pytest.approx(math.sqrt(10) * one)


def test_sampling_costs_less() -> None:
    options = ("--noise", "2", "--rounds", "10", "--json")
    whole = json.loads(run("privacy", "epsilon", *options))["epsilon"]
    some = json.loads(run("privacy", "epsilon", "--sample-rate", "0.1", *options))["epsilon"]
    assert some < whole / 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["epsilon", "--noise", "0"], "noise_multiplier must be above 0"),
        (["epsilon", "--noise", "1", "--delta", "2"], "delta must be"),
        (["epsilon", "--noise", "1", "--sample-rate", "2"], "sample_rate must be"),
        (["noise", "--epsilon", "-1"], "epsilon must be above 0"),
        (["noise", "--epsilon", "1", "--rounds", "0"], "times must be"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run("privacy", *arguments)


def test_a_folder_without_ledgers(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="has no ledgers"):
        run("privacy", "ledger", str(tmp_path / "none"))


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the ledgers of two runs of two rounds each, under one budget."""
    folder = tmp_path_factory.mktemp("ledgers")
    for number in range(2):
        out = folder.with_name(f"{folder.name}-run{number}")
        noise = ("--privacy", "features", "--set", "privacy.noise_multiplier=8")
        ledger = ("--set", f"privacy.ledger={folder}")
        run("run", *noise, *ledger, *SMALL, "--out", str(out))
    return folder


class TestAfterARun:
    def test_the_ledger_adds_runs_up(self, ledgers: Path) -> None:
        (row,) = json.loads(run("privacy", "ledger", str(ledgers), "--json"))
        assert (row["dataset"], row["clients"]) == ("digits", 2)
        # Two runs of two rounds of two networks.
        options = ("--noise", "8", "--rounds", "4", "--releases", "2", "--json")
        expected = json.loads(run("privacy", "epsilon", *options))["epsilon"]
        assert row["epsilon"] == pytest.approx(expected)
        assert f"epsilon {expected:.4f} at delta 1e-05" in run(
            "privacy", "ledger", str(ledgers)
        )

    def test_uploads_are_listed(self, ledgers: Path) -> None:
        rows = json.loads(run("privacy", "uploads", str(ledgers), "--json"))
        assert len(rows) == 2 * 2 * 2
        assert {row["round"] for row in rows} == {1, 2}
        assert all(len(row["sha256"]) == 64 and row["bytes"] >= 0 for row in rows)
        assert run("privacy", "uploads", str(ledgers)).count("client_000001") == 4

    def test_a_budget_that_is_spent_is_spent(self, ledgers: Path, tmp_path: Path) -> None:
        ledger = ("--set", f"privacy.ledger={ledgers}")
        with pytest.raises(FedDMError, match="no budget is left"):
            run("run", "--epsilon", "0.5", *ledger, *SMALL, "--out", str(tmp_path / "run"))
