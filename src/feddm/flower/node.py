"""A node: a client on a machine of its own, with its own data, memory, ledger and policy.

The server says what it wants; the node decides. What it is asked is checked against the policy
of its machine before any example is read, and what it releases under privacy is on its ledger.
Nothing in here knows of Flower.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from platformdirs import user_data_path

from feddm.algorithms.base import Algorithm
from feddm.config.schema import Config, DataConfig, PartitionConfig
from feddm.core.examples import Examples, Normalization
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
from feddm.runtime.build import build_dataset, build_server, build_shards, check
from feddm.runtime.client import Reply, Task, perform
from feddm.runtime.federation import SiteRecord
from feddm.runtime.protection import check_policy, vaults_in

OWN_DATA = "own"  # what data are called that nobody names
WAIT = 3600.0  # seconds for another client on this machine to leave the ledger


@dataclass(frozen=True)
class Settings:
    """What a node's owner says about it.

    Args:
        client: Its number in the federation, from 0.
        folder: Where it keeps its memory, and the ledger of its own data.
        dataset: Name of its own data; empty if it has a part of a known data set.
        data: Its own data, or the folder of the known data sets.
        clients: Of how many it is one, if it knows.
    """

    client: int
    folder: Path
    dataset: str = ""
    data: str = ""
    clients: int | None = None


_KEYS = ("partition-id", "num-partitions", "folder", "dataset", "data")


def settings_of(node_config: Mapping[str, object]) -> Settings:
    """Returns what the node's configuration says; a `ConfigError` says what it may be."""
    unknown = sorted(set(node_config) - set(_KEYS))
    if unknown:
        raise ConfigError(
            f"unknown key {unknown[0]} in the configuration of the node; known: "
            f"{', '.join(_KEYS)}"
        )
    client = node_config.get("partition-id")
    if not isinstance(client, int) or isinstance(client, bool) or client < 0:
        raise ConfigError(
            "the configuration of the node lacks partition-id, its number from 0: "
            f"--node-config 'partition-id=0', got {client!r}"
        )
    clients = node_config.get("num-partitions")
    if clients is not None and (
        not isinstance(clients, int) or isinstance(clients, bool) or clients <= client
    ):
        raise ConfigError(
            "num-partitions of the node must be a whole number above its partition-id, got "
            f"{clients!r}"
        )
    dataset, data, folder = (
        str(node_config.get(key, "")) for key in ("dataset", "data", "folder")
    )
    if dataset in DATASETS:
        raise ConfigError(
            f"dataset of the node is for data of its own, and {dataset} is a known set: leave "
            "it out"
        )
    if dataset != Path(dataset).name:
        raise ConfigError(
            f"dataset of the node must be a name without slashes, got {dataset!r}"
        )
    if dataset and not data:
        raise ConfigError(f"the configuration of the node lacks data, where its {dataset} is")
    if data:
        data = str(Path(data).expanduser().absolute())
    where = Path(folder).expanduser() if folder else _default_folder(client, dataset, data)
    return Settings(client, where, dataset, data, clients)


def _default_folder(client: int, dataset: str, data: str) -> Path:
    """Returns the folder of a node if its owner does not name one.

    What was spent of its own data is in there, and must be found again whatever its number in
    the next federation is.
    """
    name = f"client_{client:06d}"
    if dataset:
        name = f"{dataset}_{hashlib.sha256(data.encode()).hexdigest()[:8]}"
    return user_data_path("feddm", appauthor=False) / "nodes" / name


@dataclass(frozen=True)
class Job:
    """What a server asks of a node.

    Args:
        federation: Name of the federation, unlike any other.
        config: What is run.
        compiled: Whether models are compiled, if this machine can.
        round: Number of the round.
        memory: The round whose memory is in force; 0: none.
        download: What the server sends.
    """

    federation: str
    config: Config
    compiled: bool = False
    round: int = 0
    memory: int = 0
    download: Records = field(default_factory=dict)


# Reads a node's own examples: uint8 images of (n, channels, height, width), and class numbers.
Load = Callable[[], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Node:
    """A client on a machine of its own.

    Args:
        settings: What its owner says about it.
        load: Reads its own data, if they are neither in a file nor a part of a known set.
    """

    settings: Settings
    load: Load | None = None

    def hello(self, job: Job) -> int:
        """Returns the number of this client if it can take part, and else says why not."""
        self._agreed(job)
        self._own(job.config)
        return self.settings.client

    def work(self, job: Job) -> tuple[Reply, bool]:
        """Returns the reply to a task, and whether there is something to remember of it."""
        policy, algorithm, device = self._agreed(job)
        client, memory = self.settings.client, Memory(self.settings.folder / "memory")
        own = self._own(job.config)
        task = Task(client, job.round, job.config.seed, job.download)
        remembered = memory.recall(job.federation, job.memory)
        with self._vault(job, policy, own) as vault:
            result, seconds = perform(
                algorithm, task, own.train, remembered, ignore, device, vault
            )
        if result.memory:
            memory.keep(job.federation, job.round, result.memory, before=job.memory)
        return Reply(client, result.upload, result.metrics, seconds), bool(result.memory)

    def judge(self, job: Job) -> SiteRecord:
        """Returns how well a model does on what this node holds out."""
        config = job.config
        if config.privacy.mechanism != "none":
            raise BudgetError("under privacy, a client does not say how well a model does")
        policy, algorithm, device = self._agreed(job)
        # Right and wrong answers are about examples, and nothing hides them.
        check_policy(config, policy, [Unprotected("accuracy on examples held out")])
        held_out = self._own(config).held_out
        if not len(held_out):
            raise DataError("this client holds out no examples")
        params = moved(job.download, device)["params"]
        result = evaluate(algorithm.model, params, held_out.to(device))
        return SiteRecord(
            self.settings.client, result.accuracy, result.balanced_accuracy, result.loss
        )

    def _agreed(self, job: Job) -> tuple[Policy, Algorithm, torch.device]:
        """Returns what the job needs, unless it is refused."""
        config = job.config
        client, clients = self.settings.client, config.partition.clients
        if self.settings.clients not in (None, clients):
            raise ConfigError(
                f"this node is one of {self.settings.clients}, and the federation has "
                f"{clients} clients; give both the same number"
            )
        if client >= clients:
            raise ConfigError(
                f"this node is client {client}, and the federation has {clients} from 0 to "
                f"{clients - 1}"
            )
        if config.privacy.test_secret:
            raise BudgetError("a node has no secrets for tests")
        if config.privacy.guaranteed and not config.privacy.noise_multiplier:
            raise ConfigError(
                "privacy.noise_multiplier is missing: a server works it out from its budget"
            )
        check(config)
        info = described(config.data)
        self._check_data(info, config)
        policy = own_policy(info.name)
        algorithm, device = _algorithm(config, job.compiled)
        check_policy(config, policy, algorithm.planned)
        return policy, algorithm, device

    def _own(self, config: Config) -> Own:
        # What `load` returns is its own to keep: each message brings another `load`.
        read = _own if self.load is None else _own.__wrapped__
        return read(self.settings, self.load, config.data, config.partition, config.seed)

    @property
    def _name(self) -> str:
        """What the owner calls its own data; empty if it has a part of a known data set."""
        return self.settings.dataset or (OWN_DATA if self.load is not None else "")

    def _check_data(self, info: DatasetInfo, config: Config) -> None:
        """Raises `ConfigError` unless the server means the data that this node has.

        The owner names the data, because limits of the policy may be for one data set alone,
        and because there is a ledger for each name.
        """
        wanted = info.name if config.data.own.classes else ""
        if wanted != self._name:
            has = self._name or "a part of a known data set"
            raise ConfigError(f"this node has {has}, and the server asks for {info.name}")

    @contextlib.contextmanager
    def _vault(self, job: Job, policy: Policy, own: Own) -> Iterator[Vault | None]:
        """Yields what this client keeps about its privacy, while nobody else spends of it."""
        config = job.config
        if config.privacy.mechanism == "none":
            yield None
            return
        root = self.settings.folder / "ledger" if self._name else ledger_root()
        ledger = Ledger(root.absolute() / own.dataset.info.name)
        # Its own data are the same whatever its number is, and what they cost adds up.
        client = 0 if self._name else self.settings.client
        with ledger.locked(WAIT):
            vaults = vaults_in(ledger, config, own.dataset, own.shards, job.federation, policy)
            yield vaults.of(client)


@dataclass(frozen=True)
class Own:
    """The examples of a node, and the whole of which they are its part.

    Args:
        dataset: The whole: its own data, or a known data set.
        shards: Which examples of it each client has.
        train: What this client learns from.
        held_out: What it judges by.
    """

    dataset: Dataset
    shards: Shards
    train: Examples
    held_out: Examples


@functools.lru_cache(maxsize=4)  # a simulation has several nodes in one process
def _own(
    settings: Settings,
    load: Load | None,
    data: DataConfig,
    partition: PartitionConfig,
    seed: int,
) -> Own:
    """Returns the examples of a node; the last that were read are kept."""
    info = described(data)
    if settings.dataset or load is not None:
        examples = _loaded(load, info) if load else read_own(Path(settings.data), info)
        # The split is its own: nobody else has any of these.
        dataset, mine = Dataset(info, examples, examples.subset(torch.tensor([]).long())), 0
        shards = [np.arange(len(examples))]
    else:
        dataset = build_dataset(data.model_copy(update={"dir": settings.data}))
        shards, mine = build_shards(partition, dataset, seed), settings.client
    shard = shards[mine]
    # The same in every round, so that nobody learns from what it is judged by.
    chosen = numpy_generator(seed, "holdout").permutation(len(shard))
    held_out = np.isin(np.arange(len(shard)), chosen[: round(len(shard) * data.holdout)])
    if data.holdout and held_out.all():
        raise DataError(
            f"data.holdout = {data.holdout:g} of {len(shard)} examples leaves nothing to learn"
        )
    return Own(
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
        raise DataError("there are no images")
    if y.shape != x.shape[:1] or y.is_floating_point():
        raise DataError(f"there must be one class number for each of {len(x)} images")
    most = len(info.classes) - 1
    if not 0 <= int(y.min()) <= int(y.max()) <= most:
        raise DataError(
            f"class numbers must be from 0 to {most}, got {int(y.min())} to {int(y.max())}"
        )
    return Examples(x, y.long(), Normalization(info.mean, info.std))


@functools.lru_cache(maxsize=1)
def _algorithm(config: Config, compiled: bool) -> tuple[Algorithm, torch.device]:
    """Returns what the configuration describes; the last is kept, for it may be compiled."""
    compile_ = "on" if compiled else "off"
    runtime = config.runtime.model_copy(update={"compile": compile_})
    config = config.model_copy(update={"runtime": runtime})
    setup = build_server(config, described(config.data), None)
    return setup.algorithm, setup.device
