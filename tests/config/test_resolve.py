import json
import re
import tomllib
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from feddm.config.presets import PRESETS
from feddm.config.registry import algorithm_names
from feddm.config.resolve import (
    OPTIONS,
    flat,
    load_toml,
    parse_settings,
    qualified,
    resolve,
    schema,
    written,
)
from feddm.config.schema import Config, RuntimeConfig
from feddm.core.compile import Precision
from feddm.errors import ConfigError


def value_at(config: Config, key: str) -> Any:
    """Returns the value of a key such as ``server.lr``."""
    value: Any = config
    for part in qualified(key).split("."):
        value = getattr(value, part)
    return value


EVERY_OPTION: list[tuple[str, str, object]] = [
    ("algorithm", "algorithm.name", "real"),
    ("dataset", "data.name", "mnist"),
    ("data", "data.path", "somewhere"),
    ("clients", "partition.clients", 17),
    ("alpha", "partition.alpha", 0.07),
    ("rounds", "rounds", 17),
    ("participation", "participation", 0.25),
    ("model", "model.name", "resnet18"),
    ("width", "model.width", 17),
    ("ipc", "algorithm.images_per_class", 17),
    ("seed", "seed", 17),
    ("workers", "runtime.workers", 17),
    ("device", "runtime.device", "cpu"),
    ("compile", "runtime.compile", "off"),
    ("data_dir", "data.dir", "somewhere"),
    ("privacy", "privacy.mechanism", "paper"),
    ("epsilon", "privacy.epsilon", 17.0),
    ("delta", "privacy.delta", 1e-7),
    ("ledger", "privacy.ledger", "somewhere"),
]
FILE = {"preset": "paper", "rounds": 7}


class TestLayers:
    """Each layer wins over the ones above it in this list."""

    def test_the_default_is_the_quick_preset_on_the_embedded_digits(self) -> None:
        config = resolve()
        assert (config.preset, config.data.name, config.rounds) == ("quick", "digits", 5)

    def test_a_preset_in_the_file(self) -> None:
        assert resolve({"preset": "paper"}).rounds == 20

    def test_the_file_wins_over_its_preset(self) -> None:
        assert resolve(FILE).rounds == 7

    def test_a_preset_that_is_asked_for_wins_over_the_file(self) -> None:
        config = resolve(FILE, preset="quick")
        assert (config.preset, config.rounds) == ("quick", 5)

    def test_options_win_over_the_preset(self) -> None:
        assert resolve(FILE, "quick", {"rounds": 8}).rounds == 8

    def test_settings_win_over_options(self) -> None:
        assert resolve(FILE, "quick", {"rounds": 8}, {"rounds": 9}).rounds == 9

    def test_what_no_preset_names_stays_as_the_file_has_it(self) -> None:
        file = {"seed": 3, "data": {"dir": "here"}, "runtime": {"workers": 2}}
        config = resolve(file, preset="paper")
        assert (config.seed, config.data.dir, config.runtime.workers) == (3, "here", 2)

    def test_one_key_of_a_section_leaves_the_others(self) -> None:
        config = resolve({"algorithm": {"server": {"lr": 0.5}}}, settings={"server.epochs": 3})
        plain = flat(resolve().model_dump())
        assert flat(config.model_dump()) == plain | {
            "algorithm.server.lr": 0.5,
            "algorithm.server.epochs": 3,
        }

    def test_a_preset_may_be_set_or_come_with_a_special_file(self) -> None:
        assert resolve(settings={"preset": "paper"}).rounds == 20
        assert resolve(special={"preset": "paper"}).rounds == 20
        assert resolve(special={"preset": "paper"}, settings={"preset": "quick"}).rounds == 5

    def test_a_table_leaves_the_options_beside_it(self) -> None:
        config = resolve(options={"clients": 3}, settings={"partition": {"alpha": 3.0}})
        assert (config.partition.clients, config.partition.alpha) == (3, 3.0)

    @pytest.mark.parametrize("algorithm", [3, True, ["feddm"]])
    def test_an_algorithm_is_a_name_or_a_section(self, algorithm: object) -> None:
        with pytest.raises(ConfigError, match=r"^algorithm must be a name or a section, got"):
            resolve({"algorithm": algorithm})

    def test_an_option_that_is_none_was_not_given(self) -> None:
        assert resolve(FILE, options={"rounds": None, "seed": None}) == resolve(FILE)

    def test_the_preset_knows_the_data_set_wherever_that_is_named(self) -> None:
        for config in (
            resolve({"data": {"name": "cifar100"}}),
            resolve(options={"dataset": "cifar100"}),
            resolve(settings={"data.name": "cifar100"}),
        ):
            assert value_at(config, "images_per_class") == 5
        config = resolve(options={"dataset": "cifar100", "ipc": 2})
        assert value_at(config, "images_per_class") == 2

    @pytest.mark.parametrize(("option", "key", "value"), EVERY_OPTION)
    def test_every_option_sets_its_key(self, option: str, key: str, value: object) -> None:
        # Alone, delta and ledger would do nothing.
        budget = {"epsilon": 2.0} if option in ("delta", "ledger") else {}
        config = resolve(options={option: value} | budget)
        assert value_at(config, key) == value
        if not key.startswith("privacy."):
            assert value_at(resolve(), key) != value

    def test_no_option_is_forgotten_above(self) -> None:
        assert {option: key for option, key, _ in EVERY_OPTION} == OPTIONS


# Keys of the algorithm need not name it, so that a mistake may be about either.
KEYS = (
    f"feddm has {', '.join(sorted(set(type(resolve().algorithm).model_fields) - {'name'}))}; "
    f"all have {', '.join(sorted(set(Config.model_fields) - {'algorithm'}))}"
)
KEYS_OF_VALUES = [
    key.removeprefix("algorithm.")
    for key in flat(resolve().model_dump(exclude={"privacy"}))
    if key not in ("preset", "algorithm.name", "data.own.classes")
]


class TestMistakes:
    """Each is one sentence that names the key, the value and what is allowed."""

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            (
                {"partition.client": 3},
                "unknown key partition.client (did you mean clients?); known here: "
                "alpha, classes_per_client, clients, min_examples, scheme",
            ),
            ({"zzz": 3}, f"unknown key zzz; {KEYS}"),
            (
                {"sever.lr": 0.1},
                f"unknown key sever (did you mean server?); {KEYS}",
            ),
            ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
            ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
            ({"rounds": 2.5}, "rounds must be a whole number of at least 1, got 2.5"),
            ({"rounds": "many"}, "rounds must be a whole number of at least 1, got 'many'"),
            ({"rounds": True}, "rounds must be a whole number of at least 1, got True"),
            ({"rounds": "5"}, "rounds must be a whole number of at least 1, got '5'"),
            ({"server.lr": 0}, "server.lr must be a number above 0, got 0"),
            ({"server.lr": True}, "server.lr must be a number above 0, got True"),
            ({"server.lr": float("nan")}, "server.lr must be a number above 0, got nan"),
            (
                {"server.radius": float("inf")},
                "server.radius must be a number above 0, got inf",
            ),
            (
                {"participation": 1.5},
                "participation must be a number above 0 and at most 1, got 1.5",
            ),
            (
                {"synthesis.momentum": 1.0},
                "synthesis.momentum must be a number of at least 0 and below 1, got 1.0",
            ),
            (
                {"model.depth": 7},
                "model.depth must be a whole number of at least 1 and at most 6, got 7",
            ),
            (
                {"model.name": "vgg"},
                "model.name must be one of convnet, mlp, resnet18, features, surrogate or "
                "FILE.py:NAME, got 'vgg'",
            ),
            (
                {"synthesis.networks": "frehs"},
                "synthesis.networks must be a whole number of at least 1 or fresh, got 'frehs'",
            ),
            (
                {"synthesis.networks": 0},
                "synthesis.networks must be a whole number of at least 1 or fresh, got 0",
            ),
            (
                {"runtime.workers": -2},
                "runtime.workers must be a whole number of at least 1 or auto, got -2",
            ),
            (
                {"model.norm": "batch"},
                "model.norm cannot be batch: batch statistics mix examples, differ between "
                "clients and void class means and privacy; use instance or group",
            ),
            ({"model.norm": "layer"}, "model.norm must be one of instance, group, got 'layer'"),
            ({"server.augment": "yes"}, "server.augment must be true or false, got 'yes'"),
            ({"data.name": 5}, "data.name must be a text, got 5"),
            ({"server": 5}, "server must be a section, got 5"),
            ({"data": "mnist"}, "data must be a section, got 'mnist'"),
            (
                {"rounds.first": 5},
                "rounds must be a whole number of at least 1, got {'first': 5}",
            ),
            (
                {"rounds": 5, "rounds.first": 5},
                "rounds.first cannot be set: rounds is a value, not a section",
            ),
            (
                {"preset": "papre"},
                "preset must be one of quick, paper, private, got 'papre'",
            ),
            ({"preset": 0}, "preset must be one of quick, paper, private, got 0"),
            ({"preset": ""}, "preset must be one of quick, paper, private, got ''"),
        ],
        ids=str,
    )
    def test_sentence(self, settings: dict[str, object], sentence: str) -> None:
        with pytest.raises(ConfigError) as raised:
            resolve(settings=settings)
        assert str(raised.value) == sentence

    @pytest.mark.parametrize("key", KEYS_OF_VALUES)
    def test_every_key_has_a_sentence(self, key: str) -> None:
        with pytest.raises(ConfigError) as raised:
            resolve(settings={key: ["nonsense"]})
        assert re.fullmatch(rf"{key} must be .+, got \['nonsense'\]", str(raised.value))

    def test_another_algorithm(self) -> None:
        with pytest.raises(ConfigError, match=r"^algorithm must be .*feddm.*, got 'fedsgd'$"):
            resolve(options={"algorithm": "fedsgd"})

    def test_a_file_is_checked_like_everything_else(self) -> None:
        with pytest.raises(
            ConfigError, match=r"^unknown key server\.epoch \(did you mean epochs\?\)"
        ):
            resolve({"algorithm": {"server": {"epoch": 3}}})
        with pytest.raises(
            ConfigError, match=r"^preset must be one of quick, paper, private, got 0$"
        ):
            resolve({"preset": 0})
        with pytest.raises(
            ConfigError, match=r"^preset must be one of quick, paper, private, got ''$"
        ):
            resolve(preset="")

    def test_a_value_that_a_later_layer_replaces_does_no_harm(self) -> None:
        assert resolve({"rounds": -5}, options={"rounds": 3}).rounds == 3

    @pytest.mark.parametrize("assignment", ["server.lr", "=3", " =3", ""])
    def test_a_setting_without_key_or_value(self, assignment: str) -> None:
        with pytest.raises(ConfigError) as raised:
            parse_settings([assignment])
        assert str(raised.value) == f"--set takes key=value, got {assignment!r}"

    def test_bad_toml_names_file_and_line(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.toml"
        path.write_text("rounds = 3\nseed = = 4\n")
        with pytest.raises(ConfigError, match="line 2") as raised:
            load_toml(path)
        assert str(raised.value).startswith(f"{path} is not TOML: ")
        assert "\n" not in str(raised.value)

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "picture.toml"
        path.write_bytes(b"\x89PNG\xff\xfe")
        with pytest.raises(ConfigError, match=r"picture\.toml is not TOML"):
            load_toml(path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        path = tmp_path / "none.toml"
        with pytest.raises(ConfigError) as raised:
            load_toml(path)
        assert str(raised.value) == f"cannot read {path}: No such file or directory"

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot read"):
            load_toml(tmp_path)


def test_settings_are_toml_values_or_else_texts() -> None:
    assert parse_settings(
        ["a=1", "b = 0.5", "c=true", "d='1'", "e=fresh", "f=~/data", "g=a=b", "h="]
    ) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": "1",
        "e": "fresh",
        "f": "~/data",
        "g": "a=b",
        "h": "",
    }


def test_a_later_setting_of_a_key_wins() -> None:
    assert parse_settings(["rounds=3", "rounds=4"]) == {"rounds": 4}


def test_a_configuration_cannot_be_changed() -> None:
    config = resolve()
    with pytest.raises(ValidationError):
        config.rounds = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        config.data.name = "mnist"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        config.algorithm.name = "fedavg"  # type: ignore[misc]


positive_floats = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
settings_of_all_kinds = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from(["quick", "paper"]),
        "seed": st.integers(min_value=0),
        "rounds": st.integers(min_value=1, max_value=10**9),
        "participation": st.floats(0, 1, exclude_min=True),
        "data.name": st.sampled_from(["digits", "mnist", "cifar100"]),
        "data.dir": st.text(),
        "partition.alpha": positive_floats,
        "model.norm": st.sampled_from(["instance", "group"]),
        "synthesis.networks": st.integers(1, 1000) | st.just("fresh"),
        "server.lr": positive_floats | st.integers(1, 10),
        "runtime.workers": st.integers(1, 64) | st.just("auto"),
    },
)


@given(settings_of_all_kinds)
def test_written_as_toml_and_read_again_it_is_the_same(settings: dict[str, object]) -> None:
    config = resolve(settings=settings)
    text = config.to_toml()
    again = resolve(tomllib.loads(text))
    assert again == config
    assert again.to_toml() == text
    for key, value in settings.items():
        assert value_at(again, key) == value


def test_a_file_that_was_written_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve(preset="paper", options={"dataset": "cifar100", "data_dir": "C:\\däta"})
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    # Whatever the presets become.
    monkeypatch.setattr("feddm.config.resolve.preset_values", lambda *arguments: {"rounds": 99})
    assert resolve(load_toml(path)) == config


def choices(section: type[BaseModel], key: str) -> tuple[str, ...]:
    return get_args(section.model_fields[key].annotation)


def test_choices_are_those_of_the_code_that_they_are_for() -> None:
    # Written out in the configuration, which imports none of that code.
    assert choices(Config, "preset") == PRESETS
    assert choices(RuntimeConfig, "precision") == get_args(Precision)


class TestDataOfNodes:
    OWN: ClassVar[dict[str, Any]] = {
        "classes": ["ill", 'well and "fine"'],
        "shape": [3, 8, 8],
        "examples": 70,
        "mean": 0.4,
        "std": 0.2,
        "test": "test.npz",
    }

    def test_it_survives_toml_and_json(self) -> None:
        config = resolve({"data": {"name": "lesions", "own": self.OWN}})
        assert config.data.own.classes == ("ill", 'well and "fine"')
        assert config.data.own.shape == (3, 8, 8)
        assert resolve(tomllib.loads(config.to_toml())) == config
        assert resolve(json.loads(json.dumps(config.model_dump()))) == config

    def test_it_can_be_set_by_options(self) -> None:
        settings = parse_settings(["data.own.classes=['a','b']", "data.own.shape=[1,4,6]"])
        own = resolve(settings=settings).data.own
        assert (own.classes, own.shape) == (("a", "b"), (1, 4, 6))

    @pytest.mark.parametrize(
        ("key", "value", "says"),
        [
            ("classes", "ab", "must be a list, each a text, got 'ab'"),
            ("classes", ["a", 1], "must be a list, each a text, got ['a', 1]"),
            ("classes", ["a", "b", "a"], "must be all different, got 'a' twice"),
            ("classes", ["a"], "must be at least two, got 'a' alone"),
            ("shape", [1, 8], "must be a list of 3, each a whole number of at least 1, got "),
            ("shape", [1, 8, 8, 8], "must be a list of 3"),
            ("shape", ["1", 8, 8], "must be a list of 3"),
            ("shape", [1.0, 8, 8], "must be a list of 3"),
            ("shape", [True, 8, 8], "must be a list of 3"),
            ("shape", [0, 8, 8], "must be a list of 3"),
            ("shape", 8, "must be a list of 3"),
            ("examples", -1, "must be a whole number of at least 0, got -1"),
            ("examples", 2.5, "must be a whole number of at least 0, got 2.5"),
            ("mean", "a", "must be a number or a list, each a number, got 'a'"),
            ("std", 0, "must be a number above 0 or a list, each a number above 0, got 0"),
            ("test", 5, "must be a text, got 5"),
        ],
    )
    def test_mistakes(self, key: str, value: object, says: str) -> None:
        with pytest.raises(ConfigError) as raised:
            resolve({"data": {"name": "lesions", "own": self.OWN | {key: value}}})
        assert str(raised.value).startswith(f"data.own.{key} {says}")

    def test_a_typo_is_told(self) -> None:
        with pytest.raises(ConfigError) as raised:
            resolve(settings={"data.own.class": ["a", "b"]})
        assert str(raised.value) == (
            "unknown key data.own.class (did you mean classes?); known here: "
            "classes, client, examples, fit, group, mean, measured, shape, std, test, values, "
            "white"
        )


CHOICES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in algorithm_names()] + [
    ("feddm", {"privacy.epsilon": 4.0}),
    ("feddm", {"privacy.epsilon": 4.0, "privacy.mechanism": "gradients"}),
    ("feddm", {"privacy.mechanism": "paper"}),
    ("fedprox", {"privacy.epsilon": 4.0}),
]


@pytest.mark.parametrize(("algorithm", "privacy"), CHOICES, ids=str)
class TestEveryChoice:
    """Each algorithm, with and without privacy, has settings of its own."""

    def test_every_key_is_described(self, algorithm: str, privacy: dict[str, Any]) -> None:
        config = resolve(options={"algorithm": algorithm}, settings=privacy)
        document = json.loads(schema(config))
        sections = document["$defs"] | {"Config": document}
        for section in sections.values():
            assert section["description"]
            for key, rule in section["properties"].items():
                if key not in ("mechanism", "privacy") and "$ref" not in rule:
                    assert len(rule["description"]) > 5

    def test_the_schema_has_its_keys_and_no_others(
        self, algorithm: str, privacy: dict[str, Any]
    ) -> None:
        config = resolve(options={"algorithm": algorithm}, settings=privacy)
        document = json.loads(schema(config))

        def compare(rule: dict[str, Any], values: dict[str, Any]) -> None:
            assert set(rule["properties"]) == set(values)
            assert rule["additionalProperties"] is False
            for name, value in values.items():
                if isinstance(value, dict):
                    reference = rule["properties"][name]["$ref"]
                    compare(document["$defs"][reference.rpartition("/")[2]], value)

        compare(document, config.model_dump())

    def test_written_and_read_again_it_is_the_same(
        self, algorithm: str, privacy: dict[str, Any]
    ) -> None:
        # Nothing makes real images private.
        presets = [name for name in PRESETS if (algorithm, name) != ("real", "private")]
        for preset in presets:
            config = resolve(preset=preset, options={"algorithm": algorithm}, settings=privacy)
            text = config.to_toml()
            for read in (resolve, written):
                again = read(tomllib.loads(text))
                assert again == config
                assert type(again.algorithm) is type(config.algorithm)
                assert again.to_toml() == text
            assert resolve(json.loads(config.model_dump_json())) == config


class TestOneAlgorithmsSettings:
    def test_another_algorithms_settings_do_not_exist(self) -> None:
        trained = "fedavg, fedprox, fednova, scaffold have it"
        for algorithm, key, who in (
            ("fedavg", "synthesis.steps", "feddm has it"),
            ("fedavg", "server.lr", "feddm, real have it"),
            ("fedavg", "mu", "fedprox has it"),
            ("feddm", "local.epochs", trained),
            ("real", "synthesis.lr", "feddm has it"),
        ):
            with pytest.raises(ConfigError) as raised:
                resolve(options={"algorithm": algorithm}, settings={key: 1})
            assert str(raised.value) == f"{algorithm} has no setting {key}; {who}"

    def test_an_algorithm_may_say_what_to_do_instead(self) -> None:
        with pytest.raises(ConfigError, match=r"^local\.momentum cannot be set here: SCAFFOLD"):
            resolve(options={"algorithm": "scaffold"}, settings={"local.momentum": 0.5})

    def test_a_setting_can_be_named_in_full(self) -> None:
        short, full = (
            resolve(settings={key: 7}) for key in ("server.epochs", "algorithm.server.epochs")
        )
        assert short == full != resolve()

    def test_settings_for_several_algorithms_are_taken_where_they_exist(self) -> None:
        settings = {"synthesis.steps": 7, "local.epochs": 3, "mu": 0.5, "rounds": 2}
        found = {}
        for name in algorithm_names():
            config = resolve(options={"algorithm": name}, settings=settings, shared=True)
            keys = flat(config.model_dump())
            taken = {key for key in settings if keys.get(qualified(key)) == settings[key]}
            found[name] = taken
        local = {"rounds", "local.epochs"}
        assert found == {
            "feddm": {"rounds", "synthesis.steps"},
            "fedavg": local,
            "fedprox": local | {"mu"},
            "fednova": local,
            "scaffold": local,
            "real": {"rounds"},
        }

    def test_a_shared_setting_is_checked_where_it_exists(self) -> None:
        with pytest.raises(ConfigError, match=r"^mu must be a number of at least 0, got -1$"):
            resolve(options={"algorithm": "fedprox"}, settings={"mu": -1}, shared=True)

    def test_a_file_for_another_algorithm_counts_where_both_agree(self) -> None:
        # REAL has the server and the number of images of FedDM, but no synthesis.
        file = {
            "rounds": 3,
            "algorithm": {
                "name": "feddm",
                "images_per_class": 4,
                "server": {"epochs": 7},
                "synthesis": {"steps": 9},
            },
        }
        real = resolve(file, options={"algorithm": "real"})
        assert (real.rounds, value_at(real, "images_per_class")) == (3, 4)
        assert value_at(real, "server.epochs") == 7
        fedavg = resolve(file, options={"algorithm": "fedavg"})
        assert fedavg.algorithm == resolve(options={"algorithm": "fedavg"}).algorithm

    def test_an_algorithm_may_be_only_named(self) -> None:
        assert resolve({"algorithm": "fedavg"}) == resolve(options={"algorithm": "fedavg"})


class TestEarlierVersions:
    @pytest.mark.parametrize("read", [resolve, written])
    def test_files_of_the_flat_form_are_refused_in_one_sentence(self, read: Any) -> None:
        flat_form = {"algorithm": "feddm", "synthesis": {"steps": 3}, "server": {"lr": 0.1}}
        with pytest.raises(ConfigError) as raised:
            read(flat_form)
        assert str(raised.value) == (
            "[synthesis], [server] at the top level is the form of an earlier version of "
            "feddm: an algorithm's settings are in [algorithm] now; `feddm config` writes such "
            "a file"
        )

    def test_a_setting_that_was_not_written_has_the_papers_value(self) -> None:
        values = resolve(options={"dataset": "cifar10"}).model_dump(exclude_none=True)
        assert values["algorithm"]["synthesis"].pop("momentum") == 0.5
        assert value_at(written(values), "synthesis.momentum") == 0.0
        assert value_at(resolve(values), "synthesis.momentum") == 0.5
