"""Clipped rows as integers: close to the row, never longer, and exactly additive."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddm.privacy.clipping import GRID, real, shortened, whole

ROWS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20)
MOST = st.sampled_from([1e-3, 0.5, 1.0, 3.0, 1e4])


def test_by_hand() -> None:
    # With norm 4, 1 is a quarter of the grid. A third of the grid is rounded towards 0.
    assert whole(torch.tensor([1.0, -1.0]), 4.0).tolist() == [GRID // 4, -GRID // 4]
    third = torch.tensor([4 / 3, -4 / 3], dtype=torch.float64)
    assert whole(third, 4.0).tolist() == [GRID // 3, -(GRID // 3)]
    assert real(torch.tensor([GRID // 4]), 4.0).tolist() == [1.0]


@given(ROWS, MOST)
def test_no_row_becomes_longer(row: list[float], most: float) -> None:
    numbers = whole(shortened(torch.tensor([row]), most), most)[0].tolist()
    # In exact arithmetic.
    assert sum(number**2 for number in numbers) <= GRID**2


@given(ROWS, MOST)
def test_rounding_loses_less_than_one_grid_step(row: list[float], most: float) -> None:
    short = shortened(torch.tensor([row]), most).double()
    lost = (short - real(whole(short, most), most)).abs()
    assert float(lost.max()) <= most / GRID * (1 + 1e-6)


@given(st.lists(ROWS.map(lambda row: (row * 20)[:20]), min_size=1), st.randoms())
def test_sums_do_not_depend_on_the_order(rows: list[list[float]], random: object) -> None:
    numbers = whole(shortened(torch.tensor(rows), 1.0), 1.0)
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert torch.equal(numbers.sum(0), numbers[order].sum(0))


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=80),
    st.sampled_from([1e-6, 1e-3, 1.0, 1e6]),
)
def test_extreme_norms(row: list[float], most: float) -> None:
    numbers = whole(shortened(torch.tensor([row]), most), most)[0].tolist()
    assert sum(number**2 for number in numbers) <= GRID**2


@pytest.mark.parametrize("most", [1e-6, 1e-3, 1.0])
def test_huge_rows_of_equal_numbers(most: float) -> None:
    # The clipping factor is below the smallest float32.
    short = shortened(torch.full((1, 74), 3.4e38), most).double()
    assert float(short.norm()) <= most
    assert float(short.norm()) > 0.9999 * most


def test_non_finite_rows_become_zero() -> None:
    rows = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [1.0, -math.inf]])
    assert not whole(shortened(rows, 1.0), 1.0).any()
