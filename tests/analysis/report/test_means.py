import csv
import io
import math
from typing import Any

from fabricated import config, method, private_records, record, records
from feddm.analysis.report.means import epsilons, in_floats, mean_rounds, to_csv

TWO_SEEDS = method("ours", records([0.25, 0.5]), records([0.75, 1.0], bytes_up=3000))
PRIVATE: dict[str, Any] = {"privacy__mechanism": "features", "privacy__epsilon": 4.0}


def test_a_round_is_the_mean_over_seeds() -> None:
    first, second = mean_rounds(TWO_SEEDS)
    assert (first.round, first.accuracy, first.lowest, first.highest) == (1, 0.5, 0.25, 0.75)
    assert (second.round, second.accuracy) == (2, 0.75)
    # 1000 and 3000 bytes a round, 250 floats both.
    assert first.bytes_up == second.bytes_up == 2000
    assert second.sent == {"bytes": 4000, "floats": 500}
    assert first.epsilon is None


def test_what_is_sent_in_floats() -> None:
    # 250 floats are a kilobyte; coded images have a few, and half floats have two bytes each.
    assert in_floats(method("plain", records([0.5])))
    assert in_floats(method("half", records([0.5], bytes_up=500)))
    assert not in_floats(method("uint8", records([0.5], floats_up=2)))
    assert not in_floats(method("packed", records([0.5], floats_up=0)))


def test_of_several_seeds_the_one_that_spent_most_counts() -> None:
    both = method(
        "one", [record(1, 0.5, epsilon=1.0)], [record(1, 0.5, epsilon=2.0)], **PRIVATE
    )
    assert epsilons(both) == [2.0]


def test_what_is_no_guarantee_is_no_epsilon() -> None:
    rounds = [record(1, 0.5, epsilon=1.0), record(2, 0.5, epsilon=math.inf)]
    assert epsilons(method("one", rounds, **PRIVATE)) == []


def test_every_number_is_in_the_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([TWO_SEEDS]))))
    assert [(r["method"], r["seed"], r["round"]) for r in rows] == [
        ("ours", "0", "1"),
        ("ours", "0", "2"),
        ("ours", "1", "1"),
        ("ours", "1", "2"),
    ]
    assert [float(r["accuracy"]) for r in rows] == [0.25, 0.5, 0.75, 1.0]
    assert [int(r["bytes_up"]) for r in rows] == [1000, 1000, 3000, 3000]
    assert {r["epsilon"] for r in rows} == {r["privacy"] for r in rows} == {""}


def test_the_csv_says_what_is_promised() -> None:
    rounds = private_records([0.5], 1.5, config(**PRIVATE).privacy)
    (line,) = csv.DictReader(io.StringIO(to_csv([method("one", rounds, **PRIVATE)])))
    assert (line["epsilon"], line["delta"], line["unit"]) == ("1.5", "1e-05", "example")
    assert (line["privacy"], line["client_seconds"]) == ("features", "")
    rounds = private_records([0.5], math.inf, config(**PRIVATE).privacy)
    (line,) = csv.DictReader(io.StringIO(to_csv([method("one", rounds, **PRIVATE)])))
    assert (line["epsilon"], line["delta"], line["privacy"]) == ("", "", "no guarantee")
