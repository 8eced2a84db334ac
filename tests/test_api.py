import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feddm
import feddm.api
from feddm.config.registry import algorithm_names
from feddm.config.resolve import OPTIONS, load_toml, resolve
from feddm.config.schema import Config
from feddm.core.metrics import evaluate
from feddm.data.datasets import fingerprint, load
from feddm.errors import ConfigError, RunDirectoryError
from feddm.runtime.build import LocalSetup, Setup, build
from feddm.runtime.federation import RoundRecord
from feddm.runtime.results import from_line
from feddm.runtime.run import Observer, RunResult, resume
from feddm.runtime.rundir import RunDirectory
from feddm.runtime.synthetic_file import load_synthetic
from tiny import CLIENTS, SETTINGS, run_tiny, timeless_results

FINAL_FILES = ("model.safetensors", "synthetic.safetensors")


def fingerprint_of(setup: LocalSetup) -> str:
    return fingerprint(setup.dataset, setup.shards)


class Log(Observer):
    """Writes down all that it is told."""

    def __init__(self) -> None:
        self.earlier: list[int] = []
        self.rounds: list[int] = []
        self.stages: list[tuple[str, float]] = []
        self.notices: list[str] = []

    def started(self, config: Config, setup: Setup, records: list[RoundRecord]) -> None:
        assert isinstance(setup, LocalSetup)
        assert len(setup.shards) == config.partition.clients
        self.earlier = [record.round for record in records]

    def progress(self, stage: str, fraction: float) -> None:
        self.stages.append((stage, fraction))

    def finished_round(self, record: RoundRecord) -> None:
        self.rounds.append(record.round)

    def notice(self, text: str) -> None:
        self.notices.append(text)


class Stop(Exception):
    """Nobody but `StopAfter` raises it."""


class StopAfter(Log):
    """Stops the run after a round."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def finished_round(self, record: RoundRecord) -> None:
        super().finished_round(record)
        if record.round == self.last:
            raise Stop


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Returns a run of three rounds that nothing interrupted."""
    return run_tiny(tmp_path_factory.mktemp("whole") / "run", rounds=3)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Returns the directory of the same run, stopped after its first round."""
    with pytest.raises(Stop):
        run_tiny(tmp_path / "stopped", rounds=3, observer=StopAfter(1))
    return tmp_path / "stopped"


def assert_same_run(directory: Path, whole: RunResult) -> None:
    """Compares all that must not depend on interruptions, to the last bit."""
    assert whole.directory is not None
    assert timeless_results(directory) == timeless_results(whole.directory)
    for name in FINAL_FILES:
        assert (directory / name).read_bytes() == (whole.directory / name).read_bytes(), name


class TestRun:
    def test_what_comes_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        log = Log()
        result = run_tiny(observer=log)
        assert isinstance(result, feddm.RunResult)
        assert result.directory is None
        assert list(tmp_path.iterdir()) == []  # it wrote nothing

        assert [record.round for record in result.records] == log.rounds == [1, 2]
        assert log.earlier == []
        assert result.config.rounds == 2
        assert result.config.model.width == 4
        assert result.model.classes == tuple("0123456789")

        assert result.synthetic is not None
        assert len(result.synthetic) == sum(
            client.metrics["images"] for client in result.records[-1].clients
        )
        assert set(result.synthetic.clients.tolist()) == set(range(CLIENTS))

    def test_progress_ends_where_each_stage_ends(self) -> None:
        log = Log()
        run_tiny(rounds=1, observer=log)
        for stage in ("clients", "server"):
            fractions = [fraction for name, fraction in log.stages if name == stage]
            assert fractions == sorted(fractions)
            assert fractions[-1] == 1.0
        assert {stage for stage, _ in log.stages} == {"clients", "server"}

    def test_what_is_counted(self, whole: RunResult) -> None:
        parameters = sum(tensor.numel() for tensor in whole.model.params.values())
        assert whole.synthetic is not None
        for record in whole.records:
            assert record.floats_down == CLIENTS * parameters
            # And the number of the round, by which clients know what is replayed.
            assert record.bytes_down == 4 * record.floats_down + 8 * CLIENTS
            assert record.floats_up == sum(client.floats_up for client in record.clients)
            assert record.bytes_up == sum(client.bytes_up for client in record.clients)
            assert record.client_seconds == sum(client.seconds for client in record.clients)
            assert [client.client for client in record.clients] == list(range(CLIENTS))
        # Of each image its 8 x 8 floats, and a label of one byte.
        assert whole.records[-1].floats_up == 64 * len(whole.synthetic)
        assert whole.records[-1].bytes_up == (4 * 64 + 1) * len(whole.synthetic)

    def test_the_seed_decides(self) -> None:
        first, again, other = (run_tiny(rounds=1, seed=seed) for seed in (5, 5, 6))
        assert first.records[0].loss == again.records[0].loss
        assert first.records[0].loss != other.records[0].loss

    def test_a_file_and_its_values_are_the_same(self, tmp_path: Path) -> None:
        file = tmp_path / "tiny.toml"
        file.write_text(
            resolve(
                options={"rounds": 1, "clients": 2}, settings=SETTINGS, shared=True
            ).to_toml()
        )
        results = [
            feddm.run(config, workers=1) for config in (file, str(file), load_toml(file))
        ]
        assert {result.records[0].loss for result in results} == {results[0].records[0].loss}
        assert all(result.config == results[0].config for result in results)
        assert results[0].config.partition.clients == 2

    def test_every_option_of_the_command_line_can_be_given(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Config] = []
        monkeypatch.setattr(
            feddm.api, "execute", lambda config, out, observer: seen.append(config)
        )
        options: dict[str, Any] = {
            "algorithm": "feddm",
            "dataset": "mnist",
            "clients": 17,
            "alpha": 0.07,
            "rounds": 17,
            "participation": 0.25,
            "width": 17,
            "ipc": 17,
            "seed": 17,
            "workers": 17,
            "device": "cpu",
            "compile": "off",
            "data_dir": "somewhere",
            "privacy": "gradients",
            "epsilon": 1.7,
            "delta": 1e-7,
            "ledger": "elsewhere",
        }
        assert set(options) == set(OPTIONS)
        feddm.run(**options, preset="paper", set={"server.lr": 0.5})
        feddm.run(**options | {"data_dir": Path("somewhere")})
        feddm.run(algorithm="fedavg")
        # A run may be resumed from another folder.
        options["data_dir"] = str(Path("somewhere").absolute())
        options["ledger"] = str(Path("elsewhere").absolute())
        assert seen == [
            resolve(None, "paper", options, {"server.lr": 0.5}),
            resolve(options=options),
            resolve(options={"algorithm": "fedavg"}),
        ]
        assert seen[2].algorithm.name == "fedavg"

    def test_a_compiler_that_does_not_work_is_told_and_done_without(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "feddm.runtime.build.compiler_problem", lambda device: "there is no disk"
        )
        log = Log()
        asked = run_tiny(rounds=1, compile="on", observer=log)
        assert log.notices == [
            "torch.compile does not work here, continuing without it: there is no disk"
        ]
        assert asked.records[0].loss == run_tiny(rounds=1, compile="off").records[0].loss

    def test_a_shorter_float_gives_nearly_the_same(self) -> None:
        settings = SETTINGS | {"runtime.precision": "bfloat16", "runtime.device": "cpu"}
        short, exact = run_tiny(rounds=1, set=settings), run_tiny(rounds=1)
        assert short.records[0].loss != exact.records[0].loss
        assert short.records[0].loss == pytest.approx(exact.records[0].loss, rel=0.05)
        assert {t.dtype for t in short.model.params.values()} == {torch.float32}
        assert short.records[0].bytes_up == exact.records[0].bytes_up

    def test_participation(self) -> None:
        result = run_tiny(rounds=3, participation=0.34)
        assert [len(record.clients) for record in result.records] == [1, 1, 1]

    def test_a_wrong_value_is_told_before_anything_is_made(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="rounds must be"):
            run_tiny(tmp_path / "run", rounds=0)
        assert not (tmp_path / "run").exists()

    def test_a_directory_in_use_is_refused(self, whole: RunResult) -> None:
        assert whole.directory is not None
        before = (whole.directory / "results.jsonl").read_bytes()
        with pytest.raises(RunDirectoryError, match="feddm resume"):
            run_tiny(whole.directory)
        assert (whole.directory / "results.jsonl").read_bytes() == before


class TestDirectory:
    def test_files(self, whole: RunResult) -> None:
        assert whole.directory is not None
        names = {path.name for path in whole.directory.iterdir()} - {".lock"}
        assert names == {
            "config.toml",
            "environment.json",
            "partition.json",
            "results.jsonl",
            "checkpoints",
            *FINAL_FILES,
        }

    def test_configuration(self, whole: RunResult) -> None:
        assert whole.directory is not None
        assert resolve(load_toml(whole.directory / "config.toml")) == whole.config

    def test_environment(self, whole: RunResult) -> None:
        assert whole.directory is not None
        environment = json.loads((whole.directory / "environment.json").read_text())
        assert environment["torch"] == torch.__version__
        assert {"feddm", "numpy", "python", "machine", "cpu", "device", "data"} <= set(
            environment
        )

    def test_results(self, whole: RunResult) -> None:
        assert whole.directory is not None
        lines = (whole.directory / "results.jsonl").read_text().splitlines()
        assert tuple(from_line(line) for line in lines) == whole.records
        for number, line in enumerate(lines, start=1):
            fields = json.loads(line)
            assert fields["round"] == number
            numbers = {
                "accuracy",
                "loss",
                "floats_up",
                "floats_down",
                "bytes_up",
                "bytes_down",
                "client_seconds",
                "server_seconds",
            }
            assert numbers <= set(fields)
            assert all(fields[key] >= 0 for key in numbers)

    def test_the_saved_model_gives_the_last_accuracy_again(self, whole: RunResult) -> None:
        assert whole.directory is not None
        model = feddm.load_model(whole.directory / "model.safetensors")
        test = load("digits").test
        last = whole.records[-1]
        result = evaluate(model.model, model.params, test)
        assert result.accuracy == last.accuracy
        assert result.loss == pytest.approx(last.loss)

        # And so does its own way from pixels to names.
        names = [model.classes[label] for label in test.y.tolist()]
        right = sum(
            said == true for said, true in zip(model.predict(test.x), names, strict=True)
        )
        assert right / len(test) == last.accuracy

    def test_the_saved_synthetic_set_is_that_of_the_last_round(self, whole: RunResult) -> None:
        assert whole.directory is not None
        synthetic = load_synthetic(whole.directory / "synthetic.safetensors")
        assert whole.synthetic is not None
        assert torch.equal(synthetic.examples.x, whole.synthetic.examples.x)
        assert torch.equal(synthetic.examples.y, whole.synthetic.examples.y)
        assert torch.equal(synthetic.clients, whole.synthetic.clients)
        assert synthetic.pixels().shape == (len(synthetic), 1, 8, 8)

    def test_with_a_directory_or_without_it_is_the_same_run(self, whole: RunResult) -> None:
        free = run_tiny(rounds=3)
        assert free.model.to_bytes() == whole.model.to_bytes()
        assert [record.loss for record in free.records] == [r.loss for r in whole.records]


class TestResume:
    def test_an_interrupted_run_ends_as_if_it_had_not_been(
        self, stopped: Path, whole: RunResult
    ) -> None:
        assert not (stopped / "model.safetensors").exists()
        assert len(timeless_results(stopped)) == 1
        log = Log()
        result = resume(stopped, observer=log)
        assert (log.earlier, log.rounds, log.notices) == ([1], [2, 3], [])
        assert_same_run(stopped, whole)
        assert result.directory == stopped
        assert result.config == whole.config
        assert [r.loss for r in result.records] == [r.loss for r in whole.records]
        assert [r.accuracy for r in result.records] == [r.accuracy for r in whole.records]
        assert result.model.to_bytes() == whole.model.to_bytes()

    def test_again_and_again(self, stopped: Path, whole: RunResult) -> None:
        with pytest.raises(Stop):
            resume(stopped, observer=StopAfter(2))
        resume(str(stopped))
        assert_same_run(stopped, whole)

    def test_a_line_without_its_checkpoint_is_computed_again(
        self, stopped: Path, whole: RunResult
    ) -> None:
        with (stopped / "results.jsonl").open("a") as file:
            file.write(
                (stopped / "results.jsonl").read_text().replace('"round": 1', '"round": 2')
            )
            file.write('{"round": 3, "accu')
        resume(stopped)
        assert_same_run(stopped, whole)

    def test_before_the_first_round_was_over(self, tmp_path: Path, whole: RunResult) -> None:
        class StopAtOnce(Observer):
            def progress(self, stage: str, fraction: float) -> None:
                raise Stop

        directory = tmp_path / "run"
        with pytest.raises(Stop):
            run_tiny(directory, rounds=3, observer=StopAtOnce())
        assert not (directory / "results.jsonl").exists()
        resume(directory)
        assert_same_run(directory, whole)

    def test_between_the_last_round_and_the_model(
        self, tmp_path: Path, whole: RunResult
    ) -> None:
        directory = tmp_path / "run"
        with pytest.raises(Stop):
            run_tiny(directory, rounds=3, observer=StopAfter(3))
        assert not (directory / "model.safetensors").exists()
        log = Log()
        resume(directory, observer=log)
        assert (log.earlier, log.rounds) == ([1, 2, 3], [])
        assert_same_run(directory, whole)

    def test_a_run_that_is_complete_stays_as_it_is(self, whole: RunResult) -> None:
        assert whole.directory is not None
        before = {name: (whole.directory / name).read_bytes() for name in FINAL_FILES}
        results = (whole.directory / "results.jsonl").read_bytes()
        assert resume(whole.directory).records == whole.records
        assert {n: (whole.directory / n).read_bytes() for n in FINAL_FILES} == before
        assert (whole.directory / "results.jsonl").read_bytes() == results

    def test_workers_may_change_and_bits_do_not(self, stopped: Path, whole: RunResult) -> None:
        assert resume(stopped, workers=2).config.runtime.workers == 2
        assert_same_run(stopped, whole)
        assert RunDirectory.open(stopped).config() == whole.config  # as the run began

    def test_other_data_are_refused(self, stopped: Path) -> None:
        before = (stopped / "results.jsonl").read_bytes()
        config = stopped / "config.toml"
        config.write_text(config.read_text().replace("alpha = 0.5", "alpha = 0.4"))
        with pytest.raises(RunDirectoryError, match="have changed since the run began"):
            resume(stopped)
        assert (stopped / "results.jsonl").read_bytes() == before

    def test_the_fingerprint_is_of_data_and_of_who_has_them(self) -> None:
        setup = build(resolve(options={"clients": 2}))
        first, second = setup.shards
        swapped = [np.append(first[1:], second[0]), np.append(second[1:], first[0])]
        longer = [np.append(first, second[0]), second[1:]]
        bright = setup.dataset.train.x.clone()
        bright[0, 0, 0, 0] += 1
        brighter = replace(setup.dataset.train, x=bright)
        others = [
            setup,
            replace(setup, shards=swapped),
            replace(setup, shards=longer),
            replace(setup, dataset=replace(setup.dataset, train=brighter)),
            replace(setup, dataset=replace(setup.dataset, test=setup.dataset.train)),
        ]
        assert len({fingerprint_of(other) for other in others}) == len(others)
        assert fingerprint_of(build(resolve(options={"clients": 2}))) == fingerprint_of(setup)

    def test_another_fingerprint_is_refused(self, stopped: Path) -> None:
        file = stopped / "environment.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"data": "0" * 32}))
        with pytest.raises(RunDirectoryError, match="the data or their split"):
            resume(stopped)

    def test_other_versions_are_told(self, stopped: Path, whole: RunResult) -> None:
        file = stopped / "environment.json"
        then = json.loads(file.read_text()) | {"torch": "1.0", "cpu": "ABACUS"}
        file.write_text(json.dumps(then))
        log = Log()
        resume(stopped, observer=log)
        capability = torch.backends.cpu.get_cpu_capability()
        assert log.notices == [
            f"changed since the run began: torch 1.0 -> {torch.__version__}, "
            f"cpu ABACUS -> {capability}; results may not be bit-identical"
        ]
        assert_same_run(stopped, whole)  # here they do not

    def test_a_run_that_goes_on_elsewhere_is_left_alone(self, stopped: Path) -> None:
        before = (stopped / "results.jsonl").read_bytes()
        with (
            RunDirectory.open(stopped),
            pytest.raises(RunDirectoryError, match="in use by another process"),
        ):
            resume(stopped)
        assert (stopped / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize("algorithm", algorithm_names())
def test_every_algorithm_can_be_interrupted(tmp_path: Path, algorithm: str) -> None:
    # Two of three clients a round: one that rests keeps what it remembers.
    options: dict[str, Any] = {"algorithm": algorithm, "rounds": 3, "participation": 0.67}
    whole = run_tiny(tmp_path / "whole", **options)
    with pytest.raises(Stop):
        run_tiny(tmp_path / "stopped", **options, observer=StopAfter(2))
    result = resume(tmp_path / "stopped")
    assert [r.loss for r in result.records] == [r.loss for r in whole.records]
    assert timeless_results(tmp_path / "stopped") == timeless_results(tmp_path / "whole")
    assert result.model.to_bytes() == whole.model.to_bytes()

    synthetic = tmp_path / "whole" / "synthetic.safetensors"
    assert synthetic.exists() == (whole.synthetic is not None)
    assert (whole.synthetic is not None) == (algorithm in ("feddm", "real"))


def test_bits_do_not_depend_on_the_number_of_workers(tmp_path: Path, whole: RunResult) -> None:
    run_tiny(tmp_path / "run", rounds=3, workers=2)
    assert_same_run(tmp_path / "run", whole)


class TestNames:
    def test_all_is_what_can_be_imported(self) -> None:
        assert feddm.__all__ == sorted(feddm.__all__)
        for name in feddm.__all__:
            assert getattr(feddm, name).__name__ == name
        public = {name for name in dir(feddm) if not name.startswith("_")}
        helpers = {"import_module", "Any", "TYPE_CHECKING"}
        modules = {name for name in public if isinstance(getattr(feddm, name), type(sys))}
        assert public - helpers - modules == set(feddm.__all__)
        assert set(feddm._HOMES) == set(feddm.__all__)

    def test_another_name_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="module 'feddm' has no attribute 'train'"):
            feddm.train  # noqa: B018

    def test_importing_it_is_quick(self) -> None:
        code = (
            "import sys, feddm, feddm.cli\n"
            "slow = {'torch', 'numpy.random', 'matplotlib', 'pooch', 'safetensors'}\n"
            "print(sorted(slow & set(sys.modules)))\n"
            "feddm.load_model\n"
            "print('torch' in sys.modules)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == ["[]", "True"]


def test_run_has_the_options_of_the_command_line() -> None:
    named = set(inspect.signature(feddm.run).parameters)
    assert set(OPTIONS) <= named
    assert named - set(OPTIONS) == {"config", "preset", "set", "out", "observer"}
