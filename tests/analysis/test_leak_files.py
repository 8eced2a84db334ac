import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from fabricated import config, images, records, write_run
from feddm.analysis.leak_files import (
    GAP,
    LINE,
    PAIRS,
    check_out,
    closest_pairs,
    leakage_of,
    sheet_of,
    warning,
    write_leakage,
)
from feddm.analysis.report.page import html
from feddm.analysis.report.runs import read, read_run
from feddm.analysis.report.writing import collected
from feddm.errors import ConfigError, DataError, RunDirectoryError

UNKNOWN = (
    "These images can be recognisable copies of training images; `feddm leak run` measures"
)
PRIVATE: dict[str, Any] = {"privacy__mechanism": "features", "privacy__epsilon": 4.0}


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("real") / "run"
    tiny.run_tiny(run, rounds=1, algorithm="real")
    return run


def pixels(*values: int) -> torch.Tensor:
    """Returns gray images of 2x2 equal pixels."""
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)


def test_a_sheet_by_hand() -> None:
    # A pixel becomes 36x36, so a tile is 72x72 and a group of three 3 * 76 + 16 = 244 wide.
    shown = [pixels(*range(first, first + 5)) for first in (10, 20, 30)]
    sheet = np.asarray(sheet_of([f"pair {n}" for n in range(5)], shown))
    row = 72 + LINE + 3 * GAP
    assert sheet.shape == (LINE + GAP + 2 * row, 4 * 244, 3)
    top = LINE + GAP
    for column, value in enumerate((11, 21, 31)):  # the second group
        left = GAP + 244 + column * 76
        assert (sheet[top : top + 72, left : left + 72] == value).all()
        assert (sheet[top : top + 72, left + 72 : left + 76] == 255).all()
    assert (sheet[top + row : top + row + 72, GAP : GAP + 72] == 14).all()  # the fifth
    assert (sheet[top + row : top + row + 72, 244:] == 255).all()


def test_a_sheet_has_colors() -> None:
    red = torch.zeros(1, 3, 72, 72, dtype=torch.uint8)
    red[:, 0] = 200
    sheet = np.asarray(sheet_of(["名"], [red, red, red]))
    assert sheet[LINE + GAP + 10, GAP + 10].tolist() == [200, 0, 0]


def test_the_closest_pairs_of_real_are_the_same_picture_twice(real_run: Path) -> None:
    found = leakage_of(real_run)
    with Image.open(io.BytesIO(closest_pairs(found))) as picture:
        sheet = np.asarray(picture)
    ours = sheet[LINE + GAP : LINE + GAP + 72, GAP : GAP + 72]
    training = sheet[LINE + GAP : LINE + GAP + 72, GAP + 76 : GAP + 76 + 72]
    held_out = sheet[LINE + GAP : LINE + GAP + 72, GAP + 152 : GAP + 152 + 72]
    assert len(found.leakage) > PAIRS
    assert (ours == training).all()
    assert (ours != held_out).any()


def test_the_report_states_what_was_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny.run_tiny(run, rounds=1, algorithm="real")
    report = collected(read([run]))
    assert report.sheets[0].warning.startswith(UNKNOWN)
    assert f'data-sheet="0" hidden>{UNKNOWN}' in html(report)
    found = leakage_of(run)
    assert write_leakage(found) == run / "leak.png"
    (sheet,) = collected(read([run])).sheets
    total = len(found.leakage)
    assert sheet.warning == (
        f"{total} of {total} images are recognisable copies of training images."
    )
    assert json.loads((run / "leak.json").read_text()) == found.to_json()


def test_figures_of_other_images_are_not_used(real_run: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.5]), config(), images())
    content = json.dumps(leakage_of(real_run).to_json())
    for damaged in (content, "[]", "{", '{"digest": 1}', content.replace("images", "pictures")):
        (run / "leak.json").write_text(damaged)
        assert warning(read_run(run)).startswith(UNKNOWN)


@pytest.mark.parametrize(
    ("settings", "fields", "warned"),
    [
        ({}, {}, True),
        ({"privacy__mechanism": "paper"}, {}, True),
        (PRIVATE, {"epsilon": 1.0}, False),
        (PRIVATE, {}, True),  # part of it was released without protection
        (PRIVATE | {"privacy__test_secret": "fixed"}, {"epsilon": 1.0}, True),
    ],
)
def test_only_a_guarantee_needs_no_warning(
    tmp_path: Path, settings: dict[str, Any], fields: dict[str, Any], warned: bool
) -> None:
    run = write_run(tmp_path / "run", records([0.5], **fields), config(**settings), images())
    (sheet,) = collected(read([run])).sheets
    assert bool(sheet.warning) == warned


def test_a_run_with_a_guarantee_gets_no_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.5], epsilon=1.0), config(**PRIVATE), images())
    before = {file.name for file in run.iterdir()}
    found = leakage_of(run)
    assert str(found.to_json()["guarantee"]).startswith("Privacy spent: epsilon 1.0000 at")
    assert write_leakage(found) is None
    assert write_leakage(found, tmp_path / "pairs.png") == tmp_path / "pairs.png"
    assert {file.name for file in run.iterdir()} == before
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["pairs.png"]


def test_a_run_without_images(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.5]), config())
    with pytest.raises(RunDirectoryError, match=r"has no synthetic\.safetensors: feddm sends"):
        leakage_of(run)


def test_data_that_only_nodes_have(tmp_path: Path) -> None:
    away = {"data": "on nodes"}
    run = write_run(tmp_path / "run", records([0.5]), config(), images(), away)
    with pytest.raises(DataError, match="only the nodes have the data"):
        leakage_of(run)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    check_out(None)
    check_out(tmp_path / "pairs.png")
    with pytest.raises(ConfigError, match=r"must be a file, but .* is a directory"):
        check_out(tmp_path)
    with pytest.raises(ConfigError, match=r"pairs\.png: the directory .*none does not exist"):
        check_out(tmp_path / "none" / "pairs.png")
