"""What an algorithm is: five functions around a state.

    state = init(params)
    every round:
        download = broadcast(state)                      server -> every client of the cohort
        result = local(download, data, memory, ...)      on the client; result.upload -> server
        upload = parse(result.upload, download)          on the server, before anything else
        state = aggregate(state, uploads, ...)           on the server

An algorithm is a frozen dataclass of its settings. All that changes is in the state, which the
server keeps, and in the memory, which each client keeps and which never crosses the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from feddm.core.examples import Examples
from feddm.core.models import Model
from feddm.core.tensors import Records, Tensors
from feddm.core.training import Tick
from feddm.errors import UploadError
from feddm.privacy.accounting import Event
from feddm.privacy.release import Noise


@dataclass(frozen=True)
class LocalResult:
    """What a client has after its work of one round.

    Args:
        upload: All that goes to the server, and so all that is counted.
        memory: What the client wants to have back next time.
        metrics: Figures about the work, for the log.
    """

    upload: Records
    memory: Records = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Upload:
    """What one client sent, after `Algorithm.parse`."""

    client: int
    records: Records


class Algorithm(Protocol):
    """A federated algorithm. ``state["params"]`` is always the global model."""

    @property
    def model(self) -> Model:
        """The model that is learned."""

    @property
    def planned(self) -> tuple[Event, ...]:
        """What a client releases of its examples in one round; known beforehand."""

    def init(self, params: Tensors) -> Records:
        """Returns the state before the first round."""

    def broadcast(self, state: Records) -> Records:
        """Returns what every client of a round downloads."""

    def local(
        self,
        download: Records,
        data: Examples,
        memory: Records,
        rng: torch.Generator,
        tick: Tick,
        noise: Noise | None = None,
    ) -> LocalResult:
        """Returns the result of one client's work.

        With privacy, what depends on examples leaves through `noise` alone.
        """

    def parse(self, upload: Records, download: Records) -> Records:
        """Returns an upload decoded, as `aggregate` takes it.

        Raises:
            UploadError: If `local` cannot have sent this for that download.
        """

    def aggregate(
        self, state: Records, uploads: Iterable[Upload], rng: torch.Generator, tick: Tick
    ) -> Records:
        """Returns the next state from parsed uploads; they come once, in client order."""


def parse_like(upload: Records, template: Records) -> Records:
    """Returns the upload, whose names, shapes and types must be those of the template.

    Numbers that are not finite are refused as well: one of them would spoil every average.
    """
    if set(upload) != set(template):
        raise UploadError(f"an upload has {_listed(template)}, got {_listed(upload)}")
    for record, tensors in template.items():
        if set(upload[record]) != set(tensors):
            raise UploadError(f"the names in {record} are not those of the model")
        for name, expected in tensors.items():
            tensor = upload[record][name]
            if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
                raise UploadError(
                    f"{record} {name} must be {expected.dtype} of shape "
                    f"{tuple(expected.shape)}, got {tensor.dtype} {tuple(tensor.shape)}"
                )
            if not tensor.isfinite().all():
                raise UploadError(f"{record} {name} has numbers that are not finite")
    return upload


def _listed(records: Records) -> str:
    return ", ".join(sorted(records)) or "nothing"
