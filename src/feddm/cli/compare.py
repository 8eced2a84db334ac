"""``feddm compare``: which algorithm is best?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddm.cli import options
from feddm.cli.report import WriteReport
from feddm.cli.studies import (
    Out,
    Seeds,
    With,
    algorithm_in,
    files_by_name,
    listed_seeds,
    run_study,
)
from feddm.config.code import absolute, is_reference, label
from feddm.config.fair import Named, check_fair
from feddm.config.registry import algorithm_names
from feddm.config.resolve import flat
from feddm.config.schema import Config
from feddm.errors import ConfigError, UnfitAlgorithmError

if TYPE_CHECKING:
    from feddm.analysis.tables import Row
    from feddm.cli.studies import Results

EXAMPLES = """\
Examples:

- `feddm compare --algorithms feddm,fedavg --seeds 0,1,2`

- `feddm compare --dataset mnist --alpha 0.1 --targets 0.9,0.95 --out study`

- `feddm compare --algorithms feddm,fedavg --with fedavg=tuned/winner.toml`

- `feddm compare --algorithms feddm,mine --with mine=mine.toml --against feddm`

- `feddm compare --data folder --algorithms feddm,fedavg,fedavgm.py:FedAvgM`

- `feddm compare --algorithms feddm,fedavg --epsilon 4 --ledger new`"""

ALL = "feddm,fedavg,fedprox,fednova,scaffold,real"


@options.configured(without={"algorithm", "seed"})
def compare(
    given: options.Given,
    algorithms: Annotated[
        str,
        typer.Option(help="Comma-separated names; your own are FILE.py:NAME, or see --with."),
    ] = ALL,
    seeds: Seeds = "0",
    targets: Annotated[
        str, typer.Option(help="Comma-separated target accuracies, from 0 to 1.")
    ] = "0.8,0.9,0.95",
    with_: With = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Show the difference from this baseline, seed by seed."
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw accuracy by round and by bytes: PNG, PDF or SVG.")
    ] = None,
    out: Out = None,
    report: WriteReport = True,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Compare algorithms on the same partitions, seeds and model.

    The same command with the same --out goes on where it was interrupted: what is finished is
    never run again. The table goes into the directory as table.md, table.csv and table.json.
    """
    given.refuse("algorithm.name", "--algorithms names them")
    given, names = _with_own(given, options.listed("--algorithms", algorithms, str, "names"))
    accuracies = options.listed("--targets", targets, _share, "numbers from 0 to 1")
    files = files_by_name(with_ or (), names)
    if against is not None and against not in names:
        raise ConfigError(f"--against takes one of {', '.join(names)}, got {against!r}")
    configs = _variants(given, names, files, listed_seeds(seeds))
    check_fair(configs)
    from feddm.analysis.figures import check_figure
    from feddm.analysis.tables import summarize

    if figure is not None:
        check_figure(figure)

    def draw(results: Results, rows: Sequence[Row], study: Path) -> str:
        del study
        return "" if figure is None else _draw(results, rows, figure)

    run_study(
        configs,
        "compare",
        out,
        lambda results: summarize(results, accuracies, against),
        then=draw,
        report=report,
        quiet=quiet,
        json=json,
    )


def _with_own(given: options.Given, names: Sequence[str]) -> tuple[options.Given, list[str]]:
    """Returns what was given with the code behind each name, and short names."""
    own = {label(name): absolute(name) for name in names if is_reference(name)}
    short = [label(name) for name in names]
    for name in short:
        if short.count(name) > 1:
            raise ConfigError(f"--algorithms names {name} twice; names must differ")
    return given.with_code(own), short


def _draw(results: Results, rows: Sequence[Row], figure: Path) -> str:
    """Draws the curves, and returns a sentence about where."""
    from feddm.analysis.figures import draw_curves
    from feddm.analysis.tables import caption, curves

    return f"Drawn in {draw_curves(curves(results), figure, caption(rows))}"


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def _variants(
    given: options.Given,
    names: Sequence[str],
    files: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
) -> list[Named]:
    """Returns the configuration of every name and seed, if all can have the same privacy."""
    configs: list[Named] = []
    unfit: dict[str, list[str]] = {}  # names by the reason
    for seed in seeds:
        for name in names:
            try:
                configs.append((name, seed, _variant(given, name, files.get(name), seed)))
            except UnfitAlgorithmError as error:
                unfit.setdefault(str(error), []).append(name)
        if unfit:
            reasons = "; ".join(f"{text} ({', '.join(who)})" for text, who in unfit.items())
            rest = ",".join(name for name, _, _ in configs)
            hint = f"compare the others with --algorithms {rest}" if rest else "none is left"
            raise ConfigError(f"{reasons}; {hint}")
    known = {key for _, _, config in configs for key in flat(config.model_dump())}
    if not given.keys() <= known:
        # A key that none of them has is a mistake; the first one's error says which.
        _variant(given, names[0], files.get(names[0]), seeds[0], shared=False)
    return configs


def _variant(
    given: options.Given,
    name: str,
    file: Mapping[str, Any] | None,
    seed: int,
    *,
    shared: bool = True,
) -> Config:
    """Returns the configuration of a name: an algorithm's, or one that its file describes."""
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        raise ConfigError(f"a name has letters, digits, '.', '_' and '-' only, got {name!r}")
    if name in given.code:
        algorithm = given.code[name]
        return given.resolved(file, shared=shared, algorithm=algorithm, seed=seed)
    if name in algorithm_names():
        return given.resolved(file, shared=shared, algorithm=name, seed=seed)
    if file is None or not algorithm_in(file):
        raise ConfigError(
            f"{name} is none of {', '.join(algorithm_names())}; to compare settings of your "
            f"own under that name, add --with {name}=FILE with a file that names the algorithm"
        )
    return given.resolved(file, shared=shared, seed=seed)
