"""The ledger of a data set: the releases of all runs, and what they cost.

    <data set>/key                     256-bit secret that identifies the ledger
    <data set>/<split>/<client>/ledger.jsonl

Each line of a client's ledger is one release. It is written to disk before the upload leaves,
and resuming from a checkpoint never removes it, because an upload cannot be taken back.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
from platformdirs import user_data_path

from feddm.core import files
from feddm.errors import LedgerError
from feddm.privacy.accounting import Event, Released, Unprotected, from_json, to_json

_KEY_BYTES = 32


@dataclass(frozen=True)
class Entry:
    """One release of a client.

    Args:
        run: Unique name of the run.
        round: Round number.
        release: Unique id of the release; sending it again keeps the id.
        events: What was released.
        unit: Unit of privacy that the release protects.
        for_tests: Whether the noise came from a fixed test secret.
    """

    run: str
    round: int
    release: bytes
    events: tuple[Event, ...]
    unit: str = "example"
    for_tests: bool = False

    def cost(
        self, unit: str, *, for_tests: bool = False, same_split: bool = True
    ) -> tuple[Event, ...]:
        """Returns the events that count against a unit of privacy.

        A bound on the contribution of an example implies none for a patient, and vice versa.
        Another split has other clients, and may group examples differently. Noise that anyone
        can recompute protects nobody.

        Args:
            unit: Unit of privacy to protect.
            for_tests: Whether noise from a fixed test secret counts as noise.
            same_split: Whether the release was made for the current split.
        """
        if self.unit != unit:
            return (Unprotected(f"a release that protects {self.unit}s, not {unit}s"),)
        if unit != "example" and not same_split:
            return (Unprotected(f"a release for another split, which has other {unit}s"),)
        if self.for_tests and not for_tests:
            return (Unprotected("a release with a fixed secret"),)
        return self.events


def read_entries(client: Path) -> list[Entry]:
    """Returns the ledger of a client; an empty folder has no entries."""
    path = client / "ledger.jsonl"
    try:
        return [_entry(line) for line in read_lines(path)]
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{path} has an invalid line: {error}") from error


def add_entry(client: Path, entry: Entry) -> None:
    """Adds a release to the ledger of a client; it is never removed."""
    line = {
        "run": entry.run,
        "round": entry.round,
        "release": entry.release.hex(),
        "unit": entry.unit,
        "for_tests": entry.for_tests,
        "events": [to_json(event) for event in entry.events],
    }
    add_line(client / "ledger.jsonl", line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the parsed lines of a file.

    A truncated last line is dropped: its upload never left.
    """
    with files.explained(LedgerError, path):
        try:
            return [json.loads(line) for line in files.whole_lines(path)]
        except ValueError as error:
            raise LedgerError(f"{path} is damaged: {error}") from error


def add_line(path: Path, line: dict[str, Any]) -> None:
    """Appends a line with the current time."""
    with files.explained(LedgerError, path):
        files.append(path, json.dumps({"time": now(), **line}))


def now() -> str:
    """Returns the current UTC time as text."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Ledger:
    """The ledger of one data set.

    Args:
        folder: Its folder, with one subfolder per split.
    """

    folder: Path

    @property
    def id(self) -> str | None:
        """Unique id, unchanged if the folder moves; ``None`` if the ledger does not exist."""
        with files.explained(LedgerError, self._key):
            if not self._key.exists():
                return None
        return hashlib.blake2b(b"id", key=self.key(), digest_size=16).hexdigest()

    def key(self) -> bytes:
        """Returns the secret key of the ledger, and creates it if there is none.

        A digest under this key reveals nothing about its input to anyone without the key.
        """
        with files.explained(LedgerError, self._key):
            if not self._key.exists():
                files.make_private(self.folder)
                fresh = secrets.token_bytes(_KEY_BYTES)
                files.write_whole(self._key, fresh.hex().encode(), files.OWNER)
            content = self._key.read_bytes()
        try:
            key = bytes.fromhex(content.decode())
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise LedgerError(f"{self._key} is damaged; restore it from a backup")
        return key

    @contextlib.contextmanager
    def locked(self, wait: float = 0.0) -> Iterator[None]:
        """Locks the ledger, so that no other run spends from this data set.

        Args:
            wait: Seconds to wait if another run has the lock.
        """
        with files.explained(LedgerError, self.folder):
            files.make_private(self.folder)
            lock = filelock.FileLock(self.folder / ".lock")
            try:
                lock.acquire(timeout=wait)
            except filelock.Timeout:
                raise LedgerError(
                    f"{self.folder} is in use by another run; wait until it ends, or stop it"
                ) from None
        try:
            yield
        finally:
            lock.release()

    def splits(self) -> list[Path]:
        """Returns the folders of the splits."""
        return sorted(path for path in self.folder.glob("*") if path.is_dir())

    def elsewhere(
        self, split: str, unit: str = "example", *, for_tests: bool = False
    ) -> list[Event]:
        """Returns the worst-case releases of one unit in all other splits.

        An example belongs to one client in each split, but which one is unknown.
        """
        return [
            event
            for other in self.splits()
            if other.name != split
            for event in most_spent(
                map(read_entries, clients_in(other)),
                unit,
                for_tests=for_tests,
                same_split=False,
            )
        ]

    def spent(
        self, split: str, unit: str = "example", *, for_tests: bool = False
    ) -> list[Event]:
        """Returns the worst-case releases of one unit, in this split and all others."""
        here = map(read_entries, clients_in(self.folder / split))
        return [
            *self.elsewhere(split, unit, for_tests=for_tests),
            *most_spent(here, unit, for_tests=for_tests),
        ]

    @property
    def _key(self) -> Path:
        return self.folder / "key"


def clients_in(split: Path) -> list[Path]:
    """Returns the client folders of a split."""
    return sorted(split.glob("client_*"))


def costs(
    entries: Iterable[Entry],
    unit: str = "example",
    *,
    for_tests: bool = False,
    same_split: bool = True,
) -> list[Event]:
    """Returns the events that count against a unit of one client, as in `Entry.cost`."""
    return [
        event
        for entry in entries
        for event in entry.cost(unit, for_tests=for_tests, same_split=same_split)
    ]


def most_spent(
    ledgers: Iterable[Sequence[Entry]],
    unit: str = "example",
    *,
    for_tests: bool = False,
    same_split: bool = True,
) -> list[Event]:
    """Returns releases that cost at least as much as those of any one client.

    Clients compose in parallel: an example belongs to one client and only pays for the releases
    of that client. So this takes, for each kind of release, the largest count of any client.
    """
    most: Counter[tuple[float, float]] = Counter()
    unprotected: dict[str, Unprotected] = {}
    for entries in ledgers:
        times: Counter[tuple[float, float]] = Counter()
        for event in costs(entries, unit, for_tests=for_tests, same_split=same_split):
            if isinstance(event, Unprotected):
                unprotected[event.what] = event
            else:
                times[event.noise_multiplier, event.sample_rate] += event.times
        most |= times  # the maximum of the two counts
    released = [Released(times, z, rate) for (z, rate), times in sorted(most.items())]
    return [*unprotected.values(), *released]


def ledger_root() -> Path:
    """Returns the folder of the shared ledgers, one per data set."""
    return user_data_path("feddm") / "ledgers"


def run_ledger_root() -> Path:
    """Returns the folder of the ledgers of single runs, one per run.

    They are not in the run directory: people share run directories, and the clients' secrets
    are next to the ledger.
    """
    return user_data_path("feddm") / "run-ledgers"


def _entry(line: dict[str, Any]) -> Entry:
    return Entry(
        str(line["run"]),
        int(line["round"]),
        bytes.fromhex(line["release"]),
        tuple(from_json(event) for event in line["events"]),
        str(line["unit"]),
        bool(line["for_tests"]),
    )
