"""Run directories that no run made, with numbers that can be worked out on paper."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from feddm.analysis.report.runs import Method, Run
from feddm.config.resolve import resolve
from feddm.config.schema import Config, PrivacySettings
from feddm.core.examples import Examples, Normalization
from feddm.runtime.federation import RoundRecord
from feddm.runtime.results import to_line
from feddm.runtime.synthetic_file import SyntheticSet
from feddm.runtime.wording import promised

ENVIRONMENT = {"run": "7", "feddm": "0.1.0", "torch": "2.13.0", "data": "0123abcd"}


def record(round_: int, accuracy: float, **fields: Any) -> RoundRecord:
    """Returns a round in which clients sent 1000 bytes and 250 floats."""
    values: dict[str, Any] = {
        "loss": 1 - accuracy,
        "floats_up": 250,
        "floats_down": 500,
        "bytes_up": 1000,
        "bytes_down": 2000,
        "client_seconds": 3.0,
        "server_seconds": 1.0,
        "clients": (),
    }
    return RoundRecord(round_, accuracy, **values | fields)


def records(accuracies: Iterable[float], **fields: Any) -> tuple[RoundRecord, ...]:
    return tuple(record(n, accuracy, **fields) for n, accuracy in enumerate(accuracies, 1))


def private_records(
    accuracies: Iterable[float], epsilon: float, privacy: PrivacySettings
) -> tuple[RoundRecord, ...]:
    """Returns rounds of a private run, all of which end with the same epsilon."""
    return tuple(promised(each, epsilon, privacy) for each in records(accuracies))


def config(rounds: int = 2, **settings: Any) -> Config:
    """Returns a configuration; ``server__lr=0.1`` is ``server.lr = 0.1``."""
    named = {key.replace("__", "."): value for key, value in settings.items()}
    return resolve(settings={"rounds": rounds, **named})


def privacy(**settings: Any) -> PrivacySettings:
    """Returns the privacy of a configuration that has some."""
    found = config(**settings).privacy
    assert found is not None
    return found


def method(
    name: str, *seeds: Sequence[RoundRecord], environment: Any = ENVIRONMENT, **settings: Any
) -> Method:
    """Returns a method with the records of each seed, in memory."""
    return Method(
        name,
        tuple(
            Run(
                name,
                Path(f"{name}-{seed}"),
                config(rounds=len(rounds), seed=seed, **settings),
                tuple(rounds),
                environment,
            )
            for seed, rounds in enumerate(seeds)
        ),
    )


def write_run(
    folder: Path,
    rounds: Iterable[RoundRecord],
    configuration: Config,
    images: SyntheticSet | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a run directory."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(configuration.to_toml())
    (folder / "environment.json").write_text(json.dumps(environment or {"feddm": "0.1.0"}))
    (folder / "results.jsonl").write_text("".join(to_line(each) + "\n" for each in rounds))
    if not configuration.guaranteed:
        table = [[5] * 10] * configuration.partition.clients
        partition = {"classes": list("0123456789"), "table": table}
        (folder / "partition.json").write_text(json.dumps(partition))
    if images is not None:
        (folder / "synthetic.safetensors").write_bytes(images.to_bytes())
    return folder


def images(
    clients: int = 10,
    classes: Sequence[str] = tuple("0123456789"),
    each: int = 10,
    shape: tuple[int, int, int] = (1, 8, 8),
) -> SyntheticSet:
    """Returns noise, which no PNG makes smaller: so many images of every client and class."""
    total = clients * len(classes) * each
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(total, *shape, generator=rng)
    per_client = torch.arange(len(classes)).repeat_interleave(each)
    return SyntheticSet(
        Examples(x, per_client.repeat(clients)),
        torch.arange(clients).repeat_interleave(len(classes) * each).int(),
        tuple(classes),
        Normalization((0.0,) * shape[0], (1.0,) * shape[0]),
    )


def write_study(
    folder: Path,
    names: Sequence[str] = ("feddm", "fedavg", "fedprox", "fednova", "scaffold", "real"),
    seeds: Sequence[int] = (0, 1, 2),
    rounds: int = 20,
    pictures: SyntheticSet | None = None,
) -> Path:
    """Writes a study of so many methods, each a little worse than the one before."""
    cells = []
    for seed in seeds:
        for number, name in enumerate(names):
            cell = f"{name}-seed{seed}"
            cells.append(cell)
            best = 0.95 - 0.08 * number - 0.01 * seed
            curve = [best * (1 - 0.5**n) for n in range(1, rounds + 1)]
            size = {"bytes_up": 1000 * (number + 1), "floats_up": 250 * (number + 1)}
            write_run(
                folder / "cells" / cell,
                records(curve, **size, client_seconds=1.0 + number),
                resolve(options={"algorithm": name, "seed": seed, "rounds": rounds}),
                pictures,
            )
    command = (
        f"feddm compare --algorithms {','.join(names)} --seeds {','.join(map(str, seeds))} "
        f"--dataset digits --clients 10 --alpha 0.5 --rounds {rounds} --out study"
    )
    what = {"command": command, "cells": cells}
    (folder / "study.json").write_text(json.dumps(what))
    return folder
