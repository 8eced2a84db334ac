"""Output and files of runs and studies with privacy."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feddm.cli import app
from feddm.errors import ConfigError
from feddm.runtime.display import PRIVATE_HEADER

LEAST = [
    *("--clients", "3", "--rounds", "1", "--workers", "1"),
    *("--set", "model.width=4", "--set", "model.depth=2"),
]
SMALL = [*LEAST, "--ipc", "1", "--set", "server.epochs=1"]  # with settings of FedDM
SERVER = [
    "--epsilon",
    "4",
    "--privacy",
    "features",
    "--ledger",
    "new",
    "--set",
    "synthesis.steps=1",
]
FEATURES = [*SERVER, "--set", "privacy.learn=client"]
FIXED = [*FEATURES, "--set", "privacy.test_secret=known"]
PAPER = ["--privacy", "paper", "--ledger", "new", "--set", "synthesis.steps=1"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def result_lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]


class TestRun:
    def test_a_guarantee(self, tmp_path: Path) -> None:
        out = tmp_path / "run"
        lines = run("run", *SMALL, *FEATURES, "--out", str(out)).splitlines()
        assert lines[2] == PRIVATE_HEADER
        assert len(lines[3]) == len(PRIVATE_HEADER)
        assert lines[3].split()[-3] == "4.000"
        assert lines[5].startswith(
            "Privacy spent: epsilon 4.0000 at delta 1e-05 for one example"
        )
        (record,) = result_lines(out)
        assert record["epsilon"] == pytest.approx(4.0)
        assert (record["delta"], record["unit"]) == (1e-5, "example")
        assert record["privacy"] == "features"
        assert json.loads(run("resume", str(out), "--json")) == record

    @pytest.mark.parametrize(
        ("options", "words"), [(PAPER, "no guarantee"), (FIXED, "not private")]
    )
    def test_without_a_guarantee_everything_says_so(
        self, options: list[str], words: str, tmp_path: Path
    ) -> None:
        out = tmp_path / "run"
        *_, header, titles, row, _, summary, _, _ = run(
            "run", *SMALL, *options, "--out", str(out)
        ).splitlines()
        assert words in header.lower()
        assert titles == PRIVATE_HEADER
        assert f" {words} " in row
        assert len(row) == len(PRIVATE_HEADER)
        assert words in summary
        (record,) = result_lines(out)
        assert (record["epsilon"], record["privacy"]) == (None, words)
        # No other number could be mistaken for an epsilon.
        for client in record["clients"]:
            assert client["metrics"].get("epsilon") is None
        assert words in run("resume", str(out), "--json")

    def test_nothing_that_depends_on_the_data_is_shown_or_written(self, tmp_path: Path) -> None:
        # The same run on two partitions, in which all clients have different examples.
        shown, written = [], []
        for alpha in ("0.1", "5"):
            out = tmp_path / alpha
            text = run("run", *SMALL, *SERVER, "--alpha", alpha, "--out", str(out))
            shown.append(text.splitlines()[:3])
            environment = json.loads((out / "environment.json").read_text())
            # Random, or digests under a random key: they differ in every run.
            for key in ("run", "ledger", "ledger_id", "data"):
                del environment[key]
            (record,) = result_lines(out)
            # Results of noisy sums are public, but differ.
            for key in ("accuracy", "loss", "server_seconds"):
                del record[key]
            written.append((environment, record, {path.name for path in out.iterdir()}))
        assert shown[0] == shown[1]
        assert written[0] == written[1]

    def test_without_a_guarantee_the_partition_is_shown(self, tmp_path: Path) -> None:
        for name, options in (("plain", []), ("paper", PAPER)):
            text = run("run", *SMALL, *options, "--out", str(tmp_path / name))
            assert re.search(r"3 clients with \d+ to \d+ of 1,438 examples", text)

    @pytest.mark.parametrize("options", [[], SERVER], ids=["plain", "private"])
    def test_held_out_examples_are_mentioned(self, options: list[str], tmp_path: Path) -> None:
        split = ("--set", "data.validation=0.25")
        text = run("run", *SMALL, *options, *split, "--out", str(tmp_path / "run"))
        # A quarter of 1,438.
        protected = ", which are not protected" if options else ""
        assert f"Evaluated on 360 held-out training examples{protected}.\n" in text
        text = run("run", *SMALL, *options, "--out", str(tmp_path / "other"))
        assert "held-out" not in text


class TestStudies:
    def test_compare_shows_epsilon_everywhere(self, tmp_path: Path) -> None:
        (tmp_path / "ours.toml").write_text(
            '[algorithm]\nname = "feddm"\n[algorithm.synthesis]\nsteps = 1\n'
            '[privacy]\nmechanism = "features"\nepsilon = 2.0\nlearn = "server"\n'
            'ledger = "new"\n'
        )
        (tmp_path / "paper.toml").write_text(
            '[algorithm]\nname = "feddm"\n[algorithm.synthesis]\nsteps = 1\n'
            '[privacy]\nmechanism = "paper"\nledger = "new"\n'
        )
        study, figure = tmp_path / "study", tmp_path / "curves.svg"
        text = run(
            *("compare", "--algorithms", "ours,paper,real", "--seeds", "0,1", *SMALL),
            *("--with", f"ours={tmp_path / 'ours.toml'}", "--out", str(study)),
            *("--with", f"paper={tmp_path / 'paper.toml'}", "--figure", str(figure)),
        )
        # In the lines of the rounds and in the table.
        assert re.search(r"^ours seed 1: round 1/1, accuracy .* %, epsilon 2\.000$", text, re.M)
        assert re.search(r"^paper seed 1: .* %, no guarantee$", text, re.M)
        assert re.search(r"^real seed 1: round 1/1, accuracy [\d.]+ %$", text, re.M)
        assert re.search(r"^ours .* 2\.000 ", text, re.M)
        assert re.search(r"^paper .* no guarantee ", text, re.M)
        assert "at delta 1e-05 for one example" in " ".join(text.split())
        rows = list(csv.DictReader((study / "table.csv").read_text().splitlines()))
        assert [row["privacy"] for row in rows] == ["features", "no guarantee", ""]
        assert rows[0]["delta"] == "1e-05" and rows[0]["unit"] == "example"
        assert [row["client_seconds"] == "" for row in rows] == [True, True, False]
        ours, paper, real = json.loads((study / "table.json").read_text())
        assert ours["epsilon"] == pytest.approx(2.0)
        assert paper["epsilon"] is real["epsilon"] is None
        # Each seed has its own budget, in its own ledger.
        cells = study.glob("cells/ours-seed*/environment.json")
        assert len({json.loads(cell.read_text())["ledger"] for cell in cells}) == 2
        drawn = figure.read_text()
        for words in ("<!-- ours, epsilon 2.000 -->", "<!-- paper, no guarantee -->"):
            assert words in drawn
        assert "<!-- epsilon: spent after the last round, at delta 1e-05" in drawn

    def test_fixed_secrets_in_a_study(self, tmp_path: Path) -> None:
        text = run("compare", "--algorithms", "feddm", *SMALL, *FIXED, "--out", str(tmp_path))
        assert text.count("not private") >= 3  # the notice, the round and the table
        assert "not private" in (tmp_path / "table.md").read_text()
        assert "not private" in (tmp_path / "table.csv").read_text()
        assert '"privacy": "not private"' in (tmp_path / "table.json").read_text()

    @pytest.mark.parametrize(
        "command",
        [
            ["compare", "--algorithms", "feddm,fedavg"],
            ["tune", "--algorithm", "feddm", "--grid", "server.lr=1,2"],
            ["tune", "--algorithm", "fedavg"],
            ["ablate", "--change", "mine:server.lr=1"],
        ],
        ids=str,
    )
    def test_a_study_needs_its_own_ledgers(
        self, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
        study = [*command, "--epsilon", "4", "--out", str(tmp_path / "study")]
        says = refused(*study)
        assert "share one budget" in says
        assert "--ledger new" in says
        says = refused(*study, "--ledger", str(tmp_path / "all"))
        assert "would spend the whole budget" in says
        assert str(tmp_path / "all") in says
        assert not any(tmp_path.iterdir())

    def test_runs_with_fixed_noise_may_share_a_named_ledger(self, tmp_path: Path) -> None:
        # They have no budget to use up, and the ledger adds them up.
        noise = ("--privacy", "features", "--set", "privacy.noise_multiplier=8")
        run(
            *("compare", "--algorithms", "feddm", "--seeds", "0,1", *noise, *SMALL),
            *("--set", "synthesis.steps=1", "--set", "privacy.learn=server"),
            *("--ledger", str(tmp_path / "all"), "--out", str(tmp_path / "study")),
        )
        first, second = (
            result_lines(tmp_path / "study" / "cells" / f"feddm-seed{seed}")[0]["epsilon"]
            for seed in (0, 1)
        )
        assert 0 < first < second

    def test_without_a_guarantee_no_ledger_is_needed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
        noise = ("--privacy", "paper", "--set", "synthesis.steps=1")
        study = ("--algorithms", "feddm", "--out", str(tmp_path / "study"))
        assert "no guarantee" in run("compare", *study, *noise, *SMALL)

    @pytest.mark.parametrize(
        ("options", "reasons", "rest"),
        [
            (
                ["--epsilon", "4"],
                ["real sends real images, which nothing makes private (real)"],
                "feddm,fedavg,fedprox,fednova,scaffold",
            ),
            (
                ["--epsilon", "4", "--privacy", "features"],
                [
                    "--privacy features is for feddm; other algorithms take gradients "
                    "(fedavg, fedprox, fednova, scaffold)",
                    "real sends real images",
                ],
                "feddm",
            ),
            (
                ["--privacy", "paper"],
                ["paper is for feddm", "real sends real images"],
                "feddm",
            ),
        ],
        ids=str,
    )
    def test_unsuitable_algorithms_are_named(
        self, options: list[str], reasons: list[str], rest: str, tmp_path: Path
    ) -> None:
        says = refused("compare", *options, "--seeds", "0,1", "--out", str(tmp_path / "study"))
        for reason in reasons:
            assert reason in says
        assert says.endswith(f"; compare the others with --algorithms {rest}")
        assert not any(tmp_path.iterdir())

    def test_nothing_is_left_to_compare(self, tmp_path: Path) -> None:
        says = refused("compare", "--epsilon", "4", "--algorithms", "real")
        assert says.endswith("; none is left")

    def test_the_papers_grid_without_settings_that_privacy_does_not_have(
        self, tmp_path: Path
    ) -> None:
        run(
            *("tune", "--algorithm", "fedavg", *LEAST, "--privacy", "gradients"),
            *("--set", "privacy.noise_multiplier=1", "--set", "privacy.steps=1"),
            *("--ledger", "new", "--out", str(tmp_path)),
        )
        names = {path.name for path in (tmp_path / "cells").iterdir()}
        assert names == {f"lr={lr}-seed0" for lr in ("0.001", "0.01", "0.1")}
