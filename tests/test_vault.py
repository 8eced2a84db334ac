"""A client's secret, ledger and uploads on the disk, whatever happens in between."""

import hashlib
import json
import math
import os
import stat
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddm.errors import BudgetError, LedgerError
from feddm.privacy.accounting import Event, Released, Unprotected, epsilon
from feddm.privacy.noise import Secret
from feddm.tensors import to_bytes
from feddm.vault import Asked, Entry, Policy, Sent, Vault, Vaults, most_spent, upload_log

DELTA = 1e-5
ONE = Entry(1, b"first", (Released(2, 8.0), Released(30, 1.25, 0.125)))
TWO = Entry(2, b"second", (Released(1, 4.0), Unprotected("labels")))
SENT = Sent(
    {
        "params": {"w": torch.tensor([1.5, -2.0]), "b/c": torch.ones(2, 0)},
        "size": {"n": torch.tensor(1)},
    },
    {"control": {"w": torch.tensor(0.25)}},
)


def opened(folder: Path, policy: Policy = Policy(), earlier: tuple[Event, ...] = ()) -> Vault:  # noqa: B008  # frozen
    return Vault(folder, "run", policy, earlier)


def test_a_secret_is_kept_and_nobody_else_can_read_it(tmp_path: Path) -> None:
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
def test_a_damaged_secret_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    with pytest.raises(LedgerError, match="secret is damaged"):
        opened(tmp_path)


def test_secrets_for_tests_are_marked_and_not_written(tmp_path: Path) -> None:
    vaults = Vaults(tmp_path, "split", "run", Policy(), test_seed="seed")
    first, second = vaults.of(0).secret, vaults.of(1).secret
    assert first.for_tests
    assert first != second
    assert vaults.of(0).secret == first
    assert not list(tmp_path.rglob("secret"))
    assert not Vaults(tmp_path, "split", "run", Policy()).of(0).secret.for_tests


def test_a_ledger_survives(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    assert (vault.entries(), vault.epsilon()) == ([], 0.0)
    vault.spend(ONE)
    assert opened(tmp_path).entries() == [ONE]
    vault.spend(TWO)
    assert opened(tmp_path).entries() == [ONE, TWO]
    assert opened(tmp_path).epsilon() == math.inf


def test_the_same_entry_costs_once_and_all_others_each(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    event = Released(1, 4.0)
    vault.spend(Entry(1, b"context", (event,)))
    vault.spend(Entry(1, b"context", (event,)))
    assert len(vault.entries()) == 1
    for entry in (
        Entry(2, b"context", (event,)),
        Entry(1, b"another", (event,)),
        Entry(1, b"context", (event, event)),
    ):
        vault.spend(entry)
        assert vault.entries()[-1] == entry
    assert vault.epsilon() == pytest.approx(epsilon([Released(5, 4.0)], DELTA))


def test_what_was_spent_elsewhere_counts(tmp_path: Path) -> None:
    vault = opened(tmp_path, earlier=(Released(3, 4.0),))
    vault.spend(Entry(1, b"context", (Released(1, 4.0),)))
    further = [Released(2, 4.0)]
    assert vault.epsilon(further) == pytest.approx(epsilon([Released(6, 4.0)], DELTA))
    assert vault.epsilon() == pytest.approx(epsilon([Released(4, 4.0)], DELTA))


@given(st.integers(1, 200))
def test_a_line_that_was_cut_off_is_written_over(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("vault")
    vault = opened(folder)
    vault.spend(ONE)
    whole = (folder / "ledger.jsonl").read_bytes()
    vault.spend(TWO)
    both = (folder / "ledger.jsonl").read_bytes()
    (folder / "ledger.jsonl").write_bytes(both[: max(len(both) - cut, len(whole))])
    again = opened(folder)
    assert again.entries() == [ONE]
    again.spend(TWO)
    assert again.entries() == [ONE, TWO]
    lines = (folder / "ledger.jsonl").read_bytes()
    assert lines.startswith(whole)
    assert lines.count(b"\n") == 2


def test_a_first_line_that_was_cut_off_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b'{"time": "2026-')
    vault = opened(tmp_path)
    assert vault.entries() == []
    vault.spend(ONE)
    assert vault.entries() == [ONE]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"round": 1, "context": "00", "events": [{"kind": "laplace"}]}',
        '{"round": 1, "context": "00", "events": [{"kind": "gaussian", "times": 1}]}',
        '{"round": 1, "context": "xx", "events": []}',
        '{"round": 1, "context": "00", '
        '"events": [{"kind": "gaussian", "times": -1, "noise_multiplier": 1.0}]}',
        '{"round": 1, "context": "00", '
        '"events": [{"kind": "gaussian", "times": 1, "noise_multiplier": "9"}]}',
    ],
)
def test_a_damaged_line_is_refused(tmp_path: Path, line: str) -> None:
    vault = opened(tmp_path)
    vault.spend(ONE)
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write(line + "\n")
    for use in (vault.entries, vault.epsilon, lambda: vault.spend(TWO)):
        with pytest.raises(LedgerError):
            use()
    # Nothing is said to be free because nobody can read what was spent.
    with pytest.raises(LedgerError):
        vault.agree([Released(1, 8.0)])


def test_what_was_sent_is_given_back_for_the_same_context_alone(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    assert vault.sent_before(b"first") is None
    vault.keep(ONE, SENT)
    found = opened(tmp_path).sent_before(b"first")
    assert found is not None
    assert to_bytes(found.upload) == to_bytes(SENT.upload)
    assert to_bytes(found.memory) == to_bytes(SENT.memory)
    assert set(found.upload) == set(SENT.upload)
    assert opened(tmp_path).sent_before(b"firs") is None
    assert opened(tmp_path).sent_before(b"second") is None
    vault.keep(TWO, Sent({"empty": {"x": torch.empty(0, 3)}}, {}))
    assert vault.sent_before(b"first") is None
    second = vault.sent_before(b"second")
    assert second is not None
    assert second.memory == {}
    assert second.upload["empty"]["x"].shape == (0, 3)


def test_an_upload_that_was_cut_off_was_never_sent(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    vault.keep(ONE, SENT)
    file = tmp_path / "sent.safetensors"
    for content in (file.read_bytes()[:-1], b""):
        file.write_bytes(content)
        assert vault.sent_before(b"first") is None


def test_uploads_are_logged(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    vault.spend(Entry(1, b"first", (Released(1, 8.0),)))
    vault.keep(ONE, SENT)
    vault.spend(TWO)
    vault.keep(TWO, SENT)
    first, second = upload_log(tmp_path)
    assert first["round"] == 1
    assert first["sha256"] == hashlib.sha256(to_bytes(SENT.upload)).hexdigest()
    assert first["shapes"] == [[2], [2, 0], []]
    assert first["bytes"] == 2 * 4 + 8
    assert first["epsilon"] == pytest.approx(epsilon([Released(1, 8.0)], DELTA))
    assert second["epsilon"] is None  # labels were released without protection


class TestAgreement:
    def test_by_epsilon(self, tmp_path: Path) -> None:
        event = Released(1, 4.0)
        vault = opened(tmp_path, Policy(epsilon([Released(3, 4.0)], DELTA), DELTA))
        for number in range(3):
            vault.agree([event])
            vault.spend(Entry(number, b"", (event,)))
        with pytest.raises(BudgetError, match=r"would have spent epsilon .* its budget is"):
            vault.agree([event])
        # Something smaller than what is left would be too much as well: nothing is left.
        with pytest.raises(BudgetError):
            vault.agree([Released(1, 400.0)])

    def test_by_noise(self, tmp_path: Path) -> None:
        vault = opened(tmp_path, Policy(noise_multiplier=2.0))
        vault.agree([Released(5, 2.0)])
        with pytest.raises(BudgetError, match=r"at least 2, got 1\.5"):
            vault.agree([Released(5, 2.0), Released(1, 1.5)])
        with pytest.raises(BudgetError):
            vault.agree([Unprotected("weights")])

    @pytest.mark.parametrize(
        ("policy", "agrees"),
        [
            (Policy(mechanisms=("features", "gradients")), True),
            (Policy(mechanisms=("gradients",)), False),
            (Policy(mechanisms=()), False),
            (Policy(algorithms=("feddm",)), True),
            (Policy(mechanisms=("features",), algorithms=("fedavg",)), False),
        ],
    )
    def test_by_name(self, tmp_path: Path, policy: Policy, agrees: bool) -> None:
        vault = Vault(tmp_path, "run", policy, asked=Asked("feddm", "features"))
        if agrees:
            vault.agree([Released(1, 1.0)])
        else:
            with pytest.raises(BudgetError, match="does not take part in"):
                vault.agree([Released(1, 1.0)])

    def test_what_is_not_protected_is_beyond_any_budget(self, tmp_path: Path) -> None:
        with pytest.raises(BudgetError):
            opened(tmp_path, Policy(1e6)).agree([Unprotected("weights")])


class TestPolicyFile:
    """What the client says itself, whatever the federation promises."""

    @pytest.mark.parametrize("place", ["client", "split", "dataset"])
    def test_it_binds_beside_the_federations_own(self, tmp_path: Path, place: str) -> None:
        folders = {
            "dataset": tmp_path,
            "split": tmp_path / "split",
            "client": tmp_path / "split" / "client_000001",
        }
        folders[place].mkdir(parents=True, exist_ok=True)
        (folders[place] / "policy.toml").write_text("epsilon = 1\nnoise_multiplier = 2.5\n")
        vault = Vaults(tmp_path, "split", "run", Policy(epsilon=8.0)).of(1)
        vault.agree([Released(1, 6.0)])
        with pytest.raises(BudgetError, match="its budget is 1"):
            vault.agree([Released(1, 3.0)])
        with pytest.raises(BudgetError, match=r"at least 2\.5, got 2"):
            vault.agree([Released(1, 2.0)])

    def test_the_nearest_one_counts(self, tmp_path: Path) -> None:
        (tmp_path / "policy.toml").write_text("epsilon = 1")
        own = tmp_path / "split" / "client_000000"
        own.mkdir(parents=True)
        (own / "policy.toml").write_text('mechanisms = ["features"]')
        vaults = Vaults(tmp_path, "split", "run", Policy(), asked=Asked("feddm", "features"))
        vaults.of(0).agree([Released(1, 1.0)])
        with pytest.raises(BudgetError, match="its budget is 1"):
            vaults.of(1).agree([Released(1, 1.0)])

    @pytest.mark.parametrize(
        "text",
        [
            "epsilon = -1",
            "epsilon = 'all'",
            "mechanisms = 'features'",
            "budget = 3",
            "epsilon =",
        ],
    )
    def test_one_that_cannot_be_read_is_no_policy(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "policy.toml").write_text(text)
        with pytest.raises(LedgerError, match=r"policy\.toml"):
            opened(tmp_path)


def entry(*events: Event) -> Entry:
    return Entry(1, b"", events)


def test_clients_do_not_add_up() -> None:
    ledgers = [
        [entry(Released(3, 2.0)), entry(Released(1, 2.0), Released(1, 5.0))],
        [entry(Released(2, 2.0), Released(4, 5.0, 0.5))],
        [],
    ]
    assert most_spent(ledgers) == [Released(4, 2.0), Released(4, 5.0, 0.5), Released(1, 5.0)]
    assert most_spent([]) == []
    assert most_spent([[TWO], [TWO]]) == [Unprotected("labels"), Released(1, 4.0)]


def test_splits_add_up(tmp_path: Path) -> None:
    # An example may have been with any client of another split.
    for split, client, times in (("a", 0, 2), ("a", 1, 3), ("b", 0, 5), ("b", 7, 1)):
        Vaults(tmp_path, split, "run", Policy()).of(client).spend(entry(Released(times, 10.0)))
    (tmp_path / "a file").write_text("which is no split")
    here = Vaults(tmp_path, "a", "run", Policy())
    assert here.elsewhere() == [Released(5, 10.0)]
    assert sum(event.times for event in here.spent() if isinstance(event, Released)) == 8
    assert here.of(0).epsilon() == pytest.approx(epsilon([Released(7, 10.0)], DELTA))
    assert here.of(1).epsilon() == pytest.approx(epsilon([Released(8, 10.0)], DELTA))
    assert here.of(2).epsilon() == pytest.approx(epsilon([Released(5, 10.0)], DELTA))
    fresh = Vaults(tmp_path, "c", "run", Policy())
    assert epsilon(fresh.elsewhere(), DELTA) == pytest.approx(epsilon(here.spent(), DELTA))


def test_a_folder_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
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


def test_a_full_disk_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = opened(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerError, match="No space left on device"):
        vault.spend(ONE)


@pytest.mark.skipif(sys.platform != "linux", reason="looks files up in /proc")
def test_names_are_on_the_disk_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not take back a ledger whose folder was still in memory."""
    synced: set[Path] = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    folder = tmp_path.resolve() / "split/client"
    vault = opened(folder)
    assert {tmp_path.resolve(), folder.parent, folder, folder / "secret.part"} <= synced
    synced.clear()
    vault.spend(ONE)
    assert {folder / "ledger.jsonl", folder} <= synced
    synced.clear()
    vault.spend(TWO)
    assert synced == {folder / "ledger.jsonl"}


def test_errors_are_added(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    vault.log_error("first")
    vault.log_error("second")
    lines = (tmp_path / "errors.log").read_text().splitlines()
    assert [line for line in lines if line in ("first", "second")] == ["first", "second"]


def test_other_units_and_fixed_secrets_protect_nothing() -> None:
    event = Released(1, 8.0)
    one = Entry(1, b"", (event,), "group")
    assert one.cost("group", for_tests=False) == (event,)
    for other in ("example", "client"):
        assert isinstance(one.cost(other, for_tests=False)[0], Unprotected)
    fixed = Entry(1, b"", (event,), for_tests=True)
    assert fixed.cost("example", for_tests=True) == (event,)
    assert isinstance(fixed.cost("example", for_tests=False)[0], Unprotected)
    assert most_spent([[one]], "group") == [event]
    assert math.isinf(epsilon(most_spent([[one]], "example"), DELTA))


def test_two_runs_cannot_spend_at_once(tmp_path: Path) -> None:
    vaults = Vaults(tmp_path / "digits", "split", "run", Policy())
    in_use = pytest.raises(LedgerError, match="in use by another run")
    with vaults.locked(), in_use, vaults.locked():
        pass
    with vaults.locked():
        pass


def test_a_line_of_the_ledger_can_be_read_by_people(tmp_path: Path) -> None:
    opened(tmp_path).spend(entry(Released(2, 8.0, 0.5)))
    line = json.loads((tmp_path / "ledger.jsonl").read_text())
    assert line.pop("time").startswith("20")
    assert line == {
        "round": 1,
        "context": "",
        "unit": "example",
        "for_tests": False,
        "events": [
            {"kind": "gaussian", "times": 2, "noise_multiplier": 8.0, "sample_rate": 0.5}
        ],
    }
