"""Writes reports to disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from feddm.analysis.figures import draw_curves, draw_partition
from feddm.analysis.leak_files import warning
from feddm.analysis.report.page import Report, html
from feddm.analysis.report.pictures import Partition, Sheet, Split, sheet
from feddm.analysis.report.runs import Found, Method, read
from feddm.analysis.tables import caption, curves, summarize
from feddm.config.schema import Config
from feddm.errors import ConfigError, DataError, FedDMError, RunDirectoryError
from feddm.runtime.session import ON_NODES
from feddm.runtime.synthetic_file import load_synthetic

NAME = "report.html"
ROOM = 1_900_000  # bytes for the pixels of all images, to keep the page under 8 MB


@dataclass(frozen=True)
class Written:
    """The files of a report, and notes about what it leaves out."""

    page: Path
    figures: tuple[Path, ...]
    notes: tuple[str, ...]


def write_report(
    paths: Sequence[Path],
    out: Path | None = None,
    *,
    neighbours: bool = False,
    figures: bool = False,
) -> Written:
    """Writes the report of runs or studies.

    Args:
        paths: Directories of runs and studies.
        out: File to write; by default ``report.html`` in the first directory.
        neighbours: Whether to show the nearest real image below each synthetic one.
        figures: Whether to also draw curves and partition as PNG and PDF next to the page.
    """
    target = out or paths[0] / NAME
    if target.is_dir():
        raise ConfigError(f"--out must be a file, but {target} is a directory")
    report = collected(read(paths), neighbours)
    drawn = _draw(report, target) if figures else ()
    # A failure half-way must not leave a truncated page.
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_bytes(html(report).encode())
        part.replace(target)
    except OSError as error:
        raise RunDirectoryError(f"cannot write {target}: {error.strerror}") from error
    return Written(target, drawn, report.notes)


def collected(found: Found, neighbours: bool = False) -> Report:
    """Returns the content of the report. What cannot be read is left out with a note."""
    notes = list(found.notes)
    if neighbours and found.protected:
        raise ConfigError("--neighbours cannot show real images: a run is private")
    partition = None
    if not found.protected:
        try:
            partition = _partition(found.methods[0])
        except FedDMError as error:
            notes.append(f"The partition is not shown: {error}.")
    sheets = _sheets(found.methods, neighbours, notes)
    return Report(found.methods, found.command, tuple(notes), tuple(sheets), partition)


def _partition(method: Method) -> Partition:
    run = method.runs[0]
    if run.fingerprint == ON_NODES:
        raise DataError("only the nodes know it")
    return Partition.read(run.folder, f"{method.name}, seed {run.config.seed}")


def _sheets(methods: Sequence[Method], neighbours: bool, notes: list[str]) -> list[Sheet]:
    """Returns the images of one seed per method, for methods that have images."""
    sources = []
    for method in methods:
        for run in method.runs:
            if (run.folder / "synthetic.safetensors").is_file():
                sources.append((method.name, run))
                break
    sheets = []
    for name, run in sources:
        room = ROOM // len(sources) // (1 + neighbours)
        try:
            images = load_synthetic(run.folder / "synthetic.safetensors")
            split = Split.of(run.config, run.fingerprint) if neighbours else None
            made = sheet(name, run.config.seed, len(run.records), images, room, split)
            by_server = _learned_by_server(run.config)
            sheets.append(replace(made, by_server=by_server, warning=warning(run)))
        except FedDMError as error:
            if neighbours:
                raise
            notes.append(f"The images of {name} are not shown: {error}.")
    return sheets


def _learned_by_server(config: Config) -> bool:
    return config.privacy is not None and config.privacy.sends_sums


def _draw(report: Report, target: Path) -> tuple[Path, ...]:
    runs = {method.name: [run.records for run in method.runs] for method in report.methods}
    below = caption(summarize(runs, ()))
    files = []
    for ending in ("png", "pdf"):
        path = target.with_name(f"{target.stem}-accuracy.{ending}")
        files.append(draw_curves(curves(runs), path, below))
        if report.partition is not None:
            path = target.with_name(f"{target.stem}-partition.{ending}")
            split = report.partition
            files.append(draw_partition(split.table, split.classes, path))
    return tuple(files)
