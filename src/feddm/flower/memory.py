"""A client's memory between rounds, on its own disk.

    <folder>/<federation>/round_00000012.safetensors

A memory is valid only once the server has accepted the upload of its round. The client learns
this from the next task, which names the round whose memory to continue from. So a client keeps
two memories, and a repeated round starts where it started before.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from safetensors import SafetensorError

from feddm.core import files
from feddm.core.tensors import Records, from_bytes, to_bytes
from feddm.errors import EngineError

FEDERATIONS = 10  # number of federations whose memories are kept
_NAME = re.compile("[0-9a-f]{32}")  # name of a federation


class Memory:
    """The memories of one client in all federations.

    Args:
        folder: Holds the memories; created when the first one is stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, federation: str, round_: int) -> Records:
        """Returns the memory of a round; round 0 has none."""
        path = self._path(federation, round_)
        if not round_:
            return {}
        try:
            return from_bytes(path.read_bytes())
        except (OSError, SafetensorError):
            raise EngineError(
                f"the memory of round {round_} is no longer on this node; "
                "start a new federation"
            ) from None

    def keep(self, federation: str, round_: int, memory: Records, before: int) -> None:
        """Stores the memory of a round and deletes all others except that of `before`.

        Args:
            federation: Name of the federation.
            round_: The round.
            memory: Its memory.
            before: Round whose memory this one started from.
        """
        path = self._path(federation, round_)
        with files.explained(EngineError, self._folder):
            if not path.parent.exists():
                files.make_private(path.parent)
                self._forget_old_federations()
            files.write_whole(path, to_bytes(memory), files.OWNER)
            wanted = {path.name, self._path(federation, before).name}
            for other in path.parent.iterdir():
                if other.name not in wanted:
                    other.unlink()

    def _forget_old_federations(self) -> None:
        folders = [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
        folders.sort(key=lambda folder: folder.stat().st_mtime)
        for old in folders[:-FEDERATIONS]:
            shutil.rmtree(old)

    def _path(self, federation: str, round_: int) -> Path:
        # The name comes from the server and must not lead out of the folder.
        if not _NAME.fullmatch(federation):
            raise EngineError(f"federation must be 32 hexadecimal digits, got {federation!r}")
        return self._folder / federation / f"round_{round_:08d}.safetensors"
