"""The docs know all that they are about."""

import re
from pathlib import Path

import pytest

from feddm.config.schema import resolve
from feddm.paper.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "docs" / "studies"


@pytest.mark.parametrize("section", ["synthesis", "server", "local", "privacy"])
def test_every_setting_is_on_a_page(section: str) -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    for key in resolve().model_dump()[section]:
        # Written out, or after another one of its section.
        assert re.search(rf"`{section}\.{key}\b|`{section}\.\w+`[^\n|]*`\.{key}\b", text), key


def test_every_study_is_in_the_list() -> None:
    listed = (STUDIES / "README.md").read_text()
    targets = re.findall(r"^study-([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    files = [path.name.removesuffix(".json") for path in STUDIES.glob("*.json")]
    assert len(targets) > 10 and len(files) > 5
    for name in {*targets, *files}:
        known = name.startswith("paper-") and name.removeprefix("paper-") in EXPERIMENTS
        assert known or f"`{name}`" in listed, name


def test_every_experiment_has_its_place_among_the_results() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    assert re.findall(r"<!-- result: (.*) -->", page) == list(EXPERIMENTS)
    for picture in re.findall(r"!\[.*\]\((.*)\)", page):
        assert (ROOT / "docs" / picture).exists(), picture
