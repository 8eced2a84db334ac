import csv
import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from feddm.analysis.tables import (
    Curve,
    Difference,
    Row,
    Spread,
    caption,
    comparison,
    curves,
    difference_text,
    from_json,
    reached,
    summarize,
    to_json,
)
from feddm.runtime.federation import RoundRecord


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


def test_one_seed_has_no_standard_deviation() -> None:
    (row,) = summarize({"a": [run(0.5)]}, [])
    assert row.final == Spread(0.5, None)


def test_tables_have_one_row_per_method() -> None:
    rows = summarize({"a": [run(0.5, 0.95)], "b": [run(0.2, 0.3)]}, [0.9, 0.2])
    lines = comparison(rows).to_markdown().splitlines()
    assert lines[0].startswith("|  | final % | best % | to 90 % | to 20 % |")
    assert lines[2].startswith("| a | 95.00 | 95.00 | 2: 2e-05 MB | 1: 1e-05 MB |")
    assert lines[3].startswith("| b | 30.00 | 30.00 | - | 1: 1e-05 MB |")
    table = list(csv.DictReader(io.StringIO(comparison(rows).to_csv())))
    assert [line["algorithm"] for line in table] == ["a", "b"]
    assert float(table[0]["to_0.9_bytes_up"]) == 20
    assert table[1]["to_0.9_rounds"] == ""
    assert json.loads(to_json(rows))[1]["final"] == {"mean": 0.3, "std": None}


def test_failed_seeds_are_counted_and_left_out() -> None:
    rows = summarize({"a": [run(0.5), []], "b": [[]]}, [0.1])
    assert [(row.seeds, row.failed) for row in rows] == [(1, 1), (0, 1)]
    assert rows[0].final.mean == 0.5
    lines = comparison(rows).to_markdown().splitlines()
    assert lines[2].startswith("| a (1 failed) | 50.00 |")
    assert lines[3].startswith("| b (1 failed) | - | - | - | - |")
    assert json.loads(to_json(rows))[1]["final"]["mean"] is None
    assert comparison(rows).to_csv().count("\n") == 3


def test_rows_survive_json() -> None:
    # Two methods have failed seeds; one of them has no other.
    runs: dict[str, list[list[RoundRecord]]] = {
        "a": [run(0.5, 0.6), run(0.75, 0.5)],
        "b": [run(0.5), []],
        "c": [[], []],
    }
    rows = summarize(runs, [0.55, 0.99], against="a")
    back = from_json(to_json(rows))
    assert back[:2] == rows[:2]
    # nan != nan, so the last row is compared as text.
    assert math.isnan(back[2].final.mean)
    assert to_json(back) == to_json(rows)
    assert comparison(back).to_markdown() == comparison(rows).to_markdown()
    assert "| c (2 failed) | - |" in comparison(back).to_markdown()


def test_the_legend_explains_only_existing_columns() -> None:
    assert "`to 90 %`" in comparison(summarize({"a": [run(0.5)]}, [0.9])).to_markdown()
    assert "`to" not in comparison(summarize({"a": [run(0.5)]}, [])).to_markdown()
    runs = {"a": [run(0.5)], "b": [run(0.5)]}
    assert "`vs a`" in comparison(summarize(runs, [], against="a")).to_markdown()


class TestDifference:
    def test_by_hand(self) -> None:
        # Differences .1, .3 and .2: mean .2, standard deviation .1, over the root of three.
        found = Difference.of("b", [0.5, 0.9, 0.7], [0.4, 0.6, 0.5])
        assert found.name == "b"
        assert found.mean == pytest.approx(0.2)
        assert found.error == pytest.approx(0.1 / math.sqrt(3))

    def test_seeds_that_vary_together_have_a_small_error(self) -> None:
        # This is why seeds are paired: accuracies vary widely, their difference does not.
        runs = {"a": [run(0.1), run(0.9)], "b": [run(0.2), run(1.0)]}
        ours, theirs = summarize(runs, [], against="a")
        assert ours.difference is None
        assert theirs.final.std == pytest.approx(math.sqrt(0.32))
        assert theirs.difference is not None
        assert theirs.difference.mean == pytest.approx(0.1)
        assert theirs.difference.error == pytest.approx(0, abs=1e-12)

    def test_one_seed_has_no_error(self) -> None:
        assert Difference.of("b", [0.75], [0.5]) == Difference("b", 0.25, None)

    def test_compares_the_last_round(self) -> None:
        rows = summarize({"a": [run(0.75, 0.5)], "b": [run(0.5, 0.75)]}, [], against="a")
        assert rows[1].difference == Difference("a", 0.25, None)

    def test_failed_seeds_are_left_out_of_the_pairs(self) -> None:
        # Only the first and the last seed finished for both: -.25 and .25.
        runs = {
            "a": [run(0.25), run(0.0), [], run(0.75)],
            "b": [run(0.5), [], run(1.0), run(0.5)],
        }
        row = summarize(runs, [], against="b")[0]
        assert row.difference == Difference("b", 0.0, 0.25)
        assert row.final.mean == pytest.approx(1 / 3)  # over all finished seeds

    def test_no_seed_finished_for_both(self) -> None:
        rows = summarize({"a": [run(0.5), []], "b": [[], run(0.5)]}, [], against="b")
        assert difference_text(rows[0].difference) == "-"
        assert json.loads(to_json(rows))[0]["difference"]["mean"] is None

    @pytest.mark.parametrize(
        ("difference", "text"),
        [
            (None, "-"),
            (Difference("a", 0.0123, None), "+1.23"),
            (Difference("a", -0.0123, 0.00456), "-1.23 (0.46)"),
        ],
    )
    def test_text(self, difference: Difference | None, text: str) -> None:
        assert difference_text(difference) == text

    def test_tables(self) -> None:
        runs = {"a": [run(0.5), run(0.75)], "b": [run(0.25), run(0.75)]}
        rows = summarize(runs, [], against="b")
        lines = comparison(rows).to_markdown().splitlines()
        assert lines[0].startswith("|  | final % | vs b | best % |")
        assert lines[2].startswith("| a | 62.50 ± 17.68 | +12.50 (12.50) | 62.50 ± 17.68 |")
        assert lines[3].startswith("| b | 50.00 ± 35.36 | - | 50.00 ± 35.36 |")
        table = list(csv.DictReader(io.StringIO(comparison(rows).to_csv())))
        assert [line["difference"] for line in table] == ["0.125", ""]
        assert [line["difference_error"] for line in table] == ["0.125", ""]
        assert [row["difference"] for row in json.loads(to_json(rows))] == [
            {"name": "b", "mean": 0.125, "error": 0.125},
            None,
        ]

    def test_without_it_there_is_no_column(self) -> None:
        assert (
            "vs "
            not in comparison(summarize({"a": [run(0.5)]}, [])).to_markdown().splitlines()[0]
        )


def private(*epsilons: float, privacy: str = "features", **more: Any) -> list[RoundRecord]:
    """Returns a run of accuracy 1/2 with the given epsilon after each round."""
    known: dict[str, Any] = {"delta": 1e-5, "unit": "example"} if privacy == "features" else {}
    return [
        replace(record, epsilon=epsilon, privacy=privacy, **known | more)
        for record, epsilon in zip(
            run(*[0.5] * len(epsilons), seconds=math.nan), epsilons, strict=True
        )
    ]


PAPER = private(math.inf, privacy="no guarantee")
FIXED = private(math.inf, privacy="not private")


class TestPrivacy:
    def columns(self, rows: list[Row]) -> dict[str, dict[str, str]]:
        """Returns the cells of each row of the Markdown table by name and title."""
        titles, _, *lines = (
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in comparison(rows).to_markdown().splitlines()
            if line.startswith("|")
        )
        return {line[0]: dict(zip(titles, line, strict=True)) for line in lines}

    def test_every_row_states_its_guarantee(self) -> None:
        runs: dict[str, list[Curve]] = {
            "ours": [private(1.0, 2.0), private(1.0, 2.5)],
            "paper": [PAPER],
            "fixed": [FIXED],
            "plain": [run(0.5)],
        }
        rows = summarize(runs, [])
        table = self.columns(rows)
        # After the last round, of the seed that spent the most.
        assert {name: cells["epsilon"] for name, cells in table.items()} == {
            "ours": "2.500",
            "paper": "no guarantee",
            "fixed": "not private",
            "plain": "-",
        }
        assert "at delta 1e-05 for one example of one client" in comparison(rows).to_markdown()
        lines = list(csv.DictReader(io.StringIO(comparison(rows).to_csv())))
        assert [
            [line[key] for key in ("epsilon", "delta", "unit", "privacy")] for line in lines
        ] == [
            ["2.5", "1e-05", "example", "features"],
            ["", "", "", "no guarantee"],
            ["", "", "", "not private"],
            ["", "", "", ""],
        ]
        told = [row["privacy"] for row in json.loads(to_json(rows))]
        assert told == ["features", "no guarantee", "not private", None]
        assert (
            comparison(from_json(to_json(rows))).to_markdown() == comparison(rows).to_markdown()
        )
        assert math.isinf(from_json(to_json(rows))[1].epsilon or 0)

    def test_one_seed_without_a_guarantee_voids_it(self) -> None:
        (row,) = summarize({"a": [private(1.0), PAPER]}, [])
        assert (row.epsilon, row.delta, row.unit) == (math.inf, None, None)
        assert row.privacy == "no guarantee"

    def test_client_seconds_are_unknown(self) -> None:
        rows = summarize({"a": [private(1.0)]}, [])
        assert self.columns(rows)["a"]["client s"] == "-"
        assert json.loads(to_json(rows))[0]["client_seconds"] is None
        (line,) = csv.DictReader(io.StringIO(comparison(rows).to_csv()))
        assert (line["client_seconds"], line["server_seconds"]) == ("", "0.5")

    def test_without_privacy_there_is_no_column(self) -> None:
        text = comparison(summarize({"a": [run(0.5)]}, [])).to_markdown()
        assert "epsilon" not in text and "private" not in text

    def test_different_units_are_listed_by_name(self) -> None:
        runs = {"a": [private(1.0)], "b": [private(1.0, unit="client")]}
        text = caption(summarize(runs, []))
        assert "for one example of one client, added or removed (a)" in text
        assert "for all examples of one client, added or removed (b)" in text

    def test_studies_from_before_there_was_privacy(self) -> None:
        old = json.loads(to_json(summarize({"a": [run(0.5)]}, [])))
        for key in ("epsilon", "delta", "unit", "privacy"):
            del old[0][key]
        assert from_json(json.dumps(old))[0].privacy is None

    def test_curves_have_the_guarantee_in_their_names(self) -> None:
        runs: dict[str, list[Curve]] = {
            "ours": [private(1.0, 2.0), []],
            "paper": [PAPER],
            "plain": [run(0.5)],
            "failed": [[]],
        }
        found = curves(runs)
        assert list(found) == ["ours, epsilon 2.000", "paper, no guarantee", "plain"]
        # Ten bytes per round.
        assert [point.megabytes for point in found["ours, epsilon 2.000"][0]] == [1e-5, 2e-5]
        assert caption(summarize(runs, [])).startswith(
            "epsilon: spent after the last round, at"
        )
        assert caption(summarize({"plain": [run(0.5)]}, [])) == ""
