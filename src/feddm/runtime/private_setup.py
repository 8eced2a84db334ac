"""Config -> what protects the examples: ledger, vaults, and the noise of a budget."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from feddm.config.schema import Config, GuaranteedSettings
from feddm.data.catalog import described
from feddm.data.datasets import Dataset, fingerprint
from feddm.data.partition import Shards
from feddm.errors import BudgetError, ConfigError
from feddm.privacy.accounting import Event, Released, noise_multiplier
from feddm.privacy.ledger import Ledger, ledger_root, run_ledger_root
from feddm.privacy.policy import Asked, Policy
from feddm.privacy.vault import Terms, Vaults, as_it_is


def with_absolute_ledger(config: Config) -> Config:
    """Returns the configuration with a ledger that is the same from every folder."""
    privacy = config.privacy
    if privacy is None or privacy.ledger in ("", "new"):
        return config
    privacy = privacy.model_copy(update={"ledger": os.path.abspath(privacy.ledger)})
    return config.model_copy(update={"privacy": privacy})


def ledger_of(config: Config, run: str) -> Ledger | None:
    """Returns the ledger of a run, which may not be there yet; none without privacy."""
    privacy = config.privacy
    if privacy is None:
        return None
    if privacy.ledger == "new":
        root = run_ledger_root() / run
    else:
        root = Path(privacy.ledger) if privacy.ledger else ledger_root()
    return Ledger(root.absolute() / described(config.data).name)


def locked_ledger(config: Config, run: str) -> contextlib.AbstractContextManager[None]:
    """Keeps other runs from spending of the same data set while this one is built and goes."""
    ledger = ledger_of(config, run)
    return contextlib.nullcontext() if ledger is None else ledger.locked()


def build_vaults(
    config: Config, dataset: Dataset, shards: Shards, run: str, policy: Policy
) -> Vaults | None:
    """Returns what clients keep about their privacy; none without privacy."""
    ledger = ledger_of(config, run)
    if ledger is None or config.privacy is None:
        return None
    if config.privacy.ledger and policy.epsilon < math.inf:
        raise BudgetError(
            f"privacy.ledger must be left out: {policy.source} limits what is ever spent, and "
            "only the ledger that all runs share knows that"
        )
    return vaults_in(ledger, config, dataset, shards, run, policy)


def vaults_in(
    ledger: Ledger, config: Config, dataset: Dataset, shards: Shards, run: str, policy: Policy
) -> Vaults:
    """Returns what clients keep about their privacy in a ledger."""
    privacy = config.privacy
    assert privacy is not None
    if privacy.unit == "group":
        if dataset.train.group is None:
            raise ConfigError(
                f"privacy.unit cannot be group: {dataset.info.name} does not say which "
                "examples belong together; it can be example or client"
            )
        _check_whole_groups(dataset.train.group, shards)
    terms = Terms(
        run,
        _asked(config),
        budget=Policy(privacy.budget or math.inf, privacy.delta),
        policy=policy,
    )
    split = fingerprint(dataset, shards, ledger.key())
    return Vaults(ledger, split, terms, privacy.test_secret)


def check_policy(config: Config, policy: Policy, planned: Sequence[Event]) -> None:
    """Raises `BudgetError` if clients do not agree to such a run, whatever was spent."""
    privacy = config.privacy
    policy.check(_asked(config), as_it_is(planned, bool(privacy and privacy.test_secret)))


def _asked(config: Config) -> Asked:
    unit = "example" if config.privacy is None else config.privacy.unit
    return Asked(config.algorithm.name, config.mechanism, unit)


def _check_whole_groups(group: torch.Tensor, shards: Shards) -> None:
    """Raises `ConfigError` if a group is spread over clients, each of which releases it."""
    seen: set[int] = set()
    for shard in shards:
        here = set(group[torch.from_numpy(shard)].tolist())
        if here & seen:
            raise ConfigError(
                "privacy.unit cannot be group: this split gives examples of one group to "
                "several clients, and their costs would add up"
            )
        seen |= here


def calibrated(config: Config, vaults: Vaults) -> Config:
    """Returns the configuration with the noise that its budget asks for."""
    try:
        return with_noise(config, vaults.spent())
    except BudgetError as error:
        raise BudgetError(
            f"{error} (the ledger is {vaults.ledger.folder}); for experiments on public data, "
            "--ledger new begins another"
        ) from error


def with_noise(config: Config, spent: Sequence[Event]) -> Config:
    """Returns the configuration with the noise that leaves its budget after what is spent."""
    privacy = config.privacy
    if not isinstance(privacy, GuaranteedSettings) or privacy.noise_multiplier:
        return config
    times, sample_rate, count_multiplier, once = config.algorithm.releases(privacy)
    if count_multiplier is not None:
        spent = [*spent, Released(config.rounds, count_multiplier)]
    multiplier = noise_multiplier(
        privacy.epsilon,
        privacy.delta,
        times=times if once else config.rounds * times,
        sample_rate=sample_rate,
        spent=spent,
    )
    return config.model_copy(
        update={"privacy": privacy.model_copy(update={"noise_multiplier": multiplier})}
    )
