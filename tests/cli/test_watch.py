import io
import math
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from fabricated import config, record, records, write_run, write_study
from feddm.cli import app, watch
from feddm.cli.curve import curve
from feddm.cli.watch import Study, WatchedRun, in_use
from feddm.errors import RunDirectoryError
from feddm.runtime.results import to_line
from feddm.runtime.rundir import RunDirectory


def feddm(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def followed(run: Path, height: int = 40) -> str:
    """Returns the output on a terminal of 80 columns."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=height)
    watch.follow(Study(run) if (run / "cells").is_dir() else WatchedRun(run), console)
    return screen.getvalue()


def test_without_a_terminal_it_prints_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.25, 0.5]), config(rounds=3))
    lines = feddm("watch", run).splitlines()
    assert lines[0] == "feddm on digits, seed 0: 2 of 3 rounds"
    assert lines[2].split()[:3] == ["1/3", "25.00", "%"]
    assert lines[3].split()[:3] == ["2/3", "50.00", "%"]
    assert lines[5].startswith("  50.0 % ")
    assert lines[-1].startswith("  25.0 % ")
    assert max(map(len, lines)) < 80


def test_before_the_first_round(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], config(rounds=3))
    assert "waiting for the first round" in feddm("watch", run)


def test_a_directory_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        feddm("watch", tmp_path)


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.25, 0.5]), config(rounds=2))
    (run / "model.safetensors").write_bytes(b"")
    text = followed(run)
    assert "50.00 %" in text
    assert f"The run has finished. Report: feddm report {run}" in text


def test_it_ends_if_no_process_works_on_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.25]), config(rounds=2))
    assert f"The run has stopped. Continue: feddm resume {run}" in followed(run)


def test_it_shows_rounds_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "REFRESH", 0.01)
    run = write_run(tmp_path / "run", records([0.25]), config(rounds=2))
    seen: list[int] = []

    def noted(accuracies, *rest, **options):  # type: ignore[no-untyped-def]
        seen.append(len(accuracies))
        return curve(accuracies, *rest, **options)

    monkeypatch.setattr(watch, "curve", noted)

    def work() -> None:
        while not seen:
            pass
        with (run / "results.jsonl").open("a") as file:
            file.write(to_line(record(2, 0.75)) + "\n")
        while seen[-1] < 2:
            pass
        (run / "model.safetensors").write_bytes(b"")

    with RunDirectory.open(run):  # a process works on it
        worker = threading.Thread(target=work)
        worker.start()
        text = followed(run)
        worker.join()
    assert seen[0] == 1 and seen[-1] == 2
    assert "75.00 %" in text


def test_ctrl_c_only_stops_watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", records([0.25]), config(rounds=2))

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("feddm.cli.watch.time.sleep", interrupted)
    with RunDirectory.open(run):
        assert "Still running." in followed(run)


def test_a_long_run_fits_the_screen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([n / 100 for n in range(99)]), config(rounds=99))
    (run / "model.safetensors").write_bytes(b"")
    last = followed(run, height=24).split("98/99")[-2:]
    assert len(last) == 2
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    shown = WatchedRun(run).view(console).plain.splitlines()
    assert len(shown) < 24
    assert any(line.split()[:1] == ["99/99"] for line in shown)
    assert not any(line.split()[:1] == ["1/99"] for line in shown)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two methods with two seeds each; the last of the four runs is in its second round."""
    folder = write_study(tmp_path / "study", ("feddm", "real"), (0, 1), rounds=4)
    last = folder / "cells" / "real-seed1"
    for number, name in enumerate(("feddm-seed0", "real-seed0", "feddm-seed1", "real-seed1")):
        for file in (folder / "cells" / name).iterdir():
            os.utime(file, (1000 + number, 1000 + number))
        if name != last.name:
            (folder / "cells" / name / "model.safetensors").write_bytes(b"")
    lines = (last / "results.jsonl").read_text().splitlines(keepends=True)
    (last / "results.jsonl").write_text("".join(lines[:2]))
    (folder / "study.json").unlink()
    return folder


def test_a_study_shows_its_runs_and_the_latest_curve(study: Path) -> None:
    lines = feddm("watch", study).splitlines()
    assert lines[0] == f"{study}: 4 runs started, 3 finished"
    assert lines[1].split() == ["round", "accuracy"]
    # The limit is 0.95, minus 0.08 per method and 0.01 per seed; rounds miss a half of it, a
    # quarter, an eighth and a sixteenth.
    assert [line.split() for line in lines[2:6]] == [
        ["feddm-seed0", "4/4", "89.06", "%"],
        ["real-seed0", "4/4", "81.56", "%"],
        ["feddm-seed1", "4/4", "88.12", "%"],
        ["real-seed1", "2/4", "64.50", "%"],
    ]
    assert lines[7].startswith("  64.5 % ")
    assert lines[-1].startswith("  43.0 % ")


def test_a_finished_study(study: Path) -> None:
    (study / "study.json").write_text("{}")
    assert f"The study has finished. Report: feddm report {study}" in followed(study)


def test_a_study_that_no_process_works_on(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PAUSE", 0.05)
    monkeypatch.setattr(watch, "REFRESH", 0.01)
    # It finished once, and was started again with more runs.
    (study / "study.json").write_text("{}")
    os.utime(study / "study.json", (1001, 1001))
    assert "The study has stopped. Run its command again to continue." in followed(study)


def test_a_study_goes_on_while_a_run_does(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SILENCE", 0.0)
    watched = Study(study)
    watched._busy = -math.inf  # long ago
    with RunDirectory.open(study / "cells" / "real-seed1"):
        assert watched.end() == ""
    assert watched.end() == ""  # the next run may start in a moment
    watched._busy = -math.inf
    assert watched.end().startswith("The study has stopped")


def test_a_long_study_fits_the_screen(tmp_path: Path) -> None:
    name = "a-name-that-is-far-too-long-for-a-narrow-terminal-of-eighty-columns"
    folder = write_study(tmp_path / "study", ("feddm",), range(40), rounds=2)
    private = config(rounds=2, privacy__mechanism="features", privacy__epsilon=4.0)
    write_run(folder / "cells" / f"{name}-seed0", records([0.5]), private)
    os.utime(folder / "cells" / f"{name}-seed0" / "config.toml", (2**32, 2**32))
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    shown = Study(folder).view(console).plain.splitlines()
    assert len(shown) < 24
    assert max(map(len, shown[1:])) <= 80
    assert any(line.startswith("…") and "columns-seed0" in line for line in shown)
    assert shown[1].split() == ["round", "accuracy", "epsilon"]


def test_in_use(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], config())
    assert not in_use(RunDirectory.open(run))
    with RunDirectory.open(run):
        assert in_use(RunDirectory.open(run))
    assert not in_use(RunDirectory.open(run))


@given(
    st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), max_size=30),
    st.integers(0, 5),
    st.booleans(),
)
def test_a_curve_stays_within_its_frame(
    values: list[float], left: int, ascii_only: bool
) -> None:
    lines = curve(values, max(1, len(values) + left), 60, 8, ascii_only=ascii_only)
    assert len(lines) in (0, 8)
    assert all(len(line) <= 60 for line in lines)
    known = [value for value in values if value == value]
    assert bool(lines) == bool(known)


def test_a_flat_curve_is_one_line_that_ends_at_the_current_round() -> None:
    lines = curve([0.5, 0.5, 0.5], 5, 30, 5, ascii_only=True)
    (drawn,) = [line for line in lines if "*" in line]
    # 20 columns for 5 rounds: the third is in the middle.
    assert drawn.count("*") == 11
