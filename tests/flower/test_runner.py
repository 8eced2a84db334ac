"""What a node says about what leaves it; whole deployments are in test_deployment.py."""

from __future__ import annotations

import hashlib

import pytest
import torch
from flwr.app import Error, Message, RecordDict

from feddm.core.tensors import to_bytes
from feddm.flower import wire
from feddm.flower.runner import described
from feddm.runtime.client import Reply

pytestmark = pytest.mark.usefixtures("inside_an_app")


def reply(content: RecordDict | Error) -> Message:
    return Message(content, reply_to=Message(RecordDict(), dst_node_id=1, message_type="train"))


def test_an_upload_has_its_size_and_hash() -> None:
    upload = {"images": {"x": torch.zeros(1000)}}
    content = wire.to_reply(Reply(0, upload, {}, 1.0), False)
    digest = hashlib.sha256(to_bytes(upload)).hexdigest()[:16]  # as the log of uploads has it
    assert described(reply(content)) == f"4,000 bytes of tensors, sha256 {digest}"


def test_other_numbers_have_another_hash() -> None:
    texts = {
        described(reply(wire.to_reply(Reply(0, {"a": {"x": torch.tensor(n)}}, {}, 1.0), False)))
        for n in (1.0, 2.0)
    }
    assert len(texts) == 2


def test_a_refusal_has_no_tensors() -> None:
    assert described(reply(wire.to_error("no"))) == "no tensors"
    assert described(reply(Error(code=0, reason="on fire"))) == "an error"
