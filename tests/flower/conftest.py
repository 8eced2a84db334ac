"""What tests of the Flower side share."""

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture
def inside_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages in its own processes alone, and takes this for one of them."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
