"""What an algorithm is: settings, and five functions around a state.

    state = init(params)
    every round:
        download = broadcast(state)                      server -> every client of the cohort
        result = local(download, data, memory, ...)      on the client; result.upload -> server
        upload = parse(result.upload, download)          on the server, before anything else
        state = aggregate(state, uploads, ...)           on the server

An algorithm is one file: it declares its settings (`AlgorithmSettings`), and the class that
uses them (`ConfiguredAlgorithm`). An entry point of the group ``feddm.algorithms`` names the
class. All that changes is in the state, which the server keeps, and in the memory, which each
client keeps and which never crosses the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch

from feddm.algorithms.costs import ClassTable, UploadSize, Work
from feddm.config.schema import AlgorithmSettings, GuaranteedSettings, PrivacySettings
from feddm.core.augmentation import Augmentation
from feddm.core.examples import Examples
from feddm.core.models import Model
from feddm.core.tensors import CPU, Records, Tensors
from feddm.core.training import Tick
from feddm.errors import ConfigError, UnfitAlgorithmError, UploadError
from feddm.privacy.accounting import Event, Released
from feddm.privacy.release import Noise


@dataclass(frozen=True)
class LocalResult:
    """What a client has after its work of one round.

    Args:
        upload: All that goes to the server, and so all that is counted.
        memory: What the client wants to have back next time.
        metrics: Figures about the work, for the log.
    """

    upload: Records
    memory: Records = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Upload:
    """What one client sent, after `Algorithm.parse`."""

    client: int
    records: Records


class Algorithm(Protocol):
    """A federated algorithm. ``state["params"]`` is always the global model."""

    @property
    def model(self) -> Model:
        """The model that is learned."""

    @property
    def planned(self) -> tuple[Event, ...]:
        """What a client releases of its examples in one round, or in all if rounds differ."""

    @property
    def planned_in_all(self) -> tuple[Event, ...]:
        """What a client releases in all rounds."""

    def planned_for(self, download: Records) -> tuple[Event, ...]:
        """Returns what a client releases in the round of a download."""
        del download
        return self.planned

    def init(self, params: Tensors) -> Records:
        """Returns the state before the first round."""

    def broadcast(self, state: Records) -> Records:
        """Returns what every client of a round downloads."""

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        """Returns the result of one client's work.

        With privacy, what depends on examples leaves through `noise` alone.
        """

    def parse(self, upload: Records, download: Records) -> Records:
        """Returns an upload decoded, as `aggregate` takes it.

        Raises:
            UploadError: If `local` cannot have sent this for that download.
        """

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        """Returns the next state from parsed uploads; they come once, in client order."""


DEFAULT_AUGMENTATION = Augmentation()


@dataclass(frozen=True)
class Context:
    """What an algorithm knows besides its settings; all of it is public.

    Args:
        model: The model to train.
        clients: Number of all clients, whether or not they take part in a round.
        rounds: Number of rounds of the run.
        examples: Assumed number of examples per client; 0 if unknown.
        augmentation: Random changes to images, where `augment` is on.
        privacy: The privacy mechanism with its noise, if there is one.
        device: Where the server trains.
    """

    model: Model
    clients: int = 1
    rounds: int = 1
    examples: float = 0.0
    augmentation: Augmentation = DEFAULT_AUGMENTATION
    privacy: PrivacySettings | None = None
    device: torch.device = CPU


# Why a client's number of examples is asked for.
NUMBER_NEEDED = (
    "data.own.examples is missing: privacy needs a public figure of how many examples all "
    "nodes have together, roughly"
)


@dataclass(frozen=True)
class ConfiguredAlgorithm(Algorithm):
    """Base of the algorithms that can be found by name.

    A subclass names its settings in `Settings` and implements `Algorithm`.
    """

    Settings: ClassVar[type[AlgorithmSettings]]

    settings: AlgorithmSettings
    context: Context

    @property
    def model(self) -> Model:
        return self.context.model

    @property
    def planned_in_all(self) -> tuple[Event, ...]:
        return self.planned * self.context.rounds

    @classmethod
    def settings_type(cls, mechanism: str | None) -> type[AlgorithmSettings]:
        """Returns the settings under a privacy mechanism, or without one."""
        if mechanism is None:
            return cls.Settings
        raise UnfitAlgorithmError(f"{cls.__name__} cannot run with --privacy {mechanism}")

    @classmethod
    def default_mechanism(cls) -> str:
        """Returns the mechanism of a run that has a budget and names none."""
        return "gradients"

    @classmethod
    def build(cls, settings: AlgorithmSettings, context: Context) -> ConfiguredAlgorithm:
        """Returns the algorithm that these settings and the context's privacy ask for."""
        return cls(settings, context)

    def passes(self, table: ClassTable) -> Work:
        """Returns the work of a round with all clients; nothing if it is not known."""
        del table
        return Work()

    def upload_size(self, table: ClassTable) -> UploadSize:
        """Returns what a round with all clients uploads."""
        raise ConfigError(f"{self.settings.name} does not say how much its clients upload")


def guaranteed(
    settings: AlgorithmSettings, privacy: GuaranteedSettings
) -> tuple[Released, ...]:
    """Returns what a client releases per round under a mechanism with a guarantee."""
    times, sample_rate, count_multiplier, _ = settings.releases(privacy)
    counts = () if count_multiplier is None else (Released(1, count_multiplier),)
    return (*counts, Released(times, privacy.noise_multiplier, sample_rate))


def parse_like(upload: Records, template: Records) -> Records:
    """Returns the upload, whose names, shapes and types must be those of the template.

    Numbers that are not finite are refused as well: one of them would spoil every average.
    """
    if set(upload) != set(template):
        raise UploadError(f"an upload has {_listed(template)}, got {_listed(upload)}")
    for record, tensors in template.items():
        if set(upload[record]) != set(tensors):
            raise UploadError(f"the names in {record} are not those of the model")
        for name, expected in tensors.items():
            tensor = upload[record][name]
            if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
                raise UploadError(
                    f"{record} {name} must be {expected.dtype} of shape "
                    f"{tuple(expected.shape)}, got {tensor.dtype} {tuple(tensor.shape)}"
                )
            if not tensor.isfinite().all():
                raise UploadError(f"{record} {name} has numbers that are not finite")
    return upload


def _listed(records: Records) -> str:
    return ", ".join(sorted(records)) or "nothing"
