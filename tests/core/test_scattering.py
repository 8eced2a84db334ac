"""The fixed feature map."""

import pytest
import torch

from feddm.core import scattering
from feddm.core.scattering import Scattering, WhitenedFeatures
from feddm.core.tensors import Tensors


def images(num: int, shape: tuple[int, int, int] = (1, 12, 12)) -> torch.Tensor:
    return torch.rand(num, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 7, 9), (2, 5, 5), (1, 1, 1)])
def test_features_have_the_size_that_is_told_and_a_bounded_length(
    shape: tuple[int, int, int],
) -> None:
    features = Scattering(shape)
    rows = features(images(3, shape))
    assert rows.shape == (3, features.size)
    assert rows.norm(dim=1).max() <= features.longest


def test_brightness_and_contrast_do_not_matter_to_moduli() -> None:
    # Wavelets add up to 0, and orders are scaled to one length. Only order 0 sees brightness.
    x = images(2)
    features = Scattering((1, 12, 12))
    one, other = features(x), features(3 * x + 2)
    later = torch.arange(features.size) % 81 > 0
    torch.testing.assert_close(one[:, later], other[:, later], rtol=0, atol=2e-3)
    assert (one - other)[:, ~later].abs().max() > 0.01


def test_an_edge_is_seen_by_the_wavelet_across_it() -> None:
    x = torch.zeros(1, 1, 16, 16)
    x[..., 8:] = 1.0  # a vertical edge changes along the rows, orientation 0
    rows = Scattering((1, 16, 16))(x).view(1, 16, 81)
    first_order = rows[0, 0, 1:9]  # frequency 0, fine scale, by orientation
    assert int(first_order.argmax()) == 0
    assert first_order[0] > 2 * first_order[4]


def test_features_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    features, x = Scattering((1, 12, 12)), images(2) + 0.123
    first = features(x)

    def fail(self: Scattering, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("computed again")

    monkeypatch.setattr(Scattering, "_computed", fail)
    assert torch.equal(features(x.clone()), first)
    with pytest.raises(AssertionError):
        features(x + 1)


def test_the_cache_forgets_the_oldest() -> None:
    cache = scattering.Cache(most=100)
    for name in "abc":
        cache.put(name, torch.zeros(10))  # 40 bytes
        cache.get("a")
    assert [name for name in "abc" if cache.get(name) is not None] == ["a", "c"]


def test_a_model_without_weights_has_no_opinion() -> None:
    model = WhitenedFeatures((1, 12, 12), 4)
    params: Tensors = model.init(torch.Generator())
    outputs = model(params, images(2))
    assert not outputs.logits.any()
    torch.testing.assert_close(outputs.embedding.norm(dim=1), torch.ones(2))
