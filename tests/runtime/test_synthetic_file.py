import json
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from feddm.core.examples import Examples, Normalization
from feddm.errors import DataError
from feddm.runtime.synthetic_file import SyntheticSet, from_state, load_synthetic

IMAGES = torch.tensor([[-2.0, 2.0, 0.4, 0.0], [-9.0, 5.0, -0.4, 1.0]]).view(2, 1, 2, 2)
SET = SyntheticSet(
    Examples(IMAGES, torch.tensor([1, 0]), weight=torch.tensor([2.5, 0.5])),
    clients=torch.tensor([7, 3], dtype=torch.int32),
    classes=("chat", "chień"),
    normalization=Normalization(mean=(0.5,), std=(0.25,)),
)


def saved(content: bytes, folder: Path) -> Path:
    path = folder / "synthetic.safetensors"
    path.write_bytes(content)
    return path


def opened(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors and the metadata of a file."""
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_save_and_load(tmp_path: Path) -> None:
    back = load_synthetic(saved(SET.to_bytes(), tmp_path))
    assert torch.equal(back.examples.x, IMAGES)
    assert back.examples.y.tolist() == [1, 0]
    assert back.examples.y.dtype == torch.int64
    assert back.examples.normalization is None
    assert back.examples.weight is not None
    assert back.examples.weight.tolist() == [2.5, 0.5]
    assert back.clients.tolist() == [7, 3]
    assert (back.classes, back.normalization) == (SET.classes, SET.normalization)
    assert len(back) == 2


def test_a_set_without_weights_has_none_after_loading(tmp_path: Path) -> None:
    plain = SyntheticSet(
        Examples(IMAGES, torch.tensor([1, 0])), SET.clients, SET.classes, SET.normalization
    )
    assert load_synthetic(str(saved(plain.to_bytes(), tmp_path))).examples.weight is None


def test_the_bytes_are_deterministic() -> None:
    assert len({SET.to_bytes() for _ in range(20)}) == 1


def test_views_are_saved_as_they_look(tmp_path: Path) -> None:
    turned = SyntheticSet(
        Examples(IMAGES.transpose(2, 3), torch.tensor([1, 0])),
        SET.clients,
        SET.classes,
        SET.normalization,
    )
    back = load_synthetic(saved(turned.to_bytes(), tmp_path))
    assert back.examples.x[0, 0].tolist() == [[-2.0, IMAGES[0, 0, 1, 0]], [2.0, 0.0]]


def test_pixels_are_clipped_to_uint8() -> None:
    pixels = SET.pixels()
    assert pixels.dtype == torch.uint8
    # (x / 4 + 1 / 2) * 255: 0.4 is 153, -0.4 is 102, 1 is 191.25; 0 is 127.5, rounded to even.
    assert pixels[0].flatten().tolist() == [0, 255, 153, 128]
    assert pixels[1].flatten().tolist() == [0, 255, 102, 191]


def test_any_program_can_read_it(tmp_path: Path) -> None:
    tensors, metadata = opened(saved(SET.to_bytes(), tmp_path))
    assert set(tensors) == {"images", "labels", "clients", "weights"}
    assert tensors["images"].dtype == torch.float32
    described = " ".join(metadata.values())
    assert "0.25" in described
    assert "(pixels / 255 - mean) / std" in described


def test_from_the_state_of_an_algorithm() -> None:
    state = {
        "x": IMAGES,
        "y": torch.tensor([1, 0], dtype=torch.uint8),
        "client": torch.tensor([7, 3], dtype=torch.int32),
    }
    made = from_state(state, SET.classes, SET.normalization)
    assert made.examples.y.dtype == torch.int64
    assert made.examples.y.tolist() == [1, 0]
    assert made.examples.weight is None
    assert made.clients.tolist() == [7, 3]
    weighted = from_state(state | {"weight": torch.ones(2)}, SET.classes, SET.normalization)
    assert weighted.examples.weight is not None


class TestRefused:
    def refuse(self, path: Path) -> str:
        with pytest.raises(DataError) as raised:
            load_synthetic(path)
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
        assert "cannot be read" in self.refuse(saved(SET.to_bytes()[:cut], tmp_path))

    def test_foreign_tensors(self, tmp_path: Path) -> None:
        plain = safetensors.torch.save({"images": IMAGES})
        assert "is not a feddm synthetic set" in self.refuse(saved(plain, tmp_path))
        other = safetensors.torch.save({"images": IMAGES}, {"format": "pt"})
        assert "is not a feddm synthetic set" in self.refuse(saved(other, tmp_path))

    def test_a_tensor_is_missing(self, tmp_path: Path) -> None:
        tensors, metadata = opened(saved(SET.to_bytes(), tmp_path))
        for name in ("images", "labels", "clients"):
            rest = {other: tensor for other, tensor in tensors.items() if other != name}
            self.refuse(saved(safetensors.torch.save(rest, metadata), tmp_path))

    def test_an_incomplete_description(self, tmp_path: Path) -> None:
        tensors, metadata = opened(saved(SET.to_bytes(), tmp_path))
        about = json.loads(metadata["feddm"])
        for key in set(about) - {"use"}:
            rest = {other: value for other, value in about.items() if other != key}
            content = safetensors.torch.save(tensors, {"feddm": json.dumps(rest)})
            self.refuse(saved(content, tmp_path))
        for text in ("[]", "5", "{", "null"):
            self.refuse(saved(safetensors.torch.save(tensors, {"feddm": text}), tmp_path))
