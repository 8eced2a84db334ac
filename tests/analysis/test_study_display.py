import math
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from feddm.analysis.studies import Cell
from feddm.analysis.study_display import StudyDisplay
from feddm.analysis.tables import comparison, fitting, summarize
from feddm.config.resolve import resolve
from feddm.runtime.federation import RoundRecord

TITLES = ["", "final %", "best %", "MB up", "MB down", "client s"]
NUMBERS = ["90.00 ± 1.00", "91.00 ± 1.00", "1.5", "0.5", "17"]
# Without the name: 12 + 12 + 5 + 7 + 8 and five gaps of two are 54.
REST = {1: 12, 2: 12, 3: 5, 4: 7, 5: 8}


@pytest.mark.parametrize(
    ("name", "room", "widths"),
    [
        ("feddm", 59, {0: 5, **REST}),
        ("a" * 40, 80, {0: 26, **REST}),
        ("a" * 40, 66, {0: 12, **REST}),
        # One column less is too narrow for the name; dropping the best frees 14.
        ("a" * 40, 65, {0: 25, 1: 12, 3: 5, 4: 7, 5: 8}),
        ("feddm", 58, {0: 5, 1: 12, 3: 5, 4: 7, 5: 8}),
        ("a" * 40, 51, {0: 20, 1: 12, 3: 5, 5: 8}),
        ("a" * 40, 42, {0: 21, 1: 12, 3: 5}),
    ],
)
def test_columns_that_fit(name: str, room: int, widths: dict[int, int]) -> None:
    assert fitting([TITLES, [name, *NUMBERS]], room) == widths


def test_targets_are_dropped_last() -> None:
    # Three targets of nine characters, with gaps: 14 + 3 * 11 + 7, and 12 for the name.
    lines = [
        ["", "final %", "best %", "to 80 %", "to 90 %", "to 95 %", *TITLES[3:]],
        ["a" * 40, *NUMBERS[:2], *3 * ["1: 1.5 MB"], *NUMBERS[2:]],
    ]
    assert list(fitting(lines, 66)) == [0, 1, 3, 4, 5, 6]
    assert list(fitting(lines, 65)) == [0, 1, 3, 4, 6]


def test_no_number_is_wrapped_on_80_columns() -> None:
    names = ["augmentation+replay+smaller-steps", "base"]
    runs = {
        name: [[RoundRecord(1, accuracy, 1.0, 1, 1, 10**7, 10**8, 123.0, 0.5, ())]] * 2
        for name, accuracy in zip(names, (0.91234, 0.81234), strict=True)
    }
    rows = summarize(runs, [0.8, 0.9, 0.95], against="base")
    console = Console(file=StringIO(), width=80)
    display = StudyDisplay(console, [Cell(name, 0, resolve()) for name in names], Path("s"))
    display.table(rows, Path("s"))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for row in comparison(rows).lines:
        first = row[-3]  # megabytes sent, always shown
        assert any(
            row[1] in line and row[2] in line and row[4] in line and f" {first} " in f"{line} "
            for line in text.splitlines()
        )
    table = comparison(rows)
    width = fitting([table.titles, *table.lines], 80)[0]
    assert 12 <= width < len(names[0])
    assert names[0] in "".join(line[:width].strip() for line in text.splitlines())


def many_seeds(privacy: bool) -> list[Cell]:
    given = {"privacy.epsilon": 4.0} if privacy else {}
    return [
        Cell(name, seed, resolve(settings=given))
        for seed in range(30)
        for name in ("augmentation+replay+smaller-steps+and-more", "base")
    ]


@pytest.mark.parametrize("privacy", [False, True])
def test_the_live_table_fits_for_many_seeds(privacy: bool) -> None:
    screen = StringIO()
    console = Console(file=screen, width=80, force_terminal=True, color_system=None)
    cells_ = many_seeds(privacy)
    promise: dict[str, Any] = {
        "epsilon": 3.125,
        "delta": 1e-5,
        "unit": "example",
        "privacy": "features",
    }
    with StudyDisplay(console, cells_, Path("s")) as display:
        for number, cell in enumerate(cells_):
            display.began(cell)
            display.progress("clients", 0.5)
            accuracy = 0.25 if number % 4 < 2 else 0.75
            record = RoundRecord(1, accuracy, 1.0, 1, 1, 10, 10, 1.0, 0.5, ())
            record = replace(record, **promise) if privacy else record
            display.finished_round(record)
            display.progress("server", 0.5)
            display.ended(cell, [record])
        rendered = StringIO()
        Console(file=rendered, width=80).print(display.live_table())
    lines = rendered.getvalue().splitlines()
    assert len(lines) == 4  # titles, two names and the current run
    assert max(map(len, lines)) <= 80
    # Thirty seeds, half of them at .25 and half at .75: the sample standard deviation is
    # .25 sqrt(30 / 29).
    assert lines[2].split() == [
        *("base", "30/30", "50.00", "±", "25.43"),
        *(["3.125"] if privacy else []),
    ]
    assert lines[3].startswith("base seed 29: finished")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= 80


def test_every_line_of_a_study_states_the_guarantee() -> None:
    console = Console(file=StringIO(), width=200)
    display = StudyDisplay(console, [Cell("a", 0, resolve())], Path("s"))
    record = RoundRecord(1, 0.5, 1.0, 1, 1, 10, 10, math.nan, 0.5, (), epsilon=math.inf)
    for words in ("no guarantee", "not private"):
        display.finished_round(replace(record, privacy=words))
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == [
        "a seed 0: round 1/5, accuracy 50.00 %, no guarantee",
        "a seed 0: round 1/5, accuracy 50.00 %, not private",
    ]
