"""``feddm ablate``: what is each setting worth?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from feddm.cli import options
from feddm.cli.report import WriteReport
from feddm.cli.studies import (
    Out,
    Seeds,
    held_out,
    listed_seeds,
    run_study,
)
from feddm.config.fair import check_fair
from feddm.config.resolve import parse_settings
from feddm.errors import ConfigError

EXAMPLES = """\
Examples:

- `feddm ablate --change augment:synthesis.augment=true,server.augment=true`

- `feddm ablate --dataset cifar10 --seeds 0,1 --change bytes:coding=uint8`"""

BASE = "base"


@options.configured(without={"seed"})
def ablate(
    given: options.Given,
    change: Annotated[
        list[str],
        typer.Option(
            metavar="NAME:KEY=VALUE,...",
            help="Settings that are changed together, under a name; as often as you like.",
        ),
    ],
    seeds: Seeds = "0,1",
    validation: Annotated[
        float,
        typer.Option(help="Share of the training examples that is held out; 0: the test set."),
    ] = 0.1,
    out: Out = None,
    report: WriteReport = True,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Change a few settings at a time, and see what each change is worth.

    Every change is compared with the run without any, seed by seed, on training examples that
    no client has. The same command with the same --out goes on where it was interrupted.
    """
    changes: dict[str, dict[str, Any]] = {BASE: {}, **_changes(change)}
    given = held_out(given, validation)
    configs = [
        (name, seed, given.with_settings(settings).resolved(seed=seed))
        for seed in listed_seeds(seeds)
        for name, settings in changes.items()
    ]
    check_fair(configs)
    from feddm.analysis.tables import summarize

    run_study(
        configs,
        "ablate",
        out,
        lambda results: summarize(results, (), against=BASE),
        changes=changes,
        report=report,
        quiet=quiet,
        json=json,
    )


def _changes(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the settings of each change from texts such as ``name:key=value,key=value``."""
    changes: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, settings = text.partition(":")
        pairs = settings.split(",")
        whole = all(re.match(r"\s*[^\s=]+\s*=", pair) for pair in pairs)
        if not re.fullmatch(r"[A-Za-z][\w.+-]*", name) or not whole:
            raise ConfigError(f"--change takes NAME:KEY=VALUE,KEY=VALUE..., got {text!r}")
        if name == BASE:
            raise ConfigError(f"--change cannot be named {BASE}: that is the run without any")
        if name in changes:
            raise ConfigError(f"--change has the name {name} twice")
        changes[name] = parse_settings(pairs)
        if len(changes[name]) < len(pairs):
            raise ConfigError(f"--change {name} has a key twice")
    return changes
