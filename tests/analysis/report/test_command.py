import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from feddm.analysis.report.command import command
from feddm.cli import app
from feddm.config.schema import ALGORITHMS, Config, resolve


def typed(config: Config) -> Config:
    """Returns the configuration that the command line makes of the command."""
    text = command(config)
    assert text is not None
    program, action, *arguments = shlex.split(text)
    assert (program, action) == ("feddm", "run")
    result = CliRunner().invoke(app, ["config", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return resolve(tomllib.loads(result.stdout))


@given(
    st.sampled_from(ALGORITHMS),
    st.sampled_from(["quick", "best", "small", "paper"]),
    st.sampled_from(["digits", "mnist", "cifar10"]),
    st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(0, 9),
            "rounds": st.integers(1, 50),
            "partition.alpha": st.sampled_from([0.01, 0.5, 1e-5]),
            "partition.scheme": st.sampled_from(["iid", "dirichlet"]),
            "model.name": st.just("resnet18"),
            "server.augment": st.booleans(),
            "synthesis.networks": st.sampled_from(["fresh", 3]),
            "data.dir": st.sampled_from(["/with blank", "/it's"]),
        },
    ),
)
def test_the_command_makes_the_same_configuration(
    algorithm: str, preset: str, dataset: str, settings: dict[str, Any]
) -> None:
    config = resolve(None, preset, {"algorithm": algorithm, "dataset": dataset}, settings)
    assert typed(config) == config


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 4.0},
        {"privacy": "gradients", "epsilon": 1.5, "algorithm": "scaffold", "ledger": "new"},
    ],
)
def test_private_runs(options: dict[str, Any]) -> None:
    config = resolve(options=options, settings={"privacy.noise_multiplier": 3.25})
    assert typed(config) == config


def test_a_text_that_looks_like_a_number_stays_a_text() -> None:
    config = resolve(options={"epsilon": 4.0}, settings={"privacy.test_secret": "123"})
    assert typed(config) == config


def test_it_says_no_more_than_it_must() -> None:
    assert command(resolve()) == "feddm run"
    private = command(resolve(options={"epsilon": 4.0}))
    assert private == "feddm run --epsilon 4.0"
    skewed = resolve(options={"dataset": "mnist", "alpha": 0.1}, settings={"server.lr": 0.5})
    assert command(skewed) == "feddm run --dataset mnist --alpha 0.1 --set server.lr=0.5"


def test_settings_that_no_version_makes(tmp_path: Path) -> None:
    # What an older version allowed, and this one refuses, needs its file.
    config = resolve().model_copy(update={"rounds": -1})
    assert command(config) is None
