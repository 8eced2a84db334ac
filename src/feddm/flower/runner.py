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

APP = "feddm/feddm-app"  # the only one that is answered
POLL = 0.2  # seconds between two looks
PAUSE = 10.0  # seconds before a SuperNode is started again
PATIENCE = 300.0  # seconds for which that is tried in vain
RETRY = 60.0  # seconds for which a lost connection to the SuperNode is tried again

Log = Callable[[str], None]

_busy = threading.Lock()


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
    """Answers messages until somebody ends it; raises `EngineError` if nobody lets it in.

    A SuperNode that ends is started again for a while: a SuperLink takes some time to notice
    that a node is gone, and does not let the same one in twice.

    Args:
        link: The way to the SuperLink.
        node_config: What the node's owner says about it.
        folder: Of the node.
        log: Is told what people may want to know.
    """
    from feddm.flower.client_app import app  # here, because torch takes long to import

    log(f"looking for {link.superlink}; {folder / 'supernode.log'} says more")
    last_good = time.monotonic()
    while True:
        with _supernode(link, node_config, folder) as node:
            if _is_in(node):
                log("the node is ready")
                _answer_all(node, app, log)
                last_good = time.monotonic()
        reason = _last_reason(node.log)
        if time.monotonic() - last_good > PATIENCE:
            raise EngineError(f"the SuperNode ended: {reason} ({node.log} says more)")
        log(f"the SuperNode ended: {reason}; it is started again in {PAUSE:g} s")
        time.sleep(PAUSE)


@dataclass(frozen=True)
class _SuperNode:
    """A SuperNode that runs.

    Args:
        process: It.
        address: Where it hands messages out.
        secret: What it takes to get them.
        log: What it says.
        begin: Where that begins in the file.
    """

    process: subprocess.Popen[bytes]
    address: str
    secret: bytes
    log: Path
    begin: int


def _answer_all(node: _SuperNode, app: ClientApp, log: Log) -> None:
    """Answers messages until the SuperNode ends."""
    auth = SuperExecAuthHttpInterceptor(
        master_secret=node.secret,
        protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"}),
    )
    client = _client(node.address, auth)
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while node.process.poll() is None:
        token = ""
        with contextlib.suppress(httpx.HTTPError):  # it may be about to end
            token = client.AcquireTask(wanted).token
        if not token:
            time.sleep(POLL)
            continue
        # A thread of its own: a message of a server that died may never arrive in whole, and
        # must not keep others waiting.
        answer = functools.partial(answered, node.address, token, app, log)
        threading.Thread(target=answer, daemon=True).start()
    client.close()


def described(reply: Message) -> str:
    """Returns what leaves with a reply, as the log of private uploads has it."""
    if reply.has_error():
        return "an error"
    upload = wire.from_arrays(reply.content)
    if not upload:
        return "no tensors"
    digest = hashlib.sha256(to_bytes(upload)).hexdigest()
    return f"{num_bytes(upload):,} bytes of tensors, sha256 {digest[:16]}"


def answered(address: str, token: str, app: ClientApp, log: Log) -> None:
    """Answers one message of the SuperNode with the app, if it is meant for it."""
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
        log(f"{message.metadata.message_type} begun")
        if run.fab_id == APP:
            # One at a time, also if one began under a SuperNode that is gone: the number of
            # torch's threads, on which bits depend, is that of the whole process.
            with _busy:
                reply = app(message=message, context=context)
        else:
            log(f"refused: the server sent {run.fab_id!r}")
            reason = f"this node runs {APP} alone, as it is installed here"
            reply = Message(wire.to_error(reason), reply_to=message)
        kind = message.metadata.message_type
        log(f"{now()} {kind} is answered with {described(reply)}")
        push_message(client, reply, context)
        push_task_output(client, context, SubStatus.COMPLETED, "")
    except Exception as error:  # whatever it is, the next message must find somebody
        log(f"a message could not be answered: {type(error).__name__}: {error}")
    finally:
        if heart.is_running:
            heart.stop()
        client.close()


def _beat(client: RuntimeHttpClient) -> bool:
    """Says that the work goes on. Flower's own would end the process if nobody cares."""
    with contextlib.suppress(httpx.HTTPError):
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    return True


def free_port() -> int:
    """Returns a port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _client(
    address: str, interceptor: ProtobufClientInterceptor, retry: RetryInvoker | None = None
) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # of this machine
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
    """Starts Flower's SuperNode, which starts no app, and ends it afterwards."""
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


def _is_in(node: _SuperNode) -> bool:
    """Waits until the SuperLink has let the SuperNode in, or it has ended."""
    while node.process.poll() is None:
        with node.log.open("rb") as file:
            file.seek(node.begin)
            if b"SuperNode ID" in file.read():  # which it gets when it is let in
                return True
        time.sleep(POLL)
    return False


def _last_reason(log: Path) -> str:
    """Returns what the SuperNode said last of what went wrong."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    reasons = [line for line in lines if line.startswith("[code") or "Failed" in line]
    return (reasons or ["without a word"])[-1].strip()


def command_of(name: str) -> str:
    """Returns the path of a program that is installed beside this Python."""
    return str(Path(sys.executable).parent / name)
