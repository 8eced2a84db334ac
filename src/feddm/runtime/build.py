"""Config -> objects."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from feddm.algorithms.base import Algorithm, ConfiguredAlgorithm, Context
from feddm.algorithms.costs import ClassTable, Work
from feddm.config.registry import find_algorithm
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
from feddm.core.models import ConvNet, Model, ResNet18
from feddm.core.scattering import PublicFeatures, WhitenedFeatures
from feddm.core.seeding import numpy_generator
from feddm.core.tensors import CPU
from feddm.data import partition
from feddm.data.catalog import DatasetInfo, described
from feddm.data.datasets import Dataset, load
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
    if config.data.own.classes or config.data.holdout:
        key = "own" if config.data.own.classes else "holdout"
        raise ConfigError(
            f"data.{key} is for clients on machines of their own; see `feddm flower --help`"
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
    if vaults is None or not vaults.test_seed:
        return local
    notice = "secrets are fixed by privacy.test_secret: this run is not private"
    return replace(local, notices=(*setup.notices, notice))


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
    model = build_model(config.model, info.shape, len(info.classes))
    notices = []
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
    if config.data.holdout and config.privacy is not None:
        # Nor could a node refuse a share that leaves nothing without telling how much it has.
        raise ConfigError(
            "data.holdout must be 0 with privacy: a node does not say then how well a model "
            "does on its examples"
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
    if not info.num_train:
        return False  # the number of examples is unknown
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


def build_shards(config: PartitionConfig, dataset: Dataset, seed: int) -> partition.Shards:
    """Splits the training set over clients."""
    labels = dataset.train.y.numpy()
    rng = numpy_generator(seed, "partition")
    if config.scheme == "iid":
        return partition.iid(len(labels), config.clients, rng)
    if config.scheme == "classes":
        return partition.by_classes(labels, config.clients, config.classes_per_client, rng)
    return partition.dirichlet(
        labels,
        config.clients,
        config.alpha,
        config.min_examples,
        rng,
        balanced=config.scheme == "dirichlet",
    )


def build_model(config: ModelConfig, shape: tuple[int, int, int], num_classes: int) -> Model:
    """Returns the model for images of a shape."""
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
