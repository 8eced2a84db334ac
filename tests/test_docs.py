"""The docs know all that they are about."""

import re
from pathlib import Path

import pytest

from feddm.config.registry import (
    algorithm_names,
    find_algorithm,
    find_mechanism,
    mechanism_names,
)
from feddm.config.resolve import flat, load_toml, resolve
from feddm.errors import UnfitAlgorithmError
from feddm.paper.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "docs" / "studies"


@pytest.mark.parametrize("mechanism", [None, *mechanism_names()])
@pytest.mark.parametrize("algorithm", algorithm_names())
def test_every_setting_is_on_a_page(algorithm: str, mechanism: str | None) -> None:
    try:
        kind = find_algorithm(algorithm).settings_type(mechanism)
    except UnfitAlgorithmError:
        return  # they do not go together
    keys = [key for key in flat(kind().model_dump()) if key != "name"]
    assert len(keys) > 1
    if mechanism is not None:
        keys += [f"privacy.{key}" for key in find_mechanism(mechanism).model_fields]
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    for key in keys:
        section, _, last = key.rpartition(".")
        # Written out, or after another one of its section.
        after = rf"|`{section}\.\w+`[^\n|]*`\.{last}\b" if section else ""
        assert re.search(rf"`{re.escape(key)}\b{after}", text), key


def test_no_page_sets_what_no_algorithm_has() -> None:
    kinds = [find_algorithm(name).settings_type(None) for name in algorithm_names()]
    kinds.append(find_algorithm("feddm").settings_type("surrogate"))
    known = {key for kind in kinds for key in flat(kind().model_dump())}
    docs = ROOT / "docs"
    pages = [ROOT / "README.md", ROOT / "Makefile", *docs.rglob("*.md"), *docs.rglob("*.json")]
    text = "".join(page.read_text() for page in pages)
    named = set(re.findall(r"[`= :]((?:synthesis|server|local)\.[a-z_]+)\b", text))
    assert len(named) > 20
    assert named <= known | {"server.crt", "server.key", "server.main"}  # of Flower


@pytest.mark.parametrize("file", [*STUDIES.glob("*.toml")], ids=lambda file: file.name)
def test_configurations_of_studies_are_valid(file: Path) -> None:
    values = load_toml(file)
    config = flat(resolve(values).model_dump())
    assert flat(values).items() <= config.items()


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


def test_the_walk_of_an_upload_names_functions_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = text.partition("## The walk of one upload")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. (.*)$", walk, re.MULTILINE)
    assert 5 < len(steps) <= 15
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src" / "feddm").rglob("*.py")
    )
    for step in steps:
        names = [name for name in re.findall(r"`([\w.]+)`", step) if "jsonl" not in name]
        assert names, step
        for name in names:
            last = name.rpartition(".")[2]
            assert re.search(rf"(def|class) {last}\b", source), (name, step)
