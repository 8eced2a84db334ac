"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from feddm.config.code import FORM
from feddm.config.registry import algorithm_names, mechanism_names
from feddm.config.resolve import OPTIONS, load_toml, parse_settings, qualified, resolve
from feddm.config.schema import Config, GuaranteedSettings, Section
from feddm.data.catalog import check_folder_used, described
from feddm.data.facts import named_data
from feddm.errors import ConfigError

Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto", help="Worker processes for clients; results do not depend on it."
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets; else FEDDM_DATA, else the cache folder."),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="Your own data: an image folder, a .npz file, or hf:NAME."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Show JSON, for other programs.")]


def _option(name: str, kind: Any, metavar: str | None = None) -> Any:
    """Returns an option whose help is the description of the key that it sets."""
    *path, key = OPTIONS[name].split(".")
    section: type[Section] = Config
    for part in path:
        declared = type(section.model_fields[part].default)
        section = GuaranteedSettings if part == "privacy" else declared
    text = section.model_fields[key].description
    return Annotated[kind | None, typer.Option(metavar=metavar, help=text)]


# What makes up a configuration, in the order of the help text. Help comes from where a key is
# declared; the algorithms' own keys are declared in modules that are slow to import.
CONFIGURATION: dict[str, Any] = {
    "config": Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="A TOML file; `feddm config` makes one."),
    ],
    "algorithm": Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(algorithm_names())}, or your own: {FORM}."),
    ],
    "dataset": _option("dataset", str),
    "data": Data,
    "clients": _option("clients", int),
    "alpha": _option("alpha", float),
    "rounds": _option("rounds", int),
    "participation": _option("participation", float),
    "model": _option("model", str),
    "width": _option("width", int),
    "ipc": Annotated[int | None, typer.Option(help="Images sent per class.")],
    "seed": _option("seed", int),
    "privacy": Annotated[
        str | None,
        typer.Option(help=f"Privacy mechanism: {', '.join(mechanism_names())} (no guarantee)."),
    ],
    "epsilon": _option("epsilon", float),
    "delta": _option("delta", float),
    "ledger": _option("ledger", str, metavar="DIR|new"),
    "workers": Workers,
    "device": _option("device", str),
    "compile": _option("compile", str),
    "data_dir": DataDir,
    "preset": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="quick: minutes; private: with epsilon 4; paper: days on a CPU. Overrides a "
            "file; options override it.",
        ),
    ],
    "settings": Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other value, as server.lr=0.1."),
    ],
}


@dataclass(frozen=True)
class Given:
    """What stands on the command line about the configuration."""

    file: Mapping[str, Any] | None
    preset: str | None
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    facts: Mapping[str, Any] | None = None  # about your own data
    code: Mapping[str, str] = field(default_factory=dict)  # algorithms of your own, by name

    def with_preset(self, preset: str) -> Given:
        """Returns the same with another ``--preset``."""
        return dataclasses.replace(self, preset=preset)

    def with_settings(self, settings: Mapping[str, Any]) -> Given:
        """Returns the same with more ``--set``."""
        return dataclasses.replace(self, settings={**self.settings, **settings})

    def with_code(self, code: Mapping[str, str]) -> Given:
        """Returns the same with algorithms of your own, by their short names."""
        return dataclasses.replace(self, code=code)

    def keys(self) -> set[str]:
        """Returns the full keys that options and ``--set`` give."""
        named = {OPTIONS[name] for name, value in self.options.items() if value is not None}
        return named | {qualified(key) for key in self.settings}

    def refuse(self, key: str, why: str) -> None:
        """Raises `ConfigError` if a key is set that the command decides."""
        if key in self.keys():
            raise ConfigError(f"{key.removesuffix('.name')} cannot be set here: {why}")

    def resolved(
        self, special: Mapping[str, Any] | None = None, *, shared: bool = False, **options: Any
    ) -> Config:
        """Returns the complete configuration.

        Args:
            special: Values of one more file, over the first and over ``--preset``.
            shared: Whether settings that the algorithm does not have are left out.
            options: Options of the command's own, over those that were given.
        """
        config = resolve(
            self.file,
            self.preset,
            {**self.options, **options},
            self.settings,
            special=special,
            shared=shared,
            facts=self.facts,
        )
        described(config.data)  # a name that does not exist is told before anything slow
        check_folder_used(config.data, self.options.get("data_dir"))
        return config


def configured(*, without: Collection[str] = ()) -> Callable[..., Callable[..., None]]:
    """Gives a command all options of a configuration, which it gets as one `Given`.

    Args:
        without: Names in `CONFIGURATION` that make no sense for the command.
    """
    shared = {name: kind for name, kind in CONFIGURATION.items() if name not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        @functools.wraps(command)
        def with_options(**values: Any) -> None:
            chosen = {name: values.pop(name) for name in shared}
            command(_given(**chosen), **values)

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            *(
                inspect.Parameter(n, keyword, default=None, annotation=k)
                for n, k in shared.items()
            ),
            *(parameter.replace(kind=keyword) for parameter in own),
        ]
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate


def _given(
    config: Path | None = None,
    preset: str | None = None,
    settings: list[str] | None = None,
    workers: str | None = None,
    data: str | None = None,
    data_dir: Path | None = None,
    ledger: str | None = None,
    **options: Any,
) -> Given:
    assert set(options) <= set(OPTIONS)
    chosen = parse_settings(settings or ())
    if workers is not None:
        options["workers"] = number_of_workers(workers)
    if data_dir is not None:
        options["data_dir"] = str(data_dir.absolute())  # a run may be resumed from elsewhere
    if ledger is not None:
        options["ledger"] = ledger if ledger == "new" else str(Path(ledger).absolute())
    file = None if config is None else load_toml(config)
    options["data"], facts = named_data(data, file, chosen)
    return Given(file, preset, options, chosen, facts)


def number_of_workers(text: str) -> int | Literal["auto"]:
    """Returns the value of ``--workers``."""
    if text == "auto":
        return "auto"
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ConfigError(f"--workers must be a whole number of at least 1 or auto, got {text!r}")


def listed(option: str, text: str, kind: Callable[[str], Any], what: str) -> list[Any]:
    """Returns the values of an option that takes several with commas between."""
    try:
        values = [kind(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        values = []
    if not values or len(set(values)) < len(values):
        raise ConfigError(f"{option} takes different {what}, comma-separated, got {text!r}")
    return values
