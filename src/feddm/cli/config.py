"""``feddm config``."""

from __future__ import annotations

from typing import Annotated

import typer

from feddm.cli import options

EXAMPLES = """\
Examples: [bold]feddm config --dataset cifar10 --preset paper > paper.toml[/bold]

[bold]feddm config --schema[/bold]"""


def config(
    config: options.ConfigFile = None,
    algorithm: options.Algorithm = None,
    dataset: options.Dataset = None,
    clients: options.Clients = None,
    alpha: options.Alpha = None,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    width: options.Width = None,
    ipc: options.Ipc = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    data_dir: options.DataDir = None,
    preset: options.Preset = None,
    settings: options.Settings = None,
    json: options.Json = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Show the JSON schema of all keys instead.")
    ] = False,
) -> None:
    """Show what a run with these options would use, as TOML.

    Later wins: the file, --preset, the options, --set.
    """
    if schema:
        from feddm.config import schema as json_schema

        print(json_schema())
        return
    resolved = options.resolved(
        config,
        preset,
        settings,
        algorithm=algorithm,
        dataset=dataset,
        clients=clients,
        alpha=alpha,
        rounds=rounds,
        participation=participation,
        width=width,
        ipc=ipc,
        seed=seed,
        workers=workers,
        data_dir=data_dir,
    )
    print(resolved.model_dump_json(indent=2) if json else resolved.to_toml(), end="")
    if json:
        print()
