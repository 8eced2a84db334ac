"""Methods and pictures -> one HTML string. It reads no run, trains nothing and loads no model.

What is on the page in words is made here and by the template; what is drawn, and all that
answers to a click, by ``assets/page.js`` from the numbers in `drawn`.

Names come from users: the template escapes them for HTML, `drawn` is embedded as JSON that no
tag can end, and the script escapes them again where Plotly would read tags in its labels. On
top of that, the page tells the browser to run the scripts that it came with and no other,
and to fetch nothing.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from feddm.comparison import Spread, accuracy_text
from feddm.config import flat
from feddm.federation import RoundRecord
from feddm.report.command import command
from feddm.report.pictures import TILES_IN_A_ROW, Partition, Sheet
from feddm.report.runs import Method, Run
from feddm.results import finite
from feddm.words import UNITS, percent, size_text, time_text

NEAR = 0.01  # what is within one point of the best accuracy is nearly as good


@dataclass(frozen=True)
class Report:
    """All that is on a page.

    Args:
        methods: What is compared; at least one.
        command: That made the study, if it is one.
        notes: What the reader should know before all else.
        sheets: Synthetic images.
        partition: Who has what; ``None`` if that is nobody's business.
    """

    methods: tuple[Method, ...]
    command: str | None = None
    notes: tuple[str, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    partition: Partition | None = None


class Card(NamedTuple):
    """A figure that is read at a glance."""

    title: str
    value: str
    more: str = ""


def html(report: Report) -> str:
    """Returns the page."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    first, plotly, script = _asset("theme.js"), _plotly(), _asset("page.js")
    methods = report.methods
    return environment.from_string(_asset("page.html")).render(
        title=title(methods),
        lede=lede(methods),
        notes=report.notes,
        cards=cards(methods),
        rows=[row(method) for method in methods],
        columns=columns(methods),
        several=len(methods) > 1,
        many_seeds=any(len(method.runs) > 1 for method in methods),
        private=[promise(m) for m in methods if m.config.privacy.mechanism != "none"],
        protected=any(method.protected for method in methods),
        spent=any(_epsilons(method) for method in methods),
        sheets=report.sheets,
        partition=report.partition,
        command=report.command,
        setups=[setup(method) for method in methods],
        differences=differences(methods),
        versions=versions(methods),
        data=drawn(report),
        style=Markup(_asset("page.css")),
        first=Markup(first),
        plotly=Markup(plotly),
        script=Markup(script),
        hashes=[_hash(text) for text in (first, plotly, script)],
    )


def title(methods: Sequence[Method]) -> str:
    """Returns what the page is about in a few words."""
    names = [method.name for method in methods]
    if len(names) > 4:
        what = f"{len(names)} methods"
    else:
        what = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{what} on {_all_of(method.config.data.name for method in methods)}"


def lede(methods: Sequence[Method]) -> str:
    """Returns what the runs have in common."""
    configs = [method.config for method in methods]
    schemes = {
        "iid": "split evenly",
        "classes": "with a few classes each",
    }
    splits = (
        schemes.get(config.partition.scheme, f"Dirichlet({config.partition.alpha:g})")
        for config in configs
    )
    models = (
        f"{config.model.name} of width {config.model.width}"
        if config.model.name == "convnet"
        else config.model.name
        for config in configs
    )
    seeds = sorted({run.config.seed for method in methods for run in method.runs})
    judged = (
        "accuracy on held-out training examples"
        if any(config.data.validation for config in configs)
        else "accuracy on the test set"
    )
    return " · ".join(
        [
            f"{_all_of(config.partition.clients for config in configs)} clients",
            _all_of(splits),
            _all_of(models),
            f"preset {_all_of(config.preset for config in configs)}",
            f"seed{'s' * (len(seeds) > 1)} {_all_of(seeds)}",
            judged,
        ]
    )


def cards(methods: Sequence[Method]) -> list[Card]:
    """Returns what a reader wants to know first."""
    if len(methods) > 1:
        return _cards_of_several(methods)
    (method,) = methods
    rounds = _rounds(method)
    best = max(rounds, key=lambda each: each.accuracy)
    shown = [
        Card(
            "Final accuracy",
            percent(rounds[-1].accuracy),
            f"best {percent(best.accuracy)} in round {best.round}"
            + (f", {len(method.runs)} seeds" if len(method.runs) > 1 else ""),
        ),
        Card("Rounds", str(method.num_rounds), _of_planned(method)),
        Card("Clients", str(method.config.partition.clients), _participation(method)),
        Card(
            "Sent by clients",
            size_text(rounds[-1].sent["bytes"]),
            f"received {size_text(sum(each.bytes_down for each in rounds))}",
        ),
    ]
    server = sum(each.server_seconds for each in rounds)
    if not method.protected:
        seconds = sum(each.client_seconds for each in rounds)
        shown.append(
            Card(
                "Computing, clients",
                time_text(seconds),
                f"together; server {time_text(server)}",
            )
        )
    else:
        shown.append(Card("Computing, server", time_text(server), "clients do not tell"))
    if method.config.privacy.mechanism != "none":
        shown.append(Card("Privacy", privacy_text(method), _privacy_more(method)))
    return shown


def _cards_of_several(methods: Sequence[Method]) -> list[Card]:
    top = max(methods, key=lambda method: _final(method).mean)
    goal = _final(top).mean - NEAR
    frugal = [
        (reached.sent["bytes"], reached.round, method.name)
        for method in methods
        for reached in [next((r for r in _rounds(method) if r.accuracy >= goal), None)]
        if reached is not None
    ]
    shown = [Card("Highest final accuracy", percent(_final(top).mean), _with_spread(top))]
    if frugal:
        sent, number, name = min(frugal)
        after = f"{name}, after {_count(number, 'round')}"
        shown.append(Card("Within a point of it, sent", size_text(sent), after))
    shown.append(Card("Rounds", _all_of(method.num_rounds for method in methods)))
    clients = _all_of(method.config.partition.clients for method in methods)
    shown.append(Card("Clients", clients))
    seeds = {run.config.seed for method in methods for run in method.runs}
    shown.append(Card("Seeds", str(len(seeds)), _all_of(sorted(seeds))))
    return shown


def columns(methods: Sequence[Method]) -> list[str]:
    """Returns the titles of the table of methods."""
    titles = [
        "Final accuracy",
        "Best",
        "Sent by clients",
        "Clients computed",
        "Server computed",
    ]
    if any(method.config.privacy.mechanism != "none" for method in methods):
        titles.append("Privacy")
    return titles


def row(method: Method) -> dict[str, Any]:
    """Returns what the table says about a method."""
    best = Spread.of([max(r.accuracy for r in run.records) for run in method.runs])
    rounds = _rounds(method)
    clients = time_text(sum(each.client_seconds for each in rounds))
    return {
        "name": method.name,
        "Final accuracy": f"{accuracy_text(_final(method))} %",
        "Best": f"{accuracy_text(best)} %",
        "Sent by clients": size_text(rounds[-1].sent["bytes"]),
        "Clients computed": "not told" if method.protected else clients,
        "Server computed": time_text(sum(each.server_seconds for each in rounds)),
        "Privacy": privacy_text(method),
    }


def privacy_text(method: Method) -> str:
    """Returns how private the runs of a method are, in two words."""
    privacy = method.config.privacy
    if privacy.mechanism == "none":
        return "none"
    if privacy.mechanism == "paper":
        return "no guarantee"
    if privacy.test_secret:
        return "not private"
    spent = _epsilons(method)
    return f"ε = {spent[-1]:.2f}" if spent else "no guarantee"


def _privacy_more(method: Method) -> str:
    privacy = method.config.privacy
    if privacy.mechanism == "paper":
        return "noise of the paper"
    if privacy.test_secret:
        return "secrets are fixed for tests"
    return f"at δ = {privacy.delta:g}, for {UNITS[privacy.unit]}"


def promise(method: Method) -> dict[str, str]:
    """Returns what is protected, and how."""
    privacy = method.config.privacy
    budget = f"budget ε = {privacy.epsilon:g}" if privacy.epsilon else "no budget"
    how = (
        f"Private by {privacy.mechanism}: {budget} at δ = {privacy.delta:g}, noise multiplier "
        f"{privacy.noise_multiplier:.4g}. The unit is {UNITS[privacy.unit]}, added or removed."
    )
    if privacy.mechanism == "paper":
        how = (
            f"Noise of the paper, sigma = {privacy.noise_multiplier:g}: it clips the mean of a "
            "batch, begins with real images, and shows a client's classes."
        )
    elif privacy.test_secret:
        how = "Secrets are fixed by privacy.test_secret, so anybody can take the noise off."
    return {"name": method.name, "spent": privacy_text(method), "how": how}


def setup(method: Method) -> dict[str, Any]:
    """Returns how to run a method again."""
    config = method.config
    return {
        "name": method.name,
        "seeds": _all_of(run.config.seed for run in method.runs),
        "toml": config.to_toml(),
        "command": command(config) or "feddm run config.toml",
        "file": command(config) is None,
    }


def differences(methods: Sequence[Method]) -> dict[str, list[str]]:
    """Returns the settings in which the methods differ, with the value of each method."""
    settings = [
        flat(method.config.model_dump(exclude={"seed", "runtime"})) for method in methods
    ]
    keys = dict.fromkeys(key for values in settings for key in values)
    table = {key: [_value(values.get(key)) for values in settings] for key in keys}
    return {key: values for key, values in table.items() if len(set(values)) > 1}


def versions(methods: Sequence[Method]) -> dict[str, str]:
    """Returns the versions and processors of the runs.

    A digest of private data would confirm what somebody guesses, so it is not shown.
    """
    hidden = {"run"} | ({"data"} if any(method.protected for method in methods) else set())
    runs = [run for method in methods for run in method.runs]
    names = dict.fromkeys(name for run in runs for name in run.environment)
    return {
        {"data": "digest of the data"}.get(name, name): _all_of(
            run.environment.get(name, "?") for run in runs
        )
        for name in names
        if name not in hidden
    }


def drawn(report: Report) -> dict[str, Any]:
    """Returns the numbers that the script draws, as JSON can hold them."""
    data: dict[str, Any] = {
        "methods": [_curves(method) for method in report.methods],
        "sheets": [_sheet(sheet) for sheet in report.sheets],
        "csv": to_csv(report.methods),
    }
    if report.partition is not None:
        data["partition"] = {
            "classes": report.partition.classes,
            "table": report.partition.table.tolist(),
        }
    plain: dict[str, Any] = finite(data)
    return plain


def to_csv(methods: Sequence[Method]) -> str:
    """Returns one line for each method, seed and round."""
    file = io.StringIO()
    names = (
        *("accuracy", "loss", "floats_up", "floats_down", "bytes_up", "bytes_down"),
        *("client_seconds", "server_seconds", "epsilon"),
    )
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("method", "seed", "round", *names))
    for method in methods:
        for run in method.runs:
            for record in run.records:
                values = (_told(run, record, name) for name in names)
                writer.writerow((method.name, run.config.seed, record.round, *values))
    return file.getvalue()


def _told(run: Run, record: RoundRecord, name: str) -> object:
    if name == "client_seconds" and run.protected:
        return None  # would tell how many examples they have
    return getattr(record, name)


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


def _rounds(method: Method) -> list[MeanRound]:
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


def _curves(method: Method) -> dict[str, Any]:
    rounds = _rounds(method)
    return {
        "name": method.name,
        "seeds": len(method.runs),
        "rounds": [each.round for each in rounds],
        "accuracy": [each.accuracy for each in rounds],
        "lowest": [each.lowest for each in rounds],
        "highest": [each.highest for each in rounds],
        "sent": {unit: [each.sent[unit] for each in rounds] for unit in ("bytes", "floats")},
        "up": [each.bytes_up for each in rounds],
        "down": [each.bytes_down for each in rounds],
        "clients": None if method.protected else [each.client_seconds for each in rounds],
        "server": [each.server_seconds for each in rounds],
        "epsilon": _epsilons(method),
        "budget": method.config.privacy.epsilon,
    }


def _epsilons(method: Method) -> list[float]:
    """Returns what was spent after each round, if that is a guarantee at all."""
    spent = [each.epsilon for each in _rounds(method)]
    if not method.protected or method.config.privacy.test_secret:
        return []
    known = [epsilon for epsilon in spent if epsilon is not None and math.isfinite(epsilon)]
    return known if len(known) == len(spent) else []


def _sheet(sheet: Sheet) -> dict[str, Any]:
    near = sheet.neighbours
    return {
        "method": sheet.method,
        "classes": sheet.classes,
        "clients": sheet.clients,
        "labels": sheet.labels,
        "shape": sheet.shape,
        "columns": TILES_IN_A_ROW,
        "image": _data_uri(sheet.png),
        "neighbours": None if near is None else _data_uri(near),
    }


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _final(method: Method) -> Spread:
    return Spread.of([run.records[-1].accuracy for run in method.runs])


def _with_spread(method: Method) -> str:
    std = _final(method).std
    return method.name if std is None else f"{method.name}, ± {100 * std:.2f} over seeds"


def _of_planned(method: Method) -> str:
    planned = method.config.rounds
    return "" if method.num_rounds == planned else f"of {planned} that are planned"


def _participation(method: Method) -> str:
    share = method.config.participation
    return "all in every round" if share == 1 else f"{100 * share:g} % of them in a round"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _all_of(values: Any) -> str:
    """Returns every value once, with commas between."""
    return ", ".join(map(str, dict.fromkeys(values)))


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _asset(name: str) -> str:
    return files("feddm.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    return str(get_plotlyjs()).replace("\r\n", "\n")  # as browsers do before they hash it


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
