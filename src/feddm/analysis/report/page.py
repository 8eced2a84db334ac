"""Methods and pictures -> one HTML string. Reads no run, trains nothing, loads no model.

The template and this module make the text of the page; ``assets/page.js`` draws the plots from
the numbers in `drawn` and handles clicks.

Names come from users. The template escapes them for HTML, `drawn` is embedded as JSON that no
tag can close, and the script escapes them again where Plotly would read tags in labels. In
addition, the page's security policy lets the browser run only the embedded scripts and fetch
nothing.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from feddm.analysis.report import summary
from feddm.analysis.report.means import curves, epsilons, in_floats, outcome, to_csv
from feddm.analysis.report.pictures import TILES_IN_A_ROW, Partition, Sheet
from feddm.analysis.report.runs import Method
from feddm.analysis.tables import guarantees
from feddm.runtime.results import finite


@dataclass(frozen=True)
class Report:
    """The content of a page.

    Args:
        methods: Methods to compare, at least one.
        command: Command of the study, if this is one.
        notes: Notes to show at the top.
        sheets: Synthetic images.
        partition: Examples per client and class; ``None`` if that is private or unknown.
    """

    methods: tuple[Method, ...]
    command: str | None = None
    notes: tuple[str, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    partition: Partition | None = None


def html(report: Report) -> str:
    """Returns the page."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    first, plotly, script = _asset("theme.js"), _plotly(), _asset("page.js")
    methods = report.methods
    return environment.from_string(_asset("page.html")).render(
        title=summary.title(methods),
        lede=summary.lede(methods),
        notes=report.notes,
        dropouts=summary.dropouts(methods),
        sites=summary.sites(methods),
        cards=summary.cards(methods),
        table=summary.table(methods),
        several=len(methods) > 1,
        many_seeds=any(len(method.runs) > 1 for method in methods),
        floats=[method.name for method in methods if in_floats(method)],
        coded=[method.name for method in methods if not in_floats(method)],
        private=[summary.guarantee_text(method) for method in methods if method.private],
        guarantees=guarantees([outcome(method) for method in methods]),
        spent=any(epsilons(method) for method in methods),
        sheets=report.sheets,
        partition=report.partition,
        command=report.command,
        setups=[summary.setup(method) for method in methods],
        differences=summary.differences(methods),
        versions=summary.versions(methods),
        data=drawn(report),
        style=Markup(_asset("page.css")),
        first=Markup(first),
        plotly=Markup(plotly),
        script=Markup(script),
        hashes=[_hash(text) for text in (first, plotly, script)],
    )


def drawn(report: Report) -> dict[str, Any]:
    """Returns the numbers that the script draws, ready for JSON."""
    data: dict[str, Any] = {
        "methods": [curves(method) for method in report.methods],
        "sheets": [_sheet(sheet) for sheet in report.sheets],
        "csv": to_csv(report.methods),
    }
    if report.partition is not None:
        data["partition"] = {
            "classes": report.partition.classes,
            "table": report.partition.table.tolist(),
        }
    plain: dict[str, Any] = finite(data)
    return plain


def _sheet(sheet: Sheet) -> dict[str, Any]:
    near = sheet.neighbours
    return {
        "method": sheet.method,
        "classes": sheet.classes,
        "clients": sheet.clients,
        "by_server": sheet.by_server,
        "labels": sheet.labels,
        "shape": sheet.shape,
        "columns": TILES_IN_A_ROW,
        "image": _data_uri(sheet.png),
        "neighbours": None if near is None else _data_uri(near),
    }


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _asset(name: str) -> str:
    return files("feddm.analysis.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    return str(get_plotlyjs()).replace("\r\n", "\n")  # browsers do this before hashing


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
