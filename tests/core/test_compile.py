import logging
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.core.compile import (
    Accelerated,
    Precision,
    accelerated,
    check_precision,
    compiler_problem,
    find_device,
)
from feddm.core.models import ConvNet, Model, Outputs
from feddm.core.seeding import generator
from feddm.core.tensors import CPU, Tensors
from feddm.errors import ConfigError

MODEL = ConvNet((1, 8, 8), 4, width=4, depth=2)
PARAMS = MODEL.init(generator(0, "test"))
COMPILER = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")

needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f"there is no C++ compiler {COMPILER} here"
)
# torch's own warnings: on importing its compiler, and on inspecting a non-leaf tensor.
torch_may_warn = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)


@dataclass(frozen=True)
class Line:
    """``h = x`` and ``z = w x`` for a single pixel x."""

    shape: tuple[int, int, int] = (1, 1, 1)
    num_classes: int = 1

    def init(self, rng: torch.Generator) -> dict[str, Tensor]:
        return {"w": torch.randn((1, 1), generator=rng)}

    def __call__(self, params: Tensors, x: Tensor) -> Outputs:
        embedding = x.flatten(1)
        return Outputs(embedding, F.linear(embedding, params["w"]))


def images(num: int) -> Tensor:
    return torch.randn(num, *MODEL.shape, generator=generator(num, "test"))


def num_compiled() -> int:
    """Returns how many functions torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def gradients(model: Model, num: int) -> list[Tensor]:
    """Returns the outputs, and the gradients of the images and all parameters."""
    x = images(num).requires_grad_()
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in PARAMS.items()}
    outputs = model(leaves, 2 * x)
    loss = sum(output.square().mean() for output in outputs)
    assert isinstance(loss, Tensor)
    return [*outputs, *torch.autograd.grad(loss, [x, *leaves.values()])]


class TestAccelerated:
    def test_by_default_it_is_the_model_itself(self) -> None:
        assert accelerated(MODEL, compiled=False, precision="float32") is MODEL
        assert accelerated(MODEL, True, "float32") == Accelerated(MODEL, True, "float32")
        assert accelerated(MODEL, False, "bfloat16") == Accelerated(MODEL, False, "bfloat16")

    def test_it_is_a_model_that_pickles_and_compares(self) -> None:
        model = Accelerated(MODEL, compiled=True, precision="bfloat16")
        assert pickle.loads(pickle.dumps(model)) == model
        assert model != Accelerated(MODEL, compiled=True)
        assert (model.shape, model.num_classes) == ((1, 8, 8), 4)
        params = model.init(generator(0, "test"))
        assert all(torch.equal(params[name], PARAMS[name]) for name in PARAMS)

    def test_bfloat16_by_hand(self) -> None:
        # It has 8 bits of precision: 1 + 1/512 rounds to 1. Only products use it.
        x = torch.full((2, 1, 1, 1), 1 + 1 / 512)
        outputs = Accelerated(Line(), precision="bfloat16")({"w": torch.ones(1, 1)}, x)
        assert outputs.logits.flatten().tolist() == [1.0, 1.0]
        assert outputs.embedding.flatten().tolist() == [1 + 1 / 512] * 2
        assert {output.dtype for output in outputs} == {torch.float32}

    def test_bfloat16_is_near(self) -> None:
        exact = gradients(MODEL, 5)
        near = gradients(Accelerated(MODEL, precision="bfloat16"), 5)
        assert {tensor.dtype for tensor in near} == {torch.float32}
        for ours, theirs in zip(near, exact, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
        assert not torch.equal(near[1], exact[1])


@needs_compiler
@torch_may_warn
def test_compiled_outputs_are_those_of_the_model() -> None:
    model = Accelerated(MODEL, compiled=True)
    before = num_compiled()
    with torch.no_grad():
        for num in (5, 1, 2, 11):
            for ours, theirs in zip(
                model(PARAMS, images(num)), MODEL(PARAMS, images(num)), strict=True
            ):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert num_compiled() == before + 1  # another batch size does not recompile


@needs_compiler
@torch_may_warn
@pytest.mark.slow
def test_compiled_gradients_are_those_of_the_model() -> None:
    tolerances: dict[Precision, tuple[float, float]] = {
        "float32": (1e-3, 1e-5),
        "bfloat16": (0.05, 0.05),
    }
    for precision, (rtol, atol) in tolerances.items():
        model = Accelerated(MODEL, True, precision)
        plain = accelerated(MODEL, False, precision)
        for num in (2, 1, 7, 32, 20):
            for ours, theirs in zip(gradients(model, num), gradients(plain, num), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


class TestCompilerProblem:
    """The result is cached, so the tests call the undecorated function."""

    @staticmethod
    def problem_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> str | None:
        def broken(function: object) -> object:
            raise error

        monkeypatch.setattr(torch, "compile", broken)
        problem: str | None = compiler_problem.__wrapped__()
        return problem

    def test_is_one_short_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        error = RuntimeError("\n  no room on the disk\nand a long story")
        assert self.problem_with(monkeypatch, error) == "no room on the disk"
        assert self.problem_with(monkeypatch, RuntimeError(300 * "x")) == 200 * "x"

    def test_an_error_without_a_message_has_a_name(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.problem_with(monkeypatch, MemoryError()) == "MemoryError"

    def test_logging_resumes_afterwards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = logging.root.manager.disable
        self.problem_with(monkeypatch, RuntimeError("no"))
        assert logging.root.manager.disable == before

    def test_is_none_if_it_works(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "compile", lambda function: function)
        assert compiler_problem.__wrapped__() is None

    def test_a_compiler_that_does_not_exist(self, tmp_path: Path) -> None:
        code = "from feddm.core.compile import compiler_problem as p; print(p()); print(p())"
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ
            | {"CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stderr == ""
        first, second = ended.stdout.splitlines()
        assert "/nonexistent" in first
        assert first == second


class TestDevice:
    @staticmethod
    def present(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in names)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in names)

    @pytest.mark.parametrize(
        ("names", "chosen"),
        [((), "cpu"), (("mps",), "mps"), (("cuda",), "cuda"), (("cuda", "mps"), "cuda")],
    )
    def test_auto_takes_a_gpu_if_there_is_one(
        self, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], chosen: str
    ) -> None:
        self.present(monkeypatch, *names)
        assert find_device("auto") == torch.device(chosen)
        assert find_device("cpu") == CPU

    @pytest.mark.parametrize("wanted", ["cuda", "mps"])
    def test_a_missing_device_is_rejected(
        self, monkeypatch: pytest.MonkeyPatch, wanted: str
    ) -> None:
        self.present(monkeypatch)
        with pytest.raises(ConfigError, match=f"^runtime.device is {wanted}, but torch finds"):
            find_device(wanted)

    def test_float16_needs_a_gpu(self) -> None:
        with pytest.raises(ConfigError, match="float16 needs a GPU; use bfloat16 on a CPU"):
            check_precision("float16", CPU)
        check_precision("float16", torch.device("cuda"))
        check_precision("float32", CPU)
        check_precision("bfloat16", CPU)
