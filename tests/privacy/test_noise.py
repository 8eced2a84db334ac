import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from feddm.privacy.noise import Label, Secret, digest, gaussian, poisson_sample

SECRET = Secret(bytes(range(32)), for_tests=True)
LABEL = Label("sums", 3, 7, b"downloaded")
OTHERS = [
    dataclasses.replace(LABEL, purpose="sum"),
    dataclasses.replace(LABEL, round=4),
    dataclasses.replace(LABEL, number=8),
    dataclasses.replace(LABEL, download=b"downloadee"),
    Label("sums", 7, 3, b"downloaded"),
]
MANY = 200_000

Draw = Callable[[Secret, Label, Sequence[int]], Tensor]


def sample(secret: Secret, label: Label, shape: Sequence[int]) -> Tensor:
    """Returns a sample, with the signature of the other draws."""
    return poisson_sample(secret, label, math.prod(shape), 0.5)


DRAWS: list[Draw] = [gaussian, sample]


class TestSecret:
    def test_printing_does_not_show_it(self) -> None:
        key = b"abcdefghijklmnopqrstuvwxyz012345"
        secret = Secret(key)
        for shown in (repr(secret), str(secret), f"{secret}", repr([secret])):
            assert key.decode() not in shown
            assert key.hex() not in shown
            assert repr(key) not in shown

    def test_fresh_ones_differ(self) -> None:
        first, second = Secret.fresh(), Secret.fresh()
        assert first != second
        assert not first.for_tests

    def test_hex_round_trip(self) -> None:
        assert Secret.from_hex(SECRET.to_hex(), for_tests=True) == SECRET
        assert SECRET.to_hex().startswith("000102")
        assert not Secret.from_hex(SECRET.to_hex()).for_tests

    @pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
    def test_wrong_length(self, length: int) -> None:
        with pytest.raises(ValueError, match=f"32 bytes, got {length}"):
            Secret(bytes(length))

    def test_an_error_does_not_show_it(self) -> None:
        with pytest.raises(ValueError, match="non-hexadecimal") as error:
            Secret.from_hex("seventeen secrets")
        assert "seventeen" not in str(error.value)


class TestLabel:
    LABELS = st.builds(
        Label, st.text("ab\x00é"), st.integers(0, 300), st.integers(0, 300), st.binary()
    )

    def test_by_hand(self) -> None:
        assert Label("ab", 1, 258, b"\xff").encoded() == (
            b"\0\0\0\0\0\0\0\2ab" + b"\0\0\0\0\0\0\0\1" + b"\0\0\0\0\0\0\1\2"
            b"\0\0\0\0\0\0\0\1\xff"
        )

    @given(LABELS, LABELS)
    def test_only_equal_labels_have_equal_bytes(self, a: Label, b: Label) -> None:
        assert (a.encoded() == b.encoded()) == (a == b)

    @given(LABELS)
    def test_can_be_read_back(self, label: Label) -> None:
        # An invertible encoding never maps two labels to the same bytes.
        data = label.encoded()
        end = 8 + int.from_bytes(data[:8], "big")
        round_, number, length = (
            int.from_bytes(data[i : i + 8], "big") for i in (end, end + 8, end + 16)
        )
        assert len(data) == end + 24 + length
        assert Label(data[8:end].decode(), round_, number, data[end + 24 :]) == label

    @pytest.mark.parametrize("change", [{"round": -1}, {"number": -1}, {"number": 2**64}])
    def test_out_of_range(self, change: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="at least 0 and below"):
            dataclasses.replace(LABEL, **change)


def recomputed_sample(num: int, rate: float) -> list[int]:
    """Returns a sample from AES of a counter, block by block."""
    uniform = [((word >> 12) + 0.5) / 2**52 for word in words(b"sample", num)]
    return [i for i, u in enumerate(uniform) if u < rate]


def recomputed_gaussian(num: int) -> list[float]:
    """Returns normal numbers from one word for the sign and 52 bits, and one for 53 more."""
    drawn = words(b"gaussian", 2 * num)
    numbers = []
    for word, more in zip(drawn[:num], drawn[num:], strict=True):
        share = Fraction(2 * ((word >> 12) << 53) + 2 * (more >> 11) + 1, 2**107)
        number = float(stats.norm.ppf(float(share)))
        numbers.append(-number if word % 2 else number)
    return numbers


def words(drawn: bytes, num: int) -> list[int]:
    """Returns the keystream as 64-bit words."""
    key = hashlib.blake2b(digest_size=32, key=bytes(range(32)), person=b"feddm " + drawn)
    key.update((4).to_bytes(8, "big") + b"sums" + (3).to_bytes(8, "big"))
    key.update((7).to_bytes(8, "big") + (10).to_bytes(8, "big") + b"downloaded")
    cipher = Cipher(AES(key.digest()), ECB())
    blocks = [
        cipher.encryptor().update(i.to_bytes(16, "big")) for i in range(math.ceil(num / 2))
    ]
    return [int.from_bytes(b[i : i + 8], "little") for b in blocks for i in (0, 8)][:num]


def test_recomputed_block_by_block() -> None:
    # More than 256 blocks, so that the counter has a carry.
    expected = recomputed_gaussian(601)
    np.testing.assert_allclose(gaussian(SECRET, LABEL, (601,)), expected, rtol=1e-12)
    kept = recomputed_sample(601, 0.3)
    assert poisson_sample(SECRET, LABEL, 601, 0.3).tolist() == kept


def test_known_values() -> None:
    # From `openssl enc -aes-256-ctr`, and scipy's norm.ppf.
    assert poisson_sample(SECRET, LABEL, 20, 0.5).tolist() == [0, 1, 5, 7, 11, 12, 13, 16]
    noise = gaussian(SECRET, LABEL, (2,)).tolist()
    assert noise == pytest.approx([-0.08880808520020868, 0.8354632214332711], rel=1e-12)


@pytest.mark.parametrize("draw", DRAWS)
def test_equal_inputs_give_equal_numbers(draw: Draw) -> None:
    assert torch.equal(draw(SECRET, LABEL, (50,)), draw(SECRET, LABEL, (50,)))
    for_real = Secret(SECRET.key)  # the mark does not change the numbers
    assert torch.equal(draw(SECRET, LABEL, (50,)), draw(for_real, LABEL, (50,)))


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("other", OTHERS)
def test_another_label_gives_other_numbers(draw: Draw, other: Label) -> None:
    a, b = draw(SECRET, LABEL, (50,)), draw(SECRET, other, (50,))
    assert (
        not set(a.tolist()) & set(b.tolist()) if draw is not sample else not torch.equal(a, b)
    )


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("bit", [0, 100, 255])
def test_every_bit_of_the_secret_matters(draw: Draw, bit: int) -> None:
    number = int.from_bytes(SECRET.key, "little") ^ (1 << bit)
    other = Secret(number.to_bytes(32, "little"), for_tests=True)
    assert not torch.equal(draw(SECRET, LABEL, (50,)), draw(other, LABEL, (50,)))


def test_noise_and_sample_are_independent() -> None:
    noise = torch.special.ndtr(gaussian(SECRET, LABEL, (MANY,)))
    kept = torch.zeros(MANY).index_fill(0, poisson_sample(SECRET, LABEL, MANY, 0.5), 1.0)
    assert abs(correlation(kept, noise)) < 4 / math.sqrt(MANY)


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1])


@pytest.mark.parametrize("other", OTHERS)
def test_labels_are_independent(other: Label) -> None:
    a, b = (gaussian(SECRET, label, (MANY,)) for label in (LABEL, other))
    assert abs(correlation(a, b)) < 4 / math.sqrt(MANY)
    assert abs(correlation(a.square(), b.square())) < 4 / math.sqrt(MANY)
    assert stats.kstest(((a - b) / math.sqrt(2)).numpy(), "norm").pvalue > 0.01


def test_gaussian_numbers() -> None:
    numbers = gaussian(SECRET, LABEL, (MANY,))
    assert numbers.dtype == torch.float64
    assert stats.kstest(numbers.numpy(), "norm").pvalue > 0.01
    # Four standard errors: moments 1, 2, 3, 4 of a normal number have variances 1, 2, 15, 96.
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        moment = float(numbers.pow(power).mean())
        assert moment == pytest.approx(expected, abs=4 * math.sqrt(variance / MANY))
    assert abs(correlation(numbers[1:], numbers[:-1])) < 4 / math.sqrt(MANY)


# scipy's norm.ppf of 2**-107, the smallest position in the tail, and of 1/2, the largest.
@pytest.mark.parametrize(("byte", "number"), [(b"\x00", -11.8966), (b"\xff", 0.0)])
def test_extreme_numbers_are_finite(
    byte: bytes, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddm.privacy.noise._keystream", lambda *args: byte * args[-1])
    assert poisson_sample(SECRET, LABEL, 1, 0.0).tolist() == []
    assert poisson_sample(SECRET, LABEL, 1, 1.0).tolist() == [0]
    assert gaussian(SECRET, LABEL, ()).item() == pytest.approx(number, abs=1e-4)


def test_the_tail_has_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    # The smallest nonzero 52 bits, at 8 standard deviations, with different bits after them.
    drawn = []
    for more in (0, 1 << 40, 1 << 63):
        stream = (1 << 12).to_bytes(8, "little") + more.to_bytes(8, "little")
        monkeypatch.setattr("feddm.privacy.noise._keystream", lambda *_, s=stream: s)
        drawn.append(gaussian(SECRET, LABEL, ()).item())
    assert drawn[0] < drawn[1] < drawn[2]
    assert drawn[1] - drawn[0] < 1e-6


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), torch.Size([2, 2])])
def test_shapes(shape: Sequence[int]) -> None:
    assert gaussian(SECRET, LABEL, shape).shape == torch.Size(shape)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_sample_rate(rate: float) -> None:
    kept = poisson_sample(SECRET, LABEL, MANY, rate)
    assert kept.dtype == torch.int64
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert int(kept.max()) < MANY
    deviation = math.sqrt(MANY * rate * (1 - rate))
    assert len(kept) == pytest.approx(MANY * rate, abs=4 * deviation)
    # Gaps between members of a Poisson sample are geometric: no blocks, no even spacing.
    gaps = kept.diff().double()
    assert float(gaps.var()) == pytest.approx((1 - rate) / rate**2, rel=0.15)


def test_samples_vary_in_size() -> None:
    sizes = [
        len(poisson_sample(SECRET, dataclasses.replace(LABEL, number=i), 100, 0.5))
        for i in range(200)
    ]
    assert np.var(sizes) == pytest.approx(25, rel=0.4)


def test_rates_zero_and_one() -> None:
    assert poisson_sample(SECRET, LABEL, 5, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert poisson_sample(SECRET, LABEL, 5, 0.0).tolist() == []
    assert poisson_sample(SECRET, LABEL, 0, 0.5).tolist() == []


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_rates_out_of_range(rate: float) -> None:
    with pytest.raises(ValueError, match="rate must be between 0 and 1"):
        poisson_sample(SECRET, LABEL, 5, rate)


def test_no_other_generator_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError("noise that can be recomputed")

    for name in ("randn", "rand", "randint", "randperm", "normal", "bernoulli", "Generator"):
        monkeypatch.setattr(torch, name, refuse)
    for name in ("normal_", "uniform_", "bernoulli_", "random_"):
        monkeypatch.setattr(Tensor, name, refuse)
    for name in (
        "default_rng",
        "normal",
        "standard_normal",
        "uniform",
        "random",
        "rand",
        "randn",
    ):
        monkeypatch.setattr(np.random, name, refuse)
    before = torch.random.get_rng_state()
    for draw in DRAWS:
        assert len(draw(SECRET, LABEL, (20,))) > 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_seeds_do_not_matter() -> None:
    torch.manual_seed(0)
    first = gaussian(SECRET, LABEL, (5,))
    torch.manual_seed(1)
    assert torch.equal(gaussian(SECRET, LABEL, (5,)), first)


class TestDigest:
    DTYPES = st.sampled_from([torch.float32, torch.int32, torch.uint8, torch.bool])
    SHAPES = st.lists(st.integers(0, 2), max_size=2)
    TENSORS = st.builds(lambda s, d, v: torch.full(s, v, dtype=d), SHAPES, DTYPES, st.just(1))
    NAMES = st.text("a/", max_size=3)
    RECORDS = st.dictionaries(NAMES, st.dictionaries(NAMES, TENSORS, max_size=2), max_size=2)

    def plain(self, records: dict[str, dict[str, Tensor]]) -> object:
        """Returns records in a form that Python can compare."""
        return {
            record: {n: (t.dtype, t.shape, t.tolist()) for n, t in tensors.items()}
            for record, tensors in records.items()
        }

    def test_by_hand(self) -> None:
        def framed(part: bytes) -> bytes:
            return len(part).to_bytes(8, "big") + part

        tensor = torch.tensor([[1, 2, 3]], dtype=torch.uint8)
        expected = hashlib.sha256(
            framed(b"params") + (1).to_bytes(8, "big")
            # One tensor: its name, type, shape (1, 3) and bytes.
            + framed(b"w") + framed(b"torch.uint8")
            + framed((1).to_bytes(8, "big") + (3).to_bytes(8, "big")) + b"\1\2\3"
        )  # fmt: skip
        assert digest({"params": {"w": tensor}}) == expected.digest()

    @given(RECORDS, RECORDS)
    def test_only_equal_records_have_equal_digests(
        self, a: dict[str, dict[str, Tensor]], b: dict[str, dict[str, Tensor]]
    ) -> None:
        assert (digest(a) == digest(b)) == (self.plain(a) == self.plain(b))

    @given(RECORDS)
    def test_order_does_not_matter(self, records: dict[str, dict[str, Tensor]]) -> None:
        backwards = {r: dict(reversed(t.items())) for r, t in reversed(records.items())}
        assert digest(backwards) == digest(records)

    def test_everything_matters(self) -> None:
        w, zero = torch.tensor([1.0, 2.0]), torch.zeros(2)
        different: list[dict[str, dict[str, Tensor]]] = [
            {},
            {"params": {}},
            {"params": {}, "control": {}},
            {"params": {"w": w}},
            {"params": {"v": w}},
            {"control": {"w": w}},
            {"params": {"w": w.flip(0)}},
            {"params": {"w": w[None]}},
            {"params": {"w": w.double()}},
            {"params": {"w": w.view(torch.int32)}},
            {"params": {"w": w}, "control": {}},
            {"params": {"w": w, "v": zero}},
            {"params": {"w": zero, "v": w}},
            {"params": {"w": w}, "v": {"v": zero}},
            {"params": {"w": w[:0]}},
            {"params": {"w": w[0]}},
            {"params": {"w": -zero}},
            {"params": {"w": zero}},
        ]
        assert len({digest(records) for records in different}) == len(different)

    def test_memory_layout_does_not_matter(self) -> None:
        w = torch.arange(6.0).view(2, 3)
        same = [w, w.clone().requires_grad_(), w.T.contiguous().T, torch.cat([w, w])[:2]]
        assert len({digest({"params": {"w": tensor}}) for tensor in same}) == 1

    def test_all_types(self) -> None:
        for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.bool):
            assert len(digest({"x": {"x": torch.ones(3, dtype=dtype)}})) == 32
