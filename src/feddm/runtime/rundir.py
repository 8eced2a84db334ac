"""A run directory: everything a run produces, and everything it needs to resume.

    config.toml               the complete configuration
    environment.json          versions, processor, fingerprint of the data, and the ledger
    partition.json            examples per client and class, unless privacy protects them
    results.jsonl             one line per round
    checkpoints/round_00000012/
        state.safetensors     the server's state after the round
        memories.safetensors  the clients' memories
    model.safetensors         the final model
    synthetic.safetensors     the synthetic sets of the last round
    leak.json, leak.png       written by ``feddm leak``, unless privacy protects the examples

Files and checkpoints are written under a temporary name and then renamed, so anything with its
final name is complete. There are no pickles and no client secrets, because people share run
directories.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import filelock
from safetensors import SafetensorError
from torch import Tensor

from feddm.config.resolve import load_toml, written
from feddm.config.schema import Config
from feddm.core import files
from feddm.core.tensors import Records, from_bytes, to_bytes
from feddm.errors import ConfigError, RunDirectoryError
from feddm.runtime.federation import Federation, RoundRecord
from feddm.runtime.results import from_line, to_line


class RunDirectory:
    """A run directory; a ``with`` block locks it against other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = filelock.FileLock(path / ".lock")

    @classmethod
    def create(cls, path: Path, config: Config, environment: Mapping[str, Any]) -> Self:
        """Creates a run directory; raises `RunDirectoryError` if it exists and is not empty."""
        check_free(path)
        with _explained(path):
            path.mkdir(parents=True, exist_ok=True)
            # Two processes may get here at the same time; the one with the lock continues.
            with cls(path) as directory:
                _check_empty(path)
                directory.write("environment.json", json.dumps(environment, indent=2).encode())
                directory.write("config.toml", config.to_toml().encode())
            return directory

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens the directory of an earlier run."""
        if not (path / "config.toml").is_file():
            raise RunDirectoryError(f"{path} is not a run directory: it has no config.toml")
        return cls(path)

    def __enter__(self) -> Self:
        with _explained(self.path):
            try:
                self._lock.acquire(timeout=0)
            except filelock.Timeout:
                raise RunDirectoryError(
                    f"{self.path} is in use by another process; wait until it ends, or stop it"
                ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def config(
        self, *, run_code: bool = False, code: Mapping[str, str] | None = None
    ) -> Config:
        """Returns the configuration that the run began with.

        Args:
            run_code: Whether an algorithm of the user's own is loaded, to go on with it.
            code: Where code of the user's own is now, for ``algorithm`` and ``model``.
        """
        file = self.path / "config.toml"
        values = load_toml(file)
        for section, name in (code or {}).items():
            values[section] = {**values.get(section, {}), "name": name}
        try:
            return written(values, run_code=run_code)
        except ConfigError as error:
            raise RunDirectoryError(
                f"{file} can't be used: {error}; perhaps another version of feddm made it, or "
                "one with a package that is not installed here"
            ) from error

    def environment(self) -> dict[str, Any]:
        """Returns the environment that the run began with."""
        try:
            return dict(json.loads((self.path / "environment.json").read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise RunDirectoryError(f"cannot read {self.path}/environment.json") from error

    def records(self) -> list[RoundRecord]:
        """Returns the records of the rounds so far; a truncated last line is dropped."""
        file = self.path / "results.jsonl"
        try:
            return [from_line(line) for line in files.whole_lines(file)]
        except ValueError as error:
            raise RunDirectoryError(f"{file} is damaged: {error}") from error

    def save_round(
        self, federation: Federation, record: RoundRecord, memories: Mapping[int, Records]
    ) -> None:
        """Writes the record of a round, then the checkpoint that makes it final."""
        with _explained(self.path):
            files.append(self.path / "results.jsonl", to_line(record))
            folder = self.path / "checkpoints"
            folder.mkdir(exist_ok=True)
            final = folder / f"round_{federation.round:08d}"
            part = final.with_suffix(".part")
            if part.exists():
                shutil.rmtree(part)
            part.mkdir()
            files.write(part / "state.safetensors", to_bytes(federation.state))
            remembered = {
                f"{client}:{name}": tensors
                for client, memory in memories.items()
                for name, tensors in memory.items()
            }
            files.write(part / "memories.safetensors", to_bytes(remembered))
            part.rename(final)
            for older in folder.iterdir():
                if older.is_dir() and older != final:
                    shutil.rmtree(older)

    def rewind(self) -> tuple[Federation, dict[int, Records]] | None:
        """Returns the last checkpoint, if any, and deletes the records of later rounds."""
        with _explained(self.path):
            finals = sorted((self.path / "checkpoints").glob("round_????????"))
            number = int(finals[-1].name.removeprefix("round_")) if finals else 0
            kept = [record for record in self.records() if record.round <= number]
            self.write("results.jsonl", "".join(to_line(r) + "\n" for r in kept).encode())
            if not finals:
                return None
            state = _read(finals[-1] / "state.safetensors")
            memories: dict[int, dict[str, Any]] = {}
            remembered = _read(finals[-1] / "memories.safetensors")
            for key, tensors in remembered.items():
                client, _, name = key.partition(":")
                memories.setdefault(int(client), {})[name] = tensors
            return Federation(number, state), dict(memories)

    def write(self, name: str, data: bytes) -> None:
        """Writes a file atomically."""
        with _explained(self.path):
            files.write_whole(self.path / name, data)


def next_free(parent: Path, name: str) -> Path:
    """Creates and returns ``parent/name-1``, or the one with the first free number."""
    number = 1
    with _explained(parent):
        while True:
            path = parent / f"{name}-{number}"
            with contextlib.suppress(FileExistsError):
                path.mkdir(parents=True)  # fails if another process was faster
                return path
            number += 1


def check_free(path: Path) -> None:
    """Raises `RunDirectoryError` if a new run directory cannot be created here."""
    if path.is_file():
        raise RunDirectoryError(f"{path} is a file; name a directory with --out")
    with _explained(path):
        if path.exists():
            _check_empty(path)


def _check_empty(path: Path) -> None:
    # A run killed before it wrote config.toml leaves only these, which are not worth keeping.
    half_made = {".lock", "environment.json", "environment.json.part", "config.toml.part"}
    if {content.name for content in path.iterdir()} <= half_made:
        return
    hint = ""
    if (path / "config.toml").exists():
        hint = f", or continue that run with `feddm resume {shlex.quote(str(path))}`"
    raise RunDirectoryError(f"{path} exists and is not empty; choose another with --out{hint}")


def _read(path: Path) -> dict[str, dict[str, Tensor]]:
    try:
        return from_bytes(path.read_bytes())
    except SafetensorError as error:
        raise RunDirectoryError(f"{path} is damaged: {error}") from error


def _explained(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turns an `OSError` into a one-line `RunDirectoryError`."""
    return files.explained(RunDirectoryError, path, "; all completed rounds are intact")
