"""Methods by round: means over their seeds, for plots and for spreadsheets."""

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
    sent: dict[str, float]  # until then: "bytes" and "floats"
    bytes_up: float
    bytes_down: float
    client_seconds: float
    server_seconds: float
    epsilon: float | None


def outcome(method: Method) -> Row:
    """Returns what came out, over seeds, and what is promised about all of them."""
    (row,) = summarize({method.name: [run.records for run in method.runs]}, ())
    return row


def mean_rounds(method: Method) -> list[MeanRound]:
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
    rounds = mean_rounds(method)
    last = outcome(method)
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
        "budget": method.config.privacy.epsilon,
    }


def in_floats(method: Method) -> bool:
    """Returns whether clients send floats, so that their number says how much it is.

    Of coded images the floats are the few numbers that it takes to decode them.
    """
    sent = mean_rounds(method)[-1].sent
    return 4 * sent["floats"] >= sent["bytes"] / 2


def epsilons(method: Method) -> list[float]:
    """Returns what was spent after each round, if that is a guarantee at all."""
    spent = [each.epsilon for each in mean_rounds(method)]
    known = [epsilon for epsilon in spent if epsilon is not None and math.isfinite(epsilon)]
    return known if len(known) == len(spent) else []


def to_csv(methods: Sequence[Method]) -> str:
    """Returns one line for each method, seed and round."""
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
