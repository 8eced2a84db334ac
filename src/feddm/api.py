"""What scripts call.

import feddm

result = feddm.run(dataset="mnist", rounds=3, data_dir="data")
print(result.records[-1].accuracy)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from feddm.config.code import reference_to
from feddm.config.registry import AlgorithmType
from feddm.config.resolve import load_toml, resolve
from feddm.config.schema import OwnDataConfig
from feddm.data.catalog import check_folder_used
from feddm.data.facts import named_data
from feddm.runtime.run import Observer, RunResult, execute
from feddm.runtime.run import resume as continued


def run(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    algorithm: str | type[AlgorithmType] | None = None,
    dataset: str | None = None,
    data: object = None,
    clients: int | None = None,
    alpha: float | None = None,
    rounds: int | None = None,
    participation: float | None = None,
    model: object = None,
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
        algorithm: Name of the algorithm, or a class of your own.
        dataset: Name of the data set.
        data: Your own data: a path as of ``feddm run --data``, ``(x, y)`` or ``(x, y, group)``
            as arrays or tensors, `Examples`, a data set of torch or of Hugging Face, or
            ``(train, test)`` of any of these.
        clients: Number of clients.
        alpha: Dirichlet concentration of the split over clients.
        rounds: Rounds of communication.
        participation: Share of the clients that take part in a round.
        model: Name of the model; or a ``torch.nn.Module`` of your own, its class, or a function
            that makes it.
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
    values = (
        config if config is None or isinstance(config, Mapping) else load_toml(Path(config))
    )
    there = _there(data, set or {})
    named, facts = named_data(there.path, values, set or {})
    options = {
        "algorithm": None if algorithm is None else reference_to(algorithm),
        "dataset": dataset,
        "data": named,
        "clients": clients,
        "alpha": alpha,
        "rounds": rounds,
        "participation": participation,
        "model": None if model is None else reference_to(model),
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
    resolved = resolve(values, preset, options, set or {}, facts=facts)
    check_folder_used(resolved.data, None if data_dir is None else str(data_dir))
    return execute(resolved, None if out is None else Path(out), observer or Observer())


def resume(
    directory: str | Path,
    *,
    workers: int | Literal["auto"] | None = None,
    data_dir: str | Path | None = None,
    data: object = None,
    algorithm: str | type[AlgorithmType] | None = None,
    model: object = None,
    observer: Observer | None = None,
) -> RunResult:
    """Continues an interrupted run; the result is bit-identical to an uninterrupted one.

    What was given in Python is given again: a run directory has neither data nor code.

    Args:
        directory: The run directory.
        workers: Number of worker processes; it does not change the results.
        data_dir: Folder of the data sets, if it has moved.
        data: Your own data, if they have moved or were given in Python.
        algorithm: An algorithm of your own, if it has moved or was given in Python.
        model: A model of your own, likewise.
        observer: Receives the progress.
    """
    own = {"algorithm": algorithm, "model": model}
    there = _there(data, {})
    return continued(
        directory,
        workers=workers,
        data_dir=data_dir,
        data=there.path,
        code={key: reference_to(each) for key, each in own.items() if each is not None},
        observer=observer,
    )


class _There(NamedTuple):
    """A path of data, and what must live as long as it is used."""

    path: str | None
    data: object = None


def _there(data: object, settings: Mapping[str, Any]) -> _There:
    if data is None or isinstance(data, str | os.PathLike):
        return _There(None if data is None else os.fspath(data))
    from feddm.data.given import keep, own_data

    own = {k.removeprefix("data.own."): v for k, v in settings.items() if "data.own." in k}
    kept = own_data(data, OwnDataConfig(**own))
    return _There(keep(kept), kept)


def _ledger(ledger: str | Path | None) -> str | None:
    if ledger is None or ledger == "new":
        return ledger
    return os.path.abspath(ledger)
