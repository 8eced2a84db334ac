"""A whole deployment on this machine: a SuperLink, nodes, encryption and keys.

Everything listens on free ports of 127.0.0.1 and is stopped by its process id.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.errors import EngineError
from feddm.flower.keys import certificates, make_node_key
from feddm.flower.loopback import NAME, Loopback
from feddm.flower.runner import APP, Link, command_of, free_port
from feddm.runtime.federation import RoundRecord
from feddm.runtime.model_file import load_model
from feddm.runtime.run import Observer, execute
from feddm.runtime.rundir import RunDirectory
from tiny import SETTINGS, running, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENTS = 2
PATIENT = 300  # seconds; on an idle machine, everything takes a few

pytestmark = pytest.mark.deployment


def config(algorithm: str, rounds: int = 3, **settings: Any) -> Config:
    return resolve(
        options={"algorithm": algorithm, "clients": CLIENTS, "rounds": rounds, "workers": 1},
        settings={**SETTINGS, **settings},
        shared=True,
    )


def finished(
    loopback: Loopback, config: Config, out: Path, **options: str | int
) -> list[RoundRecord]:
    """Runs a configuration in the deployment and returns its rounds."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".toml")
    file.write_text(config.to_toml())
    run = loopback.run_app({"config": str(file), "out": str(out), **options})
    return list(loopback.rounds(run, out))


def wait_until_finished(loopback: Loopback, run: str) -> None:
    """Waits until a run has ended. Each poll starts a process, so polls are far apart."""
    wait_until(lambda: loopback.status(run).startswith("finished"), PATIENT, every=1.0)


def same_bits(one: Path, other: Path) -> bool:
    """Returns whether two runs have the same model and the same results in each round."""
    models = [(run / "model.safetensors").read_bytes() for run in (one, other)]
    records = [RunDirectory.open(run).records() for run in (one, other)]
    accuracies = [[(r.accuracy, r.loss, r.bytes_up) for r in rounds] for rounds in records]
    return models[0] == models[1] and accuracies[0] == accuracies[1]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with Loopback(tmp_path_factory.mktemp("deployment")) as loopback:
        for client in range(CLIENTS):
            loopback.link(client)
            restarted(loopback, client)
        yield loopback


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with Loopback(tmp_path_factory.mktemp("simulation"), simulated=CLIENTS) as loopback:
        yield loopback


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "scaffold", pytest.param("feddm", marks=pytest.mark.smoke)]
)
def test_in_process_is_deployment(algorithm: str, deployment: Loopback, tmp_path: Path) -> None:
    assert_parity(config(algorithm), deployment, tmp_path)
    assert "answering train with " in (deployment.folder / "node0.log").read_text()


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddm"])
def test_in_process_is_simulation(algorithm: str, simulation: Loopback, tmp_path: Path) -> None:
    assert_parity(config(algorithm), simulation, tmp_path)


def assert_parity(ours: Config, loopback: Loopback, folder: Path) -> None:
    """Runs a configuration in this process and in the deployment, and compares the bits."""
    execute(ours, folder / "here", Observer())
    records = finished(loopback, ours, folder / "there")
    assert [len(record.clients) for record in records] == [CLIENTS] * 3
    assert same_bits(folder / "there", folder / "here")


def test_the_example_learns(simulation: Loopback, tmp_path: Path) -> None:
    """FedDM as the strategy of another project, on that project's own data."""
    out = tmp_path / "model.safetensors"
    run = simulation.run_app({"out": str(out)}, EXAMPLES / "flower-strategy")
    wait_until_finished(simulation, run)
    rng = torch.Generator().manual_seed(0)
    dark = torch.randint(100, (20, 1, 8, 8), generator=rng)
    images = torch.cat([dark, dark + 100]).to(torch.uint8)
    assert load_model(out).predict(images) == ["dark"] * 20 + ["bright"] * 20


class TestAccess:
    """A node needs a registered key, encryption and the right authority."""

    def test_with_a_registered_key(self, deployment: Loopback) -> None:
        online = [
            node
            for node in deployment.flwr("supernode", "list", NAME)["nodes"]
            if node["status"] == "online"
        ]
        assert len(online) == CLIENTS

    @pytest.mark.parametrize("stranger", ["other-key", "no-key", "plain", "other-authority"])
    def test_without(self, stranger: str, deployment: Loopback, tmp_path: Path) -> None:
        authority = deployment.folder / "ca.crt"
        known = deployment.folder / "node0"
        key, _ = make_node_key(tmp_path / "key")
        link = {
            "other-key": Link(deployment.address, authority, key),
            "no-key": Link(deployment.address, authority),
            "plain": Link(deployment.address, insecure=True),
            "other-authority": Link(deployment.address, certificates(tmp_path)[0], known),
        }[stranger]
        port = str(free_port())
        done = subprocess.run(
            [
                *(command_of("flower-supernode"), *link.options, "--max-retries", "1"),
                *("--isolation", "process", "--port", port),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENT,
        )
        assert done.returncode != 0
        assert "SuperNode ID" not in done.stdout + done.stderr  # logged once it is accepted


def test_a_node_runs_no_other_app(deployment: Loopback, tmp_path: Path) -> None:
    """The server sends a program that would write a file; no node runs it."""
    app = tmp_path / "evil"
    app.mkdir()
    (app / "pyproject.toml").write_text(EVIL)
    (app / "evil.py").write_text(EVIL_CODE)
    out = tmp_path / "traces"
    out.mkdir()
    run = deployment.run_app({"out": str(out)}, app)
    wait_until_finished(deployment, run)
    said = (out / "server").read_text()
    assert said == f"this node only runs {APP}, as installed here"
    assert not (out / "client").exists()


EVIL = """\
[project]
name = "evil"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "feddm"

[tool.flwr.app.components]
serverapp = "evil:server"
clientapp = "evil:client"

[tool.flwr.app.config]
out = ""
"""

EVIL_CODE = '''\
"""Asks a node to write a file."""

from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@client.train()
def train(message, context):
    Path(context.run_config["out"], "client").touch()
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid, context):
    node = next(iter(grid.get_node_ids()))
    content = RecordDict({"x": ConfigRecord({"out": context.run_config["out"]})})
    (reply,) = grid.send_and_receive([Message(content, node, "train")], timeout=120)
    said = reply.error.reason if reply.has_error() else reply.content["feddm"]["error"]
    Path(context.run_config["out"], "server").write_text(said)
'''


def test_a_node_refuses_what_its_policy_does_not_allow(
    deployment: Loopback, tmp_path: Path
) -> None:
    """The policy of the second node: nothing leaves it without noise."""
    policy = tmp_path / "policy.toml"
    policy.write_text('mechanisms = ["features"]\n')
    restarted(deployment, 1, FEDDM_POLICY=str(policy))
    try:
        with pytest.raises(EngineError, match="client 1: the client does not allow"):
            finished(deployment, config("fedavg"), tmp_path / "all", retries=0)
        rest = config("fedavg", rounds=1, min_clients=1)
        (record,) = finished(deployment, rest, tmp_path / "rest")
    finally:
        restarted(deployment, 1)
    assert [client.client for client in record.clients] == [0]
    (loss,) = record.dropouts
    assert (loss.client, "does not allow the mechanism none, only features" in loss.reason) == (
        1,
        True,
    )


def restarted(deployment: Loopback, client: int, **environment: str) -> None:
    """Starts or restarts the node of a client and waits until it is ready."""
    log = deployment.folder / f"node{client}.log"
    before = log.read_text().count("ready") if log.exists() else 0
    if f"node{client}" in deployment.processes:
        deployment.end(f"node{client}")
    key = deployment.folder / f"node{client}"
    deployment.environment = environment
    deployment.start_node(client, Link(deployment.address, deployment.folder / "ca.crt", key))
    deployment.environment = {}
    wait_until(lambda: log.read_text().count("ready") > before, PATIENT)


def test_a_killed_node_drops_out_and_the_run_goes_on(
    deployment: Loopback, tmp_path: Path
) -> None:
    slow = config("fedavg", rounds=1, min_clients=1, **{"local.epochs": 150})
    log = deployment.folder / "node1.log"
    before = log.read_text().count("train started")
    file = tmp_path / "slow.toml"
    file.write_text(slow.to_toml())
    out = tmp_path / "run"
    run = deployment.run_app({"config": str(file), "out": str(out), "retries": 0})
    wait_until(lambda: log.read_text().count("train started") > before, PATIENT)
    deployment.end("node1", signal.SIGKILL)
    try:
        (record,) = deployment.rounds(run, out)
    finally:
        restarted(deployment, 1)
    assert [client.client for client in record.clients] == [0]
    assert [dropout.client for dropout in record.dropouts] == [1]


def test_killed_and_resumed_it_has_the_same_bits(deployment: Loopback, tmp_path: Path) -> None:
    """Kills SuperLink, server and a node after a round; SCAFFOLD needs the clients' memory."""
    ours = config("scaffold", rounds=3)
    execute(ours, tmp_path / "here", Observer())
    file, out = tmp_path / "config.toml", tmp_path / "there"
    file.write_text(ours.to_toml())
    run = deployment.run_app({"config": str(file), "out": str(out)})
    next(deployment.rounds(run, out))
    deployment.end("superlink", signal.SIGKILL)
    deployment.end("node0", signal.SIGKILL)
    assert not (out / "model.safetensors").exists()
    deployment.start_superlink()
    restarted(deployment, 0)
    run = deployment.run_app({"resume": str(out)})
    list(deployment.rounds(run, out))
    assert same_bits(out, tmp_path / "here")


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    folder = tmp_path / "up"
    options = ["--folder", folder, "--out", tmp_path / "run", "--rounds", 500]
    with running(tmp_path, "flower", "up", "--clients", 1, *options) as process:
        wait_until(lambda: (tmp_path / "run" / "results.jsonl").exists(), PATIENT)
        assert len(processes_of(folder)) >= 4  # SuperLink, its helper, a node and its SuperNode
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENT)
    assert process.returncode == 130
    assert "Interrupted." in said
    wait_until(lambda: not processes_of(folder), PATIENT, every=0.2)


def processes_of(folder: Path) -> list[str]:
    """Returns the commands of all processes that name a folder."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            commands.append((process / "cmdline").read_text().replace("\0", " "))
    return [command for command in commands if f"{folder}/" in command]
