import dataclasses
import pickle
import typing
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from feddm.algorithms.base import Upload
from feddm.algorithms.feddm import FedDM, PaperNoise, Synthesis
from feddm.algorithms.union import label_dtype, united
from feddm.core.coding import Coding, Type
from feddm.core.examples import Examples, Normalization
from feddm.core.formation import expanded
from feddm.core.matching import Squares, class_means, matching_loss
from feddm.core.models import ConvNet, Model, Outputs
from feddm.core.seeding import generator
from feddm.core.tensors import CPU, Records, Tensors, norm, num_bytes, num_floats, zip_map
from feddm.core.training import SGD, ignore
from feddm.errors import EmptyRoundError, UploadError
from feddm.privacy.release import Noise
from toy import TwoParameters, pixels, point

PAPER = Synthesis(
    steps=0,
    lr=1.0,
    momentum=0.0,
    networks=None,
    real_batch=256,
    radius=5.0,
    start="real",
)


def feddm(
    model: Model = ConvNet((1, 8, 8), 10, width=4, depth=2),  # noqa: B008  # frozen
    weighting: Literal["synthetic", "examples"] = "synthetic",
    min_class_size: int = 10,
    **synthesis: Any,
) -> FedDM:
    return FedDM(
        model=model,
        images_per_class=10,
        min_class_size=min_class_size,
        server_sgd=SGD(lr=1.0, epochs=1, batch_size=256),
        server_radius=5.0,
        weighting=weighting,
        device=CPU,
        synthesis=dataclasses.replace(PAPER, **synthesis),
    )


def client(counts: dict[int, int], shape: tuple[int, int, int] = (1, 8, 8)) -> Examples:
    """Returns random images with so many of each class."""
    y = torch.tensor([label for label, count in counts.items() for _ in range(count)])
    x = torch.randint(0, 256, (len(y), *shape), dtype=torch.uint8)
    return Examples(x, y, Normalization((0.3,) * shape[0], (0.4,) * shape[0]))


def local(algorithm: FedDM, data: Examples, seed: int = 0) -> Records:
    download = {"params": algorithm.model.init(generator(0, "test"))}
    result = algorithm.local(download, data, {}, generator(seed, "client"), ignore)
    algorithm.check(result.upload, download)
    assert not result.memory
    return result.upload


def test_straight_through_shows_images_as_they_will_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Tensor] = []

    def recorded(self: Coding, images: Tensor) -> Tensor:
        shown.append(rounded(self, images))
        return shown[-1]

    rounded = Coding.rounded
    monkeypatch.setattr(Coding, "rounded", recorded)
    algorithm = dataclasses.replace(
        feddm(steps=3, straight_through=True, real_batch=8), coding=Coding("uint2")
    )
    local(algorithm, client({0: 20, 3: 20}))
    assert [len(images) for images in shown] == [20] * 3
    assert all(len(images.unique()) == 4 for images in shown)
    assert not torch.equal(shown[0], shown[2])


def test_no_step_sends_real_images_of_the_right_classes() -> None:
    data = client({2: 30, 5: 12})
    examples = local(feddm(), data)["examples"]
    assert examples["y"].tolist() == [2] * 10 + [5] * 10
    inputs = data[torch.arange(len(data))].x
    for image, label in zip(examples["x"], examples["y"], strict=True):
        matches = (inputs == image).flatten(1).all(1).nonzero().flatten()
        assert len(matches) == 1
        assert data.y[matches] == label
    distinct = {image.numpy().tobytes() for image in examples["x"]}
    assert len(distinct) == 20


def test_steps_start_from_what_no_step_sends() -> None:
    data = client({2: 30, 5: 12})
    start = local(feddm(), data)["examples"]
    nearly = local(feddm(steps=3, lr=1e-9, networks=2), data)["examples"]
    torch.testing.assert_close(nearly["x"], start["x"], rtol=0, atol=1e-6)
    learned = local(feddm(steps=3, lr=100.0, networks=2), data)["examples"]
    assert (learned["x"] - start["x"]).abs().max() > 1e-3


def test_upload_of_cifar10_is_3072_floats_an_image_and_a_byte_a_label() -> None:
    data = client({0: 10, 3: 11, 9: 25, 4: 9}, (3, 32, 32))
    upload = local(feddm(ConvNet((3, 32, 32), 10, width=2)), data)
    pairs = 3  # class 4 has fewer than ten images
    assert num_floats(upload) == pairs * 10 * 3072
    assert num_bytes(upload) == pairs * 10 * (3072 * 4 + 1)


def test_a_class_with_few_images_sends_what_it_has() -> None:
    examples = local(feddm(min_class_size=1), client({1: 3, 2: 40}))["examples"]
    assert examples["y"].tolist() == [1] * 3 + [2] * 10


def test_a_client_without_any_class_sends_nothing() -> None:
    upload = local(feddm(), client({1: 3}))
    assert upload["examples"]["x"].shape == (0, 1, 8, 8)
    assert num_bytes(upload) == 0


def test_noise_start_does_not_look_at_the_images() -> None:
    first, second = (
        local(feddm(start="noise", min_class_size=1), client({1: 3, 7: 20}))["examples"]
        for _ in range(2)
    )
    assert torch.equal(first["x"], second["x"])
    assert first["y"].tolist() == [1] * 10 + [7] * 10


def test_networks_are_used_in_turn() -> None:
    # With radius 0 all networks are alike, so a pool of one is the same as fresh ones.
    data = client({2: 30, 5: 12})
    same: dict[str, Any] = dict(steps=4, lr=10.0, radius=0.0, real_batch=None)
    fresh, pool = (local(feddm(networks=n, **same), data)["examples"]["x"] for n in (None, 1))
    assert torch.equal(fresh, pool)


def test_matching_brings_the_means_together() -> None:
    data = client({2: 60, 5: 60})
    algorithm = feddm(steps=60, lr=2.0, networks=5)
    download = {"params": algorithm.model.init(generator(0, "test"))}
    metrics = algorithm.local(download, data, {}, generator(0, "client"), ignore).metrics
    assert metrics["last_loss"] < 0.5 * metrics["first_loss"]
    assert metrics["classes"] == 2
    assert metrics["images"] == 20


def upload(client: int, x: torch.Tensor, *labels: int, **more: torch.Tensor) -> Upload:
    examples = {"x": x, "y": torch.tensor(labels, dtype=torch.uint8), **more}
    return Upload(client, {"examples": examples})


def aggregated(
    weighting: Literal["synthetic", "examples"], radius: float, *uploads: Upload
) -> dict[str, torch.Tensor]:
    algorithm = dataclasses.replace(feddm(TwoParameters(), weighting), server_radius=radius)
    state = algorithm.init(point(0.5, 2.0))
    return dict(algorithm.aggregate(state, uploads, generator(0, "s"), ignore)["params"])


def test_server_step_by_hand() -> None:
    # At a = .5, b = 2 the logit is z = x. The losses of x = 1 in class 0 and x = -1 in class 1
    # have slopes s(1) - 1 = -q and s(-1) = q by z, and dz/da = 2 x, dz/db = x / 2. The mean
    # gradient is (-2 q, -q / 2) and one step with rate 1 goes against it.
    q = 1 / (1 + torch.e)
    params = aggregated("synthetic", 5.0, upload(0, pixels(1.0), 0), upload(3, pixels(-1.0), 1))
    assert float(params["a"]) == pytest.approx(0.5 + 2 * q)
    assert float(params["b"]) == pytest.approx(2 + q / 2)


def test_server_stays_in_the_ball() -> None:
    # The same step, of length q sqrt(4 + 1/4), cut to .1.
    params = aggregated("synthetic", 0.1, upload(0, pixels(1.0), 0), upload(3, pixels(-1.0), 1))
    assert norm(zip_map(torch.sub, params, point(0.5, 2.0))) == pytest.approx(0.1)
    assert float(params["a"]) == pytest.approx(0.5 + 0.1 * 2 / 4.25**0.5)


def test_weighting_by_examples_is_the_mean_over_real_examples() -> None:
    # One image stands for three real ones, the other for one: as if it were there three times.
    three, one = torch.tensor([3.0]), torch.tensor([1.0])
    weighted = aggregated(
        "examples",
        5.0,
        upload(0, pixels(1.0), 0, weight=three),
        upload(1, pixels(2.0), 1, weight=one),
    )
    repeated = aggregated(
        "synthetic", 5.0, upload(0, pixels(1.0, 1.0, 1.0), 0, 0, 0), upload(1, pixels(2.0), 1)
    )
    for name in weighted:
        torch.testing.assert_close(weighted[name], repeated[name])


def test_weights_are_class_sizes_over_images() -> None:
    examples = local(feddm(weighting="examples"), client({2: 30, 5: 12}))["examples"]
    assert examples["weight"].tolist() == pytest.approx([3.0] * 10 + [1.2] * 10)


def test_nothing_to_learn_from_is_an_error() -> None:
    with pytest.raises(EmptyRoundError, match="min_class_size"):
        aggregated("synthetic", 5.0, upload(0, torch.empty(0, 1, 1, 1)))
    with pytest.raises(EmptyRoundError):
        aggregated("synthetic", 5.0)


def test_union_names_the_client() -> None:
    sets = [upload(4, pixels(1.0, 2.0), 0, 1), upload(7, pixels(3.0), 1)]
    both = united((sent.client, sent.records["examples"]) for sent in sets)
    assert both["client"].tolist() == [4, 4, 7]
    assert both["x"].flatten().tolist() == [1, 2, 3]
    assert both["y"].tolist() == [0, 1, 1]


GOOD: dict[str, torch.Tensor] = {
    "x": torch.zeros(2, 1, 8, 8),
    "y": torch.zeros(2, dtype=torch.uint8),
}


@pytest.mark.parametrize(
    ("examples", "says"),
    [
        ({"x": GOOD["x"]}, "no more"),
        (GOOD | {"z": GOOD["x"]}, "no more"),
        (GOOD | {"x": GOOD["x"].double()}, "float64"),
        (GOOD | {"x": torch.zeros(2, 1, 9, 9)}, "9, 9"),
        (GOOD | {"x": torch.zeros(101, 1, 8, 8)}, "at most 100"),
        (GOOD | {"x": torch.full((2, 1, 8, 8), torch.nan)}, "from -10000"),
        (GOOD | {"y": torch.zeros(3, dtype=torch.uint8)}, "one label"),
        (GOOD | {"y": torch.zeros(2, dtype=torch.int64)}, "smallest type"),
        (GOOD | {"y": torch.tensor([0, 10], dtype=torch.uint8)}, "below 10"),
    ],
)
def test_wrong_uploads_are_refused(examples: dict[str, torch.Tensor], says: str) -> None:
    feddm().check({"examples": GOOD}, {})
    with pytest.raises(UploadError, match=says):
        feddm().check({"examples": examples}, {})


def test_other_records_and_weights_are_refused() -> None:
    with pytest.raises(UploadError, match="no more"):
        feddm().check({"examples": GOOD, "more": {}}, {})
    weighted = feddm(weighting="examples")
    with pytest.raises(UploadError, match="weight"):
        weighted.check({"examples": GOOD}, {})
    with pytest.raises(UploadError, match="above 0"):
        weighted.check({"examples": GOOD | {"weight": torch.tensor([1.0, -1.0])}}, {})
    weighted.check({"examples": GOOD | {"weight": torch.ones(2)}}, {})


def test_weights_that_could_overflow_are_refused() -> None:
    algorithm = feddm(weighting="examples")
    for weight in (1.1e9, torch.inf, torch.nan):
        with pytest.raises(UploadError, match="above 0 and up to 1e"):
            algorithm.check({"examples": GOOD | {"weight": torch.tensor([1.0, weight])}}, {})
    algorithm.check({"examples": GOOD | {"weight": torch.tensor([1.0, 1e9])}}, {})


def test_local_leaves_its_arguments_unchanged() -> None:
    algorithm = feddm(steps=2, networks=1)
    data = client({2: 30})
    params = algorithm.model.init(generator(0, "test"))
    before = {name: tensor.clone() for name, tensor in params.items()}
    pictures = data.x.clone()
    algorithm.local({"params": params}, data, {}, generator(0, "c"), ignore)
    assert torch.equal(data.x, pictures)
    assert all(torch.equal(params[name], before[name]) for name in before)


def test_it_pickles_and_compares() -> None:
    assert pickle.loads(pickle.dumps(feddm())) == feddm()
    assert feddm(steps=1) != feddm(steps=2)


def test_label_types() -> None:
    assert label_dtype(256) == torch.uint8
    assert label_dtype(257) == torch.int32


class TestFormation:
    def changed(self, **synthesis: Any) -> FedDM:
        return dataclasses.replace(feddm(**synthesis), formation=2, images_per_class=2)

    def test_a_stored_image_holds_four_real_ones(self) -> None:
        data = client({2: 30, 5: 10})
        examples = local(self.changed(), data)["examples"]
        # Of class 5 there are ten images: two stored ones take eight of them.
        assert examples["y"].tolist() == [2, 2, 5, 5]
        small = F.avg_pool2d(data[torch.arange(40)].x, 2)
        seen = []
        for image, label in zip(examples["x"], examples["y"], strict=True):
            for tile in (
                image[:, :4, :4],
                image[:, :4, 4:],
                image[:, 4:, :4],
                image[:, 4:, 4:],
            ):
                gap = (small - tile).abs().flatten(1).amax(1)
                assert float(gap.min()) < 1e-5
                assert data.y[int(gap.argmin())] == label
                seen.append(int(gap.argmin()))
        assert len(set(seen)) == 16

    def test_a_step_is_the_gradient_through_the_enlarged_images(self) -> None:
        algorithm, data = self.changed(steps=1, networks=1, radius=0.0), client({2: 30, 5: 12})
        params = algorithm.model.init(generator(0, "test"))
        before = local(self.changed(), data)["examples"]["x"].requires_grad_()
        after = local(algorithm, data)["examples"]["x"]
        outputs = algorithm.model(params, expanded(before, 2))
        real = algorithm.model(params, data[torch.arange(42)].x)
        loss = torch.zeros(())
        for slot, members in enumerate((slice(0, 30), slice(30, 42))):
            for ours, theirs in zip(outputs, real, strict=True):
                gap = ours[8 * slot : 8 * slot + 8].mean(0) - theirs[members].mean(0)
                loss = loss + gap.square().sum()
        (gradient,) = torch.autograd.grad(loss, before)
        torch.testing.assert_close(before - after, gradient, rtol=1e-3, atol=1e-5)

    def test_the_server_trains_on_four_times_as_many(self) -> None:
        algorithm = self.changed()
        memory = {
            "x": torch.randn(3, 1, 8, 8),
            "y": torch.tensor([1, 2, 2], dtype=torch.uint8),
            "weight": torch.tensor([1.0, 1.0, 4.0]),
            "age": torch.zeros(3, dtype=torch.int32),
        }
        data = algorithm._training_set(memory)
        assert torch.equal(data.x, expanded(memory["x"], 2))
        assert data.y.tolist() == [1] * 4 + [2] * 8
        assert data.weight is not None
        assert data.weight.tolist() == pytest.approx([0.5] * 8 + [2.0] * 4)


class TestReplay:
    def rounds(self, **changes: Any) -> list[Records]:
        algorithm = dataclasses.replace(feddm(TwoParameters()), **changes)
        state: Records = algorithm.init(point(1.0, 1.0))
        states = []
        for number in range(4):
            uploads = [upload(7, pixels(float(number)), 0)]
            state = algorithm.aggregate(state, uploads, generator(number, "s"), ignore)
            states.append(state)
        return states

    def test_sets_of_earlier_rounds_are_kept_so_long(self) -> None:
        states = self.rounds(replay=2)
        kept = [state["replay"]["x"].flatten().tolist() for state in states]
        assert kept == [[0], [1, 0], [2, 1, 0], [3, 2, 1]]
        assert states[-1]["replay"]["age"].tolist() == [0, 1, 2]
        # What is shown and counted as the round's own is the round's own.
        assert states[-1]["synthetic"]["x"].flatten().tolist() == [3]

    def test_without_it_nothing_is_kept(self) -> None:
        assert all("replay" not in state for state in self.rounds())

    def test_older_sets_count_less(self) -> None:
        algorithm = dataclasses.replace(feddm(), replay=3, replay_decay=0.5)
        memory = {
            "x": torch.zeros(3, 1, 8, 8),
            "y": torch.zeros(3, dtype=torch.uint8),
            "age": torch.tensor([0, 1, 2], dtype=torch.int32),
        }
        weight = algorithm._training_set(memory).weight
        assert weight is not None
        # 1, .5 and .25, scaled to a mean of 1.
        assert weight.tolist() == pytest.approx([12 / 7, 6 / 7, 3 / 7])


def test_the_last_images_are_the_next_start() -> None:
    algorithm, data = feddm(start="last", steps=1, networks=1), client({2: 30, 5: 12})
    download = {"params": algorithm.model.init(generator(0, "test"))}
    first = algorithm.local(download, data, {}, generator(0, "c"), ignore)
    assert torch.equal(first.memory["last"]["x"], first.upload["examples"]["x"])
    still = dataclasses.replace(
        algorithm, synthesis=dataclasses.replace(algorithm.synthesis, steps=0)
    )
    second = still.local(download, data, first.memory, generator(1, "c"), ignore)
    assert torch.equal(second.upload["examples"]["x"], first.upload["examples"]["x"])
    assert torch.equal(second.upload["examples"]["y"], first.upload["examples"]["y"])


def test_groups_by_hand() -> None:
    """Each image goes to the mean of those that it was drawn from, not to that of its class."""
    # h = x and z = 0, so two images of a class at learning rate 1/2 are at their means after a
    # step. Brightness 0, 10 and 200, 210 are alike.
    data = Examples(pixels(0.0, 200.0, 10.0, 210.0), torch.tensor([1, 1, 1, 1]))
    algorithm = dataclasses.replace(
        feddm(TwoParameters(), min_class_size=1, steps=1, lr=0.5, radius=0.0, groups=2),
        images_per_class=2,
    )
    download = {"params": point(1.0, 0.0)}
    result = algorithm.local(download, data, {}, generator(0, "client"), ignore)
    algorithm.check(result.upload, download)
    assert sorted(result.upload["examples"]["x"].flatten().tolist()) == [5.0, 205.0]
    assert result.upload["examples"]["y"].tolist() == [1, 1]
    assert result.metrics["classes"] == 1
    whole = dataclasses.replace(
        algorithm, synthesis=dataclasses.replace(algorithm.synthesis, groups=1)
    )
    sent = whole.local(download, data, {}, generator(0, "client"), ignore).upload
    assert sorted(sent["examples"]["x"].flatten().tolist()) != [5.0, 205.0]


def test_alike_is_what_the_servers_weights_find_alike() -> None:
    """With h = a b x, where one pixel alone counts, the other does not matter."""
    x = torch.tensor([[0.0, 5.0], [9.0, 6.0], [1.0, 6.0], [8.0, 5.0]]).view(4, 1, 1, 2)

    @dataclasses.dataclass(frozen=True)
    class OnePixel(TwoParameters):
        shape: tuple[int, int, int] = (1, 1, 2)

        def __call__(self, params: Tensors, x: Tensor) -> Outputs:
            embedding = params["a"] * x[:, :, 0, :1] + params["b"] * 100 * x[:, :, 0, 1:]
            return Outputs(embedding.flatten(1), torch.zeros(len(x), 2))

    for weights, expected in [
        (point(1.0, 0.0), [{0.0, 1.0}, {8.0, 9.0}]),
        (point(0.0, 1.0), [{0.0, 8.0}, {1.0, 9.0}]),
    ]:
        algorithm = dataclasses.replace(
            feddm(OnePixel(), min_class_size=1, groups=2), images_per_class=2
        )
        data = Examples(x, torch.zeros(4, dtype=torch.int64))
        sent = set()
        for seed in range(20):  # each sends one of each group
            result = algorithm.local(
                {"params": weights}, data, {}, generator(seed, "c"), ignore
            )
            first = result.upload["examples"]["x"][:, 0, 0, 0]
            sent.add(frozenset(first.tolist()))
        assert all(len(pair & part) == 1 for pair in sent for part in expected)
        assert len(sent) > 1


def test_the_papers_noise_goes_by_the_size_of_groups() -> None:
    data = client({2: 40})
    drawn: list[Tensor] = []

    class Recorded(PaperNoise):
        def perturbed(
            self, gradient: Tensor, slots: Tensor, step: int, batches: Tensor, noise: Noise
        ) -> Tensor:
            drawn.append(batches)
            return gradient

    algorithm = dataclasses.replace(
        feddm(steps=1, groups=4, real_batch=8), paper_noise=Recorded(1.0, 5.0)
    )
    algorithm = dataclasses.replace(algorithm, images_per_class=4)
    download = {"params": algorithm.model.init(generator(0, "test"))}
    noise = typing.cast(Noise, object())  # nobody asks it for anything
    algorithm.local(download, data, {}, generator(0, "c"), ignore, noise)
    assert [batches.tolist() for batches in drawn] == [[8, 8, 8, 8]]
    drawn.clear()
    wide = dataclasses.replace(algorithm.synthesis, real_batch=None)
    algorithm = dataclasses.replace(algorithm, synthesis=wide)
    algorithm.local(download, data, {}, generator(0, "c"), ignore, noise)
    assert [batches.tolist() for batches in drawn] == [[10, 10, 10, 10]]


@pytest.mark.parametrize("formation", [1, 2])
@pytest.mark.parametrize("start", ["real", "noise"])
def test_groups_send_as_much_as_classes(
    formation: int, start: Literal["real", "noise"]
) -> None:
    data = client({2: 95, 5: 13, 7: 40})
    sent = [
        local(
            dataclasses.replace(
                feddm(steps=2, start=start, groups=groups, weighting="examples"),
                formation=formation,
            ),
            data,
        )["examples"]
        for groups in (1, 4, 10)
    ]
    for grouped in sent[1:]:
        assert torch.equal(grouped["y"], sent[0]["y"])
        assert grouped["x"].shape == sent[0]["x"].shape
        for label, size in [(2, 95), (5, 13), (7, 40)]:  # weights still add up to all
            weight = grouped["weight"][grouped["y"] == label].sum()
            assert float(weight) == pytest.approx(size)


def test_second_moments_by_hand() -> None:
    # a = 2, b = 3: h = 2 x, h^2 = 4 x^2, z = 6 x. Real 1 and 3: means 4, 20, 12. Synthetic 0
    # and 2: 2, 8, 6. With weight .5 the squares add (.5 * 12)^2 = 36 to 4 + 36.
    model = Squares(TwoParameters(), 0.5)
    real = class_means(model(point(2.0, 3.0), pixels(1.0, 3.0)), torch.tensor([0, 0]), 1)
    ours = class_means(model(point(2.0, 3.0), pixels(0.0, 2.0)), torch.tensor([0, 0]), 1)
    assert real.embedding.tolist() == [[4.0, 10.0]]
    assert float(matching_loss(real, ours)) == 76.0


@pytest.mark.parametrize("type_", ["float16", "uint8", "uint4"])
def test_the_server_trains_on_what_it_decoded(type_: Type) -> None:
    coding = Coding(type_, packed=True)
    algorithm = dataclasses.replace(feddm(), coding=coding)
    sent = local(algorithm, client({2: 30, 5: 12}))
    plain = local(feddm(), client({2: 30, 5: 12}))
    assert num_bytes(sent) < num_bytes(plain) / 1.5
    state = algorithm.aggregate(
        algorithm.init(algorithm.model.init(generator(0, "test"))),
        [Upload(3, sent)],
        generator(0, "s"),
        ignore,
    )
    images = coding.decode(
        {name: sent["examples"][name] for name in coding.names}, (1, 8, 8), 100
    )
    assert torch.equal(state["synthetic"]["x"], images)
