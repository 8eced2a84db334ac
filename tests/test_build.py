from typing import Any

import pytest
import torch

from feddm.acceleration import Accelerated
from feddm.build import Setup, build, build_dataset, fingerprint, num_workers
from feddm.config import DataConfig, RuntimeConfig, resolve
from feddm.data.catalog import describe
from feddm.data.datasets import Dataset, load
from feddm.data.examples import Examples
from feddm.errors import ConfigError
from feddm.models import ConvNet
from feddm.tensors import CPU


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


def test_fingerprint_knows_data_and_split() -> None:
    prints = [
        fingerprint(build(resolve(options=options)))
        for options in ({}, {}, {"seed": 1}, {"alpha": 0.4})
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_workers_are_never_more_than_clients() -> None:
    assert num_workers(RuntimeConfig(workers=8), 3) == 3
    assert num_workers(RuntimeConfig(workers=2), 3) == 2
    assert num_workers(RuntimeConfig(), 1) == 1


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
        monkeypatch.setattr("feddm.build.compiler_problem", lambda device: None)

    @pytest.fixture
    def compiler_is_broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("feddm.build.compiler_problem", lambda device: self.PROBLEM)

    @pytest.fixture
    def thousand_images(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A CIFAR10 of a thousand images, all black."""
        x = torch.zeros(1000, 3, 32, 32, dtype=torch.uint8)
        examples = Examples(x, torch.arange(1000) % 10)
        dataset = Dataset(describe("cifar10"), examples, examples)
        monkeypatch.setattr("feddm.build.load", lambda name, folder: dataset)

    @staticmethod
    def built(compile_: str, **options: Any) -> Setup:
        settings = {"runtime.device": "cpu", "local.epochs": 1, "model.depth": 3}
        return build(resolve(options=options | {"compile": compile_}, settings=settings))

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
        monkeypatch.delattr("feddm.build.compiler_problem")
        assert not self.built("auto").compiled

    @pytest.mark.usefixtures("thousand_images")
    def test_auto_compiles_where_it_pays(self) -> None:
        # 8e12 operations are 26.3 such rounds.
        assert not self.large("auto", rounds=26).compiled
        assert self.large("auto", rounds=27).compiled
        # Nor do the bits of a result depend on the number of workers.
        assert self.large("auto", rounds=27, workers=2).compiled

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
        assert "goes without" in notice

    @pytest.mark.usefixtures("compiler_is_broken")
    def test_a_broken_compiler_is_nothing_to_a_run_that_needs_none(self) -> None:
        assert self.built("auto").notices == ()
        assert self.built("off").notices == ()
