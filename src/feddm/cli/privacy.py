"""``feddm privacy``: the privacy cost of noise, the spent budget and the list of uploads."""

from __future__ import annotations

import json as json_
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddm.cli import options
from feddm.errors import ConfigError, LedgerError

if TYPE_CHECKING:
    from feddm.privacy.accounting import Released
    from feddm.privacy.ledger import Ledger

EXAMPLES = """\
Examples:

- `feddm privacy noise --epsilon 4 --rounds 5 --releases 2`

- `feddm privacy ledger`"""

app = typer.Typer(no_args_is_help=True, help="Compute budgets, and show ledgers and uploads.")

Rounds = Annotated[int, typer.Option(help="Number of communication rounds.")]
Releases = Annotated[
    int, typer.Option(help="Releases per client and round: networks, or noisy steps.")
]
SampleRate = Annotated[
    float, typer.Option(help="Probability that an example is in a release; 1 means all are.")
]
Counts = Annotated[
    bool,
    typer.Option(
        "--counts", help="Add one noisy class count per round, as in FedDM with `gradients`."
    ),
]
Delta = Annotated[float, typer.Option(help="Delta of the guarantee.")]
Folder = Annotated[
    Path | None,
    typer.Argument(metavar="[DIR]", help="Ledger folder. Default: the one of `feddm run`."),
]


@app.command(epilog="Example: `feddm privacy epsilon --noise 2 --rounds 5 --releases 2`")
def epsilon(
    noise: Annotated[
        float, typer.Option(help="Noise multiplier: standard deviation / sensitivity.")
    ],
    rounds: Rounds = 1,
    releases: Releases = 1,
    sample_rate: SampleRate = 1.0,
    counts: Counts = False,
    delta: Delta = 1e-5,
    json: options.Json = False,
) -> None:
    """Compute the epsilon of all rounds together for a given noise."""
    from feddm.privacy.accounting import Released
    from feddm.privacy.accounting import epsilon as cost

    try:
        released = Released(rounds * releases, noise, sample_rate)
        spent = cost([released, *_counts(counts, rounds)], delta)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if json:
        print(json_.dumps({"epsilon": spent if math.isfinite(spent) else None}))
    else:
        print(f"epsilon {spent:.6g} at delta {delta:g}, for one example added or removed")


@app.command(epilog="Example: `feddm privacy noise --epsilon 4 --rounds 5 --releases 2`")
def noise(
    epsilon: Annotated[float, typer.Option(help="Budget for all rounds together.")],
    rounds: Rounds = 1,
    releases: Releases = 1,
    sample_rate: SampleRate = 1.0,
    counts: Counts = False,
    delta: Delta = 1e-5,
    json: options.Json = False,
) -> None:
    """Compute the noise that a budget requires."""
    from feddm.privacy.accounting import noise_multiplier

    try:
        least = noise_multiplier(
            epsilon,
            delta,
            times=rounds * releases,
            sample_rate=sample_rate,
            spent=_counts(counts, rounds),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if json:
        print(json_.dumps({"noise_multiplier": least}))
    else:
        print(f"noise multiplier {least:.6g} (standard deviation / sensitivity)")


@app.command(epilog="Example: `feddm privacy ledger --delta 1e-6`")
def ledger(folder: Folder = None, delta: Delta = 1e-5, json: options.Json = False) -> None:
    """Show the privacy budget spent on each data set.

    The epsilon is that of the client that spent the most. An example only pays for the releases
    of its own client, but in every split of the data set ever used. Each unit of privacy
    (example, group, client) has its own epsilon, because protecting one does not protect the
    others. Runs without privacy are not in any ledger.
    """
    from feddm.privacy.ledger import Ledger, clients_in, ledger_root, run_ledger_root
    from feddm.runtime.results import finite

    rows = []
    for dataset in _folders(folder or ledger_root()):
        found = Ledger(dataset)
        clients = max((len(clients_in(split)) for split in found.splits()), default=0)
        try:
            spent = _spent_by_unit(found, delta)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        rows += [{"dataset": dataset.name, "clients": clients, **row} for row in spent]
    if json:
        print(json_.dumps(finite(rows), indent=2))
        return
    if not rows:
        print("Nothing has been spent yet.")
    for row in rows:
        reasons = row["unprotected"]
        text = _epsilon_text(math.inf if reasons else row["epsilon"], delta)
        print(f"{row['dataset']:<14} {row['clients']:>5,} clients  {row['unit']:<7}  {text}")
        for reason in reasons:
            print(f"  - {reason}")
        if reasons:
            print(f"  - all other releases: {_epsilon_text(row['protected'], delta)}")
    own = run_ledger_root()
    if folder is None and own.is_dir():
        print(f"Runs with their own ledger: {len(_folders(own)):,}, in {own}")


def _spent_by_unit(ledger: Ledger, delta: float) -> list[dict[str, Any]]:
    """Returns the epsilon spent per unit of privacy, and its unprotected releases."""
    from feddm.privacy.accounting import Released, Unprotected
    from feddm.privacy.accounting import epsilon as cost
    from feddm.privacy.ledger import clients_in, costs, read_entries

    splits = {
        split.name: [read_entries(client) for client in clients_in(split)]
        for split in ledger.splits()
    }
    rows = []
    for unit in sorted({e.unit for split in splits.values() for own in split for e in own}):
        protected, unprotected = 0.0, set()
        for name, clients in splits.items():
            elsewhere = ledger.elsewhere(name, unit)
            for own in clients:
                events = [*elsewhere, *costs(own, unit)]
                released = [event for event in events if isinstance(event, Released)]
                protected = max(protected, cost(released, delta))
                unprotected |= {e.what for e in events if isinstance(e, Unprotected)}
        rows.append(
            {
                "unit": unit,
                "epsilon": math.inf if unprotected else protected,
                "protected": protected,
                "unprotected": sorted(unprotected),
            }
        )
    return rows


@app.command(epilog="Example: `feddm privacy uploads --json`")
def uploads(folder: Folder = None, json: options.Json = False) -> None:
    """List all uploads of private clients, with their time, size and hash.

    `--json` adds the shapes. Uploads of runs without privacy are not listed.
    """
    from feddm.core.formatting import size_text
    from feddm.privacy.ledger import Ledger, clients_in, ledger_root, run_ledger_root
    from feddm.privacy.vault import upload_log

    own = sorted(run_ledger_root().glob("*"))  # ledgers of single runs
    shared = [ledger_root()] if ledger_root().is_dir() or not own else []
    roots = [folder] if folder else [*shared, *own]
    rows = [
        {"dataset": dataset.name, "split": split.name, "client": client.name, **upload}
        for root in roots
        for dataset in _folders(root)
        for split in Ledger(dataset).splits()
        for client in clients_in(split)
        for upload in upload_log(client)
    ]
    if json:
        print(json_.dumps(rows, indent=2))
        return
    if not rows:
        print("No private client has uploaded anything yet.")
    heading = ""
    for row in rows:
        whose = f"{row['dataset']}, split {row['split'][:8]}, {row['client']}"
        if whose != heading:
            heading = whose
            print(heading)
        spent = "no guarantee" if row["epsilon"] is None else f"epsilon {row['epsilon']:.4f}"
        print(
            f"  {row['time'][:19]}  round {row['round']:>3}  {size_text(row['bytes']):>8}  "
            f"{row['sha256'][:16]}  {spent}"
        )


def _counts(released: bool, rounds: int) -> list[Released]:
    """Returns the releases of class counts, if there are any."""
    from feddm.algorithms.gradient_feddm import GradientFedDMSettings
    from feddm.privacy.accounting import Released

    multiplier = GradientFedDMSettings().count_multiplier
    return [Released(rounds, multiplier)] if released else []


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise LedgerError(f"no ledgers in {root}; a private run creates one")
    return sorted(path for path in root.iterdir() if path.is_dir())


def _epsilon_text(epsilon: float, delta: float) -> str:
    if not math.isfinite(epsilon):
        return "no guarantee"
    return f"epsilon {epsilon:.4f} at delta {delta:g}"
