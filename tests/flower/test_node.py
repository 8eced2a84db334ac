"""A node: the same bits as anywhere else, on its own data, under its own policy and ledger."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from platformdirs import user_data_path

from feddm.config.schema import Config, resolve
from feddm.core.metrics import evaluate
from feddm.core.tensors import Records, to_bytes
from feddm.core.training import ignore
from feddm.data.catalog import described
from feddm.data.own import read_own
from feddm.errors import BudgetError, ConfigError, DataError, EngineError, LedgerError
from feddm.flower import node as node_module
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
# Two sums a round, under much noise.
PRIVATE: dict[str, Any] = {"privacy.mechanism": "features", "privacy.noise_multiplier": 20.0}
DELTA = 1e-5
NOTHING: Mapping[str, Any] = {}


@pytest.fixture(autouse=True)
def nothing_is_left_from_another_test() -> Iterator[None]:
    yield
    node_module._own.cache_clear()
    node_module._algorithm.cache_clear()


def configured(
    algorithm: str = "fedavg", settings: Mapping[str, Any] = NOTHING, clients: int = CLIENTS
) -> Config:
    options = {"algorithm": algorithm, "clients": clients}
    return resolve(options=options, settings={**SETTINGS, **settings})


def own_config(algorithm: str = "fedavg", settings: Mapping[str, Any] = NOTHING) -> Config:
    return configured(algorithm, {**OWN, **settings}, clients=2)


def broadcast(config: Config) -> Records:
    """Returns what clients get in a first round."""
    info = described(config.data)
    model = build_model(config.model, info.shape, len(info.classes))
    algorithm = build_algorithm(config, model)
    return algorithm.broadcast(start(algorithm, config.seed).state)


def first(config: Config, federation: str = A) -> Job:
    return Job(federation, config, round=1, download=broadcast(config))


def npz(path: Path, num: int = 20, seed: int = 0, **parts: Any) -> str:
    """Writes as many images of each class, of which those of the ill are brighter."""
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
    """Returns a node with data of its own."""
    data = npz(tmp_path / f"own{client}.npz", seed=client, **parts)
    return Node(Settings(client, tmp_path / f"node{client}", "lesions", data))


def same(one: Reply, two: Reply) -> bool:
    return (
        to_bytes(one.upload) == to_bytes(two.upload)
        and one.client == two.client
        and one.metrics == two.metrics
    )


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a test fail that reads examples."""

    def never(*_: object) -> Any:
        raise AssertionError("no example may be read")

    monkeypatch.setattr("feddm.flower.node._own", never)


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "policy.toml"
    monkeypatch.setenv("FEDDM_POLICY", str(file))
    return file


class TestSettings:
    def test_all_of_them(self, tmp_path: Path) -> None:
        given = {
            "partition-id": 1,
            "num-partitions": 3,
            "folder": str(tmp_path),
            "dataset": "lesions",
            "data": "/data/own.npz",
        }
        assert settings_of(given) == Settings(1, tmp_path, "lesions", "/data/own.npz", 3)

    def test_a_number_is_enough(self) -> None:
        settings = settings_of({"partition-id": 12})
        nodes = user_data_path("feddm") / "nodes"
        assert settings == Settings(12, nodes / "client_000012", "", "", None)

    def test_home_is_understood(self) -> None:
        settings = settings_of({"partition-id": 0, "data": "~/data", "folder": "~/node"})
        assert settings.data == str(Path.home() / "data")
        assert settings.folder == Path.home() / "node"

    def test_the_folder_of_own_data_does_not_depend_on_the_number_of_the_client(self) -> None:
        # Else what was spent of them would be forgotten in the next federation.
        def folder(client: int, data: str) -> Path:
            given = {"partition-id": client, "dataset": "lesions", "data": data}
            return settings_of(given).folder

        assert folder(0, "/data/a") == folder(5, "/data/a") == folder(0, "/data/a/")
        assert folder(0, "/data/a") != folder(0, "/data/b")

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({}, "lacks partition-id, its number from 0: --node-config 'partition-id=0'"),
            ({"partition-id": -1}, "lacks partition-id, .* got -1"),
            ({"partition-id": "0"}, "lacks partition-id, .* got '0'"),
            ({"partition-id": True}, "lacks partition-id, .* got True"),
            ({"partition-id": 1.0}, "lacks partition-id, .* got 1.0"),
            ({"partition_id": 0}, "unknown key partition_id .*; known: partition-id, num-"),
            ({"num-partitions": 0}, "num-partitions .* above its partition-id, got 0"),
            ({"num-partitions": 2}, "num-partitions .* above its partition-id, got 2"),
            ({"num-partitions": "3"}, "num-partitions .* got '3'"),
            ({"num-partitions": True}, "num-partitions .* got True"),
            ({"dataset": "lesions"}, "lacks data, where its lesions is"),
            ({"dataset": "mnist", "data": "x"}, "mnist is a known set: leave it out"),
            ({"dataset": "../x", "data": "x"}, "a name without slashes, got '../x'"),
        ],
    )
    def test_mistakes(self, given: dict[str, Any], says: str) -> None:
        number = {} if not given or "partition-id" in given else {"partition-id": 2}
        with pytest.raises(ConfigError, match=says):
            settings_of(number | given)


class TestKnownData:
    """A node with a part of a known data set gives the bits of a client in process."""

    @pytest.fixture
    def nodes(self, tmp_path: Path) -> list[Node]:
        return [Node(Settings(client, tmp_path / str(client))) for client in range(CLIENTS)]

    @pytest.mark.parametrize("algorithm", ["fedavg", "feddm", "fednova"])
    def test_a_round_has_the_same_bits(self, nodes: list[Node], algorithm: str) -> None:
        config = configured(algorithm, {"seed": 5})
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
                for _ in range(2):  # asked again, it begins where it began
                    reply, remembers = node.work(job)
                    assert same(reply, expected)
                    assert remembers
                engine.commit([1])
        # Without its memory it would be something else.
        forgetful = Job(A, config, round=3, download=download)
        assert not same(node.work(forgetful)[0], expected)

    def test_a_memory_that_is_gone_is_told(self, nodes: list[Node]) -> None:
        config = configured("scaffold")
        job = Job(A, config, round=2, memory=1, download=broadcast(config))
        with pytest.raises(EngineError, match="memory of round 1 is not on this node any more"):
            nodes[0].work(job)

    def test_a_federation_with_another_name_is_refused_before_the_work(
        self, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("feddm.flower.node.perform", None)
        with pytest.raises(EngineError, match="32 hexadecimal digits"):
            nodes[0].work(first(configured(), "../x"))

    def test_hello_says_who_it_is(self, nodes: list[Node]) -> None:
        assert [node.hello(Job(A, configured())) for node in nodes] == [0, 1, 2]

    def test_there_are_as_many_clients_as_the_server_says(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is client 3, and the federation has 3 from 0"):
            Node(Settings(3, tmp_path)).hello(Job(A, configured()))
        with pytest.raises(ConfigError, match="one of 4, and the federation has 3 clients"):
            Node(Settings(0, tmp_path, clients=4)).hello(Job(A, configured()))
        assert Node(Settings(0, tmp_path, clients=3)).hello(Job(A, configured())) == 0

    def test_a_data_folder_of_the_server_is_not_looked_for(self, tmp_path: Path) -> None:
        config = configured(
            "fedavg", {"data.name": "mnist", "data.dir": "/nowhere/of/the/server"}
        )
        node = Node(Settings(0, tmp_path, data=str(tmp_path)))
        with pytest.raises(DataError) as caught:
            node.hello(Job(A, config))
        assert str(tmp_path) in str(caught.value)
        assert "server" not in str(caught.value)

    def test_what_is_held_out_is_judged_and_not_learned(self, nodes: list[Node]) -> None:
        config = configured("fedavg", {"data.holdout": 0.25})
        setup, node = build(configured("fedavg")), nodes[2]
        own = node._own(config)
        size = len(setup.shards[2])
        assert len(own.held_out) == round(size / 4)
        assert len(own.train) == size - round(size / 4)
        # Both together are its part.
        together = torch.cat([own.train.x, own.held_out.x]).flatten(1).tolist()
        whole = setup.dataset.train.x[torch.from_numpy(setup.shards[2])].flatten(1).tolist()
        assert sorted(together) == sorted(whole)

        job = first(config)
        expected = evaluate(setup.algorithm.model, job.download["params"], own.held_out)
        assert node.judge(job) == SiteRecord(
            2, expected.accuracy, expected.balanced_accuracy, expected.loss
        )

    def test_nothing_held_out_is_nothing_to_judge_by(self, nodes: list[Node]) -> None:
        with pytest.raises(DataError, match="holds out no examples"):
            nodes[0].judge(first(configured()))


class TestOwnData:
    def test_two_nodes_learn_each_from_its_own(self, tmp_path: Path) -> None:
        config = own_config()
        job = first(config)
        info = described(config.data)
        algorithm = build_algorithm(config, build_model(config.model, info.shape, 2))
        for client in (0, 1):
            node = owner(tmp_path, client)
            assert node.hello(Job(A, config)) == client
            reply, _ = node.work(job)
            examples = read_own(Path(node.settings.data), info)
            task = Task(client, 1, config.seed, job.download)
            expected, _ = perform(algorithm, task, examples, {}, ignore)
            assert to_bytes(reply.upload) == to_bytes(expected.upload)

    def test_feddm_on_own_data(self, tmp_path: Path) -> None:
        config = own_config("feddm", {"synthesis.images_per_class": 3})
        reply, _ = owner(tmp_path).work(first(config))
        # Three images of each class, numbered as the server does.
        assert reply.metrics["images"] == 6
        assert reply.upload["examples"]["y"].unique().tolist() == [0, 1]

    def test_data_that_a_program_reads(self, tmp_path: Path) -> None:
        config = own_config("fedavg", {"data.name": "own"})
        examples = read_own(Path(npz(tmp_path / "own.npz")), described(config.data))
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
            (torch.zeros(0, 1, 8, 8).byte(), [], "there are no images"),
            (torch.zeros(2, 1, 8, 8).byte(), [0], "one class number for each of 2 images"),
            (torch.zeros(2, 1, 8, 8).byte(), [0, -1], "must be from 0 to 1, got -1 to 0"),
            (
                torch.zeros(2, 1, 8, 8).byte(),
                [0, 2],
                "must be from 0 to 1, got 0 to 2",
            ),
            (torch.zeros(2, 1, 8, 8).byte(), [0.5, 1.0], "one class number for each"),
        ],
    )
    def test_what_a_program_reads_is_checked(
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
                "a class 'fine', and lesions has well, ill",
            ),
            ({"x": np.zeros((20, 9, 9), np.uint8)}, "9 x 9 x 1 .* where lesions has 8 x 8 x 1"),
        ],
    )
    def test_other_classes_and_sizes_are_refused(
        self, tmp_path: Path, parts: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(DataError, match=says):
            owner(tmp_path, **parts).hello(Job(A, own_config()))

    @pytest.mark.usefixtures("no_data")
    @pytest.mark.parametrize("ask", ["hello", "work", "judge"])
    def test_a_server_that_wants_other_data_is_refused(self, tmp_path: Path, ask: str) -> None:
        def asked(node: Node, config: Config) -> None:
            getattr(node, ask)(first(config))

        with pytest.raises(ConfigError, match="has lesions, and the server asks for digits"):
            asked(owner(tmp_path), configured())
        with pytest.raises(ConfigError, match="has lesions, and the server asks for moles"):
            asked(owner(tmp_path), own_config("fedavg", {"data.name": "moles"}))
        known = Node(Settings(0, tmp_path / "node"))
        with pytest.raises(
            ConfigError, match="a part of a known data set, and the server asks"
        ):
            asked(known, own_config())
        # The name is the owner's: there is a ledger for each, and perhaps a policy.
        program = Node(Settings(0, tmp_path / "node"), lambda: (torch.zeros(0), torch.zeros(0)))
        with pytest.raises(ConfigError, match="has own, and the server asks for lesions"):
            asked(program, own_config())

    def test_holding_out_everything_leaves_nothing_to_learn(self, tmp_path: Path) -> None:
        node = owner(tmp_path, num=2)
        with pytest.raises(
            DataError, match=r"data\.holdout = 0\.8 of 2 examples leaves nothing"
        ):
            node.hello(Job(A, own_config("fedavg", {"data.holdout": 0.8})))


@pytest.mark.usefixtures("no_data")
class TestPolicy:
    """The machine's policy is asked before any example is read."""

    @pytest.mark.parametrize("ask", ["hello", "work", "judge"])
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("epsilon = 4", "would have spent epsilon inf"),
            ("mechanisms = ['features']", "takes part in features alone, not in none"),
            ("noise_multiplier = 1", "noise multiplier of at least 1, got 0"),
            ("algorithms = ['feddm']", "takes part in feddm alone, not in fedavg"),
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
        with pytest.raises(BudgetError, match="gradients alone, not in features"):
            Node(Settings(0, tmp_path)).work(first(configured("feddm", PRIVATE)))

    def test_another_unit(self, tmp_path: Path, policy: Path) -> None:
        policy.write_text("units = ['group']")
        with pytest.raises(BudgetError, match="group alone, not in example"):
            owner(tmp_path).work(first(own_config("feddm", PRIVATE)))

    def test_too_little_noise(self, tmp_path: Path, policy: Path) -> None:
        policy.write_text("noise_multiplier = 21")
        with pytest.raises(BudgetError, match="at least 21, got 20"):
            Node(Settings(0, tmp_path)).hello(Job(A, configured("feddm", PRIVATE)))

    def test_the_limits_of_its_own_data(self, tmp_path: Path, policy: Path) -> None:
        policy.write_text("[datasets.lesions]\nalgorithms = ['real']")
        with pytest.raises(BudgetError, match="real alone, not in fedavg"):
            owner(tmp_path).hello(Job(A, own_config()))

    def test_one_that_cannot_be_read(self, tmp_path: Path, policy: Path) -> None:
        policy.write_text("epsilom = 4")
        with pytest.raises(LedgerError, match="unknown key epsilom"):
            Node(Settings(0, tmp_path)).hello(Job(A, configured()))

    def test_secrets_for_tests(self, tmp_path: Path) -> None:
        config = configured("feddm", PRIVATE | {"privacy.test_secret": "open"})
        with pytest.raises(BudgetError, match="no secrets for tests"):
            Node(Settings(0, tmp_path)).hello(Job(A, config))

    @pytest.mark.parametrize("ask", ["hello", "work"])
    def test_under_privacy_no_share_is_held_out(self, tmp_path: Path, ask: str) -> None:
        """Whether a share leaves something to learn would tell how many examples there are."""
        config = own_config("feddm", PRIVATE | {"data.holdout": 0.99})
        with pytest.raises(ConfigError, match=r"data\.holdout must be 0 with privacy"):
            getattr(owner(tmp_path, num=2), ask)(first(config))

    def test_under_privacy_nobody_judges(self, tmp_path: Path) -> None:
        config = configured("feddm", PRIVATE | {"data.holdout": 0.2})
        with pytest.raises(BudgetError, match="under privacy, a client does not say"):
            Node(Settings(0, tmp_path)).judge(first(config))


class TestPrivacy:
    CONFIG = own_config("feddm", PRIVATE | {"synthesis.networks": 2})

    def test_the_cost_of_own_data_is_on_the_node_and_adds_up(self, tmp_path: Path) -> None:
        node = owner(tmp_path)
        reply, _ = node.work(first(self.CONFIG))
        assert dict(reply.metrics) == {
            "epsilon": pytest.approx(epsilon([Released(2, 20.0)], DELTA))
        }
        assert reply.seconds == 0.0  # which could tell of examples
        # A second federation, in which it has another number.
        moved = Node(Settings(1, node.settings.folder, "lesions", node.settings.data))
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

    def test_the_same_answer_again_costs_nothing(self, tmp_path: Path) -> None:
        node = owner(tmp_path)
        one, two = (node.work(first(self.CONFIG))[0] for _ in range(2))
        assert same(one, two)

    def test_a_policy_holds_over_federations(self, tmp_path: Path, policy: Path) -> None:
        enough = epsilon([Released(4, 20.0)], DELTA) * 1.001
        policy.write_text(f"epsilon = {enough}\ndelta = {DELTA}\n")
        node = owner(tmp_path)
        node.work(first(self.CONFIG, A))
        node.work(first(self.CONFIG, B))
        with pytest.raises(BudgetError, match=r"may spend .*policy\.toml"):
            node.work(first(self.CONFIG, "c" * 32))

    def test_other_data_of_the_same_name_pay_as_well(self, tmp_path: Path) -> None:
        node = owner(tmp_path)
        node.work(first(self.CONFIG))
        # Nobody knows which examples are in both files, so all may be.
        more = npz(tmp_path / "more.npz", num=30)
        changed = Node(Settings(0, node.settings.folder, "lesions", more))
        reply, _ = changed.work(first(self.CONFIG, B))
        assert reply.metrics["epsilon"] == pytest.approx(epsilon([Released(4, 20.0)], DELTA))

    def test_parts_of_a_known_set_share_the_ledger_of_the_machine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("feddm.flower.node.ledger_root", lambda: tmp_path / "ledgers")
        config = configured("feddm", PRIVATE | {"synthesis.networks": 2})
        for client in (0, 1):
            reply, _ = Node(Settings(client, tmp_path / str(client))).work(first(config))
            # An example is with one of them, so they do not add up.
            one_round = epsilon([Released(2, 20.0)], DELTA)
            assert reply.metrics["epsilon"] == pytest.approx(one_round)
        (split,) = Ledger(tmp_path / "ledgers/digits").splits()
        assert sorted(client.name for client in split.iterdir()) == [
            "client_000000",
            "client_000001",
        ]

    def test_a_budget_without_noise_is_refused(self, tmp_path: Path) -> None:
        # A server is to work out the noise; one that does not gets nothing.
        config = own_config("feddm", {"privacy.epsilon": 4.0})
        with pytest.raises(ConfigError, match=r"privacy\.noise_multiplier is missing"):
            owner(tmp_path).work(Job(A, config, round=1))
        assert not (tmp_path / "node0").exists()

    def test_a_server_cannot_spend_more_than_its_budget(self, tmp_path: Path) -> None:
        config = own_config("feddm", PRIVATE | {"privacy.epsilon": 0.01})
        with pytest.raises(BudgetError, match=r"may spend 0\.01"):
            owner(tmp_path).work(first(config))

    def test_an_error_is_told_without_its_text(
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

    def test_groups_of_own_data_can_be_protected(self, tmp_path: Path) -> None:
        config = own_config("feddm", PRIVATE | {"privacy.unit": "group"})
        with pytest.raises(ConfigError, match="lesions does not say which examples belong"):
            owner(tmp_path).work(first(config))
        grouped = owner(tmp_path, group=np.arange(20) // 4)
        node_module._own.cache_clear()
        reply, _ = grouped.work(first(config))
        assert math.isfinite(reply.metrics["epsilon"])

    def test_a_public_number_of_examples_is_needed(self, tmp_path: Path) -> None:
        settings = {**PRIVATE, "privacy.mechanism": "gradients", "data.own.examples": 0}
        config = own_config("fedavg", settings)
        with pytest.raises(ConfigError, match=r"data\.own\.examples is missing"):
            owner(tmp_path).hello(Job(A, config))
