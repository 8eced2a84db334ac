"""The paper's own numbers, each with the place where the paper reports it.

Sections, tables and figures are numbered in the order of https://arxiv.org/abs/2207.09653.
Only numbers from the text and the tables are here: curves exist only as pictures.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reported:
    """An accuracy after 20 rounds, in percent, over three seeds.

    Args:
        mean: Mean.
        std: Standard deviation.
        place: Section or table of the paper.
        doubt: What seems wrong with it, if anything.
    """

    mean: float
    std: float
    place: str
    doubt: str = ""

    def __str__(self) -> str:
        """Returns the number as printed in the paper, with a ``?`` if it is doubtful."""
        return f"{self.mean:.2f} ± {self.std:.2f}{'?' if self.doubt else ''}"


# Upload of all clients in a round, in floats (Appendix C, Table 3), for FedDM with ten clients:
# data set -> alpha -> floats.
MESSAGES = {
    "mnist": {0.5: 635_040, 0.1: 368_480, 0.01: 109_760},
    "cifar10": {0.5: 2_672_640, 0.1: 1_351_680, 0.01: 460_800},
    "cifar100": {0.5: 10_045_440, 0.1: 4_761_600, 0.01: 2_135_040},
}
# The same for the baselines, for any alpha.
BASELINE_MESSAGES = {"mnist": 3_177_060, "cifar10": 3_200_100, "cifar100": 5_044_200}
# From the text of Appendix C, to two digits: CIFAR10, 50 clients, FedDM and baselines.
FIFTY_CLIENTS_MESSAGES = (3_100_000, 16_000_000)
# Also from there: CIFAR10, ten clients, baselines with ResNet-18.
RESNET_MESSAGE = 110_000_000

_TWICE = (
    "the paper has 57.32 ± 0.04 for FedAvg on CIFAR10 twice, at alpha 0.1 and 0.01; one must "
    "be a copy"
)
_TABLE_2 = {  # by column
    ("mnist", 0.1): [
        *((96.92, 0.09), (96.72, 0.04), (98.04, 0.03), (98.32, 0.06), (98.67, 0.01)),
    ],
    ("cifar10", 0.1): [
        *((57.32, 0.04), (56.92, 0.30), (60.76, 0.14), (60.96, 1.20), (67.38, 0.32)),
    ],
    ("cifar100", 0.1): [
        *((32.00, 0.50), (30.77, 0.52), (31.92, 0.42), (34.39, 0.25), (37.58, 0.27)),
    ],
    ("mnist", 0.01): [
        *((91.04, 0.80), (91.18, 0.16), (90.27, 0.49), (88.37, 0.25), (98.21, 0.23)),
    ],
    ("cifar10", 0.01): [
        *((57.32, 0.04), (40.30, 0.15), (36.46, 0.42), (32.42, 1.13), (63.82, 0.17)),
    ],
    ("cifar100", 0.01): [
        *((27.05, 0.45), (25.88, 0.39), (27.52, 0.43), (31.14, 0.20), (34.98, 0.17)),
    ],
}
# Ten clients: data set, alpha and algorithm -> accuracy.
ACCURACIES: dict[tuple[str, float, str], Reported] = {
    (*setting, algorithm): Reported(
        mean, std, "Table 2", _TWICE if (setting[0], algorithm) == ("cifar10", "fedavg") else ""
    )
    for setting, column in _TABLE_2.items()
    for algorithm, (mean, std) in zip(
        ("fedavg", "fedprox", "fednova", "scaffold", "feddm"), column, strict=True
    )
} | {
    ("cifar10", 0.5, "feddm"): Reported(69.66, 0.13, "Section 4.2"),
    ("cifar10", 0.5, "scaffold"): Reported(66.12, 0.17, "Section 4.2"),
}

# All on CIFAR10, Dir10(0.5). The paper has two numbers for the same setting, ipc 10 and rho 5:
# 69.66 in Section 4.2 and Table 4, 69.62 in Section 4.5.
IPC = {
    3: Reported(53.64, 0.35, "Section 4.5"),
    5: Reported(62.24, 0.04, "Section 4.5"),
    10: Reported(69.62, 0.14, "Section 4.5"),
}
REAL = Reported(68.66, 0.08, "Section 4.5")
RHO = {
    3: Reported(69.15, 0.09, "Table 4"),
    5: Reported(69.66, 0.13, "Table 4"),
    10: Reported(69.32, 0.24, "Table 4"),
}
