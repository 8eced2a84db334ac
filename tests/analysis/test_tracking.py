import math
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tiny
from fabricated import record
from feddm.analysis.tracking import Both, numbers, tracker
from feddm.errors import ConfigError, FedDMError, MissingExtraError
from feddm.runtime.federation import RoundRecord
from feddm.runtime.run import Observer, resume
from feddm.runtime.rundir import RunDirectory


def scalars(folder: Path, name: str) -> dict[int, float]:
    """Returns the points of a TensorBoard curve, by step."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def test_every_finite_number_of_a_round() -> None:
    assert numbers(record(3, 0.75, loss=math.nan)) == {
        "accuracy": 0.75,
        "floats_up": 250,
        "floats_down": 500,
        "bytes_up": 1000,
        "bytes_down": 2000,
        "client_seconds": 3,
        "server_seconds": 1,
    }
    private = numbers(record(3, 0.75, epsilon=1.5, client_seconds=math.nan))
    assert private["epsilon"] == 1.5
    assert "client_seconds" not in private
    assert "epsilon" not in numbers(record(3, 0.75, epsilon=math.inf))


def test_tensorboard_has_the_numbers_of_the_results(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = tiny.run_tiny(run, rounds=2, observer=tracker("tensorboard", run))
    for name in ("accuracy", "loss", "bytes_up"):
        expected = {r.round: getattr(r, name) for r in result.records}
        assert scalars(run, name) == pytest.approx(expected)


def test_tensorboard_drops_rounds_that_are_run_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny.run_tiny(run, rounds=1)
    (run / "model.safetensors").unlink()
    # Rounds that were logged before the run was killed, but are not in its checkpoint.
    stale = tracker("tensorboard", run)
    stale.started(RunDirectory.open(run).config(), None, [])  # type: ignore[arg-type]
    for number in (1, 2, 3):
        stale.finished_round(record(number, 0.01))
    config = (run / "config.toml").read_text().replace("rounds = 1", "rounds = 2")
    (run / "config.toml").write_text(config)
    result = resume(run, observer=tracker("tensorboard", run))
    logged = scalars(run, "accuracy")
    assert logged == pytest.approx({1: 0.01, 2: result.records[1].accuracy})


def test_mlflow_has_the_numbers_and_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    run = tmp_path / "run"
    result = tiny.run_tiny(run, rounds=2, observer=tracker("mlflow", run))
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("feddm")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.run_name == "run"
    assert logged.info.status == "FINISHED"
    assert logged.data.params["partition.clients"] == str(tiny.CLIENTS)
    history = client.get_metric_history(logged.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [
        (r.round, r.accuracy) for r in result.records
    ]


def test_an_unreachable_mlflow_is_an_error_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nosuch://place")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with pytest.raises(FedDMError, match="cannot use MLflow"):
        tracker("mlflow", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")]
)
def test_a_missing_extra(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'feddm\[{name}\]'"):
        tracker(name, tmp_path)


def test_an_unknown_tracker(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of tensorboard, mlflow, got 'wandb'"):
        tracker("wandb", tmp_path)


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    class Display(Observer):
        def __init__(self) -> None:
            self.seen: list[object] = []

        def finished_round(self, record: RoundRecord) -> None:
            self.seen.append(record.round)

        def notice(self, text: str) -> None:
            self.seen.append(text)

    class Away(Observer):
        def finished_round(self, record: RoundRecord) -> None:
            raise ConnectionError("the server is away")

    display = Display()
    tiny.run_tiny(tmp_path / "run", rounds=3, observer=Both(display, Away()))
    assert display.seen == [1, "logging stopped: the server is away", 2, 3]
