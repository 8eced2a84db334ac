"""Whole runs with a budget: interrupted, repeated, and stopped before they overspend."""

import hashlib
import io
import json
import math
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from feddm.cli import app
from feddm.config.resolve import flat, resolve
from feddm.config.schema import PrivacySettings
from feddm.core.metrics import evaluate
from feddm.errors import BudgetError, ConfigError, LedgerError, RunDirectoryError
from feddm.privacy import vault
from feddm.privacy.accounting import Released, epsilon
from feddm.privacy.ledger import run_ledger_root
from feddm.privacy.noise import Secret
from feddm.runtime import federation
from feddm.runtime.display import TextDisplay
from feddm.runtime.federation import RoundRecord
from feddm.runtime.run import Observer, RunResult, resume
from tiny import CLIENTS, SETTINGS, run_tiny, timeless_results

GIVEN = 20.0  # a noise multiplier that makes a round cheap
FEW = SETTINGS | {"data.validation": 0.9}  # training on a tenth of the examples
KINDS: dict[str, dict[str, Any]] = {
    "features": {"epsilon": 4.0, "privacy": "features", "set": {"privacy.learn": "client"}},
    "server": {"epsilon": 4.0, "privacy": "features"},
    "surrogate": {"epsilon": 4.0},
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
    """Runs it with its ledgers in a folder; a sample rate of 1 is quickly accounted for.

    ``Path()`` is the default place of ledgers.
    """
    options = KINDS[kind] | more
    # Noise on features hides small classes at random; a round without classes is an error.
    settings = (SETTINGS if mechanism(kind) == "features" else FEW) | {
        "privacy.ledger": "" if folder == Path() else str(folder),
        "privacy.steps": 2,
        "privacy.sample_rate": 1.0,
        "images_per_class": 1,
    }
    for given in (KINDS[kind].get("set", {}), more.get("set", {})):
        settings |= given
    return run_tiny(out, **options | {"set": settings})


def privacy_of(run: RunResult) -> PrivacySettings:
    assert run.config.privacy is not None
    return run.config.privacy


REAL_SECRET, REAL_NONCE = vault._secret, Secret.nonce


def known_secret(path: Path) -> Secret:
    return Secret(hashlib.sha256(path.parent.name.encode()).digest())


@pytest.fixture(scope="module", autouse=True)
def secrets_that_we_know() -> Iterator[None]:
    """Derives each client's secret from its name, so that bits can be compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vault, "_secret", known_secret)
        patch.setattr(Secret, "nonce", lambda self: bytes(32))
        yield


def ledgers(folder: Path) -> list[list[dict[str, Any]]]:
    """Returns the lines of each ledger in a folder."""
    files = sorted(folder.rglob("ledger.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives all runs one name, because the name changes the noise and bits are compared."""
    monkeypatch.setattr("feddm.runtime.run.uuid.uuid4", lambda: uuid.UUID(int=1))


class Stops(Exception):
    """Ends a run."""


def dies_in_round(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends a run when all uploads of a round have arrived and nothing of it is saved."""
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
    """Returns an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        same_name(patch)
        return private_run(folder / "ledger", kind, folder / "run")


def test_epsilon_grows_up_to_the_budget(whole: RunResult) -> None:
    assert whole.directory is not None
    first, last = (line["epsilon"] for line in timeless_results(whole.directory))
    assert 0 < first < last <= 4 * (1 + 1e-6)
    assert last > 3.99  # no more noise than the budget requires


def test_a_released_upload_is_sent_again(
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
        # It is sent again without a second look at the examples.
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


def test_resuming_between_rounds_gives_the_same_bits(
    kind: str, whole: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # State and memories now come from files, which order names differently.
    same_name(monkeypatch)
    with pytest.raises(Stops):
        private_run(tmp_path / "b", kind, tmp_path / "run", observer=AfterOne())
    assert_same(resume(tmp_path / "run", workers=1), whole)


@pytest.mark.parametrize("name", ["gradients", "fedavg"])
def test_samples_are_the_same_after_an_interruption(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_name(monkeypatch)
    sampled: dict[str, Any] = {
        "epsilon": None,
        "privacy": "gradients",
        "set": {"privacy.noise_multiplier": 2.0, "privacy.sample_rate": 0.1},
    }
    whole = private_run(tmp_path / "a", name, tmp_path / "whole", **sampled)
    with monkeypatch.context() as patch:
        dies_in_round(2, patch)
        with pytest.raises(Stops):
            private_run(tmp_path / "b", name, tmp_path / "run", **sampled)
    paid = ledgers(tmp_path / "b")
    resumed = resume(tmp_path / "run", workers=1)
    assert ledgers(tmp_path / "b") == paid
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    assert_same(resumed, whole)


def test_an_upload_that_is_not_stored_is_made_and_paid_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Secret, "nonce", REAL_NONCE)
    noise = {"epsilon": None, "privacy": "features", "set": {"privacy.noise_multiplier": 9.0}}
    with monkeypatch.context() as patch:
        dies_in_round(2, patch)
        with pytest.raises(Stops):
            private_run(tmp_path / "b", "server", tmp_path / "run", **noise)
    before = hashes(tmp_path / "b")
    for file in (tmp_path / "b").rglob("sent.safetensors"):
        file.unlink()
    resumed = resume(tmp_path / "run", workers=1)
    # Two rounds, the second released twice.
    assert [len(lines) for lines in ledgers(tmp_path / "b")] == [3] * CLIENTS
    assert all(
        len(after - old) == 1 for after, old in zip(hashes(tmp_path / "b"), before, strict=True)
    )
    assert resumed.records[-1].epsilon == pytest.approx(epsilon([Released(6, 9.0)], 1e-5))


def hashes(folder: Path) -> list[set[str]]:
    """Returns the hashes of each client's uploads."""
    files = sorted(folder.rglob("uploads.jsonl"), key=lambda file: file.parent.name)
    return [
        {json.loads(line)["sha256"] for line in file.read_text().splitlines()} for file in files
    ]


class TestTheLedgerOfARun:
    """A run continues only with the ledger that it began with."""

    @pytest.fixture
    def stopped(self, tmp_path: Path) -> Path:
        """Returns a folder with a run of two rounds that ended after one, and its ledger."""
        with pytest.raises(Stops):
            private_run(tmp_path / "ledger", "server", tmp_path / "run", observer=AfterOne())
        return tmp_path

    def refused(self, folder: Path) -> str:
        before = ledgers(folder)
        with pytest.raises(LedgerError) as caught:
            resume(folder / "run", workers=1)
        assert ledgers(folder) == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_moved(self, stopped: Path) -> None:
        (stopped / "ledger").rename(stopped / "moved")
        place = stopped / "ledger/digits"
        assert self.refused(stopped) == (
            f"the ledger {place} is missing; restore the original, which was in "
            f"{place}, or start a new run"
        )
        assert not (stopped / "ledger").exists()
        (stopped / "moved").rename(stopped / "ledger")
        assert len(resume(stopped / "run", workers=1).records) == 2

    def test_another(self, stopped: Path) -> None:
        (stopped / "ledger").rename(stopped / "moved")
        private_run(stopped / "ledger", "server", rounds=1)
        assert "is not the one that the run began with; restore" in self.refused(stopped)

    def test_without_its_clients(self, stopped: Path) -> None:
        for client in (stopped / "ledger").rglob("client_000001"):
            client.rename(stopped / "elsewhere")
        assert "the upload of client 1 in round 1" in self.refused(stopped)

    def test_truncated(self, stopped: Path) -> None:
        for file in (stopped / "ledger").rglob("ledger.jsonl"):
            file.write_text("")
        assert "has lost lines" in self.refused(stopped)

    def test_the_same_ledger_in_another_folder(
        self, stopped: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The ledger folder changes if the home folder moves.
        monkeypatch.setattr("feddm.runtime.private_setup.ledger_root", lambda: stopped / "one")
        with pytest.raises(Stops):
            private_run(Path(), "server", stopped / "other", observer=AfterOne())
        (stopped / "one").rename(stopped / "two")
        monkeypatch.setattr("feddm.runtime.private_setup.ledger_root", lambda: stopped / "two")
        assert len(resume(stopped / "other", workers=1).records) == 2


class AfterOne(Observer):
    """Ends a run after its first round."""

    def finished_round(self, record: RoundRecord) -> None:
        raise Stops


class TestOwnLedger:
    def test_is_not_in_the_run_directory(self, tmp_path: Path) -> None:
        with pytest.raises(Stops):
            private_run(Path("new"), "server", tmp_path / "run", observer=AfterOne())
        names = {path.name for path in (tmp_path / "run").rglob("*")}
        assert not names & {"secret", "key", "ledger.jsonl", "ledger"}
        run = json.loads((tmp_path / "run/environment.json").read_text())["run"]
        own = run_ledger_root() / run
        assert [len(lines) for lines in ledgers(own)] == [1] * CLIENTS
        assert len(resume(tmp_path / "run", workers=1).records) == 2
        assert [len(lines) for lines in ledgers(own)] == [2] * CLIENTS

    def test_is_new_for_every_run(self, tmp_path: Path) -> None:
        # Even without a run directory.
        spent = [private_run(Path("new"), rounds=1).records[-1].epsilon for _ in range(2)]
        assert spent == pytest.approx([4.0, 4.0], rel=1e-4)


class TestPolicy:
    """No setting of a run bypasses the policy of the client's machine."""

    LIMITS = ("epsilon = 2", "noise_multiplier = 1e-3")

    @pytest.fixture
    def policy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("FEDDM_POLICY", str(tmp_path / "policy.toml"))
        monkeypatch.setattr(
            "feddm.runtime.private_setup.ledger_root", lambda: tmp_path / "common"
        )
        return tmp_path / "policy.toml"

    @pytest.mark.parametrize("algorithm", ["feddm", "fedavg", "real"])
    @pytest.mark.parametrize("limit", LIMITS)
    def test_refuses_unprotected_runs(self, policy: Path, algorithm: str, limit: str) -> None:
        policy.write_text(limit)
        with pytest.raises(BudgetError, match=r"policy\.toml"):
            run_tiny(algorithm=algorithm, rounds=1, set=FEW)
        policy.write_text(f'mechanisms = ["none"]\n[datasets.mnist]\n{limit}')
        run_tiny(algorithm=algorithm, rounds=1, set=FEW)
        policy.write_text('mechanisms = ["features"]')
        with pytest.raises(BudgetError, match="does not allow the mechanism none"):
            run_tiny(algorithm=algorithm, rounds=1, set=FEW)

    @pytest.mark.parametrize("limit", LIMITS)
    @pytest.mark.parametrize(
        "settings",
        [
            {"privacy.test_secret": "known"},
            {"privacy.mechanism": "paper"},
        ],
        ids=["fixed secret", "paper"],
    )
    def test_refuses_runs_that_only_look_protected(
        self, policy: Path, settings: dict[str, Any], limit: str
    ) -> None:
        policy.write_text(limit)
        more = {"privacy.noise_multiplier": GIVEN} | settings
        with pytest.raises(BudgetError, match=r"policy\.toml"):
            private_run(Path(), rounds=1, epsilon=None, privacy="features", set=more)
        assert not ledgers(policy.parent)

    @pytest.mark.parametrize("ledger", ["elsewhere", "new"])
    def test_refuses_a_separate_ledger(self, policy: Path, ledger: str, tmp_path: Path) -> None:
        policy.write_text("epsilon = 2")
        folder = Path(ledger) if ledger == "new" else tmp_path / ledger
        with pytest.raises(
            BudgetError, match=r"privacy\.ledger must be left out: .*policy\.toml"
        ):
            private_run(folder, rounds=1, epsilon=1.0)
        # Without an epsilon limit a separate ledger is fine; the other limits still apply.
        policy.write_text("noise_multiplier = 1e3")
        with pytest.raises(BudgetError, match="at least 1000"):
            private_run(folder, rounds=1, epsilon=1.0)

    def test_counts_all_runs_and_all_splits(self, policy: Path) -> None:
        policy.write_text(f"epsilon = {epsilon([Released(5, GIVEN)], 1e-5)}")
        given: dict[str, Any] = {
            "epsilon": None,
            "privacy": "features",
            "rounds": 1,
            "set": {"privacy.noise_multiplier": GIVEN},
        }
        for seed in (0, 1):  # two networks each
            private_run(Path(), seed=seed, **given)
        with pytest.raises(BudgetError, match=r"policy\.toml"):
            private_run(Path(), seed=2, **given)

    def test_applies_to_a_resumed_run(self, policy: Path, tmp_path: Path) -> None:
        policy.write_text("")
        with pytest.raises(Stops):
            private_run(Path(), "server", tmp_path / "run", observer=AfterOne())
        policy.write_text("epsilon = 1")
        with pytest.raises(BudgetError, match=r"policy\.toml"):
            resume(tmp_path / "run", workers=1)


def test_a_run_directory_does_not_reveal_the_data(tmp_path: Path) -> None:
    # Otherwise its reader could guess the data and check.
    known = []
    for name in ("a", "b"):
        private_run(tmp_path / name, "server", tmp_path / f"run {name}", rounds=1)
        environment = json.loads((tmp_path / f"run {name}/environment.json").read_text())
        known.append(environment["data"])
    run_tiny(tmp_path / "plain", rounds=1)
    plain = json.loads((tmp_path / "plain/environment.json").read_text())
    assert len({*known, plain["data"]}) == 3
    assert not {"ledger", "ledger_id"} & set(plain)


def test_epsilon_includes_clients_of_earlier_runs(tmp_path: Path) -> None:
    # One client of three takes part; in the first run client 2 twice, in the second client 0.
    given: dict[str, Any] = {
        "participation": 0.34,
        "seed": 3,
        "epsilon": None,
        "privacy": "features",
        "set": {"privacy.noise_multiplier": GIVEN},
    }
    first = private_run(tmp_path, "server", rounds=2, **given)
    assert [[c.client for c in record.clients] for record in first.records] == [[2], [2]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federation, "sampled_cohort", lambda *_: [0])
        second = private_run(tmp_path, "server", rounds=1, **given)
    (record,) = second.records
    assert record.clients[0].metrics["epsilon"] == pytest.approx(
        epsilon([Released(2, GIVEN)], 1e-5)
    )
    assert record.epsilon == pytest.approx(epsilon([Released(4, GIVEN)], 1e-5))


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_papers_noise_is_never_a_guarantee(tmp_path: Path, interrupted: bool) -> None:
    console = Console(file=io.StringIO(), width=200)
    options: dict[str, Any] = {
        "epsilon": None,
        "privacy": "paper",
        "set": {"privacy.noise_multiplier": 5.0},
    }
    with TextDisplay(console) as display:
        if interrupted:
            with pytest.raises(Stops):
                private_run(
                    tmp_path / "ledger", out=tmp_path / "run", observer=AfterOne(), **options
                )
            result = resume(tmp_path / "run", workers=1, observer=display)
        else:
            result = private_run(
                tmp_path / "ledger", out=tmp_path / "run", observer=display, **options
            )
        display.finished(result.records, tmp_path / "run")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "The paper's noise, sigma 5: no guarantee" in text
    assert "Privacy: no guarantee." in text
    # 2 ln(1e5) / 25, stated once and labelled as nominal.
    assert text.count("epsilon 0.921") == 1
    assert "nominal" in text
    assert [record.epsilon for record in result.records] == [math.inf] * 2
    for line in timeless_results(tmp_path / "run"):
        assert line["epsilon"] is None
        assert [client["metrics"] for client in line["clients"]] == [
            {"epsilon": None}
        ] * CLIENTS
    assert (
        "no guarantee"
        in CliRunner().invoke(app, ["privacy", "ledger", str(tmp_path / "ledger")]).output
    )


def test_clients_report_only_epsilon(tmp_path: Path) -> None:
    private_run(tmp_path / "ledger", out=tmp_path / "run")
    for line in (tmp_path / "run/results.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["client_seconds"] is None
        for client in record["clients"]:
            assert client["seconds"] is None
            assert client["metrics"] == {"epsilon": record["epsilon"]}


@pytest.mark.parametrize(
    ("name", "seed", "rounds"),
    [("server", 0, 5), ("features", 1, 1), ("fedavg", 0, 1)],
)
def test_two_runs_cost_as_much_as_one_with_all_rounds(
    name: str, seed: int, rounds: int, tmp_path: Path
) -> None:
    # Another seed splits the data differently; an example pays for both runs.
    given: dict[str, Any] = {
        "epsilon": None,
        "privacy": "features" if name in ("features", "server") else "gradients",
        "set": {"privacy.noise_multiplier": GIVEN},
    }
    one = private_run(tmp_path / "one", name, rounds=2 * rounds, **given)
    for number in (0, seed):
        two = private_run(tmp_path / "two", name, rounds=rounds, seed=number, **given)
    assert one.records[-1].epsilon is not None
    assert two.records[-1].epsilon == pytest.approx(one.records[-1].epsilon, rel=1e-9)
    assert 0 < one.records[-1].epsilon < math.inf


def mechanism(name: str) -> str:
    return "features" if name in ("features", "server") else "gradients"


def test_sampling_is_cheaper(tmp_path: Path) -> None:
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
    # Two networks per round: enough for two rounds, not for three.
    budget = epsilon([Released(5, GIVEN)], 1e-5)
    with pytest.raises(BudgetError, match="the client would have spent"):
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


def test_a_later_run_has_the_remaining_budget(tmp_path: Path) -> None:
    first = private_run(tmp_path, rounds=1, epsilon=2.0)
    with pytest.raises(BudgetError, match=r"the budget is epsilon 2 .*, and 2 is spent"):
        private_run(tmp_path, rounds=1, epsilon=2.0)
    second = private_run(tmp_path, rounds=1, epsilon=4.0)
    assert second.records[-1].epsilon == pytest.approx(4.0, rel=1e-4)
    # It has less noise than the first run, because two runs of epsilon 2 cost less than 4.
    alone = private_run(tmp_path / "fresh", rounds=1, epsilon=2.0)
    noise = [privacy_of(run).noise_multiplier for run in (first, second, alone)]
    assert noise[0] == noise[2] > noise[1]


def test_epsilon_is_the_largest_of_any_client_participating_or_not(tmp_path: Path) -> None:
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


def test_fixed_secrets_are_announced(tmp_path: Path) -> None:
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
        told_of_clients = [part.metrics["epsilon"] for part in result.records[-1].clients]
        assert told_of_clients == [result.records[-1].epsilon] * CLIENTS
    uploads = next((tmp_path / "ledgertest").rglob("uploads.jsonl")).read_text()
    assert json.loads(uploads)["epsilon"] is None
    # A later run must not count it as protected.
    with pytest.raises(BudgetError, match="an earlier release was not protected"):
        private_run(tmp_path / "ledgertest", rounds=1, epsilon=100.0)


def test_runs_have_different_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same seed, which does not affect the noise.
    monkeypatch.setattr(vault, "_secret", REAL_SECRET)
    first, second = (private_run(tmp_path / name, "server", rounds=1) for name in ("a", "b"))
    assert first.synthetic is not None and second.synthetic is not None
    assert first.synthetic.to_bytes() != second.synthetic.to_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"privacy.mechanism": "none", "privacy.epsilon": 1.0},
            "does nothing with the mechanism none",
        ),
        (
            {"privacy.mechanism": "none", "privacy.noise_multiplier": 1.0},
            "does nothing with the mechanism none",
        ),
        ({"algorithm": "real", "privacy.epsilon": 1.0}, "real sends real images"),
        (
            {"algorithm": "fedavg", "privacy.mechanism": "features", "privacy.epsilon": 1.0},
            "--privacy features is for feddm; other algorithms take gradients",
        ),
        (
            {
                "algorithm": "scaffold",
                "privacy.mechanism": "paper",
                "privacy.noise_multiplier": 1.0,
            },
            "--privacy paper is for feddm; other algorithms take gradients",
        ),
        ({"privacy.mechanism": "features"}, "needs a budget or the noise"),
        ({"privacy.mechanism": "gradients"}, "needs a budget or the noise"),
        ({"privacy.mechanism": "paper", "privacy.epsilon": 1.0}, "paper gives no guarantee"),
        (
            {"privacy.epsilon": 1.0, "synthesis.start": "real"},
            "synthesis cannot be set here: no images are learned from examples",
        ),
        (
            {
                "privacy.mechanism": "features",
                "privacy.epsilon": 1.0,
                "synthesis.start": "real",
            },
            r"synthesis\.start cannot be set here: under a guarantee, images start as noise",
        ),
        (
            {
                "privacy.mechanism": "gradients",
                "privacy.epsilon": 1.0,
                "synthesis.start": "real",
            },
            r"synthesis\.start cannot be set here: under a guarantee, images start as noise",
        ),
        (
            {
                "privacy.mechanism": "features",
                "privacy.epsilon": 1.0,
                "synthesis.networks": "fresh",
            },
            r"synthesis\.networks must be a whole number of at least 1, got 'fresh'",
        ),
        (
            {
                "privacy.mechanism": "features",
                "privacy.epsilon": 1.0,
                "synthesis.distance": "relative",
            },
            r"synthesis\.distance cannot be set here: under a guarantee, distances are squared",
        ),
        (
            {
                "privacy.mechanism": "gradients",
                "privacy.epsilon": 1.0,
                "synthesis.augment": True,
            },
            r"synthesis\.augment cannot be set here: gradients are those of the images as they",
        ),
        (
            {"algorithm": "fedavg", "privacy.epsilon": 1.0, "local.augment": True},
            r"local\.augment cannot be set here: the change of one image would depend on the",
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
def test_settings_without_a_guarantee_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(settings=settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "none"),
        ({"epsilon": 1.0}, "surrogate"),
        ({"epsilon": 1.0, "algorithm": "fedavg"}, "gradients"),
        ({"epsilon": 1.0, "privacy": "gradients"}, "gradients"),
    ],
)
def test_a_budget_selects_the_default_mechanism(options: dict[str, Any], expected: str) -> None:
    config = resolve(options=options)
    assert config.mechanism == expected
    # Under a guarantee no images start from real ones.
    assert ("algorithm.synthesis.start" in flat(config.model_dump())) == (expected == "none")
    # Saving and loading it gives the same run.
    again = resolve(config.model_dump())
    assert again == config


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_every_preset_takes_a_budget(preset: str) -> None:
    config = resolve(preset=preset, options={"epsilon": 4.0})
    assert config.guaranteed


def test_a_ledger_is_the_same_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = private_run(Path("ledgers"), "server", tmp_path / "run", rounds=1)
    assert Path(privacy_of(result).ledger) == tmp_path / "ledgers"
    assert f'"{tmp_path}/ledgers"' in (tmp_path / "run" / "config.toml").read_text()


class TestOtherData:
    """Nobody else can compute the digest of the data in a private run directory."""

    def interrupted(self, folder: Path) -> Path:
        class AfterOne(Observer):
            def finished_round(self, record: RoundRecord) -> None:
                raise Stops

        with pytest.raises(Stops):
            private_run(folder / "ledger", "server", folder / "run", observer=AfterOne())
        return folder / "run"

    def test_the_digest_depends_on_the_ledger(self, tmp_path: Path) -> None:
        digests = {
            json.loads((self.interrupted(tmp_path / name) / "environment.json").read_text())[
                "data"
            ]
            for name in ("one", "other")
        }
        assert len(digests) == 2

    def test_they_are_refused(self, tmp_path: Path) -> None:
        directory = self.interrupted(tmp_path)
        config = directory / "config.toml"
        text = config.read_text()
        config.write_text(text.replace("alpha = 0.5", "alpha = 0.75"))
        with pytest.raises(RunDirectoryError, match="have changed since the run began"):
            resume(directory, workers=1)
        config.write_text(text)
        assert len(resume(directory, workers=1).records) == 2
