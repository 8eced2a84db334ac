"""What a client remembers from round to round, on its own disk.

    <folder>/<federation>/round_00000012.safetensors

A memory is in force only once the server has said that the upload which goes with it was
accepted. It says so by naming, with the next task, the round whose memory counts. So the last
two are kept, and a round that is asked for again begins where it began before.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from safetensors import SafetensorError

from feddm.core import files
from feddm.core.tensors import Records, from_bytes, to_bytes
from feddm.errors import EngineError

FEDERATIONS = 10  # of which memories are kept
_NAME = re.compile("[0-9a-f]{32}")  # of a federation


class Memory:
    """The memories of one client in all federations.

    Args:
        folder: Of the node; it is made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, federation: str, round_: int) -> Records:
        """Returns what was remembered in a round; round 0 is before all memory."""
        path = self._path(federation, round_)
        if not round_:
            return {}
        try:
            return from_bytes(path.read_bytes())
        except (OSError, SafetensorError):
            raise EngineError(
                f"the memory of round {round_} is not on this node any more; "
                "start a new federation"
            ) from None

    def keep(self, federation: str, round_: int, memory: Records, before: int) -> None:
        """Stores what is to be remembered of a round, and forgets what is older than `before`.

        Args:
            federation: Its name.
            round_: The round.
            memory: What is to be remembered.
            before: The round whose memory this one began with.
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
        # It comes from the server, and must not lead anywhere else.
        if not _NAME.fullmatch(federation):
            raise EngineError("the name of a federation is 32 hexadecimal digits")
        return self._folder / federation / f"round_{round_:08d}.safetensors"
