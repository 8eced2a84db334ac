"""Accuracy and loss of parameters on examples."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from feddm.data.examples import Examples
from feddm.models import Model, chunks
from feddm.tensors import Tensors


class Evaluation(NamedTuple):
    """How well parameters do: share of right answers, and mean cross entropy."""

    accuracy: float
    loss: float


def evaluate(model: Model, params: Tensors, data: Examples) -> Evaluation:
    """Returns accuracy and loss over all examples."""
    right, loss = 0, 0.0
    with torch.no_grad():
        for index in chunks(torch.arange(len(data))):
            x, y, _ = data[index]
            logits = model(params, x).logits
            right += int((logits.argmax(1) == y).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
    return Evaluation(right / len(data), loss / len(data))
