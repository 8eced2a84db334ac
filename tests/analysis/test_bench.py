import math
from dataclasses import asdict

import pytest

from feddm.algorithms.feddm import FedDMSettings
from feddm.analysis import bench
from feddm.analysis.bench import BenchReport, examples, in_turn, measure, median_ratio
from feddm.config.resolve import resolve

WIDTH, NUM, CLASSES = 4, 512, 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that tasks advance: the only item of a list."""
    now = [0.0]
    monkeypatch.setattr("feddm.analysis.bench.time.perf_counter", lambda: now[0])
    return now


def test_tasks_are_measured_in_turn(clock: list[float]) -> None:
    done: list[str] = []

    def taking(name: str, seconds: float) -> None:
        done.append(name)
        clock[0] += seconds + len(done)  # it becomes slower and slower

    seconds = in_turn({"a": lambda: taking("a", 0.5), "b": lambda: taking("b", 10)}, repeats=3)
    assert done == ["a", "b", "a", "b", "a", "b"]
    assert seconds == {"a": [1.5, 3.5, 5.5], "b": [12.0, 14.0, 16.0]}


def test_one_outlier_does_not_change_the_median_ratio() -> None:
    # Ratios 2, 20 and 2.5; the ratio of the medians would be 30 / 10.
    assert median_ratio([20.0, 200.0, 30.0], [10.0, 10.0, 12.0]) == 2.5
    assert median_ratio([1.0, 4.0], [1.0, 2.0]) == 1.5
    with pytest.raises(ValueError, match="shorter"):
        median_ratio([1.0, 2.0], [1.0])


def test_examples_are_balanced() -> None:
    data = examples(10, 3)
    assert data.x.shape == (10, 3, 32, 32)
    assert [data.y.tolist().count(label) for label in range(4)] == [4, 3, 3, 0]


@pytest.fixture(scope="module")
def report() -> BenchReport:
    """Measures everything at the smallest possible size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "CLIENT", (NUM, CLASSES))
        patch.setattr(bench, "PASS_FLOPS", 1.0)
        patch.setattr(bench, "EQUAL_CLIENT", 2)
        patch.setattr(bench, "SMALL_CLIENTS", 20)
        patch.setattr(bench, "ROUND", 1000)
        patch.setattr(bench, "WORKERS", 1)
        told: list[str] = []
        found = measure(WIDTH, repeats=1, compile_=False, tick=told.append)
    assert len(told) == 6
    return found


class TestMeasure:
    """Holds on every machine, however busy."""

    def test_kernels(self, report: BenchReport) -> None:
        assert report.compiler == "not asked for"
        assert [(kernel.mode, kernel.name) for kernel in report.kernels] == [
            ("eager", "forward"),
            ("eager", "images"),
            ("eager", "weights"),
        ]
        # By hand, per image: the products of the convolutions and of the last layer; twice as
        # many back to the images, three times as many back to the weights, but for the first
        # layer.
        first = 2 * 4 * 1024 * 27
        forward = first + 2 * 4 * 36 * (256 + 64) + 2 * 10 * 64
        operations = (forward, 2 * forward, 3 * forward - first)
        for kernel, each in zip(report.kernels, operations, strict=True):
            assert kernel.gflops == pytest.approx(kernel.images_per_second * each / 1e9)
            assert kernel.share > 0
        assert report.sgemm_gflops > 0

    def test_updates(self, report: BenchReport) -> None:
        literal, quick, fedavg = report.updates
        assert [update.name for update in report.updates] == ["literal", "quick", "fedavg"]
        assert quick.ratio == 1
        assert all(update.ratio > 0 and update.seconds > 0 for update in report.updates)
        # The paper's: 1000 steps, each with 256 real and ten synthetic images per class.
        assert (literal.forward, literal.backward) == (1000 * 2 * 256, 1000 * 2 * 10)
        assert (fedavg.forward, fedavg.backward) == (0, 10 * NUM)
        settings = resolve(preset="quick", options={"dataset": "cifar10"}).algorithm
        assert isinstance(settings, FedDMSettings)
        synthesis = settings.synthesis
        assert isinstance(synthesis.networks, int)
        assert isinstance(synthesis.real_batch, int)
        assert quick.forward == synthesis.networks * 2 * min(256, synthesis.real_batch)
        assert quick.backward == synthesis.steps * 2 * settings.images_per_class
        assert quick.measured == "all"
        assert literal.settings == "1000 steps, a new network each, 256 real images a class"

    def test_bytes(self, report: BenchReport) -> None:
        literal, _, fedavg = report.updates
        # Twenty images of 3 x 32 x 32 floats, each with a one-byte label.
        assert literal.bytes_up == 20 * (4 * 3072 + 1)
        # The parameters, and the number of examples as a 64-bit integer.
        blocks = 4 * 27 + 4 + 2 * (4 * 36 + 4) + 3 * 8
        assert fedavg.bytes_up == 4 * (blocks + 10 * 64 + 10) + 8

    def test_the_rest(self, report: BenchReport) -> None:
        assert 0 < report.projection_share < 1
        assert 0 < report.private_ratio < 100
        assert (report.workers.workers, report.workers.clients) == (1, 20)
        assert report.workers.speedup > 0
        assert report.memory.workers_mb == 0  # no worker processes
        assert report.memory.total_mb == report.memory.server_mb
        assert report.memory.server_mb > 0 or math.isnan(report.memory.server_mb)
        assert all(report.machine.values())
        assert asdict(report)["width"] == WIDTH
