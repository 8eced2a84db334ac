"""A run from start to finish: rounds, checkpoints and final files."""

from __future__ import annotations

import json
import os
import platform
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from feddm.config.code import label, source_hash
from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.core.formatting import percent
from feddm.data.partition import class_table
from feddm.data.sources import absolute
from feddm.errors import RunDirectoryError
from feddm.runtime import views
from feddm.runtime.build import LocalSetup, Setup, build_model
from feddm.runtime.federation import Federation, RoundPlan, RoundRecord, start
from feddm.runtime.federation import run as run_rounds
from feddm.runtime.model_file import TrainedModel
from feddm.runtime.rundir import RunDirectory
from feddm.runtime.session import ON_NODES, OpenSession, Session, local_session
from feddm.runtime.synthetic_file import SyntheticSet, from_state
from feddm.runtime.wording import promised

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run.

    Args:
        config: The configuration.
        records: One record per round.
        model: The final model.
        synthetic: The synthetic sets of the last round, if the algorithm makes any.
        directory: The run directory, if there is one.
    """

    config: Config
    records: tuple[RoundRecord, ...]
    model: TrainedModel
    synthetic: SyntheticSet | None
    directory: Path | None

    def table(self) -> Any:
        """Returns a row for each round: a pandas DataFrame if pandas is there, else dicts."""
        return views.table(self.records)

    def plot(self) -> Figure:
        """Returns a figure of accuracy by round."""
        return views.plot({self.name: [self.records]})

    @property
    def name(self) -> str:
        """What was run on what."""
        return f"{label(self.config.algorithm.name)} on {self.config.data.name}"

    def __repr__(self) -> str:
        last = self.records[-1]
        return f"<{self.name}: {percent(last.accuracy)} after {_count(last.round, 'round')}>"

    def _repr_html_(self) -> str:
        return views.run_html(self.name, self.records)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


class Observer:
    """Receives the progress of a run; subclasses display it, this class ignores it."""

    def started(self, config: Config, setup: Setup, records: list[RoundRecord]) -> None:
        """Called when the data are loaded and split; `records` are those of earlier rounds."""

    def progress(self, stage: str, fraction: float) -> None:
        """Called during a round: `fraction` of the stage (``clients``, ``server``) is done."""

    def finished_round(self, record: RoundRecord) -> None:
        """Called when a round is done and saved."""

    def notice(self, text: str) -> None:
        """Called with something the user should know that is not an error."""


def execute(
    config: Config,
    out: Path | None,
    observer: Observer,
    opened: OpenSession = local_session,
    arguments: Sequence[str] = (),
) -> RunResult:
    """Runs a complete configuration.

    Args:
        config: The configuration.
        out: New run directory; ``None`` writes nothing.
        observer: Receives the progress.
        opened: Opens the session with the clients; by default they are on this machine.
        arguments: Arguments of the command line that started the run, if any.
    """
    run = uuid.uuid4().hex
    with opened(config, run, {}) as session:
        setup = session.setup
        fresh = start(setup.algorithm, config.seed)
        if out is None:
            return _run_remaining(session, fresh, [], None, observer)
        environment = _environment(session, run)
        if arguments:
            environment["arguments"] = list(arguments)
        with RunDirectory.create(out, setup.config, environment) as directory:
            return _run_remaining(session, fresh, [], directory, observer)


def resume(
    directory: str | Path,
    *,
    workers: int | Literal["auto"] | None = None,
    data_dir: str | Path | None = None,
    data: str | Path | None = None,
    code: Mapping[str, str] | None = None,
    observer: Observer | None = None,
    opened: OpenSession = local_session,
) -> RunResult:
    """Continues an interrupted run; the result is bit-identical to an uninterrupted one.

    Args:
        directory: The run directory.
        workers: Number of worker processes; it does not change the results.
        data_dir: Folder of the data sets, if it has moved.
        data: Where your own data are, if they have moved.
        code: Where code of your own is, if it has moved: of ``algorithm`` and ``model``.
        observer: Receives the progress.
        opened: Opens the session with the clients; by default they are on this machine.
    """
    observer = observer or Observer()
    with RunDirectory.open(Path(directory)) as earlier:
        config = earlier.config(run_code=True, code=code)
        options = {
            "workers": workers,
            "data_dir": None if data_dir is None else os.path.abspath(data_dir),
            "data": None if data is None else absolute(data),
        }
        config = resolve(config.model_dump(), options=options)
        environment = earlier.environment()
        run = str(environment.get("run", ""))
        with opened(config, run, environment) as session:
            _compare(environment, _environment(session, run), observer)
            session.check(earlier.records())
            fresh = start(session.setup.algorithm, config.seed)
            federation, memories = earlier.rewind() or (fresh, {})
            session.memories.update(memories)
            return _run_remaining(session, federation, earlier.records(), earlier, observer)


def _run_remaining(
    session: Session,
    federation: Federation,
    records: list[RoundRecord],
    directory: RunDirectory | None,
    observer: Observer,
) -> RunResult:
    """Runs and saves the remaining rounds, and returns the result of the whole run."""
    setup, config = session.setup, session.setup.config
    for text in setup.notices:
        observer.notice(text)
    observer.started(config, setup, records)
    if directory is not None:
        _write_partition(directory, setup)
    plan = RoundPlan(
        rounds=config.rounds,
        clients=config.partition.clients,
        participation=config.participation,
        seed=config.seed,
        min_clients=None if config.min_clients == "all" else config.min_clients,
        retries=session.retries,
        server_threads=config.runtime.server_threads,
    )
    for latest, record in run_rounds(
        setup.algorithm, session.engine, federation, session.evaluator, plan, observer.progress
    ):
        federation = latest
        epsilon = session.epsilon([*records, record])
        if epsilon is not None and config.privacy is not None:
            record = promised(record, epsilon, config.privacy)
        if directory is not None:
            directory.save_round(federation, record, session.memories)
        records = [*records, record]
        observer.finished_round(record)
    result = _result(config, setup, federation, records, directory)
    if directory is not None:
        if result.synthetic is not None:
            directory.write("synthetic.safetensors", result.synthetic.to_bytes())
        # The model is last, because its presence means that the run is finished.
        directory.write("model.safetensors", result.model.to_bytes())
    return result


def _write_partition(directory: RunDirectory, setup: Setup) -> None:
    """Writes the number of examples per client and class, unless privacy protects it."""
    if setup.config.guaranteed or not isinstance(setup, LocalSetup):
        return
    table = class_table(setup.dataset.train.y.numpy(), setup.shards, len(setup.info.classes))
    content = {"classes": list(setup.info.classes), "table": table.tolist()}
    directory.write("partition.json", json.dumps(content).encode())


def _result(
    config: Config,
    setup: Setup,
    federation: Federation,
    records: list[RoundRecord],
    directory: RunDirectory | None,
) -> RunResult:
    info = setup.info
    normalization = info.normalization
    synthetic = federation.state.get("synthetic")
    return RunResult(
        config=config,
        records=tuple(records),
        model=TrainedModel(
            config.model,
            build_model(config.model, info.shape, len(info.classes)),
            federation.state["params"],
            info.classes,
            normalization,
        ),
        synthetic=None
        if synthetic is None
        else from_state(synthetic, info.classes, normalization),
        directory=None if directory is None else directory.path,
    )


def _environment(session: Session, run: str) -> dict[str, Any]:
    """Returns the run's name, and what can change its bits besides the configuration."""
    return {
        "run": run,
        "feddm": version("feddm"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": session.setup.device.type,
        "compiled": session.setup.compiled,
        **_sources(session.setup.config),
        **session.environment(),
    }


def _sources(config: Config) -> dict[str, str]:
    """Returns a digest of the code of your own that a run uses."""
    names = {"algorithm_source": config.algorithm.name, "model_source": config.model.name}
    digests = {key: source_hash(name) for key, name in names.items()}
    return {key: digest for key, digest in digests.items() if digest is not None}


# What names places, which may have changed without changing anything else.
_PLACES = ("ledger", "data_notes")


def _compare(before: Mapping[str, Any], now: Mapping[str, Any], observer: Observer) -> None:
    if before.get("data") == ON_NODES != now["data"]:
        raise RunDirectoryError(
            "the clients of this run are on Flower nodes; resume it with "
            "`flwr run APP -c 'resume=\"DIR\"'`"
        )
    if before.get("data") != now["data"]:
        raise RunDirectoryError(
            "the data or their split have changed since the run began; point --data-dir (or "
            "--data, for your own) at the original files, or start a new run"
        )
    changed = [
        f"{key} {before[key]} -> {now[key]}"
        for key in now
        if key not in _PLACES and key in before and before[key] != now[key]
    ]
    if changed:
        observer.notice(
            f"changed since the run began: {', '.join(changed)}; "
            "results may not be bit-identical"
        )
