"""Config -> objects."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddm.algorithms.base import Algorithm, ConfiguredAlgorithm, Context
from feddm.algorithms.costs import ClassTable, Work
from feddm.config.code import is_given, is_reference, label, source_hash
from feddm.config.registry import find_algorithm
from feddm.config.resolve import flat
from feddm.config.schema import (
    Config,
    DataConfig,
    ModelConfig,
    PartitionConfig,
    RuntimeConfig,
)
from feddm.core.augmentation import Augmentation
from feddm.core.compile import accelerated, check_precision, compiler_problem, find_device
from feddm.core.examples import Examples
from feddm.core.flops import forward_flops
from feddm.core.models import MLP, ConvNet, Model, ResNet18
from feddm.core.own_model import OwnModel
from feddm.core.scattering import PublicFeatures, WhitenedFeatures
from feddm.core.seeding import numpy_generator
from feddm.core.tensors import CPU
from feddm.data import partition
from feddm.data.catalog import DatasetInfo, described
from feddm.data.datasets import Dataset, load
from feddm.data.holdout import held_out
from feddm.data.sources import load_own
from feddm.errors import ConfigError
from feddm.privacy.policy import own_policy
from feddm.privacy.vault import Vaults
from feddm.runtime.federation import cohort_size
from feddm.runtime.private_setup import (
    build_vaults,
    calibrated,
    check_policy,
    with_absolute_ledger,
)

# Operations of a run beyond which compiling pays: eager code takes some four minutes for so
# many on one core, compiled code half of it, and compiling up to one.
COMPILING_PAYS = 8e12


@dataclass(frozen=True)
class Setup:
    """What the server of a run is made of.

    Args:
        config: The configuration, with the noise that its budget allows.
        info: What is known of the data.
        test: What models are judged by, if the server has anything.
        algorithm: What clients and server do.
        device: Where they compute.
        compiled: Whether the model is compiled.
        notices: What the user should know about it.
    """

    config: Config
    info: DatasetInfo
    test: Examples | None
    algorithm: Algorithm
    device: torch.device = CPU
    compiled: bool = False
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LocalSetup(Setup):
    """What server and clients of a run on one machine are made of.

    Args:
        dataset: What the clients have together.
        shards: Which training examples each of them has.
        vaults: What they keep about their privacy, if there is any.
    """

    dataset: Dataset
    shards: partition.Shards
    vaults: Vaults | None = None


def build(config: Config, run: str = "") -> LocalSetup:
    """Returns the objects that a configuration describes, for a run on this machine.

    Args:
        config: What is run.
        run: Name of the federation, unlike any other, for the clients' ledgers.
    """
    check_config(config)
    if not config.data.path and (config.data.own.classes or config.data.holdout):
        key = "own" if config.data.own.classes else "holdout"
        raise ConfigError(
            f"data.{key} is for clients on machines of their own (see `feddm flower --help`), "
            "or for data of your own on this one: give --data"
        )
    config = with_absolute_ledger(config)
    policy = own_policy(config.data.name)
    dataset = build_dataset(config.data)
    shards = build_shards(config.partition, dataset, config.seed)
    vaults = build_vaults(config, dataset, shards, run, policy)
    if vaults is not None:
        config = calibrated(config, vaults)
    num_classes = len(dataset.info.classes)
    table = partition.class_table(dataset.train.y.numpy(), shards, num_classes)
    setup = build_server(config, dataset.info, dataset.test, table)
    check_policy(config, policy, setup.algorithm.planned)
    local = LocalSetup(**vars(setup), dataset=dataset, shards=shards, vaults=vaults)
    notices = [*setup.notices, *dataset.notices]
    if vaults is not None and config.data.path:
        notices.append(
            "names of classes, shape of examples and number of clients are taken as public"
        )
    if vaults is not None and vaults.test_seed:
        notices.append("secrets are fixed by privacy.test_secret: this run is not private")
    return replace(local, notices=tuple(notices))


def build_server(
    config: Config,
    info: DatasetInfo,
    test: Examples | None,
    table: ClassTable | None = None,
) -> Setup:
    """Returns what the server of a run is made of.

    Args:
        config: What is run.
        info: What is known of the data.
        test: What models are judged by, if the server has anything.
        table: How many examples each client has of each class, if the server knows.
    """
    device = build_device(config)
    _check_augment(config, info)
    model = build_model(config.model, info.shape, len(info.classes))
    notices = list(model.notices) if isinstance(model, OwnModel) else []
    compiled = config.runtime.compile == "on" or (
        config.runtime.compile == "auto" and _compiling_pays(config, model, table)
    )
    if isinstance(model, PublicFeatures | WhitenedFeatures):
        compiled = False  # there is nothing to gain: features are computed once
    if compiled and (problem := compiler_problem(device)):
        compiled = False
        notices.append(f"torch.compile does not work here, continuing without it: {problem}")
    algorithm = build_algorithm(
        config, accelerated(model, compiled, config.runtime.precision), device
    )
    return Setup(config, info, test, algorithm, device, compiled, tuple(notices))


def _check_augment(config: Config, info: DatasetInfo) -> None:
    """Raises `ConfigError` if vectors are to be changed as images are."""
    on = [key for key, value in flat(config.algorithm.model_dump()).items() if value is True]
    for key in on:
        if info.shape[1:] == (1, 1) and key.endswith("augment"):
            raise ConfigError(f"{key} must be false: vectors cannot be mirrored or turned")


def build_device(config: Config) -> torch.device:
    """Returns where models are computed: with privacy that is the CPU.

    A GPU adds up in an order that may change from one time to the next, and then the bits of
    one example are no longer its own.
    """
    wanted = config.runtime.device
    if config.privacy is not None:
        if wanted not in ("auto", "cpu"):
            raise ConfigError(
                f"runtime.device must be cpu with privacy, got {wanted}: elsewhere sums are "
                "not the same every time"
            )
        wanted = "cpu"
    return find_device(wanted)


def check_config(config: Config) -> None:
    """Raises an error for what can be known to fail before any data are read."""
    described(config.data)
    check_precision(config.runtime.precision, build_device(config))
    check_min_clients(config)
    _check_workers(config)
    if config.data.holdout and config.privacy is not None and not config.data.path:
        # Nor could a node refuse a share that leaves nothing without telling how much it has.
        raise ConfigError(
            "data.holdout must be 0 with privacy: a node does not say then how well a model "
            "does on its examples"
        )


def _check_workers(config: Config) -> None:
    """Raises `ConfigError` if other processes are asked for who lack the code."""
    for name in (config.algorithm.name, config.model.name):
        if is_given(name) and config.runtime.workers not in (1, "auto"):
            raise ConfigError(
                f"runtime.workers must be 1: {label(name)} was given in Python where no other "
                "process finds it; with more workers, put it into a file of its own"
            )


def check_min_clients(config: Config) -> None:
    """Raises `ConfigError` if a round needs more clients than it asks."""
    cohort = cohort_size(config.partition.clients, config.participation)
    if config.min_clients != "all" and config.min_clients > cohort:
        raise ConfigError(
            f"min_clients must be at most {cohort}, the clients of a round, got "
            f"{config.min_clients}"
        )


def _compiling_pays(config: Config, model: Model, table: ClassTable | None) -> bool:
    info = described(config.data)
    if not info.num_train or isinstance(model, OwnModel):
        return False  # the number of examples is unknown, or whether it can be compiled at all
    if table is None or config.privacy is not None:
        # Whether it is compiled can be seen in the results, so it must not depend on examples.
        of_a_class = info.num_train / config.partition.clients / model.num_classes
        table = np.full((config.partition.clients, model.num_classes), of_a_class)
    work = work_of(config, model, table)
    # Not divided by the workers, whose number must not change a bit of the results.
    flops = forward_flops(model) * (work.clients.weight + work.server.weight)
    return config.rounds * flops > COMPILING_PAYS


def work_of(config: Config, model: Model, table: ClassTable) -> Work:
    """Returns the work of an average round with an average cohort."""
    work, share = build_algorithm(config, model).passes(table), config.participation
    return Work(work.clients.times(share), work.server.times(share))


def build_dataset(config: DataConfig) -> Dataset:
    """Reads the data set; with a validation split, the test set is replaced by it."""
    if config.path:
        return _validated(load_own(config), config.validation)
    dataset = load(config.name, Path(config.dir) if config.dir else None)
    if not config.validation:
        return dataset
    num = len(dataset.train)
    held_out = round(num * config.validation)
    if not 0 < held_out < num:
        raise ConfigError(
            f"data.validation = {config.validation:g} holds out {held_out} of {num} examples; "
            "it must leave some on both sides"
        )
    # The same for every seed, so that whatever is tuned never trains on what it is judged by.
    order = torch.from_numpy(numpy_generator(0, "validation").permutation(num))
    return Dataset(
        dataset.info,
        train=dataset.train.subset(order[held_out:].sort().values),
        test=dataset.train.subset(order[:held_out].sort().values),
    )


def _validated(dataset: Dataset, share: float) -> Dataset:
    """Returns your own data with a part of the training set in place of the test set."""
    if not share:
        return dataset
    train, owners = dataset.train, dataset.owners
    group = None if train.group is None else train.group.numpy()
    rng = numpy_generator(0, "validation")
    chosen = held_out(train.y.numpy(), share, rng, group, owners)
    if chosen.all() or not chosen.any():
        raise ConfigError(
            f"data.validation = {share:g} holds out {chosen.sum()} of {len(train)} examples; "
            "it must leave some on both sides"
        )
    kept, out = (torch.from_numpy(np.flatnonzero(part)) for part in (~chosen, chosen))
    return replace(
        dataset,
        train=train.subset(kept),
        test=train.subset(out),
        owners=None if owners is None else owners[~chosen],
    )


def build_shards(config: PartitionConfig, dataset: Dataset, seed: int) -> partition.Shards:
    """Splits the training set over clients; the examples of a group stay together."""
    if config.scheme == "given":
        return _given_shards(config, dataset)
    group = dataset.train.group
    if group is None:
        return _split(config, dataset.train.y.numpy(), seed, config.min_examples)
    labels, members = _groups(dataset.train.y.numpy(), group.numpy())
    whole = _split(config, labels, seed, 1)
    return [np.sort(np.concatenate([members[one] for one in shard])) for shard in whole]


def _given_shards(config: PartitionConfig, dataset: Dataset) -> partition.Shards:
    if dataset.owners is None:
        raise ConfigError(
            f"partition.scheme cannot be given: {dataset.info.name} does not say which client "
            "has which example; folders clients/NAME do, and so does an array client"
        )
    number = int(dataset.owners.max()) + 1
    if number != config.clients:
        raise ConfigError(
            f"partition.clients must be {number}, the clients of {dataset.info.name}, got "
            f"{config.clients}; another partition.scheme mixes and splits their examples"
        )
    return [np.flatnonzero(dataset.owners == client) for client in range(number)]


def _groups(labels: partition.Labels, group: partition.Labels) -> tuple[Any, list[Any]]:
    """Returns the most frequent class of each group, and the indices of its examples."""
    members = [np.flatnonzero(group == one) for one in np.unique(group)]
    return np.array([np.bincount(labels[index]).argmax() for index in members]), members


def _split(
    config: PartitionConfig, labels: partition.Labels, seed: int, min_examples: int
) -> partition.Shards:
    rng = numpy_generator(seed, "partition")
    if config.scheme == "iid":
        return partition.iid(len(labels), config.clients, rng)
    if config.scheme == "classes":
        return partition.by_classes(labels, config.clients, config.classes_per_client, rng)
    return partition.dirichlet(
        labels,
        config.clients,
        config.alpha,
        min_examples,
        rng,
        balanced=config.scheme == "dirichlet",
    )


def build_model(config: ModelConfig, shape: tuple[int, int, int], num_classes: int) -> Model:
    """Returns the model for images of a shape."""
    if is_reference(config.name):
        return OwnModel(config.name, shape, num_classes, source_hash(config.name) or "")
    if config.name == "mlp":
        return MLP(shape, num_classes, config.width, config.depth)
    if config.name == "features":
        return PublicFeatures(shape, num_classes)
    if config.name == "surrogate":
        return WhitenedFeatures(shape, num_classes)
    if config.name == "resnet18":
        return ResNet18(shape, num_classes, config.norm)
    return ConvNet(shape, num_classes, config.width, config.depth, config.norm)


def build_algorithm(
    config: Config, model: Model, device: torch.device = CPU
) -> ConfiguredAlgorithm:
    """Returns the algorithm with its settings."""
    privacy = config.privacy
    if privacy is not None:
        # Where a client keeps its ledger is none of an algorithm's business.
        privacy = privacy.model_copy(update={"ledger": "", "test_secret": ""})
    context = Context(
        model=model,
        clients=config.partition.clients,
        rounds=config.rounds,
        examples=described(config.data).num_train / config.partition.clients,
        augmentation=Augmentation.model_validate(config.augmentation.model_dump()),
        privacy=privacy,
        device=device,
    )
    kind = find_algorithm(config.algorithm.name)
    assert issubclass(kind, ConfiguredAlgorithm)
    return kind.build(config.algorithm, context)


def num_workers(config: RuntimeConfig, cohort: int, device: torch.device = CPU) -> int:
    """Returns how many processes to use: never more than there are clients in a round."""
    if config.workers != "auto":
        return min(config.workers, cohort)
    if device != CPU:
        return 1  # more would share one GPU, and each take memory of it
    # The cores that this process may use, which in a container are fewer than the machine has.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, cohort)
