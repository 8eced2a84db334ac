"""A node: the same bits as in process, with its own data, policy and ledger."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from platformdirs import user_data_path

from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.core.metrics import evaluate
from feddm.core.tensors import Records, to_bytes
from feddm.core.training import ignore
from feddm.data.catalog import described
from feddm.data.own import read_own
from feddm.errors import BudgetError, ConfigError, DataError, EngineError, LedgerError
from feddm.flower import node as node_module
from feddm.flower import wire
from feddm.flower.node import Job, Node, Settings, settings_of
from feddm.privacy.accounting import Released, epsilon
from feddm.privacy.ledger import Ledger, ledger_root, read_entries
from feddm.privacy.vault import upload_log
from feddm.runtime.build import build, build_algorithm, build_model
from feddm.runtime.client import Reply, Task, perform
from feddm.runtime.federation import SiteRecord, start
from feddm.runtime.local import InProcess
from tiny import CLIENTS, SETTINGS

A, B = "a" * 32, "b" * 32
OWN: dict[str, Any] = {
    "data.name": "lesions",
    "data.own.classes": ["well", "ill"],
    "data.own.shape": [1, 8, 8],
    "data.own.examples": 40,
}
# Two sums per round, with a lot of noise.
PRIVATE: dict[str, Any] = {"privacy.mechanism": "features", "privacy.noise_multiplier": 20.0}
DELTA = 1e-5
NOTHING: Mapping[str, Any] = {}


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    yield
    node_module._read_data.cache_clear()
    node_module._algorithm.cache_clear()


def configured(
    algorithm: str = "fedavg", settings: Mapping[str, Any] = NOTHING, clients: int = CLIENTS
) -> Config:
    options = {"algorithm": algorithm, "clients": clients}
    return resolve(options=options, settings={**SETTINGS, **settings}, shared=True)


def own_config(algorithm: str = "fedavg", settings: Mapping[str, Any] = NOTHING) -> Config:
    return configured(algorithm, {**OWN, **settings}, clients=2)


def broadcast(config: Config) -> Records:
    """Returns what clients download in the first round."""
    info = described(config.data)
    model = build_model(config.model, info.shape, len(info.classes))
    algorithm = build_algorithm(config, model)
    return algorithm.broadcast(start(algorithm, config.seed).state)


def first(config: Config, federation: str = A) -> Job:
    return Job(federation, config, round=1, download=broadcast(config))


def npz(path: Path, num: int = 20, seed: int = 0, **parts: Any) -> str:
    """Writes equally many images per class; those of class ill are brighter."""
    rng = np.random.default_rng(seed)
    y = np.arange(num) % 2
    whole: dict[str, Any] = {
        "x": (rng.integers(0, 100, (num, 8, 8)) + 100 * (y == 0)[:, None, None]).astype("u1"),
        "y": y,
        "classes": np.array(["ill", "well"]),
    }
    np.savez(path, **(whole | parts))
    return str(path)


def owner(tmp_path: Path, client: int = 0, **parts: Any) -> Node:
    """Returns a node with its own data."""
    data = npz(tmp_path / f"own{client}.npz", seed=client, **parts)
    pinned: Any = {"classes": ("well", "ill"), "shape": (1, 8, 8)}
    return Node(Settings(client, tmp_path / f"node{client}", "lesions", data, **pinned))


def same(one: Reply, two: Reply) -> bool:
    return (
        to_bytes(one.upload) == to_bytes(two.upload)
        and one.client == two.client
        and one.metrics == two.metrics
    )


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a test fail if it reads examples."""

    def never(*_: object) -> Any:
        raise AssertionError("no example may be read")

    monkeypatch.setattr("feddm.flower.node._read_data", never)


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "policy.toml"
    monkeypatch.setenv("FEDDM_POLICY", str(file))
    return file


class TestSettings:
    def test_all_keys(self, tmp_path: Path) -> None:
        given = {
            "partition-id": 1,
            "num-partitions": 3,
            "folder": str(tmp_path),
            "dataset": "lesions",
            "data": "/data/own.npz",
        }
        assert settings_of(given) == Settings(1, tmp_path, "lesions", "/data/own.npz", 3)

    def test_partition_id_is_enough(self) -> None:
        settings = settings_of({"partition-id": 12})
        nodes = user_data_path("feddm") / "nodes"
        assert settings == Settings(12, nodes / "client_000012", "", "", None)

    def test_tilde_is_the_home_folder(self) -> None:
        settings = settings_of({"partition-id": 0, "data": "~/data", "folder": "~/node"})
        assert settings.data == str(Path.home() / "data")
        assert settings.folder == Path.home() / "node"

    def test_the_folder_of_own_data_does_not_depend_on_the_client_number(self) -> None:
        # Otherwise the next federation would not find what was spent.
        def folder(client: int, data: str) -> Path:
            given = {"partition-id": client, "dataset": "lesions", "data": data}
            return settings_of(given).folder

        assert folder(0, "/data/a") == folder(5, "/data/a") == folder(0, "/data/a/")
        assert folder(0, "/data/a") != folder(0, "/data/b")

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({}, "client number, from 0, as in --node-config 'partition-id=0', got None"),
            ({"partition-id": -1}, "partition-id must be its client number, .* got -1"),
            ({"partition-id": "0"}, "partition-id must be its client number, .* got '0'"),
            ({"partition-id": True}, "partition-id must be its client number, .* got True"),
            ({"partition-id": 1.0}, "partition-id must be its client number, .* got 1.0"),
            ({"partition_id": 0}, "unknown key partition_id .*; known: partition-id, num-"),
            ({"num-partitions": 0}, "num-partitions .* above its partition-id 2, got 0"),
            ({"num-partitions": 2}, "num-partitions .* above its partition-id 2, got 2"),
            ({"num-partitions": "3"}, "num-partitions .* got '3'"),
            ({"num-partitions": True}, "num-partitions .* got True"),
            ({"dataset": "lesions"}, "data must be the path of its lesions"),
            ({"dataset": "mnist", "data": "x"}, "the known data set 'mnist'; leave it out"),
            ({"dataset": "../x", "data": "x"}, "a name without slashes, got '../x'"),
        ],
    )
    def test_invalid_values(self, given: dict[str, Any], says: str) -> None:
        number = {} if not given or "partition-id" in given else {"partition-id": 2}
        with pytest.raises(ConfigError, match=says):
            settings_of(number | given)


class TestKnownData:
    """A node with a shard of a known data set gives the same bits as a client in process."""

    @pytest.fixture
    def nodes(self, tmp_path: Path) -> list[Node]:
        return [Node(Settings(client, tmp_path / str(client))) for client in range(CLIENTS)]

    @pytest.mark.parametrize("algorithm", ["fedavg", "feddm", "fednova"])
    def test_a_round_has_the_same_bits(self, nodes: list[Node], algorithm: str) -> None:
        # Without replay, by which clients of FedDM remember what they sent.
        forgetful = {"server.replay": 0} if algorithm == "feddm" else {}
        config = configured(algorithm, {"seed": 5, **forgetful})
        job, setup = first(config), build(config)
        with InProcess(setup.algorithm, setup.dataset.train, setup.shards) as engine:
            tasks = (Task(client, 1, 5, job.download) for client in range(CLIENTS))
            expected = list(engine.run(tasks, lambda client, done: None))
        for node, there in zip(nodes, expected, strict=True):
            here, remembers = node.work(job)
            assert same(here, there)
            assert here.seconds > 0
            assert not remembers
            assert not node.settings.folder.exists()

    def test_memory_has_the_same_bits(self, nodes: list[Node]) -> None:
        config = configured("scaffold")
        setup, download, node = build(config), broadcast(config), nodes[1]
        with InProcess(setup.algorithm, setup.dataset.train, setup.shards) as engine:
            for number in (1, 2, 3):
                task = Task(1, number, 0, download)
                (expected,) = engine.run([task], lambda client, done: None)
                job = Job(A, config, round=number, memory=number - 1, download=download)
                for _ in range(2):  # asked again, it starts where it started before
                    reply, remembers = node.work(job)
                    assert same(reply, expected)
                    assert remembers
                engine.commit([1])
        # Without its memory, the reply differs.
        forgetful = Job(A, config, round=3, download=download)
        assert not same(node.work(forgetful)[0], expected)

    def test_a_lost_memory_is_an_error(self, nodes: list[Node]) -> None:
        config = configured("scaffold")
        job = Job(A, config, round=2, memory=1, download=broadcast(config))
        with pytest.raises(EngineError, match="memory of round 1 is no longer on this node"):
            nodes[0].work(job)

    def test_an_invalid_federation_name_is_refused_before_the_work(
        self, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("feddm.flower.node.perform", None)
        with pytest.raises(EngineError, match="32 hexadecimal digits"):
            nodes[0].work(first(configured(), "../x"))

    def test_hello_returns_the_client_number(self, nodes: list[Node]) -> None:
        assert [node.hello(Job(A, configured())) for node in nodes] == [0, 1, 2]

    def test_the_number_of_clients_must_match_the_server(self, tmp_path: Path) -> None:
        with pytest.raises(
            ConfigError, match="client 3, but the federation has clients 0 to 2"
        ):
            Node(Settings(3, tmp_path)).hello(Job(A, configured()))
        with pytest.raises(ConfigError, match="is 4, but the federation has 3 clients"):
            Node(Settings(0, tmp_path, clients=4)).hello(Job(A, configured()))
        assert Node(Settings(0, tmp_path, clients=3)).hello(Job(A, configured())) == 0

    def test_the_data_folder_of_the_server_is_ignored(self, tmp_path: Path) -> None:
        config = configured(
            "fedavg", {"data.name": "mnist", "data.dir": "/nowhere/of/the/server"}
        )
        node = Node(Settings(0, tmp_path, data=str(tmp_path)))
        with pytest.raises(DataError) as caught:
            node.hello(Job(A, config))
        assert str(tmp_path) in str(caught.value)
        assert "server" not in str(caught.value)

    def test_held_out_examples_are_for_evaluation_only(self, nodes: list[Node]) -> None:
        config = configured("fedavg", {"data.holdout": 0.25})
        setup, node = build(configured("fedavg")), nodes[2]
        data = node._data(config)
        size = len(setup.shards[2])
        assert len(data.held_out) == round(size / 4)
        assert len(data.train) == size - round(size / 4)
        # Together they are its shard.
        together = torch.cat([data.train.x, data.held_out.x]).flatten(1).tolist()
        whole = setup.dataset.train.x[torch.from_numpy(setup.shards[2])].flatten(1).tolist()
        assert sorted(together) == sorted(whole)

        job = first(config)
        expected = evaluate(setup.algorithm.model, job.download["params"], data.held_out)
        assert node.evaluate(job) == SiteRecord(
            2, expected.accuracy, expected.balanced_accuracy, expected.loss
        )

    def test_without_held_out_examples_there_is_no_evaluation(self, nodes: list[Node]) -> None:
        with pytest.raises(DataError, match="has no held-out examples"):
            nodes[0].evaluate(first(configured()))


class TestOwnData:
    def test_each_node_trains_on_its_own_data(self, tmp_path: Path) -> None:
        config = own_config()
        job = first(config)
        info = described(config.data)
        algorithm = build_algorithm(config, build_model(config.model, info.shape, 2))
        for client in (0, 1):
            node = owner(tmp_path, client)
            assert node.hello(Job(A, config)) == client
            reply, _ = node.work(job)
            examples = read_own(Path(node.settings.data), config.data)
            task = Task(client, 1, config.seed, job.download)
            expected, _ = perform(algorithm, task, examples, {}, ignore)
            assert to_bytes(reply.upload) == to_bytes(expected.upload)

    def test_feddm_on_own_data(self, tmp_path: Path) -> None:
        config = own_config("feddm", {"images_per_class": 3})
        reply, _ = owner(tmp_path).work(first(config))
        # Three images per class, with the server's labels.
        assert reply.metrics["images"] == 6
        assert reply.upload["examples"]["y"].unique().tolist() == [0, 1]

    def test_data_from_load(self, tmp_path: Path) -> None:
        config = own_config("fedavg", {"data.name": "own"})
        examples = read_own(Path(npz(tmp_path / "own.npz")), config.data)
        node = Node(Settings(0, tmp_path / "node"), lambda: (examples.x, examples.y))
        file = Node(Settings(0, tmp_path / "node", "own", str(tmp_path / "own.npz")))
        assert same(node.work(first(config))[0], file.work(first(config))[0])

    @pytest.mark.parametrize(
        ("x", "y", "says"),
        [
            (
                torch.zeros(2, 1, 8, 8),
                [0, 1],
                r"must be uint8 of shape \(1, 8, 8\), got torch.f",
            ),
            (torch.zeros(2, 8, 8).byte(), [0, 1], r"must be uint8 of shape \(1, 8, 8\)"),
            (torch.zeros(0, 1, 8, 8).byte(), [], "must not be empty, got 0 images"),
            (
                torch.zeros(2, 1, 8, 8).byte(),
                [0],
                r"labels must be 2 whole numbers, one per image, got torch\.int64 \(1,\)",
            ),
            (torch.zeros(2, 1, 8, 8).byte(), [0, -1], "must be from 0 to 1, got -1 to 0"),
            (
                torch.zeros(2, 1, 8, 8).byte(),
                [0, 2],
                "must be from 0 to 1, got 0 to 2",
            ),
            (torch.zeros(2, 1, 8, 8).byte(), [0.5, 1.0], r"one per image, got torch\.float32"),
        ],
    )
    def test_data_from_load_are_checked(
        self, tmp_path: Path, x: torch.Tensor, y: list[int], says: str
    ) -> None:
        config = own_config("fedavg", {"data.name": "own"})
        node = Node(Settings(0, tmp_path), lambda: (x, torch.tensor(y)))
        with pytest.raises(DataError, match=says):
            node.hello(Job(A, config))

    @pytest.mark.parametrize(
        ("parts", "says"),
        [
            (
                {"classes": np.array(["ill", "fine"])},
                "unknown class 'fine'; the classes of lesions are well, ill",
            ),
            ({"x": np.zeros((20, 9, 9), np.uint8)}, "1 x 9 x 9 .* but lesions has 1 x 8 x 8"),
        ],
    )
    def test_other_classes_and_sizes_are_refused(
        self, tmp_path: Path, parts: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(DataError, match=says):
            owner(tmp_path, **parts).hello(Job(A, own_config()))

    @pytest.mark.usefixtures("no_data")
    @pytest.mark.parametrize("ask", ["hello", "work"])
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"data.own.classes": ["well", "canary"]}, "are well, ill, but .* well, canary"),
            ({"data.own.shape": [3, 8, 8]}, "are 1, 8, 8, but the server asks for 3, 8, 8"),
        ],
    )
    def test_classes_and_shape_are_the_owners_whatever_the_data(
        self, tmp_path: Path, ask: str, change: dict[str, Any], says: str
    ) -> None:
        # No example is read, so a refusal tells nothing about any.
        with pytest.raises(ConfigError, match=says):
            getattr(owner(tmp_path), ask)(Job(A, own_config("feddm", PRIVATE | change)))

    @pytest.mark.usefixtures("no_data")
    def test_under_privacy_the_owner_must_have_said_them(self, tmp_path: Path) -> None:
        node = Node(Settings(0, tmp_path, "lesions", npz(tmp_path / "own.npz")))
        with pytest.raises(ConfigError, match="privacy needs classes and shape"):
            node.hello(Job(A, own_config("feddm", PRIVATE)))

    @pytest.mark.usefixtures("no_data")
    @pytest.mark.parametrize("ask", ["hello", "work", "evaluate"])
    def test_a_server_that_asks_for_other_data_is_refused(
        self, tmp_path: Path, ask: str
    ) -> None:
        def asked(node: Node, config: Config) -> None:
            getattr(node, ask)(first(config))

        with pytest.raises(ConfigError, match="has lesions, but the server asks for digits"):
            asked(owner(tmp_path), configured())
        with pytest.raises(ConfigError, match="has lesions, but the server asks for moles"):
            asked(owner(tmp_path), own_config("fedavg", {"data.name": "moles"}))
        known = Node(Settings(0, tmp_path / "node"))
        with pytest.raises(
            ConfigError, match="a shard of a known data set, but the server asks"
        ):
            asked(known, own_config())
        # The owner sets the name: each has its own ledger, and perhaps its own policy.
        program = Node(Settings(0, tmp_path / "node"), lambda: (torch.zeros(0), torch.zeros(0)))
        with pytest.raises(ConfigError, match="has own, but the server asks for lesions"):
            asked(program, own_config())

    def test_holdout_must_leave_examples_to_train_on(self, tmp_path: Path) -> None:
        node = owner(tmp_path, num=2)
        with pytest.raises(
            DataError, match=r"data\.holdout = 0\.8 leaves none of 2 examples to train on"
        ):
            node.hello(Job(A, own_config("fedavg", {"data.holdout": 0.8})))


@pytest.mark.usefixtures("no_data")
class TestPolicy:
    """The node checks its machine's policy before it reads any example."""

    @pytest.mark.parametrize("ask", ["hello", "work", "evaluate"])
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("epsilon = 4", "would have spent epsilon inf"),
            ("mechanisms = ['features']", "does not allow the mechanism none, only features"),
            ("units = ['example']", "requires protection of the unit example"),
            ("noise_multiplier = 1", "noise multiplier of at least 1, got 0"),
            ("algorithms = ['feddm']", "does not allow the algorithm fedavg, only feddm"),
            ("[datasets.digits]\nepsilon = 1", "would have spent epsilon inf"),
        ],
    )
    def test_no_privacy(
        self, tmp_path: Path, policy: Path, ask: str, text: str, says: str
    ) -> None:
        policy.write_text(text)
        with pytest.raises(BudgetError, match=says):
            getattr(Node(Settings(0, tmp_path)), ask)(
                first(configured("fedavg", {"data.holdout": 0.2}))
            )

    def test_another_mechanism(self, tmp_path: Path, policy: Path) -> None:
        policy.write_text("mechanisms = ['gradients']")
        with pytest.raises(
            BudgetError, match="does not allow the mechanism features, only gradients"
        ):
            Node(Settings(0, tmp_path)).work(first(configured("feddm", PRIVATE)))

    def test_another_unit(self, tmp_path: Path, policy: Path) -> None:
        policy.write_text("units = ['group']")
        with pytest.raises(BudgetError, match="does not allow the unit example, only group"):
            owner(tmp_path).work(first(own_config("feddm", PRIVATE)))

    def test_too_little_noise(self, tmp_path: Path, policy: Path) -> None:
        policy.write_text("noise_multiplier = 21")
        with pytest.raises(BudgetError, match="at least 21, got 20"):
            Node(Settings(0, tmp_path)).hello(Job(A, configured("feddm", PRIVATE)))

    def test_limits_for_its_own_data(self, tmp_path: Path, policy: Path) -> None:
        policy.write_text("[datasets.lesions]\nalgorithms = ['real']")
        with pytest.raises(BudgetError, match="does not allow the algorithm fedavg, only real"):
            owner(tmp_path).hello(Job(A, own_config()))

    def test_an_invalid_policy(self, tmp_path: Path, policy: Path) -> None:
        policy.write_text("epsilom = 4")
        with pytest.raises(LedgerError, match="unknown key epsilom"):
            Node(Settings(0, tmp_path)).hello(Job(A, configured()))

    def test_a_test_secret_is_refused(self, tmp_path: Path) -> None:
        config = configured("feddm", PRIVATE | {"privacy.test_secret": "open"})
        with pytest.raises(BudgetError, match=r"privacy\.test_secret must be left out"):
            Node(Settings(0, tmp_path)).hello(Job(A, config))

    @pytest.mark.parametrize("ask", ["hello", "work"])
    def test_under_privacy_holdout_is_refused(self, tmp_path: Path, ask: str) -> None:
        """Whether it leaves examples to train on would reveal how many there are."""
        config = own_config("feddm", PRIVATE | {"data.holdout": 0.99})
        with pytest.raises(ConfigError, match=r"data\.holdout must be 0 with privacy"):
            getattr(owner(tmp_path, num=2), ask)(first(config))

    def test_under_privacy_no_node_evaluates(self, tmp_path: Path) -> None:
        config = configured("feddm", PRIVATE | {"data.holdout": 0.2})
        with pytest.raises(BudgetError, match="under privacy, clients do not evaluate"):
            Node(Settings(0, tmp_path)).evaluate(first(config))


class TestPrivacy:
    CONFIG = own_config("feddm", PRIVATE | {"synthesis.networks": 2})

    def test_the_cost_of_own_data_is_on_the_node_and_adds_up(self, tmp_path: Path) -> None:
        node = owner(tmp_path)
        reply, _ = node.work(first(self.CONFIG))
        assert dict(reply.metrics) == {
            "epsilon": pytest.approx(epsilon([Released(2, 20.0)], DELTA))
        }
        assert reply.seconds == 0.0  # the real time could reveal something about examples
        # A second federation, in which it has another client number.
        moved = Node(replace(node.settings, client=1))
        again, _ = moved.work(first(self.CONFIG, B))
        both = epsilon([Released(4, 20.0)], DELTA)
        assert again.metrics["epsilon"] == pytest.approx(both)

        ledger = Ledger(node.settings.folder / "ledger/lesions")
        (split,) = ledger.splits()
        assert ledger.spent(split.name) == [Released(4, 20.0)]
        (client,) = split.iterdir()
        assert [entry.run for entry in read_entries(client)] == [A, B]
        assert len(upload_log(client)) == 2
        assert not (ledger_root() / "lesions").exists()

    def test_surrogates_of_own_data(self, tmp_path: Path) -> None:
        mechanism = {"privacy.mechanism": "surrogate", "model.name": "surrogate"}
        config = own_config("feddm", PRIVATE | mechanism | {"rounds": 3})
        job = first(config)
        again = wire.from_job(wire.to_job(job))
        reply, remembers = owner(tmp_path).work(again)
        assert {name: t.shape for name, t in reply.upload["sums"].items()} == {"mean": (325,)}
        assert not remembers
        # The mean alone: 6 % of the squared inverse noise of the run.
        spent = epsilon([Released(1, 20.0 / math.sqrt(0.06))], DELTA)
        assert reply.metrics["epsilon"] == pytest.approx(spent)

    def test_repeating_an_answer_costs_nothing(self, tmp_path: Path) -> None:
        node = owner(tmp_path)
        one, two = (node.work(first(self.CONFIG))[0] for _ in range(2))
        assert same(one, two)

    def test_a_policy_limits_all_federations_together(
        self, tmp_path: Path, policy: Path
    ) -> None:
        enough = epsilon([Released(4, 20.0)], DELTA) * 1.001
        policy.write_text(f"epsilon = {enough}\ndelta = {DELTA}\n")
        node = owner(tmp_path)
        node.work(first(self.CONFIG, A))
        node.work(first(self.CONFIG, B))
        with pytest.raises(BudgetError, match=r"its limit is .*policy\.toml"):
            node.work(first(self.CONFIG, "c" * 32))

    def test_costs_add_up_for_other_data_of_the_same_name(self, tmp_path: Path) -> None:
        node = owner(tmp_path)
        node.work(first(self.CONFIG))
        # Any example could be in both files.
        more = npz(tmp_path / "more.npz", num=30)
        changed = Node(replace(node.settings, data=more))
        reply, _ = changed.work(first(self.CONFIG, B))
        assert reply.metrics["epsilon"] == pytest.approx(epsilon([Released(4, 20.0)], DELTA))

    def test_shards_of_a_known_data_set_share_the_ledger_of_the_machine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("feddm.flower.node.ledger_root", lambda: tmp_path / "ledgers")
        config = configured("feddm", PRIVATE | {"synthesis.networks": 2})
        for client in (0, 1):
            reply, _ = Node(Settings(client, tmp_path / str(client))).work(first(config))
            # Each example has one client, so clients compose in parallel.
            one_round = epsilon([Released(2, 20.0)], DELTA)
            assert reply.metrics["epsilon"] == pytest.approx(one_round)
        (split,) = Ledger(tmp_path / "ledgers/digits").splits()
        assert sorted(client.name for client in split.iterdir()) == [
            "client_000000",
            "client_000001",
        ]

    def test_a_budget_without_noise_is_refused(self, tmp_path: Path) -> None:
        # Computing the noise is the server's task.
        config = own_config("feddm", {"privacy.epsilon": 4.0})
        with pytest.raises(ConfigError, match=r"privacy\.noise_multiplier is missing"):
            owner(tmp_path).work(Job(A, config, round=1))
        assert not (tmp_path / "node0").exists()

    def test_a_server_cannot_spend_more_than_its_budget(self, tmp_path: Path) -> None:
        config = own_config("feddm", PRIVATE | {"privacy.epsilon": 0.01})
        with pytest.raises(BudgetError, match=r"its limit is 0\.01"):
            owner(tmp_path).work(first(config))

    def test_the_text_of_an_error_stays_on_the_node(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object, **__: object) -> Any:
            raise ValueError("Anna is ill")

        algorithm = type(
            build_algorithm(self.CONFIG, build_model(self.CONFIG.model, (1, 8, 8), 2))
        )
        job = first(self.CONFIG)
        monkeypatch.setattr(algorithm, "local", broken)
        with pytest.raises(EngineError, match="client 0 failed") as caught:
            owner(tmp_path).work(job)
        assert "Anna" not in str(caught.value)
        logs = list((tmp_path / "node0").rglob("errors.log"))
        assert len(logs) == 1
        assert "Anna is ill" in logs[0].read_text()

    def test_groups_in_own_data_can_be_protected(self, tmp_path: Path) -> None:
        config = own_config("feddm", PRIVATE | {"privacy.unit": "group"})
        with pytest.raises(ConfigError, match="lesions does not say which examples belong"):
            owner(tmp_path).work(first(config))
        grouped = owner(tmp_path, group=np.arange(20) // 4)
        node_module._read_data.cache_clear()
        reply, _ = grouped.work(first(config))
        assert math.isfinite(reply.metrics["epsilon"])

    @pytest.mark.parametrize("algorithm", ["fedavg", "feddm"])
    def test_a_public_number_of_examples_is_needed(
        self, tmp_path: Path, algorithm: str
    ) -> None:
        settings = {**PRIVATE, "privacy.mechanism": "gradients", "data.own.examples": 0}
        config = own_config(algorithm, settings)
        with pytest.raises(ConfigError, match=r"data\.own\.examples is missing"):
            owner(tmp_path).hello(Job(A, config))
