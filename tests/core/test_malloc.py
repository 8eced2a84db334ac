import sys

import pytest
import torch

from feddm.core.malloc import keep_freed_memory


def test_memory_still_works() -> None:
    assert keep_freed_memory() in (True, False)
    assert float(torch.ones(2**24).sum()) == 2**24


def test_other_systems_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert keep_freed_memory() is False
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_freed_memory() is False
