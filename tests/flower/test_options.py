"""The app's configuration in Flower, as ours; and the app as a folder."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from feddm.config.resolve import resolve
from feddm.errors import ConfigError, RunDirectoryError
from feddm.flower.app import app_folder, write_app
from feddm.flower.engine import Patience
from feddm.flower.options import options_of


def bundled() -> dict[str, Any]:
    """Returns the configuration that Flower gives by default."""
    text = (app_folder() / "pyproject.toml").read_text()
    config: dict[str, Any] = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    return config


class TestOptions:
    def test_without_any_it_is_a_run_with_as_many_clients_as_nodes(self) -> None:
        options = options_of(bundled(), nodes=4)
        assert options.config == resolve(options={"clients": 4})
        assert options.directory is None
        assert options.patience == Patience(nodes=300.0, reply=3600.0)
        assert options.retries == 1

    def test_without_nodes_the_preset_says_how_many(self) -> None:
        assert options_of(bundled(), nodes=0).config == resolve()

    def test_values_may_be_numbers_or_texts(self) -> None:
        given = {"rounds": 3, "clients": "5", "alpha": 0.25, "seed": "7", "algorithm": "real"}
        expected = {"rounds": 3, "clients": 5, "alpha": 0.25, "seed": 7, "algorithm": "real"}
        options = options_of(bundled() | given, nodes=4)
        assert options.config == resolve(options=expected)

    @pytest.mark.parametrize("value", [2, "2"])
    def test_the_rest(self, value: object, tmp_path: Path) -> None:
        given = {
            "preset": "paper",
            "min-clients": value,
            "set": "server.lr=0.5  synthesis.networks=fresh",
            "out": str(tmp_path / "run"),
            "wait-for-nodes": 5,
            "wait-for-replies": 2.5,
            "retries": 0,
        }
        options = options_of(bundled() | given, nodes=4)
        settings = {"min_clients": 2, "server.lr": 0.5, "synthesis.networks": "fresh"}
        assert options.config == resolve(
            preset="paper", options={"clients": 4}, settings=settings
        )
        assert options.directory == tmp_path / "run"
        assert options.patience == Patience(nodes=5.0, reply=2.5)
        assert options.retries == 0

    def test_a_file_says_how_many_clients_there_are(self, tmp_path: Path) -> None:
        file = tmp_path / "run.toml"
        file.write_text("rounds = 7\n[partition]\nclients = 6\n")
        given = bundled() | {"config": str(file), "seed": 3}
        expected = resolve({"rounds": 7, "partition": {"clients": 6}}, options={"seed": 3})
        assert options_of(given, nodes=4).config == expected

    def test_resume(self) -> None:
        options = options_of(bundled() | {"resume": "run", "retries": 3}, nodes=4)
        assert (options.config, options.directory, options.retries) == (None, Path("run"), 3)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"round": 3}, "unknown key round in the app's configuration; known: algorithm,"),
            ({"workers": 2}, "unknown key workers"),
            ({"ledger": "new"}, "unknown key ledger"),
            ({"data_dir": "/data"}, "unknown key data_dir"),
            ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
            ({"rounds": True}, "rounds must be a whole number of at least 1"),
            ({"min-clients": "some"}, "min_clients must be .* or all, got 'some'"),
            ({"preset": "papre"}, "preset must be one of quick"),
            ({"set": "server.lr"}, "--set takes key=value, got 'server.lr'"),
            ({"config": "/nowhere.toml"}, "cannot read /nowhere.toml"),
            (
                {"wait-for-nodes": 0},
                "wait-for-nodes must be a number of seconds above 0, got 0",
            ),
            ({"wait-for-nodes": "5"}, "wait-for-nodes must be a number .* got '5'"),
            ({"wait-for-replies": float("inf")}, "wait-for-replies must be .* got inf"),
            ({"wait-for-replies": float("nan")}, "wait-for-replies must be .* got nan"),
            ({"wait-for-replies": True}, "wait-for-replies must be .* got True"),
            ({"retries": -1}, "retries must be a whole number of at least 0, got -1"),
            ({"retries": 1.5}, "retries must be a whole number of at least 0, got 1.5"),
            ({"retries": True}, "retries must be .* got True"),
            ({"resume": "run", "rounds": 9}, "rounds cannot be given beside resume"),
            ({"resume": "run", "out": "run2"}, "out cannot be given beside resume"),
        ],
        ids=str,
    )
    def test_mistakes(self, given: dict[str, Any], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            options_of(bundled() | given, nodes=4)


class TestApp:
    def test_every_option_stands_in_the_configuration(self) -> None:
        # Flower takes no key that is not there.
        with pytest.raises(ConfigError) as caught:
            options_of({"x": 1}, nodes=1)
        known = str(caught.value).partition("known: ")[2].split(", ")
        assert sorted(bundled()) == known

    def test_it_is_written_to_a_new_folder(self, tmp_path: Path) -> None:
        write_app(tmp_path / "a/b")
        (file,) = (tmp_path / "a/b").iterdir()
        assert file.read_text() == (app_folder() / "pyproject.toml").read_text()

    def test_nothing_is_written_over(self, tmp_path: Path) -> None:
        with pytest.raises(RunDirectoryError, match="already exists; choose a new folder"):
            write_app(tmp_path)
        (tmp_path / "file").touch()
        with pytest.raises(RunDirectoryError, match="cannot use"):
            write_app(tmp_path / "file/app")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
