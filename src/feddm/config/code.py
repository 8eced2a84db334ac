"""Code of your own: a class or a function that a configuration names.

    folder/file.py:Net       in a file
    package.module:make      in a module that Python finds, from the current folder, too
    python:1:Net             given in Python, and good for this process alone

It runs when a run is started or resumed, and nowhere else: nobody runs it to show what a run
has left behind, and a node never runs what a server names.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from feddm.errors import ConfigError

FORM = "FILE.py:NAME"
GIVEN = "python:"

_given: dict[str, object] = {}  # by reference, what was given in Python
_loaded: dict[str, str] = {}  # by the name of a module that was made from a file: the file


def is_reference(name: str) -> bool:
    """Whether a name is of code of your own, and not of something built in.

    >>> is_reference("fedavg"), is_reference("mine.py:FedAvgM")
    (False, True)
    """
    return ":" in name


def label(name: str) -> str:
    """Returns a short name, to show and for files.

    >>> label("fedavg"), label("/home/me/mine.py:FedAvgM")
    ('fedavg', 'FedAvgM')
    """
    return name.rpartition(":")[2]


def absolute(name: Any) -> Any:
    """Returns a reference to a file that is the same from every folder."""
    if not isinstance(name, str) or not _in_file(name):
        return name
    path, _, what = name.rpartition(":")
    return f"{os.path.abspath(path)}:{what}"


def reference_to(found: object) -> str:
    """Returns what a configuration calls something that was given in Python."""
    if isinstance(found, str):
        return str(absolute(found))
    module = getattr(found, "__module__", None)
    name = getattr(found, "__qualname__", type(found).__name__)
    if isinstance(module, str) and _at(sys.modules.get(module), name) is found:
        if module in _loaded:
            return f"{_loaded[module]}:{name}"
        if module != "__main__" and importlib.machinery.PathFinder.find_spec(
            module.partition(".")[0]
        ):
            return f"{module}:{name}"
    for reference, other in _given.items():
        if other is found:
            return reference
    reference = f"{GIVEN}{len(_given) + 1}:{name.rpartition('.')[2]}"
    _given[reference] = found
    return reference


def is_given(name: str) -> bool:
    """Whether only this process has it."""
    return name.startswith(GIVEN)


def load(reference: str) -> Any:
    """Returns the class or function that a reference names; this runs its code."""
    if is_given(reference):
        if reference not in _given:
            raise ConfigError(
                f"{label(reference)} was given in Python, and this process does not have it: "
                f"resume in Python with it, or name it as {FORM}"
            )
        return _given[reference]
    where, _, name = reference.rpartition(":")
    module = _from_file(Path(where)) if _in_file(reference) else _imported(where)
    found = _at(module, name)
    if found is None:
        raise ConfigError(f"{where} has no {name}")
    return found


def source_hash(name: str) -> str | None:
    """Returns a digest of the file that a reference names; ``None`` for what is built in."""
    path = _source(name) if is_reference(name) else None
    if path is None:
        return None
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def files_behind(kind: type) -> list[str]:
    """Returns the file that a class is from, so that another process can run it, too."""
    return [_loaded[kind.__module__]] if kind.__module__ in _loaded else []


def run_files(paths: Iterable[str]) -> None:
    """Runs files in a process that works for this one."""
    for path in paths:
        _from_file(Path(path))


def _in_file(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def _at(module: ModuleType | None, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _from_file(path: Path) -> ModuleType:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    # The name changes with the content, so that an edited file is run again.
    digest = hashlib.sha256(str(path).encode() + b"\0" + content).hexdigest()[:12]
    name = f"{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = list(sys.path)
    sys.path.insert(0, str(path.parent))  # what lies beside it can be imported, as in a script
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # it may raise anything
        del sys.modules[name]
        raise ConfigError(_failed(path, error)) from error
    finally:
        sys.path[:] = before
    _loaded[name] = str(path)
    return module


def _imported(name: str) -> ModuleType:
    before = list(sys.path)
    sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(_failed(name, error)) from error
    finally:
        sys.path[:] = before


def _failed(what: str | Path, error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{what} can't be loaded: {type(error).__name__}: {lines[0]}"


def _source(reference: str) -> Path | None:
    where = reference.rpartition(":")[0]
    if is_given(reference):
        module = sys.modules.get(getattr(_given.get(reference), "__module__", None) or "")
    elif _in_file(reference):
        return Path(where)
    else:
        module = sys.modules.get(where)
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file)
