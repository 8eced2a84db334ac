from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from feddm.cli.study_display import StudyDisplay, fitting
from feddm.comparison import cells, header, summarize
from feddm.config import resolve
from feddm.federation import RoundRecord
from feddm.studies import Cell

TITLES = ["", "final %", "best %", "MB up", "MB down", "client s"]
NUMBERS = ["90.00 ± 1.00", "91.00 ± 1.00", "1.5", "0.5", "17"]
# Next to the name: 12 + 12 + 5 + 7 + 8 and five gaps of two make 54.
REST = {1: 12, 2: 12, 3: 5, 4: 7, 5: 8}


@pytest.mark.parametrize(
    ("name", "room", "widths"),
    [
        ("feddm", 59, {0: 5, **REST}),
        ("a" * 40, 80, {0: 26, **REST}),
        ("a" * 40, 66, {0: 12, **REST}),
        # One blank less is too narrow for names, and all fits without 14 blanks for the best.
        ("a" * 40, 65, {0: 25, 1: 12, 3: 5, 4: 7, 5: 8}),
        ("feddm", 58, {0: 5, 1: 12, 3: 5, 4: 7, 5: 8}),
        ("a" * 40, 51, {0: 20, 1: 12, 3: 5, 5: 8}),
        ("a" * 40, 42, {0: 21, 1: 12, 3: 5}),
    ],
)
def test_columns_that_fit(name: str, room: int, widths: dict[int, int]) -> None:
    assert fitting([TITLES, [name, *NUMBERS]], room) == widths


def test_targets_are_left_out_at_last() -> None:
    # Three of nine blanks with their gaps: 14 + 3 * 11 + 7 for the rest, and 12 for the name.
    lines = [
        ["", "final %", "best %", "to 80 %", "to 90 %", "to 95 %", *TITLES[3:]],
        ["a" * 40, *NUMBERS[:2], *3 * ["1: 1.5 MB"], *NUMBERS[2:]],
    ]
    assert list(fitting(lines, 66)) == [0, 1, 3, 4, 5, 6]
    assert list(fitting(lines, 65)) == [0, 1, 3, 4, 6]


def test_no_number_is_broken_on_80_columns() -> None:
    names = ["augmentation+replay+second-moment", "base"]
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
    for row in cells(rows):
        first = row[-3]  # megabytes sent, which are always shown
        assert any(
            row[1] in line and row[2] in line and row[4] in line and f" {first} " in f"{line} "
            for line in text.splitlines()
        )
    width = fitting([header(rows), *cells(rows)], 80)[0]
    assert 12 <= width < len(names[0])
    assert names[0] in "".join(line[:width].strip() for line in text.splitlines())
