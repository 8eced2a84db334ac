import pickle

import pytest
import torch

from feddm.core.models import ConvNet, Model, ResNet18, num_params
from feddm.core.seeding import generator

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ConvNet(MNIST, 10), 317_706),
        (ConvNet(CIFAR, 10), 320_010),
        (ConvNet(CIFAR, 100), 504_420),
        # 3x3x3x64, then per stage its 3x3 convolutions, 1x1 shortcuts and two numbers per
        # channel and norm layer, then 512x10 + 10.
        (ResNet18(CIFAR, 10), 11_173_962),
    ],
)
def test_parameter_counts(model: Model, expected: int) -> None:
    assert num_params(model.init(generator(0, "test"))) == expected


ALL: list[Model] = [
    ConvNet((1, 8, 8), 10, width=4, depth=3),
    ConvNet((1, 28, 28), 10, width=4, depth=3),
    ConvNet((3, 32, 32), 7, width=5, depth=2, norm="group"),
    ConvNet((3, 9, 13), 3, width=4, depth=4),
    ResNet18((1, 8, 8), 10, norm="instance"),
    ResNet18((3, 32, 32), 10),
]


@pytest.mark.parametrize("model", ALL, ids=str)
class TestEveryModel:
    def test_shapes_of_embedding_and_logits(self, model: Model) -> None:
        params = model.init(generator(0, "test"))
        outputs = model(params, torch.randn(3, *model.shape))
        assert outputs.logits.shape == (3, model.num_classes)
        assert outputs.embedding.shape == (3, params["linear.weight"].shape[1])
        expected = outputs.embedding @ params["linear.weight"].T + params["linear.bias"]
        torch.testing.assert_close(outputs.logits, expected)

    def test_the_output_does_not_depend_on_the_batch(self, model: Model) -> None:
        params = model.init(generator(0, "test"))
        x = torch.randn(4, *model.shape)
        alone = torch.cat([model(params, image[None]).logits for image in x])
        torch.testing.assert_close(model(params, x).logits, alone, rtol=1e-4, atol=1e-5)

    def test_different_images_give_different_logits(self, model: Model) -> None:
        params = model.init(generator(0, "test"))
        logits = model(params, torch.randn(2, *model.shape)).logits
        assert (logits[0] - logits[1]).abs().max() > 1e-4

    def test_init_depends_on_the_generator_only(self, model: Model) -> None:
        first, second, third = (model.init(generator(seed, "test")) for seed in (1, 1, 2))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert not torch.equal(first["linear.weight"], third["linear.weight"])

    def test_pickles(self, model: Model) -> None:
        assert pickle.loads(pickle.dumps(model)) == model


def test_convnet_equals_the_same_network_of_torch_layers() -> None:
    model = ConvNet((3, 8, 8), 5, width=6, depth=2)
    params = model.init(generator(0, "test"))
    layers: list[torch.nn.Module] = []
    channels = 3
    for block in range(2):
        conv = torch.nn.Conv2d(channels, 6, 3, padding=1)
        norm = torch.nn.InstanceNorm2d(6, affine=True)
        for layer, name in ((conv, f"conv{block}"), (norm, f"norm{block}")):
            layer.load_state_dict(
                {"weight": params[f"{name}.weight"], "bias": params[f"{name}.bias"]}
            )
        layers += [conv, norm, torch.nn.ReLU(), torch.nn.AvgPool2d(2)]
        channels = 6
    linear = torch.nn.Linear(6 * 2 * 2, 5)
    linear.load_state_dict({"weight": params["linear.weight"], "bias": params["linear.bias"]})
    network = torch.nn.Sequential(*layers, torch.nn.Flatten(), linear)
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(model(params, x).logits, network(x), rtol=1e-4, atol=1e-5)


def test_padding_to_32_is_a_frame_of_zeros() -> None:
    small, large = ConvNet((1, 28, 28), 10, width=4), ConvNet((1, 32, 32), 10, width=4)
    params = small.init(generator(0, "test"))
    x = torch.randn(2, 1, 28, 28)
    framed = torch.zeros(2, 1, 32, 32)
    framed[:, :, 2:30, 2:30] = x
    assert torch.equal(small(params, x).logits, large(params, framed).logits)
