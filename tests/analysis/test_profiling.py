import math

import pytest

from feddm.analysis.profiling import PARTS, ProfilePart, profile
from feddm.config.resolve import resolve

CLIENTS, NETWORKS, STEPS, EPOCHS = 3, 2, 5, 4
SETTINGS = {
    "model.width": 4,
    "model.depth": 2,
    "partition.scheme": "iid",  # so that every client has every class
    "images_per_class": 1,  # ten images are one group
    "synthesis.steps": STEPS,
    "synthesis.networks": NETWORKS,
    "server.epochs": EPOCHS,
    "server.batch_size": 16,
    "local.epochs": 1,
    "local.batch_size": 100,
}


def parts(algorithm: str) -> dict[str, ProfilePart]:
    # The profile runs one round in one process, whatever the configuration says.
    options = {"algorithm": algorithm, "clients": CLIENTS, "rounds": 7, "workers": 2}
    found = profile(resolve(options=options, settings=SETTINGS, shared=True))
    assert [part.name for part in found] == ["the whole round", *(name for name, _ in PARTS)]
    return {part.name.strip(): part for part in found}


def test_feddm() -> None:
    found = parts("feddm")
    server_steps = EPOCHS * math.ceil(CLIENTS * 10 / 16)
    assert {name: part.calls for name, part in found.items()} == {
        "the whole round": 1,
        "data, split and model": 1,
        "clients": CLIENTS,
        "sampling networks": CLIENTS * NETWORKS,
        "real images, forward": CLIENTS * NETWORKS,
        "synthetic images, forward and back": CLIENTS * STEPS,
        "training": 1,
        "examples, forward and back": server_steps,
        "projection into the ball": server_steps,
        "evaluation": 1,
    }


def test_fedavg() -> None:
    found = parts("fedavg")
    # 1,438 examples over three clients: 479 or 480 each, so five batches of at most 100.
    calls = {name: part.calls for name, part in found.items() if part.calls}
    assert calls == {
        "the whole round": 1,
        "data, split and model": 1,
        "clients": CLIENTS,
        "training": CLIENTS,
        "examples, forward and back": CLIENTS * 5,
        "evaluation": 1,
    }


@pytest.mark.parametrize("algorithm", ["feddm", "fedavg"])
def test_parts_take_no_longer_than_the_whole(algorithm: str) -> None:
    found = parts(algorithm)
    seconds = {name: part.seconds for name, part in found.items()}
    whole = seconds["the whole round"]
    assert whole > 0
    matched = (
        "sampling networks",
        "real images, forward",
        "synthetic images, forward and back",
    )
    assert sum(seconds[name] for name in matched) <= seconds["clients"]
    assert seconds["examples, forward and back"] <= seconds["training"]
    top = ["data, split and model", "clients", "evaluation"]
    top += ["training"] if algorithm == "feddm" else []  # else the clients do it
    assert sum(seconds[name] for name in top) <= whole
