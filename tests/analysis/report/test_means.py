import csv
import io
import math
from typing import Any

from fabricated import method, privacy, private_records, record, records
from feddm.analysis.report.means import epsilons, in_floats, mean_rounds, to_csv

TWO_SEEDS = method("ours", records([0.25, 0.5]), records([0.75, 1.0], bytes_up=3000))
PRIVATE: dict[str, Any] = {"privacy__mechanism": "features", "privacy__epsilon": 4.0}


def test_a_round_is_the_mean_over_seeds() -> None:
    first, second = mean_rounds(TWO_SEEDS)
    assert (first.round, first.accuracy, first.lowest, first.highest) == (1, 0.5, 0.25, 0.75)
    assert (second.round, second.accuracy) == (2, 0.75)
    # 1000 and 3000 bytes per round, 250 floats each.
    assert first.bytes_up == second.bytes_up == 2000
    assert second.sent == {"bytes": 4000, "floats": 500}
    assert first.epsilon is None


def test_which_methods_send_floats() -> None:
    # 250 floats are a kilobyte. Coded images have few floats; half floats take two bytes each.
    assert in_floats(method("plain", records([0.5])))
    assert in_floats(method("half", records([0.5], bytes_up=500)))
    assert not in_floats(method("uint8", records([0.5], floats_up=2)))
    assert not in_floats(method("packed", records([0.5], floats_up=0)))


def test_epsilon_is_the_largest_over_seeds() -> None:
    both = method(
        "one", [record(1, 0.5, epsilon=1.0)], [record(1, 0.5, epsilon=2.0)], **PRIVATE
    )
    assert epsilons(both) == [2.0]


def test_without_a_guarantee_there_is_no_epsilon() -> None:
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


def test_the_csv_states_the_guarantee() -> None:
    rounds = private_records([0.5], 1.5, privacy(**PRIVATE))
    (line,) = csv.DictReader(io.StringIO(to_csv([method("one", rounds, **PRIVATE)])))
    assert (line["epsilon"], line["delta"], line["unit"]) == ("1.5", "1e-05", "example")
    assert (line["privacy"], line["client_seconds"]) == ("features", "")
    rounds = private_records([0.5], math.inf, privacy(**PRIVATE))
    (line,) = csv.DictReader(io.StringIO(to_csv([method("one", rounds, **PRIVATE)])))
    assert (line["epsilon"], line["delta"], line["privacy"]) == ("", "", "no guarantee")
