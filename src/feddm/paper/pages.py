"""The Markdown page of an experiment, made from its ``paper.json`` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feddm.analysis.tables import Table


def page(what: Mapping[str, Any]) -> str:
    """Returns the page, with versions and machine."""
    made = f"feddm {what['versions']['feddm']}"
    made += f" (commit {what['commit']})" if what["commit"] else ""
    kept = (
        " All settings of a run are in its `cells/*/config.toml`." if what["settings"] else ""
    )
    return (
        f"# {what['place']}: {what['shows']}\n\n{section(what, what['pictures'])}\n"
        f"{seeds(what)}; {made}, torch "
        f"{what['versions']['torch']}, {what['machine']}.{kept}\n"
    )


def section(what: Mapping[str, Any], pictures: Sequence[str]) -> str:
    """Returns the command, the table, the pictures and the notes.

    Args:
        what: Content of ``paper.json``.
        pictures: Paths of the pictures, relative to the page.
    """
    drawn = "".join(f"![{what['shows']}]({picture})\n" for picture in pictures)
    changes = ", ".join(f"`{change}`" for change in what["scaled_down"]) or "nothing"
    return (
        f"    {what['command']}\n\n{Table(what['titles'], what['lines']).to_markdown()}\n"
        + (f"{drawn}\n" if drawn else "")
        + "".join(f"- {note}\n" for note in what["notes"])
        + f"\nScaled down from the paper (scale {what['scale']}): {changes}.\n"
    )


def seeds(what: Mapping[str, Any]) -> str:
    """Returns the seeds as text.

    >>> seeds({"seeds": [0]}), seeds({"seeds": [0, 1, 2]})
    ('Seed 0', 'Seeds 0 to 2')
    """
    first, last = what["seeds"][0], what["seeds"][-1]
    return f"Seed {first}" if first == last else f"Seeds {first} to {last}"
