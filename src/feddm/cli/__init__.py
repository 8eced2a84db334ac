"""The command line: arguments, files, exit codes.

Each command is a few lines that call one function. Slow imports are inside the command that
needs them, so that help and error messages appear at once.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import click
import typer

from feddm.cli import (
    ablate,
    bench,
    compare,
    config,
    data,
    flower,
    leak,
    message_size,
    paper,
    partition,
    privacy,
    report,
    reuse,
    run,
    tune,
    watch,
)
from feddm.cli.settings_help import settings_help
from feddm.core.malloc import keep_freed_memory
from feddm.errors import FedDMError

app = typer.Typer(
    name="feddm",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click does
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `feddm run`: it needs no data and takes about a minute.",
)

RUNNING, LOOKING, USING = "Run", "Inspect", "Use"
app.command(rich_help_panel=RUNNING, epilog=run.RUN_EXAMPLES)(run.run)
app.command(rich_help_panel=RUNNING, epilog=run.RESUME_EXAMPLES)(run.resume)
app.command(rich_help_panel=RUNNING, epilog=compare.EXAMPLES)(compare.compare)
app.command(rich_help_panel=RUNNING, epilog=tune.EXAMPLES)(tune.tune)
app.command(rich_help_panel=RUNNING, epilog=ablate.EXAMPLES)(ablate.ablate)
app.command(rich_help_panel=LOOKING, epilog=report.EXAMPLES)(report.report)
app.command(rich_help_panel=LOOKING, epilog=watch.EXAMPLES)(watch.watch)
app.command(rich_help_panel=USING, epilog=reuse.EXPORT_EXAMPLES)(reuse.export)
app.command(rich_help_panel=USING, epilog=reuse.EVALUATE_EXAMPLES)(reuse.evaluate)
app.command("train-on", rich_help_panel=USING, epilog=reuse.TRAIN_EXAMPLES)(reuse.train_on)
app.command(rich_help_panel=LOOKING, epilog=leak.EXAMPLES)(leak.leak)
app.command(rich_help_panel=RUNNING, epilog=paper.EXAMPLES)(paper.paper)
app.command(rich_help_panel=LOOKING, epilog=config.EXAMPLES)(config.config)
app.command(rich_help_panel=LOOKING, epilog=partition.EXAMPLES)(partition.partition)
app.command("message-size", rich_help_panel=LOOKING, epilog=message_size.EXAMPLES)(
    message_size.message_size
)
app.command(rich_help_panel=LOOKING, epilog=bench.BENCH_EXAMPLES)(bench.bench)
app.command(rich_help_panel=LOOKING, epilog=bench.PROFILE_EXAMPLES)(bench.profile)
app.add_typer(flower.app, name="flower", rich_help_panel=RUNNING, epilog=flower.EXAMPLES)
app.add_typer(privacy.app, name="privacy", rich_help_panel=LOOKING, epilog=privacy.EXAMPLES)
app.add_typer(data.app, name="data", rich_help_panel=LOOKING, epilog=data.EXAMPLES)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"feddm {version('feddm')}")
        raise typer.Exit


@app.callback()
def feddm(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Federated learning with few, small messages.

    Each client learns a small synthetic data set that matches its own data near the current
    model, and sends only that; the server trains on the union.
    """


def main() -> None:
    """Runs the command line. An error that the user can fix is one line and exit code 2."""
    keep_freed_memory()
    # SIGTERM cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = app(standalone_mode=False)
        if more := settings_help(sys.argv[1:]):
            print(more)
        sys.exit(code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the help itself
        sys.exit(error.exit_code)
    except click.UsageError as error:
        where = "feddm" if error.ctx is None else error.ctx.command_path
        _end(f"{error.format_message().rstrip('.')}; see `{where} --help`", 2)
    except FedDMError as error:
        _end(str(error), 2)
    except OSError as error:
        if error.filename is not None:  # not about our output, so it is a bug
            raise
        _end(f"cannot write the output: {error.strerror}", 1)
    except KeyboardInterrupt:
        _end("interrupted", 130)


def _end(text: str, code: int) -> NoReturn:
    print(f"feddm: {text}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        # Otherwise Python flushes again on exit, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
