"""What can be configured: frozen sections, each key declared once, with its help text.

Defaults are the paper's values. The settings of an algorithm are declared in its own file, and
so are those of a privacy mechanism: here stands only what all of them share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
)

Fraction = Annotated[float, Field(ge=0, lt=1)]
Reference = Annotated[str, Field(pattern=".:.")]  # code of your own; see `config.code`
Values = Mapping[str, Any]


class Section(BaseModel):
    """A part of the configuration: immutable, complete, and with no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class OwnDataConfig(Section):
    """What is known of your own data; see docs/own.md, and docs/flower.md for nodes."""

    classes: tuple[str, ...] = Field(
        (), strict=False, description="Names of the classes; none: a known data set."
    )
    shape: tuple[PositiveInt, PositiveInt, PositiveInt] = Field(
        (1, 28, 28), strict=False, description="Channels, height and width of an image."
    )
    examples: NonNegativeInt = Field(
        0, description="About how many examples all nodes have; public, needed for privacy."
    )
    measured: bool = Field(
        False,
        description="Whether examples, mean and std were measured on the data, and so are not "
        "public.",
    )
    values: Literal["pixels", "numbers"] = Field(
        "pixels", description="pixels: from 0 to 255; numbers: any, as in tables."
    )
    mean: float | Annotated[tuple[float, ...], Field(strict=False)] = Field(
        0.5,
        description="Mean subtracted from each pixel after scaling to [0, 1], or from each "
        "number; one per channel, or one for all.",
    )
    std: PositiveFloat | Annotated[tuple[PositiveFloat, ...], Field(strict=False)] = Field(
        0.25, description="Standard deviation that is then divided by."
    )
    fit: Literal["stretch", "crop", "pad"] = Field(
        "stretch", description="How an image of another size is made to fit."
    )
    white: PositiveInt = Field(
        65535, description="Largest value of 16-bit images; 4095 if they have 12 bits."
    )
    group: str = Field("group", description="Array or column that says whom it is about.")
    client: str = Field("client", description="Array or column that says who has it.")
    test: str = Field("", description="A test set of its own: an image folder or a .npz file.")


class DataConfig(Section):
    """The data set."""

    name: str = Field("digits", description="Name of the data set; see `feddm data list`.")
    dir: str = Field("", description="Its folder; default: FEDDM_DATA or the cache folder.")
    path: str = Field(
        "", description="Your own data: an image folder, a .npz file, or hf:NAME."
    )
    validation: Fraction = Field(
        0.0,
        description="Share of the training examples to hold out and evaluate on instead of the "
        "test set; 0 evaluates on the test set.",
    )
    holdout: Fraction = Field(
        0.0,
        description="Share of its own examples that a client holds out to evaluate the model; "
        "0: there is a test set.",
    )
    own: OwnDataConfig = OwnDataConfig()


class PartitionConfig(Section):
    """How the training set is split over clients."""

    scheme: Literal["dirichlet", "dirichlet-plain", "iid", "classes", "given"] = Field(
        "dirichlet",
        description="dirichlet: balanced as in NIID-Bench; dirichlet-plain: not balanced; "
        "given: as your own data say.",
    )
    clients: PositiveInt = Field(10, description="Number of clients.")
    alpha: PositiveFloat = Field(0.5, description="Dirichlet concentration; small is skewed.")
    min_examples: PositiveInt = Field(
        10, description="Redraw a Dirichlet split until every client has this many examples."
    )
    classes_per_client: PositiveInt = Field(2, description="For the scheme `classes`.")


class ModelConfig(Section):
    """The model."""

    name: Literal["convnet", "mlp", "resnet18", "features", "surrogate"] | Reference = Field(
        "convnet",
        description="Architecture, or code of your own: FILE.py:NAME. features: linear, on "
        "fixed scattering features; surrogate: the same with whitened features, for --privacy "
        "surrogate.",
    )
    width: PositiveInt = Field(128, description="Channels of the ConvNet, units of the MLP.")
    depth: Annotated[int, Field(ge=1, le=6)] = Field(
        3, description="Blocks of the ConvNet, layers of the MLP."
    )
    norm: Literal["instance", "group"] = Field("instance", description="Normalization layers.")


class AugmentationConfig(Section):
    """Random changes to images, where `augment` is on; 0 switches a change off.

    The defaults are those of the paper on siamese augmentation.
    """

    flip: bool = Field(True, description="Mirror left and right; not for digits.")
    shift: Fraction = Field(0.125, description="Largest shift, as a share of the side.")
    scale: NonNegativeFloat = Field(0.2, description="Largest change of a side, as a share.")
    rotate: NonNegativeFloat = Field(15.0, description="Largest rotation, in degrees.")
    brightness: NonNegativeFloat = Field(0.5, description="Largest change of brightness.")
    saturation: NonNegativeFloat = Field(
        1.0, description="Largest change of saturation, as a share."
    )
    contrast: NonNegativeFloat = Field(
        0.5, description="Largest change of contrast, as a share."
    )
    cutout: Fraction = Field(0.5, description="Side of the blanked-out square, as a share.")


class Releases(NamedTuple):
    """What a client releases per round under a guarantee.

    Args:
        times: Number of sums under the noise that the budget asks for.
        sample_rate: Probability that an example is in one of them.
        count_multiplier: Noise multiplier of class counts released besides, if they are.
        once: Whether `times` is for the whole run, whatever the number of rounds.
    """

    times: int
    sample_rate: float = 1.0
    count_multiplier: float | None = None
    once: bool = False


class PrivacySettings(Section):
    """Settings that all privacy mechanisms share; each mechanism's file adds its own."""

    guaranteed: ClassVar[bool] = False
    instead: ClassVar[Mapping[str, str]] = {}  # a key it does not have -> what to do instead

    mechanism: str = Field("", description="What protects the clients' examples.")
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5, description="Delta of the guarantee."
    )
    noise_multiplier: NonNegativeFloat = Field(
        0.0,
        description="Noise standard deviation over the clipping norm; 0: follows from epsilon.",
    )
    clip: Annotated[float, Field(ge=1e-6, le=1e6)] = Field(
        1.0,
        description="Clipping norm per example, multiplied by sqrt(number of features) for "
        "`features`.",
    )
    unit: Literal["example", "group", "client"] = Field(
        "example",
        description="Unit of privacy: one example, one group (for instance a patient), or one "
        "client.",
    )
    ledger: str = Field(
        "", description="Folder of the ledgers; default: one for all runs; new: for this run."
    )
    test_secret: str = Field(
        "", description="Fixes the secrets, for tests: the run is then not private."
    )

    @property
    def budget(self) -> float:
        """The epsilon that may be spent; 0 if none is set."""
        return 0.0

    @property
    def sends_sums(self) -> bool:
        """Whether clients upload noisy sums, and no images."""
        return False


class GuaranteedSettings(PrivacySettings):
    """Settings of a mechanism with a guarantee: it can have a budget."""

    guaranteed = True

    epsilon: NonNegativeFloat = Field(
        0.0,
        description="Privacy budget of the data set, over all rounds; 0: set the noise.",
    )

    @property
    def budget(self) -> float:
        return self.epsilon


class AlgorithmSettings(Section):
    """Settings of an algorithm; its own file declares the rest."""

    instead: ClassVar[Mapping[str, str]] = {}  # a key it does not have -> what to do instead

    name: str = Field("", description="Name of the algorithm.")

    @classmethod
    def preset(cls, preset: str, dataset: str) -> Values:
        """Returns what a preset sets; keys that the settings do not have are dropped."""
        del preset, dataset
        return {}

    @classmethod
    def around(cls, dataset: str, privacy: Values) -> Values:
        """Returns what a preset sets elsewhere for these settings.

        Args:
            dataset: Name of the data set.
            privacy: What is asked for in the section of the mechanism.
        """
        del dataset, privacy
        return {}

    def check(self, privacy: PrivacySettings | None) -> None:
        """Raises `ConfigError` if these settings and a mechanism exclude each other."""

    def releases(self, privacy: GuaranteedSettings) -> Releases:
        """Returns what a client releases per round under a guarantee."""
        raise TypeError(f"{self.name} releases nothing under {privacy.mechanism}")


class RuntimeConfig(Section):
    """Where and how to compute. Everything but `workers` can change the bits of results."""

    workers: PositiveInt | Literal["auto"] = Field(
        "auto", description="Worker processes for clients; auto: one per core."
    )
    server_threads: PositiveInt = Field(1, description="Threads of the server.")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="auto, cpu, cuda or mps; auto: a GPU if torch finds one."
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto", description="torch.compile: on, off, or auto for runs that it makes faster."
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Type of matrix products, by torch's autocast."
    )


class Config(Section):
    """Everything that decides what a run computes.

    The types of `algorithm` and `privacy` depend on their names: see `config_type`.
    """

    preset: Literal["quick", "paper", "private"] = Field(
        "quick", description="Values under all others."
    )
    seed: NonNegativeInt = Field(0, description="Seed of all randomness.")
    rounds: PositiveInt = Field(20, description="Rounds of communication.")
    participation: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the clients that take part in a round."
    )
    min_clients: PositiveInt | Literal["all"] = Field(
        "all", description="Clients that must deliver for a round to count."
    )
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig = ModelConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    algorithm: SerializeAsAny[AlgorithmSettings]
    privacy: SerializeAsAny[PrivacySettings] | None = None
    runtime: RuntimeConfig = RuntimeConfig()

    @property
    def mechanism(self) -> str:
        """Name of the privacy mechanism; ``none`` without one."""
        return "none" if self.privacy is None else self.privacy.mechanism

    @property
    def guaranteed(self) -> bool:
        """Whether the run has a privacy guarantee."""
        return self.privacy is not None and self.privacy.guaranteed

    def to_toml(self) -> str:
        """Returns the whole configuration as TOML."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))
