"""Noise is recorded when added, never used twice, and has the right standard deviation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddm.privacy.accounting import Released
from feddm.privacy.clipping import GRID
from private import OTHER_SECRET, noise

ZEROS = torch.zeros(20_000, dtype=torch.int64)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def test_releases_are_recorded() -> None:
    ours = noise()
    assert not ours.released
    ours.added(0, zeros(2), bound=3.0, multiplier=1.5)
    ours.added(7, zeros(2), bound=5.0, multiplier=2.0)
    assert ours.released == (Released(1, 1.5), Released(1, 2.0))


def test_a_sampled_sum_is_recorded_with_its_rate() -> None:
    ours = noise()
    index = ours.sample(3, 1000, rate=0.25)
    assert not ours.released  # drawing a sample releases nothing
    ours.added(3, index.sum(), bound=1.0, multiplier=1.0)
    ours.added(4, zeros(1), bound=1.0, multiplier=1.0)  # over all examples
    assert ours.released == (Released(1, 1.0, 0.25), Released(1, 1.0))


def test_a_sum_number_is_used_once() -> None:
    ours = noise()
    ours.sample(0, 10, 0.5)
    with pytest.raises(ValueError, match="sample of sum 0 was already drawn"):
        ours.sample(0, 10, 0.5)
    ours.added(0, zeros(1), 1.0, 1.0)
    with pytest.raises(ValueError, match="sum 0 was already released"):
        ours.added(0, zeros(1), 1.0, 1.0)
    # A sum over all examples cannot be declared sampled after its release.
    ours.added(1, zeros(1), 1.0, 1.0)
    with pytest.raises(ValueError, match="sample of sum 1 was already drawn"):
        ours.sample(1, 10, 0.5)
    assert len(ours.released) == 2


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_cannot_be_accounted_for_is_refused(multiplier: float) -> None:
    ours = noise()
    with pytest.raises(ValueError, match="noise_multiplier must be above 0 and finite"):
        ours.added(0, zeros(1), 1.0, multiplier)
    assert ours.released == ()


def test_standard_deviation_of_the_noise() -> None:
    # Of 20,000 numbers, mean and deviation are off by 1 / sqrt(n) and 1 / sqrt(2 n) of a
    # deviation; allowed are five times as much.
    added = noise().added(0, ZEROS, bound=2.0, multiplier=1.5)
    assert added.dtype == torch.float64
    assert float(added.mean()) == pytest.approx(0.0, abs=5 * 3.0 / math.sqrt(20_000))
    assert float(added.std()) == pytest.approx(3.0, abs=5 * 3.0 / math.sqrt(40_000))
    within = float((added.abs() < 3.0).double().mean())
    assert within == pytest.approx(math.erf(math.sqrt(0.5)), abs=0.02)


def test_noise_is_added_to_the_sum() -> None:
    # A sum of 3 bounds is 3 * GRID in whole numbers, and a bound is 2.
    total = torch.arange(6).view(2, 3) * GRID
    with_noise = noise().added(0, total, 2.0, 1.5)
    alone = noise().added(0, zeros(2, 3), 2.0, 1.5)
    expected = 2.0 * torch.arange(6).view(2, 3) + alone
    torch.testing.assert_close(with_noise, expected, rtol=0, atol=1e-12)
    # In proportion to the bound, as the most that one example changes.
    torch.testing.assert_close(noise().added(0, zeros(2, 3), 4.0, 1.5), 2 * alone)


def test_a_noisy_sum_is_on_the_grid() -> None:
    # With steps of the grid as the unit, noisy sums are whole numbers, whatever the sum is: its
    # last bits tell nothing that the others do not.
    for total in (ZEROS, ZEROS + 12345, ZEROS - 7):
        noisy = noise().added(0, total, bound=float(GRID), multiplier=1e-9)
        assert torch.equal(noisy, noisy.round())
        alone = noise().added(0, ZEROS, bound=float(GRID), multiplier=1e-9)
        assert torch.equal(noisy - total, alone)
        assert float(alone.std()) == pytest.approx(GRID * 1e-9, rel=0.05)


def test_float_sums_are_refused() -> None:
    ours = noise()
    with pytest.raises(ValueError, match="a sum must be int64"):
        ours.added(0, torch.zeros(3), 1.0, 1.0)
    with pytest.raises(ValueError, match="multiplier must be at most 131072"):
        ours.added(0, zeros(3), 1.0, 200_000.0)
    assert ours.released == ()


ONE = st.tuples(st.integers(0, 3), st.binary(max_size=2), st.integers(0, 3))


@given(ONE, ONE)
def test_other_rounds_contexts_and_numbers_have_other_noise(
    first: tuple[int, bytes, int], second: tuple[int, bytes, int]
) -> None:
    drawn = [
        noise(round_=round_, context=context).added(number, zeros(3), 1.0, 1.0)
        for round_, context, number in (first, second)
    ]
    assert torch.equal(*drawn) == (first == second)
    samples = [
        noise(round_=round_, context=context).sample(number, 200, 0.5).tolist()
        for round_, context, number in (first, second)
    ]
    assert (samples[0] == samples[1]) == (first == second)


def test_other_clients_have_other_noise() -> None:
    ours, theirs = (each.added(0, ZEROS, 1.0, 1.0) for each in (noise(), noise(OTHER_SECRET)))
    assert abs(float(torch.corrcoef(torch.stack([ours, theirs]))[0, 1])) < 0.05


def test_noise_is_independent_of_the_sample() -> None:
    ours = noise()
    kept = torch.zeros(20_000)
    kept[ours.sample(0, 20_000, 0.5)] = 1.0
    added = ours.added(0, ZEROS, 1.0, 1.0)
    assert abs(float(torch.corrcoef(torch.stack([kept.double(), added]))[0, 1])) < 0.05
