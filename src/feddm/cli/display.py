"""How a run looks: bars and a table on a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from feddm.api import Observer
from feddm.data.partition import class_table
from feddm.models import num_params
from feddm.results import to_line
from feddm.seeding import generator
from feddm.words import UNITS, epsilon_text, percent, size_text

if TYPE_CHECKING:
    from feddm.api import RunResult
    from feddm.build import Setup
    from feddm.config import Config, PrivacyConfig
    from feddm.federation import RoundRecord

HEADER = "    round  accuracy     loss         up       down   clients   server"
PRIVATE_HEADER = "    round  accuracy     loss         up       down   epsilon   server"
STAGES = {"clients": "clients learn", "server": "server trains"}


class Display(Observer):
    """Shows a run; use it in a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def finished(self, result: RunResult) -> None:
        """The run is over."""

    def say(self, text: str) -> None:
        """One more line for people."""


class JsonDisplay(Display):
    """One JSON line for each round, as in ``results.jsonl``."""

    def started(self, config: Config, setup: Setup, records: list[RoundRecord]) -> None:
        for record in records:
            self.finished_round(record)

    def finished_round(self, record: RoundRecord) -> None:
        print(to_line(record), flush=True)

    def notice(self, text: str) -> None:
        print(f"feddm: {text}", file=sys.stderr)


class TextDisplay(Display):
    """A line for each round, and bars below them if this is a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
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
        info, model = setup.dataset.info, setup.algorithm.model
        table = class_table(setup.dataset.train.y.numpy(), setup.shards, len(info.classes))
        sizes = table.sum(1)
        size = num_params(model.init(generator(0, "size")))
        self._print(
            f"{config.algorithm} on {info.name}, preset {config.preset}, seed {config.seed}: "
            f"{len(sizes)} clients with {sizes.min():,} to {sizes.max():,} of {sizes.sum():,} "
            f"examples and {(table > 0).sum(1).mean():.1f} of {len(info.classes)} classes on "
            f"average; {config.model.name} with {size:,} parameters."
        )
        private = config.privacy.mechanism != "none"
        if private:
            self._print(privacy_text(config))
        self._print(PRIVATE_HEADER if private else HEADER, style="bold")
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
        for task in self._tasks.values():
            self._progress.reset(task)
        if self._all is not None:
            self._progress.advance(self._all)

    def notice(self, text: str) -> None:
        self._print(f"Note: {text}.", style="yellow")

    def finished(self, result: RunResult) -> None:
        records = result.records
        best = max(records, key=lambda record: record.accuracy)
        up = sum(record.bytes_up for record in records)
        down = sum(record.bytes_down for record in records)
        self._print(
            f"Final accuracy {percent(records[-1].accuracy)}, best {percent(best.accuracy)} in "
            f"round {best.round}. All clients sent {size_text(up)} and received "
            f"{size_text(down)}."
        )
        if (spent := records[-1].epsilon) is not None:
            self._print(f"Privacy spent: {epsilon_text(spent, result.config.privacy.delta)}.")
        if result.directory is not None:
            self._print(f"Everything is in {result.directory}")

    def say(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str, style: str | None = None) -> None:
        # Soft wrap off a terminal: whoever reads a pipe wants one line to be one line.
        self._console.print(
            text,
            style=style,
            markup=False,
            highlight=False,
            soft_wrap=not self._console.is_terminal,
        )


def line(record: RoundRecord, rounds: int) -> str:
    """Returns a row of the table of rounds."""
    return (
        f"{f'{record.round}/{rounds}':>9} {percent(record.accuracy):>9} {record.loss:>8.4f} "
        f"{size_text(record.bytes_up):>10} {size_text(record.bytes_down):>10} "
        f"{_spent_or_seconds(record):>9} {record.server_seconds:>6.1f} s"
    )


def _spent_or_seconds(record: RoundRecord) -> str:
    # How long a private client computes would tell how many examples it has.
    if record.epsilon is None:
        return f"{record.client_seconds:.1f} s"
    return f"{record.epsilon:.3f}" if math.isfinite(record.epsilon) else "none"


def privacy_text(config: Config) -> str:
    """Returns what is protected, how and how much."""
    privacy = config.privacy
    if privacy.mechanism == "paper":
        return (
            f"Noise of the paper, sigma {privacy.noise_multiplier:g}: no guarantee. It clips "
            "the mean of a batch, begins with real images, and shows a client's classes. (The "
            f"paper's formula would say epsilon {nominal_epsilon(privacy):.3g} at delta "
            f"{privacy.delta:g}: nominal, and not so.)"
        )
    budget = f"budget epsilon {privacy.epsilon:g}" if privacy.epsilon else "no budget"
    return (
        f"Private by {privacy.mechanism}: {budget} at delta {privacy.delta:g}, noise "
        f"multiplier {privacy.noise_multiplier:.4g}. The unit is {UNITS[privacy.unit]}, added "
        "or removed; it is with one client, so clients do not add up, and rounds do."
    )


def nominal_epsilon(privacy: PrivacyConfig) -> float:
    """Returns the epsilon of the paper's ``sigma >= sqrt(2 log(1/delta) / epsilon)``."""
    return 2 * math.log(1 / privacy.delta) / privacy.noise_multiplier**2
