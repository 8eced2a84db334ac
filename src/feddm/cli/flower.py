"""``feddm flower``: a federation on several machines, or a trial deployment on one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddm.cli import options
from feddm.cli.report import WriteReport, report_at_end
from feddm.config.code import label
from feddm.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from feddm.flower.loopback import Loopback
    from feddm.runtime.build import Setup
    from feddm.runtime.display import Display

EXAMPLES = """\
Examples:

- `feddm flower up --clients 3`

- `feddm flower app my-app && flwr run my-app`

- `feddm flower node --superlink hub:8000 --root-certificates ca.crt --key me --client 0`"""

NODE_EXAMPLES = """\
Examples, with a shard of a known data set and with your own data:

- `feddm flower node --superlink hub:8000 --root-certificates ca.crt --key me --client 0`

- `feddm flower node --superlink hub:8000 --key me --client 0 --dataset chest --data chest`"""

UP_EXAMPLES = """\
Examples:

- `feddm flower up --clients 3`

- `feddm flower up --algorithm scaffold --clients 3 --min-clients 2 --folder deployment`"""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run on several machines with Flower.",
)

Insecure = Annotated[
    bool, typer.Option("--insecure", help="No encryption and no keys; never with real data.")
]


@app.command("app", epilog="Example: `feddm flower app my-app`")
def write(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")],
) -> None:
    """Write the Flower app to a new folder, for `flwr run`."""
    _check_installed()
    from feddm.flower.app import write_app

    write_app(folder)
    print(f"flwr run {folder}")


@app.command(epilog=NODE_EXAMPLES)
def node(
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the SuperLink.")
    ],
    client: Annotated[int, typer.Option(min=0, help="Number of this client, from 0.")],
    root_certificates: Annotated[
        Path | None,
        typer.Option(help="Root certificates for the SuperLink; default: the system's."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="Private key of this node; the SuperLink needs the public one."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the node's memory, ledger and logs.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Name of your own data set.")] = "",
    data: Annotated[
        str, typer.Option(help="Path of your own data, or folder of the known data sets.")
    ] = "",
    classes: Annotated[
        str, typer.Option(help="Classes of your own data, comma-separated; for privacy.")
    ] = "",
    shape: Annotated[
        str, typer.Option(help="Channels, height and width of your images, as 1,28,28.")
    ] = "",
    insecure: Insecure = False,
) -> None:
    """Run a node. It only runs the app installed here.

    Whatever the server sends, the policy and the ledger of this machine decide what leaves it.
    Stop it with Ctrl-C.
    """
    _check_installed()
    _check_files(root_certificates, key)
    if insecure and key is not None:
        raise ConfigError("--key cannot be used with --insecure: keys only work over TLS")
    from feddm.flower.node import settings_of
    from feddm.flower.runner import Link, serve
    from feddm.privacy.policy import Policy, own_policy

    config: dict[str, str | int] = {"partition-id": client}
    config |= {
        name: value
        for name, value in (
            ("dataset", dataset),
            ("data", data),
            ("folder", _text(folder)),
            ("classes", classes),
            ("shape", shape),
        )
        if value
    }
    settings = settings_of(config)
    if own_policy(settings.dataset) == Policy():
        _say(
            "no policy.toml limits this node: it does whatever the server asks, even without "
            "privacy"
        )
    link = Link(superlink, root_certificates, key, insecure)
    serve(link, config, settings.folder, _say)


@app.command(epilog=UP_EXAMPLES)
@options.configured(without=("workers", "ledger", "data", "data_dir"))
def up(
    given: options.Given,
    out: Annotated[
        Path | None,
        typer.Option(help="New run directory; default: the next free one in runs/."),
    ] = None,
    min_clients: Annotated[
        int | None, typer.Option(min=1, help="Uploads that a round needs; default: all.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for keys, logs and nodes; default: temporary.")
    ] = None,
    insecure: Insecure = False,
    report: WriteReport = True,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Try out a deployment: a SuperLink and one node per client, all on this machine.

    It uses encryption and keys, as between machines. Everything stops when the run ends, or
    with Ctrl-C.
    """
    _check_installed()
    if min_clients is not None:
        given = given.with_settings({"min_clients": min_clients})
    config = given.resolved()
    if config.data.own.classes:
        raise ConfigError(
            "data.own needs nodes with their own data, and `feddm flower up` starts none; "
            "start each node with `feddm flower node --dataset`"
        )
    from feddm.cli.run import shown
    from feddm.flower.loopback import Loopback
    from feddm.flower.session import server_of
    from feddm.runtime.rundir import check_free, next_free

    # Check everything we can before we start any process.
    setup = server_of(config)
    if out is not None:
        check_free(out)
    directory = out or next_free(
        Path("runs"), f"flower-{label(config.algorithm.name)}-{config.data.name}"
    )
    try:
        with (
            _folder(folder) as place,
            shown(directory, quiet, json, go_on="") as display,
            Loopback(place.absolute(), insecure) as loopback,
        ):
            _start_nodes(loopback, config.partition.clients, display)
            _follow(loopback, setup, directory.absolute(), display)
            if report:
                report_at_end(directory, display)
    finally:
        if out is None:
            with contextlib.suppress(OSError):
                directory.rmdir()  # fails, as it should, unless the directory is empty


def _start_nodes(loopback: Loopback, clients: int, display: Display) -> None:
    display.say(f"SuperLink on {loopback.address}; starting {clients} nodes")
    for client in range(clients):
        loopback.start_node(client, loopback.link(client))


def _follow(loopback: Loopback, setup: Setup, directory: Path, display: Display) -> None:
    """Starts the run and shows each round once it is recorded."""
    config = setup.config
    file = loopback.folder / "config.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    run = loopback.run_app({"config": str(file), "out": str(directory)})
    display.started(config, setup, [])
    records = []
    for record in loopback.rounds(run, directory):
        display.finished_round(record)
        records.append(record)
    display.finished(records, directory)


@contextlib.contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="feddm-") as folder:
        yield Path(folder)


def _say(text: str) -> None:
    print(f"feddm: {text}", flush=True)


def _text(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


def _check_files(*paths: Path | None) -> None:
    for path in paths:
        if path is not None and not path.is_file():
            raise ConfigError(f"no such file: {path}")


def _check_installed() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise MissingExtraError("Flower is not installed: pip install 'feddm[flower]'")
