"""Every example has a position that does not depend on the others."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from feddm.core.examples import Examples, Normalization
from feddm.privacy.per_example import PLACES, alone, in_places

PIXELS = st.lists(st.integers(0, 255), max_size=70)


def client(pixels: list[int]) -> Examples:
    x = torch.tensor(pixels, dtype=torch.uint8).view(-1, 1, 1, 1)
    return Examples(x, torch.arange(len(pixels)), Normalization((0.0,), (1.0,)))


def places(data: Examples) -> dict[int, int]:
    return {
        number: place
        for batch in in_places(data)
        for number, place in zip(batch.numbers.tolist(), batch.places.tolist(), strict=True)
    }


@given(PIXELS)
def test_every_example_once_in_batches_of_one_size(pixels: list[int]) -> None:
    data = client(pixels)
    seen: list[int] = []
    for batch in in_places(data):
        assert len(batch.x) == PLACES
        assert len(set(batch.places.tolist())) == len(batch.places)
        expected = data.x[batch.numbers] / 255
        torch.testing.assert_close(batch.x[batch.places], expected)
        empty = torch.ones(PLACES, dtype=torch.bool)
        empty[batch.places] = False
        assert not batch.x[empty].any()
        seen += batch.numbers.tolist()
    assert sorted(seen) == list(range(len(pixels)))


@given(PIXELS, st.integers(0, 255), st.integers(0, 70))
def test_one_more_example_moves_no_other(pixels: list[int], pixel: int, where: int) -> None:
    where = min(where, len(pixels))
    before = places(client(pixels))
    after = places(client([*pixels[:where], pixel, *pixels[where:]]))
    for number, place in before.items():
        assert after[number + (number >= where)] == place


def test_few_unused_positions_with_many_examples() -> None:
    x = torch.randint(256, (4000, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    data = Examples(x.to(torch.uint8), torch.zeros(4000, dtype=torch.int64))
    # 250 examples per position on average, with a standard deviation of 15.5.
    assert sum(1 for _ in in_places(data)) < 250 + 5 * 15.5
    floats = Examples(torch.randn(4000, 1, 4, 4), torch.zeros(4000, dtype=torch.int64))
    assert sum(1 for _ in in_places(floats)) < 250 + 5 * 15.5


def test_a_single_example_is_a_copy() -> None:
    data = Examples(torch.arange(3.0).view(3, 1, 1, 1), torch.tensor([5, 6, 7]))
    one = alone(data, 1)
    assert (one.x.tolist(), one.y.tolist()) == ([[[[1.0]]]], [6])
    one.x.fill_(9.0)
    assert float(data.x[1]) == 1.0
