"""Config -> objects: the only place where names become classes."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddm.algorithms.base import Algorithm
from feddm.algorithms.fedavg import FedAvg
from feddm.algorithms.feddm import FedDM, PaperNoise, Synthesis
from feddm.algorithms.fednova import FedNova
from feddm.algorithms.fedprox import FedProx
from feddm.algorithms.real import Real
from feddm.algorithms.scaffold import Scaffold
from feddm.config.schema import (
    Config,
    DataConfig,
    ModelConfig,
    PartitionConfig,
    RuntimeConfig,
    SynthesisConfig,
)
from feddm.core.augmentation import Augmentation
from feddm.core.coding import Coding
from feddm.core.compile import accelerated, check_precision, compiler_problem, find_device
from feddm.core.examples import Examples
from feddm.core.models import ConvNet, Model, ResNet18
from feddm.core.seeding import numpy_generator
from feddm.core.tensors import CPU
from feddm.core.training import SGD
from feddm.data import partition
from feddm.data.catalog import DatasetInfo, described
from feddm.data.datasets import Dataset, load
from feddm.errors import ConfigError
from feddm.privacy.policy import own_policy
from feddm.privacy.vault import Vaults
from feddm.runtime.federation import cohort_size
from feddm.runtime.private_build import build_private_feddm, build_private_sgd
from feddm.runtime.protection import (
    build_vaults,
    calibrated,
    check_policy,
    expected_examples,
    with_absolute_ledger,
)
from feddm.runtime.workload import forward_flops, passes

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
    check(config)
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
    table: np.ndarray[Any, Any] | None = None,
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
    if compiled and (problem := compiler_problem(device)):
        compiled = False
        notices.append(f"torch.compile does not work here, so it goes without: {problem}")
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
    if config.privacy.mechanism != "none":
        if wanted not in ("auto", "cpu"):
            raise ConfigError(
                f"runtime.device must be cpu with privacy, got {wanted}: elsewhere sums are "
                "not the same every time"
            )
        wanted = "cpu"
    return find_device(wanted)


def check(config: Config) -> None:
    """Raises an error for what can be known to fail before any data are read."""
    described(config.data)
    check_precision(config.runtime.precision, build_device(config))
    check_min_clients(config)
    if config.data.holdout and config.privacy.mechanism != "none":
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


def _compiling_pays(config: Config, model: Model, table: np.ndarray[Any, Any] | None) -> bool:
    if not described(config.data).num_train:
        return False  # nobody says how many examples there are
    if table is None or config.privacy.mechanism != "none":
        # Whether it is compiled can be seen in the results, so it must not depend on examples.
        of_a_class = expected_examples(config) / model.num_classes
        table = np.full((config.partition.clients, model.num_classes), of_a_class)
    work = passes(config, table)
    # Not divided by the workers, whose number must not change a bit of the results.
    flops = forward_flops(model) * (work.clients.weight + work.server.weight)
    return config.rounds * flops > COMPILING_PAYS


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
    if config.name == "resnet18":
        return ResNet18(shape, num_classes, config.norm)
    return ConvNet(shape, num_classes, config.width, config.depth, config.norm)


def build_algorithm(config: Config, model: Model, device: torch.device = CPU) -> Algorithm:
    """Returns the algorithm with its settings."""
    augmentation = Augmentation(**config.augmentation.model_dump())
    local_sgd = SGD(
        lr=config.local.lr,
        epochs=config.local.epochs,
        batch_size=config.local.batch_size,
        momentum=config.local.momentum,
        weight_decay=config.local.weight_decay,
        augmentation=augmentation if config.local.augment else None,
    )
    private = None
    if config.privacy.mechanism == "gradients":
        private = build_private_sgd(config, local_sgd)
    if config.algorithm == "fedavg":
        return FedAvg(model, local_sgd, private=private)
    if config.algorithm == "fedprox":
        return FedProx(model, local_sgd, config.local.mu, private=private)
    if config.algorithm == "fednova":
        return FedNova(model, local_sgd, private=private)
    if config.algorithm == "scaffold":
        return Scaffold(
            model,
            local_sgd,
            config.local.server_lr,
            config.partition.clients,
            private=private,
        )
    server_sgd = SGD(
        lr=config.server.lr,
        epochs=config.server.epochs,
        batch_size=config.server.batch_size,
        momentum=config.server.momentum,
        weight_decay=config.server.weight_decay,
        augmentation=augmentation if config.server.augment else None,
        schedule=config.server.schedule,
    )
    union: dict[str, Any] = {
        "model": model,
        "images_per_class": config.synthesis.images_per_class,
        "min_class_size": config.synthesis.min_class_size,
        "server_sgd": server_sgd,
        "server_radius": config.server.radius,
        "weighting": config.server.weighting,
        "device": device,
        "coding": Coding(config.synthesis.coding),
        "replay": config.server.replay,
    }
    if config.algorithm == "real":
        return Real(**union)
    if config.privacy.mechanism in ("none", "paper"):
        noise = None
        if config.privacy.mechanism == "paper":
            noise = PaperNoise(config.privacy.noise_multiplier, config.privacy.clip)
        synthesis = build_synthesis(config.synthesis, augmentation)
        return FedDM(**union, synthesis=synthesis, paper_noise=noise)
    return build_private_feddm(config, augmentation, union)


def build_synthesis(config: SynthesisConfig, augmentation: Augmentation) -> Synthesis:
    """Returns how a client of FedDM learns its images."""
    return Synthesis(
        steps=config.steps,
        lr=config.lr,
        momentum=config.momentum,
        networks=None if config.networks == "fresh" else config.networks,
        real_batch=None if config.real_batch == "all" else config.real_batch,
        radius=config.radius,
        start=config.start,
        relative=config.distance == "relative",
        augmentation=augmentation if config.augment else None,
    )


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
