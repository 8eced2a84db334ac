"""The texts of a report: title, cards, table of methods, privacy, how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from feddm.analysis.report.means import mean_rounds, outcome
from feddm.analysis.report.runs import Method
from feddm.analysis.tables import Table, accuracy_text, guarantees
from feddm.config import code
from feddm.config.resolve import flat
from feddm.core.formatting import percent, size_text, time_text
from feddm.runtime.wording import introduction, label, spent

NEAR = 0.01  # within one percentage point of the best accuracy counts as nearly as good


class Card(NamedTuple):
    """One headline number."""

    title: str
    value: str
    more: str = ""


def title(methods: Sequence[Method]) -> str:
    """Returns the title of the page."""
    names = [method.name for method in methods]
    if len(names) > 4:
        what = f"{len(names)} methods"
    else:
        what = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{what} on {_all_of(method.config.data.name for method in methods)}"


def lede(methods: Sequence[Method]) -> str:
    """Returns a line about the setup of the runs."""
    configs = [method.config for method in methods]
    schemes = {
        "iid": "split evenly",
        "classes": "a few classes per client",
        "given": "clients as the data say",
    }
    splits = (
        schemes.get(config.partition.scheme, f"Dirichlet({config.partition.alpha:g})")
        for config in configs
    )
    models = (
        f"{config.model.name} of width {config.model.width}"
        if config.model.name == "convnet"
        else code.label(config.model.name)
        for config in configs
    )
    seeds = sorted({run.config.seed for method in methods for run in method.runs})
    if any(config.data.holdout and config.data.path for config in configs):
        judged = "accuracy on held-out examples"
    elif any(config.data.holdout for config in configs):
        judged = "mean accuracy on the clients' held-out examples"
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
    """Returns the headline numbers."""
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
                "Computing time, clients",
                time_text(seconds),
                f"all together; server {time_text(server)}",
            )
        )
    else:
        more = "private clients do not report theirs"
        shown.append(Card("Computing time, server", time_text(server), more))
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
        shown.append(Card("Sent to get within a point of it", size_text(sent), after))
    shown.append(Card("Rounds", _all_of(method.num_rounds for method in methods)))
    clients = _all_of(method.config.partition.clients for method in methods)
    shown.append(Card("Clients", clients))
    seeds = {run.config.seed for method in methods for run in method.runs}
    shown.append(Card("Seeds", str(len(seeds)), _all_of(sorted(seeds))))
    return shown


def table(methods: Sequence[Method]) -> Table:
    """Returns the table of methods."""
    private = any(method.private for method in methods)
    titles = [
        "Method",
        "Final accuracy",
        "Best",
        "Sent by clients",
        "Client computing",
        "Server computing",
        *(["Privacy"] if private else []),
    ]
    lines = []
    for method in methods:
        result, rounds = outcome(method), mean_rounds(method)
        clients = time_text(sum(each.client_seconds for each in rounds))
        lines.append(
            [
                method.name,
                f"{accuracy_text(result.final)} %",
                f"{accuracy_text(result.best)} %",
                size_text(rounds[-1].sent["bytes"]),
                "not reported" if method.private else clients,
                time_text(sum(each.server_seconds for each in rounds)),
                *([spent(result.epsilon, result.privacy)] if private else []),
            ]
        )
    return Table(titles, lines)


class Site(NamedTuple):
    """One client's evaluation of the last model, on its held-out examples."""

    client: str
    accuracy: str
    balanced_accuracy: str


class Sites(NamedTuple):
    """The evaluations by all clients of a run, worst first."""

    title: str
    summary: str
    rows: list[Site]


def sites(methods: Sequence[Method]) -> list[Sites]:
    """Returns the clients' evaluations of the last models, for runs that have them."""
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
    """Returns one sentence per client that dropped out of a round."""
    return [
        f"{method.name}, seed {run.config.seed}, round {record.round}: client {dropout.client} "
        f"dropped out: {dropout.reason}."
        for method in methods
        for run in method.runs
        for record in run.records
        for dropout in record.dropouts
    ]


def guarantee_text(method: Method) -> dict[str, str]:
    """Returns the privacy guarantee of a method, and how it is achieved."""
    row, privacy = outcome(method), method.config.privacy
    return {
        "what": label(method.name, row.epsilon, row.privacy),
        "how": introduction(privacy) if privacy else "",
    }


def setup(method: Method) -> dict[str, Any]:
    """Returns the command and configuration that run a method again."""
    config = method.config
    on_nodes = bool(config.data.own.classes or config.data.holdout) and not config.data.path
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
    """Returns the settings that differ between methods, with the value for each method."""
    settings = [
        flat(method.config.model_dump(exclude={"seed", "runtime"})) for method in methods
    ]
    keys = dict.fromkeys(key for values in settings for key in values)
    table = {key: [_value(values.get(key)) for values in settings] for key in keys}
    return {key: values for key, values in table.items() if len(set(values)) > 1}


def versions(methods: Sequence[Method]) -> dict[str, str]:
    """Returns the versions and processors of the runs.

    A digest of private data is left out: it would confirm a guess of the data.
    """
    hidden = {"run", "ledger", "ledger_id", "arguments"}
    if any(method.private for method in methods):
        hidden.add("data")
    runs = [run for method in methods for run in method.runs]
    names = dict.fromkeys(name for run in runs for name in run.environment)
    return {
        {"data": "digest of the data", "data_notes": "what was done to the data"}.get(
            name, name
        ): _all_of(run.environment.get(name, "?") for run in runs)
        for name in names
        if name not in hidden
    }


def _with_spread(method: Method) -> str:
    std = outcome(method).final.std
    return method.name if std is None else f"{method.name}, ± {100 * std:.2f} over seeds"


def _of_planned(method: Method) -> str:
    planned = method.config.rounds
    return "" if method.num_rounds == planned else f"of {planned} planned"


def _participation(method: Method) -> str:
    share = method.config.participation
    return "all in every round" if share == 1 else f"{100 * share:g} % per round"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _all_of(values: Iterable[object]) -> str:
    """Returns the distinct values, separated by commas."""
    return ", ".join(map(str, dict.fromkeys(values)))


def _value(value: object) -> str:
    if value is None:  # the method has no such setting
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)
