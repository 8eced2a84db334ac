"""``feddm compare``, ``feddm tune`` and ``feddm message-size``."""

import csv
import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tiny
from feddm.cli import app
from feddm.config.resolve import resolve
from feddm.core.models import num_params
from feddm.core.seeding import generator
from feddm.errors import ConfigError
from feddm.paper import published
from feddm.runtime.build import build

SMALL = [
    *("--clients", "3", "--rounds", "1", "--workers", "1"),
    *("--set", "model.width=4", "--set", "model.depth=2"),
]
IMAGES = ["--set", "server.epochs=1"]  # of FedDM and REAL
SYNTHESIS = ["--set", "synthesis.steps=1"]  # of FedDM
LOCAL = ["--set", "local.batch_size=64"]  # of all others


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_compare_all_six(tmp_path: Path) -> None:
    study = tmp_path / "study"
    command = ["compare", "--seeds", "0,1", "--targets", "0.01,1", "--out", str(study), *SMALL]
    command += [*IMAGES, *SYNTHESIS, *LOCAL]
    output = run(*command)
    for name in ("feddm", "fedavg", "fedprox", "fednova", "scaffold", "real"):
        assert f"{name} seed 1: round 1/1" in output
        assert (study / "cells" / f"{name}-seed1" / "model.safetensors").exists()
    rows = json.loads((study / "table.json").read_text())
    assert len(rows) == 6
    assert {row["seeds"] for row in rows} == {2}
    assert all(row["reached"][0]["rounds"] == 1 for row in rows)
    assert (study / "table.md").read_text().count("\n|") == 7
    assert (study / "table.csv").read_text().count("\n") == 7
    again = run(*command)
    assert "round 1/1" not in again
    assert json.loads((study / "table.json").read_text()) == rows


def test_compare_draws_a_figure(tmp_path: Path) -> None:
    file = tmp_path / "curves.pdf"
    command = ["compare", "--algorithms", "real,fedavg", "--figure", str(file), *SMALL]
    command += [*IMAGES, *LOCAL]
    assert f"Drawn in {file}" in run(*command, "--out", str(tmp_path / "study"))
    assert file.read_bytes().startswith(b"%PDF")


def test_compare_as_json_is_json_only(tmp_path: Path) -> None:
    command = ["compare", "--algorithms", "real", "--json", "--out", str(tmp_path)]
    output = run(*command, *SMALL, *IMAGES)
    assert json.loads(output)[0]["name"] == "real"


def test_tune_chooses_on_held_out_examples_and_compare_takes_the_winner(tmp_path: Path) -> None:
    tuned = tmp_path / "tuned"
    output = run(
        *("tune", "--algorithm", "fedavg", "--grid", "local.lr=1e-9,.05", "--out", str(tuned)),
        *("--validation", "0.2", *SMALL, *LOCAL, "--set", "local.epochs=5"),
    )
    assert "Best on validation: lr=0.05" in output
    assert tomllib.loads((tuned / "winner.toml").read_text()) == {
        "algorithm": {"name": "fedavg", "local": {"lr": 0.05}},
    }
    for cell in (tuned / "cells").iterdir():
        config = tomllib.loads((cell / "config.toml").read_text())
        assert config["data"]["validation"] == 0.2
    study = tmp_path / "study"
    run(
        *("compare", "--algorithms", "fedavg,fedprox", "--out", str(study), *SMALL, *LOCAL),
        *("--with", f"fedavg={tuned / 'winner.toml'}"),
    )
    config = tomllib.loads((study / "cells" / "fedavg-seed0" / "config.toml").read_text())
    assert config["algorithm"]["local"]["lr"] == 0.05
    assert config["data"]["validation"] == 0
    config = tomllib.loads((study / "cells" / "fedprox-seed0" / "config.toml").read_text())
    assert config["algorithm"]["local"]["lr"] == 0.01


def test_the_winner_is_over_a_preset(tmp_path: Path) -> None:
    (tmp_path / "winner.toml").write_text("[algorithm.local]\nlr = 0.05\nepochs = 3\n")
    study = tmp_path / "study"
    run(
        *("compare", "--algorithms", "fedavg", "--out", str(study), "--preset", "quick"),
        *(*SMALL, *LOCAL),
        *("--with", f"fedavg={tmp_path / 'winner.toml'}"),
    )
    config = tomllib.loads((study / "cells" / "fedavg-seed0" / "config.toml").read_text())
    local = config["algorithm"]["local"]
    assert (local["lr"], local["epochs"], local["batch_size"]) == (0.05, 3, 64)


def test_a_file_for_one_algorithm_must_not_make_it_unfair(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[partition]\nalpha = 9.0\n")
    command = ["compare", "--algorithms", "fedavg,real", "--out", str(tmp_path / "study")]
    with pytest.raises(ConfigError, match="real and fedavg differ in partition"):
        CliRunner().invoke(
            app,
            [*command, "--with", f"real={tmp_path / 'other.toml'}"],
            catch_exceptions=False,
        )


def test_a_typo_in_the_file_of_one_algorithm_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[algorithm.local]\nlrr = 0.5\n")
    command = ["compare", "--algorithms", "fedavg,real", "--out", str(tmp_path / "study")]
    with pytest.raises(ConfigError, match=r"unknown key local\.lrr \(did you mean lr\?\)"):
        CliRunner().invoke(
            app,
            [*command, "--with", f"fedavg={tmp_path / 'mine.toml'}"],
            catch_exceptions=False,
        )


def test_settings_under_a_name_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[algorithm]\nname = "real"\n[algorithm.server]\nlr = 0.5\n'
    )
    study = tmp_path / "study"
    output = run(
        *("compare", "--algorithms", "real,mine", "--seeds", "0,1", "--out", str(study)),
        *("--with", f"mine={tmp_path / 'mine.toml'}", "--against", "real", *SMALL, *IMAGES),
    )
    assert "mine seed 1: round 1/1" in output
    config = tomllib.loads((study / "cells" / "mine-seed1" / "config.toml").read_text())
    algorithm = config["algorithm"]
    assert (algorithm["name"], algorithm["server"]["lr"], config["seed"]) == ("real", 0.5, 1)

    # The difference of the accuracies that the cells wrote down, seed by seed.
    real, mine = (
        [
            json.loads((study / "cells" / f"{name}-seed{seed}" / "results.jsonl").read_text())
            for seed in (0, 1)
        ]
        for name in ("real", "mine")
    )
    first, second = (m["accuracy"] - r["accuracy"] for m, r in zip(mine, real, strict=True))
    assert first != second
    rows = json.loads((study / "table.json").read_text())
    assert [row["name"] for row in rows] == ["real", "mine"]
    assert rows[0]["difference"] is None
    assert rows[1]["difference"]["name"] == "real"
    assert rows[1]["difference"]["mean"] == pytest.approx((first + second) / 2)
    # Of two numbers: the deviation is their distance by the root of two, the error by two.
    assert rows[1]["difference"]["error"] == pytest.approx(abs(first - second) / 2)

    lines = (study / "table.md").read_text().splitlines()
    assert lines[0].startswith("|  | final % | vs real | best % |")
    points = f"{50 * (first + second):+.2f} ({50 * abs(first - second):.2f})"
    assert lines[3].split(" | ")[2] == points
    (_, ours) = csv.DictReader((study / "table.csv").read_text().splitlines())
    assert float(ours["difference"]) == rows[1]["difference"]["mean"]
    assert float(ours["difference_error"]) == rows[1]["difference"]["error"]
    assert "vs real" in output
    assert points in output


def test_each_algorithm_takes_the_settings_that_it_has(tmp_path: Path) -> None:
    settings = ("--set", "local.momentum=0.5", "--set", "mu=0.25", *LOCAL)
    run(
        *("compare", "--algorithms", "fedprox,scaffold", "--out", str(tmp_path)),
        *(*SMALL, *settings),
    )
    prox, scaffold = (
        tomllib.loads((tmp_path / "cells" / f"{name}-seed0" / "config.toml").read_text())
        for name in ("fedprox", "scaffold")
    )
    assert prox["algorithm"]["mu"] == 0.25
    assert prox["algorithm"]["local"]["momentum"] == 0.5
    assert "mu" not in scaffold["algorithm"]
    assert "momentum" not in scaffold["algorithm"]["local"]
    assert scaffold["algorithm"]["local"]["batch_size"] == 64


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[algorithm.local]\nlrr = 0.1\n", r"unknown key local.lrr \(did you mean lr\?\)"),
        ("[algorithm.server]\nlr = 0.1\n", "has no setting server.lr"),
        ("[local]\nlr = 0.1\n", r"\[local\] .* of an earlier version"),
    ],
)
def test_a_file_for_one_algorithm_has_only_its_settings(
    text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(text)
    command = ["compare", "--algorithms", "fedavg,real", "--out", str(tmp_path / "study")]
    with pytest.raises(ConfigError, match=says):
        run(*command, "--with", f"fedavg={tmp_path / 'mine.toml'}")
    assert not (tmp_path / "study").exists()


def test_a_file_that_names_no_algorithm_is_no_variant(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[algorithm.server]\nlr = 0.5\n")
    command = ["compare", "--algorithms", "feddm,mine", "--out", str(tmp_path / "study")]
    with pytest.raises(ConfigError, match="add --with mine=FILE with a file that names"):
        CliRunner().invoke(
            app,
            [*command, "--with", f"mine={tmp_path / 'mine.toml'}"],
            catch_exceptions=False,
        )
    assert not (tmp_path / "study").exists()


def test_ablate_compares_every_change_with_none(tmp_path: Path) -> None:
    changes = ["none:server.epochs=1", "both:coding=float32,server.augment=false"]
    options = [part for change in changes for part in ("--change", change)]
    run(
        "ablate",
        "--seeds",
        "0,1",
        "--out",
        str(tmp_path),
        *SMALL,
        *IMAGES,
        *SYNTHESIS,
        *options,
    )
    rows = {row["name"]: row for row in json.loads((tmp_path / "table.json").read_text())}
    assert list(rows) == ["base", "none", "both"]
    assert rows["base"]["difference"] is None
    # What changes nothing gives the same bits; bytes are a quarter, with a few more of ranges.
    assert rows["none"]["difference"] == {"name": "base", "mean": 0.0, "error": 0.0}
    assert rows["base"]["bytes_up"] < 0.27 * rows["both"]["bytes_up"]
    assert rows["both"]["final"] != rows["base"]["final"]
    config = (tmp_path / "cells" / "both-seed1" / "config.toml").read_text()
    assert tomllib.loads(config)["data"]["validation"] == 0.1
    assert json.loads((tmp_path / "study.json").read_text())["changes"]["both"] == {
        "coding": "float32",
        "server.augment": False,
    }


def test_tune_survives_a_choice_that_diverges(tmp_path: Path) -> None:
    command = ["tune", "--algorithm", "fedavg", "--out", str(tmp_path), *SMALL, *LOCAL]
    output = run(*command, "--rounds", "3", "--grid", "local.lr=1e6,0.05")
    assert "lr=1000000.0 seed 0 failed" in output
    winner = tomllib.loads((tmp_path / "winner.toml").read_text())
    assert winner["algorithm"]["local"]["lr"] == 0.05


def test_message_size_of_digits() -> None:
    rows = json.loads(run("message-size", "--splits", "3", "--alpha", "0.5", "--json"))
    assert len(rows) == 4
    # Width 128 and depth 3 on 8x8: 1,280 + 2 * 147,584 + 3 * 256 + 128 * 10 + 10.
    assert rows[1]["floats"] == 10 * 298_506
    assert rows[3]["floats"] == 20 * 298_506
    assert 0 < rows[0]["floats"] < 10 * 10 * 10 * 64
    assert rows[0]["num_bytes"] == pytest.approx(rows[0]["floats"] / 64 * (4 * 64 + 1))
    short = ["--set", "coding=uint8", "--set", "server.weighting=examples"]
    coded = json.loads(run("message-size", "--splits", "3", "--alpha", "0.5", *short, "--json"))
    # And the range of one channel for each of ten clients.
    images = coded[0]["floats"] / 65
    assert coded[0]["num_bytes"] == pytest.approx(images * (64 + 4 + 1) + 10 * 8)
    assert rows[0]["paper"] is None
    assert "exact" in run("message-size", "--splits", "2", "--alpha", "0.5")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"coding": "uint8", "server.weighting": "examples"},
        {"coding": "uint8"},
        {"synthesis.start": "noise", "coding": "uint8"},
    ],
    ids=str,
)
def test_message_size_is_what_runs_send(settings: dict[str, object]) -> None:
    settings = tiny.SETTINGS | settings
    sent = [
        tiny.run_tiny(rounds=1, seed=seed, set=settings).records[0].bytes_up for seed in (0, 1)
    ]
    given = [f"--set={key}={value}" for key, value in settings.items() if key != "local.epochs"]
    split = ["--clients", str(tiny.CLIENTS), "--alpha", "0.5", "--splits", "2", "--json"]
    rows = json.loads(run("message-size", "--preset", "quick", *split, *given))
    assert rows[0]["num_bytes"] == sum(sent) / 2


@pytest.mark.parametrize(
    ("arguments", "images", "models"),
    [
        ([], 123, 456),
        (["--width", "32"], 123, None),
        (["--clients", "9"], None, None),
        (["--ipc", "9"], None, 456),
        (["--set", "coding=uint8"], None, 456),
        (["--set", "synthesis.start=noise"], None, 456),
        (["--set", "min_class_size=9"], None, 456),
        (["--set", "partition.scheme=dirichlet-plain"], None, 456),
    ],
)
def test_message_size_shows_the_papers_figures_only_beside_its_settings(
    arguments: list[str],
    images: int | None,
    models: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if the paper's table had a line for the digits.
    monkeypatch.setitem(published.MESSAGES, "digits", {0.5: 123})
    monkeypatch.setitem(published.BASELINE_MESSAGES, "digits", 456)
    command = ["message-size", "--splits", "2", "--alpha", "0.5", "--json"]
    rows = json.loads(run(*command, *arguments))
    assert (rows[0]["paper"], rows[1]["paper"]) == (images, models)


class TestMessageSizeUnderPrivacy:
    COMMAND = (
        *("message-size", "--preset", "quick", "--clients", str(tiny.CLIENTS), "--json"),
        *(
            "--alpha",
            "0.5",
            "--splits",
            "2",
            "--set",
            "model.width=4",
            "--set",
            "model.depth=2",
        ),
    )

    @pytest.mark.parametrize(
        "settings",
        [
            # So little noise that the sizes of classes are as good as exact.
            {"privacy.noise_multiplier": 1e-6, "privacy.learn": "client"},
            {
                "privacy.noise_multiplier": 1e-6,
                "privacy.learn": "client",
                "coding": "uint8",
            },
            {"privacy.noise_multiplier": 1.0},
            {
                "privacy.noise_multiplier": 1.0,
                "privacy.projection": 0,
            },
        ],
        ids=str,
    )
    def test_features_are_what_runs_send(
        self, settings: dict[str, object], tmp_path: Path
    ) -> None:
        settings = (
            {"coding": "float32"}
            | settings
            | {
                "privacy.mechanism": "features",
                "synthesis.networks": 2,
                # No class has just so many, where the least noise would decide.
                "min_class_size": 9,
            }
        )
        given = [f"--set={key}={value}" for key, value in settings.items()]
        rows = json.loads(run(*self.COMMAND, *given))
        sent = [
            tiny.run_tiny(
                rounds=1,
                seed=seed,
                ledger=tmp_path / str(seed),
                set=tiny.SETTINGS | settings,
            ).records[0]
            for seed in (0, 1)
        ]
        assert rows[0]["num_bytes"] == pytest.approx(sum(r.bytes_up for r in sent) / 2)
        if settings["coding"] == "float32":
            assert rows[0]["floats"] == pytest.approx(sum(r.floats_up for r in sent) / 2)

    def test_sums_by_hand(self) -> None:
        server = ("--privacy", "features", "--epsilon", "4", "--set")
        rows = json.loads(run(*self.COMMAND, *server, "synthesis.networks=3"))
        # Three clients, three networks, ten classes; 64 features, ten logits and a count.
        assert rows[0]["floats"] == 3 * 3 * 10 * (64 + 10 + 1)
        assert rows[0]["num_bytes"] == 4 * rows[0]["floats"]
        assert rows[0]["std"] == 0
        assert len(rows) == 4

    def test_gradients_by_hand(self) -> None:
        # The size of a class has noise of deviation 10, whatever the budget.
        command = [*self.COMMAND, "--set", "partition.scheme=iid", "--ipc", "1"]
        rows = json.loads(run(*command, "--privacy", "gradients", "--epsilon", "4"))
        # Three clients have about 48 of each class, and 5 are enough: 4.3 deviations less, so
        # that they send all.
        assert rows[0]["floats"] == pytest.approx(3 * 10 * 64, rel=1e-3)
        few = json.loads(
            run(
                *(*command, "--privacy", "gradients", "--epsilon", "4"),
                *("--set", "min_class_size=48"),
            )
        )
        # As many as they have on average: every other class or so is sent.
        assert few[0]["floats"] == pytest.approx(15 * 64, rel=0.1)

    def test_a_smaller_budget_is_more_noise(self) -> None:
        # Clients have some 48 of each class, so that all noise can do is to take classes away.
        command = [*self.COMMAND, "--set", "partition.scheme=iid"]
        command += ["--set", "privacy.learn=client"]
        large, small = (
            json.loads(
                run(*command, "--privacy", "features", "--epsilon", epsilon, "--rounds", "20")
            )[0]["floats"]
            for epsilon in ("8", "0.5")
        )
        assert small < 0.9 * large

    def test_baselines_send_what_they_send_without(self) -> None:
        plain = json.loads(run(*self.COMMAND))
        private = json.loads(run(*self.COMMAND, "--privacy", "features", "--epsilon", "4"))
        assert private[1:] == plain[1:]

    def test_private_weights_are_what_runs_send(self, tmp_path: Path) -> None:
        rows = json.loads(run(*self.COMMAND, "--privacy", "features", "--epsilon", "4"))
        settings = {key: tiny.SETTINGS[key] for key in ("model.width", "model.depth")}
        private = {"privacy.noise_multiplier": 1.0, "privacy.steps": 1}
        for row, algorithm in zip(rows[1:], ("fedavg", "fednova", "scaffold"), strict=True):
            result = tiny.run_tiny(
                rounds=1,
                algorithm=algorithm,
                privacy="gradients",
                ledger=tmp_path / algorithm,
                set=settings | private,
            )
            assert row["num_bytes"] == result.records[0].bytes_up

    def test_what_cannot_be_known_is_told(self) -> None:
        with pytest.raises(ConfigError, match="depends on the examples which classes"):
            run(
                *(
                    *self.COMMAND,
                    "--privacy",
                    "features",
                    "--epsilon",
                    "4",
                    "--set",
                    "privacy.unit=client",
                ),
                *("--set", "privacy.learn=client"),
            )

    def test_the_paper_is_not_shown_beside_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(published.MESSAGES, "digits", {0.5: 123})
        command = ["message-size", "--alpha", "0.5", "--splits", "2", "--json"]
        assert json.loads(run(*command))[0]["paper"] == 123
        assert (
            json.loads(run(*command, "--privacy", "features", "--epsilon", "4"))[0]["paper"]
            is None
        )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "--algorithms", "fedavgg"], "fedavgg is none of"),
        (["compare", "--algorithms", "feddm,mine"], "add --with mine=FILE"),
        (["compare", "--algorithms", "feddm", "--against", "real"], "takes one of feddm, got"),
        (["compare", "--with", "mine=mine.toml"], "--with takes NAME=FILE with one of"),
        (["compare", "--device", "gpu"], "runtime.device must be one of auto, cpu, cuda, mps"),
        (["tune", "--grid", "server.lr=1", "--compile", "1"], "runtime.compile must be one of"),
        (["compare", "--algorithms", "../evil"], "letters, digits"),
        (["compare", "--algorithms", "real,real"], "--algorithms takes different names"),
        (["compare", "--seeds", "0,x"], "--seeds takes different whole numbers"),
        (["compare", "--targets", "95"], "numbers from 0 to 1"),
        (["compare", "--with", "fedavg"], "--with takes NAME=FILE"),
        (["compare", "--with", "fedavg=nowhere.toml"], "nowhere.toml"),
        (
            ["compare", "--algorithms", "scaffold", "--set", "local.momentum=0.9"],
            "local.momentum cannot be set here: SCAFFOLD has none",
        ),
        (
            ["compare", "--algorithms", "real,fedavg", *SYNTHESIS],
            "real has no setting synthesis.steps; feddm has it",
        ),
        (
            ["compare", "--set", "synthesis.step=1"],
            r"unknown key synthesis.step \(did you mean",
        ),
        (["compare", "--figure", "none/curves.png"], "cannot draw none/curves.png"),
        (["tune"], "the paper has no grid for feddm; give one with --grid"),
        (["ablate", "--change", "mine"], "--change takes NAME:KEY=VALUE"),
        (["ablate", "--change", "a/b:seed=1"], "--change takes NAME:KEY=VALUE"),
        (["ablate", "--change", "mine:server.lrr=1"], "unknown key server.lrr"),
        (["ablate", "--change", "mine:server.lr"], "--change takes NAME:KEY=VALUE"),
        (["ablate", "--change", "mine:=1"], "--change takes NAME:KEY=VALUE"),
        (["ablate", "--change", "mine:server.lr=1,"], "--change takes NAME:KEY=VALUE"),
        (["ablate", "--change", "mine:server.lr=1,server.lr=2"], "mine has a key twice"),
        (["ablate", "--change", "base:server.lr=1"], "cannot be named base"),
        (["ablate", *2 * ["--change", "mine:server.lr=1"]], "the name mine twice"),
        (["ablate", "--change", "mine:seed=1"], "seed cannot be set to 1: --seeds says"),
        (["ablate", "--change", "mine:data.validation=0"], "mine and base differ in data"),
        (["ablate", "--change", "mine:partition.alpha=1"], "mine and base differ in partition"),
        (["ablate", "--change", "mine:rounds=1"], "mine and base differ in rounds"),
        (
            ["ablate", "--change", "mine:participation=.5"],
            "mine and base differ in participation",
        ),
        (["ablate", "--change", "mine:model.width=4"], "mine and base differ in model"),
        (["ablate", "--change", "mine:preset=paper"], "mine and base differ in model"),
        (["ablate", "--change", "mine:server.lr=1", "--set", "seed=5"], "cannot be set to 5"),
        (
            ["ablate", "--change", "mine:server.lr=1", "--set", "data.validation=.2"],
            "data.validation cannot be set here",
        ),
        (["ablate", "--change", "mine:min_clients=11"], "min_clients must be at most 10"),
        (["compare", "--set", "seed=5", "--algorithms", "real"], "seed cannot be set to 5"),
        (["tune", "--grid", "server.lr=1", "--set", "seed=5"], "seed cannot be set to 5"),
        (["tune", "--grid", "min_clients=1,11"], "min_clients must be at most 10"),
        (
            ["tune", "--grid", "server.lr=1", "--set", "data.validation=0"],
            "data.validation cannot be set here",
        ),
        (["tune", "--grid", "data.validation=.1,.2"], "data.validation cannot be set here"),
        (["tune", "--grid", "server.lr"], "--grid takes key=value"),
        (["tune", "--grid", "server.lrr=1"], "unknown key server.lrr"),
        (["tune", "--grid", "server.lr=1", "--validation", "2"], "data.validation must be"),
        (
            ["tune", "--grid", "server.lr=1", "--validation", "0"],
            "the test set must not choose",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


class TestWhatTheCommandDecides:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["compare", "--set", "algorithm=real"], "--algorithms names them"),
            (["compare", "--set", "algorithm.name=real"], "--algorithms names them"),
            (["message-size", "--set", "algorithm=fedavg"], "are all shown"),
            (
                ["compare", "--algorithms", "fedavg", "--ipc", "3"],
                "fedavg has no setting images_per_class; feddm, real have it",
            ),
        ],
    )
    def test_it_cannot_be_set(self, arguments: list[str], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            run(*arguments)

    def test_message_sizes_of_a_file_are_of_its_split_and_model(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.toml"
        options = {"clients": 4, "alpha": 1.0, "width": 8, "ipc": 2}
        file.write_text(resolve(options=options).to_toml())
        rows = json.loads(run("message-size", str(file), "--splits", "2", "--json"))
        # One split, whose alpha the file names, and three rows of baselines.
        assert [row["what"].partition(", ")[0] for row in rows][:2] == ["FedDM", "FedAvg"]
        assert len(rows) == 4
        assert rows[0]["floats"] <= 4 * 10 * 2 * 64
        algorithm = build(resolve(options=options)).algorithm
        weights = num_params(algorithm.model.init(generator(0, "size")))
        assert rows[1]["floats"] == 4 * weights
