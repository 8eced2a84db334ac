"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from feddm.config import OPTIONS, Config, load_toml, parse_settings, resolve
from feddm.data.catalog import describe
from feddm.errors import ConfigError
from feddm.presets import PRESETS

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="[CONFIG]", help="A TOML file; `feddm config` makes one."),
]
Algorithm = Annotated[str | None, typer.Option(help="What clients and server do.")]
Dataset = Annotated[str | None, typer.Option(help="Data set; `feddm data list` shows them.")]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Alpha = Annotated[float | None, typer.Option(help="Dirichlet concentration; small is skewed.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds of communication.")]
Participation = Annotated[float | None, typer.Option(help="Share of clients in a round.")]
Width = Annotated[int | None, typer.Option(help="Channels of the ConvNet.")]
Ipc = Annotated[int | None, typer.Option(help="Synthetic images a class.")]
Seed = Annotated[int | None, typer.Option(help="Everything random comes from it.")]
Workers = Annotated[
    str | None,
    typer.Option(metavar="N|auto", help="Processes for clients; results do not depend on it."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets; else FEDDM_DATA, else the cache folder."),
]
Preset = Annotated[
    str | None, typer.Option(help=f"Values under all others: {', '.join(PRESETS)}.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other value, as server.lr=0.1."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Show JSON, for other programs.")]


def resolved(
    file: Path | None, preset: str | None, settings: Sequence[str] | None, **options: Any
) -> Config:
    """Returns the complete configuration from what stands on the command line.

    Args:
        file: The TOML file.
        preset: ``--preset``.
        settings: ``--set``, each as ``key=value``.
        options: The other options by their names in `OPTIONS`; ``None`` is not given.
    """
    unknown = set(options) - set(OPTIONS)
    assert not unknown, unknown
    if options.get("workers") is not None:
        options["workers"] = number_of_workers(options["workers"])
    if options.get("data_dir") is not None:
        options["data_dir"] = str(options["data_dir"])
    values = None if file is None else load_toml(file)
    config = resolve(values, preset, options, parse_settings(settings or ()))
    describe(config.data.name)  # a name that does not exist is told before anything slow begins
    return config


def number_of_workers(text: str) -> int | Literal["auto"]:
    """Returns the value of ``--workers``."""
    if text == "auto":
        return "auto"
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ConfigError(f"--workers must be a whole number of at least 1 or auto, got {text!r}")
