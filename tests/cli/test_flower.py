"""``feddm flower``: what it checks and says before it starts anything."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from feddm.cli import app
from feddm.errors import ConfigError, LedgerError, MissingExtraError, RunDirectoryError


def call(*arguments: object) -> None:
    app([str(argument) for argument in ("flower", *arguments)], standalone_mode=False)


def test_the_app_is_a_folder_with_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("app", tmp_path / "mine")
    assert capsys.readouterr().out == f"flwr run {tmp_path / 'mine'}\n"
    text = (tmp_path / "mine" / "pyproject.toml").read_text()
    assert 'clientapp = "feddm.flower.client_app:app"' in text
    with pytest.raises(RunDirectoryError, match="already exists; choose a new folder"):
        call("app", tmp_path / "mine")


def test_a_node_needs_files_that_exist(tmp_path: Path) -> None:
    node = ("node", "--superlink", "127.0.0.1:1", "--client", 0)
    with pytest.raises(ConfigError, match=r"no such file: .*ca\.crt"):
        call(*node, "--root-certificates", tmp_path / "ca.crt")
    (tmp_path / "key").touch()
    with pytest.raises(ConfigError, match="--key cannot be used with --insecure"):
        call(*node, "--insecure", "--key", tmp_path / "key")
    with pytest.raises(ConfigError, match="data must be the path of its chest, got ''"):
        call(*node, "--insecure", "--dataset", "chest")


def test_a_node_without_a_policy_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("feddm.flower.runner.serve", lambda *_: None)
    node = ("node", "--superlink", "127.0.0.1:1", "--client", 0, "--insecure")
    call(*node)
    assert "limits this node: it does whatever the server asks" in capsys.readouterr().out
    file = tmp_path / "policy.toml"
    monkeypatch.setenv("FEDDM_POLICY", str(file))
    file.write_text("epsilon = 4")
    call(*node)
    assert capsys.readouterr().out == ""
    file.write_text("epsilom = 4")
    with pytest.raises(LedgerError, match="unknown key epsilom"):
        call(*node)  # before it connects


def test_nothing_starts_if_a_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nothing may be started")

    monkeypatch.setattr("feddm.flower.loopback.Loopback.__enter__", never)
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.toml"
    own.write_text("[data]\nname = 'chest'\n[data.own]\nclasses = ['ill', 'well']")
    with pytest.raises(ConfigError, match="min_clients must be at most 2"):
        call("up", "--clients", 2, "--min-clients", 3)
    with pytest.raises(ConfigError, match="`feddm flower up` starts none; start each node"):
        call("up", own)
    # Otherwise it would show the rounds of another run as its own.
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "model.safetensors").touch()
    with pytest.raises(RunDirectoryError, match="earlier exists and is not empty"):
        call("up", "--out", tmp_path / "earlier")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", [("up",), ("app", "x")])
def test_without_flower_it_says_how_to_install_it(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "flwr" else found(name)
    )
    with pytest.raises(MissingExtraError, match=r"pip install 'feddm\[flower\]'"):
        call(*command)
