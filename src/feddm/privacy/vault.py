"""The vault of a private client: its secret, its ledger, and what it sent.

secret              256 bits, readable only by the owner
ledger.jsonl        one line per release; append-only
uploads.jsonl       one line per upload
sent.safetensors    the last upload, to be sent again on request
errors.log          error messages, which never leave the client
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from feddm.core import files
from feddm.core.tensors import Records, Tensors, from_bytes, leaves, num_bytes, to_bytes
from feddm.errors import LedgerError
from feddm.privacy.accounting import Event, Unprotected, epsilon
from feddm.privacy.ledger import (
    Entry,
    Ledger,
    add_entry,
    add_line,
    clients_in,
    costs,
    now,
    read_entries,
    read_lines,
)
from feddm.privacy.noise import Secret
from feddm.privacy.policy import Asked, Policy

# Record names in sent.safetensors.
_ABOUT, _UPLOAD, _MEMORY = "about", "upload:", "memory:"
# Relative difference between versions of the accountant; a missing release exceeds it.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Sent:
    """The result of a private client's round.

    Args:
        release: Unique id of the release.
        upload: What leaves the client.
        memory: What the client remembers for its next round.
    """

    release: bytes
    upload: Records
    memory: Records


@dataclass(frozen=True)
class Terms:
    """What a federation asks of a client, and the limits that apply.

    Args:
        run: Unique name of the federation.
        asked: What it asks for.
        budget: The budget that it promises to keep.
        policy: The client's own policy.
    """

    run: str
    asked: Asked = field(default_factory=Asked)
    budget: Policy = field(default_factory=Policy)
    policy: Policy = field(default_factory=Policy)


class Vault:
    """The private folder of one client, opened only by the client itself.

    Args:
        folder: The folder, created if it does not exist.
        terms: Terms of the federation.
        elsewhere: Releases of the same examples in other splits.
        secret: Fixed secret for tests. By default the folder's own, created if there is none.
    """

    def __init__(
        self,
        folder: Path,
        terms: Terms,
        elsewhere: Sequence[Event] = (),
        secret: Secret | None = None,
    ) -> None:
        self.folder = folder
        self.terms = terms
        self._elsewhere = elsewhere
        with files.explained(LedgerError, folder):
            files.make_private(folder)
            self.secret = secret or _secret(folder / "secret")

    def epsilon(self) -> float:
        """Returns the epsilon spent; with a fixed secret it is infinite."""
        if self.secret.for_tests:
            return math.inf
        return epsilon(self._spent(), self.terms.budget.delta)

    def agree(self, planned: Sequence[Event]) -> None:
        """Raises `BudgetError` if the run's budget or the client's policy forbids this."""
        spent, terms = self._spent(), self.terms
        terms.budget.check(terms.asked, planned, spent)
        # A run with a fixed secret passes its own budget, but no policy with a limit.
        terms.policy.check(terms.asked, as_it_is(planned, self.secret.for_tests), spent)

    def entries(self) -> list[Entry]:
        """Returns the client's ledger so far."""
        return read_entries(self.folder)

    def sent_before(self, context: bytes) -> Sent | None:
        """Returns the stored result if it was made in exactly this context."""
        try:
            records = from_bytes((self.folder / "sent.safetensors").read_bytes())
        except (OSError, SafetensorError):
            return None  # missing or truncated, so it never left
        about = {name: bytes(part.tolist()) for name, part in records.pop(_ABOUT).items()}
        if about["context"] != context:
            return None
        return Sent(about["release"], _part(records, _UPLOAD), _part(records, _MEMORY))

    def keep(self, context: bytes, sent: Sent) -> None:
        """Stores a result, before it is paid for and sent."""
        about = {
            "context": torch.tensor(list(context), dtype=torch.uint8),
            "release": torch.tensor(list(sent.release), dtype=torch.uint8),
        }
        upload = {f"{_UPLOAD}{name}": tensors for name, tensors in sent.upload.items()}
        memory = {f"{_MEMORY}{name}": tensors for name, tensors in sent.memory.items()}
        with files.explained(LedgerError, self.folder):
            files.write_whole(
                self.folder / "sent.safetensors",
                to_bytes({_ABOUT: about, **upload, **memory}),
            )

    def entry(self, round_: int, release: bytes, events: tuple[Event, ...]) -> Entry:
        """Returns a new entry for this client's ledger."""
        terms = self.terms
        return Entry(
            terms.run, round_, release, events, terms.asked.unit, self.secret.for_tests
        )

    def spend(self, entry: Entry) -> None:
        """Adds an entry to the ledger for good, unless it is already there."""
        if entry not in self.entries():
            add_entry(self.folder, entry)

    @property
    def errors(self) -> Path:
        """The log of errors."""
        return self.folder / "errors.log"

    def log_error(self, text: str) -> None:
        """Appends a text to the log of errors."""
        with files.explained(LedgerError, self.folder), self.errors.open("a") as file:
            file.write(f"{now()}\n{text}\n")

    def list_upload(self, entry: Entry, sent: Sent) -> None:
        """Lists an upload, even if it was sent before."""
        spent = self.epsilon()
        line = {
            "round": entry.round,
            "sha256": hashlib.sha256(to_bytes(sent.upload)).hexdigest(),
            "shapes": [list(tensor.shape) for tensor in leaves(sent.upload)],
            "bytes": num_bytes(sent.upload),
            "unit": entry.unit,
            "epsilon": spent if math.isfinite(spent) else None,
        }
        add_line(self.folder / "uploads.jsonl", line)

    def _spent(self) -> list[Event]:
        unit, for_tests = self.terms.asked.unit, self.secret.for_tests
        return [*self._elsewhere, *costs(self.entries(), unit, for_tests=for_tests)]


@dataclass(frozen=True)
class Vaults:
    """The vaults of all clients of a federation on one machine.

    The caller must hold the lock of the ledger, so that no other run spends at the same time.

    Args:
        ledger: Ledger of the data set, shared with other splits of the same examples.
        split: Name of the split.
        terms: Terms of the federation, the same for all clients.
        test_seed: Seed of fixed secrets, for tests; empty for real ones.
    """

    ledger: Ledger
    split: str
    terms: Terms
    test_seed: str = ""

    def of(self, client: int) -> Vault:
        """Returns the vault of one client."""
        secret = None
        if self.test_seed:
            key = hashlib.sha256(f"{self.test_seed}/{client}".encode()).digest()
            secret = Secret(key, for_tests=True)
        return Vault(self._folder(client), self.terms, self.elsewhere, secret)

    @functools.cached_property
    def elsewhere(self) -> list[Event]:
        """Worst-case releases of one unit in other splits of the data set; read once."""
        return self.ledger.elsewhere(
            self.split, self.terms.asked.unit, for_tests=bool(self.test_seed)
        )

    def spent(self) -> list[Event]:
        """Returns the worst-case releases of one unit in all splits of the data set."""
        return self.ledger.spent(
            self.split, self.terms.asked.unit, for_tests=bool(self.test_seed)
        )

    def epsilon(self) -> float:
        """Returns the largest epsilon of any client over all runs, participating or not."""
        if self.test_seed:
            return math.inf
        unit, delta = self.terms.asked.unit, self.terms.budget.delta
        each = [
            epsilon([*self.elsewhere, *costs(read_entries(client), unit)], delta)
            for client in clients_in(self.ledger.folder / self.split)
        ]
        return max(each, default=epsilon(self.elsewhere, delta))

    def check_paid(self, uploads: Iterable[tuple[int, int]], least: float) -> None:
        """Raises `LedgerError` if uploads of this run are missing from the ledger.

        Args:
            uploads: Round and client of each upload received.
            least: The recorded epsilon after the last of them.
        """
        received = set(uploads)
        paid = {
            (entry.round, client)
            for client in {client for _, client in received}
            for entry in read_entries(self._folder(client))
            if entry.run == self.terms.run
        }
        lost = sorted(received - paid)
        if lost:
            what = f"the upload of client {lost[0][1]} in round {lost[0][0]} is missing"
        elif (spent := self.epsilon()) < least * (1 - _ROUNDING):
            what = f"it adds up to epsilon {spent:.4g}, but {least:.4g} was spent"
        else:
            return
        raise LedgerError(
            f"{self.ledger.folder} has lost lines: {what}; restore it from a backup, or start "
            "a new run"
        )

    def _folder(self, client: int) -> Path:
        return self.ledger.folder / self.split / f"client_{client:06d}"


def as_it_is(planned: Sequence[Event], for_tests: bool) -> Sequence[Event]:
    """Returns the releases as they count: with a fixed secret they are unprotected."""
    return [Unprotected("a release with a fixed secret")] if for_tests else planned


def upload_log(client: Path) -> list[dict[str, Any]]:
    """Returns the list of a client's uploads, with their time, round, size and hash."""
    return read_lines(client / "uploads.jsonl")


def _part(records: Records, prefix: str) -> dict[str, Tensors]:
    return {
        name.removeprefix(prefix): tensors
        for name, tensors in records.items()
        if name.startswith(prefix)
    }


def _secret(path: Path) -> Secret:
    """Returns the secret in a file; if there is none, writes a new one."""
    try:
        return Secret.from_hex(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        fresh = Secret.fresh()
        files.write_whole(path, fresh.to_hex().encode(), files.OWNER)
        return fresh
    except ValueError as error:
        raise LedgerError(
            f"{path} is damaged; restore it from a backup, or delete it to make a new secret"
        ) from error
