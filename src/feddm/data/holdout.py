"""Chooses examples to hold out: some of every class, of every client, and whole groups."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def held_out(
    labels: Array,
    share: float,
    rng: np.random.Generator,
    group: Array | None = None,
    owners: Array | None = None,
) -> Array:
    """Returns which examples are held out.

    Of each client's examples of a class about this share is. With groups it is about this share
    of each client's groups, so that nobody is both in the training set and in the other.

    >>> labels = np.array([0] * 8 + [1] * 4)
    >>> held_out(labels, 0.25, np.random.default_rng(0)).reshape(3, 4).sum(1)
    array([1, 1, 1])
    """
    chosen = np.zeros(len(labels), bool)
    who = np.zeros(len(labels), np.int64) if owners is None else owners
    for client in np.unique(who):
        mine = np.flatnonzero(who == client)
        strata = labels[mine] if group is None else np.zeros(len(mine), np.int64)
        units = np.arange(len(mine)) if group is None else group[mine]
        for stratum in np.unique(strata):
            here = np.unique(units[strata == stratum])
            taken = rng.permutation(here)[: round(len(here) * share)]
            chosen[mine[np.isin(units, taken)]] = True
    return chosen
