"""Splits a training set over clients: labels in, one array of indices per client out.

Every example goes to exactly one client. An impossible split raises a `PartitionError` that
says why; nothing here loops forever.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feddm.errors import PartitionError

Labels = npt.NDArray[np.int64]
Shards = list[npt.NDArray[np.int64]]  # indices of each client's examples, ascending

MAX_DRAWS = 1000  # a feasible split takes far fewer


def dirichlet(
    labels: Labels,
    clients: int,
    alpha: float,
    min_examples: int,
    rng: np.random.Generator,
    *,
    balanced: bool = True,
) -> Shards:
    """Splits each class in proportions drawn from a Dirichlet; small `alpha` is skewed.

    ``balanced`` follows NIID-Bench (Li et al. ICDE 2022, https://arxiv.org/abs/2102.02079): a
    client that already has its share ``n / clients`` gets nothing from the remaining classes.
    Without it, the proportions are used as drawn, and client sizes differ more.

    The whole split is redrawn until every client has at least `min_examples`.
    """
    _check_room(len(labels), clients, max(min_examples, 1))
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    smallest = 0
    for _ in range(MAX_DRAWS):
        pieces: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(clients)]
        sizes = np.zeros(clients, dtype=np.int64)
        for members in by_class:
            open_ = sizes < len(labels) / clients if balanced else np.ones(clients, dtype=bool)
            counts = _counts(len(members), open_, alpha, rng)
            cuts = np.cumsum(counts)[:-1]
            for client, piece in enumerate(np.split(rng.permutation(members), cuts)):
                pieces[client].append(piece)
            sizes += counts
        if sizes.min() >= min_examples:
            return [np.sort(np.concatenate(piece)) for piece in pieces]
        smallest = max(smallest, int(sizes.min()))
    raise PartitionError(
        f"none of {MAX_DRAWS} draws from Dir({alpha:g}) gave each of {clients} clients "
        f"{min_examples} examples or more (the best left one with {smallest}); "
        "lower partition.min_examples, raise alpha or use fewer clients"
    )


def iid(num_examples: int, clients: int, rng: np.random.Generator) -> Shards:
    """Splits at random into parts whose sizes differ by at most one.

    >>> [len(shard) for shard in iid(7, 3, np.random.default_rng(0))]
    [3, 2, 2]
    """
    _check_room(num_examples, clients, 1)
    return [np.sort(part) for part in np.array_split(rng.permutation(num_examples), clients)]


def by_classes(
    labels: Labels, clients: int, classes_per_client: int, rng: np.random.Generator
) -> Shards:
    """Gives each client `classes_per_client` classes; splits a class evenly over its owners."""
    _check_room(len(labels), clients, 1)
    classes = np.unique(labels)
    if classes_per_client > len(classes):
        raise PartitionError(
            f"partition.classes_per_client must be at most {len(classes)}, the number of "
            f"classes, got {classes_per_client}"
        )
    if clients * classes_per_client < len(classes):
        raise PartitionError(
            f"{clients} clients with {classes_per_client} classes each cannot cover all "
            f"{len(classes)} classes; use more clients or more classes per client"
        )
    owners: list[list[int]] = [[] for _ in classes]
    for client in range(clients):
        # The classes with the fewest owners so far; ties are broken at random.
        order = rng.permutation(len(classes))
        order = order[np.argsort([len(owners[c]) for c in order], kind="stable")]
        for c in order[:classes_per_client]:
            owners[c].append(client)
    pieces: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label, holders in zip(classes, owners, strict=True):
        members = np.flatnonzero(labels == label)
        if len(members) < len(holders):
            raise PartitionError(
                f"class {label} has only {len(members)} examples for {len(holders)} clients; "
                "use fewer clients"
            )
        for client, piece in zip(
            holders, np.array_split(rng.permutation(members), len(holders)), strict=True
        ):
            pieces[client].append(piece)
    return [np.sort(np.concatenate(piece)) for piece in pieces]


def class_table(labels: Labels, shards: Shards, num_classes: int) -> npt.NDArray[np.int64]:
    """Returns the number of examples per client (rows) and class (columns)."""
    rows: list[Any] = [np.bincount(labels[shard], minlength=num_classes) for shard in shards]
    return np.stack(rows)


def _counts(
    num: int, open_: npt.NDArray[np.bool_], alpha: float, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Returns how many of `num` examples each client gets.

    Only open clients get any, except that rounding may leave some to the last client, as in
    NIID-Bench.
    """
    weights = rng.dirichlet(np.full(len(open_), alpha)) * open_
    if not weights.sum() > 0:
        # With tiny alpha, all mass may fall on closed clients: one open client gets all.
        weights = np.zeros(len(open_))
        weights[rng.choice(np.flatnonzero(open_))] = 1.0
    ends = np.floor(np.cumsum(weights / weights.sum()) * num).astype(np.int64)
    ends[-1] = num
    counts: npt.NDArray[np.int64] = np.diff(ends, prepend=0)
    return counts


def _check_room(num_examples: int, clients: int, min_examples: int) -> None:
    if clients * min_examples > num_examples:
        raise PartitionError(
            f"{num_examples} examples cannot be split over {clients} clients "
            f"with at least {min_examples} each"
        )
