from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feddm.algorithms.costs import Work
from feddm.algorithms.fedavg import FedAvg
from feddm.config.resolve import flat, resolve
from feddm.config.schema import Config, DataConfig, RuntimeConfig
from feddm.core.compile import Accelerated
from feddm.core.examples import Examples
from feddm.core.models import ConvNet, Model
from feddm.core.tensors import CPU
from feddm.data.catalog import describe, described
from feddm.data.datasets import Dataset, fingerprint, load
from feddm.errors import ConfigError
from feddm.runtime.build import (
    LocalSetup,
    Setup,
    build,
    build_algorithm,
    build_dataset,
    build_device,
    build_server,
    check_config,
    num_workers,
    work_of,
)
from tiny import SETTINGS, run_tiny


def fingerprint_of(setup: LocalSetup) -> str:
    return fingerprint(setup.dataset, setup.shards)


def rows(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_validation_is_held_out_of_training_and_is_not_the_test_set() -> None:
    whole = load("digits")
    held = build_dataset(DataConfig(name="digits", validation=0.1))
    assert len(held.test) == round(0.1 * len(whole.train))
    assert len(held.train) + len(held.test) == len(whole.train)
    assert rows(held.train.x) | rows(held.test.x) == rows(whole.train.x)
    assert len(rows(held.train.x) & rows(held.test.x)) <= 1  # two digits of the set are alike


def test_validation_is_the_same_for_every_seed() -> None:
    first, second = (
        build(resolve(options={"seed": seed}, settings={"data.validation": 0.2})).dataset
        for seed in (0, 1)
    )
    assert torch.equal(first.test.x, second.test.x)


def test_validation_must_leave_something() -> None:
    with pytest.raises(ConfigError, match="must leave some on both sides"):
        build_dataset(DataConfig(name="digits", validation=1e-6))


@pytest.mark.parametrize(
    ("scheme", "classes"),
    [("dirichlet", 10), ("dirichlet-plain", 10), ("iid", 10), ("classes", 3)],
)
def test_every_scheme_can_be_built(scheme: str, classes: int) -> None:
    settings = {"partition.scheme": scheme, "partition.classes_per_client": 3}
    setup = build(resolve(options={"clients": 5}, settings=settings))
    assert sum(map(len, setup.shards)) == 1438
    labels = setup.dataset.train.y.numpy()
    assert max(len(set(labels[shard])) for shard in setup.shards) <= classes


def test_fingerprint_under_a_key_is_another() -> None:
    setup = build(resolve())
    prints = {fingerprint(setup.dataset, setup.shards, key) for key in (b"", b"one", b"two")}
    assert len(prints) == 3


class TestDevice:
    def test_private_models_are_computed_on_the_cpu(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert build_device(resolve()).type == "cuda"
        assert build_device(resolve(options={"epsilon": 4.0})).type == "cpu"

    @pytest.mark.parametrize("device", ["cuda", "mps"])
    def test_others_are_refused(self, device: str) -> None:
        with pytest.raises(ConfigError, match=r"device must be cpu with privacy, got"):
            check_config(resolve(options={"epsilon": 4.0, "device": device}))


def test_fingerprint_knows_groups() -> None:
    setup = build(resolve())
    train = setup.dataset.train
    prints = set()
    for group in (None, torch.zeros(len(train)), torch.ones(len(train))):
        data = replace(setup.dataset, train=replace(train, group=group))
        prints.add(fingerprint(data, setup.shards))
    assert len(prints) == 3


def test_fingerprint_knows_data_and_split() -> None:
    prints = [
        fingerprint_of(build(resolve(options=options)))
        for options in ({}, {}, {"seed": 1}, {"alpha": 0.4})
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_workers_are_never_more_than_clients() -> None:
    assert num_workers(RuntimeConfig(workers=8), 3) == 3
    assert num_workers(RuntimeConfig(workers=2), 3) == 2
    assert num_workers(RuntimeConfig(), 1) == 1


# A setting with a value that is not the default.
REACHED: dict[str, Any] = {
    "synthesis.distance": "squared",
    "coding": "webp",
    "synthesis.start": "noise",
    "synthesis.augment": False,
    "server.augment": False,
    "server.schedule": "constant",
    "server.replay": 0,
    "server.batch_size": 17,
    "server.weighting": "examples",
    "local.augment": True,
}


def owner(key: str) -> str:
    """Returns the name of an algorithm that has a setting."""
    return "fedavg" if key.startswith("local.") else "feddm"


def algorithm_with(name: str, settings: dict[str, Any]) -> Any:
    config = resolve(options={"algorithm": name}, settings=settings)
    return build_algorithm(config, ConvNet((1, 8, 8), 10))


@pytest.mark.parametrize(("key", "value"), REACHED.items())
def test_a_setting_reaches_the_algorithm(key: str, value: Any) -> None:
    default, changed = (
        flat(algorithm_with(owner(key), settings).settings.model_dump())[key]
        for settings in ({}, {key: value})
    )
    assert changed == value
    assert default != value


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("server.augment", True, "augmentation.shift", 0.25),
        ("server.augment", False, "augmentation", None),
        ("server.schedule", "cosine", "schedule", "cosine"),
        ("server.batch_size", 17, "batch_size", 17),
        ("local.augment", True, "augmentation.shift", 0.25),
        ("local.augment", False, "augmentation", None),
        ("local.batch_size", 17, "batch_size", 17),
    ],
)
def test_a_setting_reaches_the_training(
    key: str, value: Any, field: str, expected: Any
) -> None:
    algorithm = algorithm_with(owner(key), {key: value, "augmentation.shift": 0.25})
    if isinstance(algorithm, FedAvg):
        sgd = algorithm.local_sgd
    else:
        sgd = algorithm.settings.server.sgd(algorithm.context.augmentation)
    assert attrgetter(field)(sgd) == expected


@pytest.mark.parametrize(("learn", "coding"), [("client", "uint8"), ("server", "float32")])
def test_images_that_do_not_travel_are_not_rounded(learn: str, coding: str) -> None:
    settings = {"privacy.learn": learn, "coding": "uint8"}
    config = resolve(
        options={"privacy": "features"}, settings=settings | {"privacy.noise_multiplier": 1.0}
    )
    built: Any = build_algorithm(config, ConvNet((1, 8, 8), 10))
    assert built.coding.type == coding


@pytest.mark.parametrize(("key", "value"), REACHED.items())
def test_a_setting_changes_what_comes_out(key: str, value: Any) -> None:
    base, changed = (
        run_tiny(algorithm=owner(key), set=SETTINGS | change) for change in ({}, {key: value})
    )
    params = [run.model.params for run in (base, changed)]
    assert not all(torch.equal(params[0][name], params[1][name]) for name in params[0])
    bytes_up = [run.records[-1].bytes_up for run in (base, changed)]
    assert (bytes_up[1] < bytes_up[0]) == (key == "coding")


class TestRuntime:
    def test_a_small_run_is_plain(self) -> None:
        setup = build(resolve(settings={"runtime.device": "cpu"}))
        assert isinstance(setup.algorithm.model, ConvNet)
        assert (setup.device, setup.compiled, setup.notices) == (CPU, False, ())

    def test_precision(self) -> None:
        settings = {"runtime.device": "cpu", "runtime.precision": "bfloat16"}
        model = build(resolve(settings=settings)).algorithm.model
        assert isinstance(model, Accelerated)
        assert (model.compiled, model.precision) == (False, "bfloat16")

    def test_float16_is_not_for_a_cpu(self) -> None:
        settings = {"runtime.device": "cpu", "runtime.precision": "float16"}
        with pytest.raises(ConfigError, match=r"runtime\.precision float16 needs a GPU"):
            build(resolve(settings=settings))

    @pytest.mark.parametrize(
        ("key", "allowed"),
        [
            ("device", "auto, cpu, cuda, mps"),
            ("compile", "auto, on, off"),
            ("precision", "float32, bfloat16, float16"),
        ],
    )
    def test_mistakes_list_what_there_is(self, key: str, allowed: str) -> None:
        message = f"^runtime.{key} must be one of {allowed}, got 'bogus'$"
        with pytest.raises(ConfigError, match=message):
            resolve(settings={f"runtime.{key}": "bogus"})


class TestCompile:
    """Nothing is compiled here: this is about who decides it, and how."""

    PROBLEM = "the compiler is on holiday"

    @pytest.fixture(autouse=True)
    def compiler_works(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("feddm.runtime.build.compiler_problem", lambda device: None)

    @pytest.fixture
    def compiler_is_broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("feddm.runtime.build.compiler_problem", lambda device: self.PROBLEM)

    @pytest.fixture
    def thousand_images(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A CIFAR10 of a thousand images, all black."""
        x = torch.zeros(1000, 3, 32, 32, dtype=torch.uint8)
        examples = Examples(x, torch.arange(1000) % 10)
        dataset = Dataset(describe("cifar10"), examples, examples)
        monkeypatch.setattr("feddm.runtime.build.load", lambda name, folder: dataset)

    @staticmethod
    def built(compile_: str, **options: Any) -> Setup:
        settings = {"runtime.device": "cpu", "local.epochs": 1, "model.depth": 3}
        return build(
            resolve(options=options | {"compile": compile_}, settings=settings, shared=True)
        )

    @staticmethod
    def large(compile_: str, rounds: int, workers: int = 1) -> Setup:
        """Every round, a thousand images pass forward and back: 3 * 1000 * 101,490,688."""
        return TestCompile.built(
            compile_,
            dataset="cifar10",
            algorithm="fedavg",
            width=128,
            clients=2,
            workers=workers,
            rounds=rounds,
        )

    def test_on_is_on_however_small(self) -> None:
        setup = self.built("on")
        assert setup.compiled
        assert isinstance(setup.algorithm.model, Accelerated)
        assert setup.algorithm.model.compiled
        assert isinstance(setup.algorithm.model.model, ConvNet)

    def test_auto_does_not_even_try_the_compiler_for_a_small_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr("feddm.runtime.build.compiler_problem")
        assert not self.built("auto").compiled

    @pytest.mark.usefixtures("thousand_images")
    def test_auto_compiles_where_it_pays(self) -> None:
        # 8e12 operations are 26.3 such rounds.
        assert not self.large("auto", rounds=26).compiled
        assert self.large("auto", rounds=27).compiled
        # Nor do the bits of a result depend on the number of workers.
        assert self.large("auto", rounds=27, workers=2).compiled

    @pytest.mark.parametrize(
        ("examples", "compiled"), [(0, False), (1000, False), (10**9, True)]
    )
    def test_auto_goes_by_what_is_said_of_data_that_only_nodes_have(
        self, examples: int, compiled: bool
    ) -> None:
        # Nobody need say it; then nothing is compiled.
        own = {"data.own.classes": ["a", "b"], "data.own.examples": examples}
        config = resolve(options={"algorithm": "fedavg", "dataset": "mine"}, settings=own)
        assert build_server(config, described(config.data), None).compiled is compiled

    @pytest.mark.usefixtures("thousand_images")
    def test_off_is_off_however_large(self) -> None:
        setup = self.large("off", rounds=1000)
        assert not setup.compiled
        assert isinstance(setup.algorithm.model, ConvNet)

    @pytest.mark.usefixtures("thousand_images", "compiler_is_broken")
    @pytest.mark.parametrize("compile_", ["auto", "on"])
    def test_a_broken_compiler_is_told_and_done_without(self, compile_: str) -> None:
        setup = self.large(compile_, rounds=27)
        assert not setup.compiled
        assert isinstance(setup.algorithm.model, ConvNet)
        (notice,) = setup.notices
        assert notice.endswith(self.PROBLEM)
        assert "continuing without it" in notice

    @pytest.mark.usefixtures("compiler_is_broken")
    def test_a_broken_compiler_is_nothing_to_a_run_that_needs_none(self) -> None:
        assert self.built("auto").notices == ()
        assert self.built("off").notices == ()


def test_what_is_compiled_says_nothing_about_private_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[Any] = []

    def watched(config: Config, model: Model, table: Any) -> Work:
        tables.append(table.tolist())
        return work_of(config, model, table)

    monkeypatch.setattr("feddm.runtime.build.work_of", watched)
    private = {"epsilon": 4.0, "ledger": str(tmp_path)}
    for options in (private, {}):
        for alpha in (0.1, 10.0):
            build(resolve(options={"clients": 3, "alpha": alpha} | options))
    assert tables[0] == tables[1]
    assert tables[2] != tables[3]
    # A third of 1,438 digits in ten classes.
    assert tables[0] == [[pytest.approx(1438 / 30)] * 10] * 3


@pytest.mark.parametrize("algorithm", ["feddm", "real", "fedavg"])
def test_half_of_the_clients_do_half_of_the_work(algorithm: str) -> None:
    model, table = ConvNet((1, 8, 8), 3), np.array([[12, 3, 0], [5, 40, 10]])
    all_, half = (
        work_of(resolve(options={"algorithm": algorithm, "participation": share}), model, table)
        for share in (1.0, 0.5)
    )
    assert half.clients.weight == all_.clients.weight / 2
    assert half.server.weight == all_.server.weight / 2
    assert all_.clients.weight + all_.server.weight > 0


def test_groups_need_data_that_know_them(tmp_path: Path) -> None:
    config = resolve(
        options={"epsilon": 4.0, "ledger": str(tmp_path)}, settings={"privacy.unit": "group"}
    )
    with pytest.raises(ConfigError, match="digits does not say which examples belong together"):
        build(config)
