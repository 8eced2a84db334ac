"""The client app of Flower: what a node does with a message."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from feddm.allocation import keep_freed_memory
from feddm.errors import BudgetError, ConfigError, FedDMError, LedgerError
from feddm.flower import wire
from feddm.flower.node import Job, Node, Settings, settings_of
from feddm.ledger import now

app = ClientApp()


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Says which client this is, or why it does not take part."""
    return _answered(message, context, lambda node, job: wire.to_hello(node.hello(job)))


@app.train()
def work(message: Message, context: Context) -> Message:
    """Does a client's work of one round."""
    return _answered(message, context, lambda node, job: wire.to_reply(*node.work(job)))


@app.evaluate()
def judge(message: Message, context: Context) -> Message:
    """Says how well a model does on what this node holds out."""
    return _answered(message, context, lambda node, job: wire.to_site(node.judge(job)))


def _answered(
    message: Message, context: Context, do: Callable[[Node, Job], RecordDict]
) -> Message:
    """Returns the answer, or why there is none.

    An error's own text stays here if it may be about examples: under privacy, and for whatever
    nobody foresaw.
    """
    keep_freed_memory()
    settings: Settings | None = None
    private = True
    try:
        settings = settings_of(context.node_config)
        job = wire.from_job(message.content)
        private = job.config.privacy.mechanism != "none"
        return Message(do(Node(settings), job), reply_to=message)
    except (BudgetError, ConfigError, LedgerError) as error:
        return Message(wire.to_error(str(error)), reply_to=message)
    except Exception as error:
        if isinstance(error, FedDMError) and not private:
            return Message(wire.to_error(str(error)), reply_to=message)
        told = _written_down(settings)
    return Message(wire.to_error(told), reply_to=message)


def _written_down(settings: Settings | None) -> str:
    """Keeps the error on this node, and returns what the server may know of it."""
    if settings is None:
        return "the node failed"
    path = settings.folder / "errors.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{now()}\n{traceback.format_exc()}\n")
    except OSError:
        traceback.print_exc()
    return f"client {settings.client} failed; errors.log in the folder of its node says why"
