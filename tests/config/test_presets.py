from typing import Any

import pytest

from feddm.config.presets import merged
from feddm.config.resolve import flat, resolve

# Each value as the paper has it, section "Experimental setup", "Hyperparameters".
PAPER = {
    "rounds": 20,  # "the fixed number of communication rounds as 20"
    "participation": 1.0,  # every client, every round
    "partition.scheme": "dirichlet",  # "non-i.i.d. data partitioning with Dirichlet"
    "partition.clients": 10,  # "Dir_10(0.5) with 10 clients"
    "partition.alpha": 0.5,
    "partition.min_examples": 10,  # as in NIID-Bench
    "partition.classes_per_client": 2,  # of no use to a Dirichlet split
    "model.name": "convnet",  # "the same model structure ConvNet by default"
    "model.width": 128,  # that of the dataset-condensation papers
    "model.depth": 3,
    "model.norm": "instance",
    "images_per_class": 10,  # "ipc to be 10 for MNIST and CIFAR10"
    "synthesis.steps": 1000,  # "for T=1,000 iterations"
    "synthesis.lr": 1.0,  # "with eta_c=1"
    "synthesis.momentum": 0.0,  # none is named
    "synthesis.networks": "fresh",  # Algorithm 1 samples one in every step
    "synthesis.real_batch": 256,  # "the batch size as 256 for real images"
    "synthesis.radius": 5.0,  # "the choice of radius rho=5"
    "synthesis.start": "real",  # "initialized as randomly sampled real images"
    "min_class_size": 10,  # follows from the published message sizes
    "synthesis.augment": False,  # none is named
    "synthesis.distance": "squared",  # Eq. obj
    "coding": "float32",  # the message sizes are counted in floats
    "server.lr": 0.01,  # "SGD of eta_s=0.01"
    "server.epochs": 500,  # "for 500 epochs"
    "server.batch_size": 256,  # "with the batch size 256"
    "server.momentum": 0.0,  # none is named
    "server.weight_decay": 0.0,  # none is named
    "server.radius": 5.0,  # the same rho
    "server.weighting": "synthetic",  # the plain union
    "server.augment": False,  # none is named
    "server.replay": 0,  # only the sets of the round
    "server.schedule": "constant",
}
SECTIONS = ("partition.", "model.", "synthesis.", "server.")


def preset(name: str, **options: str) -> dict[str, Any]:
    """Returns the values that a preset gives to FedDM, by their keys."""
    values = {
        key.removeprefix("algorithm."): value
        for key, value in flat(resolve(preset=name, options=options).model_dump()).items()
    }
    return {key: values[key] for key in values if key in PAPER or key.startswith(SECTIONS)}


@pytest.mark.parametrize("dataset", ["digits", "mnist", "fashion-mnist", "cifar10"])
def test_paper_is_the_paper_to_the_letter(dataset: str) -> None:
    assert preset("paper", dataset=dataset) == PAPER


def test_paper_has_five_images_a_class_for_cifar100() -> None:
    assert preset("paper", dataset="cifar100") == PAPER | {"images_per_class": 5}


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fednova", "scaffold"])
def test_paper_trains_other_algorithms_within_the_range_that_it_tunes(name: str) -> None:
    config: Any = resolve(preset="paper", options={"algorithm": name})
    local = config.algorithm.local
    assert local.batch_size == 256  # "the same batch size of 256 for local training"
    assert local.lr in (0.001, 0.01, 0.1)
    assert local.epochs in (10, 15, 20)
    assert getattr(config.algorithm, "mu", 1) in (0.01, 0.1, 1)
    assert (getattr(local, "momentum", 0), local.weight_decay) == (0, 0)


def test_quick_trains_on_digits_in_small_batches() -> None:
    local: dict[str, Any] = resolve(options={"algorithm": "fedavg"}).model_dump()["algorithm"]
    assert local["local"]["batch_size"] == 16
    assert (local["local"]["epochs"], local["local"]["momentum"]) == (2, 0.9)


def test_what_quick_changes() -> None:
    quick = preset("quick", dataset="cifar10")
    assert {key: quick[key] for key in PAPER if quick[key] != PAPER[key]} == {
        "rounds": 5,
        "model.width": 32,
        "coding": "uint8",
        "synthesis.distance": "relative",
        "synthesis.lr": 100.0,
        "synthesis.momentum": 0.5,
        "synthesis.steps": 100,
        "synthesis.networks": 10,  # that see a client's real images, in place of a thousand
        "synthesis.augment": True,
        "server.lr": 0.02,
        "server.schedule": "cosine",
        "server.epochs": 60,
        "server.momentum": 0.9,
        "server.augment": True,
        "server.replay": 3,
    }


def test_merged_leaves_its_arguments_unchanged() -> None:
    under: dict[str, Any] = {"a": {"b": 1}, "c": 2}
    over: dict[str, Any] = {"a": {"d": 3}, "e": 4}
    assert merged(under, over) == {"a": {"b": 1, "d": 3}, "c": 2, "e": 4}
    assert under == {"a": {"b": 1}, "c": 2}
    assert over == {"a": {"d": 3}, "e": 4}


def test_a_value_replaces_a_section_and_the_other_way_round() -> None:
    assert merged({"a": {"b": 1}}, {"a": 2}) == {"a": 2}
    assert merged({"a": 2}, {"a": {"b": 1}}) == {"a": {"b": 1}}
