"""Display of a run: progress bars and a table on a terminal, plain lines elsewhere, or JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from feddm.algorithms.base import ConfiguredAlgorithm
from feddm.config.code import label
from feddm.core.formatting import percent, size_text
from feddm.core.models import num_params
from feddm.core.seeding import generator
from feddm.data.partition import class_table
from feddm.errors import ConfigError
from feddm.runtime.build import LocalSetup
from feddm.runtime.federation import cohort_size
from feddm.runtime.results import to_line
from feddm.runtime.run import Observer
from feddm.runtime.wording import epsilon_cell, introduction, summary

if TYPE_CHECKING:
    from feddm.config.schema import Config
    from feddm.runtime.build import Setup
    from feddm.runtime.federation import RoundRecord

HEADER = "    round  accuracy     loss         up       down   clients   server"
PRIVATE_HEADER = "    round  accuracy     loss         up       down      epsilon   server"
STAGES = {"clients": "clients learn", "server": "server trains"}


class Display(Observer):
    """Shows a run. Use it in a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def finished(self, records: Sequence[RoundRecord], directory: Path) -> None:
        """Called when the run has finished."""

    def say(self, text: str) -> None:
        """Shows one more line, unless the output is for programs."""


class JsonDisplay(Display):
    """One JSON line per round, as in ``results.jsonl``."""

    def started(self, config: Config, setup: Setup, records: list[RoundRecord]) -> None:
        for record in records:
            self.finished_round(record)

    def finished_round(self, record: RoundRecord) -> None:
        print(to_line(record), flush=True)

    def notice(self, text: str) -> None:
        print(f"feddm: {text}", file=sys.stderr)


class TextDisplay(Display):
    """One line per round, and progress bars below them on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._all: TaskID | None = None
        self._rounds = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def started(self, config: Config, setup: Setup, records: list[RoundRecord]) -> None:
        self._rounds = config.rounds
        size = num_params(setup.algorithm.model.init(generator(0, "size")))
        algorithm, model = label(config.algorithm.name), label(config.model.name)
        self._print(
            f"{algorithm} on {config.data.name}, preset {config.preset}, seed "
            f"{config.seed}: {clients_text(config, setup)}; {model} with {size:,} parameters."
        )
        if config.privacy is not None:
            about = introduction(config.privacy, setup.algorithm.planned_in_all)
            self._print(f"{about} {cost_text(config, setup)}" if config.guaranteed else about)
        if config.data.validation or (config.data.path and config.data.holdout):
            self._print(validation_text(config, len(setup.test or ())))
        self._print(HEADER if config.privacy is None else PRIVATE_HEADER, style="bold")
        for record in records:
            self._print(line(record, self._rounds), style="dim")
        self._tasks = {
            stage: self._progress.add_task(text, total=1.0) for stage, text in STAGES.items()
        }
        if self._rounds - len(records) > 1:
            left = self._rounds - len(records)
            self._all = self._progress.add_task("all rounds", total=left)

    def progress(self, stage: str, fraction: float) -> None:
        self._progress.update(self._tasks[stage], completed=fraction)

    def finished_round(self, record: RoundRecord) -> None:
        self._print(line(record, self._rounds))
        for dropout in record.dropouts:
            self._print(f"    client {dropout.client} dropped out: {dropout.reason}", "yellow")
        for task in self._tasks.values():
            self._progress.reset(task)
        if self._all is not None:
            self._progress.advance(self._all)

    def notice(self, text: str) -> None:
        self._print(f"Note: {text}.", style="yellow")

    def finished(self, records: Sequence[RoundRecord], directory: Path) -> None:
        best = max(records, key=lambda record: record.accuracy)
        up = sum(record.bytes_up for record in records)
        down = sum(record.bytes_down for record in records)
        self._print(
            f"Final accuracy {percent(records[-1].accuracy)}, best {percent(best.accuracy)} in "
            f"round {best.round}. In total, clients sent {size_text(up)} and received "
            f"{size_text(down)}."
        )
        if records[-1].privacy is not None:
            self._print(summary(records[-1]))
        self._print(f"Results: {directory}")

    def say(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str, style: str | None = None) -> None:
        # No wrapping in a pipe: programs that read it expect one line per message.
        self._console.print(
            text,
            style=style,
            markup=False,
            highlight=False,
            soft_wrap=not self._console.is_terminal,
        )


def clients_text(config: Config, setup: Setup) -> str:
    """Returns the number of clients and, unless that is private, how much data they have."""
    number, classes = config.partition.clients, len(setup.info.classes)
    if config.guaranteed or not isinstance(setup, LocalSetup):
        return f"{number} clients, {classes} classes"
    table = class_table(setup.dataset.train.y.numpy(), setup.shards, classes)
    sizes = table.sum(1)
    return (
        f"{number} clients with {sizes.min():,} to {sizes.max():,} of {sizes.sum():,} examples "
        f"and {(table > 0).sum(1).mean():.1f} of {classes} classes on average"
    )


def cost_text(config: Config, setup: Setup) -> str:
    """Returns how many rounds there are, and what clients upload in them, if that is known."""
    clients, classes = config.partition.clients, len(setup.info.classes)
    # Whatever the examples are: as if all clients had the same.
    number = setup.info.num_train / clients / classes
    rounds = f"{config.rounds} round{'s' if config.rounds > 1 else ''}"
    if not isinstance(setup.algorithm, ConfiguredAlgorithm):
        return f"{rounds}."
    try:
        size = setup.algorithm.upload_size(np.full((clients, classes), number))
    except ConfigError:  # it depends on the examples
        return f"{rounds}."
    each = size.num_bytes / clients
    total = each * config.rounds * cohort_size(clients, config.participation)
    return (
        f"{rounds}, in which clients upload about {size_text(total)}: "
        f"{size_text(each)} for each client and round."
    )


def validation_text(config: Config, number: int) -> str:
    """Returns a note that accuracies are not measured on the test set."""
    unprotected = ", which are not protected" if config.guaranteed else ""
    training = "training " if config.data.validation else ""
    return f"Evaluated on {number:,} held-out {training}examples{unprotected}."


def line(record: RoundRecord, rounds: int) -> str:
    """Returns one row of the table of rounds."""
    if record.privacy is None:
        clients = f"{f'{record.client_seconds:.1f} s':>9}"
    else:
        clients = f"{epsilon_cell(record.epsilon, record.privacy):>12}"
    return (
        f"{f'{record.round}/{rounds}':>9} {percent(record.accuracy):>9} {record.loss:>8.4f} "
        f"{size_text(record.bytes_up):>10} {size_text(record.bytes_down):>10} "
        f"{clients} {record.server_seconds:>6.1f} s"
    )
