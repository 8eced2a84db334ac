"""What a node tells the server when something goes wrong, and what it keeps to itself."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, MessageType, RecordDict

from feddm.config.resolve import resolve
from feddm.errors import (
    BudgetError,
    ConfigError,
    DataError,
    EngineError,
    LedgerError,
    UploadError,
)
from feddm.flower import wire
from feddm.flower.client_app import LEDGER_FAILED, app, client_app
from feddm.flower.node import Job, Node
from feddm.runtime.federation import SiteRecord
from tiny import CLIENTS, SETTINGS

pytestmark = pytest.mark.usefixtures("inside_an_app")

OPEN = resolve(
    options={"algorithm": "fedavg", "clients": CLIENTS}, settings=SETTINGS, shared=True
)
PRIVATE = resolve(
    options={"clients": CLIENTS, "epsilon": 4.0, "privacy": "features"},
    settings=SETTINGS,
    shared=True,
)
KINDS = (MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE)
METHODS = ("hello", "work", "evaluate")


def context(folder: Path, **more: Any) -> Context:
    given = {"partition-id": 1, "folder": str(folder), **more}
    return Context(1, 1, given, RecordDict(), {})


def asked(
    content: RecordDict, where: Context, kind: str = MessageType.QUERY, of: Any = app
) -> RecordDict:
    """Returns the app's answer."""
    reply = of(Message(content, dst_node_id=1, message_type=kind), where)
    assert isinstance(reply, Message)
    assert not reply.has_error()
    return reply.content


def error_of(content: RecordDict) -> str:
    """Returns the error in an answer."""
    with pytest.raises(EngineError) as caught:
        wire.answer(content)
    return str(caught.value)


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> Any:
        raise error

    for method in METHODS:
        monkeypatch.setattr(Node, method, fail)


def test_it_answers_every_kind_of_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = SiteRecord(1, 0.5, 0.25, 1.0)
    monkeypatch.setattr(Node, "evaluate", lambda self, job: site)
    job = wire.to_job(Job("a" * 32, OPEN))
    assert wire.from_hello(asked(job, context(tmp_path))) == 1
    assert wire.from_site(asked(job, context(tmp_path), MessageType.EVALUATE), 1) == site


def test_it_answers_a_task(tmp_path: Path) -> None:
    # `load` returns one image of each of two classes.
    own = {
        "data.name": "own",
        "data.own.classes": ["a", "b"],
        "data.own.shape": [1, 8, 8],
        "min_class_size": 1,
    }
    config = resolve(
        options={"algorithm": "real", "clients": 2}, settings={**SETTINGS, **own}, shared=True
    )
    seen: list[Context] = []

    def load(where: Context) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(where)
        return torch.arange(128).byte().view(2, 1, 8, 8), torch.tensor([1, 0])

    job = wire.to_job(Job("a" * 32, config, round=1))
    where = context(tmp_path)
    reply, remembers = wire.from_reply(
        asked(job, where, MessageType.TRAIN, client_app(load)), 1
    )
    assert reply.metrics["images"] == 2
    assert reply.upload["examples"]["y"].tolist() == [0, 1]
    assert not remembers
    assert seen == [where]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [DataError, EngineError, UploadError])
def test_without_privacy_the_server_learns_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception]
) -> None:
    failing(monkeypatch, error("the class 'moles' is not known"))
    answer = asked(wire.to_job(Job("a" * 32, OPEN)), context(tmp_path / "node"), kind)
    assert error_of(answer) == "the class 'moles' is not known"
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [OPEN, PRIVATE], ids=["open", "private"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("a round has 3 clients"), "a round has 3 clients"),
        (BudgetError("it may spend 4 (/home/a/policy.toml)", told="no more"), "no more"),
        (LedgerError("/home/a/policy.toml is damaged"), LEDGER_FAILED),
    ],
)
def test_the_server_always_learns_why_a_node_refuses_but_no_paths(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    config: Any,
    error: Exception,
    told: str,
) -> None:
    failing(monkeypatch, error)
    answer = asked(wire.to_job(Job("a" * 32, config)), context(tmp_path / "node"), kind)
    assert error_of(answer) == told
    if told != str(error):  # the owner can read all of it
        assert "/home/a" in (tmp_path / "node/errors.log").read_text()


def test_a_real_refusal_has_no_path_and_no_other_epsilon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("epsilon = 0.01")
    monkeypatch.setenv("FEDDM_POLICY", str(policy))
    noise = {"privacy.mechanism": "features", "privacy.noise_multiplier": 20.0}
    private = resolve(options={"clients": CLIENTS}, settings={**SETTINGS, **noise}, shared=True)
    told = error_of(asked(wire.to_job(Job("a" * 32, private)), context(tmp_path / "node")))
    assert told == "the client's privacy budget does not allow this round"


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (PRIVATE, DataError("the image of Anna is damaged")),
        (PRIVATE, EngineError("Anna failed")),
        (PRIVATE, ValueError("Anna is ill")),
        (OPEN, ValueError("Anna is ill")),  # unexpected, so it may say anything
        (OPEN, KeyError("Anna")),
        (OPEN, OSError("Anna\udc80.png")),  # a name that is not text
        (OPEN, MemoryError("Anna is too large")),
    ],
    ids=str,
)
def test_errors_that_may_reveal_examples_stay_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any, error: Exception
) -> None:
    failing(monkeypatch, error)
    for _ in range(2):
        answer = asked(wire.to_job(Job("a" * 32, config)), context(tmp_path / "node"))
        assert error_of(answer) == ("client 1 failed; see errors.log in its node's folder")
        assert "Anna" not in str(answer)
    log = tmp_path / "node/errors.log"
    text = log.read_text()
    assert text.count("Traceback") == 2
    assert text.count("Anna") >= 2
    assert text.startswith("20")  # the time
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700


def test_the_server_gets_the_same_answer_if_the_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, ValueError("Anna is ill"))
    (tmp_path / "node").write_text("a file")
    answer = asked(wire.to_job(Job("a" * 32, OPEN)), context(tmp_path / "node"))
    assert error_of(answer).startswith("client 1 failed")
    assert "Anna is ill" in capsys.readouterr().err


def test_the_server_learns_that_its_message_is_invalid(tmp_path: Path) -> None:
    assert "not one of feddm" in error_of(asked(RecordDict(), context(tmp_path)))
    job = wire.to_job(Job("a" * 32, PRIVATE))
    job.config_records[wire.ABOUT]["version"] = "0.0.1"
    assert "and the server 0.0.1" in error_of(asked(job, context(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_the_server_learns_that_a_node_is_misconfigured(tmp_path: Path) -> None:
    job = wire.to_job(Job("a" * 32, PRIVATE))
    assert "unknown key client" in error_of(asked(job, context(tmp_path, client=3)))


def test_a_real_refusal_under_privacy_names_the_other_data(tmp_path: Path) -> None:
    # The text is about the server's request, not about examples.
    noise = {"privacy.mechanism": "features", "privacy.noise_multiplier": 20.0}
    private = resolve(options={"clients": CLIENTS}, settings={**SETTINGS, **noise}, shared=True)
    where = context(tmp_path, dataset="lesions", data=str(tmp_path))
    told = error_of(asked(wire.to_job(Job("a" * 32, private)), where))
    assert told == "this node has lesions, but the server asks for digits"
