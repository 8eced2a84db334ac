import math
from typing import Any

import pytest

from feddm.algorithms.feddm import FedDMSettings
from feddm.config.resolve import resolve
from feddm.config.schema import Config
from feddm.errors import ConfigError
from feddm.paper import experiments, scales
from feddm.paper.experiments import EXPERIMENTS, PaperRun
from feddm.paper.published import ACCURACIES
from feddm.paper.scales import FULL, SCALES, configuration, scaled_down
from feddm.privacy.features import FeatureSettings
from feddm.privacy.gradients import GradientSettings
from feddm.privacy.paper_noise import PaperNoise

PAIRS = [(name, scale) for name in EXPERIMENTS for scale in SCALES]


def runs(name: str) -> dict[str, PaperRun]:
    return {run.name: run for run in EXPERIMENTS[name].runs}


def local(config: Config) -> dict[str, Any]:
    """Returns how clients train, which FedDM's do not; keys that do not exist are missing."""
    found: dict[str, Any] = config.algorithm.model_dump().get("local", {})
    return found


@pytest.mark.parametrize(("name", "scale"), PAIRS)
def test_every_run_has_a_name_and_a_configuration(name: str, scale: str) -> None:
    experiment = EXPERIMENTS[name]
    assert len(runs(name)) == len(experiment.runs)
    assert len({(run.panel, run.method) for run in experiment.runs}) == len(experiment.runs)
    cells = scales.cells(experiment, SCALES[scale], 2)
    assert len({(cell.name, cell.seed) for cell in cells}) == 2 * len(experiment.runs)
    assert all(cell.config.seed == cell.seed for cell in cells)
    if scale == "smoke":
        assert {cell.config.data.name for cell in cells} <= {"digits"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_full_is_the_papers_scale(name: str) -> None:
    assert scaled_down(EXPERIMENTS[name], FULL, 3) == []
    for run in EXPERIMENTS[name].runs:
        config = configuration(run, FULL)
        assert (config.preset, config.rounds) == ("paper", 20)


def test_the_default_run_is_the_preset_paper() -> None:
    run = runs("curves-dir10-0.5")["cifar10-dir10-0.5-feddm"]
    assert configuration(run, FULL) == resolve(preset="paper", options={"dataset": "cifar10"})


def test_what_is_scaled_down_is_told() -> None:
    told = scaled_down(EXPERIMENTS["ipc"], SCALES["small"], 2)
    assert "rounds 20 -> 5" in told
    assert "model.width 128 -> 32" in told
    assert "synthesis.networks fresh -> 10" in told
    assert "seeds 3 -> 2" in told
    assert not any("images_per_class" in text for text in told)  # which is the experiment
    assert not any("local." in text for text in told)  # which FedDM does not use
    smoke = scaled_down(EXPERIMENTS["non-iid"], SCALES["smoke"], 3)
    names = "mnist -> digits, cifar10 -> digits, cifar100 -> digits"
    assert f"data.name {names}" in smoke
    assert not any(text.startswith("seeds") for text in smoke)


def test_settings_that_do_nothing_are_left_out() -> None:
    # DP-SGD has neither epochs nor batches, and plain runs have no private steps.
    private = configuration(runs("noise")["cifar10-dir10-0.5-fedavg-sigma3"], SCALES["smoke"])
    assert set(local(private)) == {"lr", "momentum", "weight_decay"}
    assert isinstance(private.privacy, GradientSettings)
    assert private.privacy.steps == 2
    plain = configuration(runs("noise")["cifar10-dir10-0.5-feddm"], SCALES["smoke"])
    assert plain.privacy is None


def test_tuned_settings_are_over_a_scale() -> None:
    tuned = {"fedavg": {"local.lr": 0.07, "local.epochs": 4}}
    small, experiment = SCALES["small"], EXPERIMENTS["curves-dir10-50"]
    by_name = {
        cell.config.algorithm.name: local(cell.config)
        for cell in scales.cells(experiment, small, 1, tuned)
    }
    fedavg = by_name["fedavg"]
    assert (fedavg["lr"], fedavg["epochs"], fedavg["batch_size"]) == (0.07, 4, 64)
    assert by_name["fedprox"]["lr"] == 0.03
    assert by_name["scaffold"]["lr"] == 0.1
    told = scaled_down(experiment, small, 3, tuned)
    assert "local.lr 0.01 -> 0.07, 0.01 -> 0.03, 0.01 -> 0.1" in told
    # With privacy there are no epochs; a rate there is all the same.
    private = runs("noise")["cifar10-dir10-0.5-fedavg-sigma3"]
    assert local(configuration(private, small, tuned=tuned)) == {
        "lr": 0.07,
        "momentum": 0.9,
        "weight_decay": 0.0,
    }


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("real", "rounds", 7),
        ("real", "partition.clients", 3),
        ("real", "privacy.epsilon", 1.0),
        ("ipc", "images_per_class", 4),
        ("rho", "server.radius", 2.0),
    ],
)
def test_tuning_does_not_change_the_experiment(name: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"--with cannot set .* of feddm: {name} has"):
        scales.check_tuned(EXPERIMENTS[name], SCALES["small"], {"feddm": {key: value}})


def test_what_a_method_does_not_have_cannot_be_tuned() -> None:
    for key in ("server.lrr", "local.lr"):
        with pytest.raises(ConfigError, match=f"--with sets {key}, which feddm does not have"):
            scales.check_tuned(EXPERIMENTS["real"], SCALES["small"], {"feddm": {key: 0.1}})
    # Runs without privacy have epochs, and those of this experiment leave them out.
    tuned = {"fedavg": {"local.epochs": 4}}
    scales.check_tuned(EXPERIMENTS["noise"], SCALES["small"], tuned)


def test_tuning_may_change_how_it_learns() -> None:
    tuned = {"feddm": {"preset": "paper", "server.lr": 0.02}}
    scales.check_tuned(EXPERIMENTS["real"], SCALES["small"], tuned)


def test_what_the_command_line_says_is_over_a_scale() -> None:
    run = EXPERIMENTS["rho"].runs[0]
    assert configuration(run, SCALES["smoke"]).runtime.workers == 1
    assert configuration(run, SCALES["smoke"], workers=2).runtime.workers == 2


def test_skewed_clients_have_the_papers_numbers() -> None:
    table = {run.name: run.paper for run in EXPERIMENTS["non-iid"].runs}
    assert len(table) == 30
    assert None not in table.values()
    spots = {
        "mnist-dir10-0.1-fedavg": "96.92 ± 0.09",
        "cifar100-dir10-0.1-scaffold": "34.39 ± 0.25",
        "cifar10-dir10-0.01-feddm": "63.82 ± 0.17",
        "cifar10-dir10-0.01-scaffold": "32.42 ± 1.13",
        "cifar10-dir10-0.1-fedavg": "57.32 ± 0.04?",
        "cifar10-dir10-0.01-fedavg": "57.32 ± 0.04?",
    }
    assert {name: str(table[name]) for name in spots} == spots
    assert sum(bool(paper and paper.doubt) for paper in table.values()) == 2


def test_feddm_is_the_best_of_every_column() -> None:
    columns: dict[tuple[str, float], dict[str, float]] = {}
    for (dataset, alpha, algorithm), paper in ACCURACIES.items():
        columns.setdefault((dataset, alpha), {})[algorithm] = paper.mean
    assert len(columns) == 7
    assert all(max(c, key=lambda name: c[name]) == "feddm" for c in columns.values())


def test_noise_is_the_papers_and_ours() -> None:
    for sigma in (1, 3, 5):
        panel = [run for run in EXPERIMENTS["noise"].runs if run.panel.endswith(f" {sigma}")]
        privacy = {run.method: configuration(run, FULL).privacy for run in panel}
        paper, ours = (
            privacy.pop("FedDM, the paper's noise"),
            privacy.pop("FedDM, our mechanism"),
        )
        assert isinstance(paper, PaperNoise)
        assert (paper.noise_multiplier, paper.clip) == (sigma, 5)
        # What sigma >= sqrt(2 log(1 / delta) / epsilon) would promise, to two digits.
        assert isinstance(ours, FeatureSettings)
        assert ours.epsilon == round(2 * math.log(1e5) / sigma**2, 2)
        assert len(privacy) == 4
        for baseline in privacy.values():
            assert isinstance(baseline, GradientSettings)
            assert (baseline.noise_multiplier, baseline.clip) == (sigma, 5)
            # 200 steps with a twentieth of the examples are ten epochs.
            assert baseline.steps * baseline.sample_rate == 10


def test_particulars() -> None:
    fifty = configuration(runs("curves-dir50-0.5")["cifar10-dir50-0.5-feddm"], FULL)
    assert isinstance(fifty.algorithm, FedDMSettings)
    assert (fifty.partition.clients, fifty.algorithm.images_per_class) == (50, 3)
    for run, rho in zip(EXPERIMENTS["rho"].runs, (3, 5, 10), strict=True):
        settings = configuration(run, FULL).algorithm
        assert isinstance(settings, FedDMSettings)
        assert (settings.synthesis.radius, settings.server.radius) == (rho, rho)
    of_cifar100 = configuration(runs("curves-dir10-0.1")["cifar100-dir10-0.1-feddm"], FULL)
    assert isinstance(of_cifar100.algorithm, FedDMSettings)
    assert of_cifar100.algorithm.images_per_class == 5
    resnet = [configuration(run, FULL).model for run in EXPERIMENTS["resnet18"].runs]
    assert {(model.name, model.norm) for model in resnet} == {("resnet18", "group")}


def test_wrong_names_are_told() -> None:
    with pytest.raises(ConfigError, match=r"named 'noniid'; did you mean non-iid\?"):
        experiments.find("noniid")
    with pytest.raises(ConfigError, match="named 'xyz'; `feddm paper list` shows all"):
        experiments.find("xyz")
    with pytest.raises(ConfigError, match="must be one of smoke, small, full, got 'big'"):
        scales.find("big")


def test_the_number_of_seeds() -> None:
    small = SCALES["small"]
    numbers = [scales.usual_seeds(EXPERIMENTS[n], small) for n in ("ipc", "cost", "surrogate")]
    assert numbers == [2, 20, 1]
