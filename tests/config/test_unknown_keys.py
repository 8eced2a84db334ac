"""Keys that only another algorithm or mechanism has are dropped; all others are mistakes."""

from typing import Any

import pytest

from feddm.config.resolve import resolve
from feddm.errors import ConfigError


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ({"rouns": 3}, {}),
        ({"rouns": 3}, {"algorithm": "fedavg"}),
        ({"rouns": 3, "privacy": {"epsilon": 4.0}}, {}),
        ({"rouns": 3, "privacy": {"mechanism": "features"}}, {"privacy": "gradients"}),
    ],
    ids=str,
)
def test_a_typing_error_in_a_file(file: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"unknown key rouns \(did you mean rounds\?\)"):
        resolve(file, options={"epsilon": 4.0, **options})


def test_a_file_for_another_algorithm() -> None:
    file = {"algorithm": {"name": "fedprox", "mu": 0.5, "local": {"lr": 0.25}}}
    for algorithm in ("fedavg", "feddm"):
        plain = resolve(options={"algorithm": algorithm}).model_dump()
        found = resolve(file, options={"algorithm": algorithm}).model_dump()
        if algorithm == "fedavg":
            plain["algorithm"]["local"]["lr"] = 0.25
        assert found == plain


def test_a_file_for_another_mechanism() -> None:
    file = {
        "privacy": {"mechanism": "features", "epsilon": 4.0, "learn": "client", "clip": 2.0}
    }
    found = resolve(file, options={"privacy": "gradients"})
    assert found == resolve(
        options={"privacy": "gradients", "epsilon": 4.0}, settings={"privacy.clip": 2.0}
    )


def test_only_what_is_shared_is_dropped() -> None:
    special = {"algorithm": {"name": "fedavg", "local": {"epochs": 3}}}
    shared = {"synthesis.steps": 1, "local.lr": 0.25}
    found = resolve(special=special, settings=shared, shared=True)
    assert found == resolve(
        options={"algorithm": "fedavg"}, settings={"local.epochs": 3, "local.lr": 0.25}
    )
    with pytest.raises(ConfigError, match=r"unknown key local\.lrr"):
        resolve(special={"algorithm": {"name": "fedavg", "local": {"lrr": 1}}}, shared=True)
