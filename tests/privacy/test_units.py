"""Sensitivity to one group or one client, whatever the number of its examples."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feddm.algorithms.gradient_feddm import class_counts
from feddm.core.examples import Examples
from feddm.core.seeding import generator
from feddm.privacy.clipping import real
from feddm.privacy.features import Bound, Bounded, class_totals
from feddm.privacy.gradients import clipped_gradient_sum
from feddm.privacy.images import clipped_image_gradient_sum
from feddm.privacy.units import Sampler, Unit
from private import MODEL, examples, noise
from toy import TwoParameters, pixels, point

PARAMS = MODEL.init(generator(0, "test"))
BOUND = Bound(2.0)
MOST = 0.5
IMAGES = torch.randn(6, 1, 8, 8, generator=generator(1, "test"))
SLOTS = torch.arange(3).repeat_interleave(2)


def everything(data: Examples, unit: Unit) -> tuple[Examples, list[int]]:
    """Returns all units, one after another."""
    sample = Sampler(data, unit).sample(torch.arange)
    return data.subset(sample.examples), sample.sizes


def features(data: Examples, unit: Unit) -> Tensor:
    model = Bounded(MODEL, BOUND.features)
    return real(class_totals(model, PARAMS, data, BOUND, unit=unit), 1.0)


def gradients(data: Examples, unit: Unit) -> Tensor:
    all_, sizes = everything(data, unit)
    return real(clipped_gradient_sum(MODEL, PARAMS, all_, MOST, sizes), 1.0)


def images(data: Examples, unit: Unit) -> Tensor:
    all_, sizes = everything(data, unit)
    return real(
        clipped_image_gradient_sum(MODEL, IMAGES, SLOTS, PARAMS, all_, MOST, sizes=sizes), 1.0
    )


def counts(data: Examples, unit: Unit) -> Tensor:
    return real(class_counts(data, 3, unit), 1.0)


SUMS = {"features": features, "gradients": gradients, "images": images, "counts": counts}


@pytest.mark.parametrize("name", SUMS)
@settings(max_examples=15)
@given(
    groups=st.lists(st.integers(0, 4), max_size=12),
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    pixel=st.sampled_from([0.0, 1.0, -1e20, math.inf, math.nan]),
)
def test_one_group_changes_sums_by_at_most_the_bound(
    name: str, groups: list[int], labels: list[int], pixel: float
) -> None:
    others = examples(*[number % 3 for number in range(len(groups))], *labels)
    others.x[len(groups) :] += pixel
    numbers = torch.tensor([*groups, *[99] * len(labels)], dtype=torch.int64)
    with_it = dataclasses.replace(others, group=numbers)
    without = with_it.subset(torch.arange(len(groups)))
    first, second = SUMS[name](with_it, "group"), SUMS[name](without, "group")
    assert bool(first.isfinite().all())
    assert float((first - second).norm()) <= 1


@pytest.mark.parametrize("name", SUMS)
def test_a_whole_client_is_clipped_to_the_bound(name: str) -> None:
    data = examples(*[0, 1, 2, 2] * 10)
    assert float(SUMS[name](data, "client").norm()) == pytest.approx(1.0, rel=1e-4)
    assert not SUMS[name](examples(), "client").any()


@pytest.mark.parametrize("name", SUMS)
def test_groups_of_one_are_examples(name: str) -> None:
    data = examples(0, 1, 2, 2, 1)
    alone = dataclasses.replace(data, group=torch.tensor([5, 3, 9, 1, 7]))
    torch.testing.assert_close(
        SUMS[name](alone, "group"), SUMS[name](data, "example"), rtol=1e-4, atol=1e-5
    )


def test_a_group_by_hand() -> None:
    # At a = 0, b = 2, a pixel x of class 0 gives -x, and one of class 1 gives x.
    # Together 3 and -.5 give 2.5, which is clipped to 1; the other one gives -.25.
    data = Examples(pixels(3.0, 0.5, 0.25), torch.tensor([1, 0, 0]))
    total = clipped_gradient_sum(TwoParameters(), point(0.0, 2.0), data, 1.0, [2, 1])
    assert float(real(total, 1.0)[0]) == pytest.approx(0.75, abs=1e-4)


def test_groups_are_sampled_as_a_whole() -> None:
    data = dataclasses.replace(examples(*[0] * 40), group=torch.arange(40) % 10)
    drawn = [
        Sampler(data, "group").sample(lambda num, n=n: noise().sample(n, num, 0.5))  # type: ignore[misc]
        for n in range(50)
    ]
    for sample in drawn:
        assert sample.sizes == [4] * (len(sample.examples) // 4)
        groups = data.group[sample.examples].view(-1, 4)  # type: ignore[index]
        assert bool((groups == groups[:, :1]).all())
    # Five of ten on average, with a standard deviation of 1.6 per sample.
    mean = sum(len(sample.sizes) for sample in drawn) / 50
    assert mean == pytest.approx(5, abs=5 * 1.6 / math.sqrt(50))


def test_data_without_groups_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"privacy\.unit is group, but the data have no groups"
    ):
        Sampler(examples(0, 1), "group")
