"""Accuracy and loss of parameters on examples."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from feddm.data.examples import Examples
from feddm.models import Model
from feddm.tensors import Tensors

CHUNK = 64  # images a forward pass: more would leave the cache


class Evaluation(NamedTuple):
    """How well parameters do: share of right answers, and mean cross entropy."""

    accuracy: float
    loss: float


def evaluate(model: Model, params: Tensors, data: Examples) -> Evaluation:
    """Returns accuracy and loss over all examples."""
    right, loss = 0, 0.0
    with torch.inference_mode():
        for start in range(0, len(data), CHUNK):
            x, y, _ = data[start : start + CHUNK]
            logits = model(params, x).logits
            right += int((logits.argmax(1) == y).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
    return Evaluation(right / len(data), loss / len(data))
