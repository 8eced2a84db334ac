import csv
import io
import json
import math

import pytest

from feddm.comparison import Spread, reached, summarize, to_csv, to_json, to_markdown
from feddm.federation import RoundRecord


def run(
    *accuracies: float, up: int = 10, down: int = 20, seconds: float = 2.0
) -> list[RoundRecord]:
    return [
        RoundRecord(number, accuracy, 1.0, 1, 1, up, down, seconds, 0.5, ())
        for number, accuracy in enumerate(accuracies, 1)
    ]


def test_rounds_and_bytes_to_a_target_by_hand() -> None:
    # The first seed reaches .8 after two rounds, the second after three; the third never.
    seeds = [run(0.5, 0.8, 0.7), run(0.1, 0.2, 0.9), run(0.1, 0.1, 0.1)]
    found = reached(seeds, 0.8)
    assert found.seeds == 2
    assert found.rounds == 2.5
    assert found.bytes_up == (20 + 30) / 2
    assert found.bytes_down == (40 + 60) / 2
    assert reached(seeds, 0.95).rounds is None


def test_summary_by_hand() -> None:
    (row,) = summarize({"fedavg": [run(0.5, 0.9, 0.7), run(0.5, 0.4, 0.8)]}, [0.6])
    assert row.seeds == 2
    assert row.final.mean == pytest.approx(0.75)
    assert row.final.std == pytest.approx(math.sqrt(0.005))  # .05 to both sides, over n - 1
    assert row.best.mean == pytest.approx(0.85)
    assert (row.bytes_up, row.bytes_down) == (10, 20)
    assert (row.client_seconds, row.server_seconds) == (2.0, 0.5)
    assert row.reached[0].rounds == 2.5


def test_one_seed_has_no_deviation() -> None:
    (row,) = summarize({"a": [run(0.5)]}, [])
    assert row.final == Spread(0.5, None)


def test_tables_have_a_row_for_each() -> None:
    rows = summarize({"a": [run(0.5, 0.95)], "b": [run(0.2, 0.3)]}, [0.9, 0.2])
    lines = to_markdown(rows).splitlines()
    assert lines[0].startswith("|  | final % | best % | to 90 % | to 20 % |")
    assert lines[2].startswith("| a | 95.00 | 95.00 | 2: 2e-05 MB | 1: 1e-05 MB |")
    assert lines[3].startswith("| b | 30.00 | 30.00 | - | 1: 1e-05 MB |")
    table = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [line["algorithm"] for line in table] == ["a", "b"]
    assert float(table[0]["to_0.9_bytes_up"]) == 20
    assert table[1]["to_0.9_rounds"] == ""
    assert json.loads(to_json(rows))[1]["final"] == {"mean": 0.3, "std": None}


def test_what_failed_is_counted_and_the_rest_stands() -> None:
    rows = summarize({"a": [run(0.5), []], "b": [[]]}, [0.1])
    assert [(row.seeds, row.failed) for row in rows] == [(1, 1), (0, 1)]
    assert rows[0].final.mean == 0.5
    lines = to_markdown(rows).splitlines()
    assert lines[2].startswith("| a (1 failed) | 50.00 |")
    assert lines[3].startswith("| b (1 failed) | - | - | - | - |")
    assert json.loads(to_json(rows))[1]["final"]["mean"] is None
    assert to_csv(rows).count("\n") == 3
