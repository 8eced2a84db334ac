import io
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from fabricated import config, record, records, write_run, write_study
from feddm.cli import app, watch
from feddm.cli.watch import curve, in_use
from feddm.errors import RunDirectoryError
from feddm.results import to_line
from feddm.rundir import RunDirectory


def feddm(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def followed(run: Path, height: int = 40) -> str:
    """Returns what a terminal of 80 columns was sent."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=height)
    opened = RunDirectory.open(run)
    watch._follow(opened, opened.config(), console)
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
    assert "the first round is not over yet" in feddm("watch", run)


def test_what_cannot_be_watched(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", ("real",), (0,), rounds=1)
    for path, text in ((study, "is a study"), (tmp_path, "not a run directory")):
        with pytest.raises(RunDirectoryError, match=text):
            feddm("watch", path)


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.25, 0.5]), config(rounds=2))
    (run / "model.safetensors").write_bytes(b"")
    text = followed(run)
    assert "50.00 %" in text
    assert f"The run has ended. Look at it: feddm report {run}" in text


def test_it_ends_if_nobody_is_at_work(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.25]), config(rounds=2))
    assert f"Nobody is at work on it: feddm resume {run}" in followed(run)


def test_it_shows_rounds_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "REFRESH", 0.01)
    run = write_run(tmp_path / "run", records([0.25]), config(rounds=2))
    seen: list[int] = []
    view = watch.view

    def noted(config_, records_, console):  # type: ignore[no-untyped-def]
        seen.append(len(records_))
        return view(config_, records_, console)

    monkeypatch.setattr(watch, "view", noted)

    def work() -> None:
        while not seen:
            pass
        with (run / "results.jsonl").open("a") as file:
            file.write(to_line(record(2, 0.75)) + "\n")
        while seen[-1] < 2:
            pass
        (run / "model.safetensors").write_bytes(b"")

    with RunDirectory.open(run):  # somebody is at work
        worker = threading.Thread(target=work)
        worker.start()
        text = followed(run)
        worker.join()
    assert seen[0] == 1 and seen[-1] == 2
    assert "75.00 %" in text


def test_ctrl_c_ends_the_view_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", records([0.25]), config(rounds=2))

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("feddm.cli.watch.time.sleep", interrupted)
    with RunDirectory.open(run):
        assert "The run goes on." in followed(run)


def test_a_long_run_fits_the_screen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([n / 100 for n in range(99)]), config(rounds=99))
    (run / "model.safetensors").write_bytes(b"")
    last = followed(run, height=24).split("98/99")[-2:]
    assert len(last) == 2
    opened = RunDirectory.open(run)
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    shown = watch.view(opened.config(), opened.records(), console).plain.splitlines()
    assert len(shown) < 24
    assert any(line.split()[:1] == ["99/99"] for line in shown)
    assert not any(line.split()[:1] == ["1/99"] for line in shown)


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
def test_a_curve_keeps_within_its_frame(
    values: list[float], left: int, ascii_only: bool
) -> None:
    lines = curve(values, max(1, len(values) + left), 60, 8, ascii_only=ascii_only)
    assert len(lines) in (0, 8)
    assert all(len(line) <= 60 for line in lines)
    known = [value for value in values if value == value]
    assert bool(lines) == bool(known)


def test_a_level_curve_is_one_line_and_ends_where_the_run_is() -> None:
    lines = curve([0.5, 0.5, 0.5], 5, 30, 5, ascii_only=True)
    (drawn,) = [line for line in lines if "*" in line]
    # 20 columns for 5 rounds: the third is in the middle.
    assert drawn.count("*") == 11
