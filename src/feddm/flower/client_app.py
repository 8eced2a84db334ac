"""The client app of Flower: what a node does with a message."""

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


def client_app(load: Load | None = None) -> ClientApp:
    """Returns a client app.

    Args:
        load: Returns the examples of a node, for federations on data of the nodes' own: uint8
            images of (n, channels, height, width), and class numbers. Without it a node says
            in its configuration what it has.
    """
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return answered(message, context, lambda node, job: wire.to_hello(node.hello(job)))

    @app.train()
    def work(message: Message, context: Context) -> Message:
        return answered(message, context, lambda node, job: wire.to_reply(*node.work(job)))

    @app.evaluate()
    def judge(message: Message, context: Context) -> Message:
        return answered(message, context, lambda node, job: wire.to_site(node.judge(job)))

    def answered(
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
    """Returns the answer, or why there is none.

    An error's own text stays here if it may be about examples: under privacy, and for whatever
    nobody foresaw.
    """
    keep_freed_memory()
    settings: Settings | None = None
    private = True
    try:
        settings = settings_of(context.node_config)
        job = wire.from_job(content)
        private = job.config.privacy.mechanism != "none"
        return do(Node(settings, load), job)
    except (BudgetError, ConfigError, LedgerError) as error:
        told = str(error)
    except Exception as error:
        told = str(error)
        if private or not isinstance(error, FedDMError):
            told = _written_down(settings)
    return wire.to_error(told, None if settings is None else settings.client)


def _written_down(settings: Settings | None) -> str:
    """Keeps the error on this node, and returns what the server may know of it."""
    trace = traceback.format_exc()
    if settings is None:
        print(trace, file=sys.stderr)
        return "the node failed"
    try:
        files.make_private(settings.folder)
        # For its owner alone: it may be about examples.
        with open(settings.folder / "errors.log", "ab", opener=_private) as file:
            file.write(f"{now()}\n{trace}\n".encode(errors="backslashreplace"))
    except OSError:
        print(trace, file=sys.stderr)
    return f"client {settings.client} failed; errors.log in the folder of its node says why"


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, files.OWNER)
