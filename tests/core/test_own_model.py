import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from feddm.config import code
from feddm.core.examples import Batch
from feddm.core.models import MLP, Model, num_features
from feddm.core.own_model import OwnModel
from feddm.core.training import mean_gradient
from feddm.errors import ConfigError
from residual import ResNet

SHAPE = (1, 8, 8)
RNG = torch.Generator().manual_seed(0)


def own(made: object, shape: tuple[int, int, int] = SHAPE, classes: int = 3) -> OwnModel:
    return OwnModel(code.reference_to(made), shape, classes)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def test_it_computes_what_the_built_in_one_does() -> None:
    """A module with the weights of an MLP has its outputs, and its gradients."""
    theirs: Model = own(two_layers, (5, 1, 1))
    ours = MLP((5, 1, 1), 3, width=4, depth=1)
    params = theirs.init(RNG)
    names = dict(zip(params, ours.init(RNG), strict=True))
    same = {names[key]: value for key, value in params.items()}
    x = torch.randn(6, 5, 1, 1, generator=RNG)
    for one, other in zip(theirs(params, x), ours(same, x), strict=True):
        torch.testing.assert_close(one, other)
    batch = Batch(x, torch.tensor([0, 1, 2, 0, 1, 2]), None)
    grads, loss = mean_gradient(theirs, params, batch)
    expected, expected_loss = mean_gradient(ours, same, batch)
    assert loss == pytest.approx(expected_loss)
    for key, grad in grads.items():
        torch.testing.assert_close(grad, expected[names[key]])


def test_images_have_gradients_through_the_embedding() -> None:
    model = own(ResNet)
    x = torch.randn(4, *SHAPE, generator=RNG, requires_grad=True)
    embedding = model(model.init(RNG), x).embedding
    assert embedding.shape == (4, 16)
    (grad,) = torch.autograd.grad(embedding.square().sum(), x)
    assert grad.flatten(1).norm(dim=1).gt(0).all()


def test_it_works_under_transforms() -> None:
    model = own(ResNet)
    params = model.init(RNG)
    x = torch.randn(2, *SHAPE, generator=RNG)
    grads = torch.func.grad(lambda p: model(p, x).logits.square().sum())(params)
    assert set(grads) == set(params)
    assert all(grad.isfinite().all() for grad in grads.values())


def test_the_generator_decides_and_the_global_one_is_left_alone() -> None:
    model = own(ResNet)
    before = torch.random.get_rng_state()
    first, again, other = (
        model.init(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


class Activated(nn.BatchNorm2d):
    """Batch norm with an activation, as some libraries have it."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


@pytest.mark.parametrize("norm", [Activated, nn.SyncBatchNorm])
def test_other_kinds_of_batch_norm_are_refused(norm: type[nn.Module]) -> None:
    def made() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), norm(2), nn.Flatten(), nn.Linear(72, 3))

    code_of = OwnModel(code.reference_to(made), SHAPE, 3)
    with pytest.raises(ConfigError, match=f"^1 is a {norm.__name__}, which mixes"):
        code_of.init(RNG)


def test_batch_norm_and_dropout_are_handled_in_a_sentence_each() -> None:
    model = own(ResNet)
    assert model.notices == (
        "6 layers of batch norm in ResNet are group norm here: batch statistics mix examples",
        "dropout in ResNet is left out: outputs must not depend on chance",
    )
    params = model.init(RNG)
    assert not [key for key in params if "running" in key]
    x = torch.randn(5, *SHAPE, generator=RNG)
    together, alone = model(params, x).logits, model(params, x[2:3]).logits
    torch.testing.assert_close(together[2:3], alone)
    assert torch.equal(model(params, x).logits, together)


def test_a_module_that_was_given_keeps_its_weights() -> None:
    module = two_layers()
    params = own(module, (5, 1, 1)).init(RNG)
    assert all(torch.equal(params[key], value) for key, value in module.state_dict().items())


def test_frozen_parameters_are_constants() -> None:
    module = two_layers()
    module[0].weight.requires_grad_(False)  # type: ignore[index]
    model = own(module, (5, 1, 1))
    params = model.init(RNG)
    assert set(params) == {"0.bias", "2.weight", "2.bias"}
    x = torch.randn(2, 5, 1, 1, generator=RNG)
    torch.testing.assert_close(model(params, x).logits, module(x.flatten(1)))


class TwoOutputs(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(1)
        return x, self.linear(x).log_softmax(1)


def test_another_kind_returns_both() -> None:
    model = own(TwoOutputs)
    assert num_features(model) == 64
    outputs = model(model.init(RNG), torch.randn(2, *SHAPE, generator=RNG))
    torch.testing.assert_close(outputs.logits.exp().sum(1), torch.ones(2))


def test_it_pickles_and_compares() -> None:
    model = own(ResNet)
    assert pickle.loads(pickle.dumps(model)) == model == own(ResNet)
    assert model != own(ResNet, classes=4)


class Softmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x.flatten(1)).softmax(1)
        return result


class Centered(Softmax):
    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        result: Tensor = self.linear(x - x.mean(0))
        return result


class Noisy(Softmax):
    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        result: Tensor = self.linear(x + torch.randn(64))
        return result


class Counting(Softmax):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        result: Tensor = self.linear(x.flatten(1))
        return result


def needs_more(hidden: int) -> nn.Module:
    return nn.Linear(64, hidden)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Softmax, "the last layer of Softmax is not linear: let it return (embedding, logits)"),
        (Centered, "Centered mixes the examples of a batch"),
        (Noisy, "Noisy mixes the examples of a batch"),
        (Counting, "Counting changes its buffer seen while it computes"),
        (
            needs_more,
            "needs_more needs an argument hidden; only num_classes, shape, in_channels",
        ),
        (two_layers, "two_layers cannot compute examples of shape (1, 8, 8): RuntimeError"),
        (lambda: 5, "must make a torch.nn.Module, got int"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 7)),
            "must return 3 logits for each",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(
    made: Callable[[], nn.Module], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _ = own(made).notices
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
