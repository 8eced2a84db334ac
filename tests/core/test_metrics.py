import math

import pytest
import torch

from feddm.core.examples import Examples
from feddm.core.metrics import evaluate
from toy import TwoParameters, pixels, point


def test_by_hand() -> None:
    # z = x against 0: 1 and 2 are correctly class 0; -1 is predicted as class 1 but is 0.
    data = Examples(pixels(1.0, 2.0, -1.0), torch.tensor([0, 0, 0]))
    result = evaluate(TwoParameters(), point(1.0, 1.0), data)
    assert result.accuracy == pytest.approx(2 / 3)
    losses = [math.log(1 + math.exp(-z)) for z in (1, 2, -1)]
    assert result.loss == pytest.approx(sum(losses) / 3)


def test_classes_count_equally_whatever_their_size() -> None:
    # All three of class 0 are correct; the one of class 1 is not.
    data = Examples(pixels(1.0, 2.0, 3.0, 4.0), torch.tensor([0, 0, 0, 1]))
    result = evaluate(TwoParameters(), point(1.0, 1.0), data)
    assert result.accuracy == 0.75
    assert result.balanced_accuracy == 0.5


def test_all_chunks_count() -> None:
    x = torch.linspace(-1, 1, 200)
    data = Examples(x.view(-1, 1, 1, 1), (x <= 0).long())
    assert evaluate(TwoParameters(), point(1.0, 1.0), data).accuracy == 1.0
