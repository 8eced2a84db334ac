"""What a node logs about its uploads; whole deployments are in test_deployment.py."""

from __future__ import annotations

import hashlib

import pytest
import torch
from flwr.app import Error, Message, RecordDict

from feddm.core.tensors import to_bytes
from feddm.flower import wire
from feddm.flower.runner import reply_summary
from feddm.runtime.client import Reply

pytestmark = pytest.mark.usefixtures("inside_an_app")


def reply(content: RecordDict | Error) -> Message:
    return Message(content, reply_to=Message(RecordDict(), dst_node_id=1, message_type="train"))


def test_an_upload_has_its_size_and_hash() -> None:
    upload = {"images": {"x": torch.zeros(1000)}}
    content = wire.to_reply(Reply(0, upload, {}, 1.0), False)
    digest = hashlib.sha256(to_bytes(upload)).hexdigest()[:16]  # as in the upload log
    assert reply_summary(reply(content)) == f"4,000 bytes of tensors, sha256 {digest}"


def test_other_numbers_have_another_hash() -> None:
    uploads = [{"a": {"x": torch.tensor(value)}} for value in (1.0, 2.0)]
    replies = [reply(wire.to_reply(Reply(0, upload, {}, 1.0), False)) for upload in uploads]
    assert len({reply_summary(each) for each in replies}) == 2


def test_a_refusal_has_no_tensors() -> None:
    assert reply_summary(reply(wire.to_error("no"))) == "no tensors"
    assert reply_summary(reply(Error(code=0, reason="on fire"))) == "an error"
