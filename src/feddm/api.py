"""What scripts call.

import feddm

result = feddm.run(dataset="mnist", rounds=3, data_dir="data")
print(result.records[-1].accuracy)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from feddm.config.resolve import load_toml, resolve
from feddm.runtime.run import Observer, RunResult, execute


def run(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    algorithm: str | None = None,
    dataset: str | None = None,
    clients: int | None = None,
    alpha: float | None = None,
    rounds: int | None = None,
    participation: float | None = None,
    width: int | None = None,
    ipc: int | None = None,
    seed: int | None = None,
    privacy: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    ledger: str | Path | None = None,
    workers: int | Literal["auto"] | None = None,
    device: str | None = None,
    compile: str | None = None,
    data_dir: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    observer: Observer | None = None,
) -> RunResult:
    """Runs a federation and returns what it learned.

    The options are those of ``feddm run``, and what is not given comes from the preset.

    Args:
        config: A TOML file, or its values.
        algorithm: Name of the algorithm.
        dataset: Name of the data set.
        clients: Number of clients.
        alpha: Dirichlet concentration of the split over clients.
        rounds: Rounds of communication.
        participation: Share of the clients that take part in a round.
        width: Channels of the ConvNet.
        ipc: Images sent per class.
        seed: Seed of all randomness.
        privacy: What protects the examples: ``features`` or ``gradients``.
        epsilon: Privacy budget of the data set, for this run and those before it.
        delta: Delta of the guarantee.
        ledger: Folder of the clients' ledgers, or ``new`` for one that this run alone has; by
            default all runs on a data set share one.
        workers: Worker processes; results do not depend on it.
        device: ``cpu``, ``cuda``, ``mps``, or ``auto`` for a GPU if there is one.
        compile: Compile the model: ``on``, ``off``, or ``auto`` if the run is long.
        data_dir: Folder of the data sets.
        preset: Values under all others: ``quick`` or ``paper``.
        set: Any other values by their keys, as ``{"server.lr": 0.1}``.
        out: A new run directory; without one nothing is written.
        observer: Receives the progress of the run.
    """
    options = {
        "algorithm": algorithm,
        "dataset": dataset,
        "clients": clients,
        "alpha": alpha,
        "rounds": rounds,
        "participation": participation,
        "width": width,
        "ipc": ipc,
        "seed": seed,
        "privacy": privacy,
        "epsilon": epsilon,
        "delta": delta,
        "ledger": _ledger(ledger),
        "workers": workers,
        "device": device,
        "compile": compile,
        "data_dir": None if data_dir is None else os.path.abspath(data_dir),
    }
    values = (
        config if config is None or isinstance(config, Mapping) else load_toml(Path(config))
    )
    resolved = resolve(values, preset, options, set or {})
    return execute(resolved, None if out is None else Path(out), observer or Observer())


def _ledger(ledger: str | Path | None) -> str | None:
    if ledger is None or ledger == "new":
        return ledger
    return os.path.abspath(ledger)
