"""Where the time of a round goes: one round in this process, part by part."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from feddm.config.schema import Config
from feddm.core import matching, metrics, training
from feddm.runtime import build, client
from feddm.runtime.run import Observer, execute

# The parts of a round, and the functions that do them; a part of the one above is indented.
PARTS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("data, split and model", build.build),
    ("clients", client.perform),
    ("  networks sampled", matching.sample_near),
    ("  real images, forward", matching.real_means),
    ("  synthetic images, forward and back", matching.image_gradient),
    ("training", training.train),
    ("  examples, forward and back", training.mean_gradient),
    ("  staying in the ball", training.into_ball),
    ("evaluation", metrics.evaluate),
)


@dataclass(frozen=True)
class Part:
    """A part of a round: what is done, for how many seconds, and how often."""

    name: str
    seconds: float
    calls: int


def profile(config: Config) -> list[Part]:
    """Runs one round in this process, and returns the whole and then its parts.

    The clients of the averaging methods train, and so does the server of FedDM: ``training`` is
    a part of the one or of the other. Measuring costs little: beside the work that a call does,
    there are few calls.
    """
    runtime = config.runtime.model_copy(update={"workers": 1})
    one_round = config.model_copy(update={"rounds": 1, "runtime": runtime})
    profiler = cProfile.Profile()
    profiler.runcall(execute, one_round, None, Observer())
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    parts = (("the whole round", execute), *PARTS)
    return [_part(name, function.__code__, stats) for name, function in parts]


def _part(name: str, code: CodeType, stats: dict[Any, Any]) -> Part:
    key = (code.co_filename, code.co_firstlineno, code.co_name)
    _, calls, _, seconds, _ = stats.get(key, (0, 0, 0.0, 0.0, {}))
    return Part(name, seconds, calls)
