"""Whole runs under a budget: interrupted, repeated, and stopped before they spend too much."""

import hashlib
import json
import math
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feddm import federation, vault
from feddm.api import Observer, RunResult, resume
from feddm.config import resolve
from feddm.errors import BudgetError, ConfigError, RunDirectoryError
from feddm.federation import RoundRecord
from feddm.metrics import evaluate
from feddm.privacy.accounting import Released, epsilon
from feddm.privacy.noise import Secret
from feddm.privacy_rules import unused
from tiny import CLIENTS, SETTINGS, run_tiny, timeless_results

GIVEN = 20.0  # a noise multiplier with which a round costs little
KINDS: dict[str, dict[str, Any]] = {
    "features": {"epsilon": 4.0},
    "server": {"epsilon": 4.0, "set": {"privacy.learn": "server"}},
    "gradients": {"epsilon": 4.0, "privacy": "gradients"},
    "fedavg": {"epsilon": 4.0, "algorithm": "fedavg"},
    "fedprox": {"epsilon": 4.0, "algorithm": "fedprox"},
    "fednova": {"epsilon": 4.0, "algorithm": "fednova"},
    "scaffold": {"epsilon": 4.0, "algorithm": "scaffold"},
}


def private_run(
    folder: Path,
    kind: str = "features",
    out: Path | None = None,
    **more: Any,
) -> RunResult:
    """Runs it with its ledgers in a folder; a sample rate of 1 is quickly accounted for."""
    options = KINDS[kind] | more
    settings = SETTINGS | {
        "privacy.ledger": str(folder),
        "privacy.steps": 2,
        "privacy.sample_rate": 1.0,
        "synthesis.images_per_class": 1,
    }
    for given in (KINDS[kind].get("set", {}), more.get("set", {})):
        settings |= given
    idle = unused(options.get("algorithm", "feddm"), mechanism(kind))
    used = {key: value for key, value in settings.items() if key not in idle}
    return run_tiny(out, **options | {"set": used})


REAL_SECRET = vault._secret


def known_secret(path: Path) -> Secret:
    return Secret(hashlib.sha256(path.parent.name.encode()).digest())


@pytest.fixture(scope="module", autouse=True)
def secrets_that_we_know() -> Iterator[None]:
    """Gives every client a secret by its name, so that bits can be compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vault, "_secret", known_secret)
        yield


def ledgers(folder: Path) -> list[list[dict[str, Any]]]:
    """Returns the lines of each ledger in a folder."""
    files = sorted(folder.rglob("ledger.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives all runs one name: it decides the noise, and here bits are compared."""
    monkeypatch.setattr("feddm.api.uuid.uuid4", lambda: uuid.UUID(int=1))


class Stops(Exception):
    """Ends a run."""


def dies_in_round(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends a run when all uploads of a round are there, and nothing of it is written down."""
    calls: list[int] = []

    def dying(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            raise Stops
        return evaluate(*arguments)

    monkeypatch.setattr(federation, "evaluate", dying)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(kind: str, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Returns a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        same_name(patch)
        return private_run(folder / "ledger", kind, folder / "run")


def test_epsilon_grows_up_to_the_budget(whole: RunResult) -> None:
    assert whole.directory is not None
    first, last = (line["epsilon"] for line in timeless_results(whole.directory))
    assert 0 < first < last <= 4 * (1 + 1e-6)
    assert last > 3.99  # the noise is not more than the budget asks for


def test_what_left_is_sent_again(
    kind: str, whole: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_name(monkeypatch)
    with monkeypatch.context() as patch:
        dies_in_round(2, patch)
        with pytest.raises(Stops):
            private_run(tmp_path / "b", kind, tmp_path / "run")
    paid = ledgers(tmp_path / "b")
    assert [len(lines) for lines in paid] == [2] * CLIENTS  # all of round 2 has left
    with monkeypatch.context() as patch:
        # What left is sent again, and nobody looks at examples a second time.
        patch.setattr("feddm.privacy.release.gaussian", None)
        resumed = resume(tmp_path / "run", workers=1)
    assert ledgers(tmp_path / "b") == paid
    assert_same(resumed, whole)


def assert_same(resumed: RunResult, whole: RunResult) -> None:
    ours, theirs = resumed.directory, whole.directory
    assert ours is not None and theirs is not None
    assert timeless_results(ours) == timeless_results(theirs)
    for name in ("model.safetensors", "synthetic.safetensors"):
        one, other = (folder / name for folder in (ours, theirs))
        assert one.exists() == other.exists()
        assert not one.exists() or one.read_bytes() == other.read_bytes()


def test_a_run_that_is_resumed_between_rounds_has_the_same_bits(
    kind: str, whole: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # State and memories come from files now, in which names have another order.
    class AfterOne(Observer):
        def finished_round(self, record: RoundRecord) -> None:
            raise Stops

    same_name(monkeypatch)
    with pytest.raises(Stops):
        private_run(tmp_path / "b", kind, tmp_path / "run", observer=AfterOne())
    assert_same(resume(tmp_path / "run", workers=1), whole)


def test_only_epsilon_is_told_of_clients(tmp_path: Path) -> None:
    private_run(tmp_path / "ledger", out=tmp_path / "run")
    for line in (tmp_path / "run/results.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["client_seconds"] is None
        for client in record["clients"]:
            assert client["seconds"] is None
            assert client["metrics"] == {"epsilon": record["epsilon"]}


@pytest.mark.parametrize(("name", "seed"), [("features", 0), ("features", 1), ("fedavg", 0)])
def test_two_runs_cost_what_one_of_both_rounds_costs(
    name: str, seed: int, tmp_path: Path
) -> None:
    # With another seed the data are split in another way; an example pays for both runs.
    noise = {"privacy.noise_multiplier": GIVEN}
    one = private_run(tmp_path / "one", name, epsilon=None, privacy=mechanism(name), set=noise)
    for number in (0, seed):
        two = private_run(
            tmp_path / "two",
            name,
            rounds=1,
            seed=number,
            epsilon=None,
            privacy=mechanism(name),
            set=noise,
        )
    assert one.records[-1].epsilon is not None
    assert two.records[-1].epsilon == pytest.approx(one.records[-1].epsilon, rel=1e-9)
    assert 0 < one.records[-1].epsilon < math.inf


def mechanism(name: str) -> str:
    return "features" if name in ("features", "server") else "gradients"


def test_samples_make_it_cheaper(tmp_path: Path) -> None:
    result = private_run(
        tmp_path,
        "fedavg",
        epsilon=None,
        privacy="gradients",
        rounds=1,
        set={"privacy.noise_multiplier": 2.0, "privacy.sample_rate": 0.1},
    )
    expected = epsilon([Released(2, 2.0, 0.1)], 1e-5)
    assert result.records[-1].epsilon == pytest.approx(expected)
    assert expected < epsilon([Released(2, 2.0)], 1e-5)


def test_a_run_stops_before_the_round_that_would_exceed_the_budget(tmp_path: Path) -> None:
    # Two networks a round: enough for two rounds, not for a third.
    budget = epsilon([Released(5, GIVEN)], 1e-5)
    with pytest.raises(BudgetError, match="a client would have spent"):
        private_run(
            tmp_path / "ledger",
            out=tmp_path / "run",
            rounds=3,
            epsilon=budget,
            set={"privacy.noise_multiplier": GIVEN},
        )
    lines = (tmp_path / "run/results.jsonl").read_text().splitlines()
    spent = [json.loads(line)["epsilon"] for line in lines]
    assert len(spent) == 2
    assert spent[1] < budget
    assert [len(lines) for lines in ledgers(tmp_path / "ledger")] == [2] * CLIENTS


def test_a_later_run_has_what_is_left(tmp_path: Path) -> None:
    first = private_run(tmp_path, rounds=1, epsilon=2.0)
    with pytest.raises(BudgetError, match=r"epsilon may be 2 .*, and 2 is spent"):
        private_run(tmp_path, rounds=1, epsilon=2.0)
    second = private_run(tmp_path, rounds=1, epsilon=4.0)
    assert second.records[-1].epsilon == pytest.approx(4.0, rel=1e-4)
    # It has less noise than after a run with no other before it: 2 + 2 is less than 4.
    alone = private_run(tmp_path / "fresh", rounds=1, epsilon=2.0)
    noise = [r.config.privacy.noise_multiplier for r in (first, second, alone)]
    assert noise[0] == noise[2] > noise[1]


def test_epsilon_is_the_most_of_any_client_whoever_takes_part(tmp_path: Path) -> None:
    result = private_run(
        tmp_path / "ledger",
        "server",
        out=tmp_path / "run",
        rounds=5,
        seed=3,  # clients 2, 2, 0, 2 and 1 take part
        participation=0.34,
        epsilon=None,
        privacy="features",
        set={"privacy.noise_multiplier": GIVEN},
    )
    most: list[float] = []
    for record in result.records:
        assert record.epsilon is not None
        times = {client: 0 for client in range(CLIENTS)}
        for earlier in result.records[: record.round]:
            for client in earlier.clients:
                times[client.client] += 2
        most.append(epsilon([Released(max(times.values()), GIVEN)], 1e-5))
    assert [record.epsilon for record in result.records] == pytest.approx(most)


def test_fixed_secrets_are_told(tmp_path: Path) -> None:
    class Listener(Observer):
        def __init__(self) -> None:
            self.notices: list[str] = []

        def notice(self, text: str) -> None:
            self.notices.append(text)

    for secret, told in (("test", True), ("", False)):
        listener = Listener()
        result = private_run(
            tmp_path / f"ledger{secret}",
            rounds=1,
            set={"privacy.test_secret": secret},
            observer=listener,
        )
        assert any("not private" in text for text in listener.notices) == told
        assert result.records[-1].epsilon == (math.inf if told else pytest.approx(4.0))
    uploads = next((tmp_path / "ledgertest").rglob("uploads.jsonl")).read_text()
    assert json.loads(uploads)["epsilon"] is None
    # Whoever comes later cannot take it for protected.
    with pytest.raises(BudgetError, match="without protection"):
        private_run(tmp_path / "ledgertest", rounds=1, epsilon=100.0)


def test_runs_have_noise_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same seed, which decides nothing of the noise.
    monkeypatch.setattr(vault, "_secret", REAL_SECRET)
    first, second = (private_run(tmp_path / name, "server", rounds=1) for name in ("a", "b"))
    assert first.synthetic is not None and second.synthetic is not None
    assert first.synthetic.to_bytes() != second.synthetic.to_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"privacy.mechanism": "none", "privacy.epsilon": 1.0}, "needs a mechanism"),
        ({"privacy.mechanism": "none", "privacy.noise_multiplier": 1.0}, "needs a mechanism"),
        ({"algorithm": "real", "privacy.epsilon": 1.0}, "real sends real images"),
        (
            {"algorithm": "fedavg", "privacy.mechanism": "features", "privacy.epsilon": 1.0},
            "features is for feddm, other algorithms take gradients",
        ),
        (
            {
                "algorithm": "scaffold",
                "privacy.mechanism": "paper",
                "privacy.noise_multiplier": 1.0,
            },
            "paper is for feddm, other algorithms take gradients",
        ),
        ({"privacy.mechanism": "features"}, "needs a budget or the noise"),
        ({"privacy.mechanism": "gradients"}, "needs a budget or the noise"),
        ({"privacy.mechanism": "paper", "privacy.epsilon": 1.0}, "paper gives no guarantee"),
        ({"privacy.epsilon": 1.0, "synthesis.start": "real"}, "start must be noise"),
        ({"privacy.epsilon": 1.0, "synthesis.start": "last"}, "start must be noise"),
        (
            {
                "privacy.mechanism": "gradients",
                "privacy.epsilon": 1.0,
                "synthesis.start": "real",
            },
            "start must be noise with --privacy gradients",
        ),
        ({"privacy.epsilon": 1.0, "synthesis.networks": "fresh"}, "every network is a release"),
        (
            {"privacy.epsilon": 1.0, "synthesis.second_moment": 0.5},
            "second_moment is not among",
        ),
        (
            {"algorithm": "fedavg", "privacy.epsilon": 1.0, "local.augment": True},
            r"local\.augment must be off",
        ),
        ({"privacy.epsilon": -1.0}, r"privacy\.epsilon must be"),
        ({"privacy.epsilon": 1.0, "privacy.delta": 1.0}, r"privacy\.delta must be"),
        (
            {
                "privacy.mechanism": "gradients",
                "privacy.epsilon": 1.0,
                "privacy.sample_rate": 0.0,
            },
            r"privacy\.sample_rate must be",
        ),
        ({"privacy.epsilon": 1.0, "model.norm": "batch"}, "void class means and privacy"),
    ],
)
def test_what_a_guarantee_excludes_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(settings=settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "none"),
        ({"epsilon": 1.0}, "features"),
        ({"epsilon": 1.0, "algorithm": "fedavg"}, "gradients"),
        ({"epsilon": 1.0, "privacy": "gradients"}, "gradients"),
    ],
)
def test_a_budget_asks_for_the_usual_mechanism(options: dict[str, Any], expected: str) -> None:
    config = resolve(options=options)
    assert config.privacy.mechanism == expected
    if expected != "none":
        assert config.synthesis.start == "noise"
    # Written down and read again it is the same run.
    again = resolve(config.model_dump())
    assert again == config


def test_a_ledger_is_the_same_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = private_run(Path("ledgers"), "server", tmp_path / "run", rounds=1)
    assert Path(result.config.privacy.ledger) == tmp_path / "ledgers"
    assert f'"{tmp_path}/ledgers"' in (tmp_path / "run" / "config.toml").read_text()


class TestDataThatAreNotThoseOfTheRun:
    """The directory of a private run has no digest of its data; the ledger knows them."""

    def interrupted(self, folder: Path) -> Path:
        class AfterOne(Observer):
            def finished_round(self, record: RoundRecord) -> None:
                raise Stops

        with pytest.raises(Stops):
            private_run(folder / "ledger", "server", folder / "run", observer=AfterOne())
        return folder / "run"

    def test_no_digest_is_written(self, tmp_path: Path) -> None:
        directory = self.interrupted(tmp_path)
        assert json.loads((directory / "environment.json").read_text())["data"] == ""

    def test_they_are_refused(self, tmp_path: Path) -> None:
        directory = self.interrupted(tmp_path)
        config = directory / "config.toml"
        text = config.read_text()
        config.write_text(text.replace("alpha = 0.5", "alpha = 0.75"))
        with pytest.raises(RunDirectoryError, match="not those that the run began with"):
            resume(directory, workers=1)
        config.write_text(text)
        assert len(resume(directory, workers=1).records) == 2
