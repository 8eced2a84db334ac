"""FedAvgM: momentum on the server. Hsu et al. 2019. https://arxiv.org/abs/1909.06335."""

from dataclasses import dataclass

from feddm.extend import FedAvg, FedAvgSettings, Field, zip_map


class Settings(FedAvgSettings):
    beta: float = Field(0.9, ge=0, lt=1, description="Momentum of the server; 0 is FedAvg.")


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """The server keeps a velocity: v <- beta v + (x - mean), x <- x - v."""

    Settings = Settings

    def init(self, params):
        return {"params": params, "velocity": zip_map(lambda x: 0 * x, params)}

    def aggregate(self, state, uploads, rng, tick):
        mean = super().aggregate(state, uploads, rng, tick)["params"]
        kept = zip_map(lambda v: self.settings.beta * v, state["velocity"])
        velocity = zip_map(lambda v, x, m: v + x - m, kept, state["params"], mean)
        return {"params": zip_map(lambda m, v: m - v, mean, kept), "velocity": velocity}
