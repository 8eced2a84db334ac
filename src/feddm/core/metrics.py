"""Accuracy and loss of parameters on examples."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from feddm.core.examples import Examples
from feddm.core.models import Model, chunks
from feddm.core.tensors import Tensors


class Evaluation(NamedTuple):
    """Test results of a model.

    Args:
        accuracy: Fraction of correct predictions.
        loss: Mean cross entropy.
        balanced_accuracy: Mean of the accuracies per class.
    """

    accuracy: float
    loss: float
    balanced_accuracy: float


def evaluate(model: Model, params: Tensors, data: Examples) -> Evaluation:
    """Returns accuracy and loss over all examples; classes without examples are left out."""
    loss = 0.0
    total, correct = torch.zeros(2, model.num_classes, dtype=torch.int64)
    with torch.no_grad():
        for index in chunks(torch.arange(len(data))):
            x, y, _ = data[index]
            logits = model(params, x).logits
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
            y = y.cpu()
            total += torch.bincount(y, minlength=model.num_classes)
            hits = y[logits.argmax(1).cpu() == y]
            correct += torch.bincount(hits, minlength=model.num_classes)
    present = total > 0
    balanced = (correct[present] / total[present]).mean()
    return Evaluation(int(correct.sum()) / len(data), loss / len(data), float(balanced))
