"""What a client keeps about its privacy: its secret, what it spent, and what it sent.

secret              256 bits, readable by its owner alone
ledger.jsonl        one line for each release; it only grows
uploads.jsonl       one line for each upload
sent.safetensors    the last upload, which is sent again if it is asked for again
errors.log          what went wrong, which is told to nobody else
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

# Names in the file of the last upload.
_ABOUT, _UPLOAD, _MEMORY = "about", "upload:", "memory:"
# By how much versions of the accountant may differ; a release that is missing makes more.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Sent:
    """What a client made in a round.

    Args:
        release: Tells one making from all others.
        upload: What leaves.
        memory: What the client keeps in mind.
    """

    release: bytes
    upload: Records
    memory: Records


@dataclass(frozen=True)
class Terms:
    """What a client was asked, and what limits its answers.

    Args:
        run: Name of the federation, unlike any other.
        asked: What it asks for.
        budget: What it promises.
        policy: What the client agrees to.
    """

    run: str
    asked: Asked = field(default_factory=Asked)
    budget: Policy = field(default_factory=Policy)
    policy: Policy = field(default_factory=Policy)


class Vault:
    """The folder of one client; only the client itself ever opens it.

    Args:
        folder: Where; it is made if need be.
        terms: Of what it takes part in.
        elsewhere: What was released of the same examples elsewhere.
        secret: A secret for tests; else the one in the folder, which is made if need be.
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
        """Returns what is spent; under a fixed secret nothing is protected."""
        if self.secret.for_tests:
            return math.inf
        return epsilon(self._spent(), self.terms.budget.delta)

    def agree(self, planned: Sequence[Event]) -> None:
        """Raises `BudgetError` unless the client agrees to release this."""
        spent, terms = self._spent(), self.terms
        terms.budget.check(terms.asked, planned, spent)
        # Tests go through the budget of a run, and no client agrees to them by mistake.
        terms.policy.check(terms.asked, as_it_is(planned, self.secret.for_tests), spent)

    def entries(self) -> list[Entry]:
        """Returns what was released so far."""
        return read_entries(self.folder)

    def sent_before(self, context: bytes) -> Sent | None:
        """Returns what was made in this very context, if it is the last that was made."""
        try:
            records = from_bytes((self.folder / "sent.safetensors").read_bytes())
        except (OSError, SafetensorError):
            return None  # none, or cut off: then it never left
        about = {name: bytes(part.tolist()) for name, part in records.pop(_ABOUT).items()}
        if about["context"] != context:
            return None
        return Sent(about["release"], _part(records, _UPLOAD), _part(records, _MEMORY))

    def keep(self, context: bytes, sent: Sent) -> None:
        """Stores what was made, before it is paid for and leaves."""
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
        """Returns a line of this client's ledger."""
        terms = self.terms
        return Entry(
            terms.run, round_, release, events, terms.asked.unit, self.secret.for_tests
        )

    def spend(self, entry: Entry) -> None:
        """Writes an entry down, for good; one that is there already costs nothing more."""
        if entry not in self.entries():
            add_entry(self.folder, entry)

    @property
    def errors(self) -> Path:
        """The file of what went wrong."""
        return self.folder / "errors.log"

    def log_error(self, text: str) -> None:
        """Writes down what went wrong."""
        with files.explained(LedgerError, self.folder), self.errors.open("a") as file:
            file.write(f"{now()}\n{text}\n")

    def list_upload(self, entry: Entry, sent: Sent) -> None:
        """Writes down that an upload leaves, also if it left before."""
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

    Whoever uses it holds the lock of the ledger, so that nobody else spends meanwhile.

    Args:
        ledger: Of the data set: other splits of it have released of the same examples.
        split: Name of the split.
        terms: Of all clients.
        test_seed: Makes secrets that are fixed, for tests.
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
        """What other splits of the data set have released, at worst; read once."""
        return self.ledger.elsewhere(
            self.split, self.terms.asked.unit, for_tests=bool(self.test_seed)
        )

    def spent(self) -> list[Event]:
        """Returns all that was released of the data set, at worst."""
        return self.ledger.spent(
            self.split, self.terms.asked.unit, for_tests=bool(self.test_seed)
        )

    def epsilon(self) -> float:
        """Returns the most that any client has spent, in all runs, and whoever takes part."""
        if self.test_seed:
            return math.inf
        unit, delta = self.terms.asked.unit, self.terms.budget.delta
        each = [
            epsilon([*self.elsewhere, *costs(read_entries(client), unit)], delta)
            for client in clients_in(self.ledger.folder / self.split)
        ]
        return max(each, default=epsilon(self.elsewhere, delta))

    def check_paid(self, uploads: Iterable[tuple[int, int]], least: float) -> None:
        """Raises `LedgerError` if the ledger does not know what this run has sent.

        Args:
            uploads: Round and client of each upload that was received.
            least: The epsilon after the last of them.
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
            what = f"the upload of client {lost[0][1]} in round {lost[0][0]}"
        elif self.epsilon() < least * (1 - _ROUNDING):
            what = "all that was spent before"
        else:
            return
        raise LedgerError(
            f"{self.ledger.folder} has lost lines: it does not know of {what}; put it back as "
            "it was, or start a new run"
        )

    def _folder(self, client: int) -> Path:
        return self.ledger.folder / self.split / f"client_{client:06d}"


def as_it_is(planned: Sequence[Event], for_tests: bool) -> Sequence[Event]:
    """Returns what a release is worth: under a fixed secret, nothing protects it."""
    return [Unprotected("a release under a fixed secret")] if for_tests else planned


def upload_log(client: Path) -> list[dict[str, Any]]:
    """Returns what is known about each upload: when, for what, how large, and its hash."""
    return read_lines(client / "uploads.jsonl")


def _part(records: Records, prefix: str) -> dict[str, Tensors]:
    return {
        name.removeprefix(prefix): tensors
        for name, tensors in records.items()
        if name.startswith(prefix)
    }


def _secret(path: Path) -> Secret:
    """Returns the secret in a file, or a new one, which is written first."""
    try:
        return Secret.from_hex(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        fresh = Secret.fresh()
        files.write_whole(path, fresh.to_hex().encode(), files.OWNER)
        return fresh
    except ValueError as error:
        raise LedgerError(
            f"{path} is damaged; a client without its secret starts anew"
        ) from error
