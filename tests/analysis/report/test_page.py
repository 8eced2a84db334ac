import base64
import hashlib
import json
import math
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from fabricated import ENVIRONMENT, method, privacy, private_records, records
from feddm.analysis.report.page import Report, drawn, html
from feddm.analysis.report.pictures import Partition, Sheet, png
from feddm.analysis.report.summary import cards, table, versions
from feddm.runtime.client import Dropout
from feddm.runtime.federation import SiteRecord
from feddm.runtime.wording import introduction

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>&amp;%{x}"
TWO_SEEDS = method("ours", records([0.25, 0.5]), records([0.75, 1.0], bytes_up=3000))


class Elements(HTMLParser):
    """A page as a browser parses it: its elements, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def embedded(page: str) -> Any:
    """Returns the numbers embedded in a page."""
    parsed = Elements(page)
    kinds = [attrs.get("type") for tag, attrs in parsed.elements if tag == "script"]
    return json.loads(parsed.scripts[kinds.index("application/json")])


def evil_report() -> Report:
    rounds = records(
        [0.5, 0.75],
        dropouts=(Dropout(0, EVIL),),
        sites=(SiteRecord(0, 0.5, 0.5, 1.0),),
    )
    one = method(EVIL, rounds, environment={EVIL: EVIL}, data__dir=EVIL)
    sheet = Sheet(
        method=EVIL,
        seed=0,
        round=2,
        classes=(EVIL, "b"),
        clients=(0,),
        labels=(0,),
        total=5,
        shape=(2, 2),
        png=png(np.zeros((2, 2, 1), dtype=np.uint8)),
        warning=EVIL,
    )
    return Report(
        (one, method("plain", records([0.5, 0.5]))),
        command=EVIL,
        notes=(EVIL,),
        sheets=(sheet,),
        partition=Partition((EVIL, "b"), np.array([[1, 2], [3, 4]]), EVIL),
    )


def test_means_bands_and_sums_by_hand() -> None:
    (curves,) = drawn(Report((TWO_SEEDS,)))["methods"]
    assert curves["accuracy"] == [0.5, 0.75]
    assert curves["lowest"] == [0.25, 0.5]
    assert curves["highest"] == [0.75, 1.0]
    # Sent so far: 1000 and 3000 bytes per round, 250 floats each.
    assert curves["sent"] == {"bytes": [2000, 4000], "floats": [250, 500]}
    assert curves["up"] == [2000, 2000]
    assert curves["down"] == [2000, 2000]
    assert curves["clients"] == [3, 3]
    assert curves["epsilon"] == []


def test_numbers_that_are_not_finite_become_null() -> None:
    odd = method("odd", records([math.nan, 0.5], loss=math.inf, server_seconds=math.nan))
    (curves,) = drawn(Report((odd,)))["methods"]
    assert curves["accuracy"] == [None, 0.5]
    assert curves["server"] == [None, None]
    assert embedded(html(Report((odd,))))["methods"][0]["accuracy"] == [None, 0.5]


def test_methods_without_any_finite_accuracy() -> None:
    lost = [method(name, records([math.nan, math.nan])) for name in "ab"]
    assert [card.title for card in cards(lost)][1:] == ["Rounds", "Clients", "Seeds"]
    assert "<table" in html(Report(tuple(lost)))


PRIVATE = {"privacy__mechanism": "features", "privacy__epsilon": 4.0}
PAPER = {"privacy__mechanism": "paper", "privacy__noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("settings", "epsilon", "text"),
    [
        (PAPER, math.inf, "no guarantee"),
        (PRIVATE, 3.5, "epsilon 3.500"),
        (PRIVATE, math.inf, "no guarantee"),
        (PRIVATE | {"privacy__test_secret": "fixed"}, math.inf, "not private"),
    ],
)
def test_the_guarantee(settings: dict[str, Any], epsilon: float, text: str) -> None:
    private = privacy(**settings)
    one = method("one", private_records([0.5, 0.6], epsilon, private), **settings)
    guaranteed = math.isfinite(epsilon)
    about = "at delta 1e-05 for one example of one client, added or removed"
    page = html(Report((one,)))
    assert f'<p class="value">{text}</p>' in page
    assert (f'<p class="more">{about}</p>' in page) == guaranteed
    assert f"<strong>one, {text}.</strong> {escape(introduction(private))}" in page
    # The epsilon curve is shown only with a guarantee.
    assert ('id="privacy"' in page) == guaranteed
    # Next to other methods, it is in the table, in the legend and below.
    both = Report((one, method("open", records([0.5, 0.6]))))
    page = html(both)
    assert f'<td data-title="Privacy">{text}</td>' in page
    assert '<td data-title="Privacy">-</td>' in page
    assert [each["label"] for each in drawn(both)["methods"]] == [f"one, {text}", "open"]
    assert (f"Epsilon: spent after the last round, {about}." in page) == guaranteed


def test_without_privacy_the_page_does_not_mention_it() -> None:
    page = html(Report((TWO_SEEDS, method("other", records([0.5, 0.6])))))
    assert "<h2>Privacy</h2>" not in page
    assert 'data-title="Privacy"' not in page
    assert "Private clients" not in page
    assert "Epsilon: " not in page


@pytest.mark.parametrize("settings", [PRIVATE, PAPER])
def test_a_private_run_shows_neither_times_nor_a_digest(settings: dict[str, Any]) -> None:
    environment = ENVIRONMENT | {"ledger": "/at/home", "ledger_id": "5678efgh"}
    rounds = private_records([0.5], math.inf, privacy(**settings))
    secret = method("one", rounds, environment=environment, **settings)
    assert [card.value for card in cards([secret]) if "Computing" in card.title] == ["1.0 s"]
    shown = table([secret])
    (line,) = shown.lines
    assert line[shown.titles.index("Client computing")] == "not reported"
    assert drawn(Report((secret,)))["methods"][0]["clients"] is None
    assert set(versions([secret])) == {"feddm", "torch"}
    assert versions([TWO_SEEDS])["digest of the data"] == ENVIRONMENT["data"]
    assert "run" not in versions([TWO_SEEDS])


def test_names_from_users_are_only_text() -> None:
    harmless = Report((method("plain", records([0.5, 0.75])),))
    page = html(evil_report())
    parsed = Elements(page)
    tags = [tag for tag, _ in parsed.elements]
    assert (
        tags.count("script")
        == 4
        == [t for t, _ in Elements(html(harmless)).elements].count("script")
    )
    assert "img" not in tags
    assert not any(name.startswith("on") for _, attrs in parsed.elements for name in attrs)
    assert embedded(page)["methods"][0]["name"] == EVIL
    assert embedded(page)["partition"]["classes"][0] == EVIL


def test_the_policy_allows_only_these_scripts_and_no_fetching() -> None:
    parsed = Elements(html(evil_report()))
    (policy,) = [
        attrs["content"]
        for tag, attrs in parsed.elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    rules = dict(rule.split(maxsplit=1) for rule in policy.split(";"))
    kinds = [attrs.get("type") for tag, attrs in parsed.elements if tag == "script"]
    run = [text for text, kind in zip(parsed.scripts, kinds, strict=True) if kind is None]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in run]
    assert rules["script-src"].split() == [f"'sha256-{each.decode()}'" for each in hashes]
    assert rules["default-src"] == "'none'"
    places = [
        value
        for _, attrs in parsed.elements
        for name, value in attrs.items()
        if name in ("src", "href")
    ]
    assert places == ["data:,"]


def test_a_page_without_pictures_has_no_placeholders() -> None:
    page = html(Report((TWO_SEEDS,)))
    ids = {attrs.get("id") for _, attrs in Elements(page).elements}
    assert {"accuracy", "sent", "time", "messages"} <= ids
    assert not {"images", "partition", "privacy", "legend"} & ids
