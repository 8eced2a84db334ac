"""The Flower client app: answers the messages that a node receives."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from feddm.core import files
from feddm.core.malloc import keep_freed_memory
from feddm.errors import BudgetError, ConfigError, FedDMError, LedgerError
from feddm.flower import wire
from feddm.flower.node import Job, Node, Settings, settings_of
from feddm.privacy.ledger import now

Load = Callable[[Context], tuple[Tensor, Tensor]]
# Paths, and what other federations released, are nobody's business but the owner's.
LEDGER_FAILED = "the node cannot use its ledger or its policy; its errors.log says why"


def client_app(load: Load | None = None) -> ClientApp:
    """Returns a client app.

    Args:
        load: Returns the node's own data: uint8 images of shape (n, channels, height, width),
            and labels. Without it, the node's configuration says what data it has.
    """
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return reply(message, context, lambda node, job: wire.to_hello(node.hello(job)))

    @app.train()
    def work(message: Message, context: Context) -> Message:
        return reply(message, context, lambda node, job: wire.to_reply(*node.work(job)))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return reply(message, context, lambda node, job: wire.to_site(node.evaluate(job)))

    def reply(
        message: Message, context: Context, do: Callable[[Node, Job], RecordDict]
    ) -> Message:
        own = None if load is None else functools.partial(load, context)
        return Message(_answer(message.content, context, own, do), reply_to=message)

    return app


app = client_app()


def _answer(
    content: RecordDict,
    context: Context,
    load: Callable[[], tuple[Tensor, Tensor]] | None,
    do: Callable[[Node, Job], RecordDict],
) -> RecordDict:
    """Returns the answer, or the reason why there is none.

    The text of an error stays on this node if it could reveal something about examples: under
    privacy, and for any unexpected error. So do paths, and epsilons of other federations.
    """
    keep_freed_memory()
    settings: Settings | None = None
    private = True
    try:
        settings = settings_of(context.node_config)
        job = wire.from_job(content)
        private = job.config.privacy is not None
        return do(Node(settings, load), job)
    except ConfigError as error:
        reason = str(error)
    except BudgetError as error:
        _log_error(settings)
        reason = error.told
    except LedgerError:
        _log_error(settings)
        reason = LEDGER_FAILED
    except Exception as error:
        reason = str(error)
        if private or not isinstance(error, FedDMError):
            reason = _log_error(settings)
    return wire.to_error(reason, None if settings is None else settings.client)


def _log_error(settings: Settings | None) -> str:
    """Logs the current error on this node and returns what the server may know about it."""
    trace = traceback.format_exc()
    if settings is None:
        print(trace, file=sys.stderr)
        return "the node failed; its standard error says why"
    try:
        files.make_private(settings.folder)
        # Only the owner may read it: it could reveal something about examples.
        with open(settings.folder / "errors.log", "ab", opener=_private) as file:
            file.write(f"{now()}\n{trace}\n".encode(errors="backslashreplace"))
    except OSError:
        print(trace, file=sys.stderr)
    return f"client {settings.client} failed; see errors.log in its node's folder"


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, files.OWNER)
