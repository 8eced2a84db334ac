"""The paper's tables and figures: what was run for each, over the preset ``paper``.

Table 1 is a summary in words, and so needs no run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from feddm.errors import ConfigError
from feddm.paper.published import ACCURACIES, IPC, REAL, RHO, Reported
from feddm.runtime.wording import nominal_epsilon

TITLES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fednova": "FedNova",
    "scaffold": "SCAFFOLD",
    "feddm": "FedDM",
    "real": "REAL",
}
BASELINES = ("fedavg", "fedprox", "fednova", "scaffold")
UNTUNED = (
    "The paper tunes learning rate and epochs of the baselines, and mu of FedProx, and does "
    "not say what came out; here they have the values of the scale, or of a file that --with "
    "names, as `feddm tune` writes it."
)
NO_NUMBERS = "The paper shows this as curves only: where it has no number, there is none here."


@dataclass(frozen=True)
class PaperRun:
    """A row of a table, or a curve.

    Args:
        name: Of its cells.
        panel: Title of the part of the table or figure that it is in.
        method: Its title there.
        settings: What is particular to it, by dotted keys.
        paper: What came out in the paper, if it says so.
    """

    name: str
    panel: str
    method: str
    settings: Mapping[str, Any]
    paper: Reported | None = None


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Args:
        name: Its name on the command line.
        shows: What it shows, in a line.
        place: Where it is in the paper.
        runs: What is run for it; nothing is for what can be computed.
        kind: What is made of it: besides a table, curves, and the synthetic images; or
            something of its own.
        notes: What a reader must know.
    """

    name: str
    shows: str
    place: str
    runs: tuple[PaperRun, ...] = ()
    kind: Literal["curves", "images", "cost", "surrogate"] = "curves"
    notes: tuple[str, ...] = ()


def _run(
    algorithm: str,
    dataset: str = "cifar10",
    alpha: float = 0.5,
    clients: int = 10,
    *,
    change: str = "",
    title: str = "",
    panel: str = "",
    paper: Reported | None = None,
    **settings: Any,
) -> PaperRun:
    """Returns a run; by default it is of the paper's default setting, CIFAR10 and Dir10(0.5).

    Args:
        algorithm: What is run.
        dataset: On which data.
        alpha: Of the Dirichlet distribution.
        clients: How many there are.
        change: For its name: what makes it differ from others of the same setting.
        title: Of the method; else the algorithm's.
        panel: Of the part; else the data set and its split.
        paper: What came out; else what the paper says about the setting without a change.
        settings: Others, with two underscores for the dot of a key.
    """
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    if paper is None and clients == 10 and not change:
        paper = ACCURACIES.get((dataset, alpha, algorithm))
    return PaperRun(
        "-".join(filter(None, [dataset, f"dir{clients}", f"{alpha:g}", algorithm, change])),
        panel or f"{TITLES[dataset]}, Dir{clients}({alpha:g})",
        title or TITLES[algorithm],
        {
            "algorithm": algorithm,
            "data.name": dataset,
            "partition.alpha": alpha,
            "partition.clients": clients,
            **keys,
        },
        paper,
    )


def _methods(
    *datasets: str, alpha: float, clients: int = 10, **settings: Any
) -> list[PaperRun]:
    """Returns FedDM and the four baselines on each data set."""
    return [
        _run(algorithm, dataset, alpha, clients, **settings)
        for dataset in datasets
        for algorithm in (*BASELINES, "feddm")
    ]


def _noisy(sigma: int) -> Iterator[PaperRun]:
    """Yields what is compared at a level of noise, as the paper has it and as it should be."""
    panel = f"CIFAR10, sigma {sigma}"
    noise: dict[str, Any] = {"privacy__noise_multiplier": float(sigma), "privacy__clip": 5.0}
    # As many examples and steps as ten epochs in batches of 256 of a client with 5,000.
    noise_of_steps = {**noise, "privacy__sample_rate": 0.05, "privacy__steps": 200}
    for algorithm in BASELINES:
        yield _run(
            algorithm,
            change=f"sigma{sigma}",
            title=f"{TITLES[algorithm]}, DP-SGD",
            panel=panel,
            privacy__mechanism="gradients",
            privacy__ledger="new",
            **noise_of_steps,
        )
    yield _run(
        "feddm",
        change=f"sigma{sigma}",
        title="FedDM, the paper's noise",
        panel=panel,
        privacy__mechanism="paper",
        **noise,
    )
    epsilon = round(nominal_epsilon(sigma), 2)
    yield _run(
        "feddm",
        change=f"epsilon{epsilon:g}",
        title="FedDM, our mechanism",
        panel=panel,
        privacy__mechanism="features",
        privacy__epsilon=epsilon,
        privacy__ledger="new",
    )


def _images(sigma: int) -> PaperRun:
    return _run(
        "feddm",
        change=f"sigma{sigma}",
        title=f"sigma {sigma}",
        privacy__mechanism="paper",
        privacy__noise_multiplier=float(sigma),
        privacy__clip=5.0,
    )


def _curves(
    name: str, place: str, runs: list[PaperRun], notes: tuple[str, ...] = ()
) -> Experiment:
    data = ", ".join(dict.fromkeys(TITLES[run.settings["data.name"]] for run in runs))
    split = runs[0].panel.rpartition(", ")[2]
    shows = f"accuracy by round and by message size, {split}: {data}"
    return Experiment(name, shows, place, tuple(runs), notes=(NO_NUMBERS, UNTUNED, *notes))


ALL = ("mnist", "cifar10", "cifar100")
_THREE_IPC = (
    "ipc 3, because the 3.1 million floats that the paper names for FedDM fit three images a "
    "class and not ten."
)
_LIST = (
    Experiment(
        "surrogate",
        "a 1-D objective, its learned surrogate and its tangent at w = 0",
        "Figure 1, Appendix A",
        kind="surrogate",
    ),
    _curves("curves-dir10-0.5", "Figures 2 and 5, Section 4.2", _methods(*ALL, alpha=0.5)),
    _curves("curves-dir10-0.1", "Figure 6, Appendix D.1", _methods(*ALL, alpha=0.1)),
    _curves("curves-dir10-0.01", "Figure 7, Appendix D.1", _methods(*ALL, alpha=0.01)),
    _curves("curves-dir10-50", "Figure 8, Appendix D.1", _methods("cifar10", alpha=50.0)),
    _curves(
        "curves-dir50-0.5",
        "Figure 9, Appendix D.1",
        _methods("cifar10", alpha=0.5, clients=50, images_per_class=3),
        (_THREE_IPC,),
    ),
    Experiment(
        "non-iid",
        "final accuracy of all methods on skewed clients, Dir10(0.1) and Dir10(0.01)",
        "Table 2, Section 4.3",
        (*_methods(*ALL, alpha=0.1), *_methods(*ALL, alpha=0.01)),
        notes=(UNTUNED,),
    ),
    Experiment(
        "cost",
        "floats that all clients upload in a round, counted without training",
        "Table 3, Appendix C",
        kind="cost",
        notes=(
            "The paper does not count what clients download, nor SCAFFOLD's second set of "
            "weights.",
            "On CIFAR100 with Dir10(0.5), FedDM uploads more than the baselines.",
        ),
    ),
    Experiment(
        "noise",
        "all methods with noise, sigma 1, 3, 5: the paper's, and ours with a guarantee",
        "Figures 3 and 10, Section 4.4",
        (
            _run("feddm", panel="CIFAR10, no noise"),
            *_noisy(1),
            *_noisy(3),
            *_noisy(5),
        ),
        notes=(
            NO_NUMBERS,
            UNTUNED,
            "The paper's noise for FedDM gives NO GUARANTEE: it clips the mean of a batch, "
            "begins with real images, and shows a client's classes. Beside it stands our "
            "mechanism at the epsilon (delta 1e-5, all rounds together) that the paper's "
            "formula would name for that sigma.",
            "The baselines have correct DP-SGD with the same sigma and bound, and the epsilon "
            "that it costs. Private runs are computed on the CPU.",
        ),
    ),
    Experiment(
        "ipc",
        "FedDM with 3, 5 and 10 images a class",
        "Figure 11, Section 4.5",
        tuple(
            _run(
                "feddm",
                change=f"ipc{ipc}",
                title=f"ipc {ipc}",
                images_per_class=ipc,
                paper=paper,
            )
            for ipc, paper in IPC.items()
        ),
    ),
    Experiment(
        "resnet18",
        "all methods with ResNet-18 instead of the ConvNet",
        "Figures 4 and 12, Section 4.5",
        tuple(
            _run(
                algorithm,
                change="resnet18",
                panel="CIFAR10, ResNet-18",
                model__name="resnet18",
            )
            for algorithm in (*BASELINES, "feddm")
        ),
        notes=(NO_NUMBERS, UNTUNED, "With group normalization instead of batch norm."),
    ),
    Experiment(
        "real",
        "FedDM beside sending as many real images",
        "Figure 13, Section 4.5",
        (_run("real", paper=REAL), _run("feddm", paper=IPC[10])),
    ),
    Experiment(
        "images",
        "synthetic images of a client without noise and with sigma 2, 3 and 5",
        "Figures 14 to 17, Appendix D.2",
        (_run("feddm", title="no noise"), *map(_images, (2, 3, 5))),
        kind="images",
        notes=(
            "The paper's noise: no guarantee, however little one can see.",
            "Shown is client 0 of the first seed, after the last round; the paper picks one "
            "at random.",
        ),
    ),
    Experiment(
        "rho",
        "FedDM with networks at distance 3, 5 and 10",
        "Table 4, Appendix D.3",
        tuple(
            _run(
                "feddm",
                change=f"rho{rho}",
                title=f"rho {rho}",
                synthesis__radius=float(rho),
                server__radius=float(rho),
                paper=paper,
            )
            for rho, paper in RHO.items()
        ),
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _LIST}


def find(name: str) -> Experiment:
    """Returns the experiment of this name, or says which there are."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    begun = [known for known in EXPERIMENTS if known.startswith(name)]
    close = begun or difflib.get_close_matches(name, EXPERIMENTS, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(
        f"the paper has no table or figure named {name!r}; {hint}`feddm paper list` shows all"
    )
