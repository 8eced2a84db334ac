"""What a node says about what leaves it; whole deployments are in test_deployment.py."""

from __future__ import annotations

import hashlib

import pytest
import torch
from flwr.app import Error, Message, RecordDict

from feddm.engines.base import Reply
from feddm.flower import wire
from feddm.flower.runner import described

pytestmark = pytest.mark.usefixtures("inside_an_app")


def reply(content: RecordDict | Error) -> Message:
    return Message(content, reply_to=Message(RecordDict(), dst_node_id=1, message_type="train"))


def test_arrays_have_their_size_and_hash() -> None:
    content = wire.to_reply(Reply(0, {"images": {"x": torch.zeros(1000)}}, {}, 1.0), False)
    (record,) = content.array_records.values()
    (array,) = record.values()
    digest = hashlib.sha256(array.data).hexdigest()[:16]
    assert described(reply(content)) == f"{len(array.data):,} bytes, sha256 {digest}"
    assert 4000 <= len(array.data) < 4200  # the numbers, and a head that says what they are


def test_other_numbers_have_another_hash() -> None:
    texts = {
        described(reply(wire.to_reply(Reply(0, {"a": {"x": torch.tensor(n)}}, {}, 1.0), False)))
        for n in (1.0, 2.0)
    }
    assert len(texts) == 2


def test_a_refusal_has_no_arrays() -> None:
    assert described(reply(wire.to_error("no"))) == "no arrays"
    assert described(reply(Error(code=0, reason="on fire"))) == "an error"
