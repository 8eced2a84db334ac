"""What a client keeps about its privacy: its secret, what it spent, and what it sent.

    secret              256 bits, readable by its owner alone
    policy.toml         what the client agrees to, if it says so, here or in a folder above
    ledger.jsonl        one line for each release; it only grows
    uploads.jsonl       one line for each upload
    sent.safetensors    the last upload, which is sent again if it is asked for again
    errors.log          what went wrong, which is told to nobody else

A line of the ledger is on the disk before the upload that it pays for leaves. A checkpoint
never takes it back: what was sent was sent.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import torch
from platformdirs import user_data_path
from safetensors import SafetensorError

from feddm.errors import BudgetError, LedgerError
from feddm.privacy.accounting import (
    Event,
    Released,
    Unprotected,
    epsilon,
    from_json,
    to_json,
)
from feddm.privacy.noise import Secret
from feddm.tensors import Records, Tensors, from_bytes, leaves, num_bytes, to_bytes

# Of a budget: what calibration may be off by.
_ROUNDING = 1e-6
# Names in the file of the last upload.
_ABOUT, _UPLOAD, _MEMORY = "about", "upload:", "memory:"


@dataclass(frozen=True)
class Entry:
    """One release of a client.

    Args:
        round: Number of the round.
        context: Digest of all that decided the release, the run among it.
        events: What was released.
        unit: Whose contribution was bounded.
        for_tests: Whether the secret was a fixed one.
    """

    round: int
    context: bytes
    events: tuple[Event, ...]
    unit: str = "example"
    for_tests: bool = False

    def cost(self, unit: str, for_tests: bool) -> tuple[Event, ...]:
        """Returns what this costs a run that protects this unit.

        A bound on what an example adds says nothing about a patient, and a bound on a patient
        nothing about each example; and noise that everybody can recompute protects nobody.
        """
        if self.unit != unit:
            return (Unprotected(f"a release that protects the {self.unit}"),)
        if self.for_tests and not for_tests:
            return (Unprotected("a release under a fixed secret"),)
        return self.events


@dataclass(frozen=True)
class Sent:
    """What a client made in a round: what left, and what it keeps in mind."""

    upload: Records
    memory: Records


@dataclass(frozen=True)
class Policy:
    """What a client agrees to, whatever the server asks.

    Args:
        epsilon: The most that it ever spends, at `delta`.
        delta: Of the guarantee.
        noise_multiplier: The least noise of any one release.
        mechanisms: Those that it takes part in; ``None`` leaves it open.
        algorithms: The same for algorithms.
    """

    epsilon: float = math.inf
    delta: float = 1e-5
    noise_multiplier: float = 0.0
    mechanisms: tuple[str, ...] | None = None
    algorithms: tuple[str, ...] | None = None

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Returns the policy in a file."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LedgerError(f"{path} cannot be read: {error}") from error
        return cls(**{key: _value(path, key, value) for key, value in values.items()})


def _value(path: Path, key: str, value: object) -> Any:
    names = ("mechanisms", "algorithms")
    if key in names and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    numbers = ("epsilon", "delta", "noise_multiplier")
    if key in numbers and isinstance(value, int | float) and value >= 0:
        return float(value)
    raise LedgerError(
        f"{path}: {key} = {value!r} is no policy; there are {', '.join(numbers)}, which are "
        f"numbers, and {', '.join(names)}, which are lists of names"
    )


@dataclass(frozen=True)
class Asked:
    """What a federation asks a client to take part in, by the names of the command line."""

    algorithm: str = ""
    mechanism: str = ""
    unit: str = "example"


class Vault:
    """The folder of one client; only the client itself ever opens it.

    Args:
        folder: Where; it is made if need be.
        run: Name of the federation, unlike any other.
        policy: What the federation promises; the client's own policy is in its folder.
        earlier: What was released of the same examples elsewhere.
        test_secret: A secret that is fixed and so protects nothing, for tests.
        asked: What the federation asks for.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        policy: Policy,
        earlier: Sequence[Event] = (),
        test_secret: Secret | None = None,
        asked: Asked = Asked(),  # noqa: B008  # frozen
    ) -> None:
        self.folder = folder
        self.run = run
        self._asked = asked
        self._delta = policy.delta
        self._policies = [policy, *_own_policy(folder)]
        self._earlier = earlier
        with _explained(folder):
            _make(folder)
            self.secret = test_secret or _secret(folder / "secret")

    def epsilon(self, further: Sequence[Event] = (), delta: float | None = None) -> float:
        """Returns what is spent, or would be after something further."""
        spent = [
            event
            for entry in self.entries()
            for event in entry.cost(self._asked.unit, self.secret.for_tests)
        ]
        return epsilon([*self._earlier, *spent, *further], delta or self._delta)

    def agree(self, planned: Sequence[Event]) -> None:
        """Raises `BudgetError` unless the client agrees to release this."""
        for policy in self._policies:
            self._check(policy, planned)

    def _check(self, policy: Policy, planned: Sequence[Event]) -> None:
        for name, allowed in (
            (self._asked.mechanism, policy.mechanisms),
            (self._asked.algorithm, policy.algorithms),
        ):
            if allowed is not None and name not in allowed:
                raise BudgetError(
                    f"a client does not take part in {name or 'this'}, only in "
                    f"{', '.join(allowed) or 'nothing'}"
                )
        for event in planned:
            multiplier = event.noise_multiplier if isinstance(event, Released) else 0.0
            if multiplier < policy.noise_multiplier:
                raise BudgetError(
                    f"a client asks for a noise multiplier of at least "
                    f"{policy.noise_multiplier:g}, got {multiplier:g}"
                )
        after = self.epsilon(planned, policy.delta)
        if after > policy.epsilon * (1 + _ROUNDING):
            raise BudgetError(
                f"a client would have spent epsilon {after:.4g} at delta {policy.delta:g} "
                f"after this round, and its budget is {policy.epsilon:g}"
            )

    def entries(self) -> list[Entry]:
        """Returns what was released so far."""
        return [_entry(line) for line in _lines(self.folder / "ledger.jsonl")]

    def sent_before(self, context: bytes) -> Sent | None:
        """Returns what was made in this very context, if it is the last that was made."""
        try:
            records = from_bytes((self.folder / "sent.safetensors").read_bytes())
        except (OSError, SafetensorError):
            return None  # none, or cut off: then it never left
        about = records.pop(_ABOUT)["context"]
        if bytes(about.tolist()) != context:
            return None
        return Sent(_part(records, _UPLOAD), _part(records, _MEMORY))

    def entry(self, round_: int, context: bytes, events: tuple[Event, ...]) -> Entry:
        """Returns a line of this client's ledger."""
        return Entry(round_, context, events, self._asked.unit, self.secret.for_tests)

    def spend(self, entry: Entry) -> None:
        """Writes an entry down, for good; one that is there already costs nothing more."""
        if entry in self.entries():
            return
        _append(
            self.folder / "ledger.jsonl",
            {
                "time": _now(),
                "round": entry.round,
                "context": entry.context.hex(),
                "unit": entry.unit,
                "for_tests": entry.for_tests,
                "events": [to_json(event) for event in entry.events],
            },
        )

    def log_error(self, text: str) -> None:
        """Writes down what went wrong."""
        with _explained(self.folder), (self.folder / "errors.log").open("a") as file:
            file.write(f"{_now()}\n{text}\n")

    def keep(self, entry: Entry, sent: Sent) -> None:
        """Stores an upload that is about to leave, and writes down that it does."""
        spent = self.epsilon()
        context = {"context": torch.tensor(list(entry.context), dtype=torch.uint8)}
        upload = {f"{_UPLOAD}{name}": tensors for name, tensors in sent.upload.items()}
        memory = {f"{_MEMORY}{name}": tensors for name, tensors in sent.memory.items()}
        with _explained(self.folder):
            part = self.folder / "sent.part"
            part.write_bytes(to_bytes({_ABOUT: context, **upload, **memory}))
            part.replace(self.folder / "sent.safetensors")
        _append(
            self.folder / "uploads.jsonl",
            {
                "time": _now(),
                "round": entry.round,
                "sha256": hashlib.sha256(to_bytes(sent.upload)).hexdigest(),
                "shapes": [list(tensor.shape) for tensor in leaves(sent.upload)],
                "bytes": num_bytes(sent.upload),
                "unit": entry.unit,
                "epsilon": spent
                if math.isfinite(spent) and not self.secret.for_tests
                else None,
            },
        )


@dataclass(frozen=True)
class Vaults:
    """The vaults of all clients of a federation on one machine.

    One folder for each split of the data set, and in it one for each client.

    Args:
        folder: Of the data set: other splits of it have released of the same examples.
        split: Name of the split.
        run: Name of the federation.
        policy: What all clients agree to.
        test_seed: Makes secrets that are fixed, for tests.
        asked: What the federation asks for.
    """

    folder: Path
    split: str
    run: str
    policy: Policy
    test_seed: str = ""
    asked: Asked = Asked()

    def of(self, client: int) -> Vault:
        """Returns the vault of one client."""
        secret = None
        if self.test_seed:
            key = hashlib.sha256(f"{self.test_seed}/{client}".encode()).digest()
            secret = Secret(key, for_tests=True)
        folder = self.folder / self.split / f"client_{client:06d}"
        return Vault(folder, self.run, self.policy, self.elsewhere(), secret, self.asked)

    def elsewhere(self) -> list[Event]:
        """Returns what other splits of the data set have released, at worst."""
        return all_spent(self.folder, self.asked.unit, bool(self.test_seed), but=self.split)

    def spent(self) -> list[Event]:
        """Returns all that was released of the data set, at worst."""
        return all_spent(self.folder, self.asked.unit, bool(self.test_seed))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other runs from spending of the same data set meanwhile."""
        with _explained(self.folder):
            _make(self.folder)
            lock = filelock.FileLock(self.folder / ".lock")
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                raise LedgerError(
                    f"{self.folder} is in use by another run; wait for it or stop it"
                ) from None
        try:
            yield
        finally:
            lock.release()


def ledger_root() -> Path:
    """Returns the folder of all ledgers that are nowhere else."""
    return user_data_path("feddm") / "ledgers"


def all_spent(
    dataset: Path, unit: str = "example", for_tests: bool = False, but: str = ""
) -> list[Event]:
    """Returns releases that cost at least what any unit of a data set has paid.

    Args:
        dataset: Its folder, with one for each split.
        unit: What is protected.
        for_tests: Whether fixed secrets count as secret.
        but: A split that does not count.
    """
    return [
        event
        for split in sorted(path for path in dataset.glob("*") if path.is_dir())
        if split.name != but
        for event in most_spent(_ledgers(split), unit, for_tests)
    ]


def upload_log(client: Path) -> list[dict[str, Any]]:
    """Returns what is known about each upload: when, for what, how large, and its hash."""
    return _lines(client / "uploads.jsonl")


def _ledgers(split: Path) -> Iterator[list[Entry]]:
    for client in sorted(split.glob("client_*")):
        yield [_entry(line) for line in _lines(client / "ledger.jsonl")]


def most_spent(
    ledgers: Iterable[Sequence[Entry]], unit: str = "example", for_tests: bool = False
) -> list[Event]:
    """Returns releases that cost at least what any one of the clients spent.

    An example is with one client, so clients do not add up: it pays for the releases of its own
    client only. Of each kind of release, this is the largest number that any client has.
    """
    most: Counter[tuple[float, float]] = Counter()
    unprotected: dict[str, Unprotected] = {}
    for entries in ledgers:
        times: Counter[tuple[float, float]] = Counter()
        for entry in entries:
            for event in entry.cost(unit, for_tests):
                if isinstance(event, Unprotected):
                    unprotected[event.what] = event
                else:
                    times[event.noise_multiplier, event.sample_rate] += event.times
        most |= times  # the larger one of both
    released = [Released(times, z, rate) for (z, rate), times in sorted(most.items())]
    return [*unprotected.values(), *released]


def _part(records: Records, prefix: str) -> dict[str, Tensors]:
    return {
        name.removeprefix(prefix): tensors
        for name, tensors in records.items()
        if name.startswith(prefix)
    }


def _own_policy(folder: Path) -> list[Policy]:
    """Returns the policy of a client: its own, else that of its split or data set."""
    for place in (folder, *folder.parents[:2]):
        if (place / "policy.toml").exists():
            return [Policy.read(place / "policy.toml")]
    return []


def _secret(path: Path) -> Secret:
    """Returns the secret in a file, or a new one, which is written first."""
    try:
        return Secret.from_hex(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        pass
    except ValueError as error:
        raise LedgerError(
            f"{path} is damaged; a client without its secret starts anew"
        ) from error
    fresh = Secret.fresh()
    part = path.with_name("secret.part")
    part.unlink(missing_ok=True)
    # Readable by its owner from the first moment on, and whole under its name.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(fresh.to_hex())
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync(path.parent)
    return fresh


def _lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file; a last one that was cut off was never paid out."""
    with _explained(path):
        try:
            lines = path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise LedgerError(f"{path} is damaged: {error}") from error


def _entry(line: dict[str, Any]) -> Entry:
    try:
        events = tuple(from_json(event) for event in line["events"])
        return Entry(
            int(line["round"]),
            bytes.fromhex(line["context"]),
            events,
            str(line["unit"]),
            bool(line["for_tests"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"a ledger has a line that cannot be read: {error}") from error


def _append(path: Path, line: dict[str, Any]) -> None:
    with _explained(path):
        data = (json.dumps(line) + "\n").encode()
        with path.open("ab") as file:
            is_new = not file.tell()
            # After a line that was cut off, begin a new one.
            if not is_new and not path.read_bytes().endswith(b"\n"):
                file.truncate(path.read_bytes().rfind(b"\n") + 1)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync(path.parent)


def _make(folder: Path) -> None:
    """Makes a folder and those above it, for their owner alone, and so that they stay."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    """Writes the names in a folder to the disk; a file without its name would be lost."""
    if os.name == "posix":  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what the file system says into one line."""
    try:
        yield
    except OSError as error:
        raise LedgerError(f"cannot use {error.filename or path}: {error.strerror}") from error
