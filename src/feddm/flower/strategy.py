"""FedDM as a Flower strategy, for projects that already use Flower.

The server:

    strategy = FedDM(classes=["ill", "well"], shape=(1, 64, 64), clients=10)
    strategy.start(grid, initial_arrays=strategy.initial_arrays, num_rounds=5)

The client, with your own function to read its data:

    app = client_app(lambda context: (images, labels))

The model is the one in the configuration; ``strategy.model`` is the trained model. The other
algorithms work as well: ``FedDM(..., algorithm="scaffold")``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from feddm.config.resolve import resolve
from feddm.core.tensors import Records
from feddm.data.catalog import described
from feddm.errors import EngineError
from feddm.flower import wire
from feddm.flower.engine import OnFlower, Patience
from feddm.flower.node import OWN_DATA
from feddm.flower.server_app import Log
from feddm.flower.session import unevaluated
from feddm.runtime.build import build_model, build_server, check_config
from feddm.runtime.federation import RoundPlan, SiteRecord, run, start
from feddm.runtime.model_file import TrainedModel
from feddm.runtime.private_setup import with_noise

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class FedDM(Strategy):
    """Clients send small synthetic data sets, and the server trains on their union.

    A round counts if at least one client delivers; ``{"min_clients": 3}`` asks for more.

    Args:
        classes: Names of the classes. Leave them out for a known data set.
        shape: Channels, height and width of an image.
        clients: Number of nodes; ``partition-id`` is the number of each.
        settings: Any other settings by key, for instance ``{"server.lr": 0.1}``.
        options: The options of `feddm.run`, for instance ``algorithm="fedavg"``.
    """

    def __init__(
        self,
        classes: Sequence[str] = (),
        shape: Sequence[int] = (1, 28, 28),
        *,
        clients: int,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        own = {"data.own.classes": list(classes), "data.own.shape": list(shape)}
        named = {"dataset": OWN_DATA} if classes else {}
        config = resolve(
            preset=options.pop("preset", None),
            options={**named, "clients": clients, **options},
            settings={"min_clients": 1, **(own if classes else {}), **(settings or {})},
        )
        check_config(config)
        config = with_noise(config, [])
        self._setup = build_server(config, described(config.data), None)
        self._name = uuid.uuid4().hex
        self._federation = start(self._setup.algorithm, config.seed)
        self._memories: Mapping[int, Records] = {}

    @property
    def initial_arrays(self) -> ArrayRecord:
        """The parameters of the model, in the form `start` takes."""
        return wire.to_arrays({"params": self._federation.state["params"]})["params"]

    @property
    def model(self) -> TrainedModel:
        """The model as trained so far."""
        info, config = self._setup.info, self._setup.config
        return TrainedModel(
            config.model,
            build_model(config.model, info.shape, len(info.classes)),
            self._federation.state["params"],
            info.classes,
            info.normalization,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Runs the rounds and returns Flower's result; a second call runs further rounds.

        Raises `LostClientsError` if too few clients deliver.
        """
        del train_config, evaluate_config  # nodes get the whole configuration
        result, log = Result(), Log()
        _evaluate(evaluate_fn, 0, initial_arrays, result)
        config, first = self._setup.config, self._federation.round
        plan = RoundPlan(
            rounds=first + num_rounds,
            clients=config.partition.clients,
            participation=config.participation,
            seed=config.seed,
            min_clients=None if config.min_clients == "all" else config.min_clients,
            server_threads=config.runtime.server_threads,
        )
        clients = OnFlower(
            grid,
            self._name,
            config,
            self._setup.compiled,
            self._memories,
            Patience(reply=timeout),
            log.notice,
        )
        evaluator = clients.evaluate if config.data.holdout else unevaluated
        log.started(config.model_copy(update={"rounds": plan.rounds}), self._setup, [])
        for federation, record in run(
            self._setup.algorithm, clients, self._federation, evaluator, plan, _silent
        ):
            self._federation, self._memories = federation, clients.memories
            number = record.round - first
            result.arrays = self.initial_arrays
            result.train_metrics_clientapp[number] = MetricRecord(
                {"clients": len(record.clients)}
            )
            if record.sites:
                result.evaluate_metrics_clientapp[number] = _metrics(record.sites)
            _evaluate(evaluate_fn, number, result.arrays, result)
            log.finished_round(record)
        return result

    def summary(self) -> None:
        """Logs the configuration of the run."""
        Log().started(self._setup.config, self._setup, [])

    def configure_train(self, *_: Any, **__: Any) -> NoReturn:
        """Raises `EngineError`: `start` runs whole rounds, and Flower's steps don't exist."""
        raise EngineError("FedDM only runs whole rounds; call start")

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train


def _evaluate(how: Evaluate | None, number: int, arrays: ArrayRecord, result: Result) -> None:
    """Adds the metrics of the project's own evaluation."""
    metrics = how(number, arrays) if how is not None else None
    if metrics is not None:
        result.evaluate_metrics_serverapp[number] = metrics


def _metrics(sites: Sequence[SiteRecord]) -> MetricRecord:
    """Returns the mean and the worst accuracy of the clients."""
    accuracies = [site.accuracy for site in sites]
    return MetricRecord(
        {
            "accuracy": sum(accuracies) / len(sites),
            "worst_accuracy": min(accuracies),
            "balanced_accuracy": sum(site.balanced_accuracy for site in sites) / len(sites),
        }
    )


def _silent(stage: str, fraction: float) -> None:
    del stage, fraction
