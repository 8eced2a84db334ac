"""A federation that takes a fraction of a second, and ways to look at what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from feddm.api import run
from feddm.config.resolve import flat, qualified, resolve
from feddm.runtime.run import Observer, RunResult

CLIENTS = 3
SETTINGS = {
    "model.width": 4,
    "model.depth": 2,
    "synthesis.steps": 2,
    "synthesis.networks": 2,
    "server.epochs": 2,
    "local.epochs": 1,
    "coding": "float32",
}
SECONDS = ("client_seconds", "server_seconds")


def run_tiny(
    out: Path | None = None,
    *,
    rounds: int = 2,
    observer: Observer | None = None,
    **options: Any,
) -> RunResult:
    """Runs it here, in this process."""
    given: dict[str, Any] = {"clients": CLIENTS, "rounds": rounds, "workers": 1} | options
    given = {key: str(v) if isinstance(v, Path) else v for key, v in given.items()}
    file, preset = given.pop("config", None), given.pop("preset", None)
    settings = given.pop("set", SETTINGS)
    config = resolve(file, preset, given, settings, shared=True)
    return run(config.model_dump(), out=out, observer=observer)


def arguments(
    rounds: int = 2, workers: int = 1, algorithm: str = "feddm", **settings: object
) -> list[str]:
    """Returns the options of the command line for it, with settings that an algorithm has.

    Args:
        rounds: Number of rounds.
        workers: Number of worker processes.
        algorithm: Whose settings are given; ``--algorithm`` itself is not among the options.
        settings: More settings; ``server__lr=0.1`` is ``server.lr = 0.1``.
    """
    known = flat(resolve(options={"algorithm": algorithm}).model_dump())
    named: dict[str, object] = {k: v for k, v in SETTINGS.items() if qualified(k) in known}
    named |= {key.replace("__", "."): value for key, value in settings.items()}
    options = [f"--clients={CLIENTS}", f"--rounds={rounds}", f"--workers={workers}"]
    return options + [f"--set={key}={value}" for key, value in named.items()]


def timeless(line: str) -> dict[str, Any]:
    """Returns a line of results without what differs from one run to the next: seconds."""
    record: dict[str, Any] = json.loads(line)
    for client in record["clients"]:
        del client["seconds"]
    return {key: value for key, value in record.items() if key not in SECONDS}


def timeless_results(directory: Path) -> list[dict[str, Any]]:
    """Returns the lines of a run directory without their seconds."""
    return [timeless(line) for line in (directory / "results.jsonl").read_text().splitlines()]


@contextlib.contextmanager
def running(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Gives ``python -m feddm`` as a process with a group of its own, and ends it at last.

    Args:
        folder: Where it works, and where its temporary files go.
        arguments: What stands on the command line.
    """
    command = [sys.executable, "-m", "feddm", *map(str, arguments)]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float = 60, every: float = 0.01) -> None:
    """Returns as soon as the condition holds, which is checked ``every`` so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(every)


def wait_for_rounds(process: subprocess.Popen[str], directory: Path, rounds: int) -> None:
    """Returns as soon as so many lines of results are written; the process must live on."""

    def written() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"it ended too early: {process.communicate()}")
        return num_rounds(directory) >= rounds

    wait_until(written)


def num_rounds(directory: Path) -> int:
    """Returns how many whole lines of results a run has written."""
    file = directory / "results.jsonl"
    return file.read_text().count("\n") if file.exists() else 0
