"""``feddm flower``, as far as it answers at once; tests/flower has the rest."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from feddm.cli import app
from feddm.errors import ConfigError, MissingExtraError, RunDirectoryError


def call(*arguments: object) -> None:
    app([str(argument) for argument in ("flower", *arguments)], standalone_mode=False)


def test_the_app_is_a_folder_with_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("app", tmp_path / "mine")
    assert capsys.readouterr().out == f"flwr run {tmp_path / 'mine'}\n"
    text = (tmp_path / "mine" / "pyproject.toml").read_text()
    assert 'clientapp = "feddm.flower.client_app:app"' in text
    with pytest.raises(RunDirectoryError, match="exists; name a new folder"):
        call("app", tmp_path / "mine")


def test_a_node_needs_files_that_are_there(tmp_path: Path) -> None:
    node = ("node", "--superlink", "127.0.0.1:1", "--client", 0)
    with pytest.raises(ConfigError, match=r"there is no file .*ca\.crt"):
        call(*node, "--root-certificates", tmp_path / "ca.crt")
    (tmp_path / "key").touch()
    with pytest.raises(ConfigError, match="--insecure has no use for --key"):
        call(*node, "--insecure", "--key", tmp_path / "key")
    with pytest.raises(ConfigError, match="lacks data, where its chest is"):
        call(*node, "--insecure", "--dataset", "chest")


@pytest.mark.parametrize("command", [("up",), ("app", "x")])
def test_without_flower_it_says_how_to_get_it(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "flwr" else found(name)
    )
    with pytest.raises(MissingExtraError, match=r"pip install 'feddm\[flower\]'"):
        call(*command)
