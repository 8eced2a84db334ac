"""A whole Flower deployment on this machine, to try it out: a SuperLink and its nodes.

It uses encryption and keys, as between machines: a new certificate authority, one key per node,
and only nodes with a registered key can connect. Everything listens on 127.0.0.1 only and stops
at the end of the ``with`` block.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from feddm.core import files
from feddm.errors import EngineError
from feddm.flower.app import app_folder
from feddm.flower.keys import certificates, make_node_key
from feddm.flower.runner import Link, command_of, free_port
from feddm.runtime.federation import RoundRecord
from feddm.runtime.rundir import RunDirectory

NAME = "here"  # name of the SuperLink in Flower's configuration
START = 120.0  # seconds that the SuperLink may take to start
LOOK = 10.0  # seconds between two requests for a run's status
POLL = 0.5  # seconds between two polls for a new round
END = 15.0  # seconds that a process may take to stop


@dataclass
class Loopback:
    """A SuperLink and nodes on this machine; use it in a ``with`` block.

    Args:
        folder: Holds certificates, keys, logs and the nodes' files.
        insecure: Use neither encryption nor keys.
        simulated: Number of nodes that Flower simulates; other nodes cannot connect then.
        environment: Additional environment variables for its processes.
    """

    folder: Path
    insecure: bool = False
    simulated: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._authority: Path | None = None

    def __enter__(self) -> Self:
        # Remove what an earlier deployment left. A run that is still queued in its database
        # would start now.
        for name in ("ca.crt", "server.crt", "server.key"):
            (self.folder / name).unlink(missing_ok=True)
        for file in self.folder.glob("superlink.db*"):
            file.unlink()
        try:
            self.start_superlink()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start_superlink(self) -> None:
        """Starts the SuperLink; nodes of an earlier one in this block can reconnect to it."""
        with files.explained(EngineError, self.folder):
            files.make_private(self.folder)
            home = self.folder / "flwr"
            home.mkdir(exist_ok=True)
        connection: dict[str, object] = {"address": self.address}
        if self.insecure or self.simulated:
            security = ["--insecure", *(["--simulation"] if self.simulated else [])]
            connection["insecure"] = True
        else:
            authority, certificate, key = certificates(self.folder)
            self._authority = authority
            connection["root-certificates"] = str(authority)
            security = [
                *("--ssl-ca-certfile", str(authority), "--ssl-certfile", str(certificate)),
                *("--ssl-keyfile", str(key), "--enable-supernode-auth"),
            ]
        text = tomli_w.dumps({"superlink": {"default": NAME, NAME: connection}})
        (home / "config.toml").write_text(text, encoding="utf-8")
        host, _, port = self.address.partition(":")
        self.start(
            "superlink",
            *(command_of("flower-superlink"), "--host", host, "--port", port, *security),
            *("--database", str(self.folder / "superlink.db")),
            "--disable-runtime-dependency-installation",
        )
        deadline = time.monotonic() + START
        while True:
            with contextlib.suppress(EngineError):
                self.flwr("ls", NAME)
                return
            self.check("superlink")
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the SuperLink did not start within {START:g} s; {self._see_logs}"
                )

    def link(self, number: int) -> Link:
        """Returns how a new node connects; makes and registers its key."""
        if self.insecure:
            return Link(self.address, insecure=True)
        for name in (f"node{number}", f"node{number}.pub"):  # from an earlier deployment
            (self.folder / name).unlink(missing_ok=True)
        key, public = make_node_key(self.folder / f"node{number}")
        self.flwr("supernode", "register", str(public), NAME)
        return Link(self.address, self._authority, key)

    def start_node(self, number: int, link: Link) -> None:
        """Starts the node of a client."""
        options = ["--superlink", link.superlink, "--client", str(number)]
        if link.insecure:
            options.append("--insecure")
        else:
            options += ["--root-certificates", str(link.certificates), "--key", str(link.key)]
        options += ["--folder", str(self.folder / "nodes" / f"client_{number:06d}")]
        self.start(f"node{number}", sys.executable, "-m", "feddm", "flower", "node", *options)

    def run_app(
        self, run_config: Mapping[str, str | int | float], app: Path | None = None
    ) -> str:
        """Starts a run and returns Flower's id for it."""
        # Flower splits at spaces outside quotes and parses values as TOML.
        values = " ".join(f"{key}={json.dumps(value)}" for key, value in run_config.items())
        command = ["run", str(app or app_folder()), NAME, "--run-config", values]
        if self.simulated:
            federation = f"num-supernodes={self.simulated} client-resources-num-cpus=1"
            command += ["--federation-config", federation]
        return str(self.flwr(*command)["run-id"])

    def rounds(self, run: str, directory: Path) -> Iterator[RoundRecord]:
        """Yields the rounds of a run once recorded; raises `EngineError` if the run fails."""
        shown, checked = 0, time.monotonic()
        while True:
            ended = _ended(directory)
            records = []
            if (directory / "config.toml").exists():
                records = RunDirectory.open(directory).records()
            yield from records[shown:]
            shown = len(records)
            if ended:
                return
            if time.monotonic() - checked > LOOK:
                self.check("superlink")
                if self.status(run).startswith("finished") and not _ended(directory):
                    raise EngineError(f"the run failed: {_last_error(self.log(run))}")
                checked = time.monotonic()
            time.sleep(POLL)

    def status(self, run: str) -> str:
        """Returns Flower's status of a run, for instance ``running``."""
        return str(self.flwr("ls", NAME, "--run-id", run)["runs"][0]["status"])

    def log(self, run: str) -> str:
        """Returns the server's log of a run."""
        return self._flwr("log", run, NAME, "--show")

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Returns the output of a ``flwr`` command; raises `EngineError` if it fails."""
        text = self._flwr(*arguments, "--format", "json")
        try:
            output: dict[str, Any] = json.loads(text)
        except ValueError:
            output = {"error-message": text}
        if not output.get("success"):
            last = str(output.get("error-message", "")).strip().splitlines()[-1:]
            raise EngineError(f"flwr {arguments[0]} failed: {''.join(last)}")
        return output

    def _flwr(self, *arguments: str) -> str:
        return subprocess.run(
            [command_of("flwr"), *arguments],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        ).stdout

    def start(self, name: str, *command: str) -> None:
        """Starts a process with its own log."""
        with (self.folder / f"{name}.log").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C must reach only us; we stop the process
            )

    def check(self, name: str) -> None:
        """Raises `EngineError` if a process has stopped."""
        code = self.processes[name].poll()
        if code is not None:
            raise EngineError(f"{name} exited with code {code}; {self._see_logs}")

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Stops a process and all that it started."""
        process = self.processes.pop(name)
        # Some descendants have their own sessions and would outlive it.
        family = [process.pid, *descendants(process.pid)]
        # A node stops its SuperNode itself, and a SuperNode that is signalled twice does not
        # sign off. Other processes leave their helpers running.
        alone = name.startswith("node") and how != signal.SIGKILL
        send(how, [process.pid] if alone else family)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END)
        late = [child for each in family for child in descendants(each)]  # started since
        send(signal.SIGKILL, {*family, *late})
        process.wait()

    def close(self) -> None:
        """Stops all remaining processes, nodes first."""
        for name in reversed(list(self.processes)):
            self.end(name)

    @property
    def _see_logs(self) -> str:
        return f"see its log in {self.folder}"

    def _environment(self) -> dict[str, str]:
        programs = os.path.dirname(sys.executable)
        return {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            **self.environment,
        }


def descendants(process: int) -> list[int]:
    """Returns the children of a process, their children, and so on."""
    parents = _parents()
    found = [process]
    for parent in found:  # which grows during the loop
        found += [child for child, its in parents.items() if its == parent]
    return found[1:]


def _parents() -> dict[int, int]:
    """Returns the parent of every process."""
    if not Path("/proc/self/stat").exists():
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
        return {int(pid): int(of) for pid, of in map(str.split, table.stdout.splitlines())}
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            # 12 (name, with any characters) state parent ...
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return parents


def send(how: signal.Signals, processes: Iterable[int]) -> None:
    """Sends a signal to those processes that still exist."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, how)


def _ended(directory: Path) -> bool:
    return (directory / "model.safetensors").exists()


def _last_error(log: str) -> str:
    """Returns the line of a log that most likely says what went wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or ["its log is empty"])[-1]
