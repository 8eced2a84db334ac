import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from feddm.errors import BudgetError
from feddm.privacy.accounting import (
    Event,
    Released,
    Unprotected,
    epsilon,
    from_json,
    noise_multiplier,
    to_json,
)

DELTA = 1e-5
FEW = settings(max_examples=10)
MULTIPLIERS = st.floats(0.5, 50)


def analytic(multiplier: float, delta: float) -> float:
    """Returns the epsilon of one Gaussian release.

    Theorem 8 of Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy,
    ICML 2018: ``delta = Phi(1/2z - eps z) - e^eps Phi(-1/2z - eps z)``.
    """

    def gap(eps: float) -> float:
        half, shift = 1 / (2 * multiplier), eps * multiplier
        return float(norm.cdf(half - shift) - math.exp(eps) * norm.cdf(-half - shift) - delta)

    return 0.0 if gap(0.0) <= 0 else float(brentq(gap, 0.0, 100.0, xtol=1e-12))


class TestEpsilon:
    def test_nothing_released_is_zero(self) -> None:
        assert epsilon([], DELTA) == 0.0

    @pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.7, 20.0, 1e6])
    @pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
    def test_one_gaussian(self, multiplier: float, delta: float) -> None:
        expected = analytic(multiplier, delta)
        found = epsilon([Released(1, multiplier)], delta)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)

    @pytest.mark.parametrize("times", [1, 4, 100])
    def test_many_releases_equal_one_with_less_noise(self, times: int) -> None:
        expected = analytic(30 / math.sqrt(times), DELTA)
        assert epsilon([Released(times, 30.0)], DELTA) == pytest.approx(expected, rel=1e-6)
        assert epsilon([Released(1, 30.0)] * times, DELTA) == pytest.approx(expected, rel=1e-6)

    def test_inverse_squares_of_multipliers_add_up(self) -> None:
        # 1/3^2 + 4/8^2 = 25/144, so one release with multiplier 12/5.
        found = epsilon([Released(1, 3.0), Released(4, 8.0)], DELTA)
        assert found == pytest.approx(analytic(12 / 5, DELTA), rel=1e-6)

    @pytest.mark.parametrize("sample_rate", [1.0, 0.1])
    def test_two_times_five_rounds_cost_ten(self, sample_rate: float) -> None:
        five, ten = (Released(times, 4.0, sample_rate) for times in (5, 10))
        assert epsilon([five, five], DELTA) == pytest.approx(epsilon([ten], DELTA), rel=1e-12)

    def test_a_rate_of_nearly_one(self) -> None:
        found = epsilon([Released(3, 4.0, 1 - 1e-9)], DELTA)
        assert found == pytest.approx(analytic(4 / math.sqrt(3), DELTA), abs=1e-3)

    # Sampled batches of 256 of 60,000 images at delta 1e-5, from tutorials/README.md of
    # tensorflow/privacy (2019). Those are Renyi bounds; the true value is somewhat lower.
    @pytest.mark.parametrize(
        ("multiplier", "epochs", "published"), [(1.12, 60, 2.92), (1.2, 10, 1.20)]
    )
    def test_published(self, multiplier: float, epochs: int, published: float) -> None:
        rate = 256 / 60_000
        found = epsilon([Released(round(epochs / rate), multiplier, rate)], DELTA)
        assert 0.55 * published < found < published

    def test_one_sampled_release_by_hand(self) -> None:
        # Of the two directions, removing an example costs more. Its delta at eps is
        # q times that of the unsampled release at log(1 + (e^eps - 1) / q).
        rate, multiplier = 0.2, 2.0
        found = epsilon([Released(1, multiplier, rate)], DELTA)
        whole = analytic(multiplier, DELTA / rate)
        assert found == pytest.approx(math.log1p(rate * math.expm1(whole)), abs=1e-3)

    def test_sampled_and_unsampled_releases(self) -> None:
        whole, sampled = Released(2, 5.0), Released(50, 5.0, 0.1)
        both = epsilon([whole, sampled], DELTA)
        assert max(epsilon([whole], DELTA), epsilon([sampled], DELTA)) < both
        assert both < epsilon([whole], DELTA / 2) + epsilon([sampled], DELTA / 2)
        assert epsilon([sampled, whole], DELTA) == both

    def test_anything_unprotected_is_infinite(self) -> None:
        assert epsilon([Unprotected("labels")], DELTA) == math.inf
        assert epsilon([Released(1, 10.0), Unprotected("labels")], DELTA) == math.inf

    def test_a_ledger_of_thousands_of_lines(self) -> None:
        lines = [Released(1, 8.0, 0.05), Released(1, 80.0)] * 2000
        together = [Released(2000, 8.0, 0.05), Released(2000, 80.0)]
        assert epsilon(lines, DELTA) == pytest.approx(epsilon(together, DELTA), rel=1e-9)

    def test_very_little_noise_is_bounded_quickly(self) -> None:
        # The bound ignores the sampling.
        assert epsilon([Released(9, 0.15, 0.1)], DELTA) == epsilon([Released(9, 0.15)], DELTA)
        little, usual = Released(100, 0.01), Released(1, 1.0, 0.5)
        as_whole = epsilon([little, Released(1, 1.0)], DELTA)
        assert epsilon([little, usual], DELTA) == pytest.approx(as_whole)
        assert epsilon([Released(1, 1e-12)], DELTA) == math.inf

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
    def test_delta_out_of_range(self, delta: float) -> None:
        with pytest.raises(ValueError, match="delta must be above 0"):
            epsilon([], delta)

    @given(MULTIPLIERS, st.integers(1, 50), st.sampled_from([1.0, 0.2]), st.floats(1.2, 3))
    @FEW
    def test_grows_with_steps_and_falls_with_noise(
        self, multiplier: float, times: int, sample_rate: float, factor: float
    ) -> None:
        before = epsilon([Released(times, multiplier, sample_rate)], DELTA)
        assert epsilon([Released(times, multiplier * factor, sample_rate)], DELTA) <= before
        assert epsilon([Released(2 * times, multiplier, sample_rate)], DELTA) >= before
        assert epsilon([Released(times, multiplier, sample_rate)], DELTA / factor) >= before
        assert epsilon([Released(times, multiplier)], DELTA) >= before - 1e-6


class TestNoiseMultiplier:
    @given(st.floats(0.05, 20), st.sampled_from([1e-3, 1e-6]), st.integers(1, 1000))
    def test_is_the_inverse_of_epsilon(self, target: float, delta: float, times: int) -> None:
        multiplier = noise_multiplier(target, delta, times=times)
        found = epsilon([Released(times, multiplier)], delta)
        assert target - 1e-3 < found <= target

    @given(st.floats(0.1, 20), st.floats(0.01, 0.99), st.integers(1, 1000))
    def test_with_an_earlier_release(self, target: float, share: float, times: int) -> None:
        spent = [Released(3, noise_multiplier(share * target, DELTA, times=3))]
        multiplier = noise_multiplier(target, DELTA, times=times, spent=spent)
        found = epsilon([*spent, Released(times, multiplier)], DELTA)
        assert target - 1e-3 < found <= target

    def test_by_hand(self) -> None:
        # Twelve releases with z = 20, then nine: 12/400 + 9/z^2 = 1/4^2 if z = sqrt(9 / .0325).
        target = analytic(4.0, DELTA)
        found = noise_multiplier(target, DELTA, times=9, spent=[Released(12, 20.0)])
        assert found == pytest.approx(math.sqrt(9 / 0.0325), rel=1e-6)

    @pytest.mark.parametrize(
        ("target", "times", "rate", "spent"),
        [
            (0.5, 200, 0.1, []),
            (0.5, 100, 0.1, [Released(3, 30.0)]),
            (0.5, 100, 0.1, [Released(100, 12.0, 0.1)]),
            (0.5, 10, 1.0, [Released(100, 12.0, 0.1), Released(1, 50.0)]),
        ],
    )
    def test_with_samples(
        self, target: float, times: int, rate: float, spent: list[Event]
    ) -> None:
        multiplier = noise_multiplier(target, DELTA, times=times, sample_rate=rate, spent=spent)
        found = epsilon([*spent, Released(times, multiplier, rate)], DELTA)
        assert target - 1e-3 < found <= target

    def test_samples_need_less_noise(self) -> None:
        sampled = noise_multiplier(0.5, DELTA, times=100, sample_rate=0.2)
        assert sampled < noise_multiplier(0.5, DELTA, times=100) / 2

    @pytest.mark.slow
    def test_a_huge_budget_still_has_some_noise(self) -> None:
        spent = [Released(1, 20.0, 0.1)]
        multiplier = noise_multiplier(200.0, DELTA, times=4, spent=spent)
        assert multiplier == pytest.approx(0.25 * math.sqrt(4), rel=1e-6)
        assert epsilon([*spent, Released(4, multiplier)], DELTA) < 200.0

    def test_sampling_is_ignored_with_very_little_noise(self) -> None:
        spent = [Released(1, 0.1)]
        args = (200.0, DELTA)
        assert noise_multiplier(*args, times=4, sample_rate=0.1, spent=spent) == (
            noise_multiplier(*args, times=4, spent=spent)
        )

    @pytest.mark.parametrize("rate", [1.0, 0.1])
    @pytest.mark.parametrize(
        "spent", [[Released(1, 1.0)], [Released(400, 3.0, 0.1)], [Unprotected("labels")]]
    )
    def test_no_budget_left(self, rate: float, spent: list[Event]) -> None:
        with pytest.raises(BudgetError, match="no budget is left"):
            noise_multiplier(1.0, DELTA, times=1, sample_rate=rate, spent=spent)

    def test_the_error_names_budget_and_spent(self) -> None:
        with pytest.raises(
            BudgetError, match=r"budget is epsilon 1 at delta 1e-05, and 4\.37718 is spent"
        ):
            noise_multiplier(1.0, DELTA, times=1, spent=[Released(1, 1.0)])

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"epsilon": 0.0}, "epsilon must be above 0"),
            ({"epsilon": math.inf}, "epsilon must be above 0"),
            ({"delta": 0.0}, "delta must be above 0"),
            ({"times": 0}, "times must be"),
            ({"sample_rate": 0.0}, "sample_rate must be"),
        ],
    )
    def test_out_of_range(self, change: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            noise_multiplier(**{"epsilon": 1.0, "delta": DELTA, "times": 1} | change)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"times": 0}, "times must be an integer of at least 1, got 0"),
        ({"times": 1.5}, "times must be"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be above 0 and finite, got 0.0"),
        ({"noise_multiplier": math.inf}, "noise_multiplier must be"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be"),
        ({"sample_rate": 0.0}, "sample_rate must be above 0 and at most 1, got 0.0"),
        ({"sample_rate": 1.01}, "sample_rate must be"),
        ({"sample_rate": math.nan}, "sample_rate must be"),
    ],
)
def test_releases_out_of_range(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Released(**{"times": 1, "noise_multiplier": 1.0} | change)


class TestJSON:
    @given(
        st.builds(
            Released, st.integers(1), st.floats(0, exclude_min=True, allow_infinity=False)
        )
        | st.builds(Released, st.just(1), st.just(1.0), st.floats(0, 1, exclude_min=True))
        | st.builds(Unprotected, st.text('é"\n{'))
    )
    def test_round_trip(self, event: Event) -> None:
        assert from_json(json.loads(json.dumps(to_json(event)))) == event

    def test_by_hand(self) -> None:
        line = {"kind": "gaussian", "times": 8, "noise_multiplier": 2.5, "sample_rate": 1.0}
        assert to_json(Released(8, 2.5)) == line
        assert from_json(line) == Released(8, 2.5)

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ({}, "kind must be one of gaussian, unprotected, got None"),
            ({"kind": "laplace", "times": 1}, "got 'laplace'"),
            ({"kind": ["gaussian"]}, "kind must be"),
            ({"kind": "gaussian", "times": 1}, "not a release of kind gaussian"),
            ({"kind": "gaussian", "times": 1, "noise_multiplier": "2"}, "not a release"),
            ({"kind": "gaussian", "times": 1, "noise_multiplier": -1.0}, "above 0"),
            (
                {"kind": "gaussian", "times": "1", "noise_multiplier": 1.0},
                "integer of at least 1",
            ),
            ({"kind": "unprotected", "what": "labels", "when": 1}, "not a release"),
        ],
    )
    def test_anything_else_is_refused(self, line: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            from_json(line)


def test_help_does_not_import_the_accountant() -> None:
    code = (
        "import sys, feddm.privacy.accounting\n"
        "from typer.testing import CliRunner\n"
        "from feddm.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "sys.exit('dp_accounting' in sys.modules or 'cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
