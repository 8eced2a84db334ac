import json
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from feddm.config.schema import ModelConfig
from feddm.core.examples import Normalization
from feddm.errors import DataError
from feddm.runtime.build import build_model
from feddm.runtime.model_file import TrainedModel, load_model
from feddm.runtime.synthetic_file import load_synthetic

CONFIG = ModelConfig(name="convnet", width=3, depth=1, norm="group")
CLASSES = ("ant", "bee", "fly")
MODEL = build_model(CONFIG, (2, 4, 4), len(CLASSES))
TRAINED = TrainedModel(
    CONFIG,
    MODEL,
    MODEL.init(torch.Generator().manual_seed(1)),
    CLASSES,
    Normalization(mean=(0.5, 0.2), std=(0.25, 0.1)),
)
PIXELS = torch.randint(
    0, 256, (5, 2, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
)


def saved(content: bytes, folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    return path


def opened(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors and the metadata of a file."""
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_save_and_load(tmp_path: Path) -> None:
    back = load_model(saved(TRAINED.to_bytes(), tmp_path))
    assert back.config == CONFIG
    assert back.model == MODEL
    assert set(back.params) == set(TRAINED.params)
    for name, tensor in TRAINED.params.items():
        assert torch.equal(back.params[name], tensor)
    assert (back.classes, back.normalization) == (CLASSES, TRAINED.normalization)
    assert torch.equal(back.logits(PIXELS), TRAINED.logits(PIXELS))


def test_resnet_too(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"name": "resnet18"})
    model = build_model(config, (1, 8, 8), 2)
    params = model.init(torch.Generator().manual_seed(0))
    trained = TrainedModel(config, model, params, ("a", "b"), Normalization((0.5,), (0.5,)))
    assert load_model(saved(trained.to_bytes(), tmp_path)).model == model


def test_the_bytes_are_deterministic() -> None:
    assert len({TRAINED.to_bytes() for _ in range(20)}) == 1


def test_logits_are_those_of_normalized_pixels() -> None:
    mean, std = torch.tensor([0.5, 0.2]), torch.tensor([0.25, 0.1])
    inputs = (PIXELS / 255 - mean[:, None, None]) / std[:, None, None]
    expected = MODEL(TRAINED.params, inputs).logits
    torch.testing.assert_close(TRAINED.logits(PIXELS), expected)
    assert not TRAINED.logits(PIXELS).requires_grad


def test_predict_names_the_class_of_the_largest_logit() -> None:
    # With zero weights in the last layer, the logits are the biases.
    params = dict(TRAINED.params) | {
        "linear.weight": torch.zeros_like(TRAINED.params["linear.weight"]),
        "linear.bias": torch.tensor([0.1, 0.3, 0.2]),
    }
    says_bee = TrainedModel(CONFIG, MODEL, params, CLASSES, TRAINED.normalization)
    assert says_bee.logits(PIXELS)[0].tolist() == pytest.approx([0.1, 0.3, 0.2])
    assert says_bee.predict(PIXELS) == ["bee"] * 5


def test_predict_treats_images_independently() -> None:
    alone = [TRAINED.predict(PIXELS[i : i + 1])[0] for i in range(len(PIXELS))]
    assert TRAINED.predict(PIXELS) == alone


class TestRefused:
    def refuse(self, path: Path) -> str:
        with pytest.raises(DataError) as raised:
            load_model(path)
        message = str(raised.value)
        assert str(path) in message
        assert "\n" not in message
        return message

    def test_missing(self, tmp_path: Path) -> None:
        assert "cannot be read" in self.refuse(tmp_path / "none.safetensors")

    def test_a_folder(self, tmp_path: Path) -> None:
        self.refuse(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"not tensors at all", b"\x00" * 64])
    def test_not_safetensors(self, tmp_path: Path, content: bytes) -> None:
        assert "cannot be read" in self.refuse(saved(content, tmp_path))

    @pytest.mark.parametrize("cut", [4, 60, -1])
    def test_truncated(self, tmp_path: Path, cut: int) -> None:
        assert "cannot be read" in self.refuse(saved(TRAINED.to_bytes()[:cut], tmp_path))

    def test_foreign_tensors(self, tmp_path: Path) -> None:
        plain = safetensors.torch.save(dict(TRAINED.params))
        assert "is not a feddm model" in self.refuse(saved(plain, tmp_path))

    def test_a_model_is_not_a_synthetic_set(self, tmp_path: Path) -> None:
        path = saved(TRAINED.to_bytes(), tmp_path)
        with pytest.raises(DataError, match="is not a feddm synthetic set"):
            load_synthetic(path)

    def test_a_parameter_is_missing(self, tmp_path: Path) -> None:
        tensors, metadata = opened(saved(TRAINED.to_bytes(), tmp_path))
        del tensors["linear.bias"]
        self.refuse(saved(safetensors.torch.save(tensors, metadata), tmp_path))

    def test_a_parameter_has_another_shape(self, tmp_path: Path) -> None:
        tensors, metadata = opened(saved(TRAINED.to_bytes(), tmp_path))
        tensors["linear.bias"] = torch.zeros(4)
        self.refuse(saved(safetensors.torch.save(tensors, metadata), tmp_path))

    def test_an_incomplete_description(self, tmp_path: Path) -> None:
        tensors, metadata = opened(saved(TRAINED.to_bytes(), tmp_path))
        about = json.loads(metadata["feddm"])
        for key in about:
            rest = {other: value for other, value in about.items() if other != key}
            content = safetensors.torch.save(tensors, {"feddm": json.dumps(rest)})
            self.refuse(saved(content, tmp_path))

    def test_a_model_that_does_not_exist(self, tmp_path: Path) -> None:
        tensors, metadata = opened(saved(TRAINED.to_bytes(), tmp_path))
        about = json.loads(metadata["feddm"]) | {"model": {"name": "vgg"}}
        content = safetensors.torch.save(tensors, {"feddm": json.dumps(about)})
        self.refuse(saved(content, tmp_path))
