"""Profiles one round in this process: where its time goes, part by part."""

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

# The parts of a round and their functions. Indented parts belong to the part above.
PARTS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("data, split and model", build.build),
    ("clients", client.perform),
    ("  sampling networks", matching.sample_near),
    ("  real images, forward", matching.real_means),
    ("  synthetic images, forward and back", matching.image_gradient),
    ("training", training.train),
    ("  examples, forward and back", training.mean_gradient),
    ("  projection into the ball", training.into_ball),
    ("evaluation", metrics.evaluate),
)


@dataclass(frozen=True)
class ProfilePart:
    """A part of a round: its name, its seconds and its number of calls."""

    name: str
    seconds: float
    calls: int


def profile(config: Config) -> list[ProfilePart]:
    """Runs one round in this process, and returns the whole round and then its parts.

    ``training`` is the clients' for averaging methods, and the server's for FedDM. Profiling
    adds little time, because there are few calls and each does much work.
    """
    runtime = config.runtime.model_copy(update={"workers": 1})
    one_round = config.model_copy(update={"rounds": 1, "runtime": runtime})
    profiler = cProfile.Profile()
    profiler.runcall(execute, one_round, None, Observer())
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    parts = (("the whole round", execute), *PARTS)
    return [_part(name, function.__code__, stats) for name, function in parts]


def _part(name: str, code: CodeType, stats: dict[Any, Any]) -> ProfilePart:
    key = (code.co_filename, code.co_firstlineno, code.co_name)
    _, calls, _, seconds, _ = stats.get(key, (0, 0, 0.0, 0.0, {}))
    return ProfilePart(name, seconds, calls)
