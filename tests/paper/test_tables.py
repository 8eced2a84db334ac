import csv
import dataclasses
import io
import math

import pytest
import torch

from feddm.analysis.costs import MessageSize
from feddm.paper.cost import Count, counts
from feddm.paper.experiments import Experiment, PaperRun
from feddm.paper.published import BASELINE_MESSAGES, MESSAGES, Reported
from feddm.paper.scales import SCALES
from feddm.paper.surrogate import Example, Points
from feddm.paper.tables import Runs, accuracies, minimisers, sizes
from feddm.runtime.federation import RoundRecord

DOUBTFUL = Reported(57.32, 0.04, "Table 2", "the number appears twice")
EXPERIMENT = Experiment(
    "name",
    "shows",
    "place",
    (
        PaperRun("a", "MNIST", "FedAvg", {}, DOUBTFUL),
        PaperRun("b", "MNIST", "FedDM", {}, Reported(98.5, 0.1, "Table 2")),
        PaperRun("c", "CIFAR10", "FedDM", {}),
    ),
)


def curve(*values: float) -> list[RoundRecord]:
    return [
        RoundRecord(number, accuracy, 1.0, 1, 1, 500_000, 20, 1.0, 0.5, ())
        for number, accuracy in enumerate(values, 1)
    ]


RESULTS: Runs = {
    "a": [curve(0.1, 0.5), curve(0.1, 0.7)],
    "b": [curve(0.2, 0.9), ()],  # one seed failed
    "c": [(), ()],
}


def test_accuracies_are_next_to_the_papers() -> None:
    table = accuracies(EXPERIMENT, RESULTS)
    assert table.titles == ["", "method", "final %", "paper %", "MB up"]
    assert table.lines == [
        ["MNIST", "FedAvg", "60.00 ± 14.14", "57.32 ± 0.04?", "0.5"],
        ["MNIST", "FedDM (1 failed)", "90.00", "98.50 ± 0.10", "0.5"],
        ["CIFAR10", "FedDM (2 failed)", "-", "-", "-"],
    ]
    assert "?: the number appears twice." in table.notes
    first, second, third = table.records
    assert first["accuracy_percent"] == pytest.approx(60)
    assert first["accuracy_percent_std"] == pytest.approx(math.sqrt(200))
    assert (first["paper_percent"], first["paper_percent_std"]) == (57.32, 0.04)
    assert (first["paper_place"], first["paper_doubt"]) == (
        "Table 2",
        "the number appears twice",
    )
    assert (second["seeds"], second["failed"]) == (1, 1)
    assert third["paper_percent"] is None
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["accuracy_percent"] for row in rows] == ["60.0", "90.0", ""]


def test_the_title_names_a_replaced_data_set() -> None:
    table = accuracies(EXPERIMENT, RESULTS, "digits")
    assert table.titles[2] == "final % on digits"


def test_accuracies_have_their_guarantees() -> None:
    (plain,) = curve(0.5)
    paper = dataclasses.replace(plain, epsilon=math.inf, privacy="no guarantee")
    ours = dataclasses.replace(
        plain, epsilon=2.56, delta=1e-5, unit="example", privacy="features"
    )
    table = accuracies(EXPERIMENT, {"a": [[plain]], "b": [[paper]], "c": [[ours]]})
    assert table.titles[4] == "epsilon"
    assert [line[4] for line in table.lines] == ["-", "no guarantee", "2.560"]
    assert any("at delta 1e-05 for one example" in note for note in table.notes)
    assert [record["privacy"] for record in table.records] == [None, "no guarantee", "features"]


def test_sizes() -> None:
    rows = [
        Count("MNIST", MessageSize("FedDM", 1234.4, 5e6, std=12.3, paper=635_040)),
        Count("MNIST", MessageSize("FedAvg", 10, 40)),
    ]
    table = sizes(rows, "digits")
    assert table.titles[2] == "floats on digits"
    assert table.lines == [
        ["MNIST", "FedDM", "1,234", "12", "635,040", "5.00"],
        ["MNIST", "FedAvg", "10", "exact", "-", "0.00"],
    ]
    assert table.records[0]["paper"] == 635_040


def test_all_of_the_papers_sizes_are_counted() -> None:
    rows = counts(SCALES["smoke"], 2)
    shown = {count.size.paper for count in rows} - {None}
    table = {*BASELINE_MESSAGES.values(), *(v for by in MESSAGES.values() for v in by.values())}
    assert shown == table | {3_100_000, 16_000_000, 110_000_000}
    # Digits of 64 pixels, five clients: a model of the paper's width has 298,506 parameters.
    fedavg = next(count.size for count in rows if count.size.what.startswith("FedAvg"))
    convolutions = 128 * 9 + 2 * 128 * 128 * 9 + 3 * 128  # of one channel, with biases
    norms, head = 3 * 2 * 128, 128 * 10 + 10
    assert fedavg.floats == 5 * (convolutions + norms + head)


def test_minimisers_by_hand() -> None:
    points = Points(torch.tensor([1.0]).double(), torch.tensor([1.0]).double())
    table = minimisers(Example(points, points, points, 2.0, 1.5, 0.5, -1.0))
    assert [line[:3] for line in table.lines] == [
        ["objective", "2.0000", "0.0000"],
        ["surrogate", "1.5000", "0.5000"],
        ["gradient step of 1 from w = 0", "0.5000", "1.5000"],
        ["objective, labels as printed", "-1.0000", "3.0000"],
    ]
    # log(1 + e^-w)
    assert table.records[1]["objective"] == pytest.approx(math.log(1 + math.exp(-1.5)))
    assert any("As printed in Appendix A" in note for note in table.notes)


def test_markdown_puts_words_left_and_numbers_right() -> None:
    table = accuracies(EXPERIMENT, RESULTS)
    text = table.to_markdown()
    assert text.splitlines()[:3] == [
        "|  | method | final % | paper % | MB up |",
        "| --- | --- | ---: | ---: | ---: |",
        "| MNIST | FedAvg | 60.00 ± 14.14 | 57.32 ± 0.04? | 0.5 |",
    ]
