"""``feddm privacy``."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feddm.cli import app
from feddm.errors import ConfigError, FedDMError, LedgerError
from feddm.privacy.accounting import Released, Unprotected
from feddm.privacy.accounting import epsilon as cost
from feddm.privacy.ledger import Entry, add_entry

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
    # Ten releases cost as much as one with sqrt(10) times less noise.
    one = json.loads(run("privacy", "noise", "--epsilon", "4", "--json"))["noise_multiplier"]
    assert noise == pytest.approx(math.sqrt(10) * one)


def test_sampling_costs_less() -> None:
    options = ("--noise", "2", "--rounds", "10", "--json")
    whole = json.loads(run("privacy", "epsilon", *options))["epsilon"]
    some = json.loads(run("privacy", "epsilon", "--sample-rate", "0.1", *options))["epsilon"]
    assert some < whole / 3


def test_counts_cost_too() -> None:
    # Two counts with multiplier 10, plus two rounds of four steps with multiplier 2.
    counted = Released(2, 10.0)
    options = ("--rounds", "2", "--releases", "4", "--counts", "--json")
    spent = json.loads(run("privacy", "epsilon", "--noise", "2", *options))["epsilon"]
    assert spent == pytest.approx(cost([counted, Released(8, 2.0)], 1e-5))
    noise = json.loads(run("privacy", "noise", "--epsilon", "4", *options))["noise_multiplier"]
    assert cost([counted, Released(8, noise)], 1e-5) == pytest.approx(4.0, rel=1e-4)


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
def test_mistakes_are_one_line_errors(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run("privacy", *arguments)


def test_a_folder_without_ledgers(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no ledgers in"):
        run("privacy", "ledger", str(tmp_path / "none"))


def test_an_empty_folder(tmp_path: Path) -> None:
    assert run("privacy", "ledger", str(tmp_path)) == "Nothing has been spent yet.\n"
    nothing = "No private client has uploaded anything yet.\n"
    assert run("privacy", "uploads", str(tmp_path)) == nothing


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the ledgers of two runs of two rounds each."""
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
        assert (row["dataset"], row["clients"], row["unit"]) == ("digits", 2, "example")
        assert row["unprotected"] == []
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
        lines = run("privacy", "uploads", str(ledgers)).splitlines()
        assert [line.split(", ")[-1] for line in lines[::5]] == [
            "client_000000",
            "client_000001",
        ]
        assert sum("round   2" in line for line in lines) == 4
        assert max(map(len, lines)) <= 80

    def test_a_spent_budget_stays_spent(self, ledgers: Path, tmp_path: Path) -> None:
        ledger = ("--set", f"privacy.ledger={ledgers}")
        with pytest.raises(FedDMError, match="no budget is left"):
            run(
                "run",
                "--epsilon",
                "0.5",
                "--privacy",
                "features",
                *ledger,
                *SMALL,
                "--out",
                str(tmp_path / "run"),
            )


class TestUnits:
    """Each unit of privacy has its own epsilon."""

    @staticmethod
    def spend(folder: Path, split: str, *entries: Entry, client: int = 0) -> None:
        place = folder / "mnist" / split / f"client_{client:06d}"
        place.mkdir(parents=True, exist_ok=True)
        for entry in entries:
            add_entry(place, entry)

    def rows(self, folder: Path) -> dict[str, dict[str, Any]]:
        rows = json.loads(run("privacy", "ledger", str(folder), "--json"))
        return {row["unit"]: row for row in rows}

    def test_are_not_mixed(self, tmp_path: Path) -> None:
        for unit, times in (("example", 1), ("example", 2), ("group", 5)):
            self.spend(tmp_path, "a", Entry("", 1, b"", (Released(times, 8.0),), unit))
        rows = self.rows(tmp_path)
        assert set(rows) == {"example", "group"}
        for unit, times in (("example", 3), ("group", 5)):
            assert rows[unit]["epsilon"] is None
            assert rows[unit]["protected"] == pytest.approx(cost([Released(times, 8.0)], 1e-5))
        (told,) = rows["group"]["unprotected"]
        assert told == "a release that protects examples, not groups"
        text = run("privacy", "ledger", str(tmp_path))
        assert text.count("no guarantee") == 2
        assert told in text
        assert f"all other releases: epsilon {rows['example']['protected']:.4f}" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_pay_only_for_their_own_client(self, tmp_path: Path) -> None:
        for client, event in enumerate((Released(3, 8.0), Released(2, 7.0))):
            self.spend(tmp_path, "a", Entry("", 1, b"", (event,)), client=client)
        (row,) = self.rows(tmp_path).values()
        assert row["epsilon"] == pytest.approx(cost([Released(3, 8.0)], 1e-5))
        assert row["clients"] == 2

    def test_groups_and_clients_have_no_epsilon_across_splits(self, tmp_path: Path) -> None:
        for split in ("a", "b"):
            self.spend(tmp_path, split, Entry("", 1, b"", (Released(1, 8.0),), "client"))
        (row,) = self.rows(tmp_path).values()
        assert row["epsilon"] is None
        assert row["unprotected"] == ["a release for another split, which has other clients"]

    def test_unprotected_releases_are_named(self, tmp_path: Path) -> None:
        self.spend(
            tmp_path,
            "a",
            Entry("", 1, b"", (Released(1, 8.0),), for_tests=True),
            Entry("", 2, b"", (Unprotected("synthetic images"),)),
        )
        (row,) = self.rows(tmp_path).values()
        assert (row["epsilon"], row["protected"]) == (None, 0)
        assert row["unprotected"] == ["a release with a fixed secret", "synthetic images"]


def test_an_invalid_delta_is_a_one_line_error(ledgers: Path) -> None:
    with pytest.raises(ConfigError, match="delta must be"):
        run("privacy", "ledger", str(ledgers), "--delta", "2")


def test_ledgers_of_single_runs_are_counted(
    ledgers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddm.privacy.ledger.user_data_path", lambda name: tmp_path)
    ledgers.rename(tmp_path / "ledgers")
    try:
        assert "their own ledger" not in run("privacy", "ledger")
        (tmp_path / "run-ledgers" / "some-run").mkdir(parents=True)
        assert f"Runs with their own ledger: 1, in {tmp_path}" in run("privacy", "ledger")
    finally:
        (tmp_path / "ledgers").rename(ledgers)


def test_uploads_of_single_runs_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddm.privacy.ledger.user_data_path", lambda name: tmp_path)
    noise = ("--privacy", "features", "--set", "privacy.noise_multiplier=8")
    run("run", *noise, "--ledger", "new", *SMALL, "--out", str(tmp_path / "run"))
    clients = {row["client"] for row in json.loads(run("privacy", "uploads", "--json"))}
    assert "client_000000" in clients
