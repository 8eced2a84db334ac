"""FedDM as the strategy of somebody's Flower project: `flwr run examples/flower-strategy`."""

from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from feddm.flower.client_app import client_app
from feddm.flower.strategy import FedDM

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Learns to tell dark images from bright ones."""
    nodes = len(list(grid.get_node_ids()))
    strategy = FedDM(["dark", "bright"], shape=(1, 8, 8), clients=nodes, width=8)
    strategy.start(grid, strategy.initial_arrays, num_rounds=2)
    Path(str(context.run_config["out"])).write_bytes(strategy.model.to_bytes())


def my_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this node's images, as bytes, and their classes: here they are made up."""
    rng = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    labels = torch.randint(2, (60,), generator=rng)
    pixels = torch.randint(100, (60, 1, 8, 8), generator=rng)
    return (pixels + 100 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels


client = client_app(my_data)
