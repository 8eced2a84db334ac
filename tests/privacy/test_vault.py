"""A client's secret, ledger and uploads on disk, also after crashes and damage."""

import hashlib
import math
import os
import stat
from pathlib import Path

import pytest
import torch

from feddm.core.tensors import to_bytes
from feddm.errors import BudgetError, LedgerError
from feddm.privacy.accounting import Event, Released, Unprotected, epsilon
from feddm.privacy.ledger import Entry, Ledger
from feddm.privacy.noise import Secret
from feddm.privacy.policy import Asked, Policy
from feddm.privacy.vault import Sent, Terms, Vault, Vaults, upload_log

DELTA = 1e-5
ONE = Entry("run", 1, b"first", (Released(2, 8.0), Released(30, 1.25, 0.125)))
TWO = Entry("run", 2, b"second", (Released(1, 4.0), Unprotected("labels")))
SENT = Sent(
    b"making",
    {
        "params": {"w": torch.tensor([1.5, -2.0]), "b/c": torch.ones(2, 0)},
        "size": {"n": torch.tensor(1)},
    },
    {"control": {"w": torch.tensor(0.25)}},
)


def opened(
    folder: Path,
    budget: Policy = Policy(),  # noqa: B008  # frozen
    policy: Policy = Policy(),  # noqa: B008
    elsewhere: tuple[Event, ...] = (),
    secret: Secret | None = None,
) -> Vault:
    terms = Terms("run", Asked("feddm", "features"), budget, policy)
    return Vault(folder, terms, elsewhere, secret)


def vaults(folder: Path, split: str = "split", test_seed: str = "", **terms: object) -> Vaults:
    return Vaults(Ledger(folder), split, Terms("run", **terms), test_seed)  # type: ignore[arg-type]


def entry(*events: Event, run: str = "run", round_: int = 1) -> Entry:
    return Entry(run, round_, b"", events)


def test_a_secret_is_kept_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    vault = opened(tmp_path / "a/b")
    file = tmp_path / "a/b/secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (tmp_path / "a", tmp_path / "a/b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert opened(tmp_path / "a/b").secret == vault.secret
    assert Secret.from_hex(file.read_text()) == vault.secret
    assert not vault.secret.for_tests
    assert opened(tmp_path / "c").secret != vault.secret


@pytest.mark.parametrize("text", ["", "00" * 31, "x" * 64])
def test_a_damaged_secret_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    with pytest.raises(LedgerError, match="secret is damaged"):
        opened(tmp_path)


def test_secrets_for_tests_are_marked_and_not_written(tmp_path: Path) -> None:
    fixed = vaults(tmp_path, test_seed="seed")
    first, second = fixed.of(0).secret, fixed.of(1).secret
    assert first.for_tests
    assert first != second
    assert fixed.of(0).secret == first
    assert not list(tmp_path.rglob("secret"))
    assert not vaults(tmp_path).of(0).secret.for_tests


def test_a_fixed_secret_makes_epsilon_infinite(tmp_path: Path) -> None:
    fixed = vaults(tmp_path, test_seed="seed")
    vault = fixed.of(0)
    vault.spend(vault.entry(1, b"", (Released(1, 100.0),)))
    vault.list_upload(vault.entries()[0], SENT)
    assert vault.epsilon() == fixed.epsilon() == math.inf
    assert upload_log(vault.folder)[0]["epsilon"] is None
    # A later run with real secrets has no finite epsilon either.
    assert vaults(tmp_path).of(0).epsilon() == vaults(tmp_path).epsilon() == math.inf
    assert vaults(tmp_path, "another").epsilon() == math.inf


def test_a_ledger_survives(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    assert (vault.entries(), vault.epsilon()) == ([], 0.0)
    vault.spend(ONE)
    assert opened(tmp_path).entries() == [ONE]
    vault.spend(TWO)
    assert opened(tmp_path).entries() == [ONE, TWO]
    assert opened(tmp_path).epsilon() == math.inf


def test_a_repeated_entry_costs_once(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    event = Released(1, 4.0)
    vault.spend(Entry("run", 1, b"context", (event,)))
    vault.spend(Entry("run", 1, b"context", (event,)))
    assert len(vault.entries()) == 1
    for entry in (
        Entry("run", 2, b"context", (event,)),
        Entry("run", 1, b"another", (event,)),
        Entry("another", 1, b"context", (event,)),
        Entry("run", 1, b"context", (event, event)),
    ):
        vault.spend(entry)
        assert vault.entries()[-1] == entry
    assert vault.epsilon() == pytest.approx(epsilon([Released(6, 4.0)], DELTA))


def test_what_was_spent_elsewhere_counts(tmp_path: Path) -> None:
    vault = opened(tmp_path, elsewhere=(Released(3, 4.0),))
    assert vault.epsilon() == pytest.approx(epsilon([Released(3, 4.0)], DELTA))
    vault.spend(entry(Released(1, 4.0)))
    assert vault.epsilon() == pytest.approx(epsilon([Released(4, 4.0)], DELTA))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"round": 1, "release": "00", "events": [{"kind": "laplace"}]}',
        '{"round": 1, "release": "00", "events": [{"kind": "gaussian", "times": 1}]}',
        '{"round": 1, "release": "xx", "events": []}',
        '{"round": 1, "release": "00", '
        '"events": [{"kind": "gaussian", "times": -1, "noise_multiplier": 1.0}]}',
        '{"round": 1, "release": "00", '
        '"events": [{"kind": "gaussian", "times": 1, "noise_multiplier": "9"}]}',
    ],
)
def test_a_damaged_line_is_refused(tmp_path: Path, line: str) -> None:
    vault = opened(tmp_path)
    vault.spend(ONE)
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write(line + "\n")
    for use in (vault.entries, vault.epsilon, lambda: vault.spend(TWO)):
        with pytest.raises(LedgerError, match=r"ledger\.jsonl"):
            use()
    # An unreadable ledger must not look like an empty one.
    with pytest.raises(LedgerError):
        vault.agree([Released(1, 8.0)])


def test_the_stored_upload_is_for_the_same_context_only(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    assert vault.sent_before(b"first") is None
    vault.keep(b"first", SENT)
    found = opened(tmp_path).sent_before(b"first")
    assert found is not None
    assert found.release == b"making"
    assert to_bytes(found.upload) == to_bytes(SENT.upload)
    assert to_bytes(found.memory) == to_bytes(SENT.memory)
    assert set(found.upload) == set(SENT.upload)
    assert opened(tmp_path).sent_before(b"firs") is None
    assert opened(tmp_path).sent_before(b"second") is None
    vault.keep(b"second", Sent(b"", {"empty": {"x": torch.empty(0, 3)}}, {}))
    assert vault.sent_before(b"first") is None
    second = vault.sent_before(b"second")
    assert second is not None
    assert second.memory == {}
    assert second.upload["empty"]["x"].shape == (0, 3)


def test_a_truncated_upload_was_never_sent(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    vault.keep(b"first", SENT)
    file = tmp_path / "sent.safetensors"
    for content in (file.read_bytes()[:-1], b""):
        file.write_bytes(content)
        assert vault.sent_before(b"first") is None


def test_uploads_are_logged(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    vault.spend(entry(Released(1, 8.0)))
    vault.list_upload(ONE, SENT)
    vault.spend(TWO)
    vault.list_upload(TWO, SENT)
    first, second = upload_log(tmp_path)
    assert first["round"] == 1
    assert first["sha256"] == hashlib.sha256(to_bytes(SENT.upload)).hexdigest()
    assert first["shapes"] == [[2], [2, 0], []]
    assert first["bytes"] == 2 * 4 + 8
    assert first["epsilon"] == pytest.approx(epsilon([Released(1, 8.0)], DELTA))
    assert second["epsilon"] is None  # labels were released without protection


class TestAgreement:
    def test_the_runs_budget(self, tmp_path: Path) -> None:
        event = Released(1, 4.0)
        vault = opened(tmp_path, Policy(epsilon([Released(3, 4.0)], DELTA), DELTA))
        for number in range(3):
            vault.agree([event])
            vault.spend(entry(event, round_=number))
        with pytest.raises(BudgetError, match=r"would have spent .*the run's budget"):
            vault.agree([event])

    def test_what_was_spent_elsewhere_counts(self, tmp_path: Path) -> None:
        budget = Policy(epsilon([Released(3, 4.0)], DELTA), DELTA)
        opened(tmp_path, budget, elsewhere=(Released(2, 4.0),)).agree([Released(1, 4.0)])
        with pytest.raises(BudgetError):
            opened(tmp_path, budget, elsewhere=(Released(3, 4.0),)).agree([Released(1, 4.0)])

    def test_the_clients_policy_applies_besides_the_budget(self, tmp_path: Path) -> None:
        policy = Policy(epsilon=1.0, noise_multiplier=2.5)
        vault = opened(tmp_path, Policy(epsilon=8.0), policy)
        vault.agree([Released(1, 6.0)])
        with pytest.raises(BudgetError, match="its limit is 1"):
            vault.agree([Released(1, 3.0)])
        with pytest.raises(BudgetError, match=r"at least 2\.5, got 2"):
            vault.agree([Released(1, 2.0)])

    @pytest.mark.parametrize(
        "policy", [Policy(epsilon=1e6), Policy(noise_multiplier=1e-6)], ids=("epsilon", "noise")
    )
    def test_a_fixed_secret_does_not_count_as_noise_for_a_policy(
        self, tmp_path: Path, policy: Policy
    ) -> None:
        fixed = Secret(bytes(32), for_tests=True)
        planned = [Released(1, 100.0)]
        opened(tmp_path, policy, secret=fixed).agree(planned)  # it does for a budget
        with pytest.raises(BudgetError):
            opened(tmp_path, policy=policy, secret=fixed).agree(planned)


def test_splits_add_up(tmp_path: Path) -> None:
    # In another split, an example may have belonged to any client.
    for split, client, times in (("a", 0, 2), ("a", 1, 3), ("b", 0, 5), ("b", 7, 1)):
        vaults(tmp_path, split).of(client).spend(entry(Released(times, 10.0)))
    here = vaults(tmp_path, "a")
    assert sum(event.times for event in here.spent() if isinstance(event, Released)) == 8
    assert here.of(0).epsilon() == pytest.approx(epsilon([Released(7, 10.0)], DELTA))
    assert here.of(1).epsilon() == pytest.approx(epsilon([Released(8, 10.0)], DELTA))
    assert here.of(2).epsilon() == pytest.approx(epsilon([Released(5, 10.0)], DELTA))


def test_epsilon_is_the_largest_of_any_client(tmp_path: Path) -> None:
    assert vaults(tmp_path).epsilon() == 0
    # In an earlier run, without any client of this cohort.
    vaults(tmp_path).of(4).spend(entry(Released(3, 10.0), run="earlier"))
    vaults(tmp_path).of(0).spend(entry(Released(1, 8.0)))
    # The maximum per kind would be all four releases, which no client has paid for.
    expected = epsilon([Released(3, 10.0)], DELTA)
    assert vaults(tmp_path).epsilon() == pytest.approx(expected)
    # An unused split: its clients may be those of the other.
    assert vaults(tmp_path, "new").epsilon() == pytest.approx(
        epsilon([Released(3, 10.0), Released(1, 8.0)], DELTA)
    )


class TestPaid:
    @pytest.fixture
    def two_rounds(self, tmp_path: Path) -> Vaults:
        """Returns the vaults after two rounds of two clients, and an earlier run."""
        clients = vaults(tmp_path)
        clients.of(0).spend(entry(Released(1, 10.0), run="earlier"))
        for client in (0, 1):
            for number in (1, 2):
                clients.of(client).spend(entry(Released(1, 10.0), round_=number))
        return clients

    uploads = ((1, 0), (1, 1), (2, 0), (2, 1))
    least = epsilon([Released(3, 10.0)], DELTA)

    def test_a_complete_ledger(self, two_rounds: Vaults) -> None:
        two_rounds.check_paid(self.uploads, self.least)
        two_rounds.check_paid([], 0.0)

    @pytest.mark.parametrize(
        ("client", "line"), [(0, 1), (1, 0), (1, 1)], ids=["0 in 1", "1 in 1", "1 in 2"]
    )
    def test_a_missing_line_of_the_run(
        self, two_rounds: Vaults, client: int, line: int
    ) -> None:
        file = two_rounds.of(client).folder / "ledger.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:line] + lines[line + 1 :]))
        number = line + (1 if client else 0)
        with pytest.raises(
            LedgerError, match=f"client {client} in round {number} is missing; restore it"
        ):
            two_rounds.check_paid(self.uploads, 0.0)

    def test_a_missing_line_of_another_run(self, two_rounds: Vaults) -> None:
        file = two_rounds.of(0).folder / "ledger.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
        two_rounds.check_paid(self.uploads, 0.0)
        with pytest.raises(
            LedgerError, match=r"has lost lines: it adds up to epsilon .*, but .* was spent"
        ):
            two_rounds.check_paid(self.uploads, self.least)

    def test_a_missing_folder(self, two_rounds: Vaults) -> None:
        folder = two_rounds.of(1).folder
        folder.rename(folder.with_name("moved"))
        with pytest.raises(LedgerError, match="client 1 in round 1"):
            two_rounds.check_paid(self.uploads, 0.0)


def test_other_splits_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vaults(tmp_path, "other").of(0).spend(entry(Released(2, 8.0)))
    clients = vaults(tmp_path)
    clients.of(0)
    monkeypatch.setattr("feddm.privacy.ledger.read_entries", None)
    clients.of(1)
    assert clients.elsewhere == [Released(2, 8.0)]


def test_an_unusable_folder_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"cannot use .*file"):
        opened(tmp_path / "file")
    with pytest.raises(LedgerError, match=r"cannot use .*file"):
        opened(tmp_path / "file" / "below")
    vault = opened(tmp_path / "vault")
    (tmp_path / "vault/ledger.jsonl").mkdir()
    for use in (vault.entries, vault.epsilon, lambda: vault.spend(ONE)):
        with pytest.raises(LedgerError, match=r"cannot use .*ledger\.jsonl"):
            use()


def test_a_full_disk_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = opened(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerError, match="No space left on device"):
        vault.spend(ONE)


def test_errors_are_appended(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    vault.log_error("first")
    vault.log_error("second")
    lines = (tmp_path / "errors.log").read_text().splitlines()
    assert [line for line in lines if line in ("first", "second")] == ["first", "second"]
