"""The app for `flwr run`: a folder that holds only a configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

from feddm.core import files
from feddm.errors import RunDirectoryError


def app_folder() -> Path:
    """Returns the app's folder inside this package."""
    return Path(__file__).parent / "bundle"


def write_app(target: Path) -> None:
    """Copies the app to a new folder."""
    with files.explained(RunDirectoryError, target):
        if target.exists():
            raise RunDirectoryError(f"{target} already exists; choose a new folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(app_folder(), target, ignore=shutil.ignore_patterns("__pycache__"))
