"""Clients on this machine, in this process or in worker processes.

This is the reference engine. Results are bit-identical for any number of workers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from feddm.algorithms.base import Algorithm
from feddm.config import code
from feddm.core.examples import Examples
from feddm.core.tensors import CPU, Records, from_bytes, to_bytes
from feddm.errors import EngineError, FedDMError
from feddm.privacy.vault import Vaults
from feddm.runtime.client import ClientTick, Reply, Task, perform
from feddm.runtime.worker import Shards, WorkerSetup, receive, send


class InProcess:
    """Runs clients one by one in this process, or in parallel in worker processes.

    Args:
        algorithm: What the clients do.
        data: The examples of all clients.
        shards: Indices of each client's examples.
        workers: 1 uses this process; more start that many processes of one thread each.
        memories: The clients' memories from earlier rounds.
        device: Device of the clients' work.
        vaults: The clients' vaults, if the algorithm is private.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data: Examples,
        shards: list[np.ndarray[Any, Any]],
        workers: int = 1,
        memories: Mapping[int, Records] | None = None,
        device: torch.device = CPU,
        vaults: Vaults | None = None,
    ) -> None:
        self.memories: dict[int, Records] = dict(memories or {})
        self._pending: dict[int, Records] = {}
        self._algorithm = algorithm
        self._data = data
        self._shards = shards
        self._device = device
        self._vaults = vaults
        self._workers = (
            _Workers(algorithm, data, shards, workers, device, vaults) if workers > 1 else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._workers is not None:
            self._workers.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers; empty if this process does the work."""
        return [] if self._workers is None else self._workers.pids

    def run(self, tasks: Iterable[Task], tick: ClientTick) -> Iterator[Reply]:
        self._pending.clear()
        pairs = ((task, self.memories.get(task.client, {})) for task in tasks)
        replies = (
            self._here(pairs, tick) if self._workers is None else self._workers.run(pairs, tick)
        )
        for reply, memory in replies:
            self._pending[reply.client] = memory
            yield reply

    def commit(self, clients: Iterable[int]) -> None:
        for client in clients:
            memory = self._pending.pop(client)
            if memory:
                self.memories[client] = memory

    def _here(
        self, pairs: Iterable[tuple[Task, Records]], tick: ClientTick
    ) -> Iterator[tuple[Reply, Records]]:
        for task, memory in pairs:
            client = task.client
            data = self._data.subset(torch.from_numpy(self._shards[client]))
            result, seconds = perform(
                self._algorithm,
                task,
                data,
                memory,
                functools.partial(tick, client),
                self._device,
                None if self._vaults is None else self._vaults.of(client),
            )
            yield Reply(client, result.upload, result.metrics, seconds), result.memory


class _Workers:
    """Worker processes, each with a thread in this process that talks to it."""

    def __init__(
        self,
        algorithm: Algorithm,
        data: Examples,
        shards: list[np.ndarray[Any, Any]],
        number: int,
        device: torch.device,
        vaults: Vaults | None,
    ) -> None:
        # Some systems cannot remove a mapped file until the worker has ended.
        self._folder = tempfile.TemporaryDirectory(prefix="feddm-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        try:
            Shards.write(folder, data, shards)
        except OSError as error:
            self._folder.cleanup()
            raise EngineError(
                f"cannot write the workers' data to {folder}: {error.strerror}; "
                "set TMPDIR to a folder with enough space, or use --workers 1"
            ) from error
        self._setup: WorkerSetup | None = WorkerSetup(
            algorithm, folder, data.normalization, device, vaults
        )
        self._processes = [_start() for _ in range(number)]
        self._threads: list[threading.Thread] = []

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._processes]

    def run(
        self, pairs: Iterable[tuple[Task, Records]], tick: ClientTick
    ) -> Iterator[tuple[Reply, Records]]:
        """Yields replies as they arrive; takes a task only when a worker is free."""
        waiting = iter(pairs)
        lock = threading.Lock()
        inbox: queue.Queue[Any] = queue.Queue()

        def next_pair() -> tuple[Task, Records] | None:
            with lock:
                return next(waiting, None)

        def talk(worker: _Worker) -> None:
            try:
                while (pair := next_pair()) is not None:
                    worker.work(*pair, inbox.put)
                inbox.put(("idle",))
            except Exception as error:
                inbox.put(("broken", error))

        self._set_up()
        self._threads = [threading.Thread(target=talk, args=(w,)) for w in self._processes]
        for thread in self._threads:
            thread.start()
        busy = len(self._processes)
        while busy:
            kind, *fields = inbox.get()
            if kind == "tick":
                tick(*fields)
            elif kind == "reply":
                yield fields[0], fields[1]
            elif kind == "idle":
                busy -= 1
            else:
                raise fields[0]

    def _set_up(self) -> None:
        """Has all workers map the data once, then removes the files.

        So even a killed process leaves no copy of the data behind.
        """
        if self._setup is None:
            return
        for worker in self._processes:
            worker.send(("code", code.files_behind(type(self._setup.algorithm))))
            worker.send(("setup", self._setup))
        for worker in self._processes:
            worker.receive()
        self._setup = None
        self._folder.cleanup()

    def close(self) -> None:
        for worker in self._processes:
            worker.kill()
        for thread in self._threads:
            if thread.is_alive():  # Ctrl-C may have come before all were started
                thread.join()  # does not block, because its worker is gone
        for worker in self._processes:
            worker.close()
        self._folder.cleanup()


class _Worker:
    """One worker process, as seen by the parent."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._download: Records | None = None  # the download that the worker has now

    @property
    def pid(self) -> int:
        return self._process.pid

    def work(self, task: Task, memory: Records, put: Any) -> None:
        """Has the worker do one task, and puts its ticks and its reply."""
        if task.download is not self._download:
            self.send(("download", to_bytes(task.download)))
            self._download = task.download
        self.send(("task", task.client, task.round, task.seed, to_bytes(memory)))
        while True:
            kind, *fields = self.receive()
            if kind == "tick":
                put(("tick", task.client, fields[0]))
            elif kind == "failed":
                error, trace = fields
                if isinstance(error, FedDMError):
                    raise error
                error.add_note(f"in a worker process, client {task.client}:\n{trace}")
                raise error
            else:
                upload, memory_after, metrics, seconds = fields
                reply = Reply(task.client, from_bytes(upload), metrics, seconds)
                put(("reply", reply, from_bytes(memory_after)))
                return

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def send(self, message: object) -> None:
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, message)
        except BrokenPipeError:
            raise self._death() from None

    def receive(self) -> Any:
        assert self._process.stdout is not None
        try:
            return receive(self._process.stdout)
        except EOFError:
            raise self._death() from None

    def _death(self) -> EngineError:
        code = self._process.wait()
        return EngineError(
            f"a worker process ended unexpectedly (exit code {code}); if it ran out of memory, "
            "reduce --workers"
        )


def _start() -> _Worker:
    # -P, because -m alone would search the current folder first. A worker must import exactly
    # the modules that this process would.
    command = [sys.executable, "-P", "-m", "feddm.runtime"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return _Worker(
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
    )
