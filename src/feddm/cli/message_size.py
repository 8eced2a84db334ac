"""``feddm message-size``."""

from __future__ import annotations

import functools
import json as json_
from typing import Annotated, Any

import typer

from feddm.cli import options

EXAMPLES = """\
Examples:

- `feddm message-size --dataset cifar10`

- `feddm message-size --clients 50 --alpha 0.5 --ipc 3 --dataset cifar10`"""


@options.configured(without={"algorithm", "rounds", "participation", "seed", "workers"})
def message_size(
    given: options.Given,
    splits: Annotated[int, typer.Option(min=2, help="Seeds of the partition.")] = 20,
    json: options.Json = False,
) -> None:
    """Show what clients upload in a round, without training, beside the paper's figures.

    Baselines send weights, so theirs is exact. FedDM's depends on how many classes the clients
    have: mean and standard deviation over partitions by different seeds. Without --alpha, for
    the three of the paper. The model is that of the preset `paper`.
    """
    preset = given.preset or "paper"
    alphas = [given.options["alpha"]] if given.options.get("alpha") else [0.5, 0.1, 0.01]
    configs = [given.with_preset(preset).resolved(alpha=alpha) for alpha in alphas]
    from feddm.build import build_dataset, build_model, build_shards
    from feddm.messages import PAPER, PAPER_BASELINE, synthetic_size
    from feddm.models import num_params
    from feddm.seeding import generator

    data = build_dataset(configs[0].data)
    info = data.info
    model = build_model(configs[0].model, info.shape, len(info.classes))
    clients = configs[0].partition.clients
    weights = num_params(model.init(generator(0, "size"))) * clients
    as_paper = clients == 10 and configs[0].model == given.with_preset("paper").resolved().model
    rows: list[dict[str, Any]] = []
    for config in configs:
        part = config.partition
        if part.alpha < 0.05 and "partition.min_examples" not in given.settings:
            # A split this skewed rarely leaves ten examples to everybody.
            part = part.model_copy(update={"min_examples": 1})
        size = synthetic_size(
            data.train.y.numpy(),
            functools.partial(build_shards, part, data),
            range(splits),
            num_classes=len(info.classes),
            images_per_class=config.synthesis.images_per_class,
            min_class_size=config.synthesis.min_class_size,
            shape=info.shape,
        )
        rows.append(
            {
                "what": f"FedDM, {part.scheme} {part.alpha:g}, {size.pairs:.1f} pairs",
                "floats": round(size.floats),
                "std": round(size.std),
                "paper": PAPER.get(info.name, {}).get(part.alpha) if as_paper else None,
            }
        )
    for what, floats in (
        ("FedAvg, FedProx", weights),
        ("FedNova (and a coefficient)", weights + clients),
        ("SCAFFOLD (and a variate)", 2 * weights),
    ):
        baseline = (
            PAPER_BASELINE.get(info.name) if as_paper and what.startswith("FedAvg") else None
        )
        rows.append({"what": what, "floats": floats, "std": 0, "paper": baseline})
    if json:
        print(json_.dumps(rows, indent=2))
        return
    print(f"Floats that {clients} clients upload in a round of {info.name}, {splits} splits")
    print(f"{'':<42}{'floats':>12}  {'std':>9}  {'paper':>11}")
    for row in rows:
        paper = f"{row['paper']:,}" if row["paper"] else "-"
        spread = f"{row['std']:,}" if row["std"] else "exact"
        print(f"{row['what']:<42}{row['floats']:>12,}  {spread:>9}  {paper:>11}")
