"""The Flower server app: our round loop over Flower's grid."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from platformdirs import user_data_path

from feddm.config.schema import Config
from feddm.core.formatting import percent, size_text
from feddm.flower.options import options_of
from feddm.flower.session import on_nodes
from feddm.runtime.build import Setup
from feddm.runtime.federation import RoundRecord
from feddm.runtime.run import Observer, execute, resume
from feddm.runtime.rundir import next_free

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs a federation, or resumes an earlier one."""
    options = options_of(context.run_config, len(list(grid.get_node_ids())))
    observer = Log()
    nodes = on_nodes(grid, observer.notice, options.patience, options.retries)
    if options.config is None:
        assert options.directory is not None
        result = resume(options.directory, observer=observer, opened=nodes)
    else:
        out = options.directory or next_free(runs(), options.config.algorithm.name)
        result = execute(options.config, out, observer, nodes)
    observer.notice(f"results are in {result.directory}")


def runs() -> Path:
    """Returns the default folder for run directories."""
    return user_data_path("feddm", appauthor=False) / "runs"


class Log(Observer):
    """Writes the progress of a run to Flower's log."""

    def __init__(self) -> None:
        self._log = logging.getLogger("flwr")
        self._rounds = 0

    def started(self, config: Config, setup: Setup, records: list[RoundRecord]) -> None:
        del setup
        self._rounds = config.rounds
        self._say(
            f"{config.algorithm.name} on {config.data.name}, preset {config.preset}, seed "
            f"{config.seed}: {config.partition.clients} clients, {config.rounds} rounds, "
            f"{len(records)} of them done"
        )

    def finished_round(self, record: RoundRecord) -> None:
        self._say(
            f"round {record.round}/{self._rounds}: accuracy {percent(record.accuracy)}, "
            f"{len(record.clients)} clients sent {size_text(record.bytes_up)}"
        )
        for dropout in record.dropouts:
            self._say(f"client {dropout.client} dropped out: {dropout.reason}")

    def notice(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self._log.info("feddm: %s", text)
