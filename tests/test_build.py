import pytest
import torch

from feddm.build import build, build_dataset, fingerprint, num_workers
from feddm.config import DataConfig, RuntimeConfig, resolve
from feddm.data.datasets import load
from feddm.errors import ConfigError


def rows(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_validation_is_held_out_of_training_and_is_not_the_test_set() -> None:
    whole = load("digits")
    held = build_dataset(DataConfig(name="digits", validation=0.1))
    assert len(held.test) == round(0.1 * len(whole.train))
    assert len(held.train) + len(held.test) == len(whole.train)
    assert rows(held.train.x) | rows(held.test.x) == rows(whole.train.x)
    assert len(rows(held.train.x) & rows(held.test.x)) <= 1  # two digits of the set are alike


def test_validation_is_the_same_for_every_seed() -> None:
    first, second = (
        build(resolve(options={"seed": seed}, settings={"data.validation": 0.2})).dataset
        for seed in (0, 1)
    )
    assert torch.equal(first.test.x, second.test.x)


def test_validation_must_leave_something() -> None:
    with pytest.raises(ConfigError, match="must leave some on both sides"):
        build_dataset(DataConfig(name="digits", validation=1e-6))


@pytest.mark.parametrize(
    ("scheme", "classes"),
    [("dirichlet", 10), ("dirichlet-plain", 10), ("iid", 10), ("classes", 3)],
)
def test_every_scheme_can_be_built(scheme: str, classes: int) -> None:
    settings = {"partition.scheme": scheme, "partition.classes_per_client": 3}
    setup = build(resolve(options={"clients": 5}, settings=settings))
    assert sum(map(len, setup.shards)) == 1438
    labels = setup.dataset.train.y.numpy()
    assert max(len(set(labels[shard])) for shard in setup.shards) <= classes


def test_fingerprint_knows_data_and_split() -> None:
    prints = [
        fingerprint(build(resolve(options=options)))
        for options in ({}, {}, {"seed": 1}, {"alpha": 0.4})
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_workers_are_never_more_than_clients() -> None:
    assert num_workers(RuntimeConfig(workers=8), 3) == 3
    assert num_workers(RuntimeConfig(workers=2), 3) == 2
    assert num_workers(RuntimeConfig(), 1) == 1
