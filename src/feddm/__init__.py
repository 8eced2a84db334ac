"""FedDM: federated learning by iterative distribution matching.

    import feddm

    result = feddm.run(rounds=3)
    print(result.records[-1].accuracy)

The names below are imported when they are first used, so that ``import feddm`` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddm.analysis.comparing import Comparison
    from feddm.api import compare, resume, run
    from feddm.data.own import OwnData
    from feddm.errors import FedDMError
    from feddm.runtime.finished import load_run
    from feddm.runtime.model_file import TrainedModel, load_model
    from feddm.runtime.run import Observer, RunResult
    from feddm.runtime.synthetic_file import SyntheticSet, load_synthetic

_HOMES = {
    "Comparison": "feddm.analysis.comparing",
    "FedDMError": "feddm.errors",
    "Observer": "feddm.runtime.run",
    "OwnData": "feddm.data.own",
    "RunResult": "feddm.runtime.run",
    "SyntheticSet": "feddm.runtime.synthetic_file",
    "TrainedModel": "feddm.runtime.model_file",
    "compare": "feddm.api",
    "load_model": "feddm.runtime.model_file",
    "load_run": "feddm.runtime.finished",
    "load_synthetic": "feddm.runtime.synthetic_file",
    "resume": "feddm.api",
    "run": "feddm.api",
}

__all__ = [
    "Comparison",
    "FedDMError",
    "Observer",
    "OwnData",
    "RunResult",
    "SyntheticSet",
    "TrainedModel",
    "compare",
    "load_model",
    "load_run",
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
