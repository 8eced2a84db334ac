"""A worker process, which does the work of one client after another.

`feddm.runtime.local` starts it as ``python -m feddm.runtime``. Multiprocessing would import
the caller's script a second time. Messages are pickles between two processes of the same
program; the records inside them are safetensors, as on a network.

    parent -> worker   ("code", files)                         your own, if there are any
                       ("setup", WorkerSetup)
                       ("download", bytes)                     once per round
                       ("task", client, round, seed, memory)
    worker -> parent   ("ready",)                              once, when the data are mapped
                       ("tick", fraction)
                       ("done", upload, memory, metrics, seconds)
                       ("failed", exception, traceback)
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from feddm.algorithms.base import Algorithm
from feddm.config import code
from feddm.core.examples import Examples, Normalization
from feddm.core.malloc import keep_freed_memory
from feddm.core.tensors import Records, from_bytes, to_bytes
from feddm.privacy.vault import Vaults
from feddm.runtime.client import Task, perform

TICK_SECONDS = 0.2  # progress is for people; more updates would only cost time


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs before its first task.

    The arrays are in files that all workers map into memory, so the data are not copied.
    """

    algorithm: Algorithm
    folder: Path
    normalization: Normalization | None
    device: torch.device
    vaults: Vaults | None = None


class Shards:
    """The examples of each client, from memory-mapped files."""

    def __init__(self, folder: Path, normalization: Normalization | None) -> None:
        self._x, self._y, self._index, self._ends = (
            np.load(folder / f"{name}.npy", mmap_mode="r")
            for name in ("x", "y", "index", "ends")
        )
        groups = folder / "group.npy"
        self._group = np.load(groups, mmap_mode="r") if groups.exists() else None
        self._normalization = normalization

    @staticmethod
    def write(folder: Path, data: Examples, indices: list[np.ndarray[Any, Any]]) -> None:
        """Writes the files that the workers map."""
        np.save(folder / "x.npy", data.x.numpy())
        np.save(folder / "y.npy", data.y.numpy())
        if data.group is not None:
            np.save(folder / "group.npy", data.group.numpy())
        np.save(folder / "index.npy", np.concatenate(indices))
        np.save(folder / "ends.npy", np.cumsum([len(index) for index in indices]))

    def __getitem__(self, client: int) -> Examples:
        begin = self._ends[client - 1] if client else 0
        index = self._index[begin : self._ends[client]]
        # Indexing by an array copies, so only this client's examples are loaded.
        return Examples(
            torch.from_numpy(self._x[index]),
            torch.from_numpy(self._y[index]),
            self._normalization,
            group=None if self._group is None else torch.from_numpy(self._group[index]),
        )


def send(stream: IO[bytes], message: object) -> None:
    """Writes one message, prefixed with its length."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(struct.pack("<Q", len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Returns the next message; raises `EOFError` if the other process is gone."""
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    (length,) = struct.unpack("<Q", header)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)  # from our own parent or child process, never from a network


def serve(inbox: IO[bytes], outbox: IO[bytes]) -> None:
    """Does tasks until the parent is gone."""
    _, files = receive(inbox)
    code.run_files(files)  # before what they define is unpickled
    _, setup = receive(inbox)
    shards = Shards(setup.folder, setup.normalization)
    send(outbox, ("ready",))
    download: Records = {}
    while True:
        kind, *fields = receive(inbox)
        if kind == "download":
            download = from_bytes(fields[0])
            continue
        client, round_, seed, memory = fields
        last = time.monotonic()

        def tick(fraction: float) -> None:
            nonlocal last
            if time.monotonic() - last >= TICK_SECONDS:
                last = time.monotonic()
                send(outbox, ("tick", fraction))

        try:
            task = Task(client, round_, seed, download)
            result, seconds = perform(
                setup.algorithm,
                task,
                shards[client],
                from_bytes(memory),
                tick,
                setup.device,
                None if setup.vaults is None else setup.vaults.of(client),
            )
            reply: tuple[object, ...] = (
                "done",
                to_bytes(result.upload),
                to_bytes(result.memory),
                dict(result.metrics),
                seconds,
            )
        except (BrokenPipeError, EOFError):
            raise
        except Exception as error:
            reply = ("failed", error, traceback.format_exc())
        send(outbox, reply)


def main() -> None:
    keep_freed_memory()
    # Redirect stdout to stderr, so that nothing a client prints mixes with the messages.
    outbox = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        serve(sys.stdin.buffer, outbox)
