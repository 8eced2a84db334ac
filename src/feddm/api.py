"""What scripts call.

import feddm

result = feddm.run(dataset="mnist", rounds=3, data_dir="data")
print(result.records[-1].accuracy)
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from feddm.analysis.comparing import Comparison, compared
from feddm.analysis.studies import Cell
from feddm.config.code import label, reference_to
from feddm.config.messages import as_python
from feddm.config.registry import AlgorithmType
from feddm.config.resolve import OPTIONS, flat, load_toml, qualified, resolve
from feddm.config.schema import Config, OwnDataConfig
from feddm.data.catalog import check_folder_used
from feddm.data.facts import named_data
from feddm.errors import ConfigError, FedDMError
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
    quiet: bool = False,
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
        quiet: Show no progress. It is shown in a terminal and in a notebook.
        observer: Receives the progress of the run, instead of showing it.
    """
    given = {key: value for key, value in locals().items() if key not in _NOT_CONFIGURATION}
    with (
        _in_python(),
        _configured(config, given, preset, set or {}) as resolved,
        _shown(quiet, observer) as seen,
    ):
        return execute(resolved(), None if out is None else Path(out), seen)


@contextlib.contextmanager
def _configured(
    config: str | Path | Mapping[str, Any] | None,
    given: Mapping[str, Any],
    preset: str | None,
    settings: Mapping[str, Any],
) -> Iterator[Callable[..., Config]]:
    """Gives a function that makes a configuration, perhaps with other options; keeps the data.

    Args:
        config: A TOML file, or its values.
        given: Arguments of `run` that are options of the command line, too.
        preset: Values under all others.
        settings: Other values by their keys.
    """
    values = (
        config if config is None or isinstance(config, Mapping) else load_toml(Path(config))
    )
    there = _there(given["data"], settings)
    named, facts = named_data(there.path, values, settings)
    options = {
        **given,
        "data": named,
        **{key: _reference(given[key]) for key in ("algorithm", "model")},
        **{key: _absolute(given[key]) for key in ("data_dir", "ledger")},
    }

    def resolved(shared: bool = False, **others: Any) -> Config:
        found = resolve(
            values, preset, {**options, **others}, settings, facts=facts, shared=shared
        )
        check_folder_used(found.data, options["data_dir"])
        return found

    yield resolved
    del there


@contextlib.contextmanager
def _shown(quiet: bool, observer: Observer | None) -> Iterator[Observer]:
    """Gives what is told of the progress: what was asked for, a screen, or nobody."""
    notebook = "ipykernel" in sys.modules
    if observer is not None or quiet or not (notebook or sys.stdout.isatty()):
        yield observer or Observer()
        return
    from rich.console import Console

    from feddm.runtime.display import TextDisplay

    with TextDisplay(Console()) as display:
        yield display


@contextlib.contextmanager
def _in_python() -> Iterator[None]:
    """Names arguments in errors, where the command line names its options."""
    try:
        yield
    except FedDMError as error:
        error.args = (as_python(str(error), _ARGUMENTS),)
        raise


def resume(
    directory: str | Path,
    *,
    workers: int | Literal["auto"] | None = None,
    data_dir: str | Path | None = None,
    data: object = None,
    algorithm: str | type[AlgorithmType] | None = None,
    model: object = None,
    quiet: bool = False,
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
        quiet: Show no progress.
        observer: Receives the progress, instead of showing it.
    """
    own = {"algorithm": algorithm, "model": model}
    there = _there(data, {})
    with _in_python(), _shown(quiet, observer) as seen:
        return continued(
            directory,
            workers=workers,
            data_dir=data_dir,
            data=there.path,
            code={key: reference_to(each) for key, each in own.items() if each is not None},
            observer=seen,
        )


def compare(
    algorithms: Sequence[str | type[AlgorithmType]] = ("feddm", "fedavg"),
    *,
    seeds: Sequence[int] = (0,),
    targets: Sequence[float] = (0.8, 0.9, 0.95),
    against: str | None = None,
    out: str | Path | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    quiet: bool = False,
    **options: Any,
) -> Comparison:
    """Compares algorithms on the same data, partitions, seeds and model.

    Args:
        algorithms: Names, or classes of your own.
        seeds: Each algorithm runs once with each.
        targets: Accuracies, from 0 to 1: when does each get there, and at what cost?
        against: Name of the baseline; shows the difference from it, seed by seed.
        out: Directory of the study, which the same call goes on with; without one nothing is
            kept.
        config: A TOML file, or its values.
        preset: Values under all others.
        set: Other values by their keys; each algorithm takes what it has.
        quiet: Show no progress.
        options: Other arguments of `run`, as ``data``, ``rounds`` or ``clients``.
    """
    unknown = sorted({*options} - ({*OPTIONS} - {"algorithm", "seed"}))
    if unknown:
        raise TypeError(f"compare() got an unexpected keyword argument {unknown[0]!r}")
    given = {**dict.fromkeys(OPTIONS), **options}
    names = {label(reference_to(each)): reference_to(each) for each in algorithms}
    with _in_python(), _configured(config, given, preset, set or {}) as resolved:
        if len(names) < len(algorithms) or (against is not None and against not in names):
            raise ConfigError(f"algorithms must differ and include {against}, got {[*names]}")
        cells = [
            Cell(name, seed, resolved(shared=True, algorithm=reference, seed=seed))
            for seed in seeds
            for name, reference in names.items()
        ]
        known = {key for cell in cells for key in flat(cell.config.model_dump())}
        if not {qualified(key) for key in set or {}} <= known:
            resolved(algorithm=cells[0].config.algorithm.name)  # says which is a mistake
        return compared(cells, targets, against, None if out is None else Path(out), quiet)


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


def _absolute(path: str | Path | None) -> str | None:
    """Returns a folder that is the same from every other; ``new`` is none."""
    return path if path is None or path == "new" else os.path.abspath(path)


def _reference(code: object) -> str | None:
    return None if code is None else reference_to(code)


# Arguments that are no options of a configuration.
_NOT_CONFIGURATION = {"config", "preset", "set", "out", "quiet", "observer"}
_ARGUMENTS = {*OPTIONS, *_NOT_CONFIGURATION, "seeds", "algorithms", "against", "targets"}
