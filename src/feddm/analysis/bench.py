"""Speed measurements, as ratios of tasks that alternate in one process.

Seconds on one machine say little about another machine, and little at all on a busy one. So
tasks are compared by running them in turn, several times; the result is the median ratio.
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddm.algorithms.base import Algorithm, ConfiguredAlgorithm, Context, Upload
from feddm.algorithms.fedavg import FedAvg, FedAvgSettings
from feddm.algorithms.feddm import FedDM
from feddm.algorithms.local_training import Training
from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.core.compile import accelerated, compiler_problem
from feddm.core.examples import Batch, Examples, Normalization
from feddm.core.flops import forward_flops
from feddm.core.models import CHUNK, ConvNet, Model
from feddm.core.seeding import generator
from feddm.core.tensors import num_bytes
from feddm.core.training import ball, ignore, mean_gradient
from feddm.privacy.noise import Secret
from feddm.privacy.release import Noise
from feddm.runtime.build import build_algorithm
from feddm.runtime.client import Task, threads
from feddm.runtime.local import InProcess

NORMALIZATION = Normalization((0.5,) * 3, (0.25,) * 3)
SHAPE, CLASSES = (3, 32, 32), 10  # CIFAR10's
CLIENT = (5000, 9)  # examples and classes of the client whose update is measured
LITERAL_STEPS = 1000
PASS_FLOPS = 30e9  # operations per measurement of a pass
EQUAL_CLIENT = 512  # examples of each of eight clients, for the speed-up of workers
SMALL_CLIENTS = 1000  # with four examples each, for the overhead per client
ROUND = 50_000  # examples of the round whose memory is measured
WORKERS = 2


@dataclass(frozen=True)
class Kernel:
    """Speed of a pass through the ConvNet.

    Args:
        mode: ``eager`` or ``compiled``.
        name: ``forward``, ``images`` (forward and back to the images) or ``weights`` (forward
            and back to the weights).
        images_per_second: Images per second.
        gflops: Billions of operations per second, in convolutions and matrix products; a
            multiply-add counts as two.
        share: `gflops` divided by what one thread reaches in a product of large matrices.
    """

    mode: str
    name: str
    images_per_second: float
    gflops: float
    share: float


@dataclass(frozen=True)
class ClientUpdate:
    """The work and upload of one client in a round.

    Args:
        name: ``literal``, ``quick`` or ``fedavg``.
        settings: Its settings, as text.
        forward: Number of images that pass forward only.
        backward: Number of images that pass forward and back.
        seconds: Time of the update.
        ratio: Time divided by that of ``quick``; the median over repeats.
        bytes_up: Size of the upload.
        measured: Which part was measured, if not all.
    """

    name: str
    settings: str
    forward: float
    backward: float
    seconds: float
    ratio: float
    bytes_up: int
    measured: str


@dataclass(frozen=True)
class Workers:
    """Speed-up and overhead of worker processes.

    Args:
        workers: Number of workers.
        speedup: Time with one worker divided by time with all, for eight equal clients.
        overhead_ms: Time per small client beyond its own computation.
        clients: Number of small clients.
        memory_few_mb: Memory of this process after a tenth of them.
        memory_all_mb: Memory of this process after all of them.
    """

    workers: int
    speedup: float
    overhead_ms: float
    clients: int
    memory_few_mb: float
    memory_all_mb: float


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory of a round with ten clients, 50,000 images and two workers, in MB.

    This is an upper bound: pages shared by several processes are counted in each.
    """

    server_mb: float
    workers_mb: float

    @property
    def total_mb(self) -> float:
        """Peak memory of all processes."""
        return self.server_mb + self.workers_mb


@dataclass(frozen=True)
class BenchReport:
    """All measurements."""

    machine: dict[str, str]
    width: int
    sgemm_gflops: float
    compiler: str
    kernels: tuple[Kernel, ...]
    updates: tuple[ClientUpdate, ...]
    projection_share: float
    workers: Workers
    memory: PeakMemory
    private_ratio: float = math.nan  # time of a private client divided by that of a plain one


def measure(
    width: int = 128,
    repeats: int = 3,
    compile_: bool = True,
    tick: Callable[[str], None] = print,
) -> BenchReport:
    """Measures everything; takes about ten minutes on two cores.

    Args:
        width: Width of the ConvNet, in channels.
        repeats: How often each comparison is measured.
        compile_: Whether to also measure compiled code, if the compiler works.
        tick: Called with the name of each measurement before it starts.
    """
    problem = compiler_problem() if compile_ else "not asked for"
    with threads(1):
        tick("matrix products and passes through the ConvNet")
        sgemm, kernels = _kernels(width, repeats, compiled=problem is None)
        tick("one client's update: the paper's, quick and FedAvg")
        updates = _updates(width, repeats, compiled=problem is None)
        tick("a server step")
        projection = _projection_share(width, repeats)
        tick("a private client")
        private = _private_ratio(width, repeats, compiled=problem is None)
    tick("worker processes")
    workers = _workers(repeats)
    tick("memory")
    return BenchReport(
        machine=machine(),
        width=width,
        sgemm_gflops=sgemm,
        compiler=problem or "works",
        kernels=kernels,
        updates=updates,
        projection_share=projection,
        workers=workers,
        memory=_memory(width, compiled=problem is None),
        private_ratio=private,
    )


def machine() -> dict[str, str]:
    """Returns the machine and the versions that the times depend on."""
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def in_turn(tasks: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Returns `repeats` times in seconds for each task, measured in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            begin = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def median_ratio(above: list[float], below: list[float]) -> float:
    """Returns the median of the ratios of times measured in turn.

    >>> median_ratio([4.0, 9.0, 2.0], [2.0, 3.0, 2.0])
    2.0
    """
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _kernels(width: int, repeats: int, compiled: bool) -> tuple[float, tuple[Kernel, ...]]:
    plain = ConvNet(SHAPE, CLASSES, width)
    params = plain.init(generator(0, "bench"))
    batch = Batch(torch.randn(CHUNK, *SHAPE), torch.arange(CHUNK) % CLASSES, None)
    forward = forward_flops(plain)
    # In the backward pass, the gradient of the inputs takes as many operations as the forward
    # pass, and so does that of the weights. Training needs no gradient of the first input.
    first = forward_flops(dataclasses.replace(plain, depth=1)) - 2 * CLASSES * width * 256
    flops = {"forward": forward, "images": 2 * forward, "weights": 3 * forward - first}
    times = {name: math.ceil(PASS_FLOPS / (CHUNK * each)) for name, each in flops.items()}
    modes = {"eager": plain} | (
        {"compiled": accelerated(plain, True, "float32")} if compiled else {}
    )

    size = 1024
    a, b = torch.randn(size, size), torch.randn(size, size)
    tasks: dict[str, Callable[[], object]] = {"sgemm": _repeated(lambda: a @ b, 5)}
    for mode, model in modes.items():
        for name, task in _pass_of(model, params, batch).items():
            tasks[f"{mode} {name}"] = _repeated(task, times[name])
    in_turn(tasks, 1)  # warm up and compile
    seconds = in_turn(tasks, 3 * repeats)
    gemm = [5 * 2 * size**3 / 1e9 / s for s in seconds["sgemm"]]
    kernels = []
    for mode in modes:
        for name, operations in flops.items():
            speeds = [CHUNK * times[name] / s for s in seconds[f"{mode} {name}"]]
            rates = [speed * operations / 1e9 for speed in speeds]
            kernels.append(
                Kernel(
                    mode,
                    name,
                    statistics.median(speeds),
                    statistics.median(rates),
                    median_ratio(rates, gemm),
                )
            )
    return statistics.median(gemm), tuple(kernels)


def _pass_of(
    model: Model, params: dict[str, Tensor], batch: Batch
) -> dict[str, Callable[[], object]]:
    def forward() -> object:
        with torch.no_grad():
            return model(params, batch.x)

    def images() -> object:
        x = batch.x.detach().requires_grad_()
        embedding, logits = model(params, x)
        return torch.autograd.grad(embedding.square().sum() + logits.square().sum(), x)

    return {
        "forward": forward,
        "images": images,
        "weights": lambda: mean_gradient(model, params, batch),
    }


def _repeated(task: Callable[[], object], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            task()

    return run


def examples(num: int, classes: int, seed: int = 0) -> Examples:
    """Returns noise in the shape of CIFAR10: speed does not depend on the content."""
    pixels = torch.randint(
        0, 256, (num, *SHAPE), dtype=torch.uint8, generator=generator(seed, "bench")
    )
    return Examples(pixels, torch.arange(num) % classes, NORMALIZATION)


def _updates(width: int, repeats: int, compiled: bool) -> tuple[ClientUpdate, ...]:
    num, classes = CLIENT
    data = examples(num, classes)
    table = torch.bincount(data.y, minlength=CLASSES)[None].numpy()
    model = accelerated(ConvNet(SHAPE, CLASSES, width), compiled, "float32")

    def config(preset: str, algorithm: str, **settings: Any) -> Config:
        options = {"algorithm": algorithm, "dataset": "cifar10", "width": width}
        return resolve(preset=preset, options=options, settings=settings)

    configs = {
        "literal": config("paper", "feddm", **{"synthesis.steps": LITERAL_STEPS}),
        # A client's first update: it has no earlier images yet.
        "quick": config("quick", "feddm", **{"server.replay": 0}),
        "fedavg": config("paper", "fedavg", **{"local.epochs": 10}),
    }
    # Every step costs the same, so a few steps of the long updates are enough.
    few = 3
    literal, shortest = (
        build_algorithm(config("paper", "feddm", **{"synthesis.steps": steps}), model)
        for steps in (few, 1)
    )
    quick = build_algorithm(configs["quick"], model)
    fedavg = build_algorithm(config("paper", "fedavg", **{"local.epochs": 1}), model)
    assert isinstance(fedavg, FedAvg)
    part = data.subset(torch.arange(2 * fedavg.local_sgd.batch_size))
    download = {"params": model.init(generator(0, "bench"))}
    bytes_up: dict[str, int] = {}

    def update(name: str, algorithm: Any, data: Examples) -> Callable[[], None]:
        def run() -> None:
            rng = generator(0, "bench")
            result = algorithm.local(download, data, {}, rng, ignore)
            bytes_up[name] = num_bytes(result.upload)

        return run

    update("literal", shortest, data)()  # warm up and compile
    update("fedavg", fedavg, part)()
    scale = {
        "literal": LITERAL_STEPS / few,
        "quick": 1.0,
        "fedavg": 10 * num / len(part),
    }
    seconds = in_turn(
        {
            "literal": update("literal", literal, data),
            "quick": update("quick", quick, data),
            "fedavg": update("fedavg", fedavg, part),
        },
        repeats,
    )
    measured = {
        "literal": f"{few} of {LITERAL_STEPS} steps",
        "quick": "all",
        "fedavg": f"{len(part)} of {10 * num} images",
    }
    updates = []
    for name, chosen in configs.items():
        whole = [scale[name] * s for s in seconds[name]]
        algorithm = build_algorithm(chosen, model)
        work = algorithm.passes(table).clients
        updates.append(
            ClientUpdate(
                name=name,
                settings=_settings(algorithm),
                forward=work.forward,
                backward=work.images + work.weights,
                seconds=statistics.median(whole),
                ratio=median_ratio(whole, seconds["quick"]),
                bytes_up=bytes_up[name],
                measured=measured[name],
            )
        )
    return tuple(updates)


def _settings(algorithm: ConfiguredAlgorithm) -> str:
    if isinstance(algorithm, FedAvg):
        sgd = algorithm.local_sgd
        return f"{sgd.epochs} epochs, batches of {sgd.batch_size}"
    assert isinstance(algorithm, FedDM)
    synthesis = algorithm.settings.synthesis
    networks = (
        "a new network each"
        if synthesis.networks == "fresh"
        else f"{synthesis.networks} networks"
    )
    return f"{synthesis.steps} steps, {networks}, {synthesis.real_batch} real images a class"


def _private_ratio(width: int, repeats: int, compiled: bool) -> float:
    """Returns the time of a private FedDM client divided by that of a plain one.

    Both do the quick preset's work for one network: it sees 256 examples per class, and ten
    steps follow.
    """
    model = accelerated(ConvNet(SHAPE, CLASSES, width), compiled, "float32")
    data = examples(256 * CLASSES, CLASSES)
    equal = {
        "synthesis.networks": 1,
        "synthesis.steps": 10,
        "synthesis.start": "noise",
        "synthesis.real_batch": "all",
        "synthesis.augment": False,
        "server.replay": 0,
    }
    noise = {
        "privacy.mechanism": "features",
        "privacy.noise_multiplier": 1.0,
        "privacy.learn": "client",  # by default the server does, and clients save the steps
    }
    options = {"dataset": "cifar10", "width": width}
    plain = build_algorithm(resolve(options=options, settings=equal), model)
    noisy = resolve(options=options, settings=equal | noise, shared=True)
    private = build_algorithm(noisy, model)
    download = {"params": model.init(generator(0, "bench"))}
    secret = Secret(bytes(32), for_tests=True)

    def update(algorithm: Algorithm) -> Callable[[], object]:
        return lambda: algorithm.local(
            download, data, {}, generator(0, "bench"), ignore, Noise(secret, 1, b"")
        )

    tasks = {"plain": update(plain), "private": update(private)}
    in_turn(tasks, 1)  # warm up and compile
    seconds = in_turn(tasks, repeats)
    return median_ratio(seconds["private"], seconds["plain"])


def _projection_share(width: int, repeats: int) -> float:
    """Returns the share of a server step that the projection into the ball takes."""
    model = ConvNet(SHAPE, CLASSES, width)
    center = model.init(generator(0, "bench"))
    params = {name: tensor + 1e-3 for name, tensor in center.items()}
    data = examples(256, CLASSES)
    batch = data[torch.arange(256)]
    project = ball(center, 1e-3)  # so small that it always projects
    tasks: dict[str, Callable[[], object]] = {
        "gradient": lambda: mean_gradient(model, params, batch),
        "projection": _repeated(lambda: project(params), 20),
    }
    in_turn(tasks, 1)
    seconds = in_turn(tasks, repeats)
    projection = [s / 20 for s in seconds["projection"]]
    step = [g + p for g, p in zip(seconds["gradient"], projection, strict=True)]
    return median_ratio(projection, step)


def _workers(repeats: int) -> Workers:
    model = ConvNet(SHAPE, CLASSES, 32)
    fedavg = FedAvg(FedAvgSettings(local=Training(epochs=1)), Context(model))
    download = {"params": model.init(generator(0, "bench"))}
    num = 8 * EQUAL_CLIENT
    equal, shards = examples(num, CLASSES), np.split(np.arange(num), 8)
    with (
        InProcess(fedavg, equal, shards, 1) as alone,
        InProcess(fedavg, equal, shards, WORKERS) as together,
    ):
        tasks = {
            "alone": lambda: _drain(alone, 8, download),
            "together": lambda: _drain(together, 8, download),
        }
        in_turn(tasks, 1)  # start the processes
        seconds = in_turn(tasks, repeats)
    clients = SMALL_CLIENTS
    small, shards = examples(4 * clients, CLASSES), np.split(np.arange(4 * clients), clients)
    with InProcess(fedavg, small, shards, WORKERS) as engine:
        _drain(engine, WORKERS, download)
        begin = time.perf_counter()
        own = _drain(engine, clients // 10, download)
        few = _resident_mb()
        own += _drain(engine, clients, download, first=clients // 10)
        wall = time.perf_counter() - begin
    return Workers(
        workers=WORKERS,
        speedup=median_ratio(seconds["alone"], seconds["together"]),
        overhead_ms=1000 * (WORKERS * wall - own) / clients,
        clients=clients,
        memory_few_mb=few,
        memory_all_mb=_resident_mb(),
    )


def _drain(engine: InProcess, clients: int, download: Any, first: int = 0) -> float:
    """Runs the clients and returns the seconds of their own computation."""
    tasks = (Task(client, 1, 0, download) for client in range(first, clients))
    return sum(reply.seconds for reply in engine.run(tasks, lambda client, fraction: None))


def _memory(width: int, compiled: bool) -> PeakMemory:
    """Measures a round of two steps; more steps would not need more memory."""
    options = {"dataset": "cifar10", "width": width}
    settings = {"synthesis.steps": 2, "synthesis.networks": 2, "server.epochs": 1}
    config = resolve(preset="quick", options=options, settings=settings)
    model = accelerated(ConvNet(SHAPE, CLASSES, width), compiled, "float32")
    algorithm = build_algorithm(config, model)
    state = algorithm.init(model.init(generator(0, "bench")))
    data, shards = examples(ROUND, CLASSES), np.split(np.arange(ROUND), 10)
    with InProcess(algorithm, data, shards, WORKERS) as engine:
        download = algorithm.broadcast(state)
        tasks = (Task(client, 1, 0, download) for client in range(10))
        uploads = [
            Upload(reply.client, algorithm.parse(reply.upload, download))
            for reply in engine.run(tasks, lambda client, fraction: None)
        ]
        with threads(1):
            algorithm.aggregate(state, uploads, generator(0, "bench"), ignore)
        workers = sum(_peak_mb(pid) for pid in engine.pids)
    return PeakMemory(server_mb=_peak_mb(os.getpid()), workers_mb=workers)


def _resident_mb() -> float:
    return _status_mb(os.getpid(), "VmRSS")


def _peak_mb(pid: int) -> float:
    return _status_mb(pid, "VmHWM")


def _status_mb(pid: int, key: str) -> float:
    """Returns a value from ``/proc/PID/status`` in MB; nan on systems without it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.nan
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
    return kilobytes * 1024 / 1e6


def processor() -> str:
    """Returns the name of the processor, if the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
