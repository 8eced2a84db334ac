"""``feddm config``."""

from __future__ import annotations

from typing import Annotated

import typer

from feddm.cli import options

EXAMPLES = """\
Examples:

- `feddm config --dataset cifar10 --preset paper > paper.toml`

- `feddm config --schema`"""


@options.configured()
def config(
    given: options.Given,
    json: options.Json = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Show the JSON schema of its keys instead.")
    ] = False,
) -> None:
    """Show what a run with these options would use, as TOML.

    Later wins: the file, --preset, the options, --set.
    """
    if schema:
        from feddm.config.resolve import schema as json_schema

        print(json_schema(given.resolved()))
    elif json:
        print(given.resolved().model_dump_json(indent=2, exclude_none=True))
    else:
        print(given.resolved().to_toml(), end="")
