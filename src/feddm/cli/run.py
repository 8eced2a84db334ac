"""``feddm run`` and ``feddm resume``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddm.cli import options
from feddm.cli.report import WriteReport, report_at_end
from feddm.config.code import FORM, absolute, label
from feddm.errors import FedDMError

if TYPE_CHECKING:
    from feddm.runtime.display import Display
    from feddm.runtime.run import Observer

Log = Annotated[
    str | None,
    typer.Option(metavar="TRACKER", help="Log every round to tensorboard or mlflow, too."),
]

RUN_EXAMPLES = """\
Examples:

- `feddm run`

- `feddm run --dataset mnist --alpha 0.1 --rounds 3 --out runs/skewed`

- `feddm run --dataset cifar10 --preset paper --set server.momentum=0.9`"""

RESUME_EXAMPLES = "Example: `feddm resume runs/feddm-digits-1`"


@options.configured()
def run(
    given: options.Given,
    out: Annotated[
        Path | None, typer.Option(help="New run directory; else the next free one in runs/.")
    ] = None,
    report: WriteReport = True,
    log: Log = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Run a federation from start to end.

    Without options: FedDM on the embedded digits, ten clients, a minute on two cores. Results,
    model, synthetic sets and a checkpoint of every round go into a run directory.
    """
    config = given.resolved()
    from feddm.runtime.run import execute
    from feddm.runtime.rundir import next_free

    directory = out or next_free(
        Path("runs"), f"{label(config.algorithm.name)}-{config.data.name}"
    )
    try:
        with shown(directory, quiet, json) as display:
            observer = _logged(log, directory, display)
            result = execute(config, directory, observer, arguments=sys.argv[1:])
            display.finished(result.records, directory)
            if report:
                report_at_end(directory, display)
    finally:
        if out is None:
            with suppress(OSError):
                directory.rmdir()  # works only if nothing was begun in it


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Its run directory.")],
    workers: options.Workers = None,
    data_dir: options.DataDir = None,
    data: options.Data = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar=FORM, help="An algorithm of your own that moved.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar=FORM, help="A model of your own that moved.")
    ] = None,
    report: WriteReport = True,
    log: Log = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Continue a run that was interrupted.

    It goes on after the last whole round, and ends with the same bits as if it had never
    stopped.
    """
    number = None if workers is None else options.number_of_workers(workers)
    from feddm.runtime import run as runtime

    with shown(directory, quiet, json) as display:
        observer = _logged(log, directory, display)
        moved = {"algorithm": algorithm, "model": model}
        result = runtime.resume(
            directory,
            workers=number,
            data_dir=data_dir,
            data=data,
            code={key: absolute(name) for key, name in moved.items() if name is not None},
            observer=observer,
        )
        display.finished(result.records, directory)
        if report:
            report_at_end(directory, display)


def _logged(log: str | None, directory: Path, display: Display) -> Observer:
    """Returns the display, and a tracker beside it if one was asked for."""
    if log is None:
        return display
    from feddm.analysis.tracking import Both, tracker

    return Both(display, tracker(log, directory))


@contextmanager
def shown(
    directory: Path, quiet: bool, json: bool, go_on: str = "feddm resume"
) -> Iterator[Display]:
    """Gives the display that was asked for, and says how to go on after Ctrl-C.

    Args:
        directory: Of the run.
        quiet: Show errors only.
        json: Show JSON.
        go_on: The command that goes on with the directory; empty if there is none.
    """
    from rich.console import Console

    from feddm.runtime.display import Display, JsonDisplay, TextDisplay

    display = Display() if quiet else JsonDisplay() if json else TextDisplay(Console())
    try:
        with display:
            yield display
    except KeyboardInterrupt:
        if not (directory / "config.toml").exists():
            raise
        then = f" Continue with: {go_on} {shlex.quote(str(directory))}" if go_on else ""
        Console(stderr=True, soft_wrap=True).print(f"Interrupted.{then}", markup=False)
        raise typer.Exit(130) from None
    except OSError as error:
        # All files are written with errors of their own: this is whoever reads our output.
        raise FedDMError(
            f"cannot write the output ({error.strerror}); the run stopped, continue it with "
            f"`feddm resume {shlex.quote(str(directory))}`"
        ) from error
