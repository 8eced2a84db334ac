"""The ledger: its entries, and what they cost for each unit of privacy."""

import json
import math
from pathlib import Path

import pytest

from feddm.errors import LedgerError
from feddm.privacy.accounting import Event, Released, Unprotected, epsilon
from feddm.privacy.ledger import Entry, Ledger, add_entry, most_spent, read_entries

DELTA = 1e-5
EVENT = Released(1, 8.0)


def entry(*events: Event, unit: str = "example", for_tests: bool = False) -> Entry:
    return Entry("run", 1, b"", events, unit, for_tests)


def spend(folder: Path, client: str, *entries: Entry) -> None:
    (folder / client).mkdir(parents=True, exist_ok=True)
    for each in entries:
        add_entry(folder / client, each)


def test_lines_are_readable(tmp_path: Path) -> None:
    one = Entry("name", 3, b"\x01\xff", (Released(2, 8.0, 0.5), Unprotected("labels")), "group")
    add_entry(tmp_path, one)
    assert read_entries(tmp_path) == [one]
    line = json.loads((tmp_path / "ledger.jsonl").read_text())
    assert line.pop("time").startswith("20")
    assert line == {
        "run": "name",
        "round": 3,
        "release": "01ff",
        "unit": "group",
        "for_tests": False,
        "events": [
            {"kind": "gaussian", "times": 2, "noise_multiplier": 8.0, "sample_rate": 0.5},
            {"kind": "unprotected", "what": "labels"},
        ],
    }


class TestCost:
    def test_other_units_are_not_protected(self) -> None:
        for own in ("example", "group", "client"):
            for wanted in ("example", "group", "client"):
                cost = entry(EVENT, unit=own).cost(wanted)
                if own == wanted:
                    assert cost == (EVENT,)
                else:
                    assert math.isinf(epsilon(cost, DELTA))

    def test_fixed_secrets_protect_nothing(self) -> None:
        fixed = entry(EVENT, for_tests=True)
        assert fixed.cost("example", for_tests=True) == (EVENT,)
        assert math.isinf(epsilon(fixed.cost("example"), DELTA))

    def test_only_examples_are_the_same_in_another_split(self) -> None:
        # In another split, the examples of one client may be spread over ten.
        assert entry(EVENT).cost("example", same_split=False) == (EVENT,)
        for unit in ("group", "client"):
            cost = entry(EVENT, unit=unit).cost(unit, same_split=False)
            assert math.isinf(epsilon(cost, DELTA))


def test_clients_compose_in_parallel() -> None:
    ledgers = [
        [entry(Released(3, 2.0)), entry(Released(1, 2.0), Released(1, 5.0))],
        [entry(Released(2, 2.0), Released(4, 5.0, 0.5))],
        [],
    ]
    assert most_spent(ledgers) == [Released(4, 2.0), Released(4, 5.0, 0.5), Released(1, 5.0)]
    assert most_spent([]) == []
    two = entry(Released(1, 4.0), Unprotected("labels"))
    assert most_spent([[two], [two]]) == [Unprotected("labels"), Released(1, 4.0)]


class TestSplits:
    def test_example_releases_add_up(self, tmp_path: Path) -> None:
        for split, client, times in (("a", 0, 2), ("a", 1, 3), ("b", 0, 5), ("b", 7, 1)):
            spend(tmp_path / split, f"client_{client}", entry(Released(times, 10.0)))
        (tmp_path / "a file").write_text("which is no split")
        ledger = Ledger(tmp_path)
        assert ledger.elsewhere("a") == [Released(5, 10.0)]
        assert ledger.elsewhere("b") == [Released(3, 10.0)]
        assert ledger.elsewhere("c") == [Released(3, 10.0), Released(5, 10.0)]
        for split in ("a", "b", "c"):
            spent = epsilon(ledger.spent(split), DELTA)
            assert spent == pytest.approx(epsilon([Released(8, 10.0)], DELTA))

    @pytest.mark.parametrize("unit", ["group", "client"])
    def test_group_and_client_releases_void_each_other(self, tmp_path: Path, unit: str) -> None:
        ledger = Ledger(tmp_path)
        for _ in range(2):
            spend(tmp_path / "a", "client_0", entry(EVENT, unit=unit))
        assert ledger.spent("a", unit) == [Released(2, 8.0)]
        assert math.isinf(epsilon(ledger.spent("b", unit), DELTA))
        spend(tmp_path / "b", "client_0", entry(EVENT, unit=unit))
        assert math.isinf(epsilon(ledger.spent("a", unit), DELTA))


class TestIdentity:
    def test_created_once_and_kept_when_moved(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "digits")
        assert ledger.id is None
        assert not ledger.folder.exists()  # reading the id does not create it
        key = ledger.key()
        assert ledger.key() == key
        assert (ledger.folder / "key").stat().st_mode & 0o077 == 0
        ledger.folder.rename(tmp_path / "moved")
        assert Ledger(tmp_path / "moved").id is not None
        assert Ledger(tmp_path / "moved").key() == key
        assert ledger.id is None

    def test_ids_are_unique(self, tmp_path: Path) -> None:
        ledgers = [Ledger(tmp_path / name) for name in "ab"]
        assert len({ledger.key() for ledger in ledgers}) == 2
        assert len({ledger.id for ledger in ledgers}) == 2

    def test_the_id_does_not_reveal_the_key(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path)
        key = ledger.key().hex()
        assert ledger.id is not None
        assert ledger.id not in key

    @pytest.mark.parametrize("text", ["", "00" * 31, "x" * 64])
    def test_a_damaged_key_is_an_error(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "key").write_text(text)
        with pytest.raises(LedgerError, match="key is damaged"):
            Ledger(tmp_path).key()


def test_two_runs_cannot_spend_at_the_same_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "digits")
    in_use = pytest.raises(LedgerError, match="in use by another run")
    with ledger.locked(), in_use, ledger.locked():
        pass
    with ledger.locked():
        pass
