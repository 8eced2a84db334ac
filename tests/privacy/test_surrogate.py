"""What one unit can change of the sums of public features, whatever it is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feddm.core.examples import Examples, Normalization
from feddm.core.scattering import WhitenedFeatures, whitening_name
from feddm.core.tensors import Tensors
from feddm.privacy.accounting import epsilon
from feddm.privacy.clipping import GRID, real
from feddm.privacy.surrogate import COUNT_SHARE, KINDS, Kind, Schedule, Sums
from feddm.privacy.units import Unit

SHAPE = (1, 8, 8)
CLASSES = 3
MODEL = WhitenedFeatures(SHAPE, CLASSES)
GRAY = Normalization((0.5,), (0.25,))


def examples(num: int, seed: int = 0, group: Tensor | None = None) -> Examples:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (num, *SHAPE), generator=rng, dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (num,), generator=rng)
    return Examples(x, y, GRAY, group=group)


def sent(seed: int = 0, scale: float = 1.0) -> dict[str, Tensor]:
    """Returns what a server may send: numbers of any size."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: scale * torch.randn(tensor.shape, generator=rng)
        for name, tensor in MODEL.init(rng).items()
    }


def far_center() -> Tensor:
    """Returns a center from which all examples are far, and in the lowest frequency alone."""
    center = torch.zeros(MODEL.scattering.size)
    center[:81] = 1e3
    return center


def change(kind: Kind, params: Tensors, one: Examples, other: Examples, **more: Any) -> float:
    """Returns how far apart the sums of two clients are, as a share of the bound."""
    sums = Sums(MODEL, clip=more.pop("clip", 0.3), **more)
    apart = sums.of(kind, params, one) - sums.of(kind, params, other)
    return float(torch.linalg.vector_norm(apart.double() / GRID))


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e4, 1e30, math.inf, math.nan]),
    number=st.integers(0, 8),
    pixel=st.sampled_from([0.0, 1.0, -1e30, 3e38, math.inf, math.nan]),
)
def test_an_example_adds_no_more_than_the_bound(
    kind: Kind, seed: int, scale: float, number: int, pixel: float
) -> None:
    data = examples(9, seed)
    x = data[slice(0, 9)].x
    x[number, 0, :4] = pixel  # stored as inputs, so that pixels may be anything
    data = Examples(x, data.y)
    others = data.subset(torch.tensor([each for each in range(9) if each != number]))
    assert change(kind, sent(seed, scale), data, others) <= 1


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    unit=st.sampled_from(["group", "client"]),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1.0, 1e30, math.nan]),
)
def test_a_unit_of_several_examples_adds_no_more_than_the_bound(
    kind: Kind, unit: Unit, seed: int, scale: float
) -> None:
    group = torch.tensor([5, 5, 2, 5, 9, 9, 5, 5])
    data = examples(8, seed, group)
    gone = torch.ones(8, dtype=torch.bool) if unit == "client" else group == 5
    others = data.subset((~gone).nonzero().flatten())
    assert change(kind, sent(seed, scale), data, others, unit=unit) <= 1


def test_the_bound_is_reached() -> None:
    # Far from the center all is clipped, and the moments are all in one frequency. A model that
    # is sure of a wrong class reaches the bound of the residual.
    data = examples(1)
    wrong = {**MODEL.init(torch.Generator()), "center": far_center()}
    z = MODEL(wrong, data[slice(0, 1)].x).embedding[0]
    wrong["linear.weight"][(int(data.y) + 1) % CLASSES] = 1e3 * z
    none = data.subset(torch.tensor([]).long())
    for kind in KINDS:
        assert change(kind, wrong, data, none) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("unit", ["group", "client"])
def test_equal_examples_of_a_unit_add_what_one_does(unit: Unit) -> None:
    one = examples(1, group=torch.tensor([4]))
    six = one.subset(torch.zeros(6, dtype=torch.int64))
    params = {**MODEL.init(torch.Generator()), "center": far_center()}
    for kind in ("mean", "moments", "classes"):
        sums = Sums(MODEL, 0.3, unit)
        torch.testing.assert_close(
            real(sums.of(kind, params, six), 1.0),
            real(sums.of(kind, params, one), 1.0),
            rtol=1e-3,
            atol=1e-3,
        )


def test_sums_by_hand() -> None:
    data = examples(5, seed=3)
    features = torch.cat([MODEL.scattering(data[slice(i, i + 1)].x) for i in range(5)])
    center = features[:3].mean(0)
    params = {**MODEL.init(torch.Generator()), "center": center}
    rng = torch.Generator().manual_seed(1)
    params["linear.weight"] = 20 * torch.randn(CLASSES, 324, generator=rng)
    sums = Sums(MODEL, clip=0.3)

    def of(kind: Kind) -> Tensor:
        return real(sums.of(kind, params, data), sums.bounds.of(kind))

    def check(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected.double(), rtol=1e-3, atol=2e-4)

    mean = of("mean")
    check(mean[:-1], features.sum(0))
    assert float(mean[-1]) == pytest.approx(5 * sums.bounds.count, rel=1e-4)
    assert sums.bounds.count**2 == pytest.approx(COUNT_SHARE * sums.bounds.of("mean") ** 2)

    gaps = features - center
    c = gaps * (0.3 / gaps.norm(dim=1, keepdim=True)).clamp(max=1)
    frequencies, channels = 4, 81  # 2 x 2 frequencies of an image of 8 x 8
    cubes = c.view(5, frequencies, channels)
    check(of("moments"), torch.einsum("nfc,nfd->fcd", cubes, cubes).flatten())
    onehot = torch.eye(CLASSES)[data.y]
    check(of("classes"), (onehot.T @ c).flatten())

    z = gaps / gaps.norm(dim=1, keepdim=True)  # whitening is the identity
    r = torch.softmax(z @ params["linear.weight"].T, 1) - onehot
    r *= (1 / r.norm(dim=1, keepdim=True)).clamp(max=1)
    check(of("residual"), (r.T @ z).flatten())


def test_sums_do_not_depend_on_the_order_of_examples() -> None:
    data = examples(40)
    shuffled = data.subset(torch.randperm(40, generator=torch.Generator().manual_seed(5)))
    for kind in KINDS:
        assert change(kind, sent(), data, shuffled) == 0


def test_no_examples_have_sums_of_zeros() -> None:
    empty = examples(2).subset(torch.tensor([]).long())
    for kind in KINDS:
        sums = Sums(MODEL, 0.3)
        assert sums.of(kind, sent(), empty).tolist() == [0] * sums.numbers(kind)


def test_shares_add_up_to_the_noise_of_the_run() -> None:
    for rounds in (1, 2, 3, 22):
        schedule = Schedule(rounds, 3.7306, (0.06, 0.3, 0.06))
        assert epsilon(schedule.planned, 1e-5) == pytest.approx(1.0, rel=1e-4)
        released = [
            event
            for number in range(1, rounds + 1)
            for event in schedule.released(schedule.kinds(number))
        ]
        assert epsilon(released, 1e-5) == pytest.approx(epsilon(schedule.planned, 1e-5))


def test_whitening_is_undone_by_no_scale() -> None:
    # z has length 1 whatever the server whitens with.
    data = examples(3)
    params = sent()
    params[whitening_name(0)] = params[whitening_name(0)] * 1e6
    rows = MODEL(params, data[slice(0, 3)].x).embedding
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(3))
