"""What an algorithm of your own is made of: one import, as in ``examples/fedavgm.py``.

Subclass `FedAvg` or `FedDM` for "the same but for one thing", or `ConfiguredAlgorithm` for an
algorithm of another kind. Its settings are fields of a class below `FedAvgSettings`,
`FedDMSettings` or `AlgorithmSettings`. `feddm.testing` has the tests that it should pass.
"""

from pydantic import Field
from torch import Generator, Tensor

from feddm.algorithms.base import ConfiguredAlgorithm, Context, LocalResult, Upload, parse_like
from feddm.algorithms.costs import ClassTable, Passes, UploadSize, Work
from feddm.algorithms.fedavg import FedAvg, FedAvgSettings
from feddm.algorithms.feddm import FedDM, FedDMSettings
from feddm.config.schema import AlgorithmSettings, Section
from feddm.core.examples import Examples
from feddm.core.tensors import Records, Tensors, weighted_mean, zip_map
from feddm.core.training import SGD, Adjust, Tick, train
from feddm.errors import UploadError
from feddm.privacy.accounting import Unprotected
from feddm.privacy.release import Noise

__all__ = [
    "SGD",
    "Adjust",
    "AlgorithmSettings",
    "ClassTable",
    "ConfiguredAlgorithm",
    "Context",
    "Examples",
    "FedAvg",
    "FedAvgSettings",
    "FedDM",
    "FedDMSettings",
    "Field",
    "Generator",
    "LocalResult",
    "Noise",
    "Passes",
    "Records",
    "Section",
    "Tensor",
    "Tensors",
    "Tick",
    "Unprotected",
    "Upload",
    "UploadError",
    "UploadSize",
    "Work",
    "parse_like",
    "train",
    "weighted_mean",
    "zip_map",
]
