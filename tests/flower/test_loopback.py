"""A deployment on one machine, without Flower's processes; test_deployment.py has the rest."""

import signal
import sys
from pathlib import Path

import pytest

from feddm.flower import loopback
from feddm.flower.loopback import Loopback
from tiny import wait_until


def test_files_of_an_earlier_deployment_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queued run in the old database would start; old keys would let others connect."""
    monkeypatch.setattr(Loopback, "start_superlink", lambda self: None)
    left = ["ca.crt", "server.key", "superlink.db", "superlink.db-wal", "superlink.log"]
    for name in left:
        (tmp_path / name).touch()
    with Loopback(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["superlink.log"]
    with Loopback(tmp_path / "new"):  # does not exist
        pass


class TestEnd:
    """A process with a child; both write their process ids, and whether they were asked."""

    CODE = """
import os, signal, subprocess, sys, time
out, stubborn, depth = sys.argv[1], sys.argv[2], int(sys.argv[3])
def end(number, frame):
    open(f"{out}/{depth}.ended", "a").write("x")
    if stubborn == "waits" and depth:
        child.wait()
    if stubborn != "yes":
        sys.exit()
signal.signal(signal.SIGTERM, end)
if depth:
    child = subprocess.Popen([sys.executable, __file__, out, stubborn, str(depth - 1)])
open(f"{out}/{depth}.new", "w").write(str(os.getpid()))
os.rename(f"{out}/{depth}.new", f"{out}/{depth}")
while True:
    time.sleep(0.1)
"""

    def started(self, folder: Path, name: str, stubborn: str) -> tuple[Loopback, list[int]]:
        file = folder / "code.py"
        file.write_text(self.CODE)
        both = [folder / "0", folder / "1"]
        here = Loopback(folder)
        here.start(name, sys.executable, str(file), str(folder), stubborn, "1")
        wait_until(lambda: all(path.exists() for path in both), 60)
        return here, [int(path.read_text()) for path in both]

    @pytest.mark.parametrize(("name", "child"), [("superlink", True), ("node0", False)])
    def test_a_node_stops_its_own_children(
        self, tmp_path: Path, name: str, child: bool
    ) -> None:
        # Children that remain after the process has stopped are killed, so the process waits
        # for a child that was asked: it needs time to write that down.
        here, processes = self.started(tmp_path, name, "waits" if child else "no")
        here.end(name)
        wait_until(lambda: not any(map(alive, processes)), 60)
        assert (tmp_path / "1.ended").read_text() == "x"  # asked once
        assert (tmp_path / "0.ended").exists() is child

    def test_a_process_that_ignores_sigterm_is_killed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loopback, "END", 0.5)
        here, processes = self.started(tmp_path, "superlink", "yes")
        here.end("superlink")
        wait_until(lambda: not any(map(alive, processes)), 60)
        assert (tmp_path / "1.ended").read_text() == "x"  # it was asked first

    def test_sigkill_asks_no_process(self, tmp_path: Path) -> None:
        here, processes = self.started(tmp_path, "node0", "no")
        here.end("node0", signal.SIGKILL)
        wait_until(lambda: not any(map(alive, processes)), 60)
        assert not list(tmp_path.glob("*.ended"))


def alive(process: int) -> bool:
    """Returns whether a process is running, not just a zombie."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
