from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from feddm.algorithms.base import ConfiguredAlgorithm
from feddm.algorithms.fedavg import FedAvg, FedAvgSettings
from feddm.config import registry, resolve
from feddm.config.registry import algorithm_names, find_algorithm, mechanism_names
from feddm.errors import ConfigError, UnfitAlgorithmError
from tiny import run_tiny


class Louder(FedAvg):
    """An algorithm of another package: FedAvg under another name."""

    Settings = FedAvgSettings


def forget() -> None:
    for cached in (
        algorithm_names,
        mechanism_names,
        registry._loaded,
        registry._installed,
        resolve._config_type,
    ):
        cached.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs entry points by name and value."""

    def install(**points: str) -> None:
        monkeypatch.setattr(
            registry,
            "entry_points",
            lambda group: [
                EntryPoint(name, value, group)
                for name, value in points.items()
                if group == "feddm.algorithms"
            ],
        )
        forget()

    yield install
    monkeypatch.undo()
    forget()


def test_built_in_algorithms_come_first() -> None:
    assert algorithm_names() == ("feddm", "fedavg", "fedprox", "fednova", "scaffold", "real")
    assert mechanism_names() == ("surrogate", "features", "gradients", "paper")
    for name in algorithm_names():
        assert issubclass(find_algorithm(name), ConfiguredAlgorithm)


def test_an_algorithm_of_another_package_gets_everything(installed: Any) -> None:
    installed(louder=f"{__name__}:Louder", another="no.such:Thing")
    assert algorithm_names()[-2:] == ("another", "louder")
    ours, theirs = (run_tiny(algorithm=name, rounds=1) for name in ("fedavg", "louder"))
    assert theirs.config.algorithm.name == "louder"
    assert theirs.records[-1].accuracy == ours.records[-1].accuracy
    # By inheriting from FedAvg it can be private, too.
    private = resolve.resolve(options={"algorithm": "louder", "epsilon": 4.0})
    assert private.mechanism == "gradients"
    with pytest.raises(UnfitAlgorithmError):
        resolve.resolve(options={"algorithm": "louder", "epsilon": 4.0, "privacy": "features"})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no.such:Thing", r"broken can't be loaded from no\.such:Thing: No module"),
        (f"{__name__}:Nothing", r"broken can't be loaded from .*:Nothing: .*Nothing"),
        (f"{__name__}:forget", r"broken can't be used: .*:forget is no class of feddm"),
        ("pathlib:Path", r"broken can't be used: pathlib:Path is no class of feddm"),
    ],
)
def test_one_that_cannot_be_used_is_named(installed: Any, value: str, says: str) -> None:
    installed(broken=value)
    with pytest.raises(ConfigError, match=says):
        find_algorithm("broken")
    # The others go on.
    assert find_algorithm("fedavg") is FedAvg
    with pytest.raises(ConfigError, match="feddm has no setting mu; fedprox has it"):
        resolve.resolve(settings={"mu": 1.0})


def test_a_module_that_raises_is_named(
    installed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exploding.py").write_text("raise ValueError('boom')")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed(broken="exploding:Thing")
    with pytest.raises(ConfigError, match="broken can't be loaded from exploding:Thing: boom"):
        find_algorithm("broken")


def test_two_of_one_name_are_refused_when_they_are_used(installed: Any) -> None:
    installed(fedavg=f"{__name__}:Louder")
    assert algorithm_names().count("fedavg") == 1
    assert find_algorithm("fedprox").settings_type(None)
    with pytest.raises(ConfigError, match="fedavg is registered twice"):
        find_algorithm("fedavg")


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"^algorithm must be one of feddm, .*, got 'fedsgd'$"
    ):
        find_algorithm("fedsgd")
    with pytest.raises(
        ConfigError, match=r"one of none, surrogate, features, gradients, paper, got"
    ):
        registry.find_mechanism("magic")
