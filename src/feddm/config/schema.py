"""The configuration: frozen models, values in, `ConfigError` out.

Layers, later wins: the preset named in a file, the file, ``--preset``, options, ``--set``. What
comes out is complete: written as TOML and read again it gives the same run, whatever the
presets become.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from feddm.config import privacy_rules
from feddm.config.messages import sentence
from feddm.config.presets import PRESETS, merged, preset_values
from feddm.errors import ConfigError

# Options that people change often, and the keys that they set.
OPTIONS = {
    "algorithm": "algorithm",
    "dataset": "data.name",
    "clients": "partition.clients",
    "alpha": "partition.alpha",
    "rounds": "rounds",
    "participation": "participation",
    "width": "model.width",
    "ipc": "synthesis.images_per_class",
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

Algorithm = Literal["feddm", "fedavg", "fedprox", "fednova", "scaffold", "real"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
Mechanism = Literal["none", "features", "gradients", "paper"]

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of the configuration: immutable, complete, and with no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class OwnDataConfig(Section):
    """What is known of data that only nodes have, each its own; see docs/flower.md."""

    classes: tuple[str, ...] = Field(
        (), strict=False, description="Names of the classes; none: a known data set."
    )
    shape: tuple[PositiveInt, PositiveInt, PositiveInt] = Field(
        (1, 28, 28), strict=False, description="Channels, height and width of an image."
    )
    examples: NonNegativeInt = Field(
        0, description="About how many all nodes have; public, and needed for privacy."
    )
    mean: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="Taken off every pixel, which are from 0 to 1."
    )
    std: PositiveFloat = Field(0.25, description="Then every pixel is divided by it.")
    test: str = Field(
        "", description="The server's test set, if any: an image folder or a .npz file."
    )


class DataConfig(Section):
    """Which data set is learned."""

    name: str = Field(description="Name of the data set; `feddm data list` shows them.")
    dir: str = Field("", description="Its folder; empty: FEDDM_DATA or the cache folder.")
    validation: Fraction = Field(
        0.0,
        description="Share of the training examples that is held out and evaluated on instead "
        "of the test set; 0 evaluates on the test set.",
    )
    holdout: Fraction = Field(
        0.0,
        description="Share of its examples by which each node judges the model; 0: the server "
        "has a test set.",
    )
    own: OwnDataConfig = OwnDataConfig()


class PartitionConfig(Section):
    """How the training set is split over clients."""

    scheme: Literal["dirichlet", "dirichlet-plain", "iid", "classes"] = Field(
        description="dirichlet: as NIID-Bench does it; dirichlet-plain: without its balancing."
    )
    clients: PositiveInt = Field(description="Number of clients.")
    alpha: PositiveFloat = Field(description="Dirichlet concentration; small is skewed.")
    min_examples: PositiveInt = Field(
        10, description="Dirichlet splits are drawn again until every client has so many."
    )
    classes_per_client: PositiveInt = Field(2, description="For the scheme `classes`.")


class ModelConfig(Section):
    """What is trained."""

    name: Literal["convnet", "resnet18"] = Field(description="Architecture.")
    width: PositiveInt = Field(description="Channels of the ConvNet.")
    depth: Annotated[int, Field(ge=1, le=6)] = Field(description="Blocks of the ConvNet.")
    norm: Literal["instance", "group"] = Field(description="Normalization layers.")


class SynthesisConfig(Section):
    """How a client of FedDM learns its synthetic images."""

    images_per_class: PositiveInt = Field(description="Synthetic images a class (ipc).")
    steps: NonNegativeInt = Field(description="Steps on the images (T); 0 sends the start.")
    lr: PositiveFloat = Field(description="Learning rate on the images (eta_c).")
    momentum: Fraction = Field(description="Momentum on the images.")
    networks: PositiveInt | Literal["fresh"] = Field(
        description="Networks sampled once and used in turn; fresh: a new one every step."
    )
    real_batch: PositiveInt | Literal["all"] = Field(
        description="Real images of a class that a network sees."
    )
    radius: NonNegativeFloat = Field(description="Distance of the networks from w_r (rho).")
    start: Literal["real", "noise"] = Field(description="First images: real ones, or noise.")
    distance: Literal["squared", "relative"] = Field(
        description="What matching makes smaller. squared: the paper's. relative: that over "
        "the squared length of the real means, so that steps do not grow with the weights; it "
        "needs a larger lr."
    )
    coding: Literal["float32", "float16", "uint8"] = Field(description="How images travel.")
    min_class_size: PositiveInt = Field(
        description="A client leaves out a class with fewer real images."
    )
    augment: bool = Field(description="Match randomly changed images.")


class ServerConfig(Section):
    """How the server trains on the union of the synthetic sets."""

    lr: PositiveFloat = Field(description="Learning rate (eta_s).")
    epochs: PositiveInt = Field(description="Passes over the union.")
    batch_size: PositiveInt = Field(description="Synthetic images a step.")
    momentum: Fraction = Field(description="Momentum of SGD.")
    weight_decay: NonNegativeFloat = Field(description="Weight decay of SGD.")
    schedule: Literal["constant", "cosine"] = Field(
        description="cosine: the learning rate falls to 0 within a round."
    )
    radius: PositiveFloat = Field(description="The weights stay so near to w_r (rho).")
    weighting: Literal["synthetic", "examples"] = Field(
        description="synthetic: every image counts the same; examples: by what it stands for."
    )
    augment: bool = Field(description="Train on randomly changed images.")
    replay: NonNegativeInt = Field(description="Train on sets of so many rounds before, too.")


class LocalConfig(Section):
    """How a client of FedAvg, FedProx, FedNova or SCAFFOLD trains on its own data."""

    lr: PositiveFloat = Field(description="Learning rate.")
    epochs: PositiveInt = Field(description="Passes over the client's data.")
    batch_size: PositiveInt = Field(description="Examples a step.")
    momentum: Fraction = Field(description="Momentum of SGD; SCAFFOLD has none.")
    weight_decay: NonNegativeFloat = Field(description="Weight decay of SGD.")
    mu: NonNegativeFloat = Field(description="FedProx: weight of the proximal term.")
    server_lr: PositiveFloat = Field(description="SCAFFOLD: the server's learning rate.")
    augment: bool = Field(description="Train on randomly changed images.")


class AugmentationConfig(Section):
    """How images are changed at random where that is asked for; 0 switches a change off."""

    flip: bool = Field(description="Mirror left and right; not for digits.")
    shift: Fraction = Field(description="By up to this share of the side.")
    scale: NonNegativeFloat = Field(description="Sides longer or shorter by up to this share.")
    rotate: NonNegativeFloat = Field(description="By up to so many degrees.")
    brightness: NonNegativeFloat = Field(description="Up to so much more or less a pixel.")
    saturation: NonNegativeFloat = Field(description="Colors stronger or weaker, as a share.")
    contrast: NonNegativeFloat = Field(description="Contrast stronger or weaker, as a share.")
    cutout: Fraction = Field(description="Blank out a square with this share of the side.")


class PrivacyConfig(Section):
    """What protects the clients' examples, and how much of it."""

    mechanism: Mechanism = Field(
        "none", description="features or gradients; paper: its noise, which gives no guarantee."
    )
    epsilon: NonNegativeFloat = Field(
        0.0, description="Budget of all rounds together; 0: the noise is given instead."
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(1e-5, description="Of the guarantee.")
    noise_multiplier: NonNegativeFloat = Field(
        0.0, description="Noise over what one unit can change; 0: from epsilon."
    )
    clip: Annotated[float, Field(ge=1e-6, le=1e6)] = Field(
        1.0, description="Most that an example adds; for features times sqrt(their number)."
    )
    projection: NonNegativeInt = Field(
        64, description="Numbers to which an embedding is projected; 0: all of them."
    )
    learn: Literal["client", "server"] = Field(
        "client", description="Where images are learned from the noisy sums of features."
    )
    steps: PositiveInt = Field(50, description="Noisy gradient steps of a client in a round.")
    sample_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="Probability of an example to be in the sample of a step."
    )
    unit: Literal["example", "group", "client"] = Field(
        "example", description="What is protected as a whole: group is such as a patient."
    )
    ledger: str = Field(
        "", description="Folder of the ledgers; else one for all runs; new: for this run alone."
    )
    test_secret: str = Field(
        "", description="Fixed secrets, for tests: the run is then not private."
    )

    @property
    def guaranteed(self) -> bool:
        """Whether the mechanism gives a guarantee."""
        return self.mechanism in ("features", "gradients")

    @property
    def sends_sums(self) -> bool:
        """Whether clients upload noisy sums, and no images."""
        return self.mechanism == "features" and self.learn == "server"


class RuntimeConfig(Section):
    """Where and how the work is done; all but the workers change bits of results."""

    workers: PositiveInt | Literal["auto"] = Field(
        "auto", description="Worker processes for clients; auto: one for each core."
    )
    server_threads: PositiveInt = Field(
        1, description="Threads of the server's work; another number gives other bits."
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="Where models are computed; auto: a GPU if torch finds one."
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto", description="torch.compile; auto: if a run is long enough to pay for it."
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Type of the matrix products, by torch's autocast."
    )


class Config(Section):
    """Everything that decides what a run computes."""

    algorithm: Algorithm = Field("feddm", description="What clients and server do.")
    preset: Literal["quick", "paper"] = Field("quick", description="Values under all others.")
    seed: NonNegativeInt = Field(0, description="Everything random comes from it.")
    rounds: PositiveInt = Field(description="Rounds of communication.")
    participation: Annotated[float, Field(gt=0, le=1)] = Field(
        description="Share of the clients that takes part in a round."
    )
    min_clients: PositiveInt | Literal["all"] = Field(
        "all", description="A round counts if so many of its clients deliver."
    )
    data: DataConfig
    partition: PartitionConfig
    model: ModelConfig
    synthesis: SynthesisConfig
    server: ServerConfig
    local: LocalConfig
    augmentation: AugmentationConfig
    privacy: PrivacyConfig = PrivacyConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def to_toml(self) -> str:
        """Returns the whole configuration as TOML."""
        return tomli_w.dumps(self.model_dump())


def resolve(
    file: Mapping[str, Any] | None = None,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    special: Mapping[str, Any] | None = None,
) -> Config:
    """Returns the complete configuration.

    Args:
        file: Values from a TOML file.
        preset: Value of ``--preset``.
        options: Values of the other options by their names in `OPTIONS`; ``None`` is not given.
        settings: Values of ``--set`` by their keys, as ``{"partition.clients": 10}``.
        special: Values of a file for one run of several; over ``--preset``, under options.
    """
    chosen = {
        OPTIONS[name]: value for name, value in (options or {}).items() if value is not None
    }
    over = merged(special or {}, nested(chosen | dict(settings or {})))

    given = merged(file or {}, over)
    name = over.get("preset", given.get("preset", "quick") if preset is None else preset)
    if name not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    dataset = _name_in(given.get("data"), "digits")
    algorithm = str(given.get("algorithm", "feddm"))
    mechanism = privacy_rules.mechanism_of(given)
    plain = preset_values(name, algorithm, dataset, _name_in(given.get("model"), ""))
    under = merged(plain, privacy_rules.private_values(mechanism))
    under["data"] = {"name": dataset}
    # A preset that is asked for beside a file lies over it; one inside the file lies under it.
    values = merged(merged(file or {}, under) if preset else merged(under, file or {}), over)
    values = privacy_rules.settled(values, plain, algorithm, mechanism)
    try:
        config = Config.model_validate(values | {"preset": name})
    except ValidationError as error:
        raise ConfigError(sentence(error.errors()[0], values, Config)) from None
    privacy_rules.check_asked(given)
    privacy_rules.check(config.model_dump())
    _check_classes(config.data.own.classes)
    if config.algorithm == "scaffold" and config.local.momentum:
        raise ConfigError(
            f"local.momentum must be 0 for scaffold, got {config.local.momentum}: "
            "momentum would count a correction many times"
        )
    return config


def written(values: Mapping[str, Any]) -> Config:
    """Returns the configuration that a run wrote down, perhaps with an earlier version.

    All settings were written. One that is missing did not exist yet: it was off, as the paper
    has it, whatever the run's preset says about it today.
    """
    names = _name_in(values.get("data"), "digits"), _name_in(values.get("model"), "")
    off = preset_values("paper", str(values.get("algorithm", "feddm")), *names)
    return resolve(merged(off, values))


def _check_classes(names: tuple[str, ...]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"data.own.classes must be all different, got {twice[0]!r} twice")
    if len(names) == 1:
        raise ConfigError(f"data.own.classes must be at least two, got {names[0]!r} alone")


def _name_in(section: Any, default: str) -> str:
    return str(section.get("name", default)) if isinstance(section, Mapping) else default


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


def schema() -> str:
    """Returns the JSON schema of the configuration."""
    return json.dumps(Config.model_json_schema(), indent=2)


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        below = values.setdefault(table, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{key} cannot be set: {table} is a value, not a section")
        values = below
    values[last] = value


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
