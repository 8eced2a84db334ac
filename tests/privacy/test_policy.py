"""A client's policy: its file, and what it allows."""

import math
from pathlib import Path

import pytest

from feddm.errors import BudgetError, LedgerError
from feddm.privacy.accounting import Released, Unprotected, epsilon
from feddm.privacy.policy import Asked, Policy, own_policy

DELTA = 1e-5
ASKED = Asked("feddm", "features", "example")


class TestCheck:
    def test_by_epsilon(self) -> None:
        # Enough for three releases, including earlier ones.
        policy = Policy(epsilon([Released(3, 4.0)], DELTA), DELTA)
        policy.check(ASKED, [Released(3, 4.0)])
        policy.check(ASKED, [Released(1, 4.0)], [Released(2, 4.0)])
        refused = pytest.raises(
            BudgetError,
            match=r"after this round the client would have spent epsilon .*, and its limit is",
        )
        with refused:
            policy.check(ASKED, [Released(1, 4.0)], [Released(3, 4.0)])
        # Even a tiny release is too much, because nothing is left.
        with refused:
            policy.check(ASKED, [Released(1, 400.0)], [Released(3, 4.0)])

    def test_by_its_own_delta(self) -> None:
        event = Released(1, 4.0)
        middle = (epsilon([event], 1e-5) + epsilon([event], 1e-7)) / 2
        Policy(middle, 1e-5).check(ASKED, [event])
        with pytest.raises(BudgetError, match="at delta 1e-07"):
            Policy(middle, 1e-7).check(ASKED, [event])

    def test_by_noise(self) -> None:
        policy = Policy(noise_multiplier=2.0)
        policy.check(ASKED, [Released(5, 2.0)])
        with pytest.raises(BudgetError, match=r"at least 2, got 1\.5"):
            policy.check(ASKED, [Released(5, 2.0), Released(1, 1.5)])

    @pytest.mark.parametrize(
        "policy", [Policy(1e6), Policy(noise_multiplier=1e-9), Policy(units=("example",))]
    )
    def test_an_unprotected_release_exceeds_any_limit(self, policy: Policy) -> None:
        with pytest.raises(BudgetError):
            policy.check(ASKED, [Unprotected("weights")])
        Policy().check(ASKED, [Unprotected("weights")])

    @pytest.mark.parametrize(
        ("policy", "agrees"),
        [
            (Policy(mechanisms=("features", "gradients")), True),
            (Policy(mechanisms=("gradients",)), False),
            (Policy(mechanisms=()), False),
            (Policy(algorithms=("feddm",)), True),
            (Policy(mechanisms=("features",), algorithms=("fedavg",)), False),
            (Policy(units=("example",)), True),
            (Policy(units=("group", "client")), False),
        ],
    )
    def test_by_name(self, policy: Policy, agrees: bool) -> None:
        if agrees:
            policy.check(ASKED, [Released(1, 1.0)])
        else:
            with pytest.raises(
                BudgetError, match=r"the client does not allow the .*, (only|nor any other)"
            ):
                policy.check(ASKED, [Released(1, 1.0)])

    def test_the_error_names_what_is_allowed(self) -> None:
        with pytest.raises(
            BudgetError, match="not allow the mechanism features, only none, gradients"
        ):
            Policy(mechanisms=("none", "gradients")).check(ASKED, [])
        with pytest.raises(BudgetError, match="not allow the unit example, nor any other"):
            Policy(units=()).check(ASKED, [])

    def test_the_error_names_the_source(self) -> None:
        with pytest.raises(BudgetError, match=r"\(/etc/policy\.toml\)"):
            Policy(mechanisms=(), source="/etc/policy.toml").check(ASKED, [])


class TestFile:
    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        file = tmp_path / "mine.toml"
        monkeypatch.setenv("FEDDM_POLICY", str(file))
        return file

    def test_all_keys(self, file: Path) -> None:
        file.write_text(
            """
            epsilon = 4
            delta = 1e-6
            noise_multiplier = 0.5
            mechanisms = ["features", "none"]
            algorithms = []
            units = ["group"]
            """
        )
        assert own_policy("digits") == Policy(
            4.0, 1e-6, 0.5, ("features", "none"), (), ("group",), str(file)
        )

    def test_a_data_set_overrides_values(self, file: Path) -> None:
        file.write_text("epsilon = 4\ndelta = 1e-6\n[datasets.digits]\nepsilon = inf\n")
        digits, mnist = own_policy("digits"), own_policy("mnist")
        assert (digits.epsilon, digits.delta) == (math.inf, 1e-6)
        assert (mnist.epsilon, mnist.delta) == (4.0, 1e-6)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("epsilon = -1", "epsilon must be a number of at least 0, got -1"),
            ("epsilon = 'all'", "epsilon must be a number"),
            ("epsilon = nan", "epsilon must be a number of at least 0, got nan"),
            ("epsilon = true", "epsilon must be a number of at least 0, got True"),
            ("delta = 0", "delta must be a number above 0 and below 1, got 0"),
            ("delta = 1.0", "delta must be a number above 0 and below 1"),
            ("delta = nan", "delta must be"),
            ("noise_multiplier = inf", "noise_multiplier must be a number of at least 0"),
            ("noise_multiplier = false", "noise_multiplier must be"),
            (
                "mechanisms = 'features'",
                "mechanisms must be a list, each one of none, surrogate, features,",
            ),
            ("mechanisms = ['feature']", r"mechanisms must be a list, .*, got \['feature'\]"),
            ("algorithms = ['fedagv']", "unknown algorithm fedagv .did you mean fedavg"),
            ("algorithms = [1]", "algorithms must be a list"),
            ("units = ['patient']", "units must be a list, each one of example, group, client"),
            (
                "epsilom = 3",
                r"unknown key epsilom \(did you mean epsilon\?\); known here: .*epsilon",
            ),
            ("budget = 3", "unknown key budget; known here: .*epsilon"),
            ("datasets = 3", r"datasets must be tables, such as \[datasets\.digits\], got 3"),
            ("[datasets.mnits]", "did you mean mnist"),
            ("[datasets.mnist]\nepsilom = 3", "unknown key epsilom"),
            ("epsilon =", "cannot read the policy"),
        ],
    )
    def test_invalid_files_are_one_line_errors(self, file: Path, text: str, says: str) -> None:
        file.write_text(text)
        with pytest.raises(LedgerError, match=says) as caught:
            own_policy("digits")
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_named_file_must_exist(self, file: Path) -> None:
        with pytest.raises(LedgerError, match=r"the policy .* does not exist"):
            own_policy("digits")
        file.mkdir()
        with pytest.raises(LedgerError, match="cannot read the policy"):
            own_policy("digits")

    def test_default_is_in_the_users_configuration(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "feddm.privacy.policy.user_config_path", lambda name: tmp_path / name
        )
        assert own_policy("digits") == Policy()
        (tmp_path / "feddm").mkdir()
        (tmp_path / "feddm/policy.toml").write_text("epsilon = 2")
        assert own_policy("digits").epsilon == 2
