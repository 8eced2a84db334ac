"""Where your own data are: what ``data.path`` of a configuration names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from feddm.config.schema import DataConfig, OwnDataConfig
from feddm.data import given, hub
from feddm.data.datasets import Dataset
from feddm.data.own import OWN, OwnData, dataset_of, facts, facts_of, read_data


def source_facts(path: str) -> dict[str, Any]:
    """Returns the values of a configuration that follow from the data at a path."""
    if path.startswith(given.PREFIX):
        found = facts(given.kept(path), "own")
    elif _on_hub(path):
        name = path.removeprefix(hub.PREFIX).rstrip("/").rpartition("/")[2]
        found = facts(read_source(path, OWN), name)
    else:
        found = facts_of(path)
    found["data"]["path"] = path
    return found


def read_source(path: str, own: OwnDataConfig) -> OwnData:
    """Returns the data at a path."""
    if path.startswith(given.PREFIX):
        return given.kept(path)
    return hub.read_hub(path, own) if _on_hub(path) else read_data(Path(path), own)


def load_own(config: DataConfig) -> Dataset:
    """Returns the data set that a configuration names."""
    return dataset_of(read_source(config.path, config.own), config)


def absolute(path: str | Path) -> str:
    """Returns a path that is the same from every folder: a run may be resumed from another."""
    text = str(path)
    return text if text.startswith((given.PREFIX, hub.PREFIX)) else os.path.abspath(text)


def _on_hub(path: str) -> bool:
    return path.startswith(hub.PREFIX) or hub.is_saved(Path(path))
