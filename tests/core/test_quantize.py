import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from feddm.core.quantize import (
    Bits,
    Quantized,
    decode,
    dequantize,
    quantize,
    quantized_bytes,
)
from feddm.core.seeding import generator
from feddm.core.tensors import num_bytes
from feddm.errors import UploadError

TOP: dict[Bits, int] = {8: 127, 4: 7}
BITS = st.sampled_from(sorted(TOP))
SEEDS = st.integers(0, 1000)


def arrays(elements: st.SearchStrategy[float]) -> st.SearchStrategy[Tensor]:
    """Returns tensors of up to three dimensions, empty ones and scalars too."""
    shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
    return npst.arrays("float32", shapes, elements=elements).map(torch.as_tensor)


TENSORS = arrays(st.floats(-1e3, 1e3, width=32))


def sent_for(tensor: Tensor, bits: Bits, seed: int = 0) -> Quantized:
    return quantize({"w": tensor}, bits, generator(seed, "test"))


def there_and_back(tensor: Tensor, bits: Bits, seed: int = 0) -> Tensor:
    return decode(sent_for(tensor, bits, seed), {"w": tensor}, bits)["w"]


def test_8_bits_by_hand() -> None:
    # The largest is 254, so that a level is 2, and level 0 is sent as 128.
    sent = sent_for(torch.tensor([[254.0, -254.0], [0.0, 6.0]]), 8)
    assert float(sent.scales["w"]) == 2
    assert sent.codes["w"].tolist() == [[255, 1], [128, 131]]


def test_4_bits_by_hand() -> None:
    # A level is .5, and level 0 is sent as 8: the levels 7, -7, 0, 1 and -2 as 15, 1, 8, 9, 6.
    sent = sent_for(torch.tensor([3.5, -3.5, 0.0, 0.5, -1.0]), 4)
    assert float(sent.scales["w"]) == 0.5
    assert sent.codes["w"].tolist() == [15 + 16 * 1, 8 + 16 * 9, 6]


def test_a_number_between_two_levels_goes_to_either() -> None:
    # A level is 1. A quarter of 10,000 numbers that are 2.25 should become 3, with a deviation
    # of sqrt(10,000 * .25 * .75) = 43; and so for -2.25, of which three quarters become -2.
    numbers = torch.cat([torch.full((10_000,), 2.25), torch.full((10_000,), -2.25)])
    arrived = there_and_back(torch.cat([numbers, torch.tensor([7.0])]), 4)
    above, below = arrived[:10_000], arrived[10_000:20_000]
    assert set(above.tolist()) == {2.0, 3.0}
    assert set(below.tolist()) == {-3.0, -2.0}
    assert int((above == 3).sum()) == pytest.approx(2500, abs=5 * 43)
    assert int((below == -3).sum()) == pytest.approx(2500, abs=5 * 43)


@given(arrays(st.floats(-10, 10, width=32)), BITS, SEEDS)
def test_the_mean_of_many_roundings_is_the_tensor(
    tensor: Tensor, bits: Bits, seed: int
) -> None:
    times = 2000
    mean = there_and_back(tensor.expand(times, *tensor.shape), bits, seed).mean(0)
    # Rounding to a level above or below has a deviation of half a level at most.
    scale = float(sent_for(tensor, bits).scales["w"])
    deviation = 0.5 * scale / math.sqrt(times)
    assert bool(((mean - tensor).abs() <= 6 * deviation + 1e-5 * scale).all())


@given(TENSORS, BITS, SEEDS)
def test_it_is_less_than_a_level_away(tensor: Tensor, bits: Bits, seed: int) -> None:
    scale = float(sent_for(tensor, bits).scales["w"])
    gap = (there_and_back(tensor, bits, seed) - tensor).abs()
    assert bool((gap <= scale * (1 + 1e-4)).all())


@given(st.data(), BITS, st.integers(-20, 10), SEEDS)
def test_what_lies_on_levels_comes_back(
    data: st.DataObject, bits: Bits, exponent: int, seed: int
) -> None:
    top = TOP[bits]
    levels = data.draw(st.lists(st.integers(-top, top), max_size=9))
    tensor = 2.0**exponent * torch.tensor([top, *levels], dtype=torch.float32)
    assert torch.equal(there_and_back(tensor, bits, seed), tensor)


@given(TENSORS, TENSORS, BITS)
def test_bytes_are_counted_as_they_are_sent(first: Tensor, second: Tensor, bits: Bits) -> None:
    tensors = {"a": first, "b": second}
    sent = quantize(tensors, bits, generator(0, "test"))
    assert quantized_bytes(tensors, bits) == num_bytes(sent._asdict())


@pytest.mark.parametrize("bits", TOP)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 2)])
def test_zeros_have_the_scale_1_and_come_back(bits: Bits, shape: tuple[int, ...]) -> None:
    zeros = torch.zeros(shape)
    assert float(sent_for(zeros, bits).scales["w"]) == 1
    assert torch.equal(there_and_back(zeros, bits), zeros)


@pytest.mark.parametrize("bits", TOP)
def test_the_smallest_numbers_stay_small(bits: Bits) -> None:
    # So small that their scale would be 0: they are rounded to the smallest normal float or 0.
    tensor = torch.tensor([1e-45, -1e-45, 0.0]).repeat(1000)
    assert bool((there_and_back(tensor, bits).abs() <= 1.2e-38).all())


def test_the_order_of_names_does_not_matter() -> None:
    values = torch.randn(2, 50, generator=generator(0, "values"))
    tensors = {"b": values[0], "a": values[1]}
    first, second = (
        quantize(ordered, 8, generator(0, "test")).codes
        for ordered in (tensors, dict(sorted(tensors.items())))
    )
    assert torch.equal(first["a"], second["a"])
    assert torch.equal(first["b"], second["b"])


@pytest.mark.parametrize("bits", TOP)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e9])
def test_what_training_spoiled_is_refused(bits: Bits, wrong: float) -> None:
    with pytest.raises(UploadError, match=r"the scale of w must be above 0 and at most 1e\+06"):
        there_and_back(torch.tensor([1.0, wrong]), bits)


WEIGHTS = {"w": torch.tensor([[3.0, -7.0, 7.0]])}
ONE = torch.tensor(1.0)


def good(bits: Bits) -> Quantized:
    return quantize(WEIGHTS, bits, generator(0, "test"))


@pytest.mark.parametrize("bits", TOP)
@pytest.mark.parametrize(
    ("scale", "says"),
    [
        (ONE.double(), "one torch.float32, got torch.float64"),
        (torch.ones(1), r"one torch.float32, got torch.float32 \(1,\)"),
        (torch.tensor(0.0), "above 0 and at most .*, got 0"),
        (torch.tensor(-1.0), "above 0 .*, got -1"),
        (torch.tensor(math.nan), "above 0 .*, got nan"),
        (torch.tensor(math.inf), "above 0 .*, got inf"),
        (torch.tensor(1.1e6), "above 0 .*, got 1.1e"),
    ],
)
def test_wrong_scales_are_refused(bits: Bits, scale: Tensor, says: str) -> None:
    with pytest.raises(UploadError, match=says):
        decode(good(bits)._replace(scales={"w": scale}), WEIGHTS, bits)


def test_the_largest_scale_is_taken() -> None:
    # The levels are 54.4, -127 and 127, the first of them rounded.
    sent = good(8)._replace(scales={"w": torch.tensor(1e6)})
    assert decode(sent, WEIGHTS, 8)["w"][0, 1:].tolist() == [-127e6, 127e6]


@pytest.mark.parametrize(
    ("bits", "codes", "says"),
    [
        (8, [[1.0, 2.0, 3.0]], "uint8 of shape .*, got torch.float32"),
        (8, [1, 2, 3], r"uint8 of shape \(1, 3\), got torch.uint8 \(3,\)"),
        (8, [[1, 2]], r"got torch.uint8 \(1, 2\)"),
        (8, [[1, 2, 3, 4]], r"got torch.uint8 \(1, 4\)"),
        (8, [[1, 0, 255]], "a level below -127"),
        (4, [17.0, 1.0], "uint8 of shape .*, got torch.float32"),
        (4, [[17, 1]], r"uint8 of shape \(2,\), got torch.uint8 \(1, 2\)"),
        (4, [17], r"got torch.uint8 \(1,\)"),
        (4, [17, 17, 1], r"got torch.uint8 \(3,\)"),
        (4, [16, 1], "a level below -7"),  # 0 in the lower half
        (4, [15, 1], "a level below -7"),  # 0 in the upper half
        (4, [17, 0], "a level below -7"),
        (4, [17, 17], "a level more than it has numbers"),
    ],
)
def test_wrong_codes_are_refused(bits: Bits, codes: list[Any], says: str) -> None:
    wrong = torch.tensor(codes)
    if not wrong.is_floating_point():
        wrong = wrong.to(torch.uint8)
    with pytest.raises(UploadError, match=says):
        decode(good(bits)._replace(codes={"w": wrong}), WEIGHTS, bits)


@pytest.mark.parametrize(
    "sent",
    [
        Quantized({}, {}),
        Quantized({}, {"w": ONE}),
        Quantized({"w": WEIGHTS["w"].to(torch.uint8)}, {}),
        Quantized({"v": WEIGHTS["w"].to(torch.uint8)}, {"v": ONE}),
        good(8)._replace(scales={"w": ONE, "v": ONE}),
    ],
)
def test_other_names_are_refused(sent: Quantized) -> None:
    with pytest.raises(UploadError, match="not those of the model"):
        decode(sent, WEIGHTS, 8)


@given(st.data(), BITS)
def test_whatever_is_accepted_has_levels_within_range(data: st.DataObject, bits: Bits) -> None:
    number = data.draw(st.integers(0, 5))
    size = number if bits == 8 else math.ceil(number / 2)
    codes = torch.tensor(list(data.draw(st.binary(min_size=size, max_size=size))))
    sent = Quantized({"w": codes.to(torch.uint8)}, {"w": ONE})
    template = {"w": torch.zeros(number)}
    found = dequantize(sent, template, bits)["w"]
    outside = bool((found.abs() > TOP[bits]).any())
    unused = bits == 4 and number % 2 == 1 and int(codes[-1]) > 15
    if outside or unused:
        with pytest.raises(UploadError):
            decode(sent, template, bits)
    else:
        assert torch.equal(decode(sent, template, bits)["w"], found)
