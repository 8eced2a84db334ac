"""An attack on the releases of a whole run: it finds what was claimed, and no more."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from feddm.algorithms.base import Context
from feddm.algorithms.surrogate_feddm import SurrogateFedDM, SurrogateFedDMSettings
from feddm.core.examples import Examples, Normalization
from feddm.core.scattering import WhitenedFeatures
from feddm.core.seeding import generator
from feddm.core.tensors import Records
from feddm.core.training import ignore
from feddm.privacy import surrogate
from feddm.privacy.clipping import GRID, real
from feddm.privacy.noise import Secret
from feddm.privacy.release import Noise
from feddm.privacy.surrogate import Kind, Sums, SurrogateSettings

MODEL = WhitenedFeatures((1, 4, 4), 2)
MULTIPLIER = 1.0809  # epsilon 4 at delta 1e-5, for the whole run
CLAIMED = 1 / MULTIPLIER  # deviations between the two laws of the best score
TRIALS = 500
# Of the difference of two means of so many standard normal numbers.
DEVIATION = math.sqrt(2 / TRIALS)
CANARY = Examples(
    torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4) * 16,
    torch.tensor([1]),
    Normalization((0.5,), (0.25,)),
)
NOBODY = CANARY.subset(torch.tensor([]).long())


def algorithm() -> SurrogateFedDM:
    privacy = SurrogateSettings(noise_multiplier=MULTIPLIER)
    return SurrogateFedDM(
        SurrogateFedDMSettings(), Context(MODEL, clients=1, rounds=4, privacy=privacy)
    )


def downloads() -> list[Records]:
    """Returns what a server sends that wants to see the canary as well as it can."""
    params = dict(MODEL.init(torch.Generator()))
    # Far away in one frequency, so that all is clipped; and sure of the wrong class.
    params["center"] = torch.full((MODEL.scattering.size,), 1e3)
    z = MODEL(params, CANARY[slice(0, 1)].x).embedding[0]
    params["linear.weight"] = torch.stack([1e4 * z, -1e4 * z])
    return [
        {"asked": {"round": torch.tensor(number)}, "params": params} for number in range(1, 5)
    ]


def weights(kind: Kind) -> dict[str, Tensor]:
    """Returns the canary's part of a sum over the variance that the noise claims to have."""
    ours = algorithm()
    bound = ours.sums.bounds.of(kind)
    download = downloads()[1]["params"]
    variance = (ours.schedule.multiplier(kind) * bound) ** 2
    parts = ours._parts(kind, real(ours.sums.of(kind, download, CANARY), bound))
    if kind != "moments":
        return {name: part / variance for name, part in parts.items()}
    rows, columns = torch.triu_indices(81, 81)
    half = torch.where(rows == columns, 1.0, 0.5)  # two halves were averaged
    return {name: part / (variance * half) for name, part in parts.items()}


def scores(data: Examples) -> Tensor:
    """Returns the score of each trial, standard normal if nobody is there."""
    ours, asked = algorithm(), downloads()
    looked = [
        {name: w for kind in ours.schedule.kinds(number) for name, w in weights(kind).items()}
        for number in range(1, 5)
    ]
    found = []
    for trial in range(TRIALS):
        secret, total = Secret.fresh(), 0.0
        for number, (download, weight) in enumerate(zip(asked, looked, strict=True), 1):
            noise = Noise(secret, number, bytes([trial % 256, number]))
            sent = ours.local(download, data, {}, generator(0, "x"), ignore, noise).upload
            total += sum(float((sent["sums"][name] * w).sum()) for name, w in weight.items())
        found.append(total / CLAIMED)
    return torch.tensor(found)


def found() -> float:
    """Returns by how many deviations the attack tells the canary from nobody."""
    return float(scores(CANARY).mean() - scores(NOBODY).mean())


def test_the_claim_is_reached_and_not_exceeded() -> None:
    assert found() == pytest.approx(CLAIMED, abs=4 * DEVIATION)
    assert CLAIMED > 8 * DEVIATION  # so that this means something


def test_half_the_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def spread() -> float:
        return float(scores(NOBODY).std())

    assert spread() == pytest.approx(1, abs=0.15)
    draw = Noise.added

    def halved(self: Noise, number: int, total: Tensor, bound: float, z: float) -> Tensor:
        return draw(self, number, total, bound, z / 2)

    monkeypatch.setattr(Noise, "added", halved)
    assert spread() == pytest.approx(0.5, abs=0.08)


def test_a_missing_clip_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, params = Sums(MODEL, 0.3), downloads()[1]["params"]

    def share() -> float:
        total = ours.of("classes", params, CANARY).double() / GRID
        return float(torch.linalg.vector_norm(total))

    assert share() == pytest.approx(1, abs=1e-3)
    monkeypatch.setattr(surrogate, "shortened", lambda rows, most: rows)
    assert share() > 100
