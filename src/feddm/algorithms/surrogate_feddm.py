"""FedDM under differential privacy: surrogates of the objectives that survive noise.

In the paper a client sends a surrogate of its objective near ``w_r``: images whose loss is near
that of its examples. Here it is the surrogate of first order, a gradient, and it is that of a
model whose gradients lose the least to noise: a linear one of public features
(`feddm.core.scattering`). Clients release, with noise,

    round 1      the mean of their features
    round 2      second moments by frequency, and class sums, of centered features
    then         sum over examples of  z (softmax(W z) - y)^T,  z whitened and of length 1

and the server centers, whitens, and takes one step with momentum for each sum of residuals.
Round 2 already gives a model, linear discriminant analysis. With ``rounds = 1`` all of that is
released at once, around no center.

`feddm.privacy.surrogate` says why these sums are bounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from feddm.algorithms.base import (
    ConfiguredAlgorithm,
    Context,
    LocalResult,
    Upload,
    parse_like,
)
from feddm.algorithms.costs import ClassTable, Passes, UploadSize, Work
from feddm.config.schema import (
    AlgorithmSettings,
    Fraction,
    GuaranteedSettings,
    PrivacySettings,
    Releases,
    Section,
    Values,
)
from feddm.core.examples import Examples
from feddm.core.models import Around
from feddm.core.scattering import WhitenedFeatures, whitening_name
from feddm.core.tensors import Records, Tensors
from feddm.core.training import Tick
from feddm.errors import ConfigError, EmptyRoundError
from feddm.privacy.accounting import Event
from feddm.privacy.release import Noise, needed
from feddm.privacy.surrogate import KINDS, Kind, Schedule, Sums, SurrogateSettings

WEIGHT = "linear.weight"
MODEL = "surrogate"  # the name of `WhitenedFeatures` in the configuration


class ServerSteps(Section):
    """Steps of the server, one for each round of residuals."""

    lr: PositiveFloat = Field(40.0, description="Learning rate.")
    momentum: Fraction = Field(0.8, description="Momentum.")
    floor: PositiveFloat = Field(
        0.25,
        description="Least variance of whitened directions, in units of what noise alone would "
        "show.",
    )


class SurrogateFedDMSettings(AlgorithmSettings):
    """Settings of FedDM with noisy first-order surrogates on public features."""

    server: ServerSteps = ServerSteps()

    instead = {  # noqa: RUF012  # a ClassVar
        "images_per_class": "no images are learned from examples",
        "synthesis": "no images are learned from examples",
        "coding": "no images travel",
    }

    @classmethod
    def around(cls, dataset: str, privacy: Values) -> Values:
        # Little noise allows many steps; much noise would add up over them, and clients of
        # digits have some 140 images.
        rounds = 42 if privacy.get("epsilon", 0.0) > 2 else 22
        return {"model": {"name": MODEL}, "rounds": 8 if dataset == "digits" else rounds}

    def check(self, privacy: PrivacySettings | None) -> None:
        assert isinstance(privacy, SurrogateSettings)
        shares = privacy.mean_share + privacy.moments_share + privacy.classes_share
        if shares >= 1:
            raise ConfigError(
                "privacy.mean_share, .moments_share and .classes_share must leave some of the "
                f"budget for residuals, but add up to {shares:g}"
            )

    def releases(self, privacy: GuaranteedSettings) -> Releases:
        return Releases(1, once=True)


@dataclass(frozen=True)
class SurrogateFedDM(ConfiguredAlgorithm):
    """Clients release bounded sums of public features; the server learns a linear model."""

    Settings = SurrogateFedDMSettings
    settings: SurrogateFedDMSettings

    @classmethod
    def build(cls, settings: AlgorithmSettings, context: Context) -> ConfiguredAlgorithm:
        model = context.model.model if isinstance(context.model, Around) else context.model
        if not isinstance(model, WhitenedFeatures):
            raise ConfigError(
                f"model.name must be {MODEL} with --privacy surrogate, which learns a linear "
                "model of public features"
            )
        return super().build(settings, context)

    @property
    def privacy(self) -> SurrogateSettings:
        """The mechanism, with its noise."""
        assert isinstance(self.context.privacy, SurrogateSettings)
        return self.context.privacy

    @property
    def sums(self) -> Sums:
        """What clients sum up."""
        head = WhitenedFeatures(self.model.shape, self.model.num_classes)
        return Sums(head, self.privacy.clip, self.privacy.unit)

    @property
    def schedule(self) -> Schedule:
        """What clients release when."""
        privacy = self.privacy
        return Schedule(
            self.context.rounds,
            privacy.noise_multiplier,
            (privacy.mean_share, privacy.moments_share, privacy.classes_share),
        )

    @property
    def planned(self) -> tuple[Event, ...]:
        return self.schedule.planned

    @property
    def planned_in_all(self) -> tuple[Event, ...]:
        return self.planned

    def planned_for(self, download: Records) -> tuple[Event, ...]:
        return self.schedule.released(self._kinds(download))

    def init(self, params: Tensors) -> Records:
        return {
            "params": params,
            "velocity": {WEIGHT: torch.zeros_like(params[WEIGHT])},
            "progress": {
                "round": torch.tensor(1),
                "per_client": torch.tensor(0.0, dtype=torch.float64),
            },
        }

    def broadcast(self, state: Records) -> Records:
        number = state["progress"]["round"]
        kinds = self.schedule.kinds(int(number))
        asked: Records = {"asked": {"round": number}}
        if kinds == ("mean",):
            return asked
        params = state["params"]
        if kinds != ("residual",):
            params = {"center": params["center"]}
        return {**asked, "params": params}

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        del memory, rng, tick
        noise, sums = needed(noise), self.sums
        upload: dict[str, Tensor] = {}
        for kind in self._kinds(download):
            noisy = noise.added(
                KINDS.index(kind),
                sums.of(kind, download.get("params", {}), data),
                sums.bounds.of(kind),
                self.schedule.multiplier(kind),
            )
            upload |= self._parts(kind, noisy)
        return LocalResult({"sums": upload})

    def parse(self, upload: Records, download: Records) -> Records:
        template: dict[str, Tensor] = {}
        for kind in self._kinds(download):
            template |= self._parts(kind, torch.zeros(self.sums.numbers(kind)))
        return parse_like(upload, {"sums": template})

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        del rng, tick
        total: dict[str, Tensor] = {}
        clients = 0
        for upload in uploads:
            clients += 1
            for name, part in upload.records["sums"].items():
                total[name] = total.get(name, torch.zeros(())) + part.double()
        if not clients:
            raise EmptyRoundError("no client sent anything")
        params, velocity = dict(state["params"]), state["velocity"]
        number = int(state["progress"]["round"])
        per_client = float(state["progress"]["per_client"])
        if "mean" in total:
            counted = float(total["mean"][-1]) / self.sums.bounds.count
            per_client = max(counted / clients, 1.0)
            params["center"] = (total["mean"][:-1] / (per_client * clients)).float()
        means = {name: part / (per_client * clients) for name, part in total.items()}
        if "classes" in means:
            params |= self._discriminants(means, clients, per_client * clients)
        if "residual" in means:
            server = self.settings.server
            step = means["residual"].float()
            velocity = {WEIGHT: server.momentum * velocity[WEIGHT] + step}
            params[WEIGHT] = params[WEIGHT] - server.lr * velocity[WEIGHT]
        return {
            "params": params,
            "velocity": velocity,
            "progress": {
                "round": torch.tensor(number + 1),
                "per_client": torch.tensor(per_client, dtype=torch.float64),
            },
        }

    def passes(self, table: ClassTable) -> Work:
        # The first round computes the features; all others use them again.
        return Work(Passes(forward=float(table.sum()) / self.context.rounds))

    def upload_size(self, table: ClassTable) -> UploadSize:
        rounds = self.context.rounds
        sums, kinds = (
            self.sums,
            itertools.chain.from_iterable(
                self.schedule.kinds(number) for number in range(1, rounds + 1)
            ),
        )
        numbers = sum(
            part.numel()
            for kind in kinds
            for part in self._parts(kind, torch.zeros(sums.numbers(kind))).values()
        )
        floats = len(table) * numbers / rounds
        return UploadSize(floats, 4 * floats)

    def _kinds(self, download: Records) -> tuple[Kind, ...]:
        """Returns what a download asks for."""
        number = int(download["asked"]["round"])
        if not 1 <= number <= self.context.rounds:
            raise ConfigError(
                f"a round must be from 1 to {self.context.rounds}, the server asks for {number}"
            )
        return self.schedule.kinds(number)

    def _parts(self, kind: Kind, noisy: Tensor) -> dict[str, Tensor]:
        """Returns noisy sums as they travel: of a moment both halves as one."""
        shape = self.model.num_classes, self.sums.model.scattering.size
        if kind != "moments":
            return {kind: noisy.float().view(-1 if kind == "mean" else shape)}
        blocks = self.sums.model.scattering.blocks
        parts = noisy.split([block.size * block.channels for block in blocks])
        return {
            f"moments{number}": _half(part.view(*block, block.channels)).float()
            for number, (block, part) in enumerate(zip(blocks, parts, strict=True))
        }

    def _discriminants(
        self, means: Mapping[str, Tensor], clients: int, examples: float
    ) -> dict[str, Tensor]:
        """Returns whitening and weights: linear discriminants in the whitened space.

        Args:
            means: Noisy moments and class sums, divided by the number of examples.
            clients: How many clients' noise is in them.
            examples: The number of examples, from noisy counts.
        """
        blocks = self.sums.model.scattering.blocks
        classes = means["classes"]
        # Around no center, moments and class sums contain the mean.
        mean = classes.sum(0) if self.context.rounds == 1 else torch.zeros_like(classes[0])
        classes = (classes - mean / len(classes)).split([block.size for block in blocks], 1)
        means_by_block = mean.split([block.size for block in blocks])
        # What noise alone does to an entry, both halves taken together.
        deviation = (
            self.schedule.multiplier("moments")
            * self.sums.bounds.of("moments")
            * math.sqrt(clients / 2)
            / examples
        )
        whitening, directions, kept = {}, [], 0.0
        for number, block in enumerate(blocks):
            center = means_by_block[number].view(*block)
            moments = _full(means[f"moments{number}"], block.channels)
            moments = moments - center[:, :, None] * center[:, None, :]
            matrices = self._whitening(moments, deviation)
            whitening[whitening_name(number)] = matrices.float()
            kept += float((matrices @ moments @ matrices).diagonal(dim1=1, dim2=2).sum())
            each = classes[number].view(-1, *block).transpose(0, 1)
            directions.append((each @ matrices).transpose(0, 1).flatten(1))
        # Whitened features are about so long before they are scaled to 1.
        length = math.sqrt(max(kept, 1.0))
        weights = self.settings.server.lr / length * torch.cat(directions, 1)
        return {**whitening, WEIGHT: weights.float()}

    def _whitening(self, moments: Tensor, deviation: float) -> Tensor:
        """Returns the inverse square roots of matrices, with a floor under their eigenvalues.

        Args:
            moments: Symmetric matrices.
            deviation: Standard deviation of the noise on an entry.
        """
        values, vectors = torch.linalg.eigh(moments)
        # Eigenvalues of noise alone go up to this.
        of_noise = 2 * math.sqrt(moments.shape[-1]) * deviation
        floor = self.settings.server.floor * of_noise + 1e-6 * float(values.max().clamp(min=0))
        roots = values.clamp(min=max(floor, 1e-30)).rsqrt()
        root: Tensor = (vectors * roots[:, None, :]) @ vectors.transpose(1, 2)
        return root


def _half(matrices: Tensor) -> Tensor:
    """Returns the mean of both halves of square matrices, as one row for each.

    >>> _half(torch.tensor([[[1.0, 2.0], [4.0, 5.0]]]))
    tensor([[1., 3., 5.]])
    """
    rows, columns = torch.triu_indices(*matrices.shape[1:])
    both = (matrices + matrices.transpose(1, 2)) / 2
    return both[:, rows, columns]


def _full(halves: Tensor, size: int) -> Tensor:
    """Returns symmetric matrices, the inverse of `_half`.

    >>> _full(torch.tensor([[1.0, 3.0, 5.0]]), 2)
    tensor([[[1., 3.],
             [3., 5.]]])
    """
    rows, columns = torch.triu_indices(size, size)
    matrices = halves.new_zeros(len(halves), size, size)
    matrices[:, rows, columns] = halves
    matrices[:, columns, rows] = halves
    return matrices
