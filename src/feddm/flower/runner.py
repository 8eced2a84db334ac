"""A node that runs the installed app, and nothing that a server sends.

Flower ships the client app from the server to the nodes, so that a server could send another
program and void every guarantee. Here the SuperNode starts no app: it hands messages to this
process, which answers them with the app that is installed beside it. The bundle of the server
is neither unpacked nor imported; one that is not FedDM's own is refused.

The app stays in memory from message to message, which saves the seconds that torch takes to
import. The calls below are those of Flower's own ``flwr-clientapp``; they are not a public
interface, which is one reason why the version of Flower is pinned.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import (
    pull_task_input,
    push_message,
    push_task_output,
)

from feddm import durable
from feddm.errors import EngineError
from feddm.flower import wire

APP = "feddm/feddm-app"  # the only one that is answered
POLL = 0.2  # seconds
START = 60.0  # seconds that a SuperNode may take to start

Log = Callable[[str], None]


@dataclass(frozen=True)
class Link:
    """The way to the SuperLink.

    Args:
        superlink: Its address.
        certificates: Of the authority that vouches for it; ``None`` asks the system's.
        key: The node's private key, by which the SuperLink knows it.
        insecure: No encryption, and then no key.
    """

    superlink: str
    certificates: Path | None = None
    key: Path | None = None
    insecure: bool = False

    @property
    def options(self) -> list[str]:
        """As the SuperNode takes them."""
        options = ["--superlink", self.superlink]
        if self.insecure:
            return [*options, "--insecure"]
        if self.certificates is not None:
            options += ["--root-certificates", str(self.certificates)]
        if self.key is not None:
            options += ["--auth-supernode-private-key", str(self.key)]
        return options


def serve(link: Link, node_config: Mapping[str, str | int], folder: Path, log: Log) -> None:
    """Answers messages until the SuperNode ends, which is an `EngineError`.

    Args:
        link: The way to the SuperLink.
        node_config: What the node's owner says about it.
        folder: Of the node.
        log: Is told what people may want to know.
    """
    from feddm.flower.client_app import app  # here, because torch takes long to import

    secret = secrets.token_bytes(32)
    address = f"127.0.0.1:{free_port()}"
    with _supernode(link, node_config, folder, address, secret) as process:
        client = _client(
            address,
            SuperExecAuthHttpInterceptor(
                master_secret=secret,
                protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"}),
            ),
        )
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        _wait_for(address, process)
        log("the node is ready")
        while process.poll() is None:
            try:
                answer = client.AcquireTask(wanted)
            except httpx.HTTPError:
                time.sleep(POLL)  # it may be about to end, which the next look will show
                continue
            if answer.token:
                answered(address, answer.token, app, log)
            else:
                time.sleep(POLL)
        raise EngineError(
            f"the SuperNode ended with code {process.returncode}; supernode.log in {folder} "
            "says why"
        )


def answered(address: str, token: str, app: ClientApp, log: Log) -> None:
    """Answers one message of the SuperNode with the app, if it is meant for it."""
    client = _client(address, RuntimeTokenHttpInterceptor(token))
    heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heart.start()
    try:
        message, context, run, _ = pull_task_input(client)
        log(f"{message.metadata.message_type} begun")
        if run.fab_id == APP:
            reply = app(message=message, context=context)
        else:
            log(f"refused: the server sent {run.fab_id!r}")
            reason = f"this node runs {APP} alone, as it is installed here"
            reply = Message(wire.to_error(reason), reply_to=message)
        push_message(client, reply, context)
        push_task_output(client, context, SubStatus.COMPLETED, "")
        log(f"{message.metadata.message_type} answered")
    except httpx.HTTPError as error:
        log(
            f"a message could not be answered: {error}"
        )  # the server waits no longer than it may
    finally:
        heart.stop()
        client.close()


def free_port() -> int:
    """Returns a port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _client(address: str, interceptor: ProtobufClientInterceptor) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # of this machine
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            interceptor,
        ],
        retry_invoker=make_simple_http_retry_invoker(),
    )


@contextlib.contextmanager
def _supernode(
    link: Link,
    node_config: Mapping[str, str | int],
    folder: Path,
    address: str,
    secret: bytes,
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts Flower's SuperNode, which starts no app, and ends it afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    shared = folder / "supernode.secret"
    shared.unlink(missing_ok=True)
    durable.write(shared, secret, durable.OWNER)
    host, _, port = address.partition(":")
    values = " ".join(
        f"{key}={value}" if isinstance(value, int) else f'{key}="{value}"'
        for key, value in node_config.items()
    )
    command = [
        *(command_of("flower-supernode"), *link.options),
        *("--isolation", "process", "--host", host, "--port", port),
        *("--superexec-auth-secret-file", str(shared), "--node-config", values),
    ]
    with (folder / "supernode.log").open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shared.unlink(missing_ok=True)


def command_of(name: str) -> str:
    """Returns the path of a program that is installed beside this Python."""
    return str(Path(sys.executable).parent / name)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    host, _, port = address.partition(":")
    deadline = time.monotonic() + START
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return
        time.sleep(POLL)
