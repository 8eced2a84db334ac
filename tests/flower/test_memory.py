"""A client's memory on its own disk: two rounds per federation."""

import os
import stat
from pathlib import Path

import pytest
import torch

from feddm.core.tensors import Records, to_bytes
from feddm.errors import EngineError
from feddm.flower.memory import FEDERATIONS, Memory

A, B = "a" * 32, "0123456789abcdef" * 2


def remembered(value: float) -> Records:
    return {"control": {"block/weight": torch.full((2, 0), value), "b": torch.tensor(value)}}


def rounds(folder: Path, federation: str = A) -> list[str]:
    return sorted(path.name for path in (folder / federation).iterdir())


def test_recall_returns_what_was_kept(tmp_path: Path) -> None:
    Memory(tmp_path / "new").keep(A, 1, remembered(1.5), before=0)
    # As another process would.
    again = Memory(tmp_path / "new").recall(A, 1)
    assert to_bytes(again) == to_bytes(remembered(1.5))


def test_round_zero_has_no_memory(tmp_path: Path) -> None:
    assert Memory(tmp_path).recall(A, 0) == {}
    assert not list(tmp_path.iterdir())


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    Memory(tmp_path / "new").keep(A, 1, remembered(1.5), before=0)
    file = tmp_path / "new" / A / "round_00000001.safetensors"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in file.parents[:2]:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_last_two_rounds_are_kept(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    for round_ in range(1, 5):
        memory.keep(A, round_, remembered(round_), before=round_ - 1)
    assert rounds(tmp_path) == ["round_00000003.safetensors", "round_00000004.safetensors"]
    with pytest.raises(EngineError, match="memory of round 2 is no longer on this node"):
        memory.recall(A, 2)


def test_a_repeated_round_starts_where_it_started_before(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.keep(A, 1, remembered(1.0), before=0)
    # The upload of round 2 is never accepted, so the memory of round 1 stays valid.
    for value in (2.0, 2.5):
        assert memory.recall(A, 1)["control"]["b"].item() == 1.0
        memory.keep(A, 2, remembered(value), before=1)
    assert memory.recall(A, 1)["control"]["b"].item() == 1.0
    assert memory.recall(A, 2)["control"]["b"].item() == 2.5


def test_a_client_may_miss_rounds(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.keep(A, 1, remembered(1.0), before=0)
    memory.keep(A, 2, remembered(2.0), before=1)  # not accepted
    memory.keep(A, 7, remembered(7.0), before=1)
    assert rounds(tmp_path) == ["round_00000001.safetensors", "round_00000007.safetensors"]
    assert memory.recall(A, 1)["control"]["b"].item() == 1.0


def test_federations_do_not_see_each_other(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.keep(A, 1, remembered(1.0), before=0)
    memory.keep(B, 1, remembered(2.0), before=0)
    memory.keep(B, 2, remembered(3.0), before=1)
    assert memory.recall(A, 1)["control"]["b"].item() == 1.0
    assert memory.recall(B, 1)["control"]["b"].item() == 2.0


@pytest.mark.parametrize(
    "name", ["../x", "", ".", "a" * 31, "a" * 33, "A" * 32, f"{A}\n", f"/{A}", f"{A[:-3]}/.."]
)
def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    memory = Memory(tmp_path / "memory")
    for ask in (
        lambda: memory.recall(name, 0),  # before any work is done
        lambda: memory.recall(name, 1),
        lambda: memory.keep(name, 1, remembered(1.0), before=0),
    ):
        with pytest.raises(EngineError, match="32 hexadecimal digits"):
            ask()
    assert not list(tmp_path.rglob("*"))


def test_old_federations_are_deleted(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    names = [f"{number:032x}" for number in range(FEDERATIONS + 2)]
    for age, name in enumerate(names[:FEDERATIONS]):
        memory.keep(name, 1, remembered(age), before=0)
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    os.utime(tmp_path / names[0], (5000, 5000))  # used since, so it is not old
    (tmp_path / "notes.txt").write_text("not ours")
    for name in names[FEDERATIONS:]:
        memory.keep(name, 1, remembered(0.0), before=0)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*names, "notes.txt"} - {names[1], names[2]}


@pytest.mark.parametrize("harm", ["lost", "truncated", "emptied"])
def test_a_lost_memory_is_an_error(tmp_path: Path, harm: str) -> None:
    memory = Memory(tmp_path)
    memory.keep(A, 1, remembered(1.0), before=0)
    file = tmp_path / A / "round_00000001.safetensors"
    if harm == "lost":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: 20 if harm == "truncated" else 0])
    with pytest.raises(EngineError) as caught:
        memory.recall(A, 1)
    assert str(caught.value) == (
        "the memory of round 1 is no longer on this node; start a new federation"
    )


def test_an_unusable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file")
    with pytest.raises(EngineError, match="cannot use"):
        Memory(tmp_path / "memory").keep(A, 1, remembered(1.0), before=0)


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.keep(A, 1, remembered(1.0), before=0)
    (tmp_path / A / "round_00000002.safetensors.part").write_bytes(b"half")
    memory.keep(A, 2, remembered(2.0), before=1)
    assert rounds(tmp_path) == ["round_00000001.safetensors", "round_00000002.safetensors"]
