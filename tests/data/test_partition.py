import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddm.data import partition
from feddm.data.partition import Labels, Shards, by_classes, class_table, dirichlet, iid
from feddm.errors import PartitionError


def labels_of(num_classes: int, each: int) -> Labels:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(num_classes), each))


def assert_each_once(shards: Shards, num_examples: int) -> None:
    assert sorted(np.concatenate(shards).tolist()) == list(range(num_examples))


@settings(deadline=None, max_examples=40)
@given(
    clients=st.integers(1, 12),
    alpha=st.floats(0.005, 100),
    balanced=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_dirichlet_gives_every_example_to_one_client(
    clients: int, alpha: float, balanced: bool, seed: int
) -> None:
    labels = labels_of(5, 40)
    shards = dirichlet(
        labels, clients, alpha, 0, np.random.default_rng(seed), balanced=balanced
    )
    assert len(shards) == clients
    assert_each_once(shards, 200)


def test_large_alpha_is_even_and_small_alpha_is_skewed() -> None:
    labels = labels_of(10, 500)
    even = class_table(labels, dirichlet(labels, 10, 1e6, 10, np.random.default_rng(0)), 10)
    assert even.min() >= 45
    assert even.max() <= 55
    skewed = class_table(labels, dirichlet(labels, 10, 0.05, 1, np.random.default_rng(0)), 10)
    assert (skewed > 0).sum() < 50


def test_balancing_skips_clients_that_have_their_share() -> None:
    # A client is open while it has fewer than n/K examples, so it can get at most one class
    # beyond its share: below 500 + 500 here, where plain Dirichlet draws go far higher.
    labels = labels_of(10, 500)
    for seed in range(10):
        shards = dirichlet(labels, 10, 0.1, 0, np.random.default_rng(seed))
        assert max(map(len, shards)) < 500 + 500 + 10
    plain = [
        max(
            map(len, dirichlet(labels, 10, 0.1, 0, np.random.default_rng(seed), balanced=False))
        )
        for seed in range(10)
    ]
    assert max(plain) > 1100


@pytest.mark.parametrize(
    ("num_classes", "each", "alpha", "least", "pairs"),
    [
        (10, 5000, 0.5, 10, 87),
        (10, 5000, 0.1, 10, 44),
        (10, 5000, 0.01, 1, 15),
        (10, 6000, 0.5, 10, 81),
        (10, 6000, 0.1, 10, 47),
        (10, 6000, 0.01, 1, 14),
        (100, 500, 0.5, 10, 654),
        (100, 500, 0.1, 10, 310),
        (100, 500, 0.01, 1, 139),
    ],
)
def test_pairs_of_the_paper(
    num_classes: int, each: int, alpha: float, least: int, pairs: int
) -> None:
    """The paper's message table divides into (client, class) pairs that this split can give.

    A pair counts if the client has ten images of the class. The paper's is one draw, so it is
    to lie where single draws lie.
    """
    labels = labels_of(num_classes, each)
    drawn = [
        (class_table(labels, dirichlet(labels, 10, alpha, least, rng), num_classes) >= 10).sum()
        for rng in map(np.random.default_rng, range(20))
    ]
    assert abs(np.mean(drawn) - pairs) < 2.5 * np.std(drawn, ddof=1)


def test_every_client_has_min_examples() -> None:
    labels = labels_of(10, 30)
    for seed in range(10):
        shards = dirichlet(labels, 10, 0.5, 15, np.random.default_rng(seed))
        assert min(map(len, shards)) >= 15


def test_impossible_requests_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = labels_of(2, 5)
    with pytest.raises(PartitionError, match="10 examples cannot be split over 11 clients"):
        dirichlet(labels, 11, 0.5, 0, np.random.default_rng(0))
    with pytest.raises(PartitionError, match="at least 4"):
        dirichlet(labels, 3, 0.5, 4, np.random.default_rng(0))
    with pytest.raises(PartitionError, match="cannot be split"):
        iid(3, 4, np.random.default_rng(0))
    monkeypatch.setattr(partition, "MAX_DRAWS", 5)
    with pytest.raises(PartitionError, match=r"lower partition.min_examples, raise alpha"):
        dirichlet(labels_of(2, 50), 10, 0.001, 9, np.random.default_rng(0))


@settings(deadline=None, max_examples=40)
@given(
    clients=st.integers(1, 15),
    k=st.integers(1, 6),
    classes=st.integers(1, 6),
    seed=st.integers(0, 100),
)
def test_classes_per_client(clients: int, k: int, classes: int, seed: int) -> None:
    labels = labels_of(classes, 20)
    rng = np.random.default_rng(seed)
    if k > classes or clients * k < classes:
        with pytest.raises(PartitionError):
            by_classes(labels, clients, k, rng)
        return
    shards = by_classes(labels, clients, k, rng)
    assert_each_once(shards, len(labels))
    table = class_table(labels, shards, classes)
    assert ((table > 0).sum(1) == k).all()
    # A class is split evenly over its owners, and owners are spread evenly over classes.
    owners = (table > 0).sum(0)
    assert owners.max() - owners.min() <= 1


def test_too_few_examples_of_a_class() -> None:
    with pytest.raises(PartitionError, match="has only 2 examples for 3 clients"):
        by_classes(np.array([0, 0, 0, 0, 1, 1]), 3, 2, np.random.default_rng(0))


@given(num=st.integers(1, 50), clients=st.integers(1, 50), seed=st.integers(0, 100))
def test_iid_is_even(num: int, clients: int, seed: int) -> None:
    if clients > num:
        return
    shards = iid(num, clients, np.random.default_rng(seed))
    assert_each_once(shards, num)
    sizes = list(map(len, shards))
    assert max(sizes) - min(sizes) <= 1


def test_the_split_comes_from_the_generator_only() -> None:
    labels = labels_of(10, 50)
    first, second, third = (
        dirichlet(labels, 5, 0.5, 10, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert all(map(np.array_equal, first, second))
    assert not all(map(np.array_equal, first, third))
