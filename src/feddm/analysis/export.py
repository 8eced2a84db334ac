"""A run's results in the forms that other programs take.

synthetic.npz    the synthetic set; also data of your own for another run
images/CLASS/    the same to look at, one PNG for each
model.pt         the weights, for ``load_state_dict``
model.ts         the model for TorchScript: stored values in, logits out
model.onnx       the same for ONNX, if torch can write it here
about.json       classes, shape, normalization and the configuration
PRIVACY.txt      what is protected, and what is not: keep it with the rest
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from feddm.analysis.leak_files import FIGURES
from feddm.core import files
from feddm.core.models import Model
from feddm.core.tensors import Tensors
from feddm.errors import RunDirectoryError
from feddm.runtime.model_file import TrainedModel
from feddm.runtime.run import RunResult
from feddm.runtime.synthetic_file import SyntheticSet
from feddm.runtime.wording import introduction, summary


@dataclass(frozen=True)
class Exported:
    """What was written, and notes about what could not be."""

    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...]


def export(run: RunResult, out: Path) -> Exported:
    """Writes everything into a folder, new or empty."""
    with files.explained(RunDirectoryError, out):
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise RunDirectoryError(f"{out} is not empty; choose another folder with --out")
        written, notes = ["PRIVACY.txt", "about.json", "model.pt"], []
        (out / "PRIVACY.txt").write_text(privacy_text(run))
        (out / "about.json").write_text(json.dumps(_about(run), indent=2) + "\n")
        torch.save(
            {key: each.contiguous() for key, each in run.model.params.items()}, out / "model.pt"
        )
        for name, write in (("model.ts", _torchscript), ("model.onnx", _onnx)):
            try:
                write(run.model, out / name)
                written.append(name)
            except Exception as error:  # of a compiler, or of a package that is not there
                (out / name).unlink(missing_ok=True)
                lines = str(error).strip().splitlines() or [type(error).__name__]
                notes.append(f"{name} was not written: {lines[0]}")
        if run.synthetic is None:
            notes.append(f"{run.config.algorithm.name} makes no synthetic set")
        else:
            written += _write_set(run.synthetic, out)
    return Exported(out, tuple(written), tuple(notes))


def privacy_text(run: RunResult) -> str:
    """Returns what may be said about the privacy of everything that was learned."""
    last, privacy = run.records[-1], run.config.privacy
    if privacy is None:
        said = (
            "No privacy guarantee. The model and the synthetic images were made from the "
            "clients' examples without any noise; images can be recognisable copies of them. "
            f"`feddm leak` measures that and writes {FIGURES}."
        )
    else:
        said = f"{summary(last)}\n{introduction(privacy)}"
    about = f"{run.config.algorithm.name}, {len(run.records)} rounds, on {run.config.data.name}"
    return f"{about}.\n\n{said}\n"


def arrays(synthetic: SyntheticSet) -> dict[str, np.ndarray[Any, Any]]:
    """Returns a synthetic set as arrays: as data of your own, and as it was trained on."""
    stored = synthetic.normalization.stored(synthetic.examples.x).numpy()
    vectors = stored.shape[2:] == (1, 1)
    found = {
        "x": stored[:, :, 0, 0] if vectors else np.moveaxis(stored, 1, 3),
        "y": synthetic.examples.y.numpy(),
        "classes": np.array(synthetic.classes),
        "client": synthetic.clients.numpy(),
        "inputs": synthetic.examples.x.numpy(),
        "mean": np.array(synthetic.normalization.mean),
        "std": np.array(synthetic.normalization.std),
    }
    weight = synthetic.examples.weight
    return found if weight is None else {**found, "weight": weight.numpy()}


class Applied(nn.Module):
    """A trained model as a module: stored values in, logits out."""

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self._model: Model = trained.model
        self._names = list(trained.params)
        self._normalization = trained.normalization
        for number, name in enumerate(self._names):
            self.register_buffer(f"p{number}", trained.params[name])

    def forward(self, x: Tensor) -> Tensor:
        params: Tensors = {name: getattr(self, f"p{n}") for n, name in enumerate(self._names)}
        return self._model(params, self._normalization.inputs(x)).logits


def _example(trained: TrainedModel) -> Tensor:
    pixels = trained.normalization.scale == 255.0
    return torch.zeros(2, *trained.model.shape, dtype=torch.uint8 if pixels else torch.float32)


def _torchscript(trained: TrainedModel, path: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # TorchScript itself is old, and says so
        traced = torch.jit.trace(Applied(trained).eval(), _example(trained), check_trace=False)
        torch.jit.save(traced, path)


def _onnx(trained: TrainedModel, path: Path) -> None:
    with warnings.catch_warnings(), _silenced():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Applied(trained).eval(),
            (_example(trained),),
            path,
            dynamo=False,
            input_names=["x"],
            output_names=["logits"],
            dynamic_axes={"x": {0: "n"}, "logits": {0: "n"}},
        )


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Mutes the standard output, to which torch writes from below Python."""
    sys.stdout.flush()
    with open(os.devnull, "wb") as nowhere:
        kept = os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def _write_set(synthetic: SyntheticSet, out: Path) -> list[str]:
    np.savez_compressed(out / "synthetic.npz", **arrays(synthetic))  # type: ignore[arg-type]
    pixels = synthetic.pixels().numpy()
    if pixels.shape[2:] == (1, 1) or pixels.shape[1] not in (1, 3):
        return ["synthetic.npz"]
    for number, (image, label) in enumerate(zip(pixels, synthetic.examples.y, strict=True)):
        # Only what a file name may have everywhere.
        name = re.sub(r"[^\w.-]+", "-", synthetic.classes[int(label)]).strip(".") or "class"
        folder = out / "images" / f"{int(label):03d}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        client = int(synthetic.clients[number])
        picture = Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, 2))
        picture.save(folder / f"client{client:03d}-{number:05d}.png")
    return ["synthetic.npz", "images"]


def _about(run: RunResult) -> dict[str, Any]:
    normalization = run.model.normalization
    return {
        "classes": list(run.model.classes),
        "shape": list(run.model.model.shape),
        "scale": normalization.scale,
        "mean": list(normalization.mean),
        "std": list(normalization.std),
        "inputs": "(values / scale - mean) / std, by channel",
        "config": run.config.model_dump(mode="json"),
    }
