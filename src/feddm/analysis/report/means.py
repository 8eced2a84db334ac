"""Means over seeds, per method and round, for plots and spreadsheets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from feddm.analysis.report.runs import Method
from feddm.analysis.tables import Row, csv_text, summarize
from feddm.runtime.federation import RoundRecord
from feddm.runtime.wording import label


@dataclass(frozen=True)
class MeanRound:
    """One round of a method, averaged over its seeds."""

    round: int
    accuracy: float
    lowest: float
    highest: float
    sent: dict[str, float]  # by all clients so far, in "bytes" and in "floats"
    bytes_up: float
    bytes_down: float
    client_seconds: float
    server_seconds: float
    epsilon: float | None


def outcome(method: Method) -> Row:
    """Returns the results over all seeds, with the guarantee that holds for all of them."""
    (row,) = summarize({method.name: [run.records for run in method.runs]}, ())
    return row


def mean_rounds(method: Method) -> list[MeanRound]:
    """Returns the mean over seeds of every round; epsilon is the largest."""
    rounds: list[MeanRound] = []
    sent = {"bytes": 0.0, "floats": 0.0}
    for records in zip(*(run.records for run in method.runs), strict=True):

        def mean(name: str, records: Sequence[RoundRecord] = records) -> float:
            return statistics.fmean(getattr(record, name) for record in records)

        sent = {unit: total + mean(f"{unit}_up") for unit, total in sent.items()}
        epsilons = [record.epsilon for record in records if record.epsilon is not None]
        rounds.append(
            MeanRound(
                round=records[0].round,
                accuracy=mean("accuracy"),
                lowest=min(record.accuracy for record in records),
                highest=max(record.accuracy for record in records),
                sent=sent,
                bytes_up=mean("bytes_up"),
                bytes_down=mean("bytes_down"),
                client_seconds=mean("client_seconds"),
                server_seconds=mean("server_seconds"),
                epsilon=max(epsilons, default=None),
            )
        )
    return rounds


def curves(method: Method) -> dict[str, Any]:
    """Returns the numbers of a method that the page plots."""
    rounds = mean_rounds(method)
    last, privacy = outcome(method), method.config.privacy
    return {
        "name": method.name,
        "label": label(method.name, last.epsilon, last.privacy),
        "seeds": len(method.runs),
        "rounds": [each.round for each in rounds],
        "accuracy": [each.accuracy for each in rounds],
        "lowest": [each.lowest for each in rounds],
        "highest": [each.highest for each in rounds],
        "sent": {
            "bytes": [each.sent["bytes"] for each in rounds],
            "floats": [each.sent["floats"] for each in rounds] if in_floats(method) else None,
        },
        "up": [each.bytes_up for each in rounds],
        "down": [each.bytes_down for each in rounds],
        "clients": None if method.private else [each.client_seconds for each in rounds],
        "server": [each.server_seconds for each in rounds],
        "epsilon": epsilons(method),
        "budget": privacy.budget if privacy else 0.0,
    }


def in_floats(method: Method) -> bool:
    """Returns whether uploads are mostly floats, so that counting floats is meaningful.

    Coded images are not: their only floats are the few numbers needed to decode them.
    """
    sent = mean_rounds(method)[-1].sent
    return 4 * sent["floats"] >= sent["bytes"] / 2


def epsilons(method: Method) -> list[float]:
    """Returns the epsilon after each round, or nothing if there is no guarantee."""
    spent = [each.epsilon for each in mean_rounds(method)]
    known = [epsilon for epsilon in spent if epsilon is not None and math.isfinite(epsilon)]
    return known if len(known) == len(spent) else []


def to_csv(methods: Sequence[Method]) -> str:
    """Returns CSV with one line per method, seed and round."""
    names = (
        *("accuracy", "loss", "floats_up", "floats_down", "bytes_up", "bytes_down"),
        *("client_seconds", "server_seconds", "epsilon", "delta", "unit", "privacy"),
    )
    return csv_text(
        [
            {
                "method": method.name,
                "seed": run.config.seed,
                "round": record.round,
                **{name: getattr(record, name) for name in names},
            }
            for method in methods
            for run in method.runs
            for record in run.records
        ]
    )
