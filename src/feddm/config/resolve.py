"""Values in, a complete `Config` or a `ConfigError` out.

Layers, later wins: the preset named in a file, the file, ``--preset``, options, ``--set``. What
comes out is complete: written as TOML and read again it gives the same run, whatever the
presets become.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from feddm.config.code import absolute, is_reference
from feddm.config.messages import section_of, sentence
from feddm.config.presets import PRESETS, PRIVATE_EPSILON, merged, preset_values
from feddm.config.registry import AlgorithmType, find_algorithm, find_mechanism
from feddm.config.schema import AlgorithmSettings, Config, Values
from feddm.errors import ConfigError, UnfitAlgorithmError

# Options that people change often, and the keys that they set.
OPTIONS = {
    "algorithm": "algorithm.name",
    "dataset": "data.name",
    "data": "data.path",
    "clients": "partition.clients",
    "alpha": "partition.alpha",
    "rounds": "rounds",
    "participation": "participation",
    "width": "model.width",
    "model": "model.name",
    "ipc": "algorithm.images_per_class",
    "seed": "seed",
    "workers": "runtime.workers",
    "device": "runtime.device",
    "compile": "runtime.compile",
    "data_dir": "data.dir",
    "privacy": "privacy.mechanism",
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "ledger": "privacy.ledger",
}

# Keys that may name code of your own.
CODE = {"algorithm", "algorithm.name", "model.name"}

# Tables of the flat form that earlier versions wrote.
_FLAT = ("synthesis", "server", "local")
# What a preset decides: given beside a file, it replaces these.
_PRESET = ("rounds", "participation", "partition", "model", "augmentation", "algorithm")


def resolve(
    file: Values | None = None,
    preset: str | None = None,
    options: Values | None = None,
    settings: Values | None = None,
    *,
    special: Values | None = None,
    shared: bool = False,
    facts: Values | None = None,
) -> Config:
    """Returns the complete configuration.

    Args:
        file: Values from a TOML file. If it is for another algorithm or mechanism, only what
            this one has as well counts.
        preset: Value of ``--preset``.
        options: Values of the other options by their names in `OPTIONS`; ``None`` is not given.
        settings: Values of ``--set`` by their keys, as ``{"partition.clients": 10}``. Keys that
            are none of the configuration's are the algorithm's: ``server.lr`` is
            ``algorithm.server.lr``.
        special: Values of a file for one run of several; over ``--preset``, under options.
        shared: Whether options and settings are for several algorithms, so that each takes what
            it has.
        facts: Values that follow from your own data; over presets, under all that is said.
    """
    chosen = {OPTIONS[name]: each for name, each in (options or {}).items() if each is not None}
    chosen |= settings or {}
    for key in CODE & set(chosen):
        chosen[key] = absolute(chosen[key])
    line = nested({qualified(key): value for key, value in chosen.items()})
    file, special = (_absolute(tables(values or {})) for values in (file, special))
    over = merged(special, line)
    said = merged(file, over)
    given = merged(facts or {}, said)

    name = over.get("preset", given.get("preset", "quick") if preset is None else preset)
    if name not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    asked = _privacy(given)
    unnamed = asked.get("mechanism") not in ("none", "paper")
    if name == "private" and unnamed and not {"epsilon", "noise_multiplier"} & {*asked}:
        over = merged({"privacy": {"epsilon": PRIVATE_EPSILON}}, over)
        given = merged(file, over)
    dataset = _text(given, "data", "name", "digits")
    algorithm = _text(given, "algorithm", "name", "feddm")
    mechanism = _mechanism(file, over, find_algorithm(algorithm))
    if mechanism == "surrogate" and "mechanism" not in asked and "model" in (facts or {}):
        mechanism = "features"  # of vectors there is no scattering
    kind = config_type(algorithm, mechanism)
    if file:
        file = _fitting(file, kind, _type_of(file))
    if shared:
        over = merged(special, _known(line, kind))

    # What decides the type of the configuration, whatever else is said.
    least: dict[str, Any] = {"algorithm": {"name": algorithm}}
    if mechanism is not None:
        least["privacy"] = {"mechanism": mechanism}
    privacy = _privacy(given)
    under = _preset(name, dataset, _text(given, "model", "name", ""), privacy, kind, least)
    # A preset that is given beside a file lies over it; one inside the file lies under it.
    values = merged(file, under) if preset else merged(under, file)
    if facts:
        open_ = flat(public_facts(facts, said) if mechanism else facts)
        told = {qualified(key) for key in flat(file)}
        unsaid = {key: value for key, value in open_.items() if key not in told}
        values = merged(values, _known(nested(unsaid), kind))
    values = merged(values, over)
    if mechanism is None:
        values.pop("privacy", None)
    return _validated(kind, merged(values, {**least, "preset": name}))


def written(values: Values, *, run_code: bool = True) -> Config:
    """Returns the configuration that a run wrote down, perhaps with an earlier version.

    All settings were written. One that is missing did not exist yet, and has its default, which
    is the paper's, whatever the run's preset says about it today.

    Args:
        values: What was written.
        run_code: Whether an algorithm of your own is loaded, which runs its code. Without it
            its settings are taken as they are written, which is enough to show them.
    """
    values = tables(values)
    algorithm = _text(values, "algorithm", "name", "feddm")
    if is_reference(algorithm) and not run_code:
        # Which mechanism it has was written down, too, and so does not depend on the algorithm.
        mechanism = _mechanism({}, values, find_algorithm("feddm"))
        return _validated(_shown_type(mechanism), values)
    mechanism = _mechanism({}, values, find_algorithm(algorithm))
    return _validated(config_type(algorithm, mechanism), values)


def config_type(algorithm: str, mechanism: str | None) -> type[Config]:
    """Returns the configuration's type for an algorithm under a mechanism, or without one."""
    if is_reference(algorithm):  # code of your own may have changed since
        return _config_type.__wrapped__(algorithm, mechanism)
    return _config_type(algorithm, mechanism)


@functools.cache
def _config_type(algorithm: str, mechanism: str | None) -> type[Config]:
    privacy: Any = (None, None) if mechanism is None else (find_mechanism(mechanism), ...)
    settings = find_algorithm(algorithm).settings_type(mechanism)
    return create_model(
        "Config",
        __base__=Config,
        __doc__=f"Everything that decides what a run of {algorithm} computes.",
        algorithm=(settings, ...),
        privacy=privacy,
    )


@functools.cache
def _shown_type(mechanism: str | None) -> type[Config]:
    """Returns the type of a configuration whose algorithm's settings nobody checks."""

    class Shown(AlgorithmSettings):
        model_config = ConfigDict(extra="allow")

    privacy: Any = (None, None) if mechanism is None else (find_mechanism(mechanism), ...)
    return create_model("Config", __base__=Config, algorithm=(Shown, ...), privacy=privacy)


def schema(config: Config) -> str:
    """Returns the JSON schema of a configuration with this algorithm and mechanism."""
    mechanism = None if config.privacy is None else config.privacy.mechanism
    kind = config_type(config.algorithm.name, mechanism)
    return json.dumps(kind.model_json_schema(), indent=2)


def qualified(key: str) -> str:
    """Returns the full key of a setting: keys of the algorithm need not name it.

    >>> qualified("server.lr"), qualified("partition.alpha"), qualified("algorithm")
    ('algorithm.server.lr', 'partition.alpha', 'algorithm.name')
    """
    head = key.partition(".")[0]
    if key == "algorithm":
        return "algorithm.name"
    return key if head in Config.model_fields else f"algorithm.{key}"


def tables(values: Values) -> dict[str, Any]:
    """Returns the values of a file, with an algorithm that is only named as a table."""
    flat_form = [f"[{name}]" for name in _FLAT if name in values]
    if flat_form:
        raise ConfigError(
            f"{', '.join(flat_form)} at the top level is the form of an earlier version of "
            "feddm: an algorithm's settings are in [algorithm] now; `feddm config` writes such "
            "a file"
        )
    algorithm = values.get("algorithm")
    if isinstance(algorithm, str):
        return {**values, "algorithm": {"name": algorithm}}
    if not isinstance(algorithm, Mapping | None):
        raise ConfigError(f"algorithm must be a name or a section, got {algorithm!r}")
    return dict(values)


def _absolute(values: dict[str, Any]) -> dict[str, Any]:
    """Returns values with the same code of your own, wherever they are used."""
    for section in ("algorithm", "model"):
        there = values.get(section)
        if isinstance(there, Mapping) and "name" in there:
            values = values | {section: {**there, "name": absolute(there["name"])}}
    return values


def _mechanism(file: Values, over: Values, algorithm: type[AlgorithmType]) -> str | None:
    """Returns the mechanism: the last that was named, or the usual one if there is a budget.

    Args:
        file: Values of a file.
        over: Values over it.
        algorithm: What is run.
    """
    ours, theirs = _privacy(over), _privacy(file)
    both = {**theirs, **ours}
    if theirs.get("mechanism") == "none" and "epsilon" in ours and "mechanism" not in ours:
        both.pop("mechanism")  # a budget on the command line asks for one
    if both.get("mechanism") == "none":
        idle = sorted({*ours, *(() if "mechanism" in ours else theirs)} - {"mechanism"})
        if idle:
            raise ConfigError(f"privacy.{idle[0]} does nothing with the mechanism none")
        return None
    if "mechanism" in both:
        return str(both["mechanism"])
    if both.get("epsilon"):
        return algorithm.default_mechanism()
    if "epsilon" in both:
        raise ConfigError("--epsilon must be above 0; for a run without privacy, leave it out")
    if both:
        raise ConfigError(
            f"privacy.{next(iter(both))} does nothing without a budget or a mechanism; give "
            "--epsilon or --privacy"
        )
    return None


def public_facts(facts: Values, said: Values) -> dict[str, Any]:
    """Returns what follows from your own data without what would tell about single examples.

    Raises:
        ConfigError: If that is needed and was not said.
    """
    own = facts["data"]["own"]
    if "mean" in own and not {"mean", "std"} <= set(said.get("data", {}).get("own", {})):
        raise ConfigError(
            "data.own.mean and data.own.std are missing: under privacy they are public "
            "constants, because what is computed from the data would tell about them"
        )
    hidden = ("examples", "mean", "std", "measured")
    open_ = {key: value for key, value in own.items() if key not in hidden}
    return {**facts, "data": {**facts["data"], "own": open_}}


def _privacy(values: Values) -> Values:
    privacy = values.get("privacy") or {}
    if not isinstance(privacy, Mapping):
        raise ConfigError(f"privacy must be a section, got {privacy!r}")
    return privacy


def _preset(
    preset: str,
    dataset: str,
    model: str,
    privacy: Values,
    kind: type[Config],
    least: Values,
) -> dict[str, Any]:
    """Returns all values that a preset decides, whether it names them or they are defaults."""
    settings = section_of(kind, ["algorithm"])
    assert settings is not None and issubclass(settings, AlgorithmSettings)
    own = _known(settings.preset(preset, dataset), settings)
    values = merged(preset_values(preset, dataset, model), settings.around(dataset, privacy))
    values = merged(values, {"algorithm": own})
    complete = _parsed(kind, merged(values, least))
    return complete.model_dump(include=set(_PRESET))


def _known(values: Values, kind: type[BaseModel]) -> dict[str, Any]:
    """Returns the values whose keys a section has."""
    known: dict[str, Any] = {}
    for key, value in values.items():
        below = section_of(kind, [key])
        if key in kind.model_fields:
            both = below is not None and isinstance(value, Mapping)
            known[key] = _known(value, below) if both else value  # type: ignore[arg-type]
    return known


def _type_of(file: Values) -> type[Config]:
    """Returns the type of the configuration that a file describes on its own."""
    algorithm = _text(file, "algorithm", "name", "feddm")
    mechanism = _mechanism({}, file, find_algorithm(algorithm))
    try:
        return config_type(algorithm, mechanism)
    except UnfitAlgorithmError:  # what is given beside the file may mend that
        return config_type(algorithm, None)


def _fitting(
    values: Values, kind: type[BaseModel], own: type[BaseModel] | None
) -> dict[str, Any]:
    """Returns the values without those whose keys only their own section has.

    Keys that neither section has stay, and are told as mistakes.
    """
    fitting: dict[str, Any] = {}
    for key, value in values.items():
        below = section_of(kind, [key])
        if key in kind.model_fields:
            both = below is not None and isinstance(value, Mapping)
            theirs = None if own is None else section_of(own, [key])
            fitting[key] = _fitting(value, below, theirs) if both else value  # type: ignore[arg-type]
        elif own is None or key not in own.model_fields:
            fitting[key] = value
    return fitting


def _validated(kind: type[Config], values: Values) -> Config:
    config = _parsed(kind, values)
    _check(config)
    # Of the plain type, which compares and pickles.
    return Config.model_construct(
        **{name: getattr(config, name) for name in Config.model_fields}
    )


def _parsed(kind: type[Config], values: Values) -> Config:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(sentence(error.errors()[0], values, kind)) from None


def _check(config: Config) -> None:
    """Raises `ConfigError` where values exclude each other that are valid on their own."""
    privacy = config.privacy
    if privacy is not None and not privacy.budget and not privacy.noise_multiplier:
        raise ConfigError(
            "privacy needs a budget or the noise: --epsilon, or --set privacy.noise_multiplier"
        )
    if config.guaranteed and config.data.own.measured:
        raise ConfigError(
            "data.own.measured says that data.own.examples, mean and std were measured on the "
            "data, which would tell about them; set public ones, and data.own.measured = false"
        )
    config.algorithm.check(privacy)
    _check_classes(config.data.own.classes)


def _text(values: Values, section: str, key: str, default: str) -> str:
    found = values.get(section)
    return str(found.get(key, default)) if isinstance(found, Mapping) else default


def _check_classes(names: tuple[str, ...]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"data.own.classes must be all different, got {twice[0]!r} twice")
    if len(names) == 1:
        raise ConfigError(f"data.own.classes must be at least two, got {names[0]!r} alone")


def parse_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """Returns ``--set`` values by their keys; what is not TOML is a text.

    >>> parse_settings(["server.lr=0.1", "synthesis.networks=fresh"])
    {'server.lr': 0.1, 'synthesis.networks': 'fresh'}
    """
    settings = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value, got {assignment!r}")
        settings[key.strip()] = toml_value(value.strip())
    return settings


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values by their dotted keys as sections.

    >>> nested({"seed": 1, "server.lr": 0.1})
    {'seed': 1, 'server': {'lr': 0.1}}
    """
    values: dict[str, Any] = {}
    for key, value in settings.items():
        _assign(values, key, value)
    return values


def flat(sections: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns sections as values by their dotted keys.

    >>> flat({"seed": 1, "server": {"lr": 0.1}})
    {'seed': 1, 'server.lr': 0.1}
    """
    values: dict[str, Any] = {}
    for key, value in sections.items():
        below = isinstance(value, Mapping)
        values |= flat(value, f"{prefix}{key}.") if below else {f"{prefix}{key}": value}
    return values


def load_toml(path: Path) -> dict[str, Any]:
    """Returns the values of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        below = values.setdefault(table, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{key} cannot be set: {table} is a value, not a section")
        values = below
    there = values.get(last)
    both = isinstance(there, Mapping) and isinstance(value, Mapping)
    values[last] = merged(there, value) if both else value  # type: ignore[arg-type]


def toml_value(text: str) -> Any:
    """Returns the text as a TOML value, or as a plain text if it is none.

    >>> toml_value("true"), toml_value("fresh"), toml_value(".5")  # which TOML would refuse
    (True, 'fresh', 0.5)
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
