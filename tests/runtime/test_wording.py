import json
import math
from dataclasses import replace
from typing import Any

import pytest

from feddm.config.registry import find_mechanism
from feddm.config.schema import PrivacySettings
from feddm.privacy.accounting import Released
from feddm.runtime.federation import ClientRecord, RoundRecord
from feddm.runtime.results import from_line, to_line
from feddm.runtime.wording import introduction, label, nominal_epsilon, promised, summary


def record(epsilon: float | None, number: int = 1) -> RoundRecord:
    metrics = {} if epsilon is None else {"epsilon": epsilon}
    clients = (ClientRecord(0, 0.0, 10, 40, metrics),)
    return RoundRecord(number, 0.5, 1.0, 10, 10, 40, 40, 0.0, 0.5, clients, epsilon=epsilon)


def privacy(mechanism: str = "features", **more: Any) -> PrivacySettings:
    return find_mechanism(mechanism)(delta=1e-6, **more)


class TestPromised:
    def test_without_privacy_there_is_nothing_about_it(self) -> None:
        assert "privacy" not in json.loads(to_line(record(None)))

    def test_a_guarantee_has_its_delta_and_unit(self) -> None:
        found = promised(record(1.5), 1.5, privacy(unit="client"))
        line = json.loads(to_line(found))
        assert {key: line[key] for key in ("epsilon", "delta", "unit", "privacy")} == {
            "epsilon": 1.5,
            "delta": 1e-6,
            "unit": "client",
            "privacy": "features",
        }

    def test_seconds_are_not_told(self) -> None:
        line = json.loads(to_line(promised(record(1.5), 1.5, privacy())))
        assert line["client_seconds"] is None
        assert line["clients"][0]["seconds"] is None
        assert line["server_seconds"] == 0.5

    def test_the_papers_noise_guarantees_nothing(self) -> None:
        found = promised(record(math.inf), math.inf, privacy("paper"))
        line = json.loads(to_line(found))
        assert (line["epsilon"], line["privacy"]) == (None, "no guarantee")
        assert "delta" not in line and "unit" not in line
        assert summary(found) == "Privacy: no guarantee."

    def test_fixed_secrets_are_not_private(self) -> None:
        found = promised(record(math.inf), math.inf, privacy(test_secret="x"))
        line = json.loads(to_line(found))
        assert (line["epsilon"], line["privacy"]) == (None, "not private")
        assert line["clients"][0]["metrics"] == {"epsilon": None}
        assert "delta" not in line and "unit" not in line
        assert summary(found) == "This run is not private: its secrets are fixed."

    def test_the_papers_noise_with_fixed_secrets(self) -> None:
        found = promised(record(math.inf), math.inf, privacy("paper", test_secret="x"))
        assert (found.epsilon, found.privacy) == (math.inf, "no guarantee")

    def test_what_was_released_before_without_protection(self) -> None:
        assert promised(record(math.inf), math.inf, privacy()).privacy == "no guarantee"

    @pytest.mark.parametrize("mechanism", ["features", "gradients", "paper"])
    @pytest.mark.parametrize("secret", ["", "x"])
    def test_line_and_back(self, mechanism: str, secret: str) -> None:
        spent = math.inf if mechanism == "paper" or secret else 1.5
        found = promised(record(spent), spent, privacy(mechanism, test_secret=secret))
        back = from_line(to_line(found))
        assert to_line(back) == to_line(found)
        # One nan is not another.
        same: dict[str, Any] = {"client_seconds": 0.0, "clients": ()}
        assert replace(back, **same) == replace(found, **same)


class TestWords:
    def test_a_guarantee(self) -> None:
        text = introduction(privacy(epsilon=4.0, noise_multiplier=2.5, unit="client"))
        assert "budget epsilon 4 at delta 1e-06" in text
        assert "all examples of one client, added or removed" in text
        assert text.endswith("Clients compose in parallel; rounds add up.")
        assert "not private" not in text.lower() and "no guarantee" not in text

    def test_without_a_budget_it_says_what_the_noise_gives(self) -> None:
        # One Gaussian release with multiplier 3.7306 has epsilon 1 at delta 1e-5.
        mechanism = find_mechanism("features")(noise_multiplier=3.7306)
        text = introduction(mechanism, [Released(1, 3.7306)])
        assert text.startswith("Private by features: epsilon 1 in this run at delta 1e-05")

    def test_hardly_any_noise_is_not_called_private(self) -> None:
        mechanism = find_mechanism("features")(noise_multiplier=0.01)
        text = introduction(mechanism, [Released(2, 0.01)])
        assert "rivate by" not in text
        assert "epsilon 1.06e+04 in this run" in text
        assert "protects nobody" in text

    def test_fixed_secrets(self) -> None:
        assert introduction(privacy(test_secret="x")).startswith("Not private: ")

    def test_the_papers_noise(self) -> None:
        text = introduction(privacy("paper", noise_multiplier=2.0))
        assert "no guarantee" in text
        assert "nominal" in text

    def test_the_papers_formula_by_hand(self) -> None:
        # sigma^2 = 2 log(1/delta) / epsilon, with delta e^-8 and sigma 2: epsilon 16 / 4.
        assert nominal_epsilon(2.0, delta=math.exp(-8)) == pytest.approx(4.0)

    def test_what_was_spent(self) -> None:
        found = promised(record(1.5), 1.5, privacy(unit="group"))
        assert summary(found) == (
            "Privacy spent: epsilon 1.5000 at delta 1e-06 for all examples of one group, added "
            "or removed."
        )

    @pytest.mark.parametrize(
        ("epsilon", "words", "expected"),
        [
            (None, None, "a"),
            (1.25, "gradients", "a, epsilon 1.250"),
            (math.inf, "no guarantee", "a, no guarantee"),
            (math.inf, "not private", "a, not private"),
        ],
    )
    def test_label(self, epsilon: float | None, words: str | None, expected: str) -> None:
        assert label("a", epsilon, words) == expected
