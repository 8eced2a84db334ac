"""The upload is all that leaves a private client; it is paid for, and made only once."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from feddm.algorithms.base import Algorithm, Context, LocalResult
from feddm.algorithms.fedavg import FedAvg, FedAvgSettings
from feddm.algorithms.local_training import Training
from feddm.core.examples import Examples, Normalization
from feddm.core.seeding import generator
from feddm.core.tensors import Records, to_bytes
from feddm.core.training import ignore
from feddm.errors import BudgetError, EngineError
from feddm.privacy.accounting import epsilon
from feddm.privacy.ledger import Ledger
from feddm.privacy.noise import Label, Secret
from feddm.privacy.policy import Policy
from feddm.privacy.release import Noise
from feddm.privacy.vault import Terms, Vault, Vaults, upload_log
from feddm.runtime.client import Task, context_of, perform
from feddm.runtime.local import InProcess
from private import (
    BASELINES,
    MODEL,
    NAMES,
    SECRET,
    built,
    download,
    examples,
    noise,
)

DATA = examples(0, 1, 2, 2, 1, 0, 0, 0)
every_algorithm = pytest.mark.parametrize("name", NAMES)


# Fixed for this test, but not marked as a test secret.
OWN = Secret(SECRET.key)


def opened(
    folder: Path,
    budget: Policy = Policy(),  # noqa: B008  # frozen
    secret: Secret = OWN,
) -> Vault:
    return Vault(folder, Terms("run", budget=budget), secret=secret)


def task(algorithm: Algorithm, round_: int = 1, seed: int = 7, weights: int = 0) -> Task:
    return Task(0, round_, seed, download(algorithm, weights))


def done(
    algorithm: Algorithm, vault: Vault, data: Examples = DATA, **which: int
) -> tuple[LocalResult, float]:
    return perform(algorithm, task(algorithm, **which), data, {}, ignore, vault=vault)


def sent(
    algorithm: Algorithm, vault: Vault, data: Examples = DATA, **which: int
) -> tuple[bytes, bytes]:
    """Returns a client's upload and memory."""
    result, _ = done(algorithm, vault, data, **which)
    return to_bytes(result.upload), to_bytes(result.memory)


def never(*_: object, **__: object) -> Any:
    raise AssertionError("this must not be called")


@every_algorithm
class TestEveryPrivateAlgorithm:
    @pytest.mark.parametrize("step", ["keep", "spend", "list_upload"])
    def test_a_crash_does_not_change_the_cost(
        self, name: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A crash before any step of a release: nothing has left, and the retry succeeds."""
        algorithm = built(name)
        # Just enough for one round.
        vault = opened(tmp_path, Policy(epsilon(algorithm.planned, 1e-5), 1e-5))
        with monkeypatch.context() as patch:
            patch.setattr(Vault, step, never)
            with pytest.raises(EngineError):
                done(algorithm, vault)
        upload, _ = sent(algorithm, vault)
        (entry,) = vault.entries()
        assert (entry.round, entry.events) == (1, algorithm.planned)
        (line,) = upload_log(tmp_path)
        assert line["sha256"] == hashlib.sha256(upload).hexdigest()
        with pytest.raises(BudgetError):
            done(algorithm, vault, round_=2)

    def test_it_is_paid_for_and_listed_before_it_leaves(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []
        for step in ("agree", "keep", "spend", "list_upload"):
            method = getattr(Vault, step)

            def watched(*args: Any, step: str = step, method: Any = method) -> Any:
                steps.append(step)
                return method(*args)

            monkeypatch.setattr(Vault, step, watched)
        done(built(name), opened(tmp_path))
        assert steps == ["agree", "keep", "spend", "list_upload"]

    def test_a_repeated_request_gets_the_stored_upload(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        algorithm = built(name)
        first = sent(algorithm, opened(tmp_path))
        monkeypatch.setattr(type(algorithm), "local", never)
        vault = opened(tmp_path)
        assert sent(algorithm, vault) == first
        assert len(vault.entries()) == 1

    def test_other_weights_in_the_same_round_cost_twice(
        self, name: str, tmp_path: Path
    ) -> None:
        algorithm, vault = built(name), opened(tmp_path)
        results = [done(algorithm, vault, weights=weights)[0] for weights in (0, 1, 0)]
        # The first is no longer stored when requested again, so it is made again.
        costs = [epsilon(algorithm.planned * times, 1e-5) for times in (1, 2, 3)]
        assert [r.metrics["epsilon"] for r in results] == pytest.approx(costs, rel=1e-6)
        assert costs[1] > 1.2 * costs[0]

    def test_different_weights_have_different_noise(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn: list[Tensor] = []
        added = Noise.added

        def watched(self: Noise, number: int, total: Tensor, *bound: float) -> Tensor:
            noisy = added(self, number, torch.zeros_like(total), *bound)
            drawn.append(noisy.flatten())
            return noisy

        monkeypatch.setattr(Noise, "added", watched)
        algorithm, vault = built(name), opened(tmp_path)
        for weights in (0, 1, 0):
            done(algorithm, vault, weights=weights)
        assert len(drawn) >= 6
        for one in range(len(drawn)):
            for other in range(one):
                if drawn[one].shape == drawn[other].shape:
                    # Among thousands, two may be close by chance, but not equal.
                    assert not (drawn[one] == drawn[other]).any()

    def test_a_fixed_secret_makes_epsilon_infinite(self, name: str, tmp_path: Path) -> None:
        vault = opened(tmp_path, secret=SECRET)
        result, _ = done(built(name), vault)
        assert result.metrics == {"epsilon": math.inf}
        assert "Infinity" not in (tmp_path / "uploads.jsonl").read_text()

    def test_a_lost_ledger_line_is_paid_for_again(self, name: str, tmp_path: Path) -> None:
        algorithm, vault = built(name), opened(tmp_path)
        first = sent(algorithm, vault)
        (tmp_path / "ledger.jsonl").write_text("")
        assert sent(algorithm, vault) == first
        assert len(vault.entries()) == 1

    def test_neither_time_nor_metrics_leave(self, name: str, tmp_path: Path) -> None:
        result, seconds = done(built(name), opened(tmp_path))
        assert seconds == 0
        assert set(result.metrics) == {"epsilon"}

    def test_the_text_of_an_error_does_not_leave(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> LocalResult:
            raise ZeroDivisionError("the patient is Ada")

        algorithm = built(name)
        monkeypatch.setattr(type(algorithm), "local", fail)
        with pytest.raises(EngineError) as caught:
            done(algorithm, opened(tmp_path))
        assert str(caught.value) == f"client 0 failed; see {tmp_path}/errors.log"
        # The new error does not carry the original one.
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        assert "the patient is Ada" in (tmp_path / "errors.log").read_text()
        assert opened(tmp_path).entries() == []

    def test_the_budget_is_checked_before_the_work(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        algorithm, vault = built(name), opened(tmp_path, Policy(epsilon=0.01))
        monkeypatch.setattr(type(algorithm), "local", never)
        with pytest.raises(BudgetError, match=r"its limit is 0\.01"):
            done(algorithm, vault)
        assert vault.entries() == []

    def test_an_unplanned_release_does_not_leave(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # An upload without noise has fewer releases than planned.
        algorithm = built(name)
        monkeypatch.setattr(
            type(algorithm), "local", lambda *_: LocalResult({"raw": {"x": DATA.x}})
        )
        with pytest.raises(EngineError):
            done(algorithm, opened(tmp_path))
        assert "released ()" in (tmp_path / "errors.log").read_text()
        assert not (tmp_path / "sent.safetensors").exists()


class Recorded(Noise):
    """Noise that records the noisy sums."""

    def __init__(self, secret: Secret = SECRET) -> None:
        super().__init__(secret, 1, b"context")
        self.sums: dict[int, Tensor] = {}

    def added(self, number: int, total: Tensor, bound: float, multiplier: float) -> Tensor:
        self.sums[number] = super().added(number, total, bound, multiplier)
        return self.sums[number].clone()


class Replayed(Noise):
    """Noise that returns given noisy sums, whatever the sum."""

    def __init__(self, sums: dict[int, Tensor]) -> None:
        super().__init__(SECRET, 1, b"context")
        self._sums = sums

    def added(self, number: int, total: Tensor, bound: float, multiplier: float) -> Tensor:
        noisy = super().added(number, total, bound, multiplier)
        assert (noisy.shape, noisy.dtype) == (self._sums[number].shape, torch.float64)
        return self._sums[number].clone()


NEIGHBOURS = {
    "one more": (DATA, examples(*DATA.y.tolist(), 1)),
    "a new class": (examples(0, 0, 0, 1, 1), examples(0, 0, 0, 1, 1, 2)),
    "one at all": (examples(), examples(2)),
    "nothing alike": (examples(0, 0, 1), examples(*[2] * 40, seed=5)),
}


UNIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weighted": {"server": {"weighting": "examples"}},
    "coded": {"server": {"weighting": "examples"}, "coding": "uint8"},
}


@pytest.mark.parametrize(
    ("name", "union"),
    # Where weights are sent, there is no union of images.
    [(name, union) for name in NAMES for union in UNIONS if name not in BASELINES]
    + [(name, "plain") for name in BASELINES],
)
@pytest.mark.parametrize("kind", NEIGHBOURS)
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_everything_else_is_computed_from_the_noisy_sums(
    name: str, rate: float, kind: str, union: str
) -> None:
    """With the noisy sums of other examples, a client makes the upload of those examples."""
    algorithm = built(name, rate=rate, **UNIONS[union])
    weights = download(algorithm)
    ours, theirs = NEIGHBOURS[kind]
    told: list[list[float]] = [[], []]

    def local(data: Examples, noise: Noise, ticks: list[float]) -> LocalResult:
        rng = generator(3, "client")
        return algorithm.local(weights, data, {}, rng, ticks.append, noise)

    recorded = Recorded()
    expected = local(ours, recorded, told[0])
    replayed = Replayed(recorded.sums)
    result = local(theirs, replayed, told[1])
    assert to_bytes(result.upload) == to_bytes(expected.upload)
    assert to_bytes(result.memory) == to_bytes(expected.memory)
    assert result.metrics == expected.metrics
    assert replayed.released == recorded.released
    assert told[0] == told[1]


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(secret: Secret, label: Label, shape: Sequence[int]) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch.float64)

    monkeypatch.setattr("feddm.privacy.release.gaussian", silent)


def form(records: Records) -> list[tuple[object, ...]]:
    return [
        (record, name, tensor.dtype, tensor.shape)
        for record, tensors in records.items()
        for name, tensor in tensors.items()
    ]


@pytest.mark.parametrize("kind", NEIGHBOURS)
@pytest.mark.parametrize("name", ["server", *BASELINES])
def test_only_numbers_of_the_upload_depend_on_examples(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without noise: names, types, shapes, metrics, time and ledger are the same.

    For FedDM with images from clients this holds of all but the shapes: which classes are sent
    is chosen by noisy counts, and so is as private as these are.
    """
    without_noise(monkeypatch)
    algorithm = built(name, rate=0.5)
    seen = []
    for number, data in enumerate(NEIGHBOURS[kind]):
        vault = opened(tmp_path / str(number))
        result, seconds = done(algorithm, vault, data)
        (entry,) = vault.entries()
        (line,) = (vault.folder / "uploads.jsonl").read_text().splitlines()
        logged = {k: v for k, v in json.loads(line).items() if k not in ("time", "sha256")}
        algorithm.parse(result.upload, download(algorithm))
        seen.append(
            (
                form(result.upload),
                form(result.memory),
                result.metrics,
                seconds,
                entry.events,
                logged,
            )
        )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ["features", "gradients"])
def test_classes_are_chosen_by_noisy_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def constant(secret: Secret, label: Label, shape: Sequence[int]) -> Tensor:
        return torch.full(tuple(shape), 1e3, dtype=torch.float64)

    algorithm = built(name)

    def labels(data: Examples) -> list[int]:
        result = algorithm.local(
            download(algorithm), data, {}, generator(0, "client"), ignore, noise()
        )
        return sorted(set(result.upload["examples"]["y"].tolist()))

    with monkeypatch.context() as patch:
        without_noise(patch)
        # At least two images, the size of the smallest class that is sent.
        assert labels(examples(0, 0, 0, 2)) == [0]
        assert labels(examples()) == []
    monkeypatch.setattr("feddm.privacy.release.gaussian", constant)
    assert labels(examples()) == [0, 1, 2]


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "run": lambda c: {"run": "another"},
    "settings": lambda c: {"algorithm": built("scaffold", 2.0)},
    "algorithm": lambda c: {"algorithm": built("fedavg")},
    "round": lambda c: {"task": dataclasses.replace(c["task"], round=2)},
    "client": lambda c: {"task": dataclasses.replace(c["task"], client=1)},
    "seed": lambda c: {"task": dataclasses.replace(c["task"], seed=8)},
    "weights": lambda c: {"task": task(c["algorithm"], weights=1)},
    "memory": lambda c: {"memory": {"control": {"w": torch.ones(1)}}},
    "pixels": lambda c: {"data": dataclasses.replace(DATA, x=DATA.x + 1)},
    "labels": lambda c: {"data": dataclasses.replace(DATA, y=DATA.y.flip(0))},
    "normalization": lambda c: {
        "data": dataclasses.replace(DATA, normalization=Normalization((0.5,), (0.5,)))
    },
    "weight": lambda c: {"data": dataclasses.replace(DATA, weight=torch.ones(len(DATA)))},
    "group": lambda c: {"data": dataclasses.replace(DATA, group=torch.arange(len(DATA)))},
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_determines_a_sum_determines_its_noise(change: str) -> None:
    algorithm = built("scaffold")
    same: dict[str, Any] = {
        "run": "run",
        "algorithm": algorithm,
        "task": task(algorithm),
        "data": DATA,
        "memory": {},
    }
    assert context_of(**same) == context_of(**same)
    assert context_of(**same | CHANGES[change](same)) != context_of(**same)


def test_the_servers_seed_cannot_repeat_noise(tmp_path: Path) -> None:
    # Networks and first images come from the seed. A server that asks for a round under one
    # seed, another one and the first again must not see two sums under the same noise.
    algorithm, vault = built("gradients"), opened(tmp_path)
    first, second, third = (sent(algorithm, vault, seed=seed) for seed in (1, 2, 1))
    assert len({first, second, third}) == 3
    assert len(vault.entries()) == 3


def test_the_noise_of_a_client_without_examples_is_new_for_other_weights(
    tmp_path: Path,
) -> None:
    algorithm, vault = built("server"), opened(tmp_path)
    first, second = (
        done(algorithm, vault, examples(), weights=weights)[0].upload["sums"]["totals"]
        for weights in (0, 1)
    )
    # Both are noise alone, three long on average: the bound times the multiplier.
    for totals in (first, second):
        assert float(totals.std()) == pytest.approx(3.0, rel=0.5)
    assert (
        abs(float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])) < 0.5
    )


def test_an_unprotected_algorithm_has_infinite_epsilon(tmp_path: Path) -> None:
    training = Training(lr=0.5, epochs=1, batch_size=1)
    algorithm = FedAvg(FedAvgSettings(local=training), Context(MODEL))
    with pytest.raises(BudgetError, match="epsilon inf"):
        done(algorithm, opened(tmp_path / "limited", Policy(epsilon=100.0)))
    result, _ = done(algorithm, opened(tmp_path / "open"))
    assert result.metrics == {"epsilon": float("inf")}


def test_bits_do_not_depend_on_workers(tmp_path: Path) -> None:
    algorithm = built("fedavg")
    shards = [np.arange(4), np.arange(4, 8)]
    weights = download(algorithm)
    uploads = []
    for workers in (1, 2):
        vaults = Vaults(Ledger(tmp_path / str(workers)), "split", Terms("run"), "secret")
        with InProcess(algorithm, DATA, shards, workers, vaults=vaults) as engine:
            tasks = (Task(client, 1, 7, weights) for client in range(2))
            replies = list(engine.run(tasks, lambda client, fraction: None))
        assert [reply.seconds for reply in replies] == [0, 0]
        uploads.append({reply.client: to_bytes(reply.upload) for reply in replies})
    assert uploads[0] == uploads[1]
    assert uploads[0][0] != uploads[0][1]
