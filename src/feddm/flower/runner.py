"""A node that only runs the installed app, never code that a server sends.

Flower ships the client app from the server to the nodes, so a server could send another program
and void every guarantee. Here the SuperNode starts no app. It hands messages to this process,
which answers them with the app installed on this machine. The server's bundle is never unpacked
or imported; a run of any app other than FedDM's is refused.

The app stays in memory between messages, which saves the seconds that importing torch takes.
The calls below are those of Flower's own ``flwr-clientapp``. They are not a public interface,
which is one reason why the version of Flower is pinned.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import (
    pull_task_input,
    push_message,
    push_task_output,
)

from feddm.core import files
from feddm.core.tensors import num_bytes, to_bytes
from feddm.errors import EngineError
from feddm.flower import wire
from feddm.privacy.ledger import now

APP = "feddm/feddm-app"  # the only app that a node runs
POLL = 0.2  # seconds between two polls
PAUSE = 10.0  # seconds before restarting a SuperNode
PATIENCE = 300.0  # seconds without success before giving up
RETRY = 60.0  # seconds for which to retry a lost connection to the SuperNode

Log = Callable[[str], None]

_busy = threading.Lock()


@dataclass(frozen=True)
class Link:
    """How a node connects to the SuperLink.

    Args:
        superlink: Address of the SuperLink.
        certificates: Root certificates to verify it with; ``None`` uses the system's.
        key: Private key that identifies the node to the SuperLink.
        insecure: Connect without encryption and without a key.
    """

    superlink: str
    certificates: Path | None = None
    key: Path | None = None
    insecure: bool = False

    @property
    def options(self) -> list[str]:
        """The command-line options for the SuperNode."""
        options = ["--superlink", self.superlink]
        if self.insecure:
            return [*options, "--insecure"]
        if self.certificates is not None:
            options += ["--root-certificates", str(self.certificates)]
        if self.key is not None:
            options += ["--auth-supernode-private-key", str(self.key)]
        return options


def serve(link: Link, node_config: Mapping[str, str | int], folder: Path, log: Log) -> None:
    """Answers messages until it is interrupted; raises `EngineError` if it cannot connect.

    A SuperNode that stops is restarted for a while: a SuperLink takes some time to notice that
    a node is gone, and refuses a second connection of the same node until then.

    Args:
        link: How to connect to the SuperLink.
        node_config: Flower configuration of the node.
        folder: Folder of the node.
        log: Receives messages for the user.
    """
    from feddm.flower.client_app import app  # not at the top: importing torch is slow

    log(f"connecting to {link.superlink}; see {folder / 'supernode.log'} for details")
    last_good = time.monotonic()
    while True:
        with _supernode(link, node_config, folder) as node:
            if _is_connected(node):
                log("the node is ready")
                _answer_all(node, app, log)
                last_good = time.monotonic()
        reason = _last_reason(node.log)
        if time.monotonic() - last_good > PATIENCE:
            raise EngineError(f"the SuperNode stopped: {reason}; see {node.log} for details")
        log(f"the SuperNode stopped: {reason}; restarting it in {PAUSE:g} s")
        time.sleep(PAUSE)


@dataclass(frozen=True)
class _SuperNode:
    """A running SuperNode.

    Args:
        process: Its process.
        address: Where it hands out messages.
        secret: Secret needed to get them.
        log: Its log file.
        begin: Offset in the log at which this process began.
    """

    process: subprocess.Popen[bytes]
    address: str
    secret: bytes
    log: Path
    begin: int


def _answer_all(node: _SuperNode, app: ClientApp, log: Log) -> None:
    """Answers messages until the SuperNode stops."""
    auth = SuperExecAuthHttpInterceptor(
        master_secret=node.secret,
        protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"}),
    )
    client = _client(node.address, auth)
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while node.process.poll() is None:
        token = ""
        with contextlib.suppress(httpx.HTTPError):  # it may be about to stop
            token = client.AcquireTask(wanted).token
        if not token:
            time.sleep(POLL)
            continue
        # In its own thread: a message from a server that died may never arrive completely, and
        # must not hold up the others.
        task = functools.partial(_answer, node.address, token, app, log)
        threading.Thread(target=task, daemon=True).start()
    client.close()


def reply_summary(reply: Message) -> str:
    """Returns the size and hash of a reply's tensors, as in the log of private uploads."""
    if reply.has_error():
        return "an error"
    upload = wire.from_arrays(reply.content)
    if not upload:
        return "no tensors"
    digest = hashlib.sha256(to_bytes(upload)).hexdigest()
    return f"{num_bytes(upload):,} bytes of tensors, sha256 {digest[:16]}"


def _answer(address: str, token: str, app: ClientApp, log: Log) -> None:
    """Answers one message from the SuperNode, or refuses it if it is for another app."""
    client = _client(
        address,
        RuntimeTokenHttpInterceptor(token),
        RetryInvoker(
            lambda: exponential(max_delay=5),
            httpx.TransportError,
            max_tries=None,
            max_time=RETRY,
        ),
    )
    heart = HeartbeatSender(functools.partial(_beat, client))
    heart.start()
    try:
        message, context, run, _ = pull_task_input(client)
        kind = message.metadata.message_type
        log(f"{kind} started")
        if run.fab_id == APP:
            # One at a time, even if the first came from a SuperNode that has stopped: results
            # depend on torch's number of threads, which is per process.
            with _busy:
                reply = app(message=message, context=context)
        else:
            log(f"refused to run the app {run.fab_id!r}")
            reason = f"this node only runs {APP}, as installed here"
            reply = Message(wire.to_error(reason), reply_to=message)
        log(f"{now()} answering {kind} with {reply_summary(reply)}")
        push_message(client, reply, context)
        push_task_output(client, context, SubStatus.COMPLETED, "")
    except Exception as error:  # whatever it is, the node must go on answering
        log(f"could not answer a message: {type(error).__name__}: {error}")
    finally:
        if heart.is_running:
            heart.stop()
        client.close()


def _beat(client: RuntimeHttpClient) -> bool:
    """Sends a heartbeat. Unlike Flower's own, it does not end the process if that fails."""
    with contextlib.suppress(httpx.HTTPError):
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    return True


def free_port() -> int:
    """Returns a port on this machine that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _client(
    address: str, interceptor: ProtobufClientInterceptor, retry: RetryInvoker | None = None
) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # it stays on this machine
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            interceptor,
        ],
        retry_invoker=retry,
    )


@contextlib.contextmanager
def _supernode(
    link: Link, node_config: Mapping[str, str | int], folder: Path
) -> Iterator[_SuperNode]:
    """Runs Flower's SuperNode, which itself starts no app, for the ``with`` block."""
    secret, port = secrets.token_bytes(32), str(free_port())
    with files.explained(EngineError, folder):
        files.make_private(folder)
    shared, log = folder / "supernode.secret", folder / "supernode.log"
    shared.unlink(missing_ok=True)
    files.write(shared, secret, files.OWNER)
    values = " ".join(
        f"{key}={value}" if isinstance(value, int) else f'{key}="{value}"'
        for key, value in node_config.items()
    )
    command = [
        *(command_of("flower-supernode"), *link.options),
        *("--isolation", "process", "--host", "127.0.0.1", "--port", port),
        *("--superexec-auth-secret-file", str(shared), "--node-config", values),
    ]
    with log.open("ab") as out:
        begin = out.tell()
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield _SuperNode(process, f"127.0.0.1:{port}", secret, log, begin)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shared.unlink(missing_ok=True)


def _is_connected(node: _SuperNode) -> bool:
    """Waits until the SuperNode has connected; False if it has stopped."""
    while node.process.poll() is None:
        with node.log.open("rb") as file:
            file.seek(node.begin)
            if b"SuperNode ID" in file.read():  # logged once the SuperLink has accepted it
                return True
        time.sleep(POLL)
    return False


def _last_reason(log: Path) -> str:
    """Returns the last error in the SuperNode's log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    reasons = [line for line in lines if line.startswith("[code") or "Failed" in line]
    return (reasons or ["no reason given"])[-1].strip()


def command_of(name: str) -> str:
    """Returns the path of a program installed in the environment of this Python."""
    return str(Path(sys.executable).parent / name)
