"""FedDM: federated learning by iterative distribution matching.

    import feddm

    result = feddm.run(rounds=3)
    print(result.records[-1].accuracy)

The names below are imported when they are first used, so that ``import feddm`` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddm.api import Observer, RunResult, resume, run
    from feddm.errors import FedDMError
    from feddm.synthetic import SyntheticSet, load_synthetic
    from feddm.trained import TrainedModel, load_model

_HOMES = {
    "FedDMError": "feddm.errors",
    "Observer": "feddm.api",
    "RunResult": "feddm.api",
    "SyntheticSet": "feddm.synthetic",
    "TrainedModel": "feddm.trained",
    "load_model": "feddm.trained",
    "load_synthetic": "feddm.synthetic",
    "resume": "feddm.api",
    "run": "feddm.api",
}

__all__ = [
    "FedDMError",
    "Observer",
    "RunResult",
    "SyntheticSet",
    "TrainedModel",
    "load_model",
    "load_synthetic",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feddm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
