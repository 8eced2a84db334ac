"""Logs every round to TensorBoard or MLflow. Needs the extra ``tensorboard`` or ``mlflow``.

feddm.run(out="runs/mine", observer=tracker("tensorboard", Path("runs/mine")))
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddm.config.resolve import flat
from feddm.config.schema import Config
from feddm.errors import ConfigError, FedDMError, MissingExtraError
from feddm.runtime.federation import RoundRecord
from feddm.runtime.run import Observer

if TYPE_CHECKING:
    from feddm.runtime.build import Setup

NUMBERS = (
    *("accuracy", "loss", "floats_up", "floats_down", "bytes_up", "bytes_down"),
    *("client_seconds", "server_seconds", "epsilon"),
)
MOST_PARAMS = 100  # MLflow's limit per call


def tracker(name: str, directory: Path) -> Observer:
    """Returns an observer that logs a run to a tracker.

    Args:
        name: ``tensorboard`` or ``mlflow``.
        directory: Directory of the run. TensorBoard's files go there. MLflow uses its name as
            the name of the run, and logs to ``MLFLOW_TRACKING_URI``.
    """
    kinds = {"tensorboard": TensorBoard, "mlflow": Mlflow}
    if name not in kinds:
        raise ConfigError(f"--log must be one of {', '.join(kinds)}, got {name!r}")
    try:
        return kinds[name](directory)
    except ImportError as error:
        raise MissingExtraError(
            f"--log {name} needs an extra: pip install 'feddm[{name}]' ({error})"
        ) from error


def numbers(record: RoundRecord) -> dict[str, float]:
    """Returns the numbers of a round to log: those in the results that are finite."""
    named = {name: getattr(record, name) for name in NUMBERS}
    return {k: float(v) for k, v in named.items() if v is not None and math.isfinite(v)}


class TensorBoard(Observer):
    """Writes event files into the run directory: ``tensorboard --logdir runs``."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._directory = directory
        self._open = SummaryWriter
        self._writer: Any = None

    def started(self, config: Config, setup: Setup, records: list[RoundRecord]) -> None:
        # Rounds after the last checkpoint will be run and logged again.
        self._writer = self._open(str(self._directory), purge_step=len(records) + 1)
        if not records:
            self._writer.add_text("config", f"```toml\n{config.to_toml()}```")

    def finished_round(self, record: RoundRecord) -> None:
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()


class Mlflow(Observer):
    """Logs to the experiment ``MLFLOW_EXPERIMENT_NAME``, by default ``feddm``.

    A resumed run becomes a new MLflow run, with all of its rounds.
    """

    def __init__(self, directory: Path) -> None:
        import mlflow

        self._mlflow = mlflow
        self._name = directory.name
        self._rounds = 0
        self._run = ""
        try:
            self._client: Any = mlflow.MlflowClient()
            self._experiment = self._find(os.environ.get("MLFLOW_EXPERIMENT_NAME", "feddm"))
        except mlflow.MlflowException as error:
            reason = str(error).strip().partition(". ")[0]
            raise FedDMError(
                f"cannot use MLflow: {reason}. Set MLFLOW_TRACKING_URI to a server, or "
                "pip install mlflow to keep runs on this disk"
            ) from error

    def _find(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        return str(known.experiment_id if known else self._client.create_experiment(name))

    def started(self, config: Config, setup: Setup, records: list[RoundRecord]) -> None:
        self._rounds = config.rounds
        run = self._client.create_run(self._experiment, run_name=self._name)
        self._run = run.info.run_id
        param = self._mlflow.entities.Param
        settings = [param(k, str(v)) for k, v in flat(config.model_dump()).items()]
        for begin in range(0, len(settings), MOST_PARAMS):
            self._client.log_batch(self._run, params=settings[begin : begin + MOST_PARAMS])
        for record in records:
            self.finished_round(record)

    def finished_round(self, record: RoundRecord) -> None:
        now = int(1000 * time.time())
        metric = self._mlflow.entities.Metric
        logged = [metric(k, v, now, record.round) for k, v in numbers(record).items()]
        self._client.log_batch(self._run, metrics=logged)
        if record.round == self._rounds:
            self._client.set_terminated(self._run)


class Both(Observer):
    """Notifies a display and a tracker. A tracker that fails during the run is dropped."""

    def __init__(self, display: Observer, to: Observer) -> None:
        self._display = display
        self._tracker: Observer | None = to

    def started(self, config: Config, setup: Setup, records: list[RoundRecord]) -> None:
        if self._tracker is not None:
            self._tracker.started(config, setup, records)
        self._display.started(config, setup, records)

    def progress(self, stage: str, fraction: float) -> None:
        self._display.progress(stage, fraction)

    def finished_round(self, record: RoundRecord) -> None:
        self._display.finished_round(record)
        if self._tracker is None:
            return
        try:
            self._tracker.finished_round(record)
        except Exception as error:
            # A server that is down for a minute must not end a run of hours.
            self._tracker = None
            self._display.notice(f"logging stopped: {error}")

    def notice(self, text: str) -> None:
        self._display.notice(text)
