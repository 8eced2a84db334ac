import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

import tiny
from fabricated import config, images, records, write_run, write_study
from feddm.analysis.report import writing
from feddm.analysis.report.runs import read
from feddm.analysis.report.writing import collected, write_report
from feddm.cli import app
from feddm.errors import ConfigError, DataError, FedDMError
from feddm.runtime.build import build_dataset, build_shards

PRIVATE: dict[str, Any] = {"privacy__mechanism": "features", "privacy__epsilon": 4.0}


def feddm(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def embedded(page: Path) -> Any:
    (text,) = re.findall(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    return json.loads(text)


def test_a_large_comparison_is_under_8_megabytes(tmp_path: Path) -> None:
    # Six methods, all with the largest images, as noise that does not compress.
    pictures = images(clients=10, each=10, shape=(3, 32, 32))
    study = write_study(tmp_path / "study", seeds=(0, 1, 2), rounds=20, pictures=pictures)
    page = write_report([study]).page
    assert page == study / "report.html"
    assert page.stat().st_size < 8_000_000
    data = embedded(page)
    assert [len(method["accuracy"]) for method in data["methods"]] == [20] * 6
    assert [method["seeds"] for method in data["methods"]] == [3] * 6
    # There is room for one image of every client and class.
    assert [len(sheet["clients"]) for sheet in data["sheets"]] == [100] * 6


def test_the_partition_is_what_the_run_wrote(tmp_path: Path) -> None:
    tiny.run_tiny(tmp_path / "run", rounds=1)
    report = collected(read([tmp_path / "run"]))
    configuration = report.methods[0].config
    dataset = build_dataset(configuration.data)
    shards = build_shards(configuration.partition, dataset, configuration.seed)
    assert report.partition is not None
    assert report.partition.classes == dataset.info.classes
    assert report.partition.table.sum(1).tolist() == [len(shard) for shard in shards]
    assert report.notes == ()


def test_a_run_without_a_partition_has_a_note(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.5, 0.6]), config())
    (run / "partition.json").unlink()
    report = collected(read([run]))
    assert report.partition is None
    (note,) = report.notes
    assert note == "The partition is not shown: run has no readable partition.json."


def test_a_private_run_writes_no_partition(tmp_path: Path) -> None:
    private = {"privacy.mechanism": "features", "privacy.epsilon": 4.0, "synthesis.networks": 2}
    settings = tiny.SETTINGS | private
    tiny.run_tiny(tmp_path / "run", rounds=1, ledger=tmp_path / "ledger", set=settings)
    assert not (tmp_path / "run" / "partition.json").exists()
    report = collected(read([tmp_path / "run"]))
    assert (report.partition, report.notes) == (None, ())


def test_noise_without_a_guarantee_hides_nothing(tmp_path: Path) -> None:
    keyed = {"data": "under a key", "ledger_id": "1"}
    paper = config(privacy__mechanism="paper")
    run = write_run(tmp_path / "run", records([0.5, 0.6]), paper, environment=keyed)
    report = collected(read([run]))
    assert report.partition is not None
    assert report.notes == ()


def test_a_private_run_among_others_hides_the_partition(tmp_path: Path) -> None:
    open_ = write_run(tmp_path / "a", records([0.5, 0.6]), config(), images())
    secret = write_run(
        tmp_path / "b", records([0.5, 0.6], epsilon=1.0), config(**PRIVATE), images()
    )
    assert collected(read([open_])).partition is not None
    both = collected(read([open_, secret]))
    assert both.partition is None
    assert both.notes == ()
    # Uploads are shown: one unprotected, the other protected.
    assert len(both.sheets) == 2
    with pytest.raises(ConfigError, match="cannot show real images: a run is private"):
        collected(read([open_, secret]), neighbours=True)


def test_real_neighbours_are_shown_if_asked_for(tmp_path: Path) -> None:
    tiny.run_tiny(tmp_path / "run", rounds=1)
    assert collected(read([tmp_path / "run"])).sheets[0].neighbours is None
    (sheet,) = collected(read([tmp_path / "run"]), neighbours=True).sheets
    assert sheet.neighbours is not None
    with (
        Image.open(io.BytesIO(sheet.png)) as ours,
        Image.open(io.BytesIO(sheet.neighbours)) as real,
    ):
        assert ours.size == real.size
        assert ours.tobytes() != real.tobytes()


def test_real_images_are_their_own_neighbours(tmp_path: Path) -> None:
    tiny.run_tiny(tmp_path / "run", rounds=1, algorithm="real")
    (sheet,) = collected(read([tmp_path / "run"]), neighbours=True).sheets
    assert sheet.neighbours == sheet.png


def test_damaged_images_are_left_out_with_a_note(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.5, 0.6]), config(), images())
    (run / "synthetic.safetensors").write_bytes(b"not images")
    report = collected(read([run]))
    assert report.sheets == ()
    assert report.notes[0].startswith("The images of feddm are not shown: ")
    with pytest.raises(DataError):
        collected(read([run]), neighbours=True)


def test_images_are_from_one_seed(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", ("feddm",), (0, 1), rounds=2, pictures=images())
    (study / "cells" / "feddm-seed0" / "synthetic.safetensors").unlink()
    (sheet,) = collected(read([study])).sheets
    assert sheet.seed == 1


def test_figures_for_papers(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", ("feddm", "real"), (0,), rounds=2)
    output = feddm("report", study, "--figures", "--out", tmp_path / "page.html")
    for name in ("page-accuracy", "page-partition"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert f"Drawn in {tmp_path / name}.png" in output
    assert f"Report: {tmp_path / 'page.html'}" in output
    assert not (study / "report.html").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.5, 0.6]), config())
    with pytest.raises(ConfigError, match=r"must be a file, but .* is a directory"):
        write_report([run], tmp_path)
    with pytest.raises(FedDMError, match="cannot write"):
        write_report([run], tmp_path / "none" / "page.html")


def test_a_run_writes_its_report_and_says_where(tmp_path: Path) -> None:
    run = tmp_path / "run"
    lines = feddm("run", *tiny.arguments(rounds=1), "--out", run).splitlines()
    assert lines[-1] == f"Report: {run / 'report.html'}"
    assert embedded(run / "report.html")["methods"][0]["name"] == "feddm"
    (run / "report.html").unlink()
    feddm("resume", run, "--no-report")
    assert not (run / "report.html").exists()
    assert "Report: " in feddm("resume", run)


def test_a_report_that_fails_does_not_lose_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(writing, "html", broken)
    run = tmp_path / "run"
    lines = feddm("run", *tiny.arguments(rounds=1), "--out", run).splitlines()
    assert lines[-1] == "Note: could not write the report: a bug."
    assert (run / "model.safetensors").exists()


def test_json_stays_json(tmp_path: Path) -> None:
    run = tmp_path / "run"
    output = feddm("run", *tiny.arguments(rounds=1), "--out", run, "--json")
    assert json.loads(output)["round"] == 1
    assert (run / "report.html").exists()


def test_tuning_writes_its_report(tmp_path: Path) -> None:
    output = feddm(
        *("tune", "--grid", "server.lr=0.1,0.01", "--out", tmp_path / "study"),
        *tiny.arguments(rounds=1),
    )
    assert output.splitlines()[-1] == f"Report: {tmp_path / 'study' / 'report.html'}"
    names = [m["name"] for m in embedded(tmp_path / "study" / "report.html")["methods"]]
    assert names == ["lr=0.1", "lr=0.01"]


def test_a_comparison_writes_its_report(tmp_path: Path) -> None:
    output = feddm(
        *("compare", "--algorithms", "feddm,real", "--out", tmp_path / "study"),
        *tiny.arguments(rounds=1),
    )
    assert f"Report: {tmp_path / 'study' / 'report.html'}" in output
    names = [m["name"] for m in embedded(tmp_path / "study" / "report.html")["methods"]]
    assert names == ["feddm", "real"]
