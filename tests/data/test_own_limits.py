"""Own data that are refused before much is spent on them."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feddm.config.resolve import resolve
from feddm.config.schema import OwnDataConfig
from feddm.data import own
from feddm.data.given import together
from feddm.data.own import OwnData, facts, of_arrays
from feddm.errors import ConfigError, DataError

OWN = OwnDataConfig()


def saved(path: Path, **more: Any) -> Path:
    arrays = {"x": np.zeros((6, 3), np.float32), "y": np.arange(6) % 2, **more}
    np.savez(path, **arrays)
    return path


def test_what_would_unpack_to_too_much_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "MOST_BYTES", 1000)
    file = tmp_path / "bomb.npz"
    np.savez_compressed(file, x=np.zeros((500, 10), np.uint8), y=np.zeros(500, np.int64))
    assert file.stat().st_size < 1000
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    with pytest.raises(DataError, match=r"unpacks to .* GiB are read"):
        own.facts_of(str(file))


def test_unknown_arrays_are_named(tmp_path: Path) -> None:
    file = saved(tmp_path / "data.npz", grop=np.zeros(6))
    with pytest.raises(
        DataError, match="has grop; known are classes, client, group, test, x, y"
    ):
        own.facts_of(str(file))


def test_a_member_that_is_no_array(tmp_path: Path) -> None:
    file = saved(tmp_path / "data.npz")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("../evil", "x")
    with pytest.raises(DataError, match=r"has \.\./evil"):
        own.facts_of(str(file))


def test_numbers_that_float32_does_not_hold() -> None:
    x = np.full((4, 2), 1e300)
    with pytest.raises(DataError, match="too large for float32"):
        of_arrays({"x": x, "y": np.arange(4) % 2}, OWN, "data")


def data(**more: Any) -> OwnData:
    parts = {"x": np.zeros((6, 3), np.float32), "y": np.arange(6) % 2, **more}
    return of_arrays(parts, OWN, "data")


def test_a_training_set_beside_a_test_set_has_none_of_its_own() -> None:
    with pytest.raises(DataError, match="neither can have a test of its own"):
        together(data(test=np.arange(6) < 2), data())
    with pytest.raises(DataError, match="train must have groups if test has them"):
        together(data(), data(group=np.arange(6)))


class TestMeasuredConstants:
    """What was measured on the data is not public, whatever file it comes from."""

    FACTS = facts(data(), "table")["data"]

    def test_a_guarantee_refuses_them(self) -> None:
        assert self.FACTS["own"]["measured"]
        with pytest.raises(ConfigError, match=r"^data\.own\.measured says that"):
            resolve({"data": self.FACTS}, options={"epsilon": 4.0})

    def test_without_a_guarantee_they_are_used(self) -> None:
        assert resolve({"data": self.FACTS}).data.own.examples == 6

    def test_the_owner_can_say_that_they_are_public(self) -> None:
        public = {**self.FACTS, "own": {**self.FACTS["own"], "measured": False}}
        assert resolve({"data": public}, options={"epsilon": 4.0}).guaranteed
