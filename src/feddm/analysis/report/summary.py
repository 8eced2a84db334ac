"""Methods in words: titles, cards, a table, what is private, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from feddm.analysis.report.means import mean_rounds, outcome
from feddm.analysis.report.runs import Method
from feddm.analysis.tables import accuracy_text, guarantees
from feddm.config.schema import flat
from feddm.core.formatting import percent, size_text, time_text
from feddm.runtime.wording import introduction, label, spent

NEAR = 0.01  # what is within one point of the best accuracy is nearly as good


class Card(NamedTuple):
    """A figure that is read at a glance."""

    title: str
    value: str
    more: str = ""


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
    if any(config.data.holdout for config in configs):
        judged = "mean accuracy on what clients hold out"
    elif any(config.data.validation for config in configs):
        judged = "accuracy on held-out training examples"
    else:
        judged = "accuracy on the test set"
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
    rounds = mean_rounds(method)
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
    if not method.private:
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
    if method.private:
        row = outcome(method)
        shown.append(Card("Privacy", spent(row.epsilon, row.privacy), guarantees([row])))
    return shown


def _cards_of_several(methods: Sequence[Method]) -> list[Card]:
    top = max(methods, key=lambda method: outcome(method).final.mean)
    best = outcome(top).final.mean
    frugal = [
        (reached.sent["bytes"], reached.round, method.name)
        for method in methods
        for reached in [
            next((r for r in mean_rounds(method) if r.accuracy >= best - NEAR), None)
        ]
        if reached is not None
    ]
    shown = [Card("Highest final accuracy", percent(best), _with_spread(top))]
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
    if any(method.private for method in methods):
        titles.append("Privacy")
    return titles


def row(method: Method) -> dict[str, Any]:
    """Returns what the table says about a method."""
    result, rounds = outcome(method), mean_rounds(method)
    clients = time_text(sum(each.client_seconds for each in rounds))
    return {
        "name": method.name,
        "Final accuracy": f"{accuracy_text(result.final)} %",
        "Best": f"{accuracy_text(result.best)} %",
        "Sent by clients": size_text(rounds[-1].sent["bytes"]),
        "Clients computed": "not told" if method.private else clients,
        "Server computed": time_text(sum(each.server_seconds for each in rounds)),
        "Privacy": spent(result.epsilon, result.privacy),
    }


class Site(NamedTuple):
    """What a client says about the last model, on examples that it held out."""

    client: str
    accuracy: str
    balanced_accuracy: str


class Sites(NamedTuple):
    """What all clients of a run say, the worst first."""

    title: str
    summary: str
    rows: list[Site]


def sites(methods: Sequence[Method]) -> list[Sites]:
    """Returns what clients say about the last models, for runs in which they were asked."""
    found = []
    for method in methods:
        for run in method.runs:
            said = sorted(run.records[-1].sites, key=lambda site: site.accuracy)
            if not said:
                continue
            mean = sum(site.accuracy for site in said) / len(said)
            balanced = sum(site.balanced_accuracy for site in said) / len(said)
            rows = [
                Site(
                    f"client {site.client}",
                    percent(site.accuracy),
                    percent(site.balanced_accuracy),
                )
                for site in said
            ]
            words = (
                f"mean {percent(mean)}, worst {percent(said[0].accuracy)}; balanced "
                f"{percent(balanced)}"
            )
            found.append(Sites(f"{method.name}, seed {run.config.seed}", words, rows))
    return found


def dropouts(methods: Sequence[Method]) -> list[str]:
    """Returns who was asked and brought nothing, in words."""
    return [
        f"{method.name}, seed {run.config.seed}, round {record.round}: client {dropout.client} "
        f"brought nothing: {dropout.reason}."
        for method in methods
        for run in method.runs
        for record in run.records
        for dropout in record.dropouts
    ]


def promise(method: Method) -> dict[str, str]:
    """Returns what is promised, and how it is kept."""
    row = outcome(method)
    return {
        "what": label(method.name, row.epsilon, row.privacy),
        "how": introduction(method.config.privacy),
    }


def setup(method: Method) -> dict[str, Any]:
    """Returns how to run a method again."""
    config = method.config
    on_nodes = bool(config.data.own.classes or config.data.holdout)
    run = method.runs[0]
    arguments = run.environment.get("arguments")
    if on_nodes:
        command = "flwr run my-app -c 'config=\"config.toml\"'"
    elif arguments:
        command = shlex.join(["feddm", *map(str, arguments)])
    else:
        command = shlex.join(["feddm", "run", f"{run.folder.name}/config.toml"])
    return {
        "name": method.name,
        "seeds": _all_of(run.config.seed for run in method.runs),
        "toml": config.to_toml(),
        "command": command,
        "file": on_nodes or not arguments,
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
    hidden = {"run", "ledger", "ledger_id", "arguments"}
    if any(method.private for method in methods):
        hidden.add("data")
    runs = [run for method in methods for run in method.runs]
    names = dict.fromkeys(name for run in runs for name in run.environment)
    return {
        {"data": "digest of the data"}.get(name, name): _all_of(
            run.environment.get(name, "?") for run in runs
        )
        for name in names
        if name not in hidden
    }


def _with_spread(method: Method) -> str:
    std = outcome(method).final.std
    return method.name if std is None else f"{method.name}, ± {100 * std:.2f} over seeds"


def _of_planned(method: Method) -> str:
    planned = method.config.rounds
    return "" if method.num_rounds == planned else f"of {planned} that are planned"


def _participation(method: Method) -> str:
    share = method.config.participation
    return "all in every round" if share == 1 else f"{100 * share:g} % of them in a round"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _all_of(values: Iterable[object]) -> str:
    """Returns every value once, with commas between."""
    return ", ".join(map(str, dict.fromkeys(values)))


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
