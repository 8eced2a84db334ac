"""What was released of a data set, by all runs, and what it costs.

    <data set>/key                     256 bits: make the ledger unlike any other
    <data set>/<split>/<client>/ledger.jsonl

A line of a client's ledger is one release. It is on the disk before the upload that it pays
for leaves, and a checkpoint never takes it back: what was sent was sent.
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
        run: Name of the run.
        round: Number of the round.
        release: Tells one release from all others; one that is sent again is the same.
        events: What was released.
        unit: Whose contribution was bounded.
        for_tests: Whether the secret was a fixed one.
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
        """Returns what this costs whoever wants this unit protected.

        A bound on what an example adds says nothing about a patient, and a bound on a patient
        nothing about each example. Another split has other clients, and may put examples into
        groups in another way. Noise that everybody can recompute protects nobody.

        Args:
            unit: What is to be protected.
            for_tests: Whether noise under a fixed secret counts as noise.
            same_split: Whether the examples were with the same clients as now.
        """
        if self.unit != unit:
            return (Unprotected(f"a release that protects the {self.unit}, not the {unit}"),)
        if unit != "example" and not same_split:
            return (Unprotected(f"a release for another split, which has other {unit}s"),)
        if self.for_tests and not for_tests:
            return (Unprotected("a release under a fixed secret"),)
        return self.events


def read_entries(client: Path) -> list[Entry]:
    """Returns what a client has released; its folder may be empty."""
    path = client / "ledger.jsonl"
    try:
        return [_entry(line) for line in read_lines(path)]
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{path} has a line that cannot be read: {error}") from error


def add_entry(client: Path, entry: Entry) -> None:
    """Writes a release down, for good."""
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
    """Returns what the lines of a file say; one that was cut off was never paid out."""
    with files.explained(LedgerError, path):
        try:
            return [json.loads(line) for line in files.whole_lines(path)]
        except ValueError as error:
            raise LedgerError(f"{path} is damaged: {error}") from error


def add_line(path: Path, line: dict[str, Any]) -> None:
    """Adds a line, with the time."""
    with files.explained(LedgerError, path):
        files.append(path, json.dumps({"time": now(), **line}))


def now() -> str:
    """Returns the time, for people."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Ledger:
    """All that was released of one data set.

    Args:
        folder: Its folder, with one for each split.
    """

    folder: Path

    @property
    def id(self) -> str | None:
        """Tells one ledger from all others, also if it is moved; ``None`` if there is none."""
        with files.explained(LedgerError, self._key):
            if not self._key.exists():
                return None
        return hashlib.blake2b(b"id", key=self.key(), digest_size=16).hexdigest()

    def key(self) -> bytes:
        """Returns a secret of the ledger, which is made with it.

        Digests under it say nothing about what they are of to whoever lacks it.
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
            raise LedgerError(f"{self._key} is damaged; put back what it was")
        return key

    @contextlib.contextmanager
    def locked(self, wait: float = 0.0) -> Iterator[None]:
        """Keeps other runs from spending of the same data set meanwhile.

        Args:
            wait: For so many seconds if one of them is at it.
        """
        with files.explained(LedgerError, self.folder):
            files.make_private(self.folder)
            lock = filelock.FileLock(self.folder / ".lock")
            try:
                lock.acquire(timeout=wait)
            except filelock.Timeout:
                raise LedgerError(
                    f"{self.folder} is in use by another run; wait for it or stop it"
                ) from None
        try:
            yield
        finally:
            lock.release()

    def splits(self) -> list[Path]:
        """Returns the folders of its splits."""
        return sorted(path for path in self.folder.glob("*") if path.is_dir())

    def elsewhere(
        self, split: str, unit: str = "example", *, for_tests: bool = False
    ) -> list[Event]:
        """Returns what all other splits have released of any one unit, at worst.

        An example is with one client of every split, and nobody knows with which.
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
        """Returns all that was released of any one unit of a split, at worst."""
        here = map(read_entries, clients_in(self.folder / split))
        return [
            *self.elsewhere(split, unit, for_tests=for_tests),
            *most_spent(here, unit, for_tests=for_tests),
        ]

    @property
    def _key(self) -> Path:
        return self.folder / "key"


def clients_in(split: Path) -> list[Path]:
    """Returns the folders of the clients of a split."""
    return sorted(split.glob("client_*"))


def costs(
    entries: Iterable[Entry],
    unit: str = "example",
    *,
    for_tests: bool = False,
    same_split: bool = True,
) -> list[Event]:
    """Returns what releases of one client cost; the arguments are those of `Entry.cost`."""
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
    """Returns releases that cost at least what any one of the clients spent.

    An example is with one client, so clients do not add up: it pays for the releases of its own
    client only. Of each kind of release, this is the largest number that any client has.
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
        most |= times  # the larger one of both
    released = [Released(times, z, rate) for (z, rate), times in sorted(most.items())]
    return [*unprotected.values(), *released]


def ledger_root() -> Path:
    """Returns the folder of the ledgers that all runs share, with one for each data set."""
    return user_data_path("feddm") / "ledgers"


def run_ledger_root() -> Path:
    """Returns the folder of the ledgers that one run alone has, with one for each run.

    Not in a run directory: people share these, and a ledger has the clients' secrets beside it.
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
