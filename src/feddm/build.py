"""Config -> objects: the only place where names become classes."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feddm.acceleration import accelerated, check_precision, compiler_problem, find_device
from feddm.algorithms.base import Algorithm
from feddm.algorithms.fedavg import FedAvg
from feddm.algorithms.feddm import FedDM, Synthesis
from feddm.algorithms.fednova import FedNova
from feddm.algorithms.fedprox import FedProx
from feddm.algorithms.real import Real
from feddm.algorithms.scaffold import Scaffold
from feddm.augmentation import Augmentation
from feddm.coding import Coding
from feddm.config import (
    Config,
    DataConfig,
    ModelConfig,
    PartitionConfig,
    RuntimeConfig,
    SynthesisConfig,
)
from feddm.data import partition
from feddm.data.catalog import describe
from feddm.data.datasets import Dataset, load
from feddm.errors import ConfigError
from feddm.models import ConvNet, Model, ResNet18
from feddm.seeding import numpy_generator
from feddm.tensors import CPU
from feddm.training import SGD
from feddm.workload import forward_flops, passes

# Operations of a run beyond which compiling pays: eager code takes some four minutes for so
# many on one core, compiled code half of it, and compiling up to one.
COMPILING_PAYS = 8e12


@dataclass(frozen=True)
class Setup:
    """All that a run is made of.

    Args:
        dataset: What is learned.
        shards: Which training examples each client has.
        algorithm: What clients and server do.
        device: Where they compute.
        compiled: Whether the model is compiled.
        notices: What the user should know about it.
    """

    dataset: Dataset
    shards: partition.Shards
    algorithm: Algorithm
    device: torch.device = CPU
    compiled: bool = False
    notices: tuple[str, ...] = ()


def build(config: Config) -> Setup:
    """Returns the objects that a configuration describes."""
    check(config)
    device = find_device(config.runtime.device)
    dataset = build_dataset(config.data)
    shards = build_shards(config.partition, dataset, config.seed)
    model = build_model(config.model, dataset.info.shape, len(dataset.info.classes))
    notices = []
    compiled = config.runtime.compile == "on" or (
        config.runtime.compile == "auto" and _compiling_pays(config, dataset, shards, model)
    )
    if compiled and (problem := compiler_problem(device)):
        compiled = False
        notices.append(f"torch.compile does not work here, so it goes without: {problem}")
    model = accelerated(model, compiled, config.runtime.precision)
    algorithm = build_algorithm(config, model, device)
    return Setup(dataset, shards, algorithm, device, compiled, tuple(notices))


def check(config: Config) -> None:
    """Raises an error for what can be known to fail before any data are read."""
    info = describe(config.data.name)
    check_precision(config.runtime.precision, find_device(config.runtime.device))
    if config.algorithm in ("feddm", "real"):  # others send no images
        check_formation(config.synthesis, info.shape)


def check_formation(config: SynthesisConfig, shape: tuple[int, int, int]) -> None:
    """Raises `ConfigError` unless images of that shape can hold as many as is asked for."""
    factor, (_, height, width) = config.formation, shape
    if height % factor or width % factor:
        raise ConfigError(
            f"synthesis.formation must divide the sides of an image, {height} and {width}; "
            f"got {factor}"
        )
    if config.min_class_size < factor**2:
        raise ConfigError(
            f"synthesis.formation {factor} puts {factor**2} real images into one, so "
            f"synthesis.min_class_size must be at least that, got {config.min_class_size}"
        )


def _compiling_pays(
    config: Config, dataset: Dataset, shards: partition.Shards, model: Model
) -> bool:
    table = partition.class_table(dataset.train.y.numpy(), shards, len(dataset.info.classes))
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
    if config.algorithm == "fedavg":
        return FedAvg(model, local_sgd)
    if config.algorithm == "fedprox":
        return FedProx(model, local_sgd, config.local.mu)
    if config.algorithm == "fednova":
        return FedNova(model, local_sgd)
    if config.algorithm == "scaffold":
        return Scaffold(model, local_sgd, config.local.server_lr, config.partition.clients)
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
        "coding": Coding(config.synthesis.coding, config.synthesis.packed),
        "formation": config.synthesis.formation,
        "replay": config.server.replay,
        "replay_decay": config.server.replay_decay,
    }
    if config.algorithm == "real":
        return Real(**union)
    return FedDM(**union, synthesis=build_synthesis(config.synthesis, augmentation))


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
        second_moment=config.second_moment,
        schedule=config.schedule,
        straight_through=config.rounding == "straight-through",
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


def fingerprint(setup: Setup) -> str:
    """Returns a digest of the data and of their split, to know them again."""
    digest = hashlib.blake2b(digest_size=16)
    for examples in (setup.dataset.train, setup.dataset.test):
        digest.update(examples.x.numpy().data)
        digest.update(examples.y.numpy().data)
    for shard in setup.shards:
        digest.update(len(shard).to_bytes(8, "little"))
        digest.update(shard.data)
    return digest.hexdigest()
