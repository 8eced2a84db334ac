"""Privacy and the other settings: what exists under a mechanism, and what to do instead."""

from typing import Any, ClassVar

import pytest

from feddm.config.presets import PRESETS
from feddm.config.registry import find_mechanism
from feddm.config.resolve import flat, qualified, resolve
from feddm.config.schema import Config
from feddm.errors import ConfigError, UnfitAlgorithmError

FEATURES: dict[str, Any] = {"privacy.epsilon": 4.0, "privacy.mechanism": "features"}
IMAGES: dict[str, Any] = {"privacy.epsilon": 4.0, "privacy.mechanism": "gradients"}
WEIGHTS: dict[str, Any] = {"privacy.epsilon": 4.0, "algorithm": "fedavg"}
PAPER: dict[str, Any] = {"privacy.mechanism": "paper"}
INSTEAD: list[tuple[dict[str, Any], str, Any, str]] = [
    (FEATURES, "synthesis.real_batch", 64, "sees all examples of a client"),
    (FEATURES, "synthesis.start", "real", "start as noise"),
    (FEATURES, "synthesis.distance", "relative", "squared"),
    (FEATURES, "privacy.steps", 20, "for --privacy gradients"),
    (FEATURES, "privacy.sample_rate", 0.5, "for --privacy gradients"),
    (IMAGES, "synthesis.steps", 20, r"privacy\.steps says"),
    (IMAGES, "synthesis.networks", 3, "a network of its own"),
    (IMAGES, "synthesis.real_batch", 64, r"privacy\.sample_rate says"),
    (IMAGES, "synthesis.start", "real", "start as noise"),
    (IMAGES, "synthesis.distance", "relative", "squared"),
    (IMAGES, "synthesis.augment", True, "as they are"),
    (IMAGES, "privacy.projection", 8, "for --privacy features"),
    (IMAGES, "privacy.learn", "server", "for --privacy features"),
    (WEIGHTS, "local.epochs", 7, r"privacy\.steps says"),
    (WEIGHTS, "local.batch_size", 7, r"privacy\.sample_rate says"),
    (WEIGHTS, "local.augment", True, "depend on the others"),
    (WEIGHTS, "privacy.projection", 8, "for --privacy features"),
    (PAPER, "privacy.epsilon", 4.0, "no guarantee, so it has no epsilon"),
    (PAPER, "privacy.steps", 20, "for --privacy gradients"),
    (PAPER, "privacy.projection", 8, "for --privacy features"),
]


def at(config: Config, key: str) -> Any:
    """Returns the value of a key, or None if there is no such key."""
    return flat(config.model_dump()).get(qualified(key))


class TestWhatDoesNotExist:
    @pytest.mark.parametrize(("privacy", "key", "value", "why"), INSTEAD, ids=str)
    def test_it_is_refused_wherever_it_was_given(
        self, privacy: dict[str, Any], key: str, value: Any, why: str
    ) -> None:
        says = rf"^{key} cannot be set here: .*{why}"
        with pytest.raises(ConfigError, match=says) as caught:
            resolve(settings=privacy | {key: value})
        assert "\n" not in str(caught.value)
        section, _, name = qualified(key).rpartition(".")
        table: dict[str, Any] = {name: value}
        for part in reversed(section.split(".")):
            table = {part: table}
        with pytest.raises(ConfigError, match=says):
            resolve(settings=privacy, special=table)

    @pytest.mark.parametrize(("privacy", "key", "value", "why"), INSTEAD, ids=str)
    def test_it_is_not_written_down(
        self, privacy: dict[str, Any], key: str, value: Any, why: str
    ) -> None:
        del value, why
        assert at(resolve(settings=privacy), key) is None

    def test_without_privacy_the_algorithms_own_settings_exist(self) -> None:
        assert at(resolve(settings={"synthesis.real_batch": 64}), "synthesis.real_batch") == 64
        plain = resolve(options={"algorithm": "fedavg"}, settings={"local.epochs": 7})
        assert at(plain, "local.epochs") == 7

    def test_a_file_without_privacy_can_be_run_with_it(self) -> None:
        # What exists in both counts; how images start is decided by the guarantee.
        file = resolve(settings={"server.epochs": 7, "synthesis.start": "real"}).model_dump()
        private = resolve(file, options={"epsilon": 4.0, "privacy": "features"})
        assert at(private, "server.epochs") == 7
        assert at(private, "synthesis.start") is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"algorithm": "real", "privacy.epsilon": 1.0}, "real images, which nothing makes"),
        (
            {"algorithm": "fedavg", "privacy.epsilon": 1.0, "privacy.mechanism": "features"},
            "--privacy features is for feddm",
        ),
        ({"algorithm": "fedavg", "privacy.mechanism": "paper"}, "--privacy paper is for feddm"),
    ],
)
def test_algorithms_that_cannot_be_protected_so(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UnfitAlgorithmError, match=says):
        resolve(settings=settings)


@pytest.mark.parametrize(
    ("mechanism", "guaranteed"), [("paper", False), ("features", True), ("gradients", True)]
)
def test_what_gives_a_guarantee(mechanism: str, guaranteed: bool) -> None:
    assert find_mechanism(mechanism).guaranteed == guaranteed
    noise = {"privacy.mechanism": mechanism, "privacy.noise_multiplier": 1.0}
    assert resolve(settings=noise).guaranteed == guaranteed


def test_without_privacy_there_is_none() -> None:
    for config in (resolve(), resolve(options={"privacy": "none"})):
        assert (config.privacy, config.mechanism, config.guaranteed) == (None, "none", False)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epsilon": 0.0}, "--epsilon must be above 0"),
        ({"delta": 1e-6}, "privacy.delta does nothing without a budget"),
        ({"ledger": "new"}, "privacy.ledger does nothing without a budget"),
        ({"clip": 2.0}, "privacy.clip does nothing without a budget"),
        ({"mechanism": "none", "epsilon": 1.0}, "privacy.epsilon does nothing with the mech"),
        (
            {"mechanism": "none", "noise_multiplier": 1.0},
            "privacy.noise_multiplier does nothing",
        ),
        ({"mechanism": "none", "bogus": 1.0}, "privacy.bogus does nothing with the mechanism"),
        ({"mechanism": "features"}, "privacy needs a budget or the noise"),
        ({"mechanism": "magic"}, "privacy.mechanism must be one of none, surrogate, features,"),
        ({"epsilon": -1.0}, r"privacy.epsilon must be a number of at least 0, got -1.0"),
    ],
)
def test_privacy_that_is_asked_for_and_not_given(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({"privacy": values})


def test_privacy_is_a_section() -> None:
    with pytest.raises(ConfigError, match="privacy must be a section, got 5"):
        resolve({"privacy": 5})


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dataset", ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"])
@pytest.mark.parametrize("privacy", [FEATURES, IMAGES, WEIGHTS], ids=str)
def test_a_budget_goes_with_every_preset(
    privacy: dict[str, Any], dataset: str, preset: str
) -> None:
    config = resolve(preset=preset, options={"dataset": dataset}, settings=privacy)
    assert config.guaranteed
    if config.algorithm.name == "feddm":
        # What was chosen for matching real images does not count.
        assert at(config, "synthesis.lr") == (10.0 if config.mechanism == "features" else 1.0)
        replay = {"paper": 0, "quick": 3, "private": 3}[preset]
        assert at(config, "server.replay") == (4 if config.mechanism == "features" else replay)


def test_the_papers_noise_asks_for_the_papers_distance() -> None:
    says = r"^synthesis\.distance must be squared with --privacy paper, .* such as 1$"
    with pytest.raises(ConfigError, match=says):
        resolve(settings=PAPER | {"synthesis.distance": "relative"})
    assert at(resolve(settings=PAPER), "synthesis.distance") == "squared"


def test_the_papers_noise_does_not_touch_the_shared_ledger() -> None:
    assert at(resolve(options={"privacy": "paper"}), "privacy.ledger") == "new"
    elsewhere = resolve(options={"privacy": "paper", "ledger": "/x"})
    assert at(elsewhere, "privacy.ledger") == "/x"
    assert at(resolve(options={"epsilon": 4.0}), "privacy.ledger") == ""


@pytest.mark.parametrize("clip", [1e-7, 1e7, 0.0])
def test_bounds_that_rounding_would_void(clip: float) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.clip must be"):
        resolve(options={"epsilon": 4.0}, settings={"privacy.clip": clip})


class TestFilesAndTheCommandLine:
    """The last layer that says something about privacy decides."""

    PRIVATE: ClassVar[dict[str, Any]] = {"privacy": {"mechanism": "gradients", "epsilon": 4.0}}

    def test_a_private_file_can_be_run_without_privacy(self) -> None:
        assert resolve(self.PRIVATE, options={"privacy": "none"}) == resolve()

    def test_an_open_file_can_be_run_with_privacy(self) -> None:
        config = resolve({"privacy": {"mechanism": "none"}}, options={"epsilon": 4.0})
        assert (config.mechanism, at(config, "privacy.epsilon")) == ("surrogate", 4.0)

    def test_another_budget_keeps_the_mechanism(self) -> None:
        config = resolve(self.PRIVATE, options={"epsilon": 2.0, "delta": 1e-7})
        assert (config.mechanism, at(config, "privacy.epsilon")) == ("gradients", 2.0)
        assert at(config, "privacy.delta") == 1e-7

    def test_what_is_said_beside_none_is_refused(self) -> None:
        with pytest.raises(
            ConfigError, match=r"^privacy\.delta does nothing with the mechanism"
        ):
            resolve(self.PRIVATE, options={"privacy": "none", "delta": 1e-3})

    def test_a_file_that_does_not_fit_may_be_mended(self) -> None:
        file = {"algorithm": "real", "privacy": {"epsilon": 4.0}}
        with pytest.raises(UnfitAlgorithmError, match="real sends real images"):
            resolve(file)
        assert resolve(file, options={"algorithm": "fedavg"}).mechanism == "gradients"
        assert resolve(file, options={"privacy": "none"}).algorithm.name == "real"

    def test_the_papers_noise_has_no_unit_to_choose(self) -> None:
        with pytest.raises(ConfigError, match=r"privacy\.unit must be example, got 'client'"):
            resolve(settings=PAPER | {"privacy.unit": "client"})

    def test_scaffold_keeps_its_reason_under_privacy(self) -> None:
        with pytest.raises(ConfigError, match=r"^local\.momentum cannot be set here: SCAFFOLD"):
            resolve(
                options={"algorithm": "scaffold", "epsilon": 4.0},
                settings={"local.momentum": 0.5},
            )


@pytest.mark.parametrize(
    ("options", "epsilon", "rounds"),
    [({}, 4.0, 42), ({"epsilon": 1.0}, 1.0, 22), ({"rounds": 5}, 4.0, 5)],
)
def test_the_preset_private_has_a_budget(
    options: dict[str, Any], epsilon: float, rounds: int
) -> None:
    config = resolve(preset="private", options={"dataset": "mnist", **options})
    assert (config.mechanism, at(config, "privacy.epsilon")) == ("surrogate", epsilon)
    assert (config.rounds, config.model.name) == (rounds, "surrogate")


def test_the_preset_private_does_not_overrule_a_mechanism() -> None:
    assert resolve(preset="private", settings=PAPER).mechanism == "paper"
    assert resolve(preset="private", options={"privacy": "none"}).mechanism == "none"
    gradients = resolve(preset="private", options={"privacy": "gradients"})
    assert (gradients.mechanism, at(gradients, "privacy.epsilon")) == ("gradients", 4.0)


def test_shares_leave_some_of_the_budget() -> None:
    with pytest.raises(ConfigError, match=r"for residuals, but add up to 1\.06"):
        resolve(options={"epsilon": 4.0}, settings={"privacy.moments_share": 0.94})
