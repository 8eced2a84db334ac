import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from feddm.core.augmentation import Augmentation
from feddm.core.examples import Batch, Examples
from feddm.core.models import ConvNet, Model
from feddm.core.seeding import generator
from feddm.core.tensors import Tensors, norm, zip_map
from feddm.core.training import SGD, Schedule, ball, mean_gradient, shuffled_batches, train
from toy import TwoParameters, pixels, point

MODEL = TwoParameters()


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def test_gradient_by_hand() -> None:
    # One example x = .5 of class 0 at a = 2, b = 3: z = b a x = 3 against 0, so the loss is
    # -log s(3), and its derivative by z is s(3) - 1; by a it is times b x, by b times a x.
    batch = Batch(pixels(0.5), torch.tensor([0]), None)
    grads, loss = mean_gradient(MODEL, point(2.0, 3.0), batch)
    slope = sigmoid(3.0) - 1
    assert loss == pytest.approx(-math.log(sigmoid(3.0)), rel=1e-5)
    assert float(grads["a"]) == pytest.approx(slope * 3 * 0.5, rel=1e-5)
    assert float(grads["b"]) == pytest.approx(slope * 2 * 0.5, rel=1e-5)


def test_weights_count_an_example_that_often() -> None:
    batch = Batch(pixels(1.0, -2.0), torch.tensor([0, 1]), torch.tensor([1.5, 0.5]))
    thrice = Batch(pixels(1.0, 1.0, 1.0, -2.0), torch.tensor([0, 0, 0, 1]), None)
    weighted, loss = mean_gradient(MODEL, point(0.5, 2.0), batch)
    repeated, same_loss = mean_gradient(MODEL, point(0.5, 2.0), thrice)
    assert loss == pytest.approx(same_loss)
    for name in weighted:
        torch.testing.assert_close(weighted[name], repeated[name])


def test_chunks_do_not_change_the_gradient() -> None:
    model = ConvNet((1, 8, 8), 4, width=4, depth=2)
    params = model.init(generator(0, "test"))
    x, y = torch.randn(70, 1, 8, 8), torch.randint(4, (70,))
    grads, loss = mean_gradient(model, params, Batch(x, y, None))
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    whole = F.cross_entropy(model(leaves, x).logits, y)
    assert loss == pytest.approx(whole.item(), rel=1e-5)
    for name, expected in zip(
        leaves, torch.autograd.grad(whole, list(leaves.values())), strict=True
    ):
        torch.testing.assert_close(grads[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize(
    ("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.1), (0.0, 0.2)]
)
def test_steps_are_those_of_torch_sgd(
    momentum: float, decay: float, schedule: Schedule
) -> None:
    data = Examples(pixels(1.0, -2.0, 0.5), torch.tensor([0, 1, 1]))
    sgd = SGD(0.3, 4, batch_size=3, momentum=momentum, weight_decay=decay, schedule=schedule)
    trained = train(MODEL, point(0.5, 2.0), data, sgd, generator(0, "test"))
    leaves = {name: t.requires_grad_() for name, t in point(0.5, 2.0).items()}
    optimizer = torch.optim.SGD(
        list(leaves.values()), lr=0.3, momentum=momentum, weight_decay=decay
    )
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(MODEL(leaves, data.x).logits, data.y).backward()
        optimizer.step()
        if schedule == "cosine":
            cosine.step()
    for name, leaf in leaves.items():
        torch.testing.assert_close(trained.params[name], leaf.detach())
    assert trained.steps == 4


def test_training_leaves_its_arguments_unchanged() -> None:
    params = point(0.5, 2.0)
    data = Examples(pixels(1.0, -2.0), torch.tensor([0, 1]))
    sgd = SGD(lr=0.3, epochs=2, batch_size=1, momentum=0.9, weight_decay=0.1)
    train(MODEL, params, data, sgd, generator(0, "test"), project=ball(params, 0.1))
    assert params == point(0.5, 2.0)


def test_training_stays_in_the_ball() -> None:
    start = point(0.5, 2.0)
    data = Examples(pixels(3.0), torch.tensor([1]))
    seen = []
    project = ball(start, 0.25)

    def watched(params: object) -> object:
        inside = project(params)  # type: ignore[arg-type]
        seen.append(norm(zip_map(torch.sub, inside, start)))
        return inside

    sgd = SGD(lr=1.0, epochs=5, batch_size=1)
    train(MODEL, start, data, sgd, generator(0, "test"), project=watched)  # type: ignore[arg-type]
    assert len(seen) == 5
    assert seen[0] == pytest.approx(0.25)
    assert max(seen) <= 0.25 * (1 + 1e-6)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=2), st.floats(0.01, 50))
def test_ball_is_the_nearest_point_in_it(w: list[float], radius: float) -> None:
    center = point(1.0, -2.0)
    projected = ball(center, radius)(point(*w))
    distance = math.dist(w, (1.0, -2.0))
    scale = min(1.0, radius / distance) if distance else 1.0
    assert float(projected["a"]) == pytest.approx(1 + (w[0] - 1) * scale, rel=1e-4, abs=1e-4)
    assert float(projected["b"]) == pytest.approx(-2 + (w[1] + 2) * scale, rel=1e-4, abs=1e-4)


@given(st.integers(1, 60), st.integers(1, 25))
def test_batches_have_every_example_once(num: int, size: int) -> None:
    batches = list(shuffled_batches(num, size, generator(num, "test")))
    assert sorted(torch.cat(batches).tolist()) == list(range(num))
    assert len(batches) == math.ceil(num / size)
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1


def test_progress_goes_to_one() -> None:
    ticks: list[float] = []
    data = Examples(pixels(1.0), torch.tensor([0]))
    sgd = SGD(lr=0.1, epochs=4, batch_size=1)
    train(MODEL, point(1.0, 1.0), data, sgd, generator(0, "t"), tick=ticks.append)
    assert ticks == [0.25, 0.5, 0.75, 1.0]


def test_augmentation_changes_every_batch_before_the_gradient() -> None:
    seen: list[torch.Tensor] = []

    def gradient(
        model: Model, params: Tensors, batch: Batch
    ) -> tuple[dict[str, torch.Tensor], float]:
        seen.append(batch.x)
        return mean_gradient(model, params, batch)

    data = Examples(torch.randn(1, 1, 1, 1).expand(4, 1, 1, 1), torch.tensor([0, 1, 0, 1]))
    brighter = Augmentation(
        flip=False, shift=0, scale=0, rotate=0, saturation=0, contrast=0, cutout=0
    )
    sgd = SGD(lr=0.1, epochs=3, batch_size=4, augmentation=brighter)
    train(MODEL, point(1.0, 1.0), data, sgd, generator(0, "t"), gradient=gradient)
    values = torch.cat(seen).flatten()
    assert len(values.unique()) == 12  # a brightness of its own for every image and epoch
    assert float((values - data.x[0].item()).abs().max()) <= 0.5
    assert torch.equal(data.x, data.x[:1].expand(4, 1, 1, 1))
