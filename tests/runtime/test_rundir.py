import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from feddm.algorithms.feddm import FedDMSettings
from feddm.config.resolve import resolve
from feddm.core.tensors import Records
from feddm.errors import ConfigError, RunDirectoryError
from feddm.runtime.federation import ClientRecord, Federation, RoundRecord
from feddm.runtime.results import to_line
from feddm.runtime.rundir import RunDirectory, next_free

CONFIG = resolve(options={"rounds": 3, "seed": 12})
ENVIRONMENT = {"torch": "2.6.0", "data": "0123abc"}


def record(number: int) -> RoundRecord:
    return RoundRecord(
        round=number,
        accuracy=number / 10,
        loss=1 / number,
        floats_up=10,
        floats_down=20,
        bytes_up=40,
        bytes_down=80,
        client_seconds=0.5,
        server_seconds=0.25,
        clients=(ClientRecord(0, 0.5, 10, 40, {"images": 1}),),
    )


def federation(number: int) -> Federation:
    return Federation(
        number,
        {
            "params": {"conv/weight": torch.full((2, 3), float(number))},
            "synthetic": {"y": torch.tensor([number, 255], dtype=torch.uint8)},
        },
    )


MEMORIES: dict[int, Records] = {
    0: {"control": {"w": torch.tensor([1.0, 2.0])}},
    11: {"control": {"w": torch.tensor([-1.0])}, "last:round": {"n": torch.tensor([4])}},
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Returns a new run directory."""
    return RunDirectory.create(tmp_path / "run", CONFIG, ENVIRONMENT)


def refused(path: Path) -> str:
    """Returns the error of creating a run directory here."""
    with pytest.raises(RunDirectoryError) as raised:
        RunDirectory.create(path, CONFIG, ENVIRONMENT)
    assert "\n" not in str(raised.value)
    return str(raised.value)


class TestCreate:
    def test_it_has_configuration_and_environment(self, run: RunDirectory) -> None:
        assert run.config() == CONFIG
        assert run.environment() == ENVIRONMENT
        assert run.records() == []
        names = {path.name for path in run.path.iterdir()} - {".lock"}
        assert names == {"config.toml", "environment.json"}

    def test_parents_are_created_and_an_empty_folder_is_used(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b"
        path.mkdir(parents=True)
        assert RunDirectory.create(path, CONFIG, ENVIRONMENT).config() == CONFIG
        deep = tmp_path / "c" / "d" / "e"
        assert RunDirectory.create(deep, CONFIG, ENVIRONMENT).config() == CONFIG

    def test_a_run_is_never_overwritten(self, run: RunDirectory) -> None:
        before = {path.name: path.read_bytes() for path in run.path.iterdir()}
        message = refused(run.path)
        assert message == (
            f"{run.path} exists and is not empty; choose another with --out, "
            f"or continue that run with `feddm resume {run.path}`"
        )
        assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before

    def test_a_folder_with_something_else_cannot_be_resumed(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("do not touch")
        message = refused(tmp_path)
        assert message == f"{tmp_path} exists and is not empty; choose another with --out"
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_of_two_simultaneous_starts_one_wins(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "run"
        write = RunDirectory.write
        refusals: list[str] = []

        def write_after_the_other(self: RunDirectory, name: str, data: bytes) -> None:
            monkeypatch.setattr(RunDirectory, "write", write)
            with pytest.raises(RunDirectoryError) as raised:
                RunDirectory.create(path, resolve(options={"seed": 99}), ENVIRONMENT)
            refusals.append(str(raised.value))
            write(self, name, data)

        monkeypatch.setattr(RunDirectory, "write", write_after_the_other)
        assert RunDirectory.create(path, CONFIG, ENVIRONMENT).config() == CONFIG
        assert len(refusals) == 1

    def test_a_file_is_not_a_folder(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_text("content")
        assert str(file) in refused(file)
        assert str(file) in refused(file / "run")
        assert file.read_text() == "content"

    def test_a_read_only_parent(self, tmp_path: Path) -> None:
        parent = tmp_path / "locked"
        parent.mkdir(mode=0o500)
        if os.access(parent, os.W_OK):
            pytest.skip("this user may write everywhere")
        message = refused(parent / "run")
        assert str(parent / "run") in message
        assert "Permission denied" in message


class TestOpen:
    def test_a_setting_that_did_not_exist_yet_was_off(self, tmp_path: Path) -> None:
        """Whatever the preset of the run says about it today."""
        config = resolve(preset="quick", options={"dataset": "mnist"})
        run = RunDirectory.create(tmp_path / "run", config, ENVIRONMENT)
        assert isinstance(config.algorithm, FedDMSettings)
        assert config.algorithm.synthesis.distance == "relative"
        file = run.path / "config.toml"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if not line.startswith("distance")))
        assert len(file.read_text().splitlines()) == len(lines) - 1
        before = RunDirectory.open(run.path).config()
        assert isinstance(before.algorithm, FedDMSettings)
        assert before.algorithm.synthesis.distance == "squared"  # the paper's
        off = config.algorithm.synthesis.model_copy(update={"distance": "squared"})
        algorithm = config.algorithm.model_copy(update={"synthesis": off})
        assert before == config.model_copy(update={"algorithm": algorithm})

    def test_a_folder_without_a_run(self, tmp_path: Path) -> None:
        with pytest.raises(RunDirectoryError) as raised:
            RunDirectory.open(tmp_path)
        assert str(raised.value) == f"{tmp_path} is not a run directory: it has no config.toml"
        with pytest.raises(RunDirectoryError, match="is not a run directory"):
            RunDirectory.open(tmp_path / "none")

    @pytest.mark.parametrize("content", [None, "{", "[1", "5"])
    def test_damaged_environment(self, run: RunDirectory, content: str | None) -> None:
        if content is None:
            (run.path / "environment.json").unlink()
        else:
            (run.path / "environment.json").write_text(content)
        with pytest.raises(RunDirectoryError, match=r"cannot read .*environment\.json"):
            RunDirectory.open(run.path).environment()


class TestLock:
    IN_USE = "is in use by another process"

    def test_two_objects(self, run: RunDirectory) -> None:
        with (
            RunDirectory.open(run.path),
            pytest.raises(RunDirectoryError, match=self.IN_USE),
            RunDirectory.open(run.path),
        ):
            pytest.fail("both have it")
        with RunDirectory.open(run.path) as again:
            assert again.config() == CONFIG

    def test_two_processes_and_death_releases_the_lock(self, run: RunDirectory) -> None:
        code = (
            "import filelock, sys\n"
            "with filelock.FileLock(sys.argv[1]):\n"
            "    print('held', flush=True)\n"
            "    sys.stdin.read()\n"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(run.path / ".lock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with holder:
            try:
                assert holder.stdout is not None
                assert holder.stdout.readline() == b"held\n"
                with (
                    pytest.raises(RunDirectoryError, match=self.IN_USE),
                    RunDirectory.open(run.path),
                ):
                    pytest.fail("both have it")
            finally:
                holder.kill()
        with RunDirectory.open(run.path) as again:
            assert again.config() == CONFIG

    def test_an_error_releases_the_lock(self, run: RunDirectory) -> None:
        with pytest.raises(ZeroDivisionError), run:
            raise ZeroDivisionError
        with RunDirectory.open(run.path) as again:
            assert again.records() == []


class TestRounds:
    def test_checkpoint_round_trip(self, run: RunDirectory) -> None:
        run.save_round(federation(1), record(1), MEMORIES)
        found = RunDirectory.open(run.path).rewind()
        assert found is not None
        state, memories = found
        assert state.round == 1
        assert set(state.state) == {"params", "synthetic"}
        assert state.state["params"]["conv/weight"].tolist() == [[1.0] * 3] * 2
        assert state.state["synthetic"]["y"].tolist() == [1, 255]
        assert state.state["synthetic"]["y"].dtype == torch.uint8

        assert set(memories) == {0, 11}
        assert set(memories[0]) == {"control"}
        assert memories[0]["control"]["w"].tolist() == [1.0, 2.0]
        assert set(memories[11]) == {"control", "last:round"}
        assert memories[11]["control"]["w"].tolist() == [-1.0]
        assert memories[11]["last:round"]["n"].tolist() == [4]

    def test_clients_without_memories(self, run: RunDirectory) -> None:
        run.save_round(federation(1), record(1), {})
        found = run.rewind()
        assert found is not None
        assert found[1] == {}

    def test_before_the_first_checkpoint_there_is_nothing(self, run: RunDirectory) -> None:
        assert run.rewind() is None
        assert run.records() == []

    def test_only_the_last_checkpoint_is_kept(self, run: RunDirectory) -> None:
        for number in (1, 2, 3):
            run.save_round(federation(number), record(number), MEMORIES)
        assert [path.name for path in (run.path / "checkpoints").iterdir()] == [
            "round_00000003"
        ]
        assert run.records() == [record(1), record(2), record(3)]
        found = run.rewind()
        assert found is not None
        assert found[0].round == 3

    def test_a_truncated_last_line_is_dropped(self, run: RunDirectory) -> None:
        run.save_round(federation(1), record(1), {})
        whole = to_line(record(2))
        for cut in (1, 10, len(whole)):  # even if only the line break is missing
            content = to_line(record(1)) + "\n" + whole[:cut]
            (run.path / "results.jsonl").write_text(content)
            assert run.records() == [record(1)]
        run.rewind()
        assert (run.path / "results.jsonl").read_text() == to_line(record(1)) + "\n"

    def test_rewind_deletes_records_after_the_checkpoint(self, run: RunDirectory) -> None:
        run.save_round(federation(1), record(1), {})
        with (run.path / "results.jsonl").open("a") as file:
            file.write(to_line(record(2)) + "\n" + to_line(record(3)) + "\n")
        assert len(run.records()) == 3
        found = run.rewind()
        assert found is not None
        assert found[0].round == 1
        assert run.records() == [record(1)]
        assert run.path.joinpath("results.jsonl").read_text().count("\n") == 1

    def test_a_line_without_any_checkpoint_is_deleted(self, run: RunDirectory) -> None:
        (run.path / "results.jsonl").write_text(to_line(record(1)) + "\n")
        assert run.rewind() is None
        assert run.records() == []

    def test_a_partial_checkpoint_is_ignored(self, run: RunDirectory) -> None:
        run.save_round(federation(1), record(1), {})
        part = run.path / "checkpoints" / "round_00000002.part"
        part.mkdir()
        (part / "state.safetensors").write_bytes(b"half of it")
        (run.path / "model.safetensors.part").write_bytes(b"half of it")
        found = run.rewind()
        assert found is not None
        assert found[0].round == 1
        run.save_round(federation(2), record(2), {})
        assert [path.name for path in (run.path / "checkpoints").iterdir()] == [
            "round_00000002"
        ]
        found = run.rewind()
        assert found is not None
        assert found[0].state["params"]["conv/weight"][0, 0] == 2

    def test_a_half_removed_checkpoint_is_ignored(self, run: RunDirectory) -> None:
        run.save_round(federation(1), record(1), {})
        run.save_round(federation(2), record(2), {})
        (run.path / "checkpoints" / "round_00000001").mkdir()  # its files are already gone
        found = run.rewind()
        assert found is not None
        assert found[0].round == 2
        run.save_round(federation(3), record(3), {})
        assert [path.name for path in (run.path / "checkpoints").iterdir()] == [
            "round_00000003"
        ]

    def test_a_foreign_file_is_ignored(self, run: RunDirectory) -> None:
        run.save_round(federation(1), record(1), {})
        (run.path / "checkpoints" / ".DS_Store").write_bytes(b"left by a file manager")
        run.save_round(federation(2), record(2), {})
        found = run.rewind()
        assert found is not None
        assert found[0].round == 2


class TestDamage:
    @pytest.mark.parametrize("name", ["state.safetensors", "memories.safetensors"])
    @pytest.mark.parametrize("damage", ["cut", "empty", "gone"])
    def test_checkpoint(self, run: RunDirectory, name: str, damage: str) -> None:
        run.save_round(federation(1), record(1), MEMORIES)
        file = run.path / "checkpoints" / "round_00000001" / name
        content = file.read_bytes()
        file.unlink()
        if damage != "gone":
            file.write_bytes(content[:-1] if damage == "cut" else b"")
        with pytest.raises(RunDirectoryError) as raised:
            run.rewind()
        assert name in str(raised.value)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize(
        "line",
        [
            b"{}",
            b"{",
            b"null",
            b"\xff\xfe\x00",
            to_line(record(1)).replace("1", '"one"', 1).encode(),
        ],
    )
    def test_results(self, run: RunDirectory, line: bytes) -> None:
        run.save_round(federation(1), record(1), {})
        run.save_round(federation(2), record(2), {})
        file = run.path / "results.jsonl"
        content = line + b"\n" + file.read_bytes().splitlines(keepends=True)[1]
        file.write_bytes(content)
        for read in (run.records, run.rewind):
            with pytest.raises(RunDirectoryError) as raised:
                read()
            assert str(raised.value).startswith(f"{file} is damaged: ")
            assert "\n" not in str(raised.value)
        assert file.read_bytes() == content

    def test_configuration(self, run: RunDirectory) -> None:
        (run.path / "config.toml").write_text("rounds = ")
        with pytest.raises(ConfigError, match=r"config\.toml is not TOML"):
            run.config()

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("algorithm = 'feddm'\n[server]\nlr = 0.1\n", r"\[server\] at the top level is"),
            ("[algorithm]\nname = 'fedavgm'\n", "algorithm must be one of .*, got 'fedavgm'"),
        ],
    )
    def test_a_run_of_another_version_or_package(
        self, run: RunDirectory, text: str, says: str
    ) -> None:
        (run.path / "config.toml").write_text(text)
        with pytest.raises(
            RunDirectoryError, match=rf"config\.toml can't be used: {says}.*; perhaps another"
        ):
            run.config()


class TestFullDisk:
    """Rounds that were complete before the disk was full are intact."""

    @staticmethod
    def fill_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        """Lets this many files be written, and no more."""
        left = iter([True] * after)

        def fsync(descriptor: int) -> None:
            del descriptor
            if not next(left, False):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", fsync)

    @pytest.mark.parametrize("after", [0, 1, 2])  # results, state, memories
    def test_for_a_round(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, after: int
    ) -> None:
        run.save_round(federation(1), record(1), MEMORIES)
        with monkeypatch.context() as full:
            self.fill_disk(full, after)
            with pytest.raises(RunDirectoryError) as raised:
                run.save_round(federation(2), record(2), MEMORIES)
        assert str(raised.value) == (
            f"cannot use {run.path}: No space left on device; all completed rounds are intact"
        )
        found = RunDirectory.open(run.path).rewind()
        assert found is not None
        assert found[0].round == 1
        assert found[0].state["params"]["conv/weight"][0, 0] == 1
        assert set(found[1]) == {0, 11}
        assert run.records() == [record(1)]

        run.save_round(federation(2), record(2), MEMORIES)
        assert run.records() == [record(1), record(2)]
        found = run.rewind()
        assert found is not None
        assert found[0].round == 2

    def test_for_the_name_of_a_checkpoint(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def rename(part: Path, final: Path) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(final))

        run.save_round(federation(1), record(1), MEMORIES)
        monkeypatch.setattr(Path, "rename", rename)
        with pytest.raises(RunDirectoryError, match="round_00000002: No space left on device"):
            run.save_round(federation(2), record(2), MEMORIES)
        found = run.rewind()
        assert found is not None
        assert found[0].round == 1
        assert run.records() == [record(1)]

    def test_for_a_file_that_was_there(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run.write("model.safetensors", b"old")
        self.fill_disk(monkeypatch, after=0)
        with pytest.raises(RunDirectoryError, match="No space left on device"):
            run.write("model.safetensors", b"new")
        assert (run.path / "model.safetensors").read_bytes() == b"old"

    def test_for_a_new_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fill_disk(monkeypatch, after=0)
        assert "No space left on device" in refused(tmp_path / "run")
        assert not (tmp_path / "run" / "config.toml").exists()


def test_a_file_is_written_atomically_and_leaves_no_temporary_file(run: RunDirectory) -> None:
    run.write("notes.json", json.dumps([1, 2]).encode())
    run.write("notes.json", json.dumps([3]).encode())
    assert json.loads((run.path / "notes.json").read_text()) == [3]
    assert not list(run.path.glob("*.part"))


def test_the_first_free_number(tmp_path: Path) -> None:
    parent = tmp_path / "runs"
    assert next_free(parent, "feddm-digits") == parent / "feddm-digits-1"
    for taken in ("feddm-digits-1", "feddm-digits-2", "feddm-digits-4", "feddm-mnist-3"):
        (parent / taken).mkdir(parents=True, exist_ok=True)
    assert next_free(parent, "feddm-digits") == parent / "feddm-digits-3"
