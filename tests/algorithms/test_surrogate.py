"""FedDM with noisy first-order surrogates on public features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from feddm.algorithms.base import Context, Upload
from feddm.algorithms.surrogate_feddm import SurrogateFedDM, SurrogateFedDMSettings
from feddm.core.examples import Examples, Normalization
from feddm.core.metrics import evaluate
from feddm.core.models import ConvNet
from feddm.core.scattering import WhitenedFeatures
from feddm.core.seeding import generator
from feddm.core.tensors import Records
from feddm.core.training import ignore
from feddm.errors import BudgetError, ConfigError, EmptyRoundError, UploadError
from feddm.privacy.accounting import Event, covered, epsilon
from feddm.privacy.policy import Policy
from feddm.privacy.release import Noise, release
from feddm.privacy.surrogate import SurrogateSettings
from feddm.privacy.vault import Terms, Vault
from private import SECRET

SHAPE = (1, 8, 8)
MODEL = WhitenedFeatures(SHAPE, 3)


def built(rounds: int = 6, multiplier: float = 1e-3, **privacy: Any) -> SurrogateFedDM:
    mechanism = SurrogateSettings(noise_multiplier=multiplier, **privacy)
    context = Context(MODEL, clients=2, rounds=rounds, privacy=mechanism)
    algorithm = SurrogateFedDM.build(SurrogateFedDMSettings(), context)
    assert isinstance(algorithm, SurrogateFedDM)
    return algorithm


def stripes(num: int, seed: int = 0) -> Examples:
    """Returns noisy stripes: across, down, or none."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(num) % 3
    x = 128 + 30 * torch.randn(num, *SHAPE, generator=rng)
    across = 60.0 * (-1) ** torch.arange(8)
    x[y == 0] += across[:, None]
    x[y == 1] += across
    return Examples(x.clamp(0, 255).to(torch.uint8), y, Normalization((0.5,), (0.25,)))


def uploaded(
    algorithm: SurrogateFedDM, download: Records, data: Examples, number: int = 1
) -> tuple[Records, Noise]:
    noise = Noise(SECRET, number, bytes([number, len(data) % 256]))
    result = algorithm.local(download, data, {}, generator(0, "test"), ignore, noise)
    assert not result.metrics and not result.memory
    return result.upload, noise


def states(algorithm: SurrogateFedDM, clients: list[Examples]) -> list[Records]:
    """Returns the state after each round."""
    state = algorithm.init(MODEL.init(generator(0, "model")))
    after = []
    for _ in range(algorithm.context.rounds):
        download = algorithm.broadcast(state)
        uploads = []
        for number, data in enumerate(clients):
            sent, noise = uploaded(algorithm, download, data, number + 1)
            assert covered(noise.released, algorithm.planned_for(download))
            uploads.append(Upload(number, algorithm.parse(sent, download)))
        state = algorithm.aggregate(state, uploads, generator(0, "server"), ignore)
        after.append(state)
    return after


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_it_learns_whatever_the_number_of_rounds(rounds: int) -> None:
    last = states(built(rounds), [stripes(60), stripes(90, seed=1)])[-1]
    assert evaluate(MODEL, last["params"], stripes(60, seed=2)).accuracy > 0.9


def test_the_center_is_the_mean_over_all_clients() -> None:
    clients = [stripes(30), stripes(60, seed=1)]
    first = states(built(3), clients)[0]
    features = torch.cat([MODEL.scattering(data[slice(0, 99)].x) for data in clients])
    torch.testing.assert_close(first["params"]["center"], features.mean(0), rtol=0, atol=3e-3)
    assert float(first["progress"]["per_client"]) == pytest.approx(45, rel=1e-2)


def test_whitened_features_have_the_identity_as_their_moments() -> None:
    second = states(built(2, 1e-5), [stripes(600)])[-1]["params"]
    centred = MODEL.scattering(stripes(600)[slice(0, 600)].x) - second["center"]
    block = (centred.view(600, 4, 81).transpose(0, 1) @ second["whitening0"])[0]
    lengths = centred.norm(dim=1, keepdim=True).clamp(min=0.3) / 0.3  # what clipping divided by
    values = torch.linalg.eigvalsh((block / lengths).T @ (block / lengths) / 600)
    assert (float(values.min()), float(values.max())) == pytest.approx((1, 1), abs=0.05)


def test_a_step_by_hand() -> None:
    algorithm = built(9)
    state = dict(algorithm.init(MODEL.init(generator(0, "model"))))
    state["progress"] = {
        "round": torch.tensor(5),
        "per_client": torch.tensor(4.0, dtype=torch.float64),
    }
    velocity = torch.ones_like(state["velocity"]["linear.weight"])
    state["velocity"] = {"linear.weight": velocity}
    uploads = [Upload(k, {"sums": {"residual": 2 * velocity}}) for k in range(3)]
    after = algorithm.aggregate(state, uploads, generator(0, "server"), ignore)
    # Three clients with 4 examples each: 6 / 12 on average, and .8 of the velocity.
    assert after["velocity"]["linear.weight"].unique().tolist() == pytest.approx([1.3])
    assert after["params"]["linear.weight"].unique().tolist() == pytest.approx([-52.0])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_uploads_of_neighbours_look_the_same(number: int) -> None:
    algorithm = built(3)
    first = algorithm.init(MODEL.init(generator(0, "model")))
    download = algorithm.broadcast([first, *states(algorithm, [stripes(9)])][number - 1])

    def shapes(data: Examples) -> dict[str, Any]:
        sent, noise = uploaded(algorithm, download, data)
        tensors = {name: (t.shape, t.dtype) for name, t in sent["sums"].items()}
        return {"events": noise.released, "tensors": tensors}

    empty = stripes(3).subset(torch.tensor([]).long())
    broken = Examples(torch.full((2, *SHAPE), torch.nan), torch.tensor([0, 2]))
    assert shapes(empty) == shapes(stripes(9)) == shapes(broken)


def test_the_whole_run_costs_what_was_planned() -> None:
    algorithm = built(22, 3.7306)
    params = MODEL.init(torch.Generator())
    paid: list[Event] = []
    for number in range(1, 23):
        state = {"progress": {"round": torch.tensor(number)}, "params": params}
        paid += algorithm.planned_for(algorithm.broadcast(state))
    assert covered(paid, algorithm.planned)
    assert epsilon(paid, 1e-5) == pytest.approx(1.0, rel=1e-4)


def test_a_server_that_asks_for_moments_again_and_again_is_refused(tmp_path: Path) -> None:
    algorithm = built(6, 3.7306)
    state = dict(algorithm.init(MODEL.init(generator(0, "model"))))
    state["progress"] = {**state["progress"], "round": torch.tensor(2)}
    download, data = algorithm.broadcast(state), stripes(6)
    vault = Vault(tmp_path, Terms("run", budget=Policy(1.0, 1e-5)))

    def ask(number: int) -> None:
        release(
            lambda noise: (
                algorithm.local(download, data, {}, generator(0, "x"), ignore, noise).upload,
                {},
            ),
            algorithm.planned_for(download),
            lambda: bytes([number]) * 32,
            vault,
            client=0,
            round_=number,
        )

    ask(1)
    ask(2)
    with pytest.raises(BudgetError, match="its limit is 1"):
        ask(3)  # each takes 36 % of the budget


@pytest.mark.parametrize("number", [-1, 0, 7])
def test_rounds_that_were_not_planned_are_refused(number: int) -> None:
    algorithm = built(6)
    download: Records = {"asked": {"round": torch.tensor(number)}}
    with pytest.raises(ConfigError, match="must be from 1 to 6"):
        algorithm.planned_for(download)
    with pytest.raises(ConfigError, match="must be from 1 to 6"):
        uploaded(algorithm, download, stripes(3))


def test_uploads_of_another_round_are_refused() -> None:
    algorithm = built(6)
    download = algorithm.broadcast(algorithm.init(MODEL.init(generator(0, "model"))))
    with pytest.raises(UploadError, match="names"):
        algorithm.parse({"sums": {"residual": torch.zeros(3, 324)}}, download)
    with pytest.raises(EmptyRoundError):
        algorithm.aggregate(
            algorithm.init(MODEL.init(generator(0, "model"))), [], generator(0, "x"), ignore
        )


def test_upload_size_is_that_of_all_rounds() -> None:
    algorithm, sent = built(4), 0
    first = algorithm.init(MODEL.init(generator(0, "model")))
    for state in [first, *states(algorithm, [stripes(9)])[:3]]:
        download = algorithm.broadcast(state)
        upload, _ = uploaded(algorithm, download, stripes(9))
        sent += sum(4 * tensor.numel() for tensor in upload["sums"].values())
    size = algorithm.upload_size(np.ones((1, 3)))
    assert size.num_bytes == pytest.approx(sent / 4)


def test_it_needs_its_own_model() -> None:
    context = replace(built().context, model=ConvNet(SHAPE, 3, width=4, depth=2))
    with pytest.raises(ConfigError, match=r"model\.name must be surrogate"):
        SurrogateFedDM.build(SurrogateFedDMSettings(), context)


def test_noise_of_two_rounds_is_not_the_same(tmp_path: Path) -> None:
    # The same download twice, as a server would send that wants the noise to cancel out.
    algorithm = built(6, 1.0)
    download = algorithm.broadcast(algorithm.init(MODEL.init(generator(0, "model"))))
    vault = Vault(tmp_path, Terms("run"))

    def sent(number: int) -> Tensor:
        def make(noise: Noise) -> tuple[Records, Records]:
            result = algorithm.local(download, stripes(3), {}, generator(0, "x"), ignore, noise)
            return result.upload, {}

        found, _ = release(
            make,
            algorithm.planned_for(download),
            lambda: bytes([number]) * 32,
            vault,
            client=0,
            round_=1,
        )
        return found.upload["sums"]["mean"]

    assert (sent(1) - sent(2)).abs().min() > 0
