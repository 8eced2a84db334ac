from typing import Any

import pytest

from feddm.config import resolve
from feddm.presets import merged, preset_values

# Each value as the paper has it, section "Experimental setup", "Hyperparameters".
PAPER = {
    "rounds": 20,  # "the fixed number of communication rounds as 20"
    "participation": 1.0,  # every client, every round
    "partition.scheme": "dirichlet",  # "non-i.i.d. data partitioning with Dirichlet"
    "partition.clients": 10,  # "Dir_10(0.5) with 10 clients"
    "partition.alpha": 0.5,
    "model.name": "convnet",  # "the same model structure ConvNet by default"
    "model.width": 128,  # that of the dataset-condensation papers
    "model.depth": 3,
    "model.norm": "instance",
    "synthesis.images_per_class": 10,  # "ipc to be 10 for MNIST and CIFAR10"
    "synthesis.steps": 1000,  # "for T=1,000 iterations"
    "synthesis.lr": 1.0,  # "with eta_c=1"
    "synthesis.momentum": 0.0,  # none is named
    "synthesis.networks": "fresh",  # Algorithm 1 samples one in every step
    "synthesis.real_batch": 256,  # "the batch size as 256 for real images"
    "synthesis.radius": 5.0,  # "the choice of radius rho=5"
    "synthesis.start": "real",  # "initialized as randomly sampled real images"
    "synthesis.min_class_size": 10,  # follows from the published message sizes
    "server.lr": 0.01,  # "SGD of eta_s=0.01"
    "server.epochs": 500,  # "for 500 epochs"
    "server.batch_size": 256,  # "with the batch size 256"
    "server.momentum": 0.0,  # none is named
    "server.weight_decay": 0.0,  # none is named
    "server.radius": 5.0,  # the same rho
    "server.weighting": "synthetic",  # the plain union
}


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values by keys such as ``server.lr``."""
    result = {}
    for key, value in values.items():
        if isinstance(value, dict):
            result |= {f"{key}.{below}": deep for below, deep in flat(value).items()}
        else:
            result[key] = value
    return result


@pytest.mark.parametrize("dataset", ["digits", "mnist", "fashion-mnist", "cifar10"])
def test_paper_is_the_paper_to_the_letter(dataset: str) -> None:
    assert flat(preset_values("paper", dataset)) == PAPER


def test_paper_has_five_images_a_class_for_cifar100() -> None:
    expected = PAPER | {"synthesis.images_per_class": 5}
    assert flat(preset_values("paper", "cifar100")) == expected


def test_paper_reaches_the_configuration() -> None:
    config = flat(resolve(preset="paper", options={"dataset": "cifar10"}).model_dump())
    assert {key: config[key] for key in PAPER} == PAPER
    assert config["preset"] == "paper"
    assert config["partition.min_examples"] == 10


def test_quick_differs_from_the_paper_only_in_what_makes_it_cheap() -> None:
    quick, paper = (flat(preset_values(preset, "cifar10")) for preset in ("quick", "paper"))
    assert {key for key in paper if quick[key] != paper[key]} == {
        "rounds",
        "model.width",
        "synthesis.steps",
        "synthesis.momentum",
        "synthesis.networks",
        "server.epochs",
        "server.momentum",
    }
    assert set(quick) == set(paper)
    # Real images that a client sends through networks: networks x real_batch a class.
    assert quick["synthesis.networks"] * 100 == paper["synthesis.steps"]


def test_merged_leaves_its_arguments_unchanged() -> None:
    under: dict[str, Any] = {"a": {"b": 1}, "c": 2}
    over: dict[str, Any] = {"a": {"d": 3}, "e": 4}
    assert merged(under, over) == {"a": {"b": 1, "d": 3}, "c": 2, "e": 4}
    assert under == {"a": {"b": 1}, "c": 2}
    assert over == {"a": {"d": 3}, "e": 4}


def test_a_value_replaces_a_section_and_the_other_way_round() -> None:
    assert merged({"a": {"b": 1}}, {"a": 2}) == {"a": 2}
    assert merged({"a": 2}, {"a": {"b": 1}}) == {"a": {"b": 1}}
