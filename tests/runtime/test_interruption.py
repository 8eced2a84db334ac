"""A run that is killed anywhere and resumed is bit-identical to an uninterrupted one."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feddm.runtime.results import from_line
from tiny import (
    SETTINGS,
    arguments,
    num_rounds,
    run_tiny,
    running,
    timeless_results,
    wait_for_rounds,
    wait_until,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals and process groups")

ROUNDS = 6
STEPS = 60  # per client and round: enough time to be killed in between


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of an uninterrupted run."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    run_tiny(directory, rounds=ROUNDS, set=SETTINGS | {"synthesis.steps": STEPS})
    return directory


@pytest.fixture(scope="module")
def round_seconds(whole: Path) -> float:
    """Returns how long a round takes on this machine."""
    with (whole / "results.jsonl").open() as file:
        records = [from_line(line) for line in file]
    return sum(r.client_seconds + r.server_seconds for r in records) / len(records)


@pytest.fixture
def rng() -> random.Random:
    """Returns a generator; a failing test prints its seed, which reproduces the failure."""
    seed = int(os.environ.get("FEDDM_TEST_SEED", random.SystemRandom().randrange(10**9)))
    print(f"FEDDM_TEST_SEED={seed}")
    return random.Random(seed)


def command(directory: Path, workers: int) -> list[object]:
    """Returns the arguments that start the run, or resume it if it has started."""
    if (directory / "config.toml").exists():
        return ["resume", directory, "--workers", workers, "--quiet"]
    options = arguments(rounds=ROUNDS, workers=workers, synthesis__steps=STEPS)
    return ["run", *options, "--out", directory, "--quiet"]


def finish(directory: Path, workers: int) -> None:
    """Resumes the run until it ends."""
    with running(directory.parent, *command(directory, workers)) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")


def assert_same(directory: Path, whole: Path) -> None:
    assert timeless_results(directory) == timeless_results(whole)
    for name in ("model.safetensors", "synthetic.safetensors"):
        assert (directory / name).read_bytes() == (whole / name).read_bytes(), name
    assert not list(directory.rglob("*.part"))


def living(group: int) -> Iterator[int]:
    """Yields the running processes of a group; Linux only."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # pid (name) state parent group ...; the name may hold anything.
            state, _, member_of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if int(member_of) == group and state != "Z":
            yield int(folder.name)


def kill(process: subprocess.Popen[str], workers: int) -> None:
    """Kills a run, and checks that its workers end by themselves."""
    on_linux = sys.platform == "linux"
    if on_linux and workers > 1:
        assert len(list(living(process.pid))) == 1 + workers
    process.kill()  # its workers get no signal
    process.wait()
    if on_linux:
        wait_until(lambda: not list(living(process.pid)), seconds=30)


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_in_mid_run(
    tmp_path: Path, whole: Path, round_seconds: float, rng: random.Random, workers: int
) -> None:
    directory = tmp_path / "run"
    with running(tmp_path, *command(directory, workers)) as process:
        wait_for_rounds(process, directory, rng.randint(1, ROUNDS // 2))
        time.sleep(rng.uniform(0, round_seconds))
        kill(process, workers)
    assert process.returncode == -signal.SIGKILL
    assert 1 <= num_rounds(directory) < ROUNDS
    assert not (directory / "model.safetensors").exists()

    finish(directory, workers)
    assert_same(directory, whole)


def test_killed_right_after_the_start(
    tmp_path: Path, whole: Path, round_seconds: float, rng: random.Random
) -> None:
    directory = tmp_path / "run"
    with running(tmp_path, *command(directory, workers=1)) as process:
        wait_until((directory / "config.toml").exists)
        time.sleep(rng.uniform(0, round_seconds))
        kill(process, workers=1)
    assert num_rounds(directory) < ROUNDS // 2

    finish(directory, workers=1)
    assert_same(directory, whole)


def test_control_c_ends_the_workers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with running(tmp_path, *command(directory, workers=2)) as process:
        wait_for_rounds(process, directory, 1)
        # The shared files are already deleted: not even SIGKILL leaves a copy.
        assert not list(tmp_path.glob("feddm-*"))
        os.killpg(process.pid, signal.SIGINT)  # to all of them, as a terminal does
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == f"Interrupted. Continue with: feddm resume {directory}\n"
    if sys.platform == "linux":
        assert list(living(process.pid)) == []
    assert not list(tmp_path.glob("feddm-*"))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, 8])
def test_killed_again_and_again(
    tmp_path: Path, whole: Path, rng: random.Random, kills: int
) -> None:
    directory = tmp_path / "run"
    for _ in range(kills):
        workers = rng.choice([1, 2])
        begun = (directory / "config.toml").exists()
        with running(tmp_path, *command(directory, workers)) as process:
            if not begun:
                wait_until((directory / "config.toml").exists)
            try:
                # From its first imports to well after its first rounds.
                process.wait(timeout=rng.uniform(0, 6))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            else:
                assert process.returncode == 0
    finish(directory, workers=1)
    assert_same(directory, whole)
