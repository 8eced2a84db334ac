"""``feddm leak``."""

import json
import math
import re
import sys
from pathlib import Path

import pytest

import feddm.cli
import tiny
from fabricated import config, images, records, write_run
from feddm.runtime.build import build_dataset
from feddm.runtime.synthetic_file import load_synthetic


def leak(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Returns the exit code, the standard output and the error of the command."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["feddm", "leak", *map(str, arguments)])
        feddm.cli.main()
    code = ended.value.code or 0
    assert isinstance(code, int)
    return code, *capsys.readouterr()


def mistake(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Returns the one line about a mistake."""
    code, out, err = leak(capsys, *arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"feddm: .+\n", err)
    return err.removeprefix("feddm: ").rstrip("\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for algorithm in ("real", "fedavg"):
        tiny.run_tiny(folder / algorithm, rounds=1, algorithm=algorithm)
    settings = tiny.SETTINGS | {"synthesis.start": "noise", "synthesis.steps": 0}
    tiny.run_tiny(folder / "noise", rounds=1, set=settings)
    return folder


def test_the_result_comes_first(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = leak(capsys, runs / "real")
    assert (code, err) == (0, "")
    total = len(load_synthetic(runs / "real" / "synthetic.safetensors"))
    lines = out.splitlines()
    assert lines[0] == f"{total} of {total} images are recognisable copies of training images."
    assert lines[-1] == f"Closest pairs: {runs / 'real' / 'leak.png'}"
    rows = [line.split() for line in lines if re.match(r"\d +\d+ +\d+ +\d\.\d\d$", line)]
    assert sum(int(row[1]) for row in rows) == sum(int(row[2]) for row in rows) == total
    assert {row[3] for row in rows} == {"0.00"}
    assert all(len(line) <= 80 for line in lines[:-1])  # a path is never broken


def test_noise_is_not_a_copy(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = leak(capsys, runs / "noise")
    total = len(load_synthetic(runs / "noise" / "synthetic.safetensors"))
    expected = f"None of {total} images is a recognisable copy of a training image."
    assert out.splitlines()[0] == expected


def test_long_names_fit_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = images(clients=1, classes=["a name of many words " * 5, *"123456789"], each=1)
    run = write_run(tmp_path / "run", records([0.5]), config(), pictures)
    _, out, _ = leak(capsys, run)
    assert "a name of many words" in out
    assert all(len(line) <= 80 for line in out.splitlines()[:-1])


def test_json_is_for_programs(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = leak(capsys, runs / "real", "--json", "--out", tmp_path / "pairs.png")
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert content["copies"] == content["images"] == len(content["each"])
    assert content["guarantee"] is None
    assert content == json.loads((runs / "real" / "leak.json").read_text())
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")


def test_each_real_image_names_its_original(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = load_synthetic(runs / "real" / "synthetic.safetensors")
    train = build_dataset(config().data).train
    for each in json.loads(leak(capsys, runs / "real", "--json")[1])["each"]:
        assert (sent.pixels()[each["image"]] == train.x[each["train_index"]]).all()
        assert each["ratio"] == 0


def test_a_guarantee_is_stated_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = config(privacy__mechanism="features", privacy__epsilon=4.0)
    run = write_run(tmp_path / "run", records([0.5], epsilon=1.0), private, images(1, each=1))
    _, out, _ = leak(capsys, run)
    assert out.startswith("None of 10 images is a recognisable copy")
    text = " ".join(out.split())
    assert "Privacy spent: epsilon 1.0000 at delta 1e-05" in text
    assert "This is the guarantee, from the clients' ledgers." in text
    assert "No file was written" in text
    assert all(len(line) <= 80 for line in out.splitlines())
    assert not (run / "leak.png").exists() and not (run / "leak.json").exists()
    open_ = write_run(tmp_path / "open", records([0.5]), config(), images(1, each=1))
    assert "This is the guarantee" not in " ".join(leak(capsys, open_)[1].split())


def test_mistakes(
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = tmp_path / "none"
    said = mistake(capsys, nothing)
    assert said == f"{nothing} is not a run directory: it has no config.toml"
    said = mistake(capsys, runs / "fedavg")
    assert said.startswith(f"{runs / 'fedavg'} has no synthetic.safetensors: fedavg sends no")
    said = mistake(capsys, runs / "real", "--out", tmp_path)
    assert said == f"--out must be a file, but {tmp_path} is a directory"
    monkeypatch.setenv("FEDDM_DATA", str(tmp_path / "data"))
    mnist = write_run(tmp_path / "mnist", records([0.5]), config(data__name="mnist"), images())
    assert mistake(capsys, mnist).startswith(f"mnist is not in {tmp_path / 'data'}")
    said = mistake(capsys, mnist, "--data-dir", tmp_path / "moved")
    assert said.startswith(f"mnist is not in {tmp_path / 'moved'}")


def test_changed_data_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"data": "another digest"}
    run = write_run(tmp_path / "run", records([0.5]), config(), images(), other)
    assert mistake(capsys, run) == "the data set digits has changed since the run"


def test_a_planted_image_is_the_closest_pair(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = load_synthetic(runs / "noise" / "synthetic.safetensors")
    data = build_dataset(config().data)
    label = int(noise.examples.y[5])
    for source, expected in ((data.train, 0.0), (data.test, math.inf)):
        number = int((source.y == label).nonzero()[3])
        noise.examples.x[5] = source.inputs(source.x[number])
        run = write_run(tmp_path / str(expected), records([0.5]), config(), noise)
        content = json.loads(leak(capsys, run, "--json")[1])
        assert content["copies"] == (expected == 0)
        planted = content["each"][5]
        if expected == 0:
            assert (planted["ratio"], planted["train_index"]) == (0, number)
        else:
            assert planted["held_out_index"] == number
            assert planted["train_distance"] > planted["held_out_distance"] == 0
