"""A federation on one machine, as far as it starts nothing; test_deployment.py has the rest."""

from pathlib import Path

import pytest

from feddm.flower.loopback import Loopback


def test_what_an_earlier_one_left_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in its database would begin, with a key of its authority others would get in."""
    monkeypatch.setattr(Loopback, "start_superlink", lambda self: None)
    left = ["ca.crt", "server.key", "superlink.db", "superlink.db-wal", "superlink.log"]
    for name in left:
        (tmp_path / name).touch()
    with Loopback(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["superlink.log"]
    with Loopback(tmp_path / "new"):  # where there is nothing
        pass
