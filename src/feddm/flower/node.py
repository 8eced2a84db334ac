"""A node: a client on its own machine, with its own data, memory, ledger and policy.

The server asks; the node decides. It checks every job against the policy of its machine before
it reads any example, and records everything it releases under privacy in its ledger. Nothing
in this module depends on Flower.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from platformdirs import user_data_path

from feddm.algorithms.base import Algorithm
from feddm.config.schema import Config, DataConfig, PartitionConfig
from feddm.core.examples import Examples
from feddm.core.metrics import evaluate
from feddm.core.seeding import numpy_generator
from feddm.core.tensors import Records, moved
from feddm.core.training import ignore
from feddm.data.catalog import DATASETS, DatasetInfo, described
from feddm.data.datasets import Dataset
from feddm.data.own import read_own
from feddm.data.partition import Shards
from feddm.errors import BudgetError, ConfigError, DataError
from feddm.flower.memory import Memory
from feddm.privacy.accounting import Unprotected
from feddm.privacy.ledger import Ledger, ledger_root
from feddm.privacy.policy import Policy, own_policy
from feddm.privacy.vault import Vault
from feddm.runtime.build import build_dataset, build_server, build_shards, check_config
from feddm.runtime.client import Reply, Task, perform
from feddm.runtime.federation import SiteRecord
from feddm.runtime.private_setup import check_policy, vaults_in

OWN_DATA = "own"  # default name of a node's own data
LEDGER_WAIT = 3600.0  # seconds to wait while another client on this machine uses the ledger


@dataclass(frozen=True)
class Settings:
    """How the owner has set up a node.

    Args:
        client: Number of this client in the federation, from 0.
        folder: Holds the node's memory and the ledger of its own data.
        dataset: Name of its own data; empty if it has a shard of a known data set.
        data: Path of its own data, or folder of the known data sets.
        clients: Number of clients in the federation, if known.
        classes: Names of the classes of its own data; needed under privacy.
        shape: Channels, height and width of its own images; needed under privacy.
    """

    client: int
    folder: Path
    dataset: str = ""
    data: str = ""
    clients: int | None = None
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()


_KEYS = ("partition-id", "num-partitions", "folder", "dataset", "data", "classes", "shape")


def settings_of(node_config: Mapping[str, object]) -> Settings:
    """Returns the settings in a node's configuration, or raises `ConfigError`."""
    unknown = sorted(set(node_config) - set(_KEYS))
    if unknown:
        raise ConfigError(
            f"unknown key {unknown[0]} in the node's configuration; known: {', '.join(_KEYS)}"
        )
    client = node_config.get("partition-id")
    if not isinstance(client, int) or isinstance(client, bool) or client < 0:
        raise ConfigError(
            "the node's partition-id must be its client number, from 0, as in "
            f"--node-config 'partition-id=0', got {client!r}"
        )
    clients = node_config.get("num-partitions")
    if clients is not None and (
        not isinstance(clients, int) or isinstance(clients, bool) or clients <= client
    ):
        raise ConfigError(
            "the node's num-partitions must be a whole number above its partition-id "
            f"{client}, got {clients!r}"
        )
    dataset, data, folder = (
        str(node_config.get(key, "")) for key in ("dataset", "data", "folder")
    )
    if dataset in DATASETS:
        raise ConfigError(
            "the node's dataset must name its own data, got the known data set "
            f"{dataset!r}; leave it out"
        )
    if dataset != Path(dataset).name:
        raise ConfigError(f"the node's dataset must be a name without slashes, got {dataset!r}")
    if dataset and not data:
        raise ConfigError(f"the node's data must be the path of its {dataset}, got ''")
    if data:
        data = str(Path(data).expanduser().absolute())
    where = Path(folder).expanduser() if folder else _default_folder(client, dataset, data)
    classes = tuple(
        filter(None, map(str.strip, str(node_config.get("classes", "")).split(",")))
    )
    return Settings(client, where, dataset, data, clients, classes, _shape(node_config))


def _shape(node_config: Mapping[str, object]) -> tuple[int, ...]:
    """Returns the shape of the node's images, if its configuration has one."""
    text = str(node_config.get("shape", ""))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        return ()
    if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            "the node's shape must be channels, height and width, as in 'shape=\"1,28,28\"', "
            f"got {text!r}"
        )
    return tuple(int(part) for part in parts)


def _default_folder(client: int, dataset: str, data: str) -> Path:
    """Returns the default folder of a node.

    It holds the ledger of the node's own data, so it must not depend on the client's number:
    that may differ in the next federation.
    """
    name = f"client_{client:06d}"
    if dataset:
        name = f"{dataset}_{hashlib.sha256(data.encode()).hexdigest()[:8]}"
    return user_data_path("feddm", appauthor=False) / "nodes" / name


@dataclass(frozen=True)
class Job:
    """What a server asks of a node.

    Args:
        federation: Unique name of the federation.
        config: Configuration of the run.
        compiled: Whether to compile models, if this machine can.
        round: Number of the round.
        memory: Round whose memory to continue from; 0 for none.
        download: Tensors from the server.
    """

    federation: str
    config: Config
    compiled: bool = False
    round: int = 0
    memory: int = 0
    download: Records = field(default_factory=dict)


# Reads a node's own data: uint8 images of shape (n, channels, height, width), and labels.
Load = Callable[[], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Node:
    """A client on its own machine.

    Args:
        settings: How the owner has set it up.
        load: Reads its own data, if they are neither in a file nor from a known data set.
    """

    settings: Settings
    load: Load | None = None

    def hello(self, job: Job) -> int:
        """Returns the number of this client; raises an error if it cannot take part."""
        self._accept(job)
        self._data(job.config)
        return self.settings.client

    def work(self, job: Job) -> tuple[Reply, bool]:
        """Returns the reply to a task, and whether the client has stored memory for it."""
        policy, algorithm, device = self._accept(job)
        client, memory = self.settings.client, Memory(self.settings.folder / "memory")
        data = self._data(job.config)
        task = Task(client, job.round, job.config.seed, job.download)
        remembered = memory.recall(job.federation, job.memory)
        with self._vault(job, policy, data) as vault:
            result, seconds = perform(
                algorithm, task, data.train, remembered, ignore, device, vault
            )
        if result.memory:
            memory.keep(job.federation, job.round, result.memory, before=job.memory)
        return Reply(client, result.upload, result.metrics, seconds), bool(result.memory)

    def evaluate(self, job: Job) -> SiteRecord:
        """Returns how well a model does on the held-out examples of this node."""
        config = job.config
        if config.privacy is not None:
            raise BudgetError("under privacy, clients do not evaluate models")
        policy, algorithm, device = self._accept(job)
        # Accuracy depends on the examples, and no noise hides them.
        check_policy(config, policy, [Unprotected("accuracy on held-out examples")])
        held_out = self._data(config).held_out
        if not len(held_out):
            raise DataError("this client has no held-out examples to evaluate on")
        params = moved(job.download, device)["params"]
        result = evaluate(algorithm.model, params, held_out.to(device))
        return SiteRecord(
            self.settings.client, result.accuracy, result.balanced_accuracy, result.loss
        )

    def _accept(self, job: Job) -> tuple[Policy, Algorithm, torch.device]:
        """Accepts a job and returns what it needs; raises an error to refuse it."""
        config = job.config
        client, clients = self.settings.client, config.partition.clients
        if self.settings.clients not in (None, clients):
            raise ConfigError(
                f"the node's num-partitions is {self.settings.clients}, but the federation has "
                f"{clients} clients; both must be the same"
            )
        if client >= clients:
            raise ConfigError(
                f"this node is client {client}, but the federation has clients 0 to "
                f"{clients - 1}"
            )
        privacy = config.privacy
        if privacy is not None and privacy.test_secret:
            raise BudgetError("privacy.test_secret must be left out: nodes use real secrets")
        if privacy is not None and not privacy.noise_multiplier:
            raise ConfigError(
                "privacy.noise_multiplier is missing: the server computes it from its budget"
            )
        check_config(config)
        info = described(config.data)
        self._check_data(info, config)
        policy = own_policy(info.name)
        algorithm, device = _algorithm(config, job.compiled)
        check_policy(config, policy, algorithm.planned)
        return policy, algorithm, device

    def _data(self, config: Config) -> NodeData:
        # Data from `load` are not cached: each message comes with a new `load`.
        read = _read_data if self.load is None else _read_data.__wrapped__
        return read(self.settings, self.load, config.data, config.partition, config.seed)

    @property
    def _name(self) -> str:
        """The owner's name for its own data; empty for a shard of a known data set."""
        return self.settings.dataset or (OWN_DATA if self.load is not None else "")

    def _check_data(self, info: DatasetInfo, config: Config) -> None:
        """Raises `ConfigError` unless the server asks for the data that this node has.

        The owner names the data, because policies can set limits per data set and each name
        has its own ledger.
        """
        wanted = info.name if config.data.own.classes else ""
        if wanted != self._name:
            has = self._name or "a shard of a known data set"
            raise ConfigError(f"this node has {has}, but the server asks for {info.name}")
        if wanted:
            self._check_own(info, private=config.privacy is not None)

    def _check_own(self, info: DatasetInfo, *, private: bool) -> None:
        """Raises `ConfigError` unless the server asks for the classes and shape of the owner.

        This is decided before any example is read. If the data decided it, a server could try
        lists of classes, and learn which ones the examples have.
        """
        pinned = self.settings
        if private and not (pinned.classes and pinned.shape):
            raise ConfigError(
                "privacy needs classes and shape in the configuration of a node with its own "
                'data, as in classes="ill,well" shape="1,28,28"'
            )
        for what, ours, theirs in (
            ("classes", pinned.classes, tuple(info.classes)),
            ("shape", pinned.shape, tuple(info.shape)),
        ):
            if ours and ours != theirs:
                raise ConfigError(
                    f"the {what} of this node are {_listed(ours)}, but the server asks for "
                    f"{_listed(theirs)}"
                )

    @contextlib.contextmanager
    def _vault(self, job: Job, policy: Policy, data: NodeData) -> Iterator[Vault | None]:
        """Yields this client's vault with its ledger locked; ``None`` without privacy."""
        config = job.config
        if config.privacy is None:
            yield None
            return
        root = self.settings.folder / "ledger" if self._name else ledger_root()
        ledger = Ledger(root.absolute() / data.dataset.info.name)
        # A node's own data are the same under any client number, so their costs add up.
        client = 0 if self._name else self.settings.client
        with ledger.locked(LEDGER_WAIT):
            vaults = vaults_in(
                ledger, config, data.dataset, data.shards, job.federation, policy
            )
            yield vaults.of(client)


@dataclass(frozen=True)
class NodeData:
    """The examples of a node, and the data set they come from.

    Args:
        dataset: The node's own data, or a known data set.
        shards: Indices of each client's examples.
        train: Examples that this client trains on.
        held_out: Examples that it evaluates on.
    """

    dataset: Dataset
    shards: Shards
    train: Examples
    held_out: Examples


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


@functools.lru_cache(maxsize=4)  # a simulation runs several nodes in one process
def _read_data(
    settings: Settings,
    load: Load | None,
    data: DataConfig,
    partition: PartitionConfig,
    seed: int,
) -> NodeData:
    """Returns the examples of a node; the most recent are cached."""
    info = described(data)
    if settings.dataset or load is not None:
        examples = _loaded(load, info) if load else read_own(Path(settings.data), data)
        # A split with one client: no other has any of these examples.
        dataset, mine = Dataset(info, examples, examples.subset(torch.tensor([]).long())), 0
        shards = [np.arange(len(examples))]
    else:
        # Where data are is for the node to say, and never for the server.
        dataset = build_dataset(data.model_copy(update={"dir": settings.data, "path": ""}))
        shards, mine = build_shards(partition, dataset, seed), settings.client
    shard = shards[mine]
    # The same in every round, so that no client trains on its held-out examples.
    chosen = numpy_generator(seed, "holdout").permutation(len(shard))
    held_out = np.isin(np.arange(len(shard)), chosen[: round(len(shard) * data.holdout)])
    if data.holdout and held_out.all():
        raise DataError(
            f"data.holdout = {data.holdout:g} leaves none of {len(shard)} examples to train on"
        )
    return NodeData(
        dataset,
        shards,
        train=dataset.train.subset(torch.from_numpy(shard[~held_out])),
        held_out=dataset.train.subset(torch.from_numpy(shard[held_out])),
    )


def _loaded(load: Load, info: DatasetInfo) -> Examples:
    x, y = load()
    if x.dtype != torch.uint8 or tuple(x.shape[1:]) != info.shape:
        raise DataError(
            f"images must be uint8 of shape {info.shape}, got {x.dtype} {tuple(x.shape[1:])}"
        )
    if not len(x):
        raise DataError("images must not be empty, got 0 images")
    if y.shape != x.shape[:1] or y.is_floating_point():
        raise DataError(
            f"labels must be {len(x)} whole numbers, one per image, got {y.dtype} "
            f"{tuple(y.shape)}"
        )
    most = len(info.classes) - 1
    if not 0 <= int(y.min()) <= int(y.max()) <= most:
        raise DataError(
            f"labels must be from 0 to {most}, got {int(y.min())} to {int(y.max())}"
        )
    return Examples(x, y.long(), info.normalization)


@functools.lru_cache(maxsize=1)
def _algorithm(config: Config, compiled: bool) -> tuple[Algorithm, torch.device]:
    """Returns the algorithm and its device; the last is cached because it may be compiled."""
    compile_ = "on" if compiled else "off"
    runtime = config.runtime.model_copy(update={"compile": compile_})
    config = config.model_copy(update={"runtime": runtime})
    setup = build_server(config, described(config.data), None)
    return setup.algorithm, setup.device
