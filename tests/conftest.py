"""Settings of all tests."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# Timing is not tested: on a busy machine an example takes as long as it takes.
settings.register_profile("feddm", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("feddm")


@pytest.fixture(scope="session", autouse=True)
def home_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps tests away from the ledgers and the policy of whoever runs them."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDDM_POLICY", raising=False)
        patch.setenv("XDG_DATA_HOME", str(home / "data"))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        yield


@pytest.fixture
def inside_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages in its own processes alone, and takes this for one of them."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
