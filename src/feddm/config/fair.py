"""Whether runs can be compared: the same data, seeds and budgets for all."""

from __future__ import annotations

from collections.abc import Sequence

from feddm.config.schema import Config
from feddm.errors import ConfigError

Named = tuple[str, int, Config]  # name, seed and configuration of a run


def check_fair(configs: Sequence[Named]) -> None:
    """Raises `ConfigError` unless all are about the same data, clients and model.

    Under a guarantee it is the budget that is shared: a mechanism has a model and a number of
    rounds that fit it.
    """
    first, _, base = configs[0]
    free = {"model", "rounds"} if all(config.guaranteed for *_, config in configs) else set()
    for name, _, config in configs:
        for key in ("data", "partition", "model", "rounds", "participation"):
            if key not in free and getattr(config, key) != getattr(base, key):
                raise ConfigError(
                    f"{name} and {first} differ in {key}, so comparing them would say nothing"
                )


def check_seeds(configs: Sequence[Named]) -> None:
    """Raises `ConfigError` if a setting replaces the seed of a run."""
    for _, seed, config in configs:
        if config.seed != seed:
            raise ConfigError(
                f"seed cannot be set to {config.seed}: --seeds says which there are"
            )


def check_ledgers(configs: Sequence[Named]) -> None:
    """Raises `ConfigError` unless it was said where private runs of a study are accounted.

    By default all runs on a data set share a ledger, which is right for data that are used in
    earnest, and never what somebody wants who compares settings.
    """
    private = [
        config.privacy
        for _, _, config in configs
        if config.privacy is not None and config.privacy.guaranteed
    ]
    if not all(privacy.ledger for privacy in private):
        raise ConfigError(
            f"{len(private)} private runs on one data set would share one budget, and "
            "choosing by their results is not covered by it; with public data, --ledger new "
            "gives each run a ledger of its own"
        )
    budgets = [privacy for privacy in private if privacy.budget and privacy.ledger != "new"]
    if len(budgets) > 1 and len({privacy.ledger for privacy in budgets}) < len(budgets):
        raise ConfigError(
            f"the first of {len(budgets)} runs would spend the whole budget of --ledger "
            f"{budgets[0].ledger}, which all share; --ledger new gives each run its own"
        )
