"""The docs know all that they are about."""

import re
from pathlib import Path

import pytest

from feddm.config import resolve

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
    files = [path.stem for path in STUDIES.glob("*.json")]
    assert len(targets) > 10 and len(files) > 5
    for name in {*targets, *files}:
        assert f"`{name}`" in listed, name
