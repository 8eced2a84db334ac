"""``feddm privacy``: what noise costs, what was spent, and what left this machine."""

from __future__ import annotations

import json as json_
import math
from pathlib import Path
from typing import Annotated

import typer

from feddm.cli import options
from feddm.errors import ConfigError, LedgerError

EXAMPLES = """\
Examples:

- `feddm privacy noise --epsilon 4 --rounds 5 --releases 2`

- `feddm privacy ledger`"""

app = typer.Typer(no_args_is_help=True, help="Budgets, ledgers and what was uploaded.")

Rounds = Annotated[int, typer.Option(help="Rounds of communication.")]
Releases = Annotated[
    int, typer.Option(help="Releases of a client in a round: networks, or noisy steps.")
]
SampleRate = Annotated[
    float, typer.Option(help="Probability of an example to be in a release; 1: all are.")
]
Delta = Annotated[float, typer.Option(help="Of the guarantee.")]
Folder = Annotated[
    Path | None,
    typer.Argument(metavar="[DIR]", help="Folder of the ledgers; else that of `feddm run`."),
]


@app.command(epilog="Example: `feddm privacy epsilon --noise 2 --rounds 5 --releases 2`")
def epsilon(
    noise: Annotated[float, typer.Option(help="Noise over what one example can change.")],
    rounds: Rounds = 1,
    releases: Releases = 1,
    sample_rate: SampleRate = 1.0,
    delta: Delta = 1e-5,
    json: options.Json = False,
) -> None:
    """Say what noise costs: the epsilon of all rounds together."""
    from feddm.privacy.accounting import Released
    from feddm.privacy.accounting import epsilon as cost

    try:
        spent = cost([Released(rounds * releases, noise, sample_rate)], delta)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if json:
        print(json_.dumps({"epsilon": spent if math.isfinite(spent) else None}))
    else:
        print(f"epsilon {spent:.6g} at delta {delta:g}, for one example added or removed")


@app.command(epilog="Example: `feddm privacy noise --epsilon 4 --rounds 5 --releases 2`")
def noise(
    epsilon: Annotated[float, typer.Option(help="Budget of all rounds together.")],
    rounds: Rounds = 1,
    releases: Releases = 1,
    sample_rate: SampleRate = 1.0,
    delta: Delta = 1e-5,
    json: options.Json = False,
) -> None:
    """Say how much noise a budget asks for."""
    from feddm.privacy.accounting import noise_multiplier

    try:
        least = noise_multiplier(
            epsilon, delta, times=rounds * releases, sample_rate=sample_rate
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if json:
        print(json_.dumps({"noise_multiplier": least}))
    else:
        print(f"noise multiplier {least:.6g}: noise over what one example can change")


@app.command(epilog="Example: `feddm privacy ledger --delta 1e-6`")
def ledger(folder: Folder = None, delta: Delta = 1e-5, json: options.Json = False) -> None:
    """Show what was spent of each data set.

    An example pays for the releases of its own client, in every split of the data set that was
    ever used: the figure is for the client that spent most.
    """
    from feddm.privacy.accounting import epsilon as cost
    from feddm.vault import all_spent, ledger_root

    rows = []
    for dataset in _folders(folder or ledger_root()):
        events = all_spent(dataset)
        clients = len(list(dataset.glob("*/client_*")))
        rows.append((dataset.name, clients, len(events), cost(events, delta)))
    if json:
        fields = ("dataset", "clients", "kinds", "epsilon")
        finite = [(*row[:3], row[3] if math.isfinite(row[3]) else None) for row in rows]
        print(json_.dumps([dict(zip(fields, row, strict=True)) for row in finite], indent=2))
        return
    for name, clients, _, spent in rows:
        text = (
            f"epsilon {spent:.4f} at delta {delta:g}"
            if math.isfinite(spent)
            else "no guarantee"
        )
        print(f"{name:<16} {clients:>6,} clients   {text}")


@app.command(epilog="Example: `feddm privacy uploads --json`")
def uploads(folder: Folder = None, json: options.Json = False) -> None:
    """Show everything that clients uploaded under privacy: when, how large, and its hash."""
    from feddm.vault import ledger_root, upload_log

    rows = []
    for dataset in _folders(folder or ledger_root()):
        for client in sorted(dataset.glob("*/client_*")):
            rows += [
                {"dataset": dataset.name, "client": client.name, **upload}
                for upload in upload_log(client)
            ]
    if json:
        print(json_.dumps(rows, indent=2))
        return
    for row in rows:
        spent = "no guarantee" if row["epsilon"] is None else f"epsilon {row['epsilon']:.4f}"
        print(
            f"{row['time']}  {row['dataset']} {row['client']}  round {row['round']:>3}  "
            f"{row['bytes']:>9,} B  {row['sha256'][:16]}  {spent}"
        )


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise LedgerError(f"{root} has no ledgers; a private run makes some")
    return sorted(path for path in root.iterdir() if path.is_dir())
