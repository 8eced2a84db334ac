"""The page as users see it: a file opened in a browser.

Needs Debian's packages chromium and chromium-driver. Skipped without them, except in CI.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from fabricated import (
    config,
    images,
    method,
    private_records,
    records,
    write_run,
    write_study,
)
from feddm.analysis.report.page import Report, html
from feddm.analysis.report.pictures import Partition, sheet
from feddm.analysis.report.runs import read
from feddm.analysis.report.writing import collected, write_report

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
EVIL = "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">"
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    # No network access of its own.
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--disable-quic"),
)


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The browser's download directory."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def chromium(downloads: Path) -> Iterator[webdriver.Chrome]:
    if CHROMIUM is None or DRIVER is None:
        why = "needs the packages chromium and chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """A page in the browser."""

    def __init__(self, driver: webdriver.Chrome, file: Path, width: int, theme: str) -> None:
        self.driver = driver
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        theme_ = {"name": "prefers-color-scheme", "value": theme}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme_]})
        driver.get_log("browser")  # what was before is not ours
        driver.get(file.as_uri())

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        (element,) = self.all(selector)
        return element

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({selector!r}).click()")

    def curves(self, figure: str) -> list[str]:
        """Returns the names of the curves drawn in a figure."""
        names: list[str] = self.run(
            f"return document.getElementById({figure!r}).data"
            ".filter(trace => trace.meta).map(trace => trace.meta)"
        )
        drawn = self.run(
            f"return [...document.querySelectorAll('#{figure} .scatterlayer .js-line')]"
            ".filter(line => line.getTotalLength() > 0).length"
        )
        assert drawn >= len(names)
        return names

    def wait(self, condition: Callable[[], Any]) -> None:
        WebDriverWait(self.driver, 20).until(lambda _: condition())

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


Opened = Callable[..., Page]


@pytest.fixture
def opened(chromium: webdriver.Chrome) -> Opened:
    def open_(file: Path, width: int = 1280, theme: str = "light") -> Page:
        return Page(chromium, file, width, theme)

    return open_


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    study = write_study(folder / "study", ("feddm", "fedavg", "real"), (0, 1), rounds=4)
    for name in ("feddm", "real"):
        cell = study / "cells" / f"{name}-seed0"
        (cell / "synthetic.safetensors").write_bytes(images(clients=3, each=2).to_bytes())
    return write_report([study]).page


def test_a_comparison(opened: Opened, comparison: Path) -> None:
    page = opened(comparison)
    for figure in ("accuracy", "sent", "messages"):
        assert page.curves(figure) == ["feddm", "fedavg", "real"]
    assert len(page.all("#partition .hm image")) == 1
    assert len(page.all("#time .barlayer .point")) == 2 * 3
    assert page.errors() == []


def test_the_legend_hides_a_method_everywhere(opened: Opened, comparison: Path) -> None:
    page = opened(comparison)
    first, second, _ = page.all("#legend button")
    second.click()
    assert second.get_attribute("aria-pressed") == "false"
    for figure in ("accuracy", "sent", "messages"):
        assert page.curves(figure) == ["feddm", "real"]
    second.click()
    assert page.curves("accuracy") == ["feddm", "fedavg", "real"]
    webdriver.ActionChains(page.driver).double_click(first).perform()
    assert page.curves("accuracy") == ["feddm"]
    assert page.errors() == []


def test_floats_or_bytes_and_which_axis(opened: Opened, comparison: Path) -> None:
    page = opened(comparison)
    first = "return document.getElementById('sent').data.filter(t => t.meta)[0].x"
    axis = "return document.getElementById('sent').layout.xaxis.type"
    assert page.run(first) == [1000, 2000, 3000, 4000]
    assert page.run(axis) == "log"
    page.click("[data-value=floats]")
    page.click("[data-value=linear]")
    assert page.run(first) == [250, 500, 750, 1000]
    assert page.run(axis) == "linear"
    assert page.errors() == []


def test_coded_uploads_are_not_among_floats(opened: Opened, tmp_path: Path) -> None:
    plain = method("plain", records([0.5, 0.75]))
    # A kilobyte per round, coded but for two floats.
    small = method("<small>", records([0.5, 0.7], floats_up=2))
    file = tmp_path / "page.html"
    file.write_text(html(Report((plain, small))), encoding="utf-8")
    page = opened(file)
    assert page.curves("sent") == ["plain", "<small>"]
    assert not page.one("#coded").is_displayed()
    page.click("[data-value=floats]")
    assert page.curves("sent") == ["plain"]
    assert page.one("#coded").text.startswith("Not shown: <small> (coded, not floats)")
    page.click("[data-value=bytes]")
    assert page.curves("sent") == ["plain", "<small>"]
    assert not page.one("#coded").is_displayed()
    file.write_text(html(Report((small,))), encoding="utf-8")
    page = opened(file)
    assert page.curves("sent") == ["<small>"]
    assert page.all("[data-value=floats]") == []
    assert page.errors() == []


def test_the_images_are_visible(opened: Opened, comparison: Path) -> None:
    page = opened(comparison)
    # The images are noise: once the sheet is loaded, no tile has a single colour.
    painted = """return [...document.querySelectorAll('#images canvas')].filter(canvas => {
        const {data} = canvas.getContext('2d').getImageData(0, 0, 8, 8);
        return canvas.clientWidth > 8 && new Set(data).size > 9;
    }).length"""
    page.wait(lambda: page.run(painted) == 3 * 10)
    Select(page.one("#sheet-client")).select_by_visible_text("client 2")
    page.wait(lambda: page.run(painted) == 10 * 2)
    Select(page.one("#sheet-method")).select_by_visible_text("real")
    page.wait(lambda: page.run(painted) == 10 * 2)
    (shown,) = [each.text for each in page.all(".note[data-sheet]") if each.is_displayed()]
    assert "`feddm leak real-seed0` measures it" in shown
    assert page.errors() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone(opened: Opened, comparison: Path, theme: str) -> None:
    page = opened(comparison, width=375, theme=theme)
    assert page.run("return document.documentElement.scrollWidth") == 375
    # Nothing overflows, except what scrolls in its own frame.
    outside = page.run(
        "return [...document.querySelectorAll('main *, header *')]"
        ".filter(each => !each.closest('.scroll, svg, .plot'))"
        ".filter(each => each.getBoundingClientRect().right > 375.5)"
        ".map(each => each.outerHTML)"
    )
    assert outside == []
    # A command wraps only between words, and copies as one line.
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    heights = page.run(
        "return [...document.querySelectorAll('.word')]"
        ".filter(word => /^--[a-z]+$/.test(word.textContent))"
        ".map(word => word.getBoundingClientRect().height)"
    )
    assert len(heights) > 5
    one = "return document.querySelector('.word').getBoundingClientRect().height"
    assert set(heights) == {page.run(one)}  # of a single line
    copied = page.run(
        "getSelection().selectAllChildren(document.querySelector('pre'));"
        "return getSelection().toString()"
    )
    assert copied == page.run("return document.querySelector('pre').textContent")
    widths = page.run(
        "return [...document.querySelectorAll('.plot .main-svg')].map(svg => svg.clientWidth)"
    )
    assert widths and max(widths) < 375
    assert page.curves("accuracy") == ["feddm", "fedavg", "real"]
    color = page.run("return getComputedStyle(document.body).backgroundColor")
    red = int(color.removeprefix("rgb(").split(",")[0])
    assert red > 200 if theme == "light" else red < 50
    assert page.errors() == []


def test_switching_the_theme(opened: Opened, comparison: Path) -> None:
    page = opened(comparison)
    paper = "return document.getElementById('accuracy').layout.paper_bgcolor"
    light = page.run(paper)
    page.click("#theme")
    assert page.run(paper) != light
    page.click("#theme")
    assert page.run(paper) == light


def test_numbers_and_pictures_can_be_saved(
    opened: Opened, comparison: Path, downloads: Path
) -> None:
    page = opened(comparison)
    # Real clicks: a script may not save several files in a row.
    page.all("figure .save")[0].click()
    page.one("#csv").click()
    csv, picture = downloads / "feddm.csv", downloads / "feddm-accuracy.png"
    page.wait(lambda: csv.exists() and picture.exists())
    # 3 methods, 2 seeds, 4 rounds, and the titles.
    assert len(csv.read_text().splitlines()) == 3 * 2 * 4 + 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert page.errors() == []


def test_names_from_users_do_no_harm(opened: Opened, tmp_path: Path) -> None:
    one = method(EVIL, records([0.5, 0.75]), records([0.6, 0.7]), environment={EVIL: EVIL})
    other = method("plain", records([0.5, 0.5]))
    pictures = images(clients=2, classes=(EVIL, "b"), each=2)
    report = Report(
        (one, other),
        command=EVIL,
        notes=(EVIL,),
        sheets=(sheet(EVIL, 0, 2, pictures, 10_000),),
        partition=Partition((EVIL, "b"), np.array([[1, 2], [3, 4]]), EVIL),
    )
    file = tmp_path / "page.html"
    file.write_text(html(report), encoding="utf-8")
    page = opened(file)
    page.wait(lambda: page.all("#images canvas"))
    assert page.run("return document.title") == f"{EVIL} and plain on digits"
    assert page.all("img[src=x]") == []
    assert len(page.all("script")) == 4
    # It is shown literally, on the page and in the plots.
    assert page.all("#legend span")[0].text == EVIL
    assert page.all("#images .head")[1].get_attribute("textContent") == EVIL
    ticks = [each.text for each in page.all("#partition .xtick text")]
    assert ticks == [EVIL[:11] + "…", "b"]
    assert page.errors() == []


def test_a_private_run(opened: Opened, tmp_path: Path) -> None:
    private = config(rounds=2, privacy__mechanism="features", privacy__epsilon=4.0)
    assert private.privacy is not None
    assert private.privacy.sends_sums
    rounds = private_records([0.5, 0.6], 2.0, private.privacy)
    run = write_run(tmp_path / "run", rounds, private, images(clients=1, each=3))
    page = opened(write_report([run]).page)
    assert page.curves("privacy") == ["feddm"]
    assert page.all("#partition") == []
    assert [each.text for each in page.all(".stat .value")][-1] == "epsilon 2.000"
    assert len(page.all("#time .barlayer .trace")) == 1  # the server's
    # The server made these images, so no client is named.
    choice = Select(page.one("#sheet-client"))
    assert [each.text for each in choice.options] == ["one of each", "all images"]
    assert len(page.all("#images canvas")) == 10
    choice.select_by_visible_text("all images")
    assert len(page.all("#images canvas")) == 10 * 3
    assert "that the server learned" in page.one("[data-sheet]").text
    assert page.errors() == []


def test_many_classes_and_methods(opened: Opened, tmp_path: Path) -> None:
    names = [f"method {n}" for n in range(12)]
    many = tuple(method(name, records([0.5, 0.6])) for name in names)
    pictures = sheet("method 0", 0, 2, images(2, [f"class {n}" for n in range(100)], 1), 10**6)
    table = np.arange(200).reshape(2, 100)
    split = Partition(tuple(f"class {n}" for n in range(100)), table, "method 0")
    file = tmp_path / "page.html"
    file.write_text(html(Report(many, sheets=(pictures,), partition=split)), encoding="utf-8")
    page = opened(file, width=375)
    page.wait(lambda: len(page.all("#images canvas")) == 200)
    assert page.curves("accuracy") == names
    assert page.run("return document.documentElement.scrollWidth") == 375
    assert page.errors() == []


def test_an_interrupted_run_of_one_round(opened: Opened, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records([0.5]), config(rounds=9))
    file = tmp_path / "page.html"
    file.write_text(html(collected(read([run]))), encoding="utf-8")
    page = opened(file)
    assert page.one(".note").text == "feddm has 1 of 9 rounds so far."
    assert len(page.all("#accuracy .scatterlayer .point")) == 1
    assert page.errors() == []
