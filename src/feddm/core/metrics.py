"""Accuracy and loss of parameters on examples."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from feddm.core.examples import Examples
from feddm.core.models import Model, chunks
from feddm.core.tensors import Tensors


class Evaluation(NamedTuple):
    """How well parameters do.

    Args:
        accuracy: Share of right answers.
        loss: Mean cross entropy.
        balanced_accuracy: Mean over classes of the share of right answers.
    """

    accuracy: float
    loss: float
    balanced_accuracy: float


def evaluate(model: Model, params: Tensors, data: Examples) -> Evaluation:
    """Returns accuracy and loss over all examples."""
    loss = 0.0
    asked, right = torch.zeros(2, model.num_classes, dtype=torch.int64)
    with torch.no_grad():
        for index in chunks(torch.arange(len(data))):
            x, y, _ = data[index]
            logits = model(params, x).logits
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
            y = y.cpu()
            asked += torch.bincount(y, minlength=model.num_classes)
            hits = y[logits.argmax(1).cpu() == y]
            right += torch.bincount(hits, minlength=model.num_classes)
    there = asked > 0
    balanced = (right[there] / asked[there]).mean()
    return Evaluation(int(right.sum()) / len(data), loss / len(data), float(balanced))
