import json
import math
from pathlib import Path
from typing import Any

import pytest

from fabricated import config, private_records, record, records, write_run, write_study
from feddm.analysis.report.runs import read
from feddm.errors import FedDMError, RunDirectoryError


def test_methods_of_a_study_are_in_the_order_of_its_command(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", ("real", "feddm"), seeds=(0, 7), rounds=2)
    found = read([study])
    assert [method.name for method in found.methods] == ["real", "feddm"]
    assert [[run.config.seed for run in m.runs] for m in found.methods] == [[0, 7], [0, 7]]
    assert found.command == (
        "feddm compare --algorithms real,feddm --seeds 0,7 --dataset digits --clients 10 "
        "--alpha 0.5 --rounds 2 --out study"
    )
    assert found.notes == ()


def test_an_interrupted_study_has_no_description(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", ("real", "feddm"), seeds=(0,), rounds=2)
    (study / "study.json").unlink()
    found = read([study])
    assert [method.name for method in found.methods] == ["feddm", "real"]
    assert found.command is None


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"command": "", "cells": "none"}'])
def test_a_damaged_description_is_ignored(tmp_path: Path, text: str) -> None:
    study = write_study(tmp_path / "study", ("real",), seeds=(0,), rounds=2)
    (study / "study.json").write_text(text)
    assert [method.name for method in read([study]).methods] == ["real"]


def test_other_runs_in_the_directory_are_ignored(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", ("real",), seeds=(0,), rounds=2)
    write_run(study / "cells" / "feddm-seed0", records([0.5, 0.6]), config())
    assert [method.name for method in read([study]).methods] == ["real"]


def test_runs_that_differ_only_in_the_seed_are_one_method(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "b", records([0.1, 0.2]), config(seed=2)),
        write_run(tmp_path / "a", records([0.3, 0.4]), config(seed=1)),
        # The same run with other workers and another data directory.
        write_run(
            tmp_path / "c",
            records([0.5, 0.6]),
            config(seed=3, runtime__workers=1, data__dir="/elsewhere"),
        ),
    ]
    (method,) = read(runs).methods
    assert method.name == "feddm"
    assert [run.config.seed for run in method.runs] == [1, 2, 3]


def test_other_runs_are_named_after_their_directories(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "slow", records([0.1, 0.2]), config(server__lr=0.001)),
        write_run(tmp_path / "fast", records([0.3, 0.4]), config(server__lr=0.1)),
        write_run(tmp_path / "third", records([0.3, 0.4]), config(algorithm="fedavg")),
    ]
    assert [method.name for method in read(runs).methods] == ["slow", "fast", "fedavg"]


def test_equal_names_of_different_methods_are_numbered(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a" / "run", records([0.1, 0.2]), config(server__lr=0.001)),
        write_run(tmp_path / "b" / "run", records([0.3, 0.4]), config(server__lr=0.1)),
    ]
    assert [method.name for method in read(runs).methods] == ["run", "run (2)"]


def test_methods_of_several_studies_have_the_name_of_the_study(tmp_path: Path) -> None:
    one = write_study(tmp_path / "one", ("feddm",), seeds=(0,), rounds=2)
    two = write_study(tmp_path / "two", ("feddm",), seeds=(0,), rounds=3)
    found = read([one, two])
    assert [method.name for method in found.methods] == ["one/feddm", "two/feddm"]
    assert found.command is None


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.1, 0.2]), config())
    assert (
        len(read([run, run.parent / "." / ".." / run.parent.name / "run"]).methods[0].runs) == 1
    )


def test_a_shorter_seed_is_left_out_with_a_note(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", ("feddm",), seeds=(0, 1), rounds=3)
    file = study / "cells" / "feddm-seed1" / "results.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:1]))
    found = read([study])
    assert [run.config.seed for run in found.methods[0].runs] == [0]
    assert found.notes == (
        "feddm, seed 1, has only 1 of 3 rounds and is left out of the means.",
    )


def test_a_running_run_is_shown_so_far(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.1, 0.2]), config(rounds=9))
    with (run / "results.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    found = read([run])
    assert found.methods[0].num_rounds == 2
    assert found.notes == ("feddm has 2 of 9 rounds so far.",)


def test_a_damaged_run_of_a_study_does_not_spoil_the_others(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", ("feddm", "real", "fedavg"), seeds=(0,), rounds=2)
    (study / "cells" / "real-seed0" / "results.jsonl").write_text('{"round": 1}\n')
    (study / "cells" / "fedavg-seed0" / "config.toml").write_text("rounds = -1\n")
    found = read([study])
    assert [method.name for method in found.methods] == ["feddm"]
    first, second = found.notes
    assert first.startswith("Left out real-seed0: ")
    damaged = study / "cells" / "fedavg-seed0" / "config.toml"
    assert second.startswith(f"Left out fedavg-seed0: {damaged} can't be used: rounds must be")


def test_old_results_without_a_key_are_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [record(1, 0.5)], config())
    fields = json.loads((run / "results.jsonl").read_text())
    del fields["bytes_down"]
    (run / "results.jsonl").write_text(json.dumps(fields) + "\n")
    with pytest.raises(RunDirectoryError, match="damaged"):
        read([run])


@pytest.mark.parametrize(
    ("settings", "epsilon", "text"),
    [
        ({"privacy__epsilon": 4.0}, 3.5, "surrogate"),
        ({"privacy__epsilon": 4.0}, math.inf, "no guarantee"),
        ({"privacy__epsilon": 4.0, "privacy__test_secret": "known"}, 3.5, "not private"),
        ({"privacy__mechanism": "paper"}, 3.5, "no guarantee"),
    ],
)
def test_older_results_without_the_full_guarantee(
    tmp_path: Path, settings: dict[str, Any], epsilon: float, text: str
) -> None:
    old = record(1, 0.5, epsilon=epsilon, client_seconds=12.5)
    run = write_run(tmp_path / "run", [old], config(rounds=1, **settings))
    (found,) = read([run]).methods[0].runs[0].records
    assert found.privacy == text
    assert math.isnan(found.client_seconds)
    if text == "surrogate":
        assert (found.epsilon, found.delta, found.unit) == (3.5, 1e-5, "example")
    else:
        assert (found.epsilon, found.delta, found.unit) == (math.inf, None, None)


def test_the_guarantee_is_read_as_written(tmp_path: Path) -> None:
    private = config(rounds=1, privacy__epsilon=4.0, privacy__unit="client")
    assert private.privacy is not None
    run = write_run(tmp_path / "run", private_records([0.5], 3.5, private.privacy), private)
    (found,) = read([run]).methods[0].runs[0].records
    assert (found.epsilon, found.delta, found.unit) == (3.5, 1e-5, "client")
    assert found.privacy == "surrogate"


def test_paths_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(FedDMError, match="not a run directory"):
        read([tmp_path])
    run = write_run(tmp_path / "run", [], config())
    with pytest.raises(FedDMError, match="no finished round"):
        read([run])
    (tmp_path / "study" / "cells").mkdir(parents=True)
    with pytest.raises(FedDMError, match="has no runs"):
        read([tmp_path / "study"])


def test_without_versions_there_is_still_a_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [record(1, 0.5)], config(rounds=1))
    (run / "environment.json").write_text("{")
    assert read([run]).methods[0].runs[0].environment == {}
