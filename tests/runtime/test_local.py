"""The contract of engines, and what is particular to worker processes."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from feddm.core.examples import Examples
from feddm.errors import EngineError
from feddm.runtime.client import Task, threads
from feddm.runtime.local import InProcess
from toy import Summing

CLIENTS = 5
# Client k has k + 1 images of value k, and its number as the label.
LABELS = torch.arange(CLIENTS).repeat_interleave(torch.arange(CLIENTS) + 1)
DATA = Examples(LABELS.float().view(-1, 1, 1, 1), LABELS)
SHARDS = [np.flatnonzero(LABELS.numpy() == k) for k in range(CLIENTS)]
DOWNLOAD = {"sum": {"value": torch.tensor(100.0)}}


@pytest.fixture(autouse=True)
def workers_find_the_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def tasks(round_: int = 1) -> Iterator[Task]:
    return (Task(client, round_, 7, DOWNLOAD) for client in range(CLIENTS))


def sums(engine: InProcess, round_: int = 1) -> dict[int, float]:
    replies = engine.run(tasks(round_), lambda client, done: None)
    return {reply.client: float(reply.upload["sum"]["value"]) for reply in replies}


@pytest.mark.parametrize("workers", [1, 2])
class TestEveryNumberOfWorkers:
    def test_every_client_works_on_its_own_examples(self, workers: int) -> None:
        with InProcess(Summing(), DATA, SHARDS, workers) as engine:
            values = sums(engine)
        assert sorted(values) == list(range(CLIENTS))
        for client, value in values.items():
            # Its images sum to k (k + 1), the download adds 100, and noise some units.
            assert value == pytest.approx(client * (client + 1) + 100, abs=6)

    def test_memory_is_kept_only_if_committed(self, workers: int) -> None:
        with InProcess(Summing(), DATA, SHARDS, workers) as engine:
            first = sums(engine)
            engine.commit([0, 3])
            second = list(engine.run(tasks(2), lambda client, done: None))
            remembered = {reply.client: reply.metrics["before"] for reply in second}
            assert remembered[0] == pytest.approx(first[0])
            assert remembered[3] == pytest.approx(first[3])
            assert remembered[1] == remembered[2] == remembered[4] == 0
            assert sorted(engine.memories) == [0, 3]

    def test_memories_can_be_passed_on(self, workers: int) -> None:
        memories = {2: {"last": {"value": torch.tensor(50.0)}}}
        with InProcess(Summing(), DATA, SHARDS, workers, memories) as engine:
            replies = list(engine.run(tasks(), lambda client, done: None))
        assert {r.client: r.metrics["before"] for r in replies} == {
            0: 0,
            1: 0,
            2: 50,
            3: 0,
            4: 0,
        }

    def test_a_bug_in_a_client_keeps_its_traceback(self, workers: int) -> None:
        with (
            InProcess(Summing(fail=3), DATA, SHARDS, workers) as engine,
            pytest.raises(ZeroDivisionError, match="client 3") as caught,
        ):
            sums(engine)
        text = "".join(getattr(caught.value, "__notes__", ()))
        assert workers == 1 or "in local" in text


def test_bits_do_not_depend_on_the_number_of_workers() -> None:
    results = []
    for workers in (1, 2, 3):
        with InProcess(Summing(), DATA, SHARDS, workers) as engine:
            results.append([sums(engine), sums(engine, 2)])
    assert results[0] == results[1] == results[2]


def test_a_dead_worker_is_a_one_line_error() -> None:
    with (
        InProcess(Summing(die=2), DATA, SHARDS, 2) as engine,
        pytest.raises(EngineError, match=r"exit code 3.*--workers"),
    ):
        sums(engine)


def test_control_c_may_come_before_all_threads_are_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def interrupted_at_the_second(thread: threading.Thread) -> None:
        if started:
            raise KeyboardInterrupt
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted_at_the_second)
    with (
        pytest.raises(KeyboardInterrupt),
        InProcess(Summing(), DATA, SHARDS, 2) as engine,
    ):
        sums(engine)
    assert not started[0].is_alive()


def test_client_ticks_arrive() -> None:
    seen: list[tuple[int, float]] = []
    with InProcess(Summing(), DATA, SHARDS) as engine:
        list(engine.run(tasks(), lambda client, done: seen.append((client, done))))
    assert seen == [(client, 0.5) for client in range(CLIENTS)]


def test_process_ids_of_the_workers() -> None:
    with InProcess(Summing(), DATA, SHARDS) as engine:
        assert engine.pids == []  # this process does the work
    with InProcess(Summing(), DATA, SHARDS, 2) as engine:
        pids = engine.pids
        assert len(set(pids) - {os.getpid()}) == 2
        for pid in pids:
            os.kill(pid, 0)  # it is alive
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_no_space_for_shared_data_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("feddm.runtime.worker.np.save", full)
    with pytest.raises(EngineError, match="No space left on device; set TMPDIR"):
        InProcess(Summing(), DATA, SHARDS, 2)


def test_clients_work_on_one_thread() -> None:
    before = torch.get_num_threads()
    with threads(2):
        assert torch.get_num_threads() == 2
        with threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_workers_import_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('this is not the queue of Python')")
    monkeypatch.chdir(tmp_path)
    with InProcess(Summing(), DATA, SHARDS, 2) as engine:
        assert len(sums(engine)) == CLIENTS
