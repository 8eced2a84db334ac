import tomllib
from typing import Any

import pytest

from feddm.config.presets import PRESETS
from feddm.config.privacy_rules import unused
from feddm.config.schema import Mechanism, PrivacyConfig, resolve
from feddm.errors import ConfigError, UnfitAlgorithmError

FEATURES: dict[str, Any] = {"privacy.epsilon": 4.0}
IMAGES: dict[str, Any] = {"privacy.epsilon": 4.0, "privacy.mechanism": "gradients"}
WEIGHTS: dict[str, Any] = {"privacy.epsilon": 4.0, "algorithm": "fedavg"}
PAPER: dict[str, Any] = {"privacy.mechanism": "paper"}
NOT_USED: list[tuple[dict[str, Any], str, Any, str]] = [
    (FEATURES, "synthesis.real_batch", 64, "sees all examples of a client"),
    (FEATURES, "privacy.steps", 20, "for --privacy gradients"),
    (FEATURES, "privacy.sample_rate", 0.5, "for --privacy gradients"),
    (IMAGES, "synthesis.steps", 20, r"privacy\.steps says"),
    (IMAGES, "synthesis.networks", 3, "a network of its own"),
    (IMAGES, "synthesis.real_batch", 64, r"privacy\.sample_rate says"),
    (IMAGES, "privacy.projection", 8, "for --privacy features"),
    (IMAGES, "privacy.learn", "server", "for --privacy features"),
    (WEIGHTS, "local.epochs", 7, r"privacy\.steps says"),
    (WEIGHTS, "local.batch_size", 7, r"privacy\.sample_rate says"),
    (WEIGHTS, "privacy.projection", 8, "for --privacy features"),
    (WEIGHTS, "privacy.learn", "server", "for --privacy features"),
    (PAPER, "privacy.steps", 20, "for --privacy gradients"),
    (PAPER, "privacy.projection", 8, "for --privacy features"),
]


def nested(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.partition(".")
    return {section: {name: value}}


def at(config: Any, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


class TestWhatIsNotUsed:
    @pytest.mark.parametrize(("privacy", "key", "value", "why"), NOT_USED, ids=str)
    def test_is_refused_wherever_it_was_given(
        self, privacy: dict[str, Any], key: str, value: Any, why: str
    ) -> None:
        says = rf"^{key} is not used with --privacy \w+, so leave it out: .*{why}"
        with pytest.raises(ConfigError, match=says) as caught:
            resolve(settings=privacy | {key: value})
        assert "\n" not in str(caught.value)
        with pytest.raises(ConfigError, match=says):
            resolve(nested(key, value), settings=privacy)
        with pytest.raises(ConfigError, match=says):
            resolve(settings=privacy, special=nested(key, value))

    @pytest.mark.parametrize(("privacy", "key", "value", "why"), NOT_USED, ids=str)
    def test_is_fine_where_it_is_used(
        self, privacy: dict[str, Any], key: str, value: Any, why: str
    ) -> None:
        del privacy, why
        others = [FEATURES, IMAGES, WEIGHTS]
        used = [p for p in others if all(k != key for o, k, _, _ in NOT_USED if o is p)]
        assert used
        for settings in used:
            assert at(resolve(settings=settings | {key: value}), key) == value

    @pytest.mark.parametrize("preset", PRESETS)
    @pytest.mark.parametrize("privacy", [FEATURES, IMAGES, WEIGHTS], ids=str)
    def test_a_presets_value_is_no_complaint(
        self, privacy: dict[str, Any], preset: str
    ) -> None:
        # Everything that the preset says, as if a user had typed it.
        keys = [key for given, key, _, _ in NOT_USED if given is privacy]
        plain = resolve(preset=preset, options={"algorithm": privacy.get("algorithm")})
        same = resolve(preset=preset, settings=privacy)
        given = {key: at(plain, key) for key in keys}
        assert resolve(preset=preset, settings=privacy | given) == same

    @pytest.mark.parametrize("privacy", [FEATURES, IMAGES, WEIGHTS, PAPER], ids=str)
    def test_a_file_that_was_written_can_be_read_whatever_presets_become(
        self, privacy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = resolve(preset="paper", settings=privacy)
        text = config.to_toml()
        monkeypatch.setattr(
            "feddm.config.schema.preset_values", lambda *arguments: {"rounds": 99}
        )
        assert resolve(tomllib.loads(text)) == config

    def test_a_written_file_in_which_it_was_edited(self) -> None:
        values = resolve(settings=FEATURES).model_dump()
        values["synthesis"]["real_batch"] = 64
        with pytest.raises(ConfigError, match=r"synthesis\.real_batch is not used"):
            resolve(values)

    def test_it_has_the_value_of_the_configuration_without_privacy(self) -> None:
        # Else a budget alone would be refused for what nobody said.
        defaults = PrivacyConfig()
        for mechanism in ("features", "gradients", "paper"):
            for key, (value, _) in unused("feddm", mechanism).items():
                section, _, name = key.partition(".")
                if section == "privacy":
                    assert getattr(defaults, name) == value

    def test_without_privacy_all_of_it_is_used(self) -> None:
        config = resolve(settings={"synthesis.real_batch": 64, "local.epochs": 7})
        assert (config.synthesis.real_batch, config.local.epochs) == (64, 7)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "real", "privacy.epsilon": 1.0},
        {"algorithm": "fedavg", "privacy.epsilon": 1.0, "privacy.mechanism": "features"},
        {"algorithm": "fedavg", "privacy.mechanism": "paper"},
    ],
)
def test_algorithms_that_cannot_be_protected_so(settings: dict[str, Any]) -> None:
    with pytest.raises(UnfitAlgorithmError):
        resolve(settings=settings)


@pytest.mark.parametrize(
    ("mechanism", "guaranteed"),
    [("none", False), ("paper", False), ("features", True), ("gradients", True)],
)
def test_what_gives_a_guarantee(mechanism: Mechanism, guaranteed: bool) -> None:
    assert PrivacyConfig(mechanism=mechanism).guaranteed == guaranteed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epsilon": 0.0}, "--epsilon must be above 0"),
        ({"delta": 1e-6}, "privacy.delta does nothing without a budget"),
        ({"ledger": "new"}, "privacy.ledger does nothing without a budget"),
        ({"clip": 2.0}, "privacy.clip does nothing without a budget"),
    ],
)
def test_privacy_that_is_asked_for_and_not_given(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({"privacy": values})
    # A configuration that was written down names its mechanism, and is complete.
    assert resolve(resolve().model_dump()).privacy.mechanism == "none"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dataset", ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"])
@pytest.mark.parametrize("privacy", [FEATURES, IMAGES, WEIGHTS], ids=str)
def test_a_budget_goes_with_every_preset(
    privacy: dict[str, Any], dataset: str, preset: str
) -> None:
    config = resolve(preset=preset, options={"dataset": dataset}, settings=privacy)
    assert config.privacy.guaranteed
    if config.algorithm == "feddm":
        # A learning rate for relative distances, a hundred times as large, must not stay.
        assert (config.synthesis.distance, config.synthesis.lr <= 10) == ("squared", True)


def test_the_papers_noise_asks_for_the_papers_distance() -> None:
    says = r"^synthesis\.distance must be squared with --privacy paper, .* such as 1$"
    with pytest.raises(ConfigError, match=says):
        resolve(settings=PAPER | {"synthesis.distance": "relative"})
    assert resolve(settings=PAPER).synthesis.distance == "squared"


def test_the_papers_noise_does_not_touch_the_shared_ledger() -> None:
    assert resolve(options={"privacy": "paper"}).privacy.ledger == "new"
    assert resolve(options={"privacy": "paper", "ledger": "/x"}).privacy.ledger == "/x"
    assert resolve(options={"epsilon": 4.0}).privacy.ledger == ""


@pytest.mark.parametrize("clip", [1e-7, 1e7, 0.0])
def test_bounds_that_rounding_would_void(clip: float) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.clip must be"):
        resolve(options={"epsilon": 4.0}, settings={"privacy.clip": clip})
