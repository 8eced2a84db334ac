"""``feddm export``, ``feddm evaluate`` and ``feddm train-on``: a run's results, used again."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddm.cli import options
from feddm.config.code import FORM, absolute
from feddm.core.formatting import percent

if TYPE_CHECKING:
    from feddm.core.metrics import Evaluation

EXPORT_EXAMPLES = "Example: `feddm export runs/feddm-digits-1 --out digits`"
EVALUATE_EXAMPLES = "Example: `feddm evaluate runs/feddm-scans-1 more-scans`"
TRAIN_EXAMPLES = """\
Examples:

- `feddm train-on runs/feddm-cifar10-1 --model resnet18 --epochs 50`

- `feddm train-on runs/feddm-scans-1 --model net.py:Net --out net.safetensors`"""

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a finished run.")]
OwnModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar=FORM, help="The run's model, if it is your own: no code runs else."
    ),
]


def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder to write, new or empty.")],
    model: OwnModel = None,
) -> None:
    """Write the synthetic set, the model and the privacy statement for other programs.

    The set is a .npz file, which is also data of your own for `feddm run --data`, and a folder
    of PNGs; the model is a state_dict, TorchScript, and ONNX where torch can.
    """
    from feddm.analysis.export import export as write
    from feddm.runtime.finished import load_run

    done = write(load_run(run, _absolute(model)), out)
    for note in done.notes:
        print(f"Note: {note}.")
    print(f"Written to {done.folder}: {', '.join(sorted(done.files))}")


def evaluate(
    run: Run,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Data of your own, with the run's classes.")
    ],
    model: OwnModel = None,
    json: options.Json = False,
) -> None:
    """Evaluate the model of a run on data of your own."""
    from feddm.analysis.reuse import evaluated
    from feddm.runtime.finished import load_run

    result, number = evaluated(load_run(run, _absolute(model)), path)
    _show(result, number, path, json)


def train_on(
    run: Run,
    model: Annotated[
        str, typer.Option(help=f"What is trained: convnet, mlp, resnet18, or {FORM}.")
    ] = "convnet",
    width: Annotated[int, typer.Option(min=1, help="Its width, if it has one.")] = 128,
    depth: Annotated[int, typer.Option(min=1, max=6, help="Its depth, if it has one.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the synthetic set.")] = 100,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per step.")] = 64,
    lr: Annotated[float, typer.Option(min=1e-9, help="Learning rate.")] = 0.02,
    momentum: Annotated[float, typer.Option(min=0, max=0.999, help="Momentum of SGD.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all randomness.")] = 0,
    test: Annotated[
        str | None, typer.Option(metavar="PATH", help="Data to test on; else the run's own.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File of the new model, as model.safetensors.")
    ] = None,
    old_model: Annotated[
        str | None,
        typer.Option(metavar=FORM, help="The run's own model, if it is code of yours."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Train another model on the synthetic set of a run, and on nothing else."""
    from feddm.analysis.reuse import tested, trained_on, write_model
    from feddm.config.resolve import resolve
    from feddm.core.training import SGD, ignore
    from feddm.runtime.finished import load_run

    name = absolute(model)
    norm = "group" if name == "resnet18" else "instance"
    chosen = {
        "model.name": name,
        "model.width": width,
        "model.depth": depth,
        "model.norm": norm,
    }
    config = resolve(settings=chosen).model
    loaded = load_run(run, _absolute(old_model) or _same(run, name))
    trained = trained_on(loaded, config, SGD(lr, epochs, batch_size, momentum), seed, ignore)
    if out is not None:
        write_model(trained, out)
    result, number = tested(loaded, trained, test)
    _show(result, number, test or "the test set of the run", json)


def _same(run: Path, name: str) -> str | None:
    """Returns the code that was named, if it is the run's own, too."""
    from feddm.runtime.rundir import RunDirectory

    return name if RunDirectory.open(run).config().model.name == name and ":" in name else None


def _absolute(model: str | None) -> str | None:
    return None if model is None else str(absolute(model))


def _show(result: Evaluation, number: int, where: str, json: bool) -> None:
    if json:
        print(json_.dumps({"examples": number, **result._asdict()}))
        return
    print(
        f"{number:,} examples of {where}: accuracy {percent(result.accuracy)}, balanced "
        f"{percent(result.balanced_accuracy)}, loss {result.loss:.4f}."
    )
