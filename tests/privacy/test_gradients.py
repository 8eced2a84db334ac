"""Clipped gradients by hand and by a loop, what one example can change, and DP-SGD."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feddm.core.examples import Examples
from feddm.core.models import Model
from feddm.core.seeding import generator
from feddm.core.tensors import Tensors, norm, zip_map
from feddm.core.training import SGD
from feddm.privacy import gradients
from feddm.privacy.accounting import Released
from feddm.privacy.clipping import real
from feddm.privacy.gradients import PrivateSGD, clipped_gradient_sum, train_privately
from private import MODEL, cancelling, examples, noise
from toy import TwoParameters, pixels, point

PARAMS = MODEL.init(generator(0, "test"))


def gradient(model: Model, params: Tensors, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Returns the gradient of one example, by torch.autograd."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    loss = F.cross_entropy(model(leaves, x[None]).logits, y[None])
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def by_name(total: Tensor, params: Tensors, most: float) -> dict[str, Tensor]:
    """Returns a sum in whole numbers as the parameters that it is about."""
    names = sorted(params)
    parts = real(total, most).split([params[name].numel() for name in names])
    return {n: part.view_as(params[n]) for n, part in zip(names, parts, strict=True)}


def summed(model: Model, params: Tensors, data: Examples, most: float) -> dict[str, Tensor]:
    return by_name(clipped_gradient_sum(model, params, data, most), params, most)


def one_by_one(model: Model, params: Tensors, data: Examples, most: float) -> dict[str, Tensor]:
    """Returns the clipped sum as anybody would write it."""
    total = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    for x, y in zip(data.x, data.y, strict=True):
        grads = gradient(model, params, x, y)
        factor = min(1.0, most / norm(grads))
        total = zip_map(lambda t, g, by=factor: t + by * g, total, grads)
    return total


def assert_close(ours: Tensors, expected: Tensors) -> None:
    assert set(ours) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(ours[name].float(), tensor, rtol=1e-4, atol=1e-5)


def test_by_hand() -> None:
    # At a = 0, the logits are (0, 0) for any pixel x, so p = 1/2 and z = a b x for class 0.
    # Class 0: d loss / d z = -1/2, so (d/da, d/db) = (-b x / 2, -a x / 2) = (-x, 0) at b = 2.
    # Class 1 has the opposite sign. The pixels 0.5 of class 0 and 3 of class 1 give -.5 and 3.
    data = Examples(pixels(0.5, 3.0), torch.tensor([0, 1]))
    for most, expected in ((10.0, 2.5), (1.0, 0.5), (0.1, 0.0)):
        total = summed(TwoParameters(), point(0.0, 2.0), data, most)
        assert float(total["a"]) == pytest.approx(expected, abs=1e-4)
        assert float(total["b"]) == 0


def test_all_parameters_are_clipped_as_one_vector() -> None:
    # At a = b = 1 and x = ln 3: z = ln 3, p = 3/4, and both derivatives are -x / 4.
    data = Examples(pixels(math.log(3)), torch.tensor([0]))
    uncut = summed(TwoParameters(), point(1.0, 1.0), data, most=1.0)
    assert [float(uncut[n]) for n in "ab"] == pytest.approx([-math.log(3) / 4] * 2)
    cut = summed(TwoParameters(), point(1.0, 1.0), data, most=0.1)
    assert [float(cut[n]) for n in "ab"] == pytest.approx([-0.1 / math.sqrt(2)] * 2, rel=1e-4)


@pytest.mark.parametrize("most", [0.05, 0.8, 100.0])
def test_it_is_the_loop_over_examples(most: float) -> None:
    data = examples(*[0, 1, 2] * 13)
    assert_close(summed(MODEL, PARAMS, data, most), one_by_one(MODEL, PARAMS, data, most))


def test_no_example_gives_zero() -> None:
    total = clipped_gradient_sum(MODEL, PARAMS, examples(), most=1.0)
    assert total.shape == (sum(tensor.numel() for tensor in PARAMS.values()),)
    assert not total.any()


@settings(max_examples=40)
@given(
    pixel=st.sampled_from([0.0, 1e3, -1e20, 3e38, math.inf, math.nan]),
    scale=st.sampled_from([0.0, 1.0, 1e4, 1e20, math.inf, math.nan]),
    others=st.integers(0, 40),
    label=st.integers(0, 2),
    most=st.sampled_from([1e-3, 0.5, 100.0]),
)
def test_one_example_changes_the_sum_by_at_most_the_bound(
    pixel: float, scale: float, others: int, label: int, most: float
) -> None:
    data = examples(*[n % 3 for n in range(others)], label, seed=others)
    data.x[-1] += pixel
    # Any weights: the server chooses them, and may do so to find out.
    params = {name: tensor * scale for name, tensor in PARAMS.items()}
    change = changed(params, data, torch.arange(others), most)
    assert float(change.norm()) <= most


def changed(params: Tensors, data: Examples, without: Tensor, most: float) -> Tensor:
    """Returns by how much the sum changes if only these examples are there."""
    ours, theirs = (
        clipped_gradient_sum(MODEL, params, each, most) for each in (data, data.subset(without))
    )
    return real(ours - theirs, most)


@pytest.mark.parametrize("others", [1, 7, 8, 15, 33])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("cancels", [False, True])
def test_the_others_keep_their_bits(others: int, place: int, cancels: bool) -> None:
    """What one example adds is the same whichever others there are, and wherever they are."""
    data = examples(*[n % 3 for n in range(others + 1)], seed=others)
    params = cancelling(PARAMS) if cancels else PARAMS
    gone = place % (others + 1)
    without = torch.tensor([n for n in range(others + 1) if n != gone])
    alone = data.subset(torch.tensor([gone]))
    expected = real(clipped_gradient_sum(MODEL, params, alone, 0.5), 0.5)
    assert bool(expected.any())
    assert torch.equal(changed(params, data, without, 0.5), expected)


def private(steps: int, rate: float = 1.0, multiplier: float = 1e-9, **sgd: Any) -> PrivateSGD:
    how = SGD(lr=0.1, epochs=1, batch_size=1, **sgd)
    return PrivateSGD(how, steps, rate, 4.0, most=0.5, noise_multiplier=multiplier)


def test_without_noise_and_samples_it_is_gradient_descent() -> None:
    data = examples(0, 1, 2, 2, 1)
    ours = train_privately(MODEL, PARAMS, data, private(3), noise())
    params = dict(PARAMS)
    for _ in range(3):
        grads = one_by_one(MODEL, params, data, most=0.5)
        params = zip_map(lambda w, g: w - 0.1 * g / 4.0, params, grads)
    assert_close(ours, params)
    assert norm(zip_map(torch.sub, params, PARAMS)) > 0.01


def test_momentum_and_weight_decay_by_hand() -> None:
    # At a = 0, b = 0 nothing has a gradient; decay .5 and momentum .5 from b = 8 instead:
    # 8 - .1 * 4 = 7.6, then the velocity is .5 * 4 + 3.8 = 5.8, and 7.6 - .58 = 7.02.
    data = Examples(pixels(), torch.tensor([], dtype=torch.int64))
    how = private(2, momentum=0.5, weight_decay=0.5)
    ours = train_privately(TwoParameters(), point(0.0, 8.0), data, how, noise())
    assert float(ours["b"]) == pytest.approx(7.02, abs=1e-5)


def test_steps_and_events_are_as_planned() -> None:
    how = private(7, rate=0.25, multiplier=2.0)
    for data in (examples(), examples(0), examples(*[1] * 30)):
        ours, done = noise(), list[float]()
        train_privately(MODEL, PARAMS, data, how, ours, tick=done.append)
        assert how.planned == (Released(7, 2.0, 0.25),)
        assert ours.released == (Released(1, 2.0, 0.25),) * 7
        assert done == pytest.approx([step / 7 for step in range(1, 8)])


def test_samples_are_drawn_at_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def watched(model: Model, params: Tensors, data: Examples, *_: object) -> Tensor:
        sizes.append(len(data))
        numbers = sum(tensor.numel() for tensor in params.values())
        return torch.zeros(numbers, dtype=torch.int64)

    monkeypatch.setattr(gradients, "clipped_gradient_sum", watched)
    train_privately(MODEL, PARAMS, examples(*[0] * 400), private(50, rate=0.1), noise())
    # Samples are independent: 40 examples on average, 6 more or less, never always as many.
    assert sum(sizes) / 50 == pytest.approx(40, abs=5 * 6 / math.sqrt(50))
    assert 3 < torch.tensor(sizes).float().std() < 9


def test_one_step_adds_noise_of_the_planned_size() -> None:
    how = private(1, multiplier=3.0)
    after = train_privately(MODEL, PARAMS, examples(), how, noise())
    moved = torch.cat([(PARAMS[name] - after[name]).flatten() for name in PARAMS])
    # lr * z * C / expected batch = .1 * 3 * .5 / 4; deviations are off by 1 / sqrt(2 n).
    expected = 0.1 * 3.0 * 0.5 / 4.0
    assert float(moved.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * len(moved)))


def test_a_client_without_examples_sends_the_same_shapes() -> None:
    how = private(2, rate=0.5, multiplier=1.0)
    some, none = (
        train_privately(MODEL, PARAMS, data, how, noise())
        for data in (examples(0, 1), examples())
    )
    assert [(n, t.shape, t.dtype) for n, t in some.items()] == [
        (n, t.shape, t.dtype) for n, t in none.items()
    ]


def test_noise_does_not_depend_on_the_order_of_a_mapping() -> None:
    # Files and workers hand parameters over in the order of their names. Noise in another
    # order would be a second release of the same sums.
    data, how = examples(0, 1, 2), private(2, multiplier=1.0)
    backwards = {name: PARAMS[name] for name in reversed(list(PARAMS))}
    first, second = (
        train_privately(MODEL, params, data, how, noise()) for params in (PARAMS, backwards)
    )
    for name in PARAMS:
        assert torch.equal(first[name], second[name]), name


def test_sums_of_many_examples_are_exact() -> None:
    # Single precision would lose 2**-24 of a sum with every example that is added to it.
    data = Examples(pixels(*[1.0] * 3000), torch.tensor([0] * 3000))
    one, all_ = (
        clipped_gradient_sum(TwoParameters(), point(1.0, 1.0), each, most=0.1)
        for each in (data.subset(torch.tensor([0])), data)
    )
    assert bool(one.any())
    assert torch.equal(all_, 3000 * one)
